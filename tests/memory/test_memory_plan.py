"""``plan_memory``: log lines, what binds, advice, and inputs that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.engine import GIB
from costmodel.hardware.errors import InputError
from costmodel.memory.planning import plan_memory
from tests.strategies import examples


def test_the_lines_that_vllm_prints() -> None:
    plan = costmodel.plan_memory(gpu="h100", engine_version="0.19", gpu_memory_utilization=0.95, max_model_len=8192)
    memory = plan.memory
    # what 0.19.0 printed for this (llm-d planner, accuracy report): 14.99 GiB, 58.11 GiB, 476,000 tokens, 58.11x
    assert plan.log[0] == "Model loading took 14.99 GiB memory"
    assert memory.kv_available_bytes / GIB == pytest.approx(58.11, abs=0.03)
    assert memory.kv_tokens == pytest.approx(476_000, rel=5e-4)
    assert memory.max_concurrency == pytest.approx(58.11, rel=5e-4)
    assert plan.log[-2:] == (
        f"GPU KV cache size: {memory.kv_tokens:,} tokens",
        f"Maximum concurrency for 8,192 tokens per request: {memory.max_concurrency:.2f}x",
    )


def test_tokens_and_concurrency_are_vllm_s_whole_numbers() -> None:
    memory = plan_memory(max_model_len=20_001, kv_cache_memory_bytes=1_000_000_000).memory
    blocks = 1_000_000_000 // (16 * 131_072)
    assert memory.kv_blocks == blocks == 476
    assert memory.kv_blocks_per_sequence == 1251
    assert memory.max_concurrency == blocks / 1251
    assert memory.kv_tokens == int(blocks / 1251 * 20_001)
    assert not memory.fits


def test_an_old_release_counts_tokens_of_hybrids_by_group() -> None:
    options: dict[str, Any] = {"model": "gemma-3-27b-it", "kv_cache_memory_bytes": 2**34, "max_model_len": 32_768}
    old, new = plan_memory(**options, engine_version="0.19").memory, plan_memory(**options).memory
    assert old.kv_blocks == new.kv_blocks == 2**34 // (10 * 16 * 8192)
    assert old.kv_tokens == old.kv_blocks // 7 * 16
    assert new.kv_tokens == int(new.max_concurrency * 32_768)


def test_the_3090_that_refuses_to_start() -> None:
    # vLLM issue 10517: 29,000 tokens do not fit, 20,000 do (1.56 at once), and 35,000 do with chunks of 512
    asked: dict[str, Any] = {"gpu": "rtx-3090", "engine_version": "0.6.4"}
    assert plan_memory(**asked, max_model_len=20_000).memory.max_concurrency == pytest.approx(1.56, abs=0.03)
    refused = plan_memory(**asked, max_model_len=29_000)
    assert not refused.memory.fits
    assert refused.memory.max_concurrency == pytest.approx(0.82, abs=0.03)
    assert plan_memory(**asked, max_model_len=35_000, max_num_batched_tokens=512, max_num_seqs=4).memory.fits


def test_quantised_weights_do_not_quantise_the_cache() -> None:
    for dtype in ("fp8", "int4"):
        assert plan_memory(dtype=dtype).memory.kv_bytes_per_token == 131_072
    assert plan_memory(kv_dtype="fp8").memory.kv_bytes_per_token == 65_536


def test_a_pipeline_has_the_blocks_of_its_poorest_stage() -> None:
    plan = plan_memory(model="Llama-3.1-70B", pp=4, max_model_len=8192)
    assert len(plan.stages) == 4
    assert plan.memory.kv_blocks == min(stage.kv_blocks for stage in plan.stages)
    # the last stage has lm_head and the sampler
    assert plan.memory.kv_available_bytes == plan.stages[3].kv_available_bytes
    for stage in plan.stages:
        assert stage.kv_blocks == int(stage.kv_available_bytes // stage.kv_bytes_per_block)


def test_weights_add_up() -> None:
    for options in ({}, {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8}, {"model": "gpt-oss-20b", "pp": 2}):
        plan = plan_memory(**options)  # type: ignore[arg-type]
        assert sum(row.bytes for row in plan.weights) == pytest.approx(plan.memory.weights_bytes)


def test_advice_fits_and_is_the_nearest() -> None:
    asked: dict[str, Any] = {"model": "gemma-3-27b-it"}
    plan = plan_memory(**asked)
    assert not plan.memory.fits
    flags = {
        "--max-model-len": ("max_model_len", int),
        "--gpu-memory-utilization": ("gpu_memory_utilization", float),
        "--max-num-seqs": ("max_num_seqs", int),
        "--max-num-batched-tokens": ("max_num_batched_tokens", int),
        "--kv-dtype": ("kv_dtype", str),
        "--dtype": ("dtype", str),
        "--tp": ("tp", int),
    }
    assert {each.change for each in plan.advice} == set(flags)
    for each in plan.advice:
        name, kind = flags[each.change]
        changed = plan_memory(**asked, **{name: kind(each.value)})
        assert changed.memory.fits
        assert changed.memory.max_concurrency == each.max_concurrency
    length = int(plan.advice[0].value)
    assert plan.memory.max_model_len == length
    assert not plan_memory(**asked, max_model_len=length + 1).memory.fits


@pytest.mark.parametrize(
    ("model", "gpu", "shorter", "whole"), [("gemma-3-27b-it", "a100-40gb", 2, 4), ("gpt-oss-120b", "rtx-4090", 4, 8)]
)
def test_fewer_gpus_may_hold_a_shorter_sequence(model: str, gpu: str, shorter: int, whole: int) -> None:
    first, second = (each for each in plan_memory(model, gpu).advice if each.change == "--tp")
    assert (first.value, second.value, second.max_model_len) == (str(shorter), str(whole), None)
    length = first.max_model_len
    assert length == plan_memory(model, gpu, tp=shorter).memory.max_model_len > 0
    made = plan_memory(model, gpu, tp=shorter, max_model_len=length)
    assert made.memory.fits
    assert made.memory.max_concurrency == first.max_concurrency
    assert plan_memory(model, gpu, tp=shorter // 2).memory.max_model_len == 0


def test_no_dtype_of_as_many_bits_is_advised() -> None:
    assert "--dtype" not in {each.change for each in plan_memory("gpt-oss-120b", "h100").advice}  # mxfp4; not int4
    [each] = [each for each in plan_memory("gemma-3-27b-it", "a100-40gb").advice if each.change == "--dtype"]
    assert each.value == "int4"  # bf16; fp8 leaves too little


def test_a_model_that_leaves_no_room_names_what_takes_it() -> None:
    plan = plan_memory(model="Llama-3.3-70B-Instruct")
    assert "weights of 131.4 GiB" in plan.binds
    assert "72.8 GiB" in plan.binds
    assert {each.change: each.value for each in plan.advice}["--tp"] == "4"
    assert plan.log[-1].startswith("Available KV cache memory: -")


def test_what_is_said_of_other_engines() -> None:
    sglang = plan_memory(engine="sglang")
    assert sglang.log[0].startswith(f"KV Cache is allocated. #tokens: {sglang.memory.kv_tokens}, K size: ")
    trtllm = plan_memory(engine="trtllm")
    assert trtllm.log[-1] == f"max_tokens={trtllm.memory.kv_tokens}"
    assert trtllm.memory.kv_block_tokens == 32
    assert sglang.engine.version is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_num_seqs": 100, "max_num_batched_tokens": 50}, "use --max-num-seqs 50"),
        ({"max_model_len": 200_000}, "more than the 131,072"),
        ({"gpu_memory_utilization": 1.5}, "at most 1"),
        ({"gpu_memory_utilization": 0}, "above zero"),
        ({"block_size": 0}, "at least 1"),
        ({"engine": "vlm"}, "did you mean vllm"),
        ({"engine": "sglang", "engine_version": "0.5"}, "leave it out"),
        ({"engine": "trtllm", "kv_cache_memory_bytes": 10**9}, "vLLM's"),
        ({"engine_version": "new"}, "must be a release"),
        ({"tp": 3}, "possible: 1, 2, 4"),
    ],
)
def test_inputs_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_memory(**options)


@examples(30)
@given(st.integers(64, 16_384), st.integers(1, 64), st.floats(0.3, 0.98), st.sampled_from(["0.11", "0.19", "0.32"]))
def test_more_memory_never_holds_less(tokens: int, rows: int, share: float, version: str) -> None:
    asked: dict[str, Any] = {"engine_version": version, "max_num_batched_tokens": tokens, "max_num_seqs": rows}
    base = plan_memory(gpu_memory_utilization=share, **asked).memory
    assert plan_memory(gpu_memory_utilization=share + 0.02, **asked).memory.kv_blocks >= base.kv_blocks
    assert plan_memory(gpu="h200", gpu_memory_utilization=share, **asked).memory.kv_blocks >= base.kv_blocks
    assert base.fits == (base.kv_blocks_per_sequence + 1 <= base.kv_blocks)


def test_a_given_kv_cache_must_fit_beside_the_rest() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "max_model_len": 8192}
    plan = plan_memory(**asked, kv_cache_memory_bytes=500 * GIB)
    assert not plan.memory.fits
    assert "for a KV cache of 500.00 GiB" in plan.binds
    (smaller,) = (each for each in plan.advice if each.change == "--kv-cache-memory-gib")
    largest = float(smaller.value)
    assert plan_memory(**asked, kv_cache_memory_bytes=int(largest * GIB)).memory.fits
    assert not plan_memory(**asked, kv_cache_memory_bytes=int((largest + 0.01) * GIB)).memory.fits
    assert plan_memory(**asked, kv_cache_memory_bytes=40 * GIB, gpu_memory_utilization=0.5).memory.fits  # it has no say


def test_no_kv_cache_is_small_enough_beside_weights_that_do_not_fit() -> None:
    plan = plan_memory("Llama-3.1-70B", "t4", kv_cache_memory_bytes=4 * GIB, max_model_len=4096)
    assert not plan.memory.fits
    assert "leave no room for a KV cache of 4.00 GiB" in plan.binds
    assert "--kv-cache-memory-gib" not in [each.change for each in plan.advice]


def test_every_stage_of_a_pipeline_has_to_hold_a_given_kv_cache() -> None:
    # Llama-3.2-1B in 3 stages of 5, 6 and 5 layers: the last has a table and the sampler beside its layers
    asked: dict[str, Any] = {"model": "Llama-3.2-1B", "gpu": "t4", "pp": 3, "dtype": "fp16", "max_model_len": 8192}
    plan = plan_memory(**asked)
    left = min(
        plan.memory.total_bytes
        - each.weights_bytes
        - each.activation_bytes
        - each.non_torch_bytes
        - each.cuda_graph_bytes
        for each in plan.stages
    )
    for size, fits in ((int(left), True), (int(left) + 2**20, False)):
        assert plan_memory(**asked, kv_cache_memory_bytes=size).memory.fits is fits


@pytest.mark.parametrize(
    ("model", "gpu", "length"),
    [
        ("Llama-3.1-8B", "h100", 4096),
        ("Llama-3.1-8B", "h100", 131_072),
        ("Llama-3.1-8B", "rtx-4090", 43_000),
        ("gpt-oss-20b", "h100", 90_000),
    ],
)
def test_a_kv_cache_given_too_small_is_told_the_smallest_that_is_enough(model: str, gpu: str, length: int) -> None:
    asked: dict[str, Any] = {"model": model, "gpu": gpu, "max_model_len": length}
    plan = plan_memory(**asked, kv_cache_memory_bytes=GIB // 1000)
    [value] = [float(each.value) for each in plan.advice if each.change == "--kv-cache-memory-gib"]
    assert plan_memory(**asked, kv_cache_memory_bytes=int(value * GIB)).memory.fits
    assert not plan_memory(**asked, kv_cache_memory_bytes=int((value - 0.01) * GIB)).memory.fits


@pytest.mark.parametrize("fraction", [0.0001, 0.3, 0.425])
def test_the_smallest_fraction_of_memory_that_is_enough(fraction: float) -> None:
    plan = plan_memory(gpu_memory_utilization=fraction)
    [value] = [float(each.value) for each in plan.advice if each.change == "--gpu-memory-utilization"]
    assert plan_memory(gpu_memory_utilization=value).memory.fits
    assert not plan_memory(gpu_memory_utilization=value - 0.01).memory.fits
