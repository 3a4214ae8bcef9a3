"""`plan_chunk`: the largest token budget for a limit on the gaps, checked with the simulator on both sides."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel
from costmodel.errors import InputError
from costmodel.planning.confirming import interference_numbers, unserved
from costmodel.planning.documents import ChunkPlan
from costmodel.planning.serving import make_site
from costmodel.planning.steady import Steady


def longest_gap(chunk: int, **asked: Any) -> float:
    found = costmodel.simulate_interference(**asked, chunk=chunk)
    assert found.injected is not None
    assert found.injected.itl is not None
    return found.injected.itl.max_s


def budget_of(plan: ChunkPlan) -> int:
    assert plan.feasible
    assert plan.advice is not None
    assert plan.advice.max_num_batched_tokens is not None
    return plan.advice.max_num_batched_tokens


def test_the_simulated_gap_is_under_the_limit_at_the_answer_and_over_it_at_the_next_multiple() -> None:
    plan = costmodel.plan_chunk(itl=0.050)
    budget = budget_of(plan)
    assert budget % 256 == 0
    assert longest_gap(budget) <= 0.050 < longest_gap(budget + 256)
    exact = plan.exact_max_num_batched_tokens
    assert exact is not None
    assert budget <= exact < budget + 256
    assert longest_gap(exact) <= 0.050 < longest_gap(exact + 1)
    assert plan.binding == "itl"
    assert plan.advice is not None
    assert plan.advice.binding == {"max_num_batched_tokens": "itl"}


def test_the_equations_count_as_the_simulator_does() -> None:
    plan = costmodel.plan_chunk(itl=0.050)
    for side in (plan.at, plan.after):
        assert side is not None
        assert side.itl_s == pytest.approx(side.simulated_itl_s, rel=1e-9)
        assert side.simulated_ttft_s is not None
        assert side.ttft_s is not None
        assert side.simulated_ttft_s <= side.ttft_s  # it came at the worst moment, or at a better one
        assert side.tpot_s == pytest.approx(side.simulated_tpot_s, rel=1e-3)


def test_fixed_step_times() -> None:
    # A step with m − 32 of 8,000 tokens takes (m − 32)/8000 · 146.4 ms.
    plan = costmodel.plan_chunk(itl=0.050, decode_s=0.010, prefill_s=0.1464)
    assert plan.exact_max_num_batched_tokens == int(0.050 / 0.1464 * 8000) + 32
    assert budget_of(plan) == 2560


def test_a_prompt_that_goes_through_in_one_step_within_the_limit() -> None:
    plan = costmodel.plan_chunk(itl=1.0)
    assert plan.binding == "prompt"
    assert budget_of(plan) == 8192
    assert plan.after is None


def test_the_kv_cache_may_bind() -> None:
    free = costmodel.plan_chunk(100_000, streams=16, itl=2.0, every=100.0)
    tight = costmodel.plan_chunk(100_000, streams=16, context=18_500, itl=20.0, every=100.0)
    assert free.binding == "itl"
    assert tight.binding == "kv_memory"
    assert tight.at is not None
    assert tight.after is not None
    assert tight.at.kv_blocks_needed is not None
    assert tight.at.kv_blocks is not None
    assert tight.after.kv_blocks_needed is not None
    assert tight.after.kv_blocks is not None
    assert tight.at.kv_blocks_needed <= tight.at.kv_blocks
    assert tight.after.kv_blocks_needed > tight.after.kv_blocks


def test_the_kv_cache_may_bind_below_the_first_multiple() -> None:
    plan = costmodel.plan_chunk(
        100_000, streams=16, context=18_500, itl=20.0, every=100.0, multiple=65_536, confirm=False
    )
    assert plan.feasible
    assert plan.binding == "kv_memory"
    assert "KV blocks; there are" in plan.binds
    assert plan.advice is not None
    assert plan.advice.binding == {"max_num_batched_tokens": "kv_memory"}


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ({"max_model_len": 4096}, {"--max-model-len": 8001, "--prompt": 4095}),
        ({"prompt": 140_000, "every": 1000.0}, {"--prompt": 131_071}),
        ({"context": 4096, "max_model_len": 4096, "prompt": 100}, {"--max-model-len": 4097, "--context": 4095}),
    ],
)
def test_a_sequence_that_is_longer_than_may_be(asked: dict[str, Any], changes: dict[str, int]) -> None:
    plan = costmodel.plan_chunk(itl=0.1, **asked)
    assert not plan.feasible
    assert plan.binding == "max_model_len"
    assert {near.change: near.value for near in plan.nearest} == changes
    assert all(near.enough for near in plan.nearest)


def test_a_simulation_without_prompts_confirms_nothing() -> None:
    plan = costmodel.plan_chunk(itl=0.05)
    assert plan.at is not None
    assert plan.at.simulated_prompts == 3
    assert unserved(plan.at) == ()
    site = make_site({"max_model_len": 4096}, 8000)
    assert interference_numbers(site, Steady(32, 500, 8000, 1), 1024) == {"simulated_prompts": 0}
    [said] = unserved(plan.at.model_copy(update={"simulated_prompts": 0}), None)
    assert "not confirmed" in said


def test_a_budget_below_the_first_multiple() -> None:
    plan = costmodel.plan_chunk(itl=0.012, every=100.0)
    budget = budget_of(plan)
    assert 32 < budget < 256
    assert longest_gap(budget, every=100.0) <= 0.012 < longest_gap(budget + 1, every=100.0)


def test_a_limit_below_the_floor_is_answered_with_the_smallest_that_can_be_held() -> None:
    plan = costmodel.plan_chunk(itl=0.005)
    assert not plan.feasible
    assert plan.binding == "itl"
    assert plan.advice is None
    assert "a decode step of 32 streams alone takes" in plan.binds
    [near] = plan.nearest
    assert near.change == "--itl-ms"
    assert costmodel.plan_chunk(itl=near.value).feasible
    assert not costmodel.plan_chunk(itl=near.value * 0.99).feasible


def test_limits_that_contradict_each_other() -> None:
    plan = costmodel.plan_chunk(itl=0.020, ttft=0.3)
    assert not plan.feasible
    assert plan.binding == "ttft"
    assert "contradict" in plan.binds
    longer, later = plan.nearest
    assert costmodel.plan_chunk(itl=longer.value, ttft=0.3).feasible
    assert costmodel.plan_chunk(itl=0.020, ttft=later.value).feasible


def test_prompts_that_come_too_fast() -> None:
    plan = costmodel.plan_chunk(itl=0.015, every=0.3)
    assert not plan.feasible
    assert plan.binding == "load"
    longer, rarer = plan.nearest
    assert costmodel.plan_chunk(itl=longer.value, every=0.3).feasible
    assert costmodel.plan_chunk(itl=0.015, every=rarer.value * 1.001).feasible


def test_a_model_that_does_not_fit() -> None:
    plan = costmodel.plan_chunk(itl=0.1, model="Llama-3.3-70B-Instruct")
    assert not plan.feasible
    assert plan.binding == "kv_memory"
    [more] = plan.nearest
    assert more.change == "--tp"
    assert costmodel.plan_chunk(itl=0.5, model="Llama-3.3-70B-Instruct", tp=int(more.value)).feasible


def test_the_trade_off() -> None:
    plan = costmodel.plan_chunk(itl=0.050)
    budgets = [point.max_num_batched_tokens for point in plan.points]
    assert budgets == sorted(set(budgets))
    assert budgets[0] == 256
    assert budgets[-1] == 8192
    assert budget_of(plan) in budgets
    assert plan.points[0].ttft_s > plan.points[-1].ttft_s
    assert plan.points[0].itl_s < plan.points[-1].itl_s


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "itl"),
        ({"itl": -1.0}, "itl limit"),
        ({"itl": 0.05, "streams": 0}, "streams"),
        ({"itl": 0.05, "gpuu": "h100"}, "gpu"),
        ({"itl": 0.05, "scheduler": "sarathi"}, "no part in this question"),
        ({"itl": 0.05, "max_num_seqs": 8}, "at least 33"),
        ({"itl": 0.05, "multiple": 0}, "multiple"),
    ],
)
def test_bad_input(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        costmodel.plan_chunk(**asked)
