"""No plan advises a server that ``plan_memory`` says does not start."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel

WIDE: dict[str, Any] = {"model": "Llama-3.3-70B-Instruct", "tp": 2}
FLEET: dict[str, Any] = {"requests": 20, "prompt": 2000, "output": 100, "ttft": 4.0}


def test_replicas_that_would_not_start_are_no_answer() -> None:
    plan = costmodel.plan_replicas(0.2, **FLEET, **WIDE, max_model_len=32_000)
    longest = costmodel.plan_memory(WIDE["model"], tp=2).memory.max_model_len
    assert not plan.feasible
    assert plan.binding == "kv_memory"
    assert {(each.change, each.value, each.enough) for each in plan.nearest} == {
        ("--tp", 4, True),
        ("--max-model-len", longest, True),
    }
    assert costmodel.plan_memory(WIDE["model"], tp=2, max_model_len=longest).memory.fits
    assert not any("will not start" in text for text in plan.warnings)


def test_replicas_that_start_only_with_shorter_sequences_say_so() -> None:
    plan = costmodel.plan_replicas(0.2, **FLEET, **WIDE)
    longest = costmodel.plan_memory(WIDE["model"], tp=2).memory.max_model_len
    assert plan.feasible
    assert plan.advice is not None
    assert plan.advice.max_model_len == longest
    assert any(f"--max-model-len {longest} or less" in text for text in plan.warnings)
    assert any("holds 3 requests of 2,000 + 100" in text for text in plan.warnings)


def test_more_gpus_are_named_with_the_flag_they_need() -> None:
    plan = costmodel.plan_replicas(0.2, **FLEET, model=WIDE["model"])
    assert plan.nearest[0].text == "tensor-parallel size 2, with --max-model-len 6848 or less"


@pytest.mark.parametrize("ask", ["chunk", "batch", "prompt", "gpu"])
def test_every_question_about_a_server(ask: str) -> None:
    asked: dict[str, Any] = {
        "chunk": {"itl": 0.2, "streams": 4, "prompt": 2000, "confirm": False, **WIDE},
        "batch": {"tpot": 0.05, "confirm": False, **WIDE},
        "prompt": {"ttft": 1.0, "streams": 4, "confirm": False, **WIDE},
        "gpu": {"tpot": 0.05, "streams": 4, "prompt": 2000, "gpus": ["h100"], "most": 2, "model": WIDE["model"]},
    }[ask]
    plan = getattr(costmodel, f"plan_{ask}")
    free = plan(**asked)
    assert free.feasible
    assert free.advice.max_model_len < 32_000
    assert any(f"--max-model-len {free.advice.max_model_len} or less" in text for text in free.warnings)
    bound = plan(**asked, max_model_len=32_000)
    assert not bound.feasible
    assert bound.binding == "kv_memory"


def test_a_simulation_says_that_its_server_would_not_start() -> None:
    found = costmodel.simulate_load(rate=0.2, requests=3, prompt=200, output=10, **WIDE)
    assert any("will not start without --max-model-len 6848" in text for text in found.warnings)
    shorter = costmodel.simulate_load(rate=0.2, requests=3, prompt=200, output=10, **WIDE, max_model_len=6848)
    assert not any("will not start" in text for text in shorter.warnings)
