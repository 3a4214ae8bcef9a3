"""Held-out groups: whole shapes are left out of the fit, so that errors are those of shapes never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SHARE = 0.3
"""Share of the groups that are held out."""
FEWEST = 10
"""Rows below which errors of a part of the rows are not stated."""
LEVEL = 0.8
"""Level of the residual interval that goes into a calibration."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions on rows that were not fitted, as fractions of the measurement.

    Attributes:
        rows: how many.
        median, mean, p90: of |predicted/measured − 1|.
        bias: median of predicted/measured − 1.
        low, high: measured/predicted − 1 at the ends of the central interval of :data:`LEVEL`.
    """

    rows: int
    median: float
    mean: float
    p90: float
    bias: float
    low: float
    high: float


def held_out(groups: Sequence[NDArray[np.float64]], seed: int = 0, share: float = SHARE) -> NDArray[np.bool_]:
    """Return True for the rows of ``share`` of the groups; a group is one combination of values of the given columns."""
    _, member = np.unique(np.stack(groups, axis=1), axis=0, return_inverse=True)
    member = member.reshape(-1)
    count = int(member.max()) + 1
    chosen = np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))]
    return np.isin(member, chosen)


def folds(groups: Sequence[NDArray[np.float64]], seed: int = 0, count: int = 5) -> NDArray[np.int64]:
    """Return the fold, 0 … count − 1, of every row; groups stay together as in :func:`held_out`."""
    _, member = np.unique(np.stack(groups, axis=1), axis=0, return_inverse=True)
    member = member.reshape(-1)
    shuffled = np.random.default_rng(seed).permutation(int(member.max()) + 1)
    return np.asarray(np.argsort(shuffled)[member] % count, dtype=np.int64)


def widened(
    errors: Errors, predicted: NDArray[np.float64], measured: NDArray[np.float64], kinds: NDArray[np.float64]
) -> Errors:
    """Return errors whose interval is that of the rows given, and no narrower than that of any kind of them alone."""
    known = [errors_of(predicted, measured)]
    known += [errors_of(predicted[kinds == kind], measured[kinds == kind]) for kind in np.unique(kinds)]
    return replace(errors, low=min(item.low for item in known), high=max(item.high for item in known))


def errors_where(
    predicted: NDArray[np.float64], measured: NDArray[np.float64], rows: NDArray[np.bool_]
) -> Errors | None:
    """Return the errors of some rows; None where there are fewer than :data:`FEWEST`."""
    return errors_of(predicted[rows], measured[rows]) if np.count_nonzero(rows) >= FEWEST else None


def coverage(
    predicted: NDArray[np.float64],
    measured: NDArray[np.float64],
    size: NDArray[np.float64],
    half: NDArray[np.bool_],
) -> float:
    """Return the share of held-out rows within the intervals, by size, that the other half of them gives.

    Args:
        predicted, measured: of held-out rows.
        size: by which intervals differ (:func:`errors_by_size`).
        half: which rows are in the first half; a group belongs to one half.
    """
    inside = np.zeros(len(measured), dtype=bool)
    for known, asked in ((half, ~half), (~half, half)):
        if not np.any(known):
            continue
        parts = errors_by_size(predicted[known], measured[known], size[known])
        whole = errors_of(predicted[known], measured[known])
        residual = measured / predicted - 1
        low, high = np.full(len(measured), whole.low), np.full(len(measured), whole.high)
        if parts:  # what is larger than any that is known errs like the largest
            low, high = np.full(len(measured), parts[-1][1].low), np.full(len(measured), parts[-1][1].high)
        for edge, errors in reversed(parts):
            low, high = np.where(size <= edge, errors.low, low), np.where(size <= edge, errors.high, high)
        inside |= asked & (residual >= low) & (residual <= high)
    return float(inside.mean())


def errors_by_size(
    predicted: NDArray[np.float64], measured: NDArray[np.float64], size: NDArray[np.float64]
) -> tuple[tuple[float, Errors], ...]:
    """Return errors of the smallest, the middle and the largest third of rows, each with its largest size.

    Empty where a third has fewer than :data:`FEWEST` rows.
    """
    edges = np.quantile(size, [1 / 3, 2 / 3, 1]).tolist()
    parts, low = [], -float("inf")
    for edge in edges:
        errors = errors_where(predicted, measured, (size > low) & (size <= edge))
        if errors is None:
            return ()
        parts.append((edge, errors))
        low = edge
    return tuple(parts)


def errors_of(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Errors:
    """Return the errors of predictions against measurements of the same rows."""
    signed = predicted / measured - 1
    size = np.abs(signed)
    low, high = np.quantile(measured / predicted - 1, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Errors(
        len(size),
        float(np.median(size)),
        float(size.mean()),
        float(np.quantile(size, 0.9)),
        float(np.median(signed)),
        float(low),
        float(high),
    )
