"""Routed experts: the model that is fitted is the one that predicts, rules choose as stated, and silicon is met."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Decodes, make_work
from costmodel.validation.datasets.expert_rules import expert_rules, touched_experts
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.datasets.tables import MoeTable
from costmodel.validation.fitting.experts import EXPERTS_GROUPED, experts_model, table_engine
from costmodel.validation.fitting.least_squares import Array, Evaluator, fit_kernel
from tests.strategies import calibration_of

F, W = 989e12, 4.8e12
TRUTH = {
    "compute_efficiency": 0.8, "bandwidth_efficiency": 0.87, "launch_s": 1.6e-5, "padding_rows": 80.0, "passes": 2.7, "expert_s": 5e-8,
}  # fmt: skip
ROWS = 1500
GENERATOR = np.random.default_rng(3)


def pick(*values: int) -> Array:
    """Return random choices."""
    chosen: Array = GENERATOR.choice(np.array(values, dtype=np.float64), ROWS)
    return chosen


DATA: dict[str, Array] = {
    "tokens": np.round(2 ** GENERATOR.uniform(0, 14, ROWS)),
    "hidden": pick(2048, 4096, 6144),
    "width": pick(192, 384, 768, 1536),
    "top_k": pick(2, 4, 8),
    "experts": pick(32, 128, 256),
}


def evaluator() -> Evaluator:
    """Return the model of bf16 experts on an H200."""
    return Evaluator(experts_model("experts.bf16", "experts_grouped", EXPERTS_GROUPED, F, W, 2.0, 2.0))


def test_known_parameters_are_recovered() -> None:
    model = evaluator()
    exact = model.seconds(TRUTH, DATA)
    assert np.all(exact >= model.floor(DATA) * (1 - 1e-12))
    assert fit_kernel(model, DATA, exact).values == pytest.approx(TRUTH, rel=1e-3)
    noisy = fit_kernel(model, DATA, exact * np.exp(GENERATOR.normal(0, 0.02, ROWS)))
    for name, value in TRUTH.items():
        assert abs(noisy.values[name] - value) < 4.5 * noisy.standard_errors[name] + 1e-12
        assert noisy.standard_errors[name] < 0.5 * value


def test_the_jacobian_is_exact() -> None:
    model = evaluator()
    slopes, seconds = model.jacobian(TRUTH, DATA), model.seconds(TRUTH, DATA)
    for column, name in enumerate(EXPERTS_GROUPED):
        step = TRUTH[name] * 1e-6
        above = model.seconds({**TRUTH, name: TRUTH[name] + step}, DATA)
        below = model.seconds({**TRUTH, name: TRUTH[name] - step}, DATA)
        error = np.abs((above - below) / (2 * step) - slopes[:, column]) / (seconds / TRUTH[name])
        assert np.quantile(error, 0.99) < 1e-5  # a few rows sit on a corner of the maximum


@pytest.mark.parametrize("tp", [1, 4])
def test_a_prediction_is_the_fitted_model(tp: int) -> None:
    values = {name: {"value": value} for name, value in TRUTH.items()}
    rates = CalibratedRates(calibration_of({"experts.bf16": {"form": "experts_grouped", "parameters": values}}))
    parameters = build_parameters(deploy("Qwen3-30B-A3B", "h200", tp=tp), rates)
    step = step_operators(parameters, make_work([], [Decodes(64, 100)], parameters.windows))
    predicted = sum(item.seconds for item in step if item.group == "experts")
    shape = {"tokens": 64.0, "hidden": 2048.0, "width": 768.0 / tp, "top_k": 8.0, "experts": 128.0}
    fitted = evaluator().seconds(TRUTH, {name: np.array([value]) for name, value in shape.items()})
    assert predicted == pytest.approx(48 * fitted[0], rel=1e-9)


def table(**columns: list[float]) -> MoeTable:
    """Return rows of 64 tokens of Qwen3-30B-A3B in bf16 on an H200, changed where said."""
    usual = {
        "seconds": 3e-4, "tokens": 64.0, "hidden": 2048.0, "width": 768.0, "top_k": 8.0, "experts": 128.0,
        "tensor_parallel": 1.0, "expert_parallel": 1.0, "skew": 1.01,
    }  # fmt: skip
    rows = max((len(column) for column in columns.values()), default=1)
    numbers = {name: np.array(columns.get(name, [value] * rows)) for name, value in usual.items()}
    words = np.array(["triton"] * rows)
    return MoeTable("h200", "vllm", "1", "bf16", "none", (), kernels=words, **numbers)


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        ("not gated", {"hidden": [2688.0], "width": [1856.0], "top_k": [6.0]}),
        ("groups first", {"hidden": [7168.0], "width": [2048.0], "experts": [256.0]}),
        ("narrow experts", {"tensor_parallel": [8.0]}),
        ("narrow experts", {"width": [8192.0], "tensor_parallel": [16.0]}),
        ("balanced", {"skew": [0.0]}),
        ("few tokens", {"tokens": [16.0]}),
        ("experts in L2", {"tokens": [1.0], "tensor_parallel": [4.0], "seconds": [1e-5]}),
        ("below floor", {"seconds": [1e-6]}),
    ],
)
def test_each_rule_takes_its_rows(rule: str, columns: dict[str, list[float]]) -> None:
    kept, counts = apply_rules(table(**columns), expert_rules("h200"))
    assert len(kept) == 0
    assert counts[rule] == 1


def test_usual_rows_stay_and_the_most_used_kernel_wins() -> None:
    rows = table(seconds=[3e-4, 3.1e-4, 3.2e-4])
    assert len(apply_rules(rows, expert_rules("h200"))[0]) == 3
    mixed = MoeTable(
        **{name: getattr(rows, name) for name in rows.__dataclass_fields__ if name != "kernels"},
        kernels=np.array(["expertsmodular", "expertsmonolithic", "marlin"]),
    )
    kept, counts = apply_rules(mixed, expert_rules("h200"))
    assert kept.kernels.tolist() == ["expertsmodular", "expertsmonolithic"]
    assert counts["another kernel"] == 1


def test_touched_experts() -> None:
    rows = table(tokens=[1.0, 17.0, 1e9])
    # 1 − (15/16)/(1 + 16/16) = 17/32 of 128.
    assert touched_experts(rows) == pytest.approx([8.0, 68.0, 128.0])


def test_whose_matrices_stand_for_an_engine() -> None:
    assert table_engine("vllm", "fp8-block") == "sglang"
    assert table_engine("vllm", "bf16") == "vllm"
    assert table_engine("trtllm", "nvfp4") == "trtllm"


# --- measured silicon ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "engine", "limits"),
    [
        (
            "h200",
            "vllm",
            {"experts.bf16": 0.06, "experts.fp8-block": 0.05, "experts.mxfp4": 0.10, "gemm.fp8-block": 0.11},
        ),
        ("b200", "vllm", {"experts.nvfp4": 0.08, "experts.fp8-block": 0.09, "gemm.fp8-block": 0.05, "gemm.fp4": 0.10}),
    ],
)
def test_experts_of_a_gpu(gpu: str, engine: str, limits: dict[str, float]) -> None:
    pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed (extra: silicon)")
    from costmodel.validation.fitting.kernels import fit_kernels

    fits = {fit.operator: fit for fit in fit_kernels(gpu, engine)}
    for operator, limit in limits.items():
        assert fits[operator].errors.median <= limit, operator
        assert len(fits[operator].result.values) <= 6
    assert fits["gemm.fp8-block"].engine == "sglang"
