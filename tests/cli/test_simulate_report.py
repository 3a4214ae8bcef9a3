"""What the reports of ``costmodel simulate`` say: counts, servers, overheads, comparisons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.runner import document, printed

LESSON = "simulate interference --decode-ms 10 --prefill-ms 146.4"
LOAD = "simulate load --rate 8 --requests 60 --prompt 600 --output 40"


def text_of(command: str) -> str:
    """Return a report as one line."""
    return " ".join(printed(command).split())


def test_injected_prompts_are_counted() -> None:
    assert "The injected prompts: 4 sent, 4 done, 0 unfinished" in text_of(LESSON)
    assert re.search(r"350 sent, \d+ done, [1-9]\d* unfinished", text_of("simulate interference --every 0.1"))


def test_disaggregated_servers_are_told_with_all_their_gpus() -> None:
    command = f"{LOAD} --scheduler disaggregated --decode-gpus 2 --tp 2"
    text = text_of(command)
    assert "on 6 × NVIDIA H100 SXM5 80GB (2 prefill + 4 decode)" in text
    assert "1 × prefill and 2 × decode, each" in text
    assert re.search(r"up to \d+ running, \d+ waiting on one server", text)
    server = document(f"{command} --json")["server"]
    assert server["gpus"] == 6
    assert server["pools"]["gpus_per_server"] == 2
    speed = server["pools"]["kv_bandwidth_bytes_per_s"] / 1e9
    assert f"KV cache sent at {speed:.0f} GB/s" in text
    assert "KV cache sent at 25.0 GB/s with a latency of 2.000 ms" in text_of(
        f"{command} --kv-bandwidth 25 --kv-latency-ms 2"
    )


def test_the_time_before_the_engine_is_told() -> None:
    server = document(f"{LOAD} --json")["server"]
    text = text_of(LOAD)
    assert f"include {1e3 * server['request_overhead_s']:.1f} ms + " in text
    assert f"{1e6 * server['request_overhead_per_prompt_token_s']:.2f} µs per prompt token before the engine" in text
    assert "before the engine" not in text_of(f"{LOAD} --rung roofline")


def test_lines_are_not_longer_than_can_be_read() -> None:
    asked = (
        "simulate load --clients 640 --requests 640 --think-s 0.25 --ramp-s 0.5 --prompt 131 --output 17 --spread 0.25"
    )
    for line in printed(asked).splitlines():
        assert len(line) <= 118


def test_one_is_not_many(own_folder: Path) -> None:
    (own_folder / "trace.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,100,0\n1,9000000,4\n", encoding="utf-8"
    )
    found = document("simulate trace trace.csv --json")
    assert [text.partition(":")[0] for text in found["warnings"]] == [
        "1 request of the trace is left out",
        "1 request was refused",
    ]


def test_another_engines_scheduler_is_not_vllms() -> None:
    said = "the scheduler of TensorRT-LLM is not simulated"
    assert said in text_of(f"{LOAD} --engine trtllm")
    assert said not in text_of(f"{LOAD} --engine trtllm --scheduler vllm")
    assert said not in text_of(LOAD)


def test_clients_in_step_are_noted() -> None:
    asked = "simulate load --clients 4 --requests 8 --prompt 200 --output 20"
    assert "stay in step" in text_of(asked)
    for other in ("--spread 0.2", "--ramp-s 1"):
        assert "stay in step" not in text_of(f"{asked} {other}")
    assert "stay in step" not in text_of(asked.replace("clients 4", "clients 1"))
    assert "stay in step" not in text_of(LOAD)


def test_chunks_without_a_price_are_warned_of() -> None:
    said = "a chunk of 480 tokens takes its share of the prompt's fixed time, 8.78 ms"
    assert said in text_of(f"{LESSON} --chunk 512")
    for other in (LESSON, f"{LESSON} --chunk 2048", "simulate interference --chunk 512"):
        assert "a chunk of" not in text_of(other)


def test_a_trace_takes_fixed_step_times(own_folder: Path) -> None:
    (own_folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,1\n1,200,3\n", "utf-8")
    result = document("simulate trace trace.csv --decode-ms 10 --prefill-ms 40 --json")["result"]
    assert result["ttft"]["p50_s"] == pytest.approx(0.020)  # half of the longest prompt
    assert result["ttft"]["max_s"] == pytest.approx(0.040)
    assert result["itl"]["max_s"] == pytest.approx(0.010)


@pytest.mark.parametrize("workload", ["interference", "load --rate 8 --requests 60 --output 40", "trace trace.csv"])
def test_schedulers_and_budgets_are_compared(workload: str, own_folder: Path) -> None:
    (own_folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9000,10\n0,200,300\n", "utf-8")
    for option, names in (("--chunk 512,2048", ("512", "2,048")), ("--scheduler vllm,separate", ("vllm", "separate"))):
        found = document(f"simulate {workload} {option} --json")["simulations"]
        alone = [document(f"simulate {workload} {option.split(',')[0]} --json")]
        assert found[:1] == alone
        lines = printed(f"simulate {workload} {option}").splitlines()
        for name in names:
            assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    both = printed(f"simulate {workload} --chunk 512,2048 --scheduler vllm,sarathi")
    for name in ("vllm, 512", "vllm, 2,048", "sarathi, 512", "sarathi, 2,048"):
        assert f"  {name} " in both


def test_disaggregated_servers_are_compared_per_gpu() -> None:
    asked = f"{LOAD} --scheduler vllm,disaggregated --decode-gpus 2"
    one, pools = document(f"{asked} --json")["simulations"]
    assert (one["server"]["gpus"], pools["server"]["gpus"]) == (1, 3)
    assert "pools" not in one["server"] or one["server"]["pools"] is None
    lines = printed(asked).splitlines()
    assert lines[0].startswith("Llama-3.1-8B on NVIDIA H100")
    [row] = [line.split() for line in lines if line.startswith("  disaggregated")]
    rate = pools["result"]["output_tokens_per_s"]
    assert row[-3:] == ["3", f"{rate:,.0f}", f"{rate / 3:,.0f}"]


def test_budgets_of_one_step_are_named() -> None:
    text = printed("simulate interference --chunk engine,one-step")
    assert "  one step (8,032) " in text
    assert "  8,192 " in text
