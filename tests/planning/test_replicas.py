"""`plan_replicas` and `plan_disaggregation`: the SLO holds at the answer and not with one server fewer, both simulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.errors import InputError

LOAD: dict[str, Any] = {"prompt": 2000, "output": 150, "requests": 300}
HEAD = "arrival_s,prompt_tokens,output_tokens\n"


def test_the_slo_holds_at_the_answer_and_not_with_one_server_fewer() -> None:
    plan = costmodel.plan_replicas(40.0, ttft=0.5, tpot=0.020, **LOAD)
    assert plan.feasible
    assert plan.at is not None
    [below] = plan.before
    assert plan.at.servers == below.servers + 1 >= 2
    assert plan.at.meets
    assert not below.meets
    assert plan.at.ttft_s is not None
    assert plan.at.tpot_s is not None
    assert plan.at.ttft_s <= 0.5
    assert plan.at.tpot_s <= 0.020
    assert plan.binding in (*below.missed, "load")
    assert plan.advice is not None
    assert plan.advice.replicas == plan.advice.gpus == plan.at.servers
    assert plan.closed_form is not None
    assert abs(plan.closed_form.servers - plan.at.servers) <= 2


def test_one_server_is_what_simulate_load_simulates() -> None:
    plan = costmodel.plan_replicas(3.0, ttft=1.0, **LOAD)
    assert plan.at is not None
    assert plan.at.servers == 1
    assert not plan.before
    result = costmodel.simulate_load(rate=3.0, **LOAD).result
    assert result is not None
    assert result.ttft is not None
    assert result.itl is not None
    assert plan.at.ttft_s == result.ttft.p99_s
    assert plan.at.itl_s == result.itl.p99_s
    assert plan.at.output_tokens_per_s == pytest.approx(result.output_tokens_per_s)


def test_requests_go_round_among_the_servers(tmp_path: Path) -> None:
    """Each replica is a simulation of every N-th request, and the percentile is of all of them together."""
    rows = [f"{0.03 * index:.3f},{500 + 700 * (index % 3)},{20 + 10 * (index % 4)}" for index in range(120)]
    whole = tmp_path / "whole.csv"
    whole.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    plan = costmodel.plan_replicas(trace=whole, ttft=0.030, percentile=90.0, rung="roofline", around=1)
    counts = {run.servers: run for run in plan.runs}
    count = max(counts)
    assert count >= 2
    ttfts = []
    for index in range(count):
        part = tmp_path / f"part{index}.csv"
        first = float(rows[index].split(",")[0])
        shifted = [f"{float(row.split(',')[0]) - first:.3f},{row.split(',', 1)[1]}" for row in rows[index::count]]
        part.write_text(HEAD + "\n".join(shifted) + "\n", encoding="utf-8")
        found = costmodel.details(costmodel.simulate_trace, part, rung="roofline")
        ttfts += [request.ttft_s for request in found.requests if request.ttft_s is not None]
    expected = sorted(ttfts)[math.ceil(0.9 * len(ttfts)) - 1]
    assert counts[count].ttft_s == pytest.approx(expected, rel=1e-6)


def test_at_random_the_same_seed_gives_the_same_answer() -> None:
    asked = {**LOAD, "ttft": 0.5, "tpot": 0.02, "balancing": "random"}
    one, other = (costmodel.plan_replicas(30.0, **asked) for _ in range(2))
    assert one == other
    assert one.at is not None


@pytest.mark.parametrize("limit", ["ttft", "tpot", "e2e"])
def test_a_limit_below_the_floor(limit: str) -> None:
    plan = costmodel.plan_replicas(5.0, **{limit: 0.001}, **LOAD)
    assert not plan.feasible
    assert plan.binding == limit
    [near] = plan.nearest
    assert near.change == f"--{limit}-ms"
    assert "one request per server" in near.text
    assert costmodel.plan_replicas(5.0, **{limit: near.value}, **{**LOAD, "requests": 40}).feasible


def test_a_model_that_does_not_fit() -> None:
    plan = costmodel.plan_replicas(5.0, ttft=1.0, model="Llama-3.3-70B-Instruct", **LOAD)
    assert not plan.feasible
    assert plan.binding == "kv_memory"
    assert plan.nearest[0].change == "--tp"
    assert plan.runs == ()


def test_requests_that_no_server_takes() -> None:
    plan = costmodel.plan_replicas(5.0, ttft=1.0, max_model_len=1000, **LOAD)
    assert not plan.feasible
    assert "300 requests are refused" in plan.binds
    assert plan.binding == "max_model_len"
    longer, shorter = plan.nearest
    assert (longer.change, longer.value) == ("--max-model-len", 2150)
    assert (shorter.change, shorter.value) == ("--prompt", 850)
    assert longer.enough
    assert shorter.enough


@pytest.mark.parametrize("function", ["plan_replicas", "plan_disaggregation"])
def test_requests_that_are_refused_hold_no_limit(function: str) -> None:
    """They have no gaps, so that a limit on the gaps alone could not tell."""
    plan = getattr(costmodel, function)(1.0, itl=0.1, prompt=200_000, output=50, requests=20)
    assert not plan.feasible
    assert plan.binding == "max_model_len"  # the model's: nothing but a shorter prompt helps
    [near] = plan.nearest
    assert (near.change, near.value, near.enough) == ("--prompt", 131_072 - 50, True)


def test_few_refused_requests_are_within_the_percentile(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{index},{200_000 if index in (3, 7) else 100},5" for index in range(100)]
    path.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    assert costmodel.plan_replicas(trace=path, itl=0.1, percentile=98.0).feasible
    plan = costmodel.plan_replicas(trace=path, itl=0.1, percentile=99.0)
    assert plan.binding == "max_model_len"
    assert "2 requests are refused" in plan.binds


def test_a_prompt_that_is_larger_than_the_cache() -> None:
    plan = costmodel.plan_replicas(50.0, ttft=30.0, prompt=130_000, output=5, requests=40, gpu="rtx-4090")
    assert plan.binding == "kv_memory"
    more, shorter = plan.nearest
    assert (more.change, more.value, more.enough) == ("--tp", 2, True)
    assert shorter.change == "--prompt"
    assert shorter.enough


def test_max_model_len_is_no_longer_than_the_models() -> None:
    with pytest.raises(InputError, match="131,072 that Llama"):
        costmodel.plan_replicas(1.0, ttft=1.0, max_model_len=500_000)


def test_answers_of_one_token() -> None:
    plan = costmodel.plan_disaggregation(1.0, ttft=0.5, prompt=1000, output=1, requests=20)
    assert plan.feasible
    assert plan.advice is not None
    assert (plan.advice.prefill_servers, plan.advice.decode_servers) == (1, 1)


def test_several_gpus_per_server() -> None:
    plan = costmodel.plan_replicas(8.0, tpot=0.030, model="Llama-3.3-70B-Instruct", tp=4, **LOAD)
    assert plan.at is not None
    assert plan.advice is not None
    assert plan.advice.gpus == 4 * plan.at.servers


def test_as_few_of_each_kind_as_hold_the_limits() -> None:
    plan = costmodel.plan_disaggregation(20.0, ttft=0.3, tpot=0.009, prompt=2000, output=200, requests=300)
    assert plan.feasible
    assert plan.at is not None
    assert plan.advice is not None
    assert plan.at.meets
    assert plan.advice.prefill_servers == plan.at.prefill_servers
    assert plan.advice.gpus == plan.at.servers
    assert plan.before
    for run in plan.before:
        assert run.servers == plan.at.servers - 1
        assert not run.meets
    assert plan.together is not None
    assert plan.together.meets
    prefill, decode = plan.at.prefill_servers, plan.at.decode_servers
    assert prefill is not None
    assert decode is not None
    found = costmodel.simulate_load(
        rate=20.0, prompt=2000, output=200, requests=300, pools=costmodel.Pools(prefill, decode)
    ).result
    assert found is not None
    assert found.ttft is not None
    assert found.tpot is not None
    assert plan.at.ttft_s == found.ttft.p99_s
    assert plan.at.tpot_s == found.tpot.p99_s


def test_a_slow_way_for_the_kv_cache() -> None:
    plan = costmodel.plan_disaggregation(5.0, tpot=0.010, bandwidth=1e8, prompt=2000, output=50, requests=100)
    assert not plan.feasible
    assert plan.binding == "tpot"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ttft": 1.0}, "either a rate"),
        ({"rate": 1.0}, "give a limit"),
        ({"rate": 1.0, "ttft": 1.0, "percentile": 101.0}, "percentile"),
        ({"rate": 1.0, "ttft": 1.0, "balancing": "fair"}, "balancing"),
        ({"rate": 1.0, "ttft": 1.0, "scheduler": "disaggregated"}, "plan_disaggregation"),
        ({"rate": 1.0, "ttft": 1.0, "chunk": "one-step"}, "number of tokens"),
        ({"rate": 1.0, "ttft": 1.0, "token_budget": 8}, "chunk"),
    ],
)
def test_bad_input(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        costmodel.plan_replicas(**asked)


def test_a_trace_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(HEAD + "0,10,10\n", encoding="utf-8")
    with pytest.raises(InputError, match="single moment"):
        costmodel.plan_replicas(trace=path, ttft=1.0)


def test_more_servers_prefill_while_the_end_to_end_latency_is_missed() -> None:
    asked: dict[str, Any] = {
        "model": "gpt-oss-20b", "gpu": "l40s", "tp": 8, "dtype": "int4", "e2e": 5.0, "prompt": 8000, "output": 200,
        "requests": 60, "spread": 0.5, "compare": False,
    }  # fmt: skip
    free, tighter = (costmodel.plan_disaggregation(1.0, **asked, ttft=ttft) for ttft in (None, 3.0))
    assert tighter.feasible
    assert tighter.advice is not None
    assert free.feasible
    assert free.advice is not None
    assert free.advice.gpus is not None
    assert tighter.advice.gpus is not None
    assert free.advice.gpus <= tighter.advice.gpus
    for fewer in free.before:
        assert not fewer.meets


def test_nearest_limits_of_servers_apart_hold_when_they_are_asked() -> None:
    asked: dict[str, Any] = {
        "kv_tokens": 16384, "prompt": 8000, "output": 200, "requests": 20, "percentile": 100.0, "compare": False,
    }  # fmt: skip
    plan = costmodel.plan_disaggregation(20.0, ttft=0.006, **asked)
    assert not plan.feasible
    (near,) = plan.nearest
    assert near.enough
    assert costmodel.plan_disaggregation(20.0, ttft=near.value, **asked).feasible
