"""What is said beside an answer, and what ends one early."""

from __future__ import annotations

import math
from typing import Any

import pytest

import costmodel
from costmodel.planning import confirming, fleets


def test_another_engine_has_vllms_scheduler_here() -> None:
    assert any("vLLM's scheduler" in note for note in costmodel.plan_chunk(itl=0.1, engine="sglang").notes)


def test_arrivals_that_end_before_servers_are_full_are_said() -> None:
    # Of 40 requests none has to wait, whatever the rate is: an answer takes longer than they come.
    asked: dict[str, Any] = {"ttft": 1.0, "prompt": 500, "output": 100, "decode_s": 0.01, "prefill_s": 0.02}
    few = costmodel.plan_replicas(400.0, requests=40, max_num_seqs=64, **asked)
    [said] = [text for text in few.warnings if "does not fill the servers" in text]
    assert f"--requests {math.ceil(5 * 400 * (0.025 + 99 * 0.0163))}" in said
    assert few.closed_form is not None
    assert f"by the closed form {few.closed_form.servers}" in said
    many = costmodel.plan_replicas(400.0, max_num_seqs=64, **asked)
    # Five times the time of an answer, 25 ms + 99 · 16.3 ms, at 400 a second.
    assert many.workload["requests"] == math.ceil(5 * 400 * (0.025 + 99 * 0.0163))
    assert not many.warnings
    assert many.at is not None
    assert few.at is not None
    assert few.at.servers == 1
    assert abs(many.at.servers - few.closed_form.servers) <= 1


def test_without_a_calibration_the_answer_is_a_floor_and_says_so() -> None:
    assert any("floor" in text for text in costmodel.plan_batch(tpot=0.02, gpu="mi300x").warnings)


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "run_pools", lambda *_, **__: ([], [], True))
    with pytest.raises(KeyboardInterrupt):
        costmodel.plan_disaggregation(5.0, ttft=1.0, prompt=100, output=10, requests=20)
    monkeypatch.setattr(fleets, "engine_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        costmodel.plan_replicas(5.0, ttft=1.0, prompt=100, output=10, requests=20)
    whole = costmodel.simulate_interference()
    monkeypatch.setattr(
        confirming, "simulate_interference", lambda *_, **__: whole.model_copy(update={"interrupted": True})
    )
    with pytest.raises(KeyboardInterrupt):
        costmodel.plan_chunk(itl=0.05)


def test_a_change_that_is_not_enough_says_what_else_does_not_hold() -> None:
    plan = costmodel.plan_chunk(itl=0.010, model="Llama-3.3-70B-Instruct", confirm=False)
    assert plan.binding == "kv_memory"
    [near] = plan.nearest
    assert not near.enough
    assert "a decode step of 32 streams alone takes" in near.text
    enough = costmodel.plan_chunk(itl=0.005, confirm=False).nearest
    assert [each.enough for each in enough] == [True]
