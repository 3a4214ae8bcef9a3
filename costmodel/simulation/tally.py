"""What is counted while a simulation runs: every gap between two tokens, as runs of steps where it can be, and every request."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

from costmodel.simulation.requests import Request

MOST_SAMPLES = 8192
"""Points of the state over time that are kept; beyond, every other one is dropped."""


@dataclass(slots=True)
class Served:
    """One request's way through the server. All times in seconds; NaN for what did not happen."""

    request: Request
    scheduled: float = math.nan
    """Its first token of prefill began."""
    first: float = math.nan
    """End of the step that gave its first token."""
    last: float = math.nan
    """End of the step that gave its latest token."""
    tokens: int = 0
    """Tokens that it got."""
    done: bool = False
    preemptions: int = 0
    cached: int = 0
    """Prompt tokens that were in the prefix cache when it was first scheduled."""
    refused: str = ""
    """Why the engine did not take it, "" if it did."""


@dataclass(slots=True)
class MixedStep:
    """A step with prefill. Times in seconds."""

    end: float
    duration: float
    decodes: int
    """Sequences that waited for it."""
    chunks: tuple[tuple[int, int], ...]
    """Index of the request and tokens, for every prompt in it."""


@dataclass(slots=True)
class Tally:
    """Everything that a simulation counts.

    Gaps are those between two tokens of one request: ``gaps`` one by one with how many requests saw them, ``segments`` as runs of decode
    steps. A segment is a row of numbers: sequences that count, sequences, steps, and the KV sums of its first step and their growth per
    step, for each window.
    """

    measured: str | None = None
    """Group whose gaps count; None for all."""
    keep_steps: bool = False
    """Keep every step with prefill."""
    keep_times: bool = False
    """Keep when every gap was, for figures; memory then grows with the gaps that are no part of a segment."""
    served: list[Served] = field(default_factory=list)
    gaps: dict[float, int] = field(default_factory=dict)
    open_gaps: list[float] = field(default_factory=list)
    """Those of ``gaps`` that had not ended: no token came [s]."""
    segments: array[float] = field(default_factory=lambda: array("d"))
    mixed_steps: list[MixedStep] = field(default_factory=list)
    timed: array[float] = field(default_factory=lambda: array("d"))
    """With ``keep_times``: end of the gap [s], gap [s] and requests that saw it, one after another."""
    starts: array[float] = field(default_factory=lambda: array("d"))
    """With ``keep_times``: start of the first step of each segment [s]."""
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    """(time [s], running, waiting, used blocks)."""
    most: tuple[int, int, int] = (0, 0, 0)
    """Most requests running, most waiting, most used blocks, of all samples, those that are not kept included."""
    steps: int = 0
    events: int = 0
    """Steps that were not run as part of a segment."""
    preemptions: int = 0
    passes: int = 0
    """Steps of a request, of those whose gaps count, in which drafts of it were verified."""
    drafted: int = 0
    accepted: int = 0
    """Tokens that were drafted in them, and those of them that were accepted."""
    bundled: int = 0
    """Tokens that came together with the one before: they end no gap."""
    refused: dict[str, int] = field(default_factory=dict)
    end: float = 0.0
    """When the last step ended [s]."""
    busy: float = 0.0
    """Time that steps took [s]."""
    _stride: int = 1
    _seen: int = 0

    def counts(self, request: Request) -> bool:
        """Tell whether a request's gaps count."""
        return self.measured is None or request.group == self.measured

    def gap(self, seconds: float, weight: int, end: float) -> None:
        """Count a gap that ended at ``end`` and that ``weight`` requests saw."""
        self.gaps[seconds] = self.gaps.get(seconds, 0) + weight
        if self.keep_times:
            self.timed.extend((end, seconds, weight))

    def open_gap(self, seconds: float, end: float) -> None:
        """Count a gap of one request that had not ended when the time was up, at ``end``: it is this long at least."""
        self.gap(seconds, 1, end)
        self.open_gaps.append(seconds)

    def refuse(self, request: Request, reason: str) -> None:
        """Count a request that the engine does not take."""
        self.served.append(Served(request, refused=reason))
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def sample(self, time: float, running: int, waiting: int, used: int) -> None:
        """Note the state of the engine."""
        most_running, most_waiting, most_used = self.most
        if running > most_running or waiting > most_waiting or used > most_used:
            self.most = max(running, most_running), max(waiting, most_waiting), max(used, most_used)
        self._seen += 1
        if self._seen % self._stride:
            return
        self.samples.append((time, running, waiting, used))
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[::2]
            self._stride *= 2
