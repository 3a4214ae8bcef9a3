"""How the servers of the end-to-end rows were started: formats of the cache, budgets, parallelism, waits."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from costmodel.deployment import Deployment
from costmodel.validation.datasets.end_to_end import EndToEndRow, end_to_end
from costmodel.validation.datasets.servers import Server, has_fp8_cache, server_of
from costmodel.validation.fitting.closed_loops import burst_prompts, deployment_of

GPT = EndToEndRow(
    name="row",
    model="openai/gpt-oss-120b",
    family="gpt-oss-120b",
    gpu="h200",
    engine="vllm",
    version="0.13.0",
    disaggregated=False,
    linear_dtype="bf16",
    expert_dtype="mxfp4",
    tp=2,
    pp=1,
    attention_dp=1,
    moe_tp=2,
    moe_ep=1,
    input_tokens=1024,
    output_tokens=1024,
    batch_size=16,
    concurrency=16,
    ttft_s=0.1,
    tpot_s=0.01,
    source="",
    protocol="InferenceX",
    final_test=False,
)
LARGE = replace(
    GPT, model="meta-llama/Llama-3.1-70B", family="Llama-3.1-70B", linear_dtype="fp8", expert_dtype="fp8", moe_tp=1
)
MINIMAX = replace(
    GPT, model="MiniMaxAI/MiniMax-M2.5", family="MiniMax-M2.5", gpu="b200", version="0.19.0", linear_dtype="fp8-block",
    expert_dtype="fp8-block", input_tokens=8192,
)  # fmt: skip
SMALL = replace(
    GPT, model="meta-llama/Llama-3.1-8B-Instruct", family="Llama-3.1-8B", gpu="h100-sxm", engine="trtllm", tp=1, moe_tp=1,
    expert_dtype="bf16", protocol="other",
)  # fmt: skip


def server(row: EndToEndRow, **changes: Any) -> Server:
    return server_of(replace(row, **changes))


def deployment(row: EndToEndRow, **changes: Any) -> Deployment:
    return deployment_of(replace(row, **changes))


@pytest.mark.parametrize(
    ("row", "changes", "fp8"),
    [
        (LARGE, {}, True),
        (LARGE, {"gpu": "b200", "engine": "trtllm"}, True),
        (GPT, {}, False),
        (GPT, {"engine": "trtllm"}, False),  # H200: never
        (GPT, {"gpu": "b200", "engine": "trtllm"}, True),
        (GPT, {"gpu": "b200"}, False),
        (GPT, {"gpu": "b200", "version": "0.15.1"}, True),
        (MINIMAX, {}, True),
        (MINIMAX, {"version": "0.17.0"}, False),
        (MINIMAX, {"gpu": "h200"}, False),
        (SMALL, {}, False),
        (SMALL, {"model": "nvidia/Llama-3.1-8B-Instruct-FP8"}, True),
    ],
)
def test_cache_in_8_bits(row: EndToEndRow, changes: dict[str, Any], fp8: bool) -> None:
    assert has_fp8_cache(replace(row, **changes)) is fp8
    assert server(row, **changes).kv_dtype == ("fp8" if fp8 else None)
    assert deployment(row, **changes).kv_dtype == ("fp8" if fp8 else "bf16")


@pytest.mark.parametrize(
    ("row", "changes", "budget"),
    [
        (GPT, {}, 8192),
        (GPT, {"engine": "trtllm"}, 16384),
        (SMALL, {}, 8192),  # not InferenceX's server
        (MINIMAX, {}, 2 * 8192),
        (MINIMAX, {"input_tokens": 1024}, 2 * 1024),
        (MINIMAX, {"version": "0.17.0"}, 8192),
        (MINIMAX, {"gpu": "h200"}, 8192),
    ],
)
def test_token_budgets(row: EndToEndRow, changes: dict[str, Any], budget: int) -> None:
    assert server(row, **changes).token_budget == budget


def test_prompts_are_held_back_where_the_script_says_so() -> None:
    held = replace(LARGE, engine="trtllm", tp=4)
    assert server(held).wait_steps == 20
    for change in ({"tp": 8}, {"engine": "vllm"}, {"input_tokens": 8192}, {"output_tokens": 8192}):
        assert server(held, **change).wait_steps == 0
    assert server(GPT, engine="trtllm").wait_steps == 0


def test_expert_parallelism() -> None:
    assert server(GPT).expert_parallel == 1
    assert server(GPT, moe_tp=1, moe_ep=2).expert_parallel == 2
    assert server(GPT, tp=4, moe_tp=2, moe_ep=2).expert_parallel == 1  # both at once: the rule of parallelism decides
    assert server(MINIMAX, tp=4, version="0.17.0").expert_parallel == 4
    assert server(MINIMAX, tp=4).expert_parallel == 1
    made = deployment(GPT, moe_tp=1, moe_ep=2)
    assert (made.tp, made.ep, made.gpus) == (2, 2, 2)


def test_lengths_and_prompts() -> None:
    drawn = server(GPT, input_tokens=8192)
    assert (drawn.input_tokens, drawn.output_tokens, drawn.prompts_per_client) == (0.9 * 8192, 0.9 * 1024, 10)
    stated = server(SMALL)
    assert (stated.input_tokens, stated.output_tokens) == (1024, 1024)


def test_one_client_queues_in_one_kind_of_run() -> None:
    assert server(SMALL).queued == 1
    for change in ({"engine": "vllm"}, {"protocol": "InferenceX"}, {"family": "Qwen3-32B"}):
        assert server(SMALL, **change).queued == 0


def test_prompts_of_the_first_burst_share_a_step() -> None:
    # 0.9·1,024 tokens each, 8,192 in a step; or as many as there are clients; or one that is longer than the budget.
    for changes, prompts in (({}, 8), ({"concurrency": 4, "batch_size": 4}, 4), ({"input_tokens": 16384}, 1)):
        row = replace(GPT, **changes)
        assert burst_prompts(row, server_of(row)) == prompts


def test_formats_of_the_weights() -> None:
    assert deployment(GPT).dtype == "mxfp4"
    assert deployment(LARGE).dtype == "fp8"
    assert deployment(MINIMAX).architecture.name == "MiniMax-M2"


def test_servers_of_the_measured_rows() -> None:
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed (extra: silicon)")
    served = [row for row in end_to_end() if not row.disaggregated and not row.final_test]
    servers = Counter((server_of(row).wait_steps, server_of(row).queued) for row in served)
    assert set(servers) == {(0, 0), (0, 1), (20, 0)}
    assert sum(map(has_fp8_cache, served)) > 500
    assert {row.family for row in served if server_of(row).queued} == {"Llama-3.1-8B"}
    assert {(row.engine, row.family) for row in served if server_of(row).wait_steps} == {("trtllm", "Llama-3.1-70B")}
