"""Intervals and warnings of the calibrated rung."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_parameters
from costmodel.certainty import COVERED, intervals, reported_steps
from costmodel.deployment import Deployment
from costmodel.documents import Prediction
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
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
    found = intervals(calibration, parameters, reported_steps(parameters["calibrated"], load))
    if not any(item.residuals for item in calibration.operators.values()):
        assert found is None
        return
    if found is None:
        assert any(share < COVERED for share in covered_shares(calibration, parameters["calibrated"], load))
        return
    floor, point = (step_rung(parameters[name], load) for name in ("roofline", "calibrated"))
    assert found.level == min(item.residuals.level for item in calibration.operators.values() if item.residuals)
    for name in TIMES:
        low, high = getattr(found, name)
        # These calibrations have low ≤ 0 ≤ high.
        assert low <= getattr(point, name) * (1 + 1e-12)
        assert high >= getattr(point, name) * (1 - 1e-12)
        if name != "spike_s":
            assert low >= getattr(floor, name) * (1 - 1e-12)


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


def test_an_interval_by_hand() -> None:
    # Every kernel at 80 % of its rates, residuals −10 % to +20 %: the whole step moves by as much.
    fitted = operator(compute_efficiency=0.8, bandwidth_efficiency=0.8)
    kernels = ("gemm", "prefill_attention", "decode_attention")
    prediction = predict(calibration=calibration_of(dict.fromkeys(kernels, fitted)))
    assert prediction.intervals is not None
    assert prediction.intervals.level == 0.9
    for name in TIMES:
        point = getattr(prediction.best, name)
        assert getattr(prediction.intervals, name) == pytest.approx((0.9 * point, 1.2 * point))


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
    assert "tokens = 8000 in the prefill step, fitted on 1 to 4096" in text
    assert "o_proj" in text
    assert not any("in the decode step" in text for text in found)
    wide = operator() | {"ranges": {"tokens": (1, 16_384)}}
    assert not any("outside" in text for text in predict(calibration=calibration_of({"gemm": wide})).warnings)
