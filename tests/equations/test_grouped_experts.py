"""The grouped form of routed experts: worked out by hand, its limits, and the roofline below it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Decodes, Work, make_work
from costmodel.hardware.shipped import shipped_calibration
from costmodel.prediction import predict
from tests.strategies import calibration_of

F, W = 989e12, 4.8e12
"""H200, bf16."""
LAYERS, HIDDEN, WIDTH, CHOSEN, EXPERTS = 48, 2048, 768, 8, 128
"""Qwen3-30B-A3B."""
FIT = {
    "compute_efficiency": 0.8, "bandwidth_efficiency": 0.9, "launch_s": 1.5e-5, "padding_rows": 100.0, "passes": 2.0, "expert_s": 5e-8,
}  # fmt: skip


def operators(tokens: Any, fit: dict[str, float] | None = None, **deployed: Any) -> dict[str, OperatorTime[Any]]:
    """Return the operators of a decode step of Qwen3-30B-A3B with the experts fitted, or at datasheet rates."""
    deployment = deploy("Qwen3-30B-A3B", "h200", **deployed)
    entry = {"form": "experts_grouped", "parameters": {name: {"value": value} for name, value in (fit or {}).items()}}
    rates = None if fit is None else CalibratedRates(calibration_of({"experts": entry}))
    parameters = build_parameters(deployment, rates)
    if isinstance(tokens, int):
        work = make_work([], [Decodes(tokens, 100)], parameters.windows)
    else:
        work = Work(tokens, tokens, 0, tokens, {None: 0 * tokens}, {None: 0 * tokens}, {None: 100 * tokens})
    return {item.name: item for item in step_operators(parameters, work)}


def touched(tokens: int) -> float:
    """Experts that some token chooses, by an uneven router."""
    share = CHOSEN / EXPERTS
    return EXPERTS * (1 - (1 - share) / (1 + (tokens - 1) * share))


@pytest.mark.parametrize("tokens", [1, 32, 8192])
def test_by_hand(tokens: int) -> None:
    found = operators(tokens, FIT)["experts.down_proj"]
    rows, weights = tokens * CHOSEN, HIDDEN * WIDTH
    compute = 2 * weights * (rows + 100 * touched(tokens)) / (0.8 * F)
    io = rows * 2 * (WIDTH + HIDDEN)
    memory = (2 * weights * touched(tokens) + io) / (0.9 * W) + 5e-8 * touched(tokens)
    passes = rows * 2 * 2 * (WIDTH + HIDDEN) / W
    assert found.seconds == pytest.approx(LAYERS * (1.5e-5 + passes + max(compute, memory)), rel=1e-12)
    assert found.fixed_s == pytest.approx(LAYERS * 1.5e-5)
    assert found.calibrated_by == "experts"


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    assert touched(1) == pytest.approx(CHOSEN)
    assert touched(10**7) == pytest.approx(EXPERTS, rel=1e-5)
    for tokens in (1, 2, 16, 1000):
        assert CHOSEN <= touched(tokens) <= EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** tokens) + 1e-9


@pytest.mark.parametrize("fit", [FIT, {}], ids=["fitted", "nothing lost"])
@pytest.mark.parametrize("deployed", [{}, {"tp": 4}, {"ep": 4, "tp": 4}, {"ep": 8}, {"dtype": "fp8-block"}])
def test_never_below_the_roofline_and_never_falling(fit: dict[str, float], deployed: dict[str, Any]) -> None:
    tokens = np.unique(np.round(np.logspace(0, 4.5, 60)))
    fitted, floor = operators(tokens, fit, **deployed), operators(tokens, None, **deployed)
    for name in ("experts.gate_up_proj", "experts.down_proj"):
        assert np.all(fitted[name].seconds >= floor[name].seconds * (1 - 1e-12))
        assert np.all(np.diff(fitted[name].seconds) >= -1e-15)
        assert np.array_equal(fitted[name].bytes, floor[name].bytes)


def test_a_step_waits_for_the_busiest_gpu() -> None:
    # 8 GPUs of 16 experts each: 1 + log2(8)/2·√(8/128) = 1.375 times the mean, of 8 experts per token 1.
    tokens, rest = 8192, {**FIT, "launch_s": 0.0, "padding_rows": 0.0, "passes": 0.0}
    found = operators(tokens, rest, tp=8, ep=8)["experts.down_proj"]
    assert found.seconds == pytest.approx(LAYERS * 1.375 * 2 * HIDDEN * WIDTH * tokens / (0.8 * F), rel=1e-12)


def test_floats_and_arrays_agree() -> None:
    tokens = np.array([1.0, 7.0, 300.0])
    together = operators(tokens, FIT)["experts.gate_up_proj"].seconds
    alone = [operators(int(each), FIT)["experts.gate_up_proj"].seconds for each in tokens]
    assert together == pytest.approx(alone, rel=1e-12)


PARTS = ("h100-sxm", "h200", "b200", "l40s", "rtx-pro-6000-blackwell-server")
"""Parts with kernels of mxfp4 and of bf16, both fitted."""


def decode(gpu: str, streams: int, calibration: Any = None, dtype: str | None = None) -> float:
    """Return the calibrated decode step of gpt-oss-120b [s]."""
    told = predict(
        model="gpt-oss-120b", gpu=gpu, streams=streams, dtype=dtype, compute_dtype="bf16", calibration=calibration
    )
    assert told.rungs.calibrated is not None
    return told.rungs.calibrated.decode_step_s


def test_borrowed_rates_of_a_wider_format_pad_less_as_measured_where_both_are() -> None:
    errors = []
    for gpu in PARTS:
        fitted = shipped_calibration(gpu)
        assert fitted is not None
        kept = {name: each for name, each in fitted.operators.items() if not name.startswith("experts.mxfp4")}
        without = fitted.model_copy(update={"operators": kept})
        errors += [abs(decode(gpu, streams, without) / decode(gpu, streams, fitted) - 1) for streams in (1, 16, 256)]
    assert np.median(errors) < 0.12
    assert max(errors) < 0.4


@pytest.mark.parametrize("streams", [1, 16, 256])
def test_experts_of_four_bits_are_faster_than_those_of_sixteen_where_they_borrow(streams: int) -> None:
    def experts(dtype: str | None) -> float:
        told = predict(
            model="gpt-oss-120b", gpu="a100-80gb-sxm", streams=streams, dtype=dtype, compute_dtype="bf16"
        ).rungs.calibrated
        assert told is not None
        return sum(each.time_s for each in told.decode_operators if each.name.startswith("experts."))

    assert experts(None) < 0.6 * experts("bf16")
