"""What to measure, in which order, so that the parameters of a step can be told apart however early the time ends.

A step's time is, to first order, ``t0 + a·N + b·A + c·ΣC + d·D`` (tokens, attended pairs of prompts, cached tokens read, decoding
sequences; see docs/equations.md), each operator the larger of its compute and its memory time. What tells the terms apart:

*   *decode*: the number of sequences is crossed with their context, each in steps of four, so that Σ contexts and sequences are not
    collinear; one sequence at a short context leaves overhead and weights alone.
*   *prefill*: whole prompts in steps of two, the same number of octaves in the linear term's range and in that of the quadratic one. Short
    ones still read the weights (memory-bound), long ones multiply (compute-bound), so the bend between them is seen.
*   *chunk*: new tokens crossed with cached ones. Same tokens, other pairs: the attention of prompts apart from their matrices.
*   *mixed*: prompts, and chunks on a context, beside decodes. All are held out, for they are what a fit to the others must predict.
*   Held out are also decodes, prefills and chunks at values between those that are fitted.

Each list is walked from its ends to its middles, and the lists are interleaved, so any beginning covers the whole range coarsely.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel.hardware.errors import InputError
from costmodel.validation.measurements.types import Purpose

MOST_SHARE = 0.1
"""A point that would take a larger share of the time than this is left out."""
FIRST_SHARE = 0.3
"""Share of the time that the first round may take by the speed of the warm-up; long contexts are slower, and every point comes again."""
ROOM = 64
"""Tokens that contexts may grow by while a point is measured."""
VISIT = 3
"""Repeats of a point before the next one's turn."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes.

    Attributes:
        token_budget: tokens of one step (max_num_batched_tokens).
        sequences: that may run at once (max_num_seqs).
        model_tokens: longest sequence (max_model_len).
        kv_tokens: that the KV cache holds.
        block_tokens: of a block of it.
        set_up_cost: what a token that is put into the KV cache before a step takes, in tokens of a prompt.
    """

    token_budget: int
    sequences: int
    model_tokens: int
    kv_tokens: int
    block_tokens: int
    set_up_cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of step that is measured.

    Attributes:
        purpose: why.
        chunk: (new tokens, tokens cached before) of the one prompt in it; None for decodes alone.
        decodes: sequences that decode.
        context: of each of them before the first repeat; grows by one token a step.
        held_out: it is for checking, not for fitting.
    """

    purpose: Purpose
    chunk: tuple[int, int] | None = None
    decodes: int = 0
    context: int = 0
    held_out: bool = False

    @property
    def label(self) -> str:
        """Its name in a file: the same in every plan that has it."""
        parts = []
        if self.chunk is not None:
            new, cached = self.chunk
            parts.append(f"{new}@{cached}" if cached else f"{new}")
        if self.decodes:
            parts.append(f"{self.decodes}x{self.context}")
        return f"{self.purpose} {' + '.join(parts)}"

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.decodes + (self.chunk[0] if self.chunk else 0)

    @property
    def set_up_tokens(self) -> int:
        """Tokens that must be in the KV cache before."""
        return self.decodes * self.context + (self.chunk[1] if self.chunk else 0)

    def fits(self, limits: Limits) -> bool:
        """Tell whether the engine can run it, with room for the contexts to grow."""
        new, cached = self.chunk or (0, 0)
        sequences = [self.context + ROOM] * self.decodes + ([new + cached + 1] if self.chunk else [])
        blocks = sum(-(-each // limits.block_tokens) for each in sequences)
        return (
            self.tokens <= limits.token_budget
            and len(sequences) <= limits.sequences
            and max(sequences) <= limits.model_tokens
            and blocks * limits.block_tokens <= 0.9 * limits.kv_tokens
        )


def plan(limits: Limits, seconds: float, tokens_per_second: float) -> tuple[Point, ...]:
    """Return what to measure, the most important first.

    Args:
        limits: of the engine.
        seconds: there are for all of it [s].
        tokens_per_second: of prompts, as the warm-up found it.

    Raises:
        InputError: the engine's limits leave nothing to measure.
    """
    most = MOST_SHARE * seconds * tokens_per_second
    left = FIRST_SHARE * seconds * tokens_per_second
    taken: list[Point] = []
    filled: dict[int, int] = {}
    for point in _in_order(limits):
        if point.label in {each.label for each in taken}:
            continue
        fresh = _fresh_tokens(point, filled)
        cost = limits.set_up_cost * fresh + _step_cost(point)
        if taken and (cost > most or cost > left):
            continue
        left -= cost
        taken.append(point)
        if point.decodes:
            for sequence in range(point.decodes):
                filled[sequence] = max(filled.get(sequence, 0), point.context)
    if not taken:
        raise InputError(
            f"nothing can be measured with a token budget of {limits.token_budget:,}, sequences of {limits.model_tokens:,} tokens and "
            f"a KV cache of {limits.kv_tokens:,} tokens; allow more with --max-num-batched-tokens or --max-model-len"
        )
    return tuple(taken)


def _fresh_tokens(point: Point, filled: dict[int, int]) -> int:
    """Return the tokens of the set-up that no earlier point has left in the prefix cache."""
    decodes = sum(max(point.context - filled.get(each, 0), 0) for each in range(point.decodes))
    return decodes + (point.chunk[1] if point.chunk else 0)


def _step_cost(point: Point) -> int:
    """Return what a visit takes, in tokens of a prompt; a decode of one sequence reads the weights as a few dozen tokens do."""
    return (VISIT + 1) * (point.tokens + 32)


def _in_order(limits: Limits) -> Iterator[Point]:
    """Yield all points, the lists interleaved by how many of each are wanted."""
    lists: list[tuple[float, list[Point]]] = [
        (3.0, _decodes(limits)),
        (2.5, _prefills(limits)),
        (2.0, _chunks(limits)),
        (1.5, _mixed(limits)),
        (0.7, _decodes(limits, held_out=True)),
        (0.7, _prefills(limits, held_out=True)),
        (0.5, _chunks(limits, held_out=True)),
    ]
    fitting = [(share, [point for point in points if point.fits(limits)]) for share, points in lists]
    ranked = [((place + 1) / share, point) for share, points in fitting for place, point in enumerate(points)]
    return (point for _, point in sorted(ranked, key=lambda each: each[0]))


def _decodes(limits: Limits, held_out: bool = False) -> list[Point]:
    first = (3, 96) if held_out else (1, 32)
    batches = list(_geometric(first[0], 4, min(limits.sequences, limits.token_budget)))
    contexts = [_after_blocks(each, limits) for each in _geometric(first[1], 4, limits.model_tokens - ROOM)]
    pairs = _crossed(batches, contexts)
    return [
        Point("decode", decodes=batch, context=context, held_out=held_out)
        for batch, context in (pairs[:8] if held_out else pairs)
    ]


def _prefills(limits: Limits, held_out: bool = False) -> list[Point]:
    most = min(limits.token_budget, limits.model_tokens - 1)
    lengths = list(_geometric(24, 4, most) if held_out else _geometric(16, 2, most))
    if not held_out and lengths and most > 1.25 * lengths[-1]:
        lengths.append(most)
    return [Point("prefill", chunk=(length, 0), held_out=held_out) for length in spread_out(lengths)]


def _chunks(limits: Limits, held_out: bool = False) -> list[Point]:
    first = (48, 768) if held_out else (16, 256)
    new = list(_geometric(first[0], 8 if held_out else 4, limits.token_budget))
    cached = [_whole_blocks(each, limits) for each in _geometric(first[1], 4, limits.model_tokens)]
    return [Point("chunk", chunk=pair, held_out=held_out) for pair in _crossed(new, cached)]


def _mixed(limits: Limits) -> list[Point]:
    def with_decodes(chunk: tuple[int, int], batch: int) -> Point:
        context = _after_blocks(512 if batch <= 32 else 128, limits)
        return Point("mixed", chunk, batch, context, held_out=True)

    new = list(_geometric(64, 4, limits.token_budget))
    batches = list(_geometric(8, 4, limits.sequences - 1))
    whole = [with_decodes((length, 0), batch) for length, batch in _crossed(new, batches)]
    cached = [_whole_blocks(each, limits) for each in _geometric(1024, 4, limits.model_tokens)]
    later = [with_decodes((length, context), 8) for length, context in _crossed(new, cached)]
    return [point for pair in itertools.zip_longest(whole[:12], later[:6]) for point in pair if point is not None]


def _geometric(first: int, ratio: int, last: int) -> Iterator[int]:
    """Yield first, first·ratio, … up to ``last``."""
    while first <= last:
        yield first
        first *= ratio


def _whole_blocks(tokens: int, limits: Limits) -> int:
    """Return about so many tokens, in whole blocks of the KV cache: what a prefix cache can give back."""
    return max(round(tokens / limits.block_tokens), 1) * limits.block_tokens


def _after_blocks(tokens: int, limits: Limits) -> int:
    """Return about so many tokens, one more than whole blocks: a prompt that the prefix cache leaves one token of."""
    return _whole_blocks(tokens, limits) + 1


def _crossed(ones: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs, those of the ends of both first."""
    one, other = (
        {value: place for place, value in enumerate(spread_out(sorted(set(each))))} for each in (ones, others)
    )

    def key(pair: tuple[int, int]) -> tuple[int, int, int]:
        places = one[pair[0]], other[pair[1]]
        return max(places) // 2, sum(places), places[1]

    return sorted(itertools.product(one, other), key=key)


def spread_out(values: Sequence[int]) -> list[int]:
    """Return the values from the ends to the middles: 1 2 3 4 5 → 1 5 3 2 4. Any beginning covers the range."""
    found = [values[0], values[-1]] if len(values) > 1 else list(values)  # may be empty
    spans = [(0, len(values) - 1)]
    while spans:
        low, high = spans.pop(0)
        if high - low < 2:
            continue
        middle = (low + high) // 2
        found.append(values[middle])
        spans += [(low, middle), (middle, high)]
    return found
