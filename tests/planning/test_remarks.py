"""What is said beside an answer, and what ends one early."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel
from costmodel.planning import confirming, fleets


def test_a_prompt_that_no_sequence_may_be_is_said() -> None:
    assert any("131,072" in text for text in costmodel.plan_chunk(140_000, itl=1.0, every=1000.0).warnings)
    assert not costmodel.plan_chunk(itl=1.0).warnings


def test_another_engine_has_vllms_scheduler_here() -> None:
    assert any("vLLM's scheduler" in note for note in costmodel.plan_chunk(itl=0.1, engine="sglang").notes)


def test_too_few_requests_for_the_servers_are_said() -> None:
    plan = costmodel.plan_replicas(200.0, ttft=0.1, prompt=500, output=10, requests=40)
    assert plan.at is not None
    assert ("requests per server" in " ".join(plan.warnings)) is (40 / plan.at.servers < 20)
    assert plan.at.servers > 2


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
