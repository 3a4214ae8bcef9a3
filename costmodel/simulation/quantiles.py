"""Exact percentiles of gaps that were counted as segments, and of lists: weighted nearest rank, the smallest x with F(x) ≥ q."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from costmodel.simulation.clock import Clock
from costmodel.simulation.tally import Tally

BLOCK = 1 << 16
"""Steps that are evaluated at a time."""
MOST_AT_ONCE = 1 << 22
"""More gaps than this are not held in memory together: quantiles are found in two passes."""
BINS = 1 << 14
"""Bins of the first pass."""

Array = Any
"""A float64 array."""


class Gaps:
    """The distribution of all gaps of a simulation.

    Args:
        tallies: what was counted, by one engine or several alike.
        clock: that the simulation ran on; it gives the gaps of the segments.
    """

    def __init__(self, tallies: Sequence[Tally], clock: Clock) -> None:
        self._clock = clock
        self._single: dict[float, int] = {}
        for tally in tallies:
            for gap, weight in tally.gaps.items():
                self._single[gap] = self._single.get(gap, 0) + weight
        rows = [np.array(tally.segments).reshape(-1, 3 + 2 * len(clock.windows)) for tally in tallies]
        self._rows: Array = np.concatenate(rows)
        flat = ~self._rows[:, 3 + len(clock.windows) :].any(axis=1)  # all steps take the same time: one is enough
        self._rows[flat, 0] *= self._rows[flat, 2]
        self._rows[flat, 2] = 1
        self.count = int(sum(self._single.values()) + (self._rows[:, 0] * self._rows[:, 2]).sum())
        """Gaps in all."""
        self._size = len(self._single) + int(self._rows[:, 2].sum())
        self._sorted: tuple[Array, Array] | None = None
        self._range: tuple[float, float, float] | None = None

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield gaps [s] and how many requests saw each, a block at a time."""
        if self._single:
            size = len(self._single)
            yield np.fromiter(self._single.keys(), float, size), np.fromiter(self._single.values(), float, size)
        rows, windows = self._rows, len(self._clock.windows)
        start = 0
        ends = np.cumsum(rows[:, 2])
        while start < len(rows):
            begun = ends[start - 1] if start else 0.0
            stop = max(int(np.searchsorted(ends, begun + BLOCK, side="right")), start + 1)
            part = rows[start:stop]
            for piece in _pieces(part):
                steps = piece[:, 2].astype(np.int64)
                step = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
                decodes = np.repeat(piece[:, 1], steps)
                reads = [
                    np.repeat(piece[:, 3 + w], steps) + np.repeat(piece[:, 3 + windows + w], steps) * step
                    for w in range(windows)
                ]
                yield self._clock.decode_many(decodes, reads), np.repeat(piece[:, 0], steps)
            start = stop

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the smallest gaps x with F(x) ≥ each share in (0, 1]; NaN without gaps [s]."""
        if not self.count:
            return [math.nan] * len(shares)
        ranks = [_rank(share, self.count) for share in shares]
        if self._size <= MOST_AT_ONCE:
            return [_at_rank(*self._in_order(), rank) for rank in ranks]
        return self._in_two_passes(ranks)

    def over(self, limit: float) -> int:
        """Return how many gaps are longer than a limit [s]."""
        if self._sorted is not None:
            values, cumulated = self._sorted
            index = int(np.searchsorted(values, limit, side="right"))
            return int(cumulated[-1] - cumulated[index - 1]) if index else int(cumulated[-1])
        return int(sum(weights[values > limit].sum() for values, weights in self.blocks()))

    def mean(self) -> float:
        """Return the mean gap; NaN without gaps [s]."""
        return self._lowest_highest_sum()[2] / self.count if self.count else math.nan

    def histogram(self, edges: Array) -> Array:
        """Return how many gaps lie between neighbouring edges [s]."""
        found: Array = sum(
            (np.histogram(values, edges, weights=weights)[0] for values, weights in self.blocks()),
            np.zeros(len(edges) - 1),
        )
        return found

    def _lowest_highest_sum(self) -> tuple[float, float, float]:
        """Return the shortest and the longest gap, and all of them together, found in one pass [s]."""
        if self._range is None:
            low, high, whole = math.inf, -math.inf, 0.0
            for values, weights in self.blocks():
                low, high = min(low, float(values.min())), max(high, float(values.max()))
                whole += float(values @ weights)
            self._range = low, high, whole
        return self._range

    def _in_order(self) -> tuple[Array, Array]:
        if self._sorted is None:
            blocks = list(self.blocks())
            values, weights = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
            order = np.argsort(values, kind="stable")
            self._sorted = values[order], np.cumsum(weights[order])
        return self._sorted

    def _in_two_passes(self, ranks: Sequence[int]) -> list[float]:
        """First find the bins that the ranks fall into, then sort what is in these bins."""
        low, high, _ = self._lowest_highest_sum()
        beyond = np.nextafter(high, np.inf)
        edges = np.clip(
            np.geomspace(low, high, BINS + 1), low, beyond
        )  # gaps that are all alike leave bins without width
        edges[0], edges[-1] = low, beyond
        below = np.concatenate([[0.0], np.cumsum(self.histogram(edges))])
        bins = [min(max(int(np.searchsorted(below, rank - 0.5)) - 1, 0), BINS - 1) for rank in ranks]
        kept: dict[int, list[tuple[Array, Array]]] = {index: [] for index in bins}
        for values, weights in self.blocks():
            for index, parts in kept.items():
                inside = (values >= edges[index]) & (values < edges[index + 1])
                if inside.any():
                    parts.append(_merged(values[inside], weights[inside]))
        found = []
        for rank, index in zip(ranks, bins, strict=True):
            values, weights = _merged(*(np.concatenate(parts) for parts in zip(*kept[index], strict=True)))
            found.append(_at_rank(values, below[index] + np.cumsum(weights), rank))
        return found


def _merged(values: Array, weights: Array) -> tuple[Array, Array]:
    """Return different values in order, with the weights of equal ones together: gaps that are all alike take no memory."""
    different, which = np.unique(values, return_inverse=True)
    return different, np.bincount(which, weights)


def _at_rank(values: Array, cumulated: Array, rank: int) -> float:
    """Return the value of a rank, of values in order; sums of more gaps than floats can count may fall a little short of the last."""
    return float(values[min(int(np.searchsorted(cumulated, rank - 0.5)), len(values) - 1)])


def _pieces(rows: Array) -> Iterator[Array]:
    """Cut a single segment that is longer than a block into pieces."""
    if len(rows) > 1 or rows[0, 2] <= BLOCK:
        yield rows
        return
    windows = (rows.shape[1] - 3) // 2
    left, row = rows[0, 2], rows[0].copy()
    while left > 0:
        row[2] = min(left, BLOCK)
        yield row[None, :].copy()
        row[3 : 3 + windows] += row[3 + windows :] * row[2]
        left -= row[2]


def _rank(share: float, count: int) -> int:
    """Return ⌈share·count⌉, at least 1; products that are whole but for rounding are not rounded up."""
    exact = share * count
    return max(round(exact) if abs(exact - round(exact)) < 1e-6 else math.ceil(exact), 1)


def nearest_rank(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return the smallest of the values with F(x) ≥ each share in (0, 1]; NaN without values."""
    ordered = np.sort(np.asarray(values, float))
    return [float(ordered[_rank(share, len(ordered)) - 1]) if len(ordered) else math.nan for share in shares]
