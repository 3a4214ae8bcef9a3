"""Answers tell how sure they are, and where they leave what was fitted, as predictions do."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel

LONG: dict[str, Any] = {"model": "Llama-3.3-70B-Instruct", "dtype": "fp8", "tp": 2}


def test_a_prompt_beyond_the_fitted_range_is_said_as_by_predict() -> None:
    plan = costmodel.plan_prompt(1, ttft=6.0, confirm=False, **LONG)
    assert plan.at is not None
    told = [text for text in plan.warnings if text.startswith("outside the calibration")]
    predicted = costmodel.predict(plan.at.value, "h100", streams=1, **LONG)
    same = [text.replace("spike step", "longest mixed step") for text in predicted.warnings if "spike step" in text]
    assert told
    assert told == same
    assert set(predicted.notes) >= {note for note in plan.notes if note.startswith("calibration ")} != set()


def test_the_interval_of_the_longest_gap_is_that_of_the_spike() -> None:
    plan = costmodel.plan_chunk(itl=0.04, confirm=False)
    assert plan.at is not None
    predicted = costmodel.predict(chunk=plan.at.value)
    assert predicted.intervals is not None
    assert plan.at.level == predicted.intervals.level
    assert plan.at.itl_interval_s == pytest.approx(predicted.intervals.spike_s)
    assert not any(text.startswith("outside") for text in plan.warnings)


def test_the_neighbour_of_an_answer_is_looked_at() -> None:
    plan = costmodel.plan_prompt(32, ttft=10.0, confirm=False, max_model_len=32_738)
    assert plan.at is not None
    assert plan.at.value == 32_737
    assert any("tokens = 32,769 in the longest mixed step" in text for text in plan.warnings)


@pytest.mark.parametrize("kind", ["interference", "load", "replicas", "gpu"])
def test_steps_beyond_the_fitted_range_are_said(kind: str) -> None:
    long: dict[str, Any] = {"prompt": 60_000, "chunk": 61_000}
    if kind == "interference":
        found: Any = costmodel.simulate_interference(duration=6.0, **long)
    elif kind == "load":
        found = costmodel.simulate_load(2, requests=2, output=2, **long)
    elif kind == "replicas":
        found = costmodel.plan_replicas(0.5, e2e=60.0, output=2, requests=5, **long)
    else:
        found = costmodel.plan_gpu(tpot=0.2, gpus=["h100"], every=20.0, **long)
    assert any(text.startswith("outside the calibration: tokens = 6") for text in found.warnings)
    assert any("nobody has measured them one by one" in text for text in found.notes)


def test_without_a_calibration_there_is_no_interval() -> None:
    plan = costmodel.plan_chunk(itl=0.04, confirm=False, rung="roofline")
    assert plan.at is not None
    assert plan.at.level is None
    assert plan.at.itl_interval_s is None
