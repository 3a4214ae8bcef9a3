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


def gap_times(tallies: Sequence[Tally], clock: Clock) -> GapTimes:
    """Return every gap, and when it ended; one entry per step and length, however many requests saw it.

    Args:
        tallies: with ``keep_times``.
        clock: that the simulation ran on.
    """
    import numpy as np

    pieces = [np.zeros((0, 3))]
    width = 3 + 2 * len(clock.windows)
    for tally in tallies:
        pieces.append(np.array(tally.timed).reshape(-1, 3))
        rows = np.array(tally.segments).reshape(-1, width)
        for row, start in zip(
            rows, tally.starts, strict=False
        ):  # one may lack its start where Ctrl-C fell between the two
            pieces.append(_segment(row, start, clock))
    found = np.concatenate(pieces)
    found = found[np.argsort(found[:, 0], kind="stable")]
    return GapTimes(found[:, 0], found[:, 1], found[:, 2])


def _segment(row: Array, start: float, clock: Clock) -> Array:
    """Return the rows (end, gap, weight) of the steps of a segment."""
    import numpy as np

    weight, decodes, steps = row[:3]
    first, growth = row[3 : 3 + len(clock.windows)], row[3 + len(clock.windows) :]
    step = np.arange(int(steps))
    gaps = clock.decode_many(np.full(len(step), decodes), [r + g * step for r, g in zip(first, growth, strict=True)])
    return np.column_stack([start + np.cumsum(gaps), gaps, np.full(len(step), weight)])
