"""The time of a whole step as a SymPy expression of its work and of the parameters of a calibration, taken from the step equations.

As for single kernels (:mod:`~costmodel.validation.fitting.models`) nothing is written twice: the step is built as a prediction builds
it, with symbols for the sums of its work and for what is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import sympy

from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import Deployment
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.equations.work import Chunk, Decodes, Reach, Work, make_work
from costmodel.hardware.calibration import FORMS, OPERATORS, Calibration
from costmodel.validation.fitting.least_squares import Array, Evaluator
from costmodel.validation.fitting.models import PLACEHOLDER, KernelModel
from costmodel.validation.measurements.types import Step

Key = tuple[str, str]
"""Operator of a calibration and its parameter."""

STEP = "whole step"
"""What the model is of."""


def label(key: Key) -> str:
    """Return how a parameter is called: ``gemm.compute_efficiency``."""
    return ".".join(key)


def form_of(operator: str) -> str:
    """Return the plain form of an operator of a calibration, whatever its suffix."""
    return OPERATORS[operator if operator in OPERATORS else operator.partition(".")[0]]


def step_model(deployment: Deployment, keys: Sequence[Key]) -> KernelModel:
    """Return the model of a step of a deployment.

    Args:
        deployment: model and part.
        keys: parameters that have a symbol; all others are as their form has them.

    Returns:
        Seconds of a step with the symbols of :func:`step_data`, and at datasheet rates.
    """
    windows = roofline_parameters(deployment).windows
    work = _work(windows)
    symbols = {key: sympy.Symbol(label(key), positive=True) for key in keys}
    seconds = step_times(build_parameters(deployment, _rates(symbols)), work).total
    floor = step_times(roofline_parameters(deployment), work).total
    free = tuple(map(label, keys))
    return KernelModel(STEP, "", sympy.sympify(seconds), sympy.sympify(floor), free, tuple(_sums(work, windows)))


class Tied:
    """A compiled model of which some parameters are not free: they have a number, or equal a free one.

    Args:
        evaluator: the whole model.
        fixed: parameters that are not free.
    """

    def __init__(self, evaluator: Evaluator, fixed: Mapping[Key, Key | float]) -> None:
        self._whole = evaluator
        self._fixed = {label(key): label(value) if isinstance(value, tuple) else value for key, value in fixed.items()}
        free = tuple(name for name in evaluator.model.parameters if name not in self._fixed)
        self.model = replace(evaluator.model, parameters=free)

    def _values(self, values: Mapping[str, float]) -> dict[str, float]:
        fixed = {name: values[value] if isinstance(value, str) else value for name, value in self._fixed.items()}
        return {**values, **fixed}

    def seconds(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return the predicted seconds of every row."""
        return self._whole.seconds(self._values(values), data)

    def floor(self, data: Mapping[str, Array]) -> Array:
        """Return the seconds of every row at datasheet rates."""
        return self._whole.floor(data)

    def jacobian(self, values: Mapping[str, float], data: Mapping[str, Array]) -> Array:
        """Return ∂seconds/∂parameter, one column per free parameter: its own and those of what equals it."""
        whole, names = self._whole.jacobian(self._values(values), data), self._whole.model.parameters
        columns = []
        for name in self.model.parameters:
            same = [name, *(other for other, value in self._fixed.items() if value == name)]
            columns.append(sum(whole[:, names.index(each)] for each in same))
        return np.stack(columns, axis=1)


def step_work(step: Step, windows: Iterable[Reach]) -> Work:
    """Return the work of a measured step."""
    chunks = [Chunk(float(new), float(cached)) for new, cached in step.chunks]
    return make_work(chunks, [Decodes(1.0, float(context)) for context in step.decodes], windows)


def step_data(steps: Sequence[Step], windows: Sequence[Reach]) -> dict[str, Array]:
    """Return the sums of the work of measured steps, an array for each of the model's inputs."""
    sums = [_sums(step_work(step, windows), windows) for step in steps]
    return {name: np.array([float(each[name]) for each in sums], dtype=np.float64) for name in sums[0]}


SUMS: Final = ("tokens", "rows", "prefills", "decodes")
BY_WINDOW: Final = ("pairs", "prefill_kv", "decode_kv")
"""Sums of the work of a step, of all and for each window of the model's layers."""


def _sums(work: Work, windows: Sequence[Reach]) -> dict[str, Any]:
    """Return the inputs of the model by name, for the work of a step."""
    found = {name: getattr(work, name) for name in SUMS}
    for index, window in enumerate(dict.fromkeys(windows)):
        found |= {f"{name}_{index}": getattr(work, name)[window] for name in BY_WINDOW}
    return found


def _work(windows: Sequence[Reach]) -> Work:
    """Return the work of a step in symbols."""
    tokens, rows = (sympy.Symbol(name, positive=True) for name in ("tokens", "rows"))
    prefills, decodes = (sympy.Symbol(name, nonnegative=True) for name in ("prefills", "decodes"))
    pairs, prefill_kv, decode_kv = (
        {
            window: sympy.Symbol(f"{name}_{index}", nonnegative=True)
            for index, window in enumerate(dict.fromkeys(windows))
        }
        for name in BY_WINDOW
    )
    return Work(tokens, rows, prefills, decodes, pairs, prefill_kv, decode_kv)


def _rates(symbols: Mapping[Key, Any]) -> CalibratedRates:
    """Return rates with a symbol for each key."""
    operators: dict[str, dict[str, Any]] = {}
    for operator, name in symbols:
        form = form_of(operator)
        entry = operators.setdefault(operator, {"form": form, "parameters": {}})
        entry["parameters"][name] = {"value": 1.0 if name.endswith("efficiency") else max(FORMS[form][name][1], 0.0)}
    calibration = Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": "being fitted",
            "gpu": "any",
            "engine": "vllm",
            "provenance": PLACEHOLDER,
            "operators": operators,
        }
    )

    def number(operator: str, name: str) -> Any:
        if (operator, name) in symbols:
            return symbols[operator, name]
        default = FORMS[form_of(operator)][name][0]
        return int(default) if float(default).is_integer() else default

    return CalibratedRates(calibration, number)
