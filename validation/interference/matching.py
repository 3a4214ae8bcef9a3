"""Which gaps are the doing of which injection.

A gap that ends while a prompt is under way is *high* if it is above √(usual · felt): the usual gap is the median of all, and felt around
injections is the median, over injections, of the longest gap that the median stream has there. Any other gap is high if it is above felt/2
too, so that small disturbances are not taken for spikes. High gaps that overlap in time are one *spike*; what lies between an injection's
sending and its first token is one spike, however many steps its prompt took. Spikes and injections are matched one to one, in the order of
time. Nothing can be told apart where injections are not felt more than :data:`LEAST_RATIO` usual gaps.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from costmodel.validation.interference.records import Injection, Run

LEAST_RATIO: Final = 1.5
"""A spike is at least so many usual gaps high."""
SHARE: Final = 0.5
"""A spike is felt by at least so large a share of the streams; what fewer feel is their own."""

Cause = Literal["injection", "restart", "client", "unknown"]


class Spike(NamedTuple):
    """High gaps that belong together.

    Attributes:
        start, end: from the beginning of the first gap to the end of the last [s].
        height: median over its streams of each one's longest gap [s].
        streams: that felt it.
        steps: high gaps that the median stream had.
        cause: an injected prompt, a stream that began a new answer, the client that was late itself, or nobody knows.
        injection: index of the injection.
    """

    start: float
    end: float
    height: float
    streams: int
    steps: int
    cause: Cause
    injection: int | None


class Matched(NamedTuple):
    """Spikes of a run.

    Attributes:
        spikes: in the order of time.
        threshold: gaps above it are high wherever they are [s]; None where injections cannot be told from what is usual.
        unfelt: indices of answered injections without a spike.
    """

    spikes: tuple[Spike, ...]
    threshold: float | None
    unfelt: tuple[int, ...]


class _Gap(NamedTuple):
    start: float
    end: float
    stream: int

    @property
    def length(self) -> float:
        return self.end - self.start


def match(run: Run, usual: float) -> Matched:
    """Return the spikes of a run, and which injection each belongs to.

    Args:
        run: with injections, or without.
        usual: median gap [s].
    """
    gaps = sorted(
        (
            _Gap(end - gap, end, answer.stream)
            for answer in run.answers
            for end, gap in answer.gaps
            if end - gap >= run.start and end <= run.end
        ),
        key=lambda each: each.end,
    )
    windows = _windows(run.injections, usual)
    felt = [found for _, window in windows if (found := _felt(gaps, window)) is not None]
    if not felt or statistics.median(felt) < LEAST_RATIO * usual or usual <= 0:
        return Matched((), None, tuple(index for index, _ in windows))
    low = math.sqrt(usual * statistics.median(felt))
    threshold = max(low, statistics.median(felt) / 2)
    high = [gap for gap in gaps if gap.length > low]
    clusters = _clusters(high, windows, threshold)
    streams = len({answer.stream for answer in run.answers})
    restarts = _restarts(run)
    spikes: list[Spike] = []
    free = dict(windows)
    for index, cluster in clusters:
        lengths: dict[int, list[float]] = {}
        for gap in cluster:
            lengths.setdefault(gap.stream, []).append(gap.length)
        if len(lengths) < SHARE * streams:
            continue
        start, end = min(gap.start for gap in cluster), max(gap.end for gap in cluster)
        own = index
        if own is None:
            own = next((each for each, window in free.items() if _overlap((start, end), window)), None)
        made = own is not None and free.pop(own, None) is not None
        cause: Cause = "injection" if made else _other_cause(run, restarts, start, end + usual)
        steps = statistics.median_high([len(each) for each in lengths.values()])
        height = statistics.median([max(each) for each in lengths.values()])
        spikes.append(Spike(start, end, height, len(lengths), steps, cause, own if made else None))
    return Matched(tuple(spikes), threshold, tuple(free))


def _windows(injections: Sequence[Injection], usual: float) -> list[tuple[int, tuple[float, float]]]:
    """Return when each answered injection was under way. Its first token may come a little before those of the streams."""
    return [(index, (each.sent, each.first + usual)) for index, each in enumerate(injections) if each.first is not None]


def _felt(gaps: Sequence[_Gap], window: tuple[float, float]) -> float | None:
    """Return the longest gap in a window that the median stream had; None if none had one."""
    ends = [gap.end for gap in gaps]
    longest: dict[int, float] = {}
    for gap in gaps[bisect_left(ends, window[0]) : bisect_right(ends, window[1])]:
        longest[gap.stream] = max(longest.get(gap.stream, 0.0), gap.length)
    return statistics.median(longest.values()) if longest else None


def _clusters(
    high: Sequence[_Gap], windows: Sequence[tuple[int, tuple[float, float]]], threshold: float
) -> list[tuple[int | None, list[_Gap]]]:
    """Return high gaps that end in the window of one injection, with its index, and others above the threshold that overlap, with None;
    in the order of time.

    Where windows overlap, as prompts queue, a gap belongs to the one that ends first.
    """
    held: dict[int, list[_Gap]] = {}
    rest: list[_Gap] = []
    for gap in high:
        ending = [(window[1], index) for index, window in windows if window[0] < gap.end <= window[1]]
        if ending:
            held.setdefault(min(ending)[1], []).append(gap)
        elif gap.length > threshold:
            rest.append(gap)
    clusters: list[tuple[int | None, list[_Gap]]] = list(held.items())
    current: list[_Gap] = []
    for gap in rest:
        if current and gap.start >= max(each.end for each in current):
            clusters.append((None, current))
            current = []
        current.append(gap)
    if current:
        clusters.append((None, current))
    return sorted(clusters, key=lambda cluster: min(gap.start for gap in cluster[1]))


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _other_cause(run: Run, restarts: Sequence[float], start: float, end: float) -> Cause:
    """Return what else a spike may come from: a stream's new prompt, or a client that did not come to read for half of that time."""
    if any(start <= moment <= end for moment in restarts):
        return "restart"
    late = any(start <= when <= end + seconds and seconds >= SHARE * (end - start) for when, seconds in run.late)
    return "client" if late else "unknown"


def _restarts(run: Run) -> list[float]:
    """Return when answers began in the run, beyond those that every stream began with [s]."""
    return [answer.times[0] for answer in run.answers if answer.times and answer.sent > run.start]
