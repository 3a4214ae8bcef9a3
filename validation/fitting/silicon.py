"""Everything that aiconfigurator-core measured → the calibration of one part and engine: its kernels, and the engine's overheads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from costmodel.hardware.calibration import Calibration
from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.datasets.end_to_end import end_to_end
from costmodel.validation.datasets.end_to_end_rules import end_to_end_rules
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.fitting.calibrate import engine_calibration, kernel_calibration
from costmodel.validation.fitting.closed_loops import Array, Loops, tabulate
from costmodel.validation.fitting.engines import (
    EngineFit,
    fit_engines,
    held_out_loops,
    random_folds,
)
from costmodel.validation.fitting.holdout import Errors, errors_of
from costmodel.validation.fitting.kernels import OperatorFit, fit_kernels
from costmodel.validation.fitting.simulated_loops import RowSimulator, fit_arrivals, with_arrival

FEWEST_ROWS = 40
"""A part's own end-to-end rows give its residuals where there are so many with the engine; else all of the engine's do."""

Pair = tuple[str, str]
"""Canonical GPU name and engine."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The overheads of all engines and how well they predict rows that were held out.

    Attributes:
        loops: the rows fitted.
        fits: by engine.
        ttft, tpot: held-out predictions of every row [s].
    """

    loops: Loops
    fits: dict[str, EngineFit]
    ttft: Array
    tpot: Array

    def residuals(self, gpu: str, engine: str) -> tuple[dict[str, Errors], tuple[str, ...]]:
        """Return errors of TTFT and TPOT for a part and engine, and the parts whose rows they are of."""
        of_engine = np.array([row.engine == engine for row in self.loops.rows])
        own = of_engine & np.array([row.gpu == gpu for row in self.loops.rows])
        chosen = own if np.count_nonzero(own) >= FEWEST_ROWS else of_engine
        gpus = {row.gpu for row, taken in zip(self.loops.rows, chosen, strict=True) if taken}
        measured = {"ttft": self.loops.ttft, "tpot": self.loops.tpot}
        predicted = {"ttft": self.ttft, "tpot": self.tpot}
        errors = {name: errors_of(predicted[name][chosen], measured[name][chosen]) for name in measured}
        return errors, tuple(sorted(gpus))


def fit_all_engines(calibration_of: Callable[[str, str], Calibration], off: Iterable[str] = ()) -> Engines:
    """Fit the overheads of every engine, on the kernels that ``calibration_of`` gives for a part and engine.

    Raises:
        InputError: aiconfigurator-core is not installed, or ``off`` names a rule that is not there.
    """
    kept, _ = apply_rules(end_to_end(), end_to_end_rules(), off)
    known: dict[Pair, Calibration] = {}
    for row in kept:
        pair = (row.gpu, row.engine)
        if pair not in known:
            known[pair] = calibration_of(*pair)
    loops = tabulate(kept.rows, lambda row: known[row.gpu, row.engine])
    held_out = held_out_loops(loops, random_folds(loops))
    fits = fit_engines(loops)
    arrivals = fit_arrivals(loops.rows, fits, RowSimulator(lambda row: known[row.gpu, row.engine]))
    fits = {engine: with_arrival(fit, arrivals[engine]) for engine, fit in fits.items()}
    return Engines(loops, fits, held_out.ttft, held_out.tpot)


def kernels_of(gpu: str, engine: str) -> Calibration:
    """Return the kernels of a part and engine: those shipped, or fitted now where none are."""
    shipped = shipped_calibration(gpu, engine)
    return (
        shipped
        if shipped is not None
        else kernel_calibration(gpu, engine, list(fit_kernels(gpu, engine)), "fitted on the way")
    )


def silicon_calibration(gpu: str, engine: str, fits: list[OperatorFit], engines: Engines, command: str) -> Calibration:
    """Return the calibration of one part and engine from its kernel fits and the overheads of all engines."""
    kernels = kernel_calibration(gpu, engine, fits, command)
    errors, gpus = engines.residuals(kernels.gpu, engine)
    return engine_calibration(kernels, engines.fits[engine], errors, gpus, command)
