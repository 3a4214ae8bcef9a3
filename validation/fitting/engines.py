"""End-to-end rows → the overheads of an engine. Kernels are fixed before; only what no kernel table shows is fitted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodel.equations.closed_loop import Loop
from costmodel.hardware.errors import InputError
from costmodel.validation.datasets.end_to_end import EndToEndRow
from costmodel.validation.fitting.closed_loops import BURST_SHARE, OVERHEADS, Array, Loops, Predictor
from costmodel.validation.fitting.least_squares import uncertainty

Overhead = tuple[str, str]
"""Operator and parameter of a calibration."""

FREE: tuple[Overhead, ...] = (
    ("launches", "hidden"),
    ("elementwise", "passes"),
    ("overhead.graph", "per_step_s"),
    ("overhead.graph", "per_layer_s"),
    ("overhead.graph", "per_normed_layer_s"),
    ("overhead.graph", "per_sequence_s"),
    ("overhead.eager", "per_step_s"),
    ("overhead.eager", "per_layer_s"),
    ("request", "per_request_s"),
    ("request", "steps_waited"),
)
"""What is fitted of an engine."""

PROTOCOL: tuple[Overhead, ...] = (BURST_SHARE,)
"""What is fitted beside it, of the runs and not of the engine."""

TTFT_WEIGHT = 0.5
"""Weight of a relative error of TTFT against one of TPOT: its spread is about twice as wide."""
LOSS_SCALE = 0.05
"""Relative residual beyond which a row counts less than its square (soft L1)."""
PRIOR_WEIGHT = 0.3
"""Weight of an overhead's distance from that of all engines together, in units of its own size there: one row's error of 30 % outweighs
a factor of two. What an engine's rows do not tell, all rows do."""
SMALLEST = 0.02
"""Least size of an overhead in that comparison, as a share of its upper bound."""
STARTS = {BURST_SHARE: 0.1}
"""Where a fit starts, as a share of the upper bounds, where not at :data:`SMALLEST`: 10 prompts per client."""
FOLDS = 3
"""Parts of the rows that are held out one after another."""


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


def fit_overheads(
    loops: Loops, free: Sequence[Overhead] = FREE + PROTOCOL, prior: EngineFit | None = None
) -> EngineFit:
    """Fit overheads to measured TTFT and TPOT: bounded least squares on ln(predicted/measured), exact Jacobian, soft L1 loss.

    Args:
        loops: rows to fit.
        free: the overheads to fit; the others are zero.
        prior: a fit to the rows of all engines, near which the result stays as far as the rows do not say otherwise.

    Raises:
        InputError: fewer rows than parameters, and no prior.
    """
    if len(loops) <= len(free) and prior is None:
        raise InputError(f"{len(loops)} rows cannot fit {len(free)} overheads")
    upper = np.array([OVERHEADS[name] for name in free])
    start = np.array([STARTS.get(name, SMALLEST) for name in free])
    if prior is not None:
        start = np.array([prior.values[name] for name in free]) / upper
    pull = PRIOR_WEIGHT / np.maximum(start, SMALLEST) if prior is not None else np.zeros(len(free))
    predictor = Predictor(loops)
    ttft, tpot = loops.ttft, loops.tpot

    def overheads(point: Array) -> dict[Overhead, float]:
        return dict(zip(free, (point * upper).tolist(), strict=True))

    def residuals(point: Array) -> Array:
        loop = predictor.predict(overheads(point))
        apart = pull * (point - start)
        return np.concatenate([np.log(loop.tpot / tpot), TTFT_WEIGHT * np.log(loop.ttft / ttft), apart])

    def slopes(point: Array) -> Array:
        given = overheads(point)
        loop = predictor.predict(given)
        by_ttft, by_tpot = predictor.slopes(given, loop, free)
        relative = np.concatenate([by_tpot / loop.tpot[:, None], TTFT_WEIGHT * by_ttft / loop.ttft[:, None]])
        return np.concatenate([relative * upper, np.diag(pull)])

    found = least_squares(
        residuals, start, jac=slopes, bounds=(0.0, 1.0), loss="soft_l1", f_scale=LOSS_SCALE, x_scale="jac",
        max_nfev=100,
    )  # fmt: skip
    errors, _ = uncertainty(slopes(found.x), residuals(found.x))
    return EngineFit(
        overheads(np.asarray(found.x)), dict(zip(free, (errors * upper).tolist(), strict=True)), len(loops)
    )


def fit_engines(
    loops: Loops, engines: Iterable[str] | None = None, free: Sequence[Overhead] = FREE + PROTOCOL
) -> dict[str, EngineFit]:
    """Return the overheads of every engine (or of those asked for), each kept near a fit to the rows of all."""
    together = fit_overheads(loops, free)
    present = np.array([row.engine for row in loops.rows])
    made = {}
    for engine in engines or sorted(set(present.tolist())):
        own = present == engine
        made[engine] = fit_overheads(loops.select(own), free, together) if np.any(own) else together
    return made


def predict_rows(loops: Loops, fits: Mapping[str, EngineFit]) -> Loop:
    """Return TTFT, TPOT and running requests of rows, each by the fit of its engine."""
    made = {name: np.empty(len(loops)) for name in Loop.__slots__}
    present = np.array([row.engine for row in loops.rows])
    for engine in sorted(set(present.tolist())):
        own = present == engine
        loop = Predictor(loops.select(own)).predict(fits[engine].values)
        for name, column in made.items():
            column[own] = getattr(loop, name)
    return Loop(**made)


def held_out_loops(loops: Loops, folds: NDArray[np.int64], free: Sequence[Overhead] = FREE + PROTOCOL) -> Loop:
    """Return TTFT and TPOT of every row, predicted by fits to the rows of the other folds."""
    made = {name: np.empty(len(loops)) for name in Loop.__slots__}
    engines = sorted({row.engine for row in loops.rows})
    for fold in np.unique(folds):
        test = folds == fold
        loop = predict_rows(loops.select(test), fit_engines(loops.select(~test), engines, free))
        for name, column in made.items():
            column[test] = getattr(loop, name)
    return Loop(**made)


def random_folds(loops: Loops, count: int = FOLDS, seed: int = 0) -> NDArray[np.int64]:
    """Return a fold for every row; repetitions of one configuration share it."""
    groups = sorted({row.group for row in loops.rows}, key=str)
    drawn = np.random.default_rng(seed).permutation(len(groups)) % count
    fold = dict(zip(groups, drawn.tolist(), strict=True))
    return np.array([fold[row.group] for row in loops.rows])


def folds_by(loops: Loops, what: Callable[[EndToEndRow], str]) -> NDArray[np.int64]:
    """Return a fold for every row by what it is: its GPU, its model, its deployment."""
    names = sorted({what(row) for row in loops.rows})
    return np.array([names.index(what(row)) for row in loops.rows])
