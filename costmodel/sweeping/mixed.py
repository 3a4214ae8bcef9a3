"""Steps of a batch of configurations as arrays: decode steps, mixed steps, and sums over the chunks of a prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.equations.numerics import total
from costmodel.equations.parameters import Parameters
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, Work, make_work
from costmodel.sweeping.columns import Floats
from costmodel.vectorised import BLOCK

MOST_CHUNKS = 2**21
"""Chunks that are laid out at a time."""


def seconds(
    parameters: Parameters, tokens: Any = None, cached: Any = 0.0, decodes: Any = None, context: Any = 0.0
) -> Floats:
    """Return the time of every step [s]: a chunk of ``tokens`` after ``cached`` beside ``decodes`` sequences at ``context``.

    Args:
        parameters: of the deployment.
        tokens: None for steps without a chunk.
        cached: tokens before the chunk.
        decodes: None for steps without decoding sequences.
        context: of those.

    Returns:
        An array in the shape that the arguments broadcast to.
    """
    given = [value for value in (tokens, cached, decodes, context) if value is not None]
    shape = np.broadcast_shapes(*(np.shape(value) for value in given))

    def flat(value: Any) -> Any:
        return None if value is None else np.broadcast_to(np.asarray(value, dtype=np.float64), shape).reshape(-1)

    q, c, d, x = flat(tokens), flat(cached), flat(decodes), flat(context)
    found = np.empty(int(np.prod(shape)))
    for start in range(0, len(found), BLOCK):
        part = slice(start, start + BLOCK)
        chunks = [] if q is None else [Chunk(q[part], c[part])]
        groups = [] if d is None else [Decodes(d[part], x[part])]
        found[part] = _total(parameters, make_work(chunks, groups, parameters.windows))
    return found.reshape(shape)


def _total(parameters: Parameters, work: Work) -> Any:
    return total(operator.seconds for operator in step_operators(parameters, work))


def prefills_together(parameters: Parameters, prompt: Floats, count: Floats) -> Floats:
    """Return the time of steps that prefill ``count`` prompts, whole, and nothing else [s]; flat arrays."""
    found = np.empty(len(prompt))
    if any(kernel.mixed_tiles is not None for kernel in parameters.attention):  # its form looks at every chunk
        for number in np.unique(count):
            chosen = count == number
            chunks = [Chunk(prompt[chosen])] * int(number)
            found[chosen] = _total(parameters, make_work(chunks, windows=parameters.windows))
        return found
    for start in range(0, len(found), BLOCK):
        part = slice(start, start + BLOCK)
        one, many = make_work([Chunk(prompt[part])], windows=parameters.windows), count[part]
        work = replace(
            one,
            tokens=one.tokens * many,
            rows=one.rows * many,
            prefills=one.prefills * many,
            pairs={window: value * many for window, value in one.pairs.items()},
            prefill_kv={window: value * many for window, value in one.prefill_kv.items()},
        )
        found[part] = _total(parameters, work)
    return found


def chunk_sum(parameters: Parameters, prompt: Floats, room: Floats, decodes: Floats, context: Floats) -> Floats:
    """Return Σ T of the mixed steps in which prompts are prefilled, ``room`` tokens at a time [s]; flat arrays."""
    return chunk_times(parameters, prompt, room, decodes, context)[0]


def chunk_times(
    parameters: Parameters, prompt: Floats, room: Floats, decodes: Floats, context: Floats
) -> tuple[Floats, Floats]:
    """Return the sum and the longest of the mixed steps in which prompts are prefilled, ``room`` tokens at a time [s]; flat arrays."""
    steps = np.ceil(prompt / room)
    found, longest = np.empty(len(prompt)), np.empty(len(prompt))
    start, ends = 0, np.cumsum(steps)
    while start < len(found):
        taken = ends[start - 1] if start else 0.0
        stop = max(int(np.searchsorted(ends, taken + MOST_CHUNKS, side="right")), start + 1)
        part = slice(start, stop)
        count = steps[part].astype(np.intp)
        firsts = np.cumsum(count) - count
        number = np.arange(int(count.sum())) - np.repeat(firsts, count)
        spread = [np.repeat(value[part], count) for value in (prompt, room, decodes, context)]
        cached = number * spread[1]
        times = seconds(parameters, np.minimum(spread[1], spread[0] - cached), cached, spread[2], spread[3])
        found[part] = np.add.reduceat(times, firsts)
        longest[part] = np.maximum.reduceat(times, firsts)
        start = stop
    return found, longest
