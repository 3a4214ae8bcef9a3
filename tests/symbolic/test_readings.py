"""The third reading: the formula evaluates to what the float reading gives, on every rung."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters, build_textbook
from costmodel.deployment import Deployment, deploy, deploy_architecture
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators, step_times
from costmodel.equations.textbook import textbook_decode, textbook_prefill
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.symbolic.formulas import FORMULA_NAMES, Formula, FormulaName, formula
from costmodel.symbolic.functions import HELPERS
from tests.architecture.mixed_configs import MIXED
from tests.strategies import calibration_of, calibrations, deployments, examples

ROUNDING = 1e-12
LOADS = st.tuples(st.integers(1, 30_000), st.integers(0, 50_000), st.integers(1, 300), st.integers(0, 50_000))
"""Prompt (or chunk), cached tokens before it, streams, context."""
ARRAYS = [HELPERS | {"Max": np.maximum, "Min": np.minimum}, "numpy"]


def work_of(name: FormulaName, load: tuple[int, int, int, int]) -> tuple[list[Chunk], list[Decodes]]:
    """Return the sequences of the step that a formula describes."""
    prompt, cached, streams, context = load
    chunks = {"decode": [], "mixed": [Chunk(prompt, cached)]}.get(name, [Chunk(prompt)])
    return chunks, [] if name == "prefill" else [Decodes(streams, context)]


def arguments_of(name: FormulaName, load: tuple[int, int, int, int]) -> dict[str, int]:
    """Return the load as values of the formula's symbols."""
    prompt, cached, streams, context = load
    return {"q" if name == "mixed" else "n": prompt, "s": cached, "D": streams, "c": context}


def assert_readings_agree(
    deployment: Deployment, calibration: Calibration | None, name: FormulaName, load: tuple[int, int, int, int]
) -> None:
    """Compare the formula, operator by operator and in sum, with floats and with arrays."""
    fitted = calibration and calibration.model_copy(update={"gpu": deployment.gpu})
    made = formula(deployment, name, "calibrated" if fitted else "roofline", calibration=fitted)
    parameters = build_parameters(deployment, CalibratedRates(calibration) if calibration else None)
    chunks, groups = work_of(name, load)
    work = make_work(chunks, groups, parameters.windows)
    expected = float(step_times(parameters, work).total)
    assert made.evaluate(**arguments_of(name, load)) == pytest.approx(expected, rel=ROUNDING)
    changed = arguments_of(name, load)
    numbers = [float(changed.get(str(item), made.values[item])) for item in made.arguments]
    terms = [
        (term.name, sympy.lambdify(made.arguments, term.expression, modules=[HELPERS, "math"])(*numbers))
        for term in made.terms
    ]
    operators = [(operator.name, operator.seconds) for operator in step_operators(parameters, work)]
    assert by_matrix(terms) == pytest.approx(by_matrix(operators), rel=ROUNDING)


def by_matrix(seconds: list[tuple[str, float]]) -> dict[str, float]:
    """Sum the kernels ``o_proj``, ``o_proj.2`` …: two kinds' matrices can agree in size (16·128 = 8·256) but not in symbols."""
    found: dict[str, float] = {}
    for name, value in seconds:
        base = re.sub(r"\.\d+$", "", name)
        found[base] = found.get(base, 0.0) + value
    return found


@pytest.mark.parametrize("model", MIXED)
@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_formulas_of_every_kind_of_layer(model: str, name: FormulaName) -> None:
    """Recurrent layers, an indexer, local chunks, uneven layers: at contexts on both sides of windows, choices and chunks."""
    deployment = deploy_architecture(architecture_from_config(MIXED[model], model), "b200", tp=8)
    for load in ((700, 0, 3, 100), (9000, 8191, 32, 8192), (30_000, 100, 200, 20_000)):
        assert_readings_agree(deployment, None, name, load)


@pytest.mark.parametrize("name", FORMULA_NAMES)
@examples(12, shrink=False)
@given(deployments(), LOADS)
def test_roofline_formulas_evaluate_to_the_floats(
    name: FormulaName, deployment: Deployment, load: tuple[int, int, int, int]
) -> None:
    assert_readings_agree(deployment, None, name, load)


@pytest.mark.parametrize("name", FORMULA_NAMES)
@examples(12, shrink=False)
@given(deployments(), calibrations(), LOADS)
def test_calibrated_formulas_evaluate_to_the_floats(
    name: FormulaName, deployment: Deployment, calibration: Calibration, load: tuple[int, int, int, int]
) -> None:
    assert_readings_agree(deployment, calibration, name, load)


@examples(25, shrink=False)
@given(deployments(pipelines=False), LOADS, st.none() | st.floats(1e8, 1e12))
def test_textbook_formulas_evaluate_to_the_floats(
    deployment: Deployment, load: tuple[int, int, int, int], params: float | None
) -> None:
    numbers = build_textbook(deployment, params)
    for name in FORMULA_NAMES:
        prompt, cached, _, _ = load
        cached = cached if name == "mixed" else 0
        expected = textbook_decode(numbers) if name == "decode" else textbook_prefill(numbers, prompt, cached)
        made = formula(deployment, name, "textbook", params=params)
        assert made.evaluate(**arguments_of(name, load)) == pytest.approx(float(expected), rel=ROUNDING)


def evaluate_arrays(made: Formula, **changed: Any) -> Any:
    """Evaluate a formula on arrays of the load, by NumPy."""
    function = sympy.lambdify(made.arguments, made.expression, modules=ARRAYS)
    return function(*(changed.get(str(item), made.values[item]) for item in made.arguments))


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"])
def test_lambdified_formulas_take_arrays(model: str) -> None:
    deployment = deploy(model, "h200", tp=8)
    fitted = {
        "form": "smooth_roofline",
        "parameters": {"compute_efficiency": {"value": 0.8}, "sharpness": {"value": 3.0}, "launch_s": {"value": 4e-6}},
    }
    calibration = calibration_of({"gemm": fitted, "decode_attention": fitted}, "h200")
    q, s = np.array([1.0, 100.0, 8000.0, 100_000.0]), np.array([0.0, 50.0, 4000.0, 1e6])
    streams, context = np.array([1.0, 8.0, 32.0, 256.0]), np.array([0.0, 127.0, 128.0, 9000.0])
    for rung, rates in (("roofline", None), ("calibrated", CalibratedRates(calibration))):
        made = formula(deployment, "mixed", rung, calibration=calibration)
        parameters = build_parameters(deployment, rates)
        times = step_times(parameters, make_work([Chunk(q, s)], [Decodes(streams, context)], parameters.windows))
        assert evaluate_arrays(made, q=q, s=s, D=streams, c=context) == pytest.approx(times.total, rel=ROUNDING)


# --- derivatives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", ["W", "F", "D", "c", "e_b_gemm", "e_c_gemm", "p_gemm", "t_0_gemm"])
def test_exact_derivatives_agree_with_differences(symbol: str) -> None:
    fitted = {
        "form": "smooth_roofline",
        "parameters": {
            "compute_efficiency": {"value": 0.8},
            "bandwidth_efficiency": {"value": 0.85},
            "sharpness": {"value": 3.0},
            "launch_s": {"value": 4e-6},
        },
    }
    calibration = calibration_of({"gemm": fitted})
    made = formula(deploy("Llama-3.1-8B", "h100-sxm"), "decode", "calibrated", calibration=calibration, streams=200)
    by_name = {str(item): item for item in made.arguments}
    derivative = sympy.lambdify(made.arguments, sympy.diff(made.expression, by_name[symbol]), modules=[HELPERS, "math"])
    exact = derivative(*(float(made.values[item]) for item in made.arguments))
    value = float(made.values[by_name[symbol]])
    step = 1e-5 * value
    numeric = (made.evaluate(**{symbol: value + step}) - made.evaluate(**{symbol: value - step})) / (2 * step)
    assert exact == pytest.approx(numeric, rel=1e-6)
    assert exact != 0
