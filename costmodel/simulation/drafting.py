"""Speculative decoding as the simulated engine needs it: how many drafts are accepted, and how long a pass takes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any, Literal, Protocol, get_args

from costmodel.equations.numerics import total
from costmodel.equations.parameters import Parameters
from costmodel.equations.recording import Recorder
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Reach, Work, attended_pairs, chunk_kv
from costmodel.rungs import total_seconds
from costmodel.simulation.clock import MOST_CHUNKS, Clock, compiled, summed
from costmodel.speculation.host import HostTimes
from costmodel.speculation.steps import Speculator

Draw = Literal["random", "even"]
DRAWS: tuple[str, ...] = get_args(Draw)


@dataclass(frozen=True, slots=True)
class Rows:
    """The decoding sequences of a step, drafts included.

    Attributes:
        sequences: D.
        drafted: Σ of their drafts.
        reads: KV tokens that they read, for every window.
        pairs: (query, key) pairs that they attend, likewise.
        later: KV tokens that a draft pass after the first reads, of all sequences of the step, those of prefill chunks included, likewise.
    """

    sequences: int
    drafted: int
    reads: Sequence[float]
    pairs: Sequence[float]
    later: Sequence[float]


class Passes(Protocol):
    """What tells the simulation the time of a pass.

    Sums of :class:`Rows` are those of each window in :attr:`windows`.
    """

    windows: tuple[Reach, ...]

    def seconds(self, chunks: Sequence[tuple[int, int]], rows: Rows) -> float:
        """Return the time of a step with prefill ``chunks`` (tokens, cached before) beside ``rows``, and of the drafts after it [s]."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculation of a simulated engine.

    Attributes:
        tokens: k, drafts of every sequence in every pass.
        chances: that each of them is accepted if those before it were.
        lookahead: tokens that a decoding sequence has blocks for beyond those of its step; the draft writes their K and V.
        draw: ``random``, or ``even`` for as many in every pass as the mean says, rests carried over.
        seed: of the draws.
        passes: how long they take.
    """

    tokens: int
    chances: tuple[float, ...]
    lookahead: int = 0
    draw: Draw = "random"
    seed: int = 0
    passes: Passes = field(compare=False, kw_only=True)

    def means(self) -> list[float]:
        """Return how many of 0, 1 … k drafts are accepted on average."""
        return list(accumulate(accumulate(self.chances, mul), initial=0.0))


class Draws:
    """How many drafts are accepted, pass by pass.

    Args:
        drafting: chances, draw and seed.
    """

    def __init__(self, drafting: Drafting) -> None:
        self._chances, self._means = drafting.chances, drafting.means()
        self._random = random.Random(drafting.seed) if drafting.draw == "random" else None

    def accepted(self, drafted: int, credit: float) -> tuple[int, float]:
        """Return how many of ``drafted`` tokens are accepted, and the credit of the sequence afterwards.

        Args:
            drafted: at most k.
            credit: what earlier passes of the sequence were short of their mean, where draws are even.
        """
        if self._random is None:
            credit += self._means[drafted]
            taken = min(drafted, math.floor(credit + ROUNDING))
            return taken, credit - taken
        taken = 0
        while taken < drafted and self._random.random() < self._chances[taken]:
            taken += 1
        return taken, credit


ROUNDING = 1e-9


class FixedPasses:
    """Passes of fixed step times: verifying takes a decode step, drafting nothing.

    Args:
        clock: of the steps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.windows = clock.windows

    def seconds(self, chunks: Sequence[tuple[int, int]], rows: Rows) -> float:
        """Return the time of the step [s]."""
        return (
            self._clock.mixed(chunks, rows.sequences, rows.reads)
            if chunks
            else self._clock.decode(rows.sequences, rows.reads)
        )


class ModelPasses:
    """Passes by the equations: the target's step, then the draft's, as :meth:`~costmodel.speculation.steps.Speculator.pass_time` has them.

    Args:
        speculator: target and draft.
        tokens: k.
    """

    def __init__(self, speculator: Speculator, tokens: int) -> None:
        self._host: HostTimes = speculator.host
        self._later_passes = tokens - 1
        target, draft = speculator.target, speculator.draft
        self.windows = tuple(dict.fromkeys((*target.windows, *(draft.first.windows if draft else ()))))
        self._target = StepOfRows(target, self.windows)
        self._first = StepOfRows(draft.first, self.windows) if draft else None
        self._later = StepOfRows(draft.later, self.windows) if draft else None

    def seconds(self, chunks: Sequence[tuple[int, int]], rows: Rows) -> float:
        """Return the time of the step and of the drafts [s]."""
        verified, drafting = rows.sequences + rows.drafted, rows.sequences + len(chunks)
        time = self._target.seconds(chunks, rows.sequences, verified, verified + len(chunks), rows.reads, rows.pairs)
        time += self._host.verify_s if rows.drafted else 0.0
        if self._first is None or self._later is None:
            return time
        first = self._first.seconds(chunks, rows.sequences, verified, drafting, rows.reads, rows.pairs)
        time += max(first, self._host.pass_s)
        if self._later_passes:
            later = self._later.seconds([], drafting, drafting, drafting, rows.later, rows.later)
            time += self._later_passes * max(later, self._host.pass_s)
        return time


class StepOfRows:
    """The time of a step in which decoding sequences have several rows.

    Args:
        parameters: of the step.
        windows: that the sums are given for, those of the step among them.
    """

    def __init__(self, parameters: Parameters, windows: Sequence[Reach]) -> None:
        self._parameters, self._windows = parameters, tuple(windows)
        self._made: dict[tuple[int, bool], Callable[..., float]] = {}

    def seconds(
        self,
        chunks: Sequence[tuple[int, int]],
        sequences: int,
        tokens: int,
        rows: int,
        reads: Sequence[float],
        pairs: Sequence[float],
    ) -> float:
        """Return the time of a step [s].

        Args:
            chunks: (tokens, cached before) of prefill.
            sequences: that decode.
            tokens: of them.
            rows: through lm_head, of all.
            reads, pairs: KV tokens and (query, key) pairs of the decoding sequences, for every window.
        """
        if len(chunks) > MOST_CHUNKS:
            parts = [Chunk(float(q), float(c)) for q, c in chunks]
            return float(
                total_seconds(
                    step_operators(self._parameters, self._work(parts, sequences, tokens, rows, reads, pairs))
                )
            )
        key = len(chunks), sequences > 0
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._function(*key)
        sizes = [size for chunk in chunks for size in chunk]
        return made(*sizes, rows, *((sequences, tokens, *reads, *pairs) if sequences else ()))

    def _function(self, count: int, decoding: bool) -> Callable[..., float]:
        recorder = Recorder()
        names = [f"{name}{i}" for i in range(count) for name in "qc"]
        arguments = [recorder.argument(name) for name in names]
        chunks = [Chunk(*arguments[2 * i : 2 * i + 2]) for i in range(count)]
        rows: Any = recorder.argument("n")
        windows = range(len(self._windows))
        decodes: list[Any] = [0, 0, [0] * len(windows), [0] * len(windows)]
        names.append("n")
        if decoding:
            read, paired = [f"r{i}" for i in windows], [f"p{i}" for i in windows]
            decodes = [recorder.argument("d"), recorder.argument("t")]
            decodes += [[recorder.argument(name) for name in read], [recorder.argument(name) for name in paired]]
            names += ["d", "t", *read, *paired]
        sequences, tokens, reads, pairs = decodes
        work = self._work(chunks, sequences, tokens, rows, reads, pairs)
        seconds = [item.seconds for item in step_operators(self._parameters, work)]
        made: Callable[..., float] = compiled(
            "step", names, [*recorder.assignments(0, seconds), f"return {summed(seconds)}"]
        )
        return made

    def _work(
        self,
        chunks: Sequence[Chunk],
        sequences: Any,
        tokens: Any,
        rows: Any,
        reads: Sequence[Any],
        pairs: Sequence[Any],
    ) -> Work:
        """Return the work of a step from the sums that the simulation keeps."""
        own = self._parameters.windows
        read, paired = (dict(zip(self._windows, sums, strict=True)) for sums in (reads, pairs))
        return Work(
            tokens=total([*(chunk.tokens for chunk in chunks), tokens]),
            rows=rows,
            prefills=len(chunks),
            decodes=sequences,
            pairs={w: total(attended_pairs(chunk.tokens, chunk.cached, w) for chunk in chunks) for w in own},
            prefill_kv={w: total(chunk_kv(chunk.tokens, chunk.cached, w) for chunk in chunks) for w in own},
            decode_kv={w: read[w] for w in own},
            chunks=tuple(chunks),
            decode_pairs={w: paired[w] for w in own},
            drafted=tokens - sequences,
        )
