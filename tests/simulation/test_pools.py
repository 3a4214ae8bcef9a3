"""Prefill and decode apart: nobody is lost on the way, the KV cache takes its time, and streams feel no prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from costmodel.architecture.counts import kv_bytes_per_token
from costmodel.hardware.errors import InputError
from costmodel.simulation.interfering import simulate_interference
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.pools import Pools, run_pools, transfer_seconds
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.running import engine_for
from costmodel.simulation.server import Server, make_server
from costmodel.simulation.simulating import simulate_load
from costmodel.simulation.tally import Served, Tally

FIXED: Any = {"decode_s": 0.01, "prefill_s": 1.0}
"""A decode step takes 10 ms, a prompt of 1,000 tokens a second."""


def server(**options: Any) -> Server:
    return make_server(ServerOptions(**{**FIXED, **options}), 1000, None)


def run(
    requests: Sequence[Request], pools: Pools, until: float = math.inf, made: Server | None = None
) -> tuple[list[Tally], list[Served]]:
    tallies, served, interrupted = run_pools(made or server(), Listed(requests), until, None, pools, engine_for)
    assert not interrupted
    return tallies, served


def test_one_request_by_hand() -> None:
    tallies, (served,) = run([Request(1.0, 500, 3)], Pools(latency=0.25))
    assert served.request == Request(1.0, 500, 3)
    assert (served.scheduled, served.first) == pytest.approx((1.0, 1.5))
    assert served.last == pytest.approx(1.5 + 0.25 + 0.02)
    assert (served.tokens, served.done) == (3, True)
    assert sorted(tallies[1].gaps) == pytest.approx([0.01, 0.26])  # the way is part of the gap that a reader feels
    assert not tallies[0].gaps


def test_a_long_prompt_that_is_overtaken_on_the_way_keeps_its_own_tokens() -> None:
    """The short one is prefilled later and arrives sooner: its KV cache is smaller."""
    made = make_server(ServerOptions(gpu="h100"), 1000, None)
    pools = Pools(2, 1, bandwidth=1e9)
    long, short = Request(0.0, 8000, 40), Request(0.3, 100, 5)
    _, served = run([long, short], pools, made=made)
    by_prompt = {item.request.prompt: item for item in served}
    assert by_prompt[8000].first < by_prompt[100].first
    assert by_prompt[100].last < by_prompt[8000].first + transfer_seconds(made, pools, 8000)
    assert [by_prompt[prompt].tokens for prompt in (8000, 100)] == [40, 5]
    for request in (long, short):
        item = by_prompt[request.prompt]
        moving = transfer_seconds(made, pools, request.prompt)
        assert item.last > item.first + moving + (request.output - 1) * 0.003


def test_a_kv_cache_travels_at_latency_and_bandwidth() -> None:
    made = make_server(ServerOptions(gpu="h100", tp=2), 1000, None)
    assert made.deployment is not None
    each = kv_bytes_per_token(made.deployment.architecture, made.deployment.kv_bytes)
    assert each == 131_072  # Llama-3.1-8B: 2 · 32 layers · 8 heads · 128 · 2 bytes
    assert transfer_seconds(made, Pools(bandwidth=1e9, latency=0.01), 1000) == pytest.approx(0.01 + 0.131072)
    links = float(made.deployment.hardware.link_bandwidth) * 2
    assert transfer_seconds(made, Pools(), 1000) == pytest.approx(131_072_000 / links)
    assert transfer_seconds(server(), Pools(latency=0.5), 10**6) == 0.5


@pytest.mark.parametrize("until", [math.inf, 3.003, 1.004, 0.0007])
@pytest.mark.parametrize("pools", [Pools(), Pools(3, 2, latency=0.3), Pools(1, 4), Pools(5, 1, latency=0.01)])
def test_nobody_is_lost(pools: Pools, until: float) -> None:
    made = server(max_model_len=900, kv_tokens=4000)
    requests = [Request(0.037 * n, 1 + 79 * n % 1000, 1 + 7 * n % 30, prefix=(n % 3,)) for n in range(80)]
    tallies, served = run(requests, pools, until, made)
    sent = [request for request in requests if request.arrival <= until]
    assert sorted(item.request.arrival for item in served) == [request.arrival for request in sent]
    assert {id(item.request) for item in served} <= {id(request) for request in requests}
    for item in served:
        assert bool(item.refused) + item.done <= 1
        if item.refused:
            assert item.request.prompt >= 900
        if item.done:
            assert item.tokens == min(item.request.output, 900 - item.request.prompt)
            assert item.request.arrival < item.first <= item.last <= until
    gaps = sum(tally.gaps.get(gap, 0) for tally in tallies for gap in tally.gaps)
    gaps += sum(
        int(tally.segments[i] * tally.segments[i + 2]) for tally in tallies for i in range(0, len(tally.segments), 3)
    )
    if until == math.inf:
        assert all(item.done or item.refused for item in served)
        assert gaps == sum(item.tokens - 1 for item in served if item.done)
    assert len(tallies) == pools.prefill + pools.decode


def test_an_answer_of_one_token_is_done_where_it_is_prefilled() -> None:
    tallies, served = run(
        [Request(0.0, 100, 1), Request(0.0, 899, 50)], Pools(latency=9.0), made=server(max_model_len=900)
    )
    assert [(item.tokens, item.done) for item in served] == [(1, True), (1, True)]
    assert tallies[1].steps == 0


def test_what_no_pool_takes_is_refused_once() -> None:
    _, served = run([Request(0.0, 2000, 5), Request(0.0, 100, 5)], Pools(), made=server(kv_tokens=1600))
    assert [item.refused for item in served] == ["prompt larger than the KV cache", ""]
    assert served[1].done


def test_time_to_the_first_token_is_that_of_the_prefill_pool() -> None:
    base: dict[str, Any] = {"rate": 2.0, "requests": 60, "prompt": 500, "output": 40, "seed": 3, **FIXED}
    near = simulate_load(**base, pools=Pools(2, 1)).result
    far = simulate_load(**base, pools=Pools(2, 1, latency=5.0)).result
    assert near is not None
    assert far is not None
    assert near.ttft == far.ttft
    assert near.itl is not None
    assert far.itl is not None
    assert far.itl.max_s == pytest.approx(5.02, abs=0.0101)  # and the step under way, and the one that is scheduled
    assert (near.requests.done, far.requests.done) == (60, 60)
    assert near.output_tokens == far.output_tokens == 60 * 40


def test_streams_feel_no_prompt() -> None:
    options: dict[str, Any] = {"decode_s": 0.01, "prefill_s": 0.1464}
    apart = simulate_interference(pools=Pools(), **options)
    together = simulate_interference(**options)
    assert apart.baseline is not None
    assert apart.injected is not None
    assert together.injected is not None
    assert apart.injected.itl == apart.baseline.itl
    assert apart.injected.itl is not None
    assert together.injected.itl is not None
    assert together.injected.itl.max_s > 10 * apart.injected.itl.max_s
    assert apart.injected.gaps == apart.baseline.gaps
    assert apart.injected.ttft is not None
    assert apart.injected.ttft.max_s == pytest.approx(0.1464)
    assert apart.injected.requests.done == 4


def test_a_prompt_that_is_sent_just_before_the_end_is_not_done() -> None:
    found = simulate_interference(first=39.9999, pools=Pools(1, 1)).injected
    assert found is not None
    assert (found.requests.sent, found.requests.unfinished) == (1, 1)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        (Pools(prefill=0), "prefill servers must be at least 1, not 0"),
        (Pools(decode=0), "decode servers must be at least 1, not 0"),
        (Pools(bandwidth=0.0), "KV bandwidth must be a finite number above zero, not 0"),
        (Pools(latency=-1.0), "KV latency must be a finite number above zero, not -1"),
        (Pools(latency=math.nan), "KV latency"),
        (Pools(latency="soon"), "KV latency must be a number, not 'soon'"),  # type: ignore[arg-type]
    ],
)
def test_pools_that_cannot_be(pools: Pools, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run([Request(0.0, 1, 1)], pools)


def test_clients_who_wait_cannot_be_split() -> None:
    with pytest.raises(InputError, match="not a closed loop"):
        simulate_load(2, pools=Pools(), **FIXED)


@pytest.mark.parametrize("calls", [1, 30, 130, 400])
def test_ctrl_c_in_either_pool_loses_nobody_who_was_taken(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = server()
    left = iter(range(calls))
    start = type(made.clock).mixed

    def mixed(*arguments: Any) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return start(*arguments)

    monkeypatch.setattr(type(made.clock), "mixed", mixed)
    requests = [Request(0.5 * n, 300, 10) for n in range(200)]
    tallies, served, interrupted = run_pools(made, Listed(requests), math.inf, None, Pools(2, 2), engine_for)
    assert interrupted == (calls < 400)
    assert len(served) >= min(calls, 200)
    assert sum(item.done for item in served) <= len(served)
    firsts = sum(not math.isnan(item.first) for item in served)
    assert firsts >= sum(item.done for item in served)
    if not interrupted:
        assert all(item.done for item in served)
        assert len(tallies) == 4
