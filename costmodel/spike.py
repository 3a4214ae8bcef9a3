"""The spike: what a decoding stream waits for while a prompt is prefilled in the same steps, and who sees it.

A stream gets one token per step, so it waits for every mixed step. With token budget m and D streams a prompt goes in chunks of
m − D tokens; the height of the spike is the longest mixed step, its duration their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.equations.work import Chunk, Decodes, Window, Work, make_work
from costmodel.hardware.errors import InputError

PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
MAX_STEPS = 200_000
"""More mixed steps than this per prompt are refused: the question is hardly meant."""


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


def mixed_steps(prompt: int, prompts: int, room: int | None) -> Iterator[list[Chunk]]:
    """Yield the chunks of each mixed step, first come first served.

    Args:
        prompt: tokens of each prompt.
        prompts: prompts that arrive together.
        room: prompt tokens per step; None for all in one step.
    """
    if room is None:
        yield [Chunk(prompt)] * prompts
        return
    if -(-prompt * prompts // room) > MAX_STEPS:
        raise InputError(
            f"{prompts} × {prompt} tokens at {room} per step are more than {MAX_STEPS} steps; use a larger --chunk"
        )
    waiting, done = prompts, 0
    while waiting:
        left, chunks = room, []
        while left and waiting:
            taken = min(left, prompt - done)
            chunks.append(Chunk(taken, done))
            left, done = left - taken, done + taken
            if done == prompt:
                waiting, done = waiting - 1, 0
        yield chunks


def tallest_candidates(prompt: int, prompts: int, room: int | None) -> list[list[Chunk]]:
    """Return the steps among which the longest one is, without going through all of them.

    Step time never falls with tokens or cached tokens, so for one prompt it is the last full chunk or the remainder after it.
    """
    if room is None or prompts > 1:
        return list(mixed_steps(prompt, prompts, room))
    full, rest = divmod(prompt, room)
    candidates = [[Chunk(room, (full - 1) * room)]] if full else []
    return candidates + ([[Chunk(rest, full * room)]] if rest else [])


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
