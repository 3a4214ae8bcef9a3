"""What has to be said of a run: overload, starved and ended streams, answers cut short; and nothing where all is well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costmodel.hardware.errors import InputError
from costmodel.planning.replicas import plan_replicas
from costmodel.simulation.interfering import simulate_interference
from costmodel.simulation.pools import Pools
from costmodel.simulation.simulating import simulate_load, simulate_trace

FIXED: Any = {"decode_s": 0.01, "prefill_s": 0.1}
FASTER = "requests come faster than they are answered"


def trace(folder: Path, *rows: tuple[float, int, int]) -> Path:
    lines = ["arrival_s,prompt_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
    path = folder / "trace.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("requests", [600, 2000])
@pytest.mark.parametrize("rate", [26.0, 30.0, 60.0, 300.0])
def test_more_than_a_server_can_answer(rate: float, requests: int) -> None:
    """The h100 answers about 21 of these requests a second."""
    found = simulate_load(rate=rate, output=256, requests=requests)
    assert any(FASTER in warning for warning in found.warnings)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options",
    [
        {"rate": 2.0, "output": 256, "requests": 1000},
        {"rate": 16.0, "output": 256, "requests": 1000},
        {"rate": 12.0, "output": 256, "requests": 1000, "burstiness": 0.1, "spread": 0.5},
        {"rate": 4.0, "output": 256, "requests": 200},
        {"rate": 4.0, "output": 2000, "requests": 60},
        {"rate": 100.0, "output": 10, "requests": 10},
        {"rate": 20.0, "output": 1000, "requests": 100},
        {"rate": 4.0, "output": 256, "requests": 200, "pools": Pools(1, 2)},
    ],
    ids=str,
)
def test_a_server_that_keeps_up_is_not_overloaded(options: Any, seed: int) -> None:
    assert not simulate_load(seed=seed, **options).warnings


def test_a_burst_at_the_end_of_a_run_is_no_overload() -> None:
    """Seven of these servers answer 17.7 requests a second; after 2,000 at 16.1 one burst is on its way."""
    plan = plan_replicas(
        16.07, prompt=3037, output=281, ttft=3.377, tpot=0.0639, gpu="rtx-4090", dtype="fp8", seed=261150
    )
    assert plan.at is not None
    assert (plan.at.servers, plan.at.keeps_up) == (7, True)


def test_clients_who_wait_and_requests_all_at_once_are_no_overload(tmp_path: Path) -> None:
    assert not simulate_load(200, requests=400, prompt=2000, output=20, spread=0.2).warnings
    assert not simulate_trace(trace(tmp_path, *[(0, 500, 20)] * 100)).warnings


def test_a_trace_that_comes_too_fast(tmp_path: Path) -> None:
    path = trace(tmp_path, *[(number, 1000, 100) for number in range(400)])
    assert not simulate_trace(path).warnings
    assert any(FASTER in warning for warning in simulate_trace(path, speed=100).warnings)
    with pytest.raises(InputError, match=r"use a speed of at least 3\.99e-07"):
        simulate_trace(path, speed=1e-9)


def test_prompts_that_come_faster_than_they_are_taken() -> None:
    found = simulate_interference(every=0.1)
    assert found.injected is not None
    asked = found.injected.requests
    assert asked.unfinished > 100
    assert any(
        f"{asked.unfinished} of {asked.sent} injected prompts were not answered" in text for text in found.warnings
    )
    assert not simulate_interference().warnings
    assert not simulate_interference(first=39.0, every=0.95, duration=40.0, prompts=2, **FIXED).warnings


def test_streams_that_starve_are_seen() -> None:
    found = simulate_interference(2000, 8, 500, duration=40.0, grow=True, kv_tokens=7000)
    assert found.injected is not None
    assert found.injected.itl is not None
    assert found.injected.itl.max_s > 30
    text = "\n".join(found.warnings)
    assert "7 times one was preempted; at the end 7 of 8 streams had no token for up to 37" in text
    assert "none of the 4 injected prompts was answered" in text


def test_a_stream_that_outgrows_the_cache_ends_and_is_no_spike() -> None:
    found = simulate_interference(50, 1, 100, duration=20.0, grow=True, kv_tokens=320)
    assert [spike.injected_s for spike in found.spikes] == [5.0, 15.0]
    assert "1 of 1 streams ended before the run: no sequence is longer than the KV cache, 320 tokens" in found.warnings
    found = simulate_interference(50, 4, 100, duration=20.0, grow=True, max_model_len=200, **FIXED)
    assert "4 of 4 streams ended before the run: no sequence is longer than max_model_len, 200 tokens" in found.warnings


def test_without_chunks_a_stream_that_was_preempted_can_start_again() -> None:
    found = simulate_interference(
        100, 8, 90, duration=10.0, every=1.0, grow=True, kv_tokens=2000, chunked_prefill=False, chunk=1000
    )
    assert found.injected is not None
    assert found.injected.preemptions
    assert found.injected.requests.done == 5
    found = simulate_interference(100, 8, 90, duration=10.0, every=1.0, grow=True, chunked_prefill=False)
    assert any("without chunked prefill no sequence is longer than the token budget" in text for text in found.warnings)


@pytest.mark.parametrize("scheduler", ["vllm", "disaggregated"])
def test_answers_cut_short_are_counted_and_said(tmp_path: Path, scheduler: str) -> None:
    path = trace(tmp_path, (0, 159, 10), (1, 100, 20), (2, 100, 500))
    found = simulate_trace(path, kv_tokens=160, scheduler=scheduler)
    assert found.result is not None
    assert found.result.requests.cut_short == 2
    assert found.result.output_tokens == 1 + 20 + 60
    assert "2 answers were cut short: no sequence is longer than the KV cache, 160 tokens" in found.warnings
    found = simulate_trace(path, max_model_len=300, scheduler=scheduler)
    assert "1 answer was cut short: no sequence is longer than max_model_len, 300 tokens" in found.warnings


@pytest.mark.parametrize("output", [2, 500, 8000])
def test_a_request_alone_is_soon_with_the_engine_whatever_its_answer(tmp_path: Path, output: int) -> None:
    """Once a span of no time was a rate without end."""
    alone = simulate_trace(trace(tmp_path, (0, 100, output)))
    overhead = simulate_load(1, requests=1, prompt=100, output=1).server.request_overhead_s
    assert alone.server.request_overhead_s == pytest.approx(overhead, rel=0.1)
    two = simulate_trace(trace(tmp_path, (0, 100, output), (100, 100, output)))
    assert two.server.request_overhead_s == pytest.approx(alone.server.request_overhead_s, rel=1e-6)


def test_the_way_of_many_at_once_is_that_of_as_many(tmp_path: Path) -> None:
    at_once = simulate_trace(trace(tmp_path, *[(0, 1000, 100)] * 50)).server.request_overhead_s
    assert at_once == simulate_load(50, prompt=1000, output=100).server.request_overhead_s
    few = [simulate_load(1000, prompt=1000, output=100, max_num_seqs=number) for number in (1, 50)]
    alone = simulate_load(1, prompt=1000, output=100)
    assert [each.server.request_overhead_s for each in few] == [alone.server.request_overhead_s, at_once]
