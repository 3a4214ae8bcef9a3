"""Which rows no other comparable row beats: none of the same model, work and rung has both a shorter TPOT and more tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from costmodel.sweeping.columns import Column, Floats
from costmodel.sweeping.rows import Kind

WORK: dict[Kind, tuple[str, ...]] = {
    "steps": ("prompt_tokens", "output_tokens"),
    "load": ("prompt_tokens", "output_tokens"),
    "interference": ("prompt_tokens", "context_tokens", "rate_per_s"),
}
"""What makes the work of two rows different; streams, or requests per second of a load, are how much of it there is."""


def groups_of(columns: Mapping[str, Column], names: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return the number of the group of each row: rows are in one that agree in all the columns."""
    found = np.zeros(len(next(iter(columns.values())).values), dtype=np.int64)
    for name in names:
        values = columns[name].values
        if len(values) and (values != values[0]).any() and not np.isnan(values).all():
            kinds, each = np.unique(values, return_inverse=True)
            found = np.unique(found * len(kinds) + each, return_inverse=True)[1]
    return found


def comparable(kind: Kind, columns: Mapping[str, Column]) -> npt.NDArray[np.int64]:
    """Return the group of each row whose rows may be compared: a floor (rung ``roofline``) would beat every calibrated row."""
    return groups_of(columns, ("model", "rung", *WORK[kind]))


def waiting(columns: Mapping[str, Column]) -> Floats:
    """Return the TPOT of rows that compete, NaN of others: where prompts come faster than they are done, none holds."""
    tpot = columns["tpot_s"].values
    overload = columns.get("overload")
    return tpot if overload is None else np.where(overload.values == 1, np.nan, tpot)


def frontier(cost: Floats, gain: Floats) -> npt.NDArray[np.intp]:
    """Return the :func:`frontiers` of one group."""
    return frontiers(np.zeros(len(cost), dtype=np.int64), cost, gain)


def frontiers(groups: npt.NDArray[np.int64], cost: Floats, gain: Floats) -> npt.NDArray[np.intp]:
    """Return the places of the points that no other of their group beats in both, group by group, by rising cost; of equals the first.

    Args:
        groups: number of the group of each point.
        cost: less is better; NaN is no point.
        gain: more is better; NaN is no point.
    """
    there = np.flatnonzero(~(np.isnan(cost) | np.isnan(gain)))
    order = there[np.lexsort((there, -gain[there], cost[there], groups[there]))]
    if not len(order):
        return order
    ranks = np.unique(gain[order], return_inverse=True)[1]
    best = np.maximum.accumulate(
        groups[order] * (int(ranks.max()) + 1) + ranks
    )  # a later group begins above all before it
    return order[np.concatenate(([True], best[1:] > best[:-1]))]
