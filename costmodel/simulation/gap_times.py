"""When every gap between two tokens was, of simulations that kept the times: what figures of gaps over time are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.simulation.clock import Clock
from costmodel.simulation.tally import Tally

if TYPE_CHECKING:
    Array = Any
    """A float64 array."""


class GapTimes(NamedTuple):
    """Gaps in the order in which they ended."""

    ends: Array
    """When each ended: a token came [s]."""
    gaps: Array
    """How long each was [s]."""
    weights: Array
    """How many requests saw each."""


def gap_times(tallies: Sequence[Tally], clock: Clock, most: int | None = None) -> GapTimes:
    """Return every gap, and when it ended; one entry per step and length, however many requests saw it.

    Args:
        tallies: with ``keep_times``.
        clock: that the simulation ran on.
        most: of a longer run of decode steps, whose gaps are all alike, only about so many are returned; None for all. Gaps beside
            prefill are always returned.
    """
    import numpy as np

    pieces = [np.zeros((0, 3))]
    width = 3 + 2 * len(clock.windows)
    for tally in tallies:
        pieces.append(np.array(tally.timed).reshape(-1, 3))
        rows = np.array(tally.segments).reshape(-1, width)
        # Ctrl-C may have fallen between a segment and its start
        pieces += [_segment(row, start, clock, most) for row, start in zip(rows, tally.starts, strict=False)]
    found = np.concatenate(pieces)
    found = found[np.argsort(found[:, 0], kind="stable")]
    return GapTimes(found[:, 0], found[:, 1], found[:, 2])


def _segment(row: Array, start: float, clock: Clock, most: int | None) -> Array:
    """Return the rows (end, gap, weight) of the steps of a segment."""
    import numpy as np

    weight, decodes, steps = float(row[0]), row[1:2], int(row[2])
    first, growth = row[3 : 3 + len(clock.windows)], row[3 + len(clock.windows) :]
    stride = 1 if most is None else max(-(-steps // most), 1)
    step = np.arange(steps)
    ends: Array
    gaps: Array
    if growth.any():
        gaps = clock.decode_many(np.repeat(decodes, steps), [r + g * step for r, g in zip(first, growth, strict=True)])
        ends = (start + np.cumsum(gaps))[::stride]
        gaps = gaps[::stride]
    else:
        gap = float(clock.decode_many(decodes, [first[index : index + 1] for index in range(len(first))])[0])
        ends = start + (step[::stride] + 1) * gap
        gaps = np.full(len(ends), gap)
    return np.column_stack([ends, gaps, np.full(len(ends), weight)])
