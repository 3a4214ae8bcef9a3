"""Intervals and warnings of the calibrated rung."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_parameters
from costmodel.certainty import COVERED, intervals, reported_steps
from costmodel.deployment import Deployment
from costmodel.documents import Prediction, Rung
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration, FittedOperator, Residuals
from costmodel.hardware.shipped import ENGINES, shipped_calibration
from costmodel.prediction import predict
from costmodel.rungs import Load, mixed_seconds, step_rung
from costmodel.spike import longest, mixed_work
from tests.strategies import NOTHING_LOST, calibration_of, calibrations, deployments, examples

TIMES = ("decode_step_s", "prefill_s", "spike_s")


def operator(form: str = "smooth_roofline", low: float = -0.1, high: float = 0.2, **values: float) -> dict[str, Any]:
    """Return a fitted operator with a residual interval."""
    parameters = {name: {"value": value} for name, value in values.items()}
    return {"form": form, "parameters": parameters, "residuals": {"level": 0.9, "low": low, "high": high}}


@examples(60)
@given(
    deployments(), calibrations(), st.integers(1, 20_000), st.integers(1, 200), st.integers(0, 20_000), st.booleans()
)
def test_intervals_hold_the_prediction_and_respect_the_floor(
    deployment: Deployment, calibration: Calibration, prompt: int, streams: int, context: int, chunked: bool
) -> None:
    parameters = {
        "roofline": build_parameters(deployment),
        "calibrated": build_parameters(deployment, CalibratedRates(calibration)),
    }
    load = Load(prompt, 1, streams, context, streams + 512 if chunked else None, 10.0)
    floor, point = (step_rung(parameters[name], load) for name in ("roofline", "calibrated"))
    found = intervals(calibration, parameters, reported_steps(parameters["calibrated"], load), floor)
    if not any(item.residuals for item in calibration.operators.values()):
        assert found is None
        return
    if found is None:
        assert any(share < COVERED for share in covered_shares(calibration, parameters["calibrated"], load))
        return
    assert found.level == min(item.residuals.level for item in calibration.operators.values() if item.residuals)
    for name in TIMES:
        low, high = getattr(found, name)
        # These calibrations have low ≤ 0 ≤ high.
        assert low <= getattr(point, name) * (1 + 1e-12)
        assert high >= getattr(point, name) * (1 - 1e-12)
        assert low >= getattr(floor, name)


def covered_shares(calibration: Calibration, parameters: Parameters, load: Load) -> list[float]:
    """Return, for each of the three steps, the share of its time that comes from operators with known residuals."""
    windows = parameters.windows
    chunks, _ = longest(load.candidates(), lambda chunks: mixed_seconds(parameters, load, chunks))
    works = (
        make_work(decodes=[Decodes(load.streams, load.context)], windows=windows),
        make_work([Chunk(load.prompt)], windows=windows),
        mixed_work(chunks, load.streams, load.context, windows),
    )
    shares = []
    for work in works:
        found = step_operators(parameters, work)
        known = [item for item in found if item.calibrated_by and calibration.operators[item.calibrated_by].residuals]
        shares.append(sum(item.seconds for item in known) / sum(item.seconds for item in found))
    return shares


def test_a_step_that_is_not_covered_has_no_interval() -> None:
    # Without a fit of the fp8 products most of the step is the bare datasheet; an interval would only look certain.
    fitted = dict.fromkeys(("gemm.bf16", "prefill_attention", "decode_attention"), operator())
    assert predict(calibration=calibration_of(fitted)).intervals is not None
    assert predict(calibration=calibration_of(fitted), dtype="fp8").intervals is None


def shares(rung: Rung, step: str) -> tuple[float, float]:
    """Return the seconds of matrices and of attention in a step."""
    if step == "prefill_s":
        return rung.prefill_s - rung.prefill_attention_s, rung.prefill_attention_s
    operators = rung.operators if step == "spike_s" else rung.decode_operators
    attention = sum(item.time_s for item in operators if "attention" in item.name)
    return sum(item.time_s for item in operators) - attention, attention


def test_an_interval_by_hand() -> None:
    # Every kernel at 80 % of its rates. All matrices are one operator and err together, −10 % to +20 %; attention errs by itself.
    matrices = operator(compute_efficiency=0.8, bandwidth_efficiency=0.8)
    exact = operator(low=0.0, high=0.0, compute_efficiency=0.8, bandwidth_efficiency=0.8)
    attention = operator(low=-0.05, high=0.4, compute_efficiency=0.8, bandwidth_efficiency=0.8)
    for changed in ("prefill_attention", "decode_attention"):
        fitted = {"gemm": matrices, "prefill_attention": exact, "decode_attention": exact} | {changed: attention}
        prediction = predict(calibration=calibration_of(fitted))
        assert prediction.intervals is not None
        assert prediction.intervals.level == 0.9
        step = "prefill_s" if changed == "prefill_attention" else "decode_step_s"
        one, other = shares(prediction.best, step)
        point = getattr(prediction.best, step)
        assert point == pytest.approx(one + other)
        expected = point - math.hypot(0.1 * one, 0.05 * other), point + math.hypot(0.2 * one, 0.4 * other)
        assert getattr(prediction.intervals, step) == pytest.approx(expected)


def test_three_operators_of_a_spike_by_hand() -> None:
    fitted = operator(compute_efficiency=0.8, bandwidth_efficiency=0.8)
    kernels = ("gemm", "prefill_attention", "decode_attention")
    prediction = predict(calibration=calibration_of(dict.fromkeys(kernels, fitted)))
    assert prediction.intervals is not None
    parts = {"gemm": 0.0, "prefill_attention": 0.0, "decode_attention": 0.0}
    for item in prediction.best.operators:
        parts[item.name if item.name in parts else "gemm"] += item.time_s
    width = math.hypot(*parts.values())
    assert 0.5 * prediction.best.spike_s < width < prediction.best.spike_s
    expected = prediction.best.spike_s - 0.1 * width, prediction.best.spike_s + 0.2 * width
    assert prediction.intervals.spike_s == pytest.approx(expected)


SMALL, LARGE = {"level": 0.9, "low": -0.1, "high": 0.5}, {"level": 0.9, "low": -0.02, "high": 0.03}


def test_small_work_errs_otherwise_than_large() -> None:
    # Up to 100 tokens −10 % to +50 %, above −2 % to +3 %. A decode step has 32, a prefill 8,000, of which lm_head sees one row.
    regimes = [{"up_to": 100, "residuals": SMALL}, {"up_to": 10_000, "residuals": LARGE}]
    known = operator(compute_efficiency=0.8, bandwidth_efficiency=0.8) | {"ranges": {"tokens": [1, 10_000]}}
    calibration = calibration_of({**KERNELS, "gemm": known | {"regimes": regimes}})
    for prompt in (8000, 20_000):  # beyond the last regime: the last
        prediction = predict(prompt, calibration=calibration)
        assert prediction.intervals is not None
        best = prediction.best
        matrices, _ = shares(best, "decode_step_s")
        assert prediction.intervals.decode_step_s[1] == pytest.approx(best.decode_step_s + 0.5 * matrices)
        head = best.prefill_s - best.prefill_linear_s - best.prefill_attention_s
        expected = best.prefill_s + 0.03 * best.prefill_linear_s + 0.5 * head
        assert prediction.intervals.prefill_s[1] == pytest.approx(expected)


def test_a_regime_is_that_of_the_first_range() -> None:
    regimes = [{"up_to": 100, "residuals": SMALL}, {"up_to": 10_000, "residuals": LARGE}]
    ranges = {"kv_tokens": [1, 10_000], "flops": [1, 1e15]}
    fitted = FittedOperator.model_validate(operator() | {"ranges": ranges, "regimes": regimes})
    for size, high in ((1, 0.5), (100, 0.5), (101, 0.03), (10_000, 0.03), (10**9, 0.03)):
        residuals = fitted.residuals_at({"kv_tokens": float(size), "flops": 1e18}.__getitem__)
        assert residuals is not None
        assert residuals.high == high
    without = fitted.model_copy(update={"regimes": ()})
    nothing: dict[str, float] = {}
    assert without.residuals_at(nothing.__getitem__) == fitted.residuals


def test_messages_are_sized_one_by_one() -> None:
    # Two all-reduces per layer: 64 messages of 32·4096·2 B = 262,144 B in a decode step of 32 sequences over 2 GPUs, which send
    # 2·(t − 1)/t of it each; over 4 GPUs half as much again.
    for gpus, sent in ((2, 262_144.0), (4, 393_216.0)):
        for edge, high in ((sent, 0.5), (sent - 1, 0.03)):
            regimes = [{"up_to": edge, "residuals": SMALL}, {"up_to": 1e9, "residuals": LARGE}]
            link = operator("link", latency_s=1e-5) | {"ranges": {"bytes": [1, 1e9]}, "regimes": regimes}
            prediction = predict(tp=gpus, calibration=calibration_of({**KERNELS, "all_reduce": link}))
            assert prediction.intervals is not None
            (item,) = (item for item in prediction.best.decode_operators if item.name == "all_reduce")
            assert item.bytes == 64 * sent
            expected = prediction.best.decode_step_s + high * item.time_s
            assert prediction.intervals.decode_step_s[1] == pytest.approx(expected)
        narrow = operator("link", latency_s=1e-5) | {"ranges": {"bytes": [1, sent]}}
        warnings = predict(tp=gpus, calibration=calibration_of({**KERNELS, "all_reduce": narrow})).warnings
        found = [text for text in warnings if "bytes = " in text]
        assert not any("in the decode step" in text for text in found)
        # 8,000 tokens instead of 32
        assert any(f"bytes = {250 * sent:,.0f} in the prefill step" in text for text in found)


def test_an_interval_is_as_wide_as_that_of_whole_steps() -> None:
    fitted = operator(low=-0.2, high=0.02, compute_efficiency=0.5, bandwidth_efficiency=0.5)
    kernels = calibration_of(dict.fromkeys(("gemm", "prefill_attention", "decode_attention"), fitted))
    alone = predict(calibration=kernels)
    assert alone.intervals is not None
    whole = Residuals(level=0.9, low=-0.05, high=0.3)
    both = predict(calibration=kernels.model_copy(update={"end_to_end": {"tpot": whole}}))
    assert both.intervals is not None
    for name in TIMES:
        # Above, whole steps err more than kernels; below less, and the kernels' width stays.
        assert getattr(both.intervals, name)[1] == pytest.approx(1.3 * getattr(both.best, name))
        assert getattr(both.intervals, name)[0] == getattr(alone.intervals, name)[0]
    of_requests = predict(calibration=kernels.model_copy(update={"end_to_end": {"ttft": whole}}))
    assert of_requests.intervals == alone.intervals
    # Widened or not, nothing is faster than the datasheet.
    slow = Residuals(level=0.9, low=-0.8, high=0.3)
    floored = predict(calibration=kernels.model_copy(update={"end_to_end": {"tpot": slow}}))
    assert floored.intervals is not None
    for name in TIMES:
        assert getattr(floored.intervals, name)[0] == pytest.approx(getattr(floored.rungs.roofline, name))


def test_whole_steps_stand_in_for_kernels_without_residuals() -> None:
    # fp8 products are the bare datasheet here: no interval from kernels, but one from whole steps.
    fitted = dict.fromkeys(("gemm.bf16", "prefill_attention", "decode_attention"), operator(low=0.0, high=0.0))
    whole = {"tpot": Residuals(level=0.9, low=-0.05, high=0.3)}
    found = predict(calibration=calibration_of(fitted).model_copy(update={"end_to_end": whole}), dtype="fp8")
    assert found.intervals is not None
    for name in TIMES:
        assert getattr(found.intervals, name)[1] == pytest.approx(1.3 * getattr(found.best, name))


@pytest.mark.parametrize("engine", ENGINES)
def test_shipped_intervals_are_as_wide_as_their_end_to_end_errors(engine: str) -> None:
    calibration = shipped_calibration("h100-sxm", engine)
    assert calibration is not None
    found = predict(engine=engine)
    assert found.intervals is not None
    whole = calibration.end_to_end["tpot"]
    for name in TIMES:
        low, high = getattr(found.intervals, name)
        point, floor = getattr(found.best, name), getattr(found.rungs.roofline, name)
        assert low <= max((1 + min(whole.low, 0.0)) * point, floor) * (1 + 1e-12)
        assert high >= (1 + max(whole.high, 0.0)) * point * (1 - 1e-12)


def test_an_interval_stops_at_the_floor() -> None:
    # Datasheet rates and residuals down to −50 %: nothing can be faster than the datasheet.
    kernels = ("gemm", "prefill_attention", "decode_attention")
    prediction = predict(calibration=calibration_of(dict.fromkeys(kernels, operator(low=-0.5))))
    assert prediction.intervals is not None
    for name in TIMES:
        assert getattr(prediction.intervals, name)[0] == pytest.approx(getattr(prediction.rungs.roofline, name))


def test_residuals_of_overheads_widen_the_interval() -> None:
    fitted = operator("overhead", per_step_s=1e-3)
    assert_widened(predict(calibration=calibration_of({**KERNELS, "overhead.graph": fitted, "overhead.eager": fitted})))


def test_residuals_of_communication_widen_the_interval() -> None:
    assert_widened(
        predict(tp=2, calibration=calibration_of({**KERNELS, "all_reduce": operator("link", latency_s=1e-5)}))
    )


def test_residuals_of_elementwise_kernels_widen_the_interval() -> None:
    assert_widened(
        predict(calibration=calibration_of({**KERNELS, "elementwise": operator("elementwise", passes=10.0)}))
    )


KERNELS = dict.fromkeys(("gemm", "prefill_attention", "decode_attention"), operator(low=0.0, high=0.0))
"""Kernels known without error, so that an interval's width comes from the operator under test."""


def assert_widened(prediction: Prediction) -> None:
    """The upper end is above the point."""
    assert prediction.intervals is not None
    assert prediction.intervals.decode_step_s[1] > prediction.best.decode_step_s


def test_without_residuals_there_is_no_interval() -> None:
    assert predict(calibration=NOTHING_LOST).intervals is None


def test_missing_operators_are_named() -> None:
    fitted = calibration_of({"gemm": operator()})
    text, left_out = (text for text in predict(tp=2, calibration=fitted).warnings if "not in the calibration" in text)
    assert "elementwise, overhead.graph, overhead.eager" in left_out
    assert "too short" in left_out
    for part in ("prefill_attention.bf16", "decode_attention.bf16", "all_reduce"):
        assert part in text
    assert "gemm" not in text


def test_a_complete_calibration_says_nothing() -> None:
    assert predict(calibration=NOTHING_LOST).warnings == ()


def test_leaving_the_fitted_ranges_is_said() -> None:
    narrow = operator() | {"ranges": {"tokens": (1, 4096)}}
    found = predict(calibration=calibration_of({"gemm": narrow})).warnings
    # The prompt's 8,000 tokens are outside, the decode step's 32 inside.
    (text,) = (text for text in found if "prefill step" in text)
    assert "tokens = 8,000 in the prefill step, fitted on 1 to 4,096" in text
    assert "o_proj" in text
    assert not any("in the decode step" in text for text in found)
    wide = operator() | {"ranges": {"tokens": (1, 16_384)}}
    assert not any("outside" in text for text in predict(calibration=calibration_of({"gemm": wide})).warnings)


def test_an_interval_of_the_spike_stops_at_the_roofline_s_own_longest_step() -> None:
    """With slow attention the remainder takes longer than the last full chunk; on the roofline it is the other way round."""
    slow = calibration_of(
        {
            "prefill_attention": operator(compute_efficiency=0.05, low=-0.99),
            "gemm": operator(low=-0.99),
            "decode_attention": operator(low=-0.99),
        }
    )
    found = predict(4500, chunk=2532, calibration=slow)
    assert found.intervals is not None
    low, _ = found.intervals.spike_s
    assert low == found.rungs.roofline.spike_s
