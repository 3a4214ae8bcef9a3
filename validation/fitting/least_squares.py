"""Bounded non-linear least squares on logarithms, with the exact Jacobian of the symbolic model, and what can be said of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import sympy
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodel.hardware.calibration import FORMS
from costmodel.hardware.errors import InputError
from costmodel.symbolic.functions import HELPERS
from costmodel.validation.fitting.models import KernelModel

Array = NDArray[np.float64]

STARTS = {
    "compute_efficiency": 0.75,
    "bandwidth_efficiency": 0.8,
    "quantise_efficiency": 0.4,
    "launch_s": 5e-6,
    "sharpness": 3.0,
    "ramp_inputs": 100.0,
    "depth_s": 6e-10,
    "tile_rows": 64.0,
    "padding_rows": 64.0,
    "passes": 2.0,
    "expert_s": 1e-7,
    "tile_s": 4e-6,
    "empty_tile_s": 4e-7,
    "cached_bytes": 4e6,
    "per_step_s": 1e-3,
    "shared_passes": 1.0,
    "kv_passes": 1.0,
    "padding_tokens": 100.0,
    "saturation_s": 5e-6,
    "saturation_tokens": 2000.0,
    "latency_s": 5e-6,
    "latency_per_log2_s": 3e-7,
    "latency_per_hop_s": 1.5e-6,
    "sharing": 0.3,
    "sharing_power": 1.0,
    "small_sharing": 0.3,
    "protocol_s": 2e-5,
    "two_shot_s": 4e-6,
    "wave_s": 1e-5,
    "extra_launch_s": 5e-6,
    "key_s": 2e-8,
    "large_s": 1e-5,
    "one_shot_efficiency": 0.4,
    "slowdown": 0.05,
}
"""Where a fit starts, per parameter: the size that such numbers have on GPUs."""
UPPER = {
    "launch_s": 1e-4,
    "sharpness": 50.0,
    "ramp_inputs": 2000.0,
    "latency_s": 1e-3,
    "tile_rows": 1024.0,
    "padding_rows": 1024.0,
    "passes": 100.0,
    "expert_s": 1e-5,
    "latency_per_hop_s": 1e-4,
    "protocol_s": 1e-4,
}
"""Upper bounds tighter than those of the form, so that a parameter stays where it means what its name says."""
LOSS_SCALE = 0.02
"""Relative residual beyond which a point counts less than its square (soft L1)."""
SEEN = 1e-6
"""A parameter whose relative change moves no prediction by this fraction of it is not determined by the data."""
INDISTINCT = 0.98
"""Correlation beyond which two parameters cannot be told apart."""

NUMPY = {
    **HELPERS,
    "Heaviside": lambda x, at_zero=0.5: np.heaviside(x, at_zero),
    "Max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
    "Min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
}


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit found.

    Attributes:
        values: fitted parameters.
        standard_errors: those of the parameters that the data determine, from the curvature at the solution and the residuals'
            spread.
        correlations: correlation matrix, in the order of ``values``.
        at_bound: parameters that sit on a bound.
        indistinct: pairs that the data cannot tell apart.
        undetermined: parameters that change no row; their value is where the fit started, and they have no standard error.
        rows: points fitted.
    """

    values: dict[str, float]
    standard_errors: dict[str, float]
    correlations: Array
    at_bound: tuple[str, ...]
    indistinct: tuple[tuple[str, str], ...]
    undetermined: tuple[str, ...]
    rows: int


class Evaluator:
    """A kernel model compiled for arrays: seconds, and their derivative by every parameter."""

    def __init__(self, model: KernelModel) -> None:
        self.model = model
        symbols = {str(item): item for item in model.expression.free_symbols}
        shape = [symbols.get(name, sympy.Symbol(name)) for name in model.inputs]
        fitted = [symbols.get(name, sympy.Symbol(name)) for name in model.parameters]
        arguments = [*fitted, *shape]
        modules = [NUMPY, "numpy"]
        self._seconds = sympy.lambdify(arguments, model.expression, modules=modules, cse=True)
        self._floor = sympy.lambdify(shape, model.floor, modules=modules, cse=True)
        slopes = [sympy.diff(model.expression, item) for item in fitted]
        self._slopes = sympy.lambdify(arguments, slopes, modules=modules, cse=True)

    def seconds(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return the predicted seconds of every row."""
        numbers = [values[name] for name in self.model.parameters]
        return np.asarray(self._seconds(*numbers, *(data[name] for name in self.model.inputs)), dtype=np.float64)

    def floor(self, data: Mapping[str, Array]) -> Array:
        """Return the seconds of every row at datasheet rates."""
        return np.asarray(self._floor(*(data[name] for name in self.model.inputs)), dtype=np.float64)

    def jacobian(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return ∂seconds/∂parameter, one column per parameter."""
        numbers = [values[name] for name in self.model.parameters]
        columns = self._slopes(*numbers, *(data[name] for name in self.model.inputs))
        rows = len(next(iter(data.values())))
        return np.stack([np.broadcast_to(np.asarray(column, dtype=np.float64), (rows,)) for column in columns], axis=1)


@dataclass(frozen=True, slots=True)
class Range:
    """Where a parameter may go: its bounds, and where the fit starts."""

    low: float
    high: float
    start: float


def fit_kernel(evaluator: Evaluator, data: Mapping[str, Array], seconds: Array) -> FitResult:
    """Fit a kernel model to measured seconds, every parameter within the bounds of its form.

    Args:
        evaluator: compiled model.
        data: shape arrays by the names of the model's inputs.
        seconds: measured [s].

    Raises:
        InputError: as :func:`fit_model`.
    """
    names = evaluator.model.parameters
    return fit_model(evaluator, data, seconds, {name: form_range(evaluator.model.form, name) for name in names})


def form_range(form: str, name: str, start: float | None = None) -> Range:
    """Return the range of a form's parameter; ``start`` replaces the size that it has on GPUs."""
    _, low, high = FORMS[form][name]
    low, high = max(low, 1e-3 if name.endswith("efficiency") else low), min(high, UPPER.get(name, high))
    return Range(low, high, min(max(STARTS[name] if start is None else start, low), high))


class Compiled(Protocol):
    """What can be fitted: an :class:`Evaluator`, or one of which some parameters are not free."""

    model: KernelModel

    def seconds(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return the predicted seconds of every row."""

    def floor(self, data: Mapping[str, Array]) -> Array:
        """Return the seconds of every row at datasheet rates."""

    def jacobian(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return ∂seconds/∂parameter, one column per parameter."""


def fit_model(
    evaluator: Compiled,
    data: Mapping[str, Array],
    seconds: Array,
    ranges: Mapping[str, Range],
    loss_scale: float = LOSS_SCALE,
) -> FitResult:
    """Fit a model to measured seconds.

    Minimises Σ ρ(ln(T_model/T_measured)) with the soft L1 loss, every parameter within its bounds, scaled by the Jacobian.

    Args:
        evaluator: compiled model.
        data: shape arrays by the names of the model's inputs.
        seconds: measured [s].
        ranges: of every parameter of the model.
        loss_scale: relative residual beyond which a point counts less than its square.

    Raises:
        InputError: fewer rows than parameters, non-positive times, or a result below the floor.
    """
    names = evaluator.model.parameters
    if len(seconds) <= len(names):
        raise InputError(f"{len(seconds)} rows cannot fit the {len(names)} parameters of {evaluator.model.operator}")
    if not np.all(np.isfinite(seconds)) or np.any(seconds <= 0):
        raise InputError("measured times must be finite and above zero")
    lower = np.array([ranges[name].low for name in names])
    upper = np.array([ranges[name].high for name in names])
    start = np.array([ranges[name].start for name in names])
    scale = np.maximum(np.abs(start), 1e-30)

    def values_of(point: Array) -> dict[str, float]:
        return dict(zip(names, np.clip(point * scale, lower, upper).tolist(), strict=True))

    def residuals(point: Array) -> Array:
        return np.asarray(np.log(evaluator.seconds(values_of(point), data) / seconds))

    def slopes(point: Array) -> Array:
        values = values_of(point)
        return np.asarray(evaluator.jacobian(values, data) * scale / evaluator.seconds(values, data)[:, None])

    found = least_squares(
        residuals, start / scale, jac=slopes, bounds=(lower / scale, upper / scale), loss="soft_l1", f_scale=loss_scale,
        x_scale="jac", max_nfev=200,
    )  # fmt: skip
    values = values_of(found.x)
    below = evaluator.seconds(values, data) < evaluator.floor(data) * (1 - 1e-9)
    if np.any(below):
        rows = int(below.sum())
        raise InputError(f"the fit of {evaluator.model.operator} is below the physical floor in {rows} rows")
    jacobian = slopes(found.x)
    errors, correlations = uncertainty(jacobian, residuals(found.x))
    undetermined = tuple(name for name, column in zip(names, jacobian.T, strict=True) if np.max(np.abs(column)) < SEEN)
    at_bound = tuple(
        name
        for name, value, low, high, size in zip(names, values.values(), lower, upper, scale, strict=True)
        if value - low < 1e-3 * size or high - value < 1e-3 * size
    )
    indistinct = tuple(
        (names[i], names[j])
        for i in range(len(names))
        for j in range(i)
        if abs(correlations[i, j]) > INDISTINCT and not {names[i], names[j]} & set(at_bound)
    )
    standard_errors = {
        name: float(error) for name, error in zip(names, errors * scale, strict=True) if name not in undetermined
    }
    return FitResult(values, standard_errors, correlations, at_bound, indistinct, undetermined, len(seconds))


def uncertainty(jacobian: Array, residuals: Array) -> tuple[Array, Array]:
    """Return standard errors and correlations: (JᵀJ)⁻¹·s², s from the median absolute residual, so that outliers do not inflate it."""
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * spread**2
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    safe = np.where(errors > 0, errors, 1.0)
    return errors, np.asarray(covariance / np.outer(safe, safe))
