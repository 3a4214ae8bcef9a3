"""End-to-end rows → the overheads of an engine. Kernels are fixed before; only what no kernel table shows is fitted here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodel.equations.closed_loop import Loop
from costmodel.hardware.errors import InputError
from costmodel.validation.fitting.closed_loops import OVERHEADS, Array, Loops, Predictor
from costmodel.validation.fitting.least_squares import uncertainty

Overhead = tuple[str, str]
"""Operator and parameter of a calibration."""

FREE: tuple[Overhead, ...] = (
    ("launches", "hidden"),
    ("elementwise", "passes"),
    ("overhead.graph", "per_step_s"),
    ("overhead.graph", "per_moe_layer_s"),
    ("overhead.graph", "per_sequence_s"),
    ("overhead.eager", "per_step_s"),
    ("overhead.eager", "per_moe_layer_s"),
    ("overhead.eager", "per_sequence_s"),
    ("request", "per_request_s"),
    ("request", "steps_waited"),
)
"""What is fitted, per engine."""

TTFT_WEIGHT = 0.5
"""Weight of a relative error of TTFT against one of TPOT: its spread is about twice as wide."""
LOSS_SCALE = 0.1
"""Relative residual beyond which a row counts less than its square (soft L1)."""
START = 0.02
"""Where a fit starts, as a share of the upper bounds."""


@dataclass(frozen=True, slots=True)
class EngineFit:
    """What a fit found.

    Attributes:
        values, standard_errors: by overhead.
        rows: how many rows it was fitted to.
    """

    values: dict[Overhead, float]
    standard_errors: dict[Overhead, float]
    rows: int


def fit_engine(loops: Loops, free: Sequence[Overhead] = FREE) -> EngineFit:
    """Fit overheads to measured TTFT and TPOT of one engine: bounded least squares on ln(predicted/measured), exact Jacobian.

    Args:
        loops: rows to fit.
        free: the overheads to fit; the others are zero.

    Raises:
        InputError: fewer rows than parameters.
    """
    if len(loops) <= len(free):
        raise InputError(f"{len(loops)} rows cannot fit {len(free)} overheads")
    upper = np.array([OVERHEADS[name] for name in free])
    predictor = Predictor(loops)
    ttft, tpot = loops.ttft, loops.tpot

    def overheads(point: Array) -> dict[Overhead, float]:
        return dict(zip(free, (point * upper).tolist(), strict=True))

    def residuals(point: Array) -> Array:
        loop = predictor.predict(overheads(point))
        return np.concatenate([np.log(loop.tpot / tpot), TTFT_WEIGHT * np.log(loop.ttft / ttft)])

    def slopes(point: Array) -> Array:
        given = overheads(point)
        loop = predictor.predict(given)
        by_ttft, by_tpot = predictor.slopes(given, loop, free)
        relative = np.concatenate([by_tpot / loop.tpot[:, None], TTFT_WEIGHT * by_ttft / loop.ttft[:, None]])
        return np.asarray(relative * upper)

    found = least_squares(
        residuals, np.full(len(free), START), jac=slopes, bounds=(0.0, 1.0), loss="soft_l1", f_scale=LOSS_SCALE,
        x_scale="jac", max_nfev=100,
    )  # fmt: skip
    errors, _ = uncertainty(slopes(found.x), residuals(found.x))
    return EngineFit(
        overheads(np.asarray(found.x)), dict(zip(free, (errors * upper).tolist(), strict=True)), len(loops)
    )


def held_out_loops(loops: Loops, folds: NDArray[np.int64], free: Sequence[Overhead] = FREE) -> Loop:
    """Return TTFT and TPOT of every row, predicted by a fit to the rows of the other folds.

    Args:
        loops: of one engine.
        folds: which fold each row is in.
        free: the overheads to fit.
    """
    made = {name: np.empty(len(loops)) for name in Loop.__slots__}
    for fold in np.unique(folds):
        test = folds == fold
        fit = fit_engine(loops.select(~test), free)
        loop = Predictor(loops.select(test)).predict(fit.values)
        for name, column in made.items():
            column[test] = getattr(loop, name)
    return Loop(**made)
