"""Which rows no other row beats: none has both a shorter TPOT and more tokens."""

from __future__ import annotations

import numpy as np

from costmodel.sweeping.columns import Floats


def frontier(cost: Floats, gain: Floats) -> np.ndarray:
    """Return the places of the points that no other point beats in both, by rising cost; of equal points the first.

    Args:
        cost: less is better; NaN is no point.
        gain: more is better; NaN is no point.
    """
    there = np.flatnonzero(~(np.isnan(cost) | np.isnan(gain)))
    order = there[np.lexsort((there, -gain[there], cost[there]))]
    if not len(order):
        return order
    best = np.maximum.accumulate(gain[order])
    better = np.concatenate(([True], best[1:] > best[:-1]))
    return order[better]


def frontiers(groups: Floats, cost: Floats, gain: Floats) -> np.ndarray:
    """Return the :func:`frontier` of each group, one after another: rows of different models do not compete."""
    found = []
    for group in np.unique(groups[~np.isnan(groups)]):
        places = np.flatnonzero(groups == group)
        found.append(places[frontier(cost[places], gain[places])])
    return np.concatenate(found) if found else np.empty(0, dtype=np.intp)
