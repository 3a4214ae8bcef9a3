"""The spike: what a decoding stream waits for while a prompt is prefilled in the same steps, and who sees it.

A stream gets one token per step, so it waits for every mixed step. With token budget m and D streams a prompt goes in chunks of
m − D tokens; the height of the spike is the longest mixed step, its duration their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.equations.work import Chunk, Decodes, LocalChunks, Window, Work, make_work
from costmodel.hardware.errors import InputError

PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}


def chunk_room(budget: int | None, streams: int) -> int | None:
    """Return the prompt tokens per step under a token budget: m − D; None without a budget.

    Raises:
        InputError: m ≤ D, so that no prompt would make progress.
    """
    if budget is None:
        return None
    if budget <= streams:
        raise InputError(
            f"a token budget of {budget} leaves no room for a prompt beside {streams} running streams "
            f"(every stream takes one token of it); use at least {streams + 1}"
        )
    return budget - streams


def step_count(prompt: int, prompts: int, room: int | None) -> int:
    """Return the number of mixed steps: ⌈prompts·n/room⌉, one without a budget; n tokens of a prompt that are to be computed."""
    return 1 if room is None else -(-prompt * prompts // room)


def step_chunks(prompt: int, prompts: int, room: int | None, index: int, cached: int = 0) -> list[Chunk]:
    """Return the chunks of one mixed step, first come first served: a step may end one prompt and begin the next.

    Args:
        prompt: n, tokens of each prompt.
        prompts: prompts that arrive together.
        room: prompt tokens per step; None for all in one step.
        index: which step, from 0.
        cached: tokens of each prompt that the prefix cache has: they are not computed, and no step is spent on them.
    """
    new = prompt - cached
    if room is None:
        return [Chunk(new, cached)] * prompts
    start, end = index * room, min((index + 1) * room, new * prompts)
    chunks = []
    for number in range(start // new, (end - 1) // new + 1):
        done = max(start - number * new, 0)
        chunks.append(Chunk(min(end - number * new, new) - done, cached + done))
    return chunks


def mixed_steps(prompt: int, prompts: int, room: int | None, cached: int = 0) -> Iterator[list[Chunk]]:
    """Yield the chunks of every mixed step in turn; same arguments as :func:`step_chunks`."""
    for index in range(step_count(prompt - cached, prompts, room)):
        yield step_chunks(prompt, prompts, room, index, cached)


def tallest_candidates(
    prompt: int, prompts: int, room: int | None, cached: int = 0, windows: Iterable[Window] = ()
) -> list[list[Chunk]]:
    """Return the steps among which the longest one is, without going through all of them.

    Step time never falls with tokens or cached tokens. So of the steps that lie within one prompt the last is the longest; left are,
    for each prompt, that one and the step in which it ends. In local chunks of w the time falls where a chunk begins: there it grows from
    a step to the one w tokens later, or of several w the least that are whole steps, so that the last steps up to that are left.
    """
    if room is None:
        return [step_chunks(prompt, prompts, None, 0, cached)]
    new = prompt - cached
    period = math.lcm(1, *(window.size // math.gcd(window.size, room) for window in _local(windows)))
    ends = [((number + 1) * new - 1) // room for number in range(prompts)]
    indices: set[int] = set()
    for number, end in enumerate(ends):
        whole = -(-number * new // room)  # the first step that lies within the prompt
        indices.update(range(max(end - period, min(whole, end - 1), 0), end + 1))
    return [step_chunks(prompt, prompts, room, index, cached) for index in sorted(indices)]


def _local(windows: Iterable[Window]) -> list[LocalChunks]:
    return [window for window in windows if isinstance(window, LocalChunks)]


def mixed_work(chunks: Sequence[Chunk], streams: int, context: int, windows: Iterable[Window]) -> Work:
    """Return the work of a mixed step: the chunks, and one token for each of ``streams`` at ``context``."""
    return make_work(chunks, [Decodes(streams, context)], windows)


@dataclass(frozen=True, slots=True)
class Visibility:
    """Who sees the spike, per injection period."""

    gaps: float
    """Gaps that a stream sees in one period: (τ − Σ T_mixed)/T_dec + number of mixed steps."""
    fraction: float
    """Share of them that are mixed steps."""
    overload: bool
    """Σ T_mixed ≥ τ: the next prompt comes before this one is done."""
    moves: dict[str, bool]
    """Which percentiles of a stream's gaps are at the spike: q moves only if fraction > 1 − q/100."""


def visibility(mixed_s: float, steps: int, decode_s: float, every: float) -> Visibility:
    """Return who sees spikes of ``mixed_s`` seconds in ``steps`` mixed steps, every ``every`` seconds.

    Args:
        mixed_s: Σ T_mixed of one injection [s].
        steps: number of mixed steps of one injection.
        decode_s: T_dec [s].
        every: τ, period of the injections [s].
    """
    overload = mixed_s >= every
    gaps = float(steps) if overload else (every - mixed_s) / decode_s + steps
    fraction = 1.0 if overload else steps / gaps
    moves = {name: fraction > 1.0 - q / 100.0 for name, q in PERCENTILES.items()}
    return Visibility(gaps, fraction, overload, {**moves, "max": True})


def longest(steps: Iterable[list[Chunk]], seconds: Callable[[list[Chunk]], float]) -> tuple[list[Chunk], float]:
    """Return the longest of the steps, and its seconds."""
    timed = [(seconds(chunks), index, chunks) for index, chunks in enumerate(steps)]
    best = max(timed, key=lambda item: (item[0], -item[1]))
    return best[2], best[0]
