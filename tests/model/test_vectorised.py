"""``step_times``: many steps at once give what one step at a time gives."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import StepTimes
from costmodel.equations.step import step_times as times_of_work
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.vectorised import BLOCK
from tests.strategies import PRESETS, calibrations, examples

STEPS = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, 50_000), st.integers(0, 300), st.integers(0, 50_000)).filter(
        lambda step: step[0] + step[2] > 0
    ),
    min_size=1,
    max_size=6,
)
"""(prefill tokens, cached, decodes, context); a chunk or some streams or both."""


@examples(40)
@given(st.sampled_from(PRESETS), st.none() | calibrations(), STEPS)
def test_arrays_agree_with_single_steps(
    model: str, calibration: Calibration | None, steps: list[tuple[int, int, int, int]]
) -> None:
    rates = CalibratedRates(calibration) if calibration else None
    parameters = build_parameters(deploy(model, "h100-sxm", tp=2), rates)
    columns = np.array(steps).T
    names = ("prefill_tokens", "prefill_cached", "decodes", "decode_context")
    options: dict[str, Any] = {"model": model, "tp": 2, "calibration": calibration or "none"}
    together = costmodel.step_times("h100-sxm", **dict(zip(names, columns, strict=True)), **options)
    for index, (q, c, count, context) in enumerate(steps):
        chunks, groups = [Chunk(q, c)] if q else [], [Decodes(count, context)] if count else []
        expected = times_of_work(parameters, make_work(chunks, groups, parameters.windows))
        alone = costmodel.step_times("h100-sxm", **dict(zip(names, steps[index], strict=True)), **options)
        for field in fields(StepTimes):
            value = getattr(expected, field.name)
            assert getattr(together, field.name)[index] == pytest.approx(value, rel=1e-12)
            assert getattr(alone, field.name) == pytest.approx(value, rel=1e-12)


def test_single_numbers_give_floats() -> None:
    found = costmodel.step_times(prefill_tokens=8000, decodes=32, decode_context=500)
    assert all(isinstance(getattr(found, field.name), float) for field in fields(StepTimes))
    assert found.total == pytest.approx(costmodel.predict().best.spike_s, rel=1e-12)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
def test_a_rung_agrees_with_predict(rung: Any) -> None:
    expected = costmodel.predict().rungs.get(rung)
    decode = costmodel.step_times(decodes=np.array([32]), decode_context=500, rung=rung)
    assert decode.total == pytest.approx([expected.decode_step_s], rel=1e-12)
    prefill = costmodel.step_times(prefill_tokens=np.array([8000]), rung=rung)
    assert prefill.total == pytest.approx([expected.prefill_s], rel=1e-12)
    assert prefill.linear == pytest.approx([expected.prefill_linear_s], rel=1e-12)
    assert prefill.attention == pytest.approx([expected.prefill_attention_s], rel=1e-12)


def test_workloads_broadcast() -> None:
    prompts, streams = np.array([1000, 8000, 64_000]), np.array([1, 32])
    grid = costmodel.step_times(prefill_tokens=prompts[:, None], decodes=streams[None, :], decode_context=500)
    assert grid.total.shape == grid.communication.shape == (3, 2)
    assert grid.total[1, 1] == pytest.approx(costmodel.predict().best.spike_s, rel=1e-12)
    assert (np.diff(grid.total, axis=0) > 0).all()
    assert (np.diff(grid.total, axis=1) > 0).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.uint16])
def test_integer_arrays_do_not_overflow(dtype: Any) -> None:
    # 100,000·100,001/2 pairs are more than 2³¹; 50,000 tokens are more than int16 squares to.
    n = 50_000 if dtype is np.uint16 else 100_000
    array = costmodel.step_times(prefill_tokens=np.array([n], dtype=dtype))
    assert array.total.dtype == np.float64
    assert array.total[0] == pytest.approx(costmodel.step_times(prefill_tokens=n).total, rel=1e-12)


def test_more_steps_than_a_block() -> None:
    prompts = np.arange(1, 2 * BLOCK + 10)
    total = costmodel.step_times(prefill_tokens=prompts).total
    assert total.shape == prompts.shape
    assert (np.diff(total) >= 0).all()
    for index in (0, BLOCK - 1, BLOCK, len(prompts) - 1):
        assert total[index] == pytest.approx(costmodel.step_times(prefill_tokens=int(prompts[index])).total)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"prefill_tokens": -1}, "prefill_tokens"),
        ({"prefill_tokens": np.array([10, -1])}, "prefill_tokens"),
        ({"prefill_tokens": np.array([10, np.nan])}, "prefill_tokens"),
        ({"prefill_tokens": 1, "prefill_cached": np.inf}, "prefill_cached"),
        ({"decodes": float("nan")}, "decodes"),
        ({"decodes": 1, "decode_context": -1}, "decode_context"),
        ({}, "at least one token"),
        ({"decodes": np.array([1, 0])}, "at least one token"),
        ({"prefill_tokens": np.ones(3), "decodes": np.ones(2)}, "do not fit together"),
        ({"decodes": ["many"]}, "do not fit together"),
        ({"decodes": 1, "gpu": "mi300x", "rung": "calibrated"}, "no calibration of mi300x for vllm"),
        ({"decodes": 1, "rung": "guess"}, "unknown rung"),
        ({"decodes": 1, "gpu": "h1000"}, "did you mean"),
    ],
)
def test_impossible_steps_are_refused_in_one_line(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part) as refused:
        costmodel.step_times(**options)
    assert "\n" not in str(refused.value)
