"""`plan_batch` and `plan_prompt`: all limits hold at the answer, and the one that binds does not hold at one more."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel
from costmodel.errors import InputError
from costmodel.planning.documents import SizePlan


def answer(plan: SizePlan) -> int:
    assert plan.feasible, plan.binds
    assert plan.at is not None
    assert plan.at.meets
    if plan.after is not None:
        assert plan.after.value == plan.at.value + 1
        assert not plan.after.meets
    return plan.at.value


def test_the_tpot_binds() -> None:
    plan = costmodel.plan_batch(context=4000, tpot=0.020)
    number = answer(plan)
    assert plan.binding == "tpot"
    assert costmodel.predict(streams=number, context=4000).best.decode_step_s <= 0.020
    assert costmodel.predict(streams=number + 1, context=4000).best.decode_step_s > 0.020
    for side in (plan.at, plan.after):
        assert side is not None
        assert side.tpot_s == pytest.approx(side.simulated_tpot_s, rel=1e-9)
    assert plan.advice is not None
    assert plan.advice.max_num_seqs == number
    assert plan.advice.binding == {"max_num_seqs": "tpot"}


def test_the_kv_cache_binds() -> None:
    plan = costmodel.plan_batch(context=4000)
    number = answer(plan)
    assert plan.binding == "kv_memory"
    fits = [
        costmodel.plan_memory(max_model_len=4001, max_num_seqs=each).memory.max_concurrency
        for each in (number, number + 1)
    ]
    assert fits[0] >= number
    assert fits[1] < number + 1 + 1 / 251  # one block of 251 is never given out


def test_windowed_layers_take_less_of_the_kv_cache() -> None:
    windowed = costmodel.plan_batch(context=100_000, model="gpt-oss-20b", confirm=False)
    full = costmodel.plan_batch(context=100_000, model="gpt-oss-20b", kv_tokens=1_500_000, confirm=False)
    assert answer(windowed) > answer(full) == 1_500_000 // 16 // 6251


def test_max_num_seqs_binds() -> None:
    plan = costmodel.plan_batch(tpot=0.05, max_num_seqs=16)
    assert answer(plan) == 16
    assert plan.binding == "max_num_seqs"
    among = costmodel.plan_batch(tpot=0.05, max_num_seqs=16, prompt=1000)
    assert answer(among) == 15  # the prompt takes a place


def test_the_spike_binds() -> None:
    plan = costmodel.plan_batch(itl=0.060, prompt=8000, chunk=2048)
    number = answer(plan)
    assert plan.binding == "itl"
    for streams, over in ((number, False), (number + 1, True)):
        found = costmodel.simulate_interference(8000, streams, chunk=2048)
        assert found.injected is not None
        assert found.injected.itl is not None
        assert (found.injected.itl.max_s > 0.060) is over


def test_every_sequence_takes_a_token_of_the_budget() -> None:
    plan = costmodel.plan_batch(chunk=64, context=10)
    assert answer(plan) == 64
    assert plan.binding == "token_budget"


def test_the_longest_context() -> None:
    plan = costmodel.plan_batch(unknown="context", streams=64, tpot=0.020)
    context = answer(plan)
    assert plan.binding == "tpot"
    assert plan.advice is not None
    assert plan.advice.context_tokens == context
    assert costmodel.solve("context", decode_s=0.020, streams=64).value == context
    assert costmodel.plan_batch(unknown="context", streams=64, max_model_len=2048).binding == "max_model_len"


def test_what_each_limit_allows_by_itself() -> None:
    bounds = {bound.limit: bound.allows for bound in costmodel.plan_batch(context=4000, tpot=0.020).bounds}
    alone = costmodel.plan_batch(context=4000).at
    assert alone is not None
    assert bounds["kv_memory"] == alone.value > (bounds["tpot"] or 0)
    assert bounds["max_model_len"] is None


@pytest.mark.parametrize("chunk", [None, "engine", 512])
def test_the_longest_prompt_under_a_spike(chunk: int | str | None) -> None:
    plan = costmodel.plan_prompt(itl=0.050, chunk=chunk)
    prompt = answer(plan)
    if chunk != 512:
        assert plan.binding == "itl"
        assert costmodel.solve("prompt", spike_s=0.050, chunk=chunk).value == prompt
    else:
        assert plan.at is not None
        assert plan.at.simulated_itl_s == pytest.approx(plan.at.itl_s, rel=1e-9)


def test_the_longest_prompt_under_a_ttft() -> None:
    plan = costmodel.plan_prompt(ttft=2.0, chunk="engine")
    answer(plan)
    assert plan.binding == "ttft"
    assert plan.at is not None
    assert plan.at.simulated_ttft_s is not None
    assert plan.at.simulated_ttft_s <= 2.0


def test_the_longest_prompt_without_a_limit_on_times() -> None:
    assert answer(costmodel.plan_prompt(chunk="engine", max_model_len=4096)) == 4095
    plan = costmodel.plan_prompt(chunk="engine", streams=100, context=4000)
    assert plan.binding == "kv_memory"
    answer(plan)


@pytest.mark.parametrize(
    ("asked", "binding", "change"),
    [
        ({"tpot": 0.001}, "tpot", "--tpot-ms"),
        ({"model": "Llama-3.1-405B"}, "kv_memory", "--tp"),
        ({"prompt": 8000, "itl": 0.05}, "itl", "--itl-ms"),
        ({"prompt": 100_000, "every": 1.0}, "load", "--every"),
        ({"context": 5000, "max_model_len": 4096}, "max_model_len", "--max-model-len"),
        ({"context": 200_000}, "max_model_len", "--context"),
        ({"context": 131_072}, "max_model_len", "--context"),
        ({"prompt": 8000, "every": 0.05, "tpot": 0.2}, "load", "--every"),
        ({"max_num_seqs": 1, "prompt": 100}, "max_num_seqs", "--max-num-seqs"),
        ({"chunk": 1, "prompt": 100}, "token_budget", "--chunk"),
    ],
)
def test_not_even_one(asked: dict[str, Any], binding: str, change: str) -> None:
    plan = costmodel.plan_batch(**asked)
    assert not plan.feasible
    assert plan.binding == binding
    assert plan.advice is None
    [near] = [each for each in plan.nearest if each.change == change] or [None]
    if binding != "kv_memory" or near is not None:
        assert near is not None
        changed = {
            "--tpot-ms": "tpot",
            "--itl-ms": "itl",
            "--every": "every",
            "--max-num-seqs": "max_num_seqs",
            "--chunk": "chunk",
            "--tp": "tp",
            "--max-model-len": "max_model_len",
            "--context": "context",
        }
        if change in changed:
            value = near.value if change in ("--tpot-ms", "--itl-ms", "--every") else int(near.value)
            assert costmodel.plan_batch(**{**asked, changed[change]: value}).feasible


def test_prompts_that_come_too_fast_have_no_tpot() -> None:
    plan = costmodel.plan_batch(tpot=0.020, prompt=8000, every=0.05)
    assert plan.binding == "load"
    assert "inf" not in plan.binds
    few = costmodel.plan_batch(tpot=0.020, prompt=8000, chunk=16)
    answer(few)
    assert few.binding == "load"
    assert "inf" not in few.binds


def test_bad_input() -> None:
    with pytest.raises(InputError, match="prompt must be at least 1"):
        costmodel.plan_batch(prompt=0)
    with pytest.raises(InputError, match="131,072 that Llama"):
        costmodel.plan_batch(131_071, max_model_len=500_000)
    with pytest.raises(InputError, match="unknown"):
        costmodel.plan_batch(unknown="prompt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="chunk must be"):
        costmodel.plan_batch(chunk="big")
    with pytest.raises(InputError, match="context"):
        costmodel.plan_batch(context=-1)
    with pytest.raises(InputError, match="prompt of one length"):
        costmodel.plan_prompt(itl=0.1, decode_s=0.01, prefill_s=0.1)
