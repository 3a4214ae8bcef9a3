"""Memory of one GPU, against what engines logged. Sources of measured numbers: llm-d planner (vLLM 0.11, H100 of 79.18 GiB,
utilisation 0.9), docs/empirical-vllm-memory-results.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.source import preset_config
from costmodel.deployment import Deployment, deploy, stage_layers
from costmodel.documents import MemoryInfo
from costmodel.engine import GIB
from costmodel.memory import (
    BLOCK_TOKENS,
    UTILISATION,
    Memory,
    memory_of,
    stage_kv_bytes,
    stage_patterns,
    stage_weight_bytes,
)
from costmodel.memory.blocks import block_bytes, kv_groups, sequence_blocks
from costmodel.memory.engines import default_settings, stage_budget
from costmodel.memory.planning import plan_memory
from costmodel.prediction import predict
from tests.strategies import deployments, examples

FP8_DYNAMIC = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True
            },
        }
    },
}  # fmt: skip
"""What RedHatAI's FP8-dynamic checkpoints say of themselves."""


def predict_measured(model: str, tmp_path: Path) -> MemoryInfo:
    """Return the memory of a measured configuration at vLLM's default budget; ``+fp8`` writes an FP8-dynamic checkpoint."""
    tp = 1
    if model.endswith("+fp8"):
        config: dict[str, Any] = preset_config(model.removesuffix("+fp8")) | {"quantization_config": FP8_DYNAMIC}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        model, tp = str(path), 2
    return predict(model=model, gpu="h100", tp=tp, chunk="engine").memory


@pytest.mark.parametrize(
    ("model", "weights_gib", "tolerance"),
    [
        ("Llama-3.1-8B", 14.99, 0.02),
        ("Qwen3-32B", 61.03, 0.02),
        ("Llama-3.3-70B-Instruct+fp8", 33.88, 0.02),
        # The checkpoint holds 12.82 GiB; loaded, the experts' summed dimension is padded from 2,880 to 3,072.
        ("gpt-oss-20b", 13.47, 0.02),
    ],
)
def test_weights_against_what_vllm_logged(model: str, weights_gib: float, tolerance: float, tmp_path: Path) -> None:
    assert predict_measured(model, tmp_path).weights_bytes / GIB == pytest.approx(weights_gib, rel=tolerance)


def test_start_up_rule_by_hand() -> None:
    # total·utilisation − weights − activations − non-torch − CUDA graphs (vllm/v1/worker/gpu_worker.py)
    memory = predict().memory
    assert memory.usable_bytes == pytest.approx(79.18 * GIB * UTILISATION)
    # every parameter once, and sines and cosines of 131,072 positions
    assert memory.weights_bytes == 2 * (8_030_261_248 + 131_072 * 128)
    assert memory.kv_available_bytes == pytest.approx(
        memory.usable_bytes
        - memory.weights_bytes
        - memory.activation_bytes
        - memory.non_torch_bytes
        - memory.cuda_graph_bytes
    )
    assert memory.kv_bytes_per_token == 131_072
    # whole blocks of 16 tokens
    assert memory.kv_tokens == memory.kv_available_bytes // (131_072 * 16) * 16


def test_70b_in_bf16_does_not_fit_one_h100_and_says_so() -> None:
    prediction = predict(model="Llama-3.3-70B-Instruct", gpu="h100")
    assert not prediction.memory.fits
    assert prediction.memory.kv_tokens == 0
    (text,) = (text for text in prediction.warnings if text.startswith("does not fit"))
    for part in ("131.4 GiB", "72.8 GiB", "--tp", "--dtype"):
        assert part in text
    two = predict(model="Llama-3.3-70B-Instruct", gpu="h100", tp=4)
    assert two.memory.fits
    assert not any("does not fit" in text for text in two.warnings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # 14 B of sampler for each of 40,000 sequences and 128,256 entries of the vocabulary, 8 kB per token: 67 + 1.7 GiB
        ({"prompt": 100_000, "streams": 40_000}, ("a sampler of 68.7 GiB for its sequences and weights of 15.0 GiB", "fewer streams")),
        # 108 KiB for each of 900,032 tokens
        ({"prompt": 900_000}, ("activations of 92.8 GiB for 900,032 tokens per step and weights of 15.0 GiB", "--chunk")),
        # Neither alone: weights that would fit, and what is beside them.
        ({"model": "Llama-3.1-70B", "dtype": "fp8", "streams": 3000}, ("and a sampler of 5.4 GiB", "--tp")),
    ],
)  # fmt: skip
def test_what_takes_the_room_is_named(options: dict[str, Any], said: tuple[str, ...]) -> None:
    prediction = predict(**options)
    (text,) = (text for text in prediction.warnings if text.startswith("does not fit"))
    for part in said:
        assert part in text


def test_a_workload_that_overflows_the_cache_says_so() -> None:
    # 1,000 streams at 8,000 tokens need 1000·8016·131,072 B = 979 GiB.
    prediction = predict(streams=1000, context=8000)
    assert not prediction.memory.fits
    (text,) = (text for text in prediction.warnings if text.startswith("does not fit"))
    assert "KV cache" in text


# --- KV cache ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [(0, 0), (1, 1), (16, 1), (17, 2), (500, 32), (501, 32), (512, 32), (513, 33), (15_049, 941)],
)
def test_sequences_take_whole_blocks(tokens: int, blocks: int) -> None:
    # vLLM's block of 16 tokens, rounded up per sequence: 15,049 tokens are 941 blocks (118 of 128).
    groups = kv_groups(deploy("Llama-3.1-8B", "h100"))
    assert sequence_blocks(groups, tokens, 1) * block_bytes(groups) == blocks * 16 * 131_072


def test_the_workload_needs_every_sequence_in_whole_blocks() -> None:
    # 32 streams at 501 tokens: 32 blocks each; a prompt of 8,001 tokens: 501 blocks.
    assert predict(8001).memory.kv_needed_bytes == (32 * 32 + 501) * 16 * 131_072
    assert predict(8001, prompts=3).memory.kv_needed_bytes == (32 * 32 + 3 * 501) * 16 * 131_072


def test_windowed_layers_keep_their_window_and_the_chunk() -> None:
    # gpt-oss-20b: 12 layers of window 128 and 12 full, 2·8·64·2 B = 2,048 B per token and layer.
    deployment = deploy("gpt-oss-20b", "h100")
    assert stage_kv_bytes(deployment, 0) == 24 * 2048  # at short context like full layers
    groups = kv_groups(deployment)
    assert block_bytes(groups) == 12 * 2048 * 16
    assert sequence_blocks(groups, 100, 2048) == 7 + 7 + 1  # a window may begin inside a block
    assert sequence_blocks(groups, 100_000, 2048) == 6250 + (128 + 2048) // 16 + 1
    assert sequence_blocks(groups, 100_000, 1) == 6250 + 128 // 16 + 1


def test_mla_keeps_its_latent_on_every_gpu() -> None:
    # 576·2 B·61 layers = 70,272 B per token, whatever the TP.
    for tp in (1, 8, 16):
        assert stage_kv_bytes(deploy("DeepSeek-V3", "h200", tp=tp), 0) == 70_272


@pytest.mark.parametrize(("tp", "per_token"), [(1, 57_344), (2, 28_672), (4, 14_336)])
def test_kv_heads_divide_by_tensor_parallelism(tp: int, per_token: int) -> None:
    # Qwen2.5-7B: 2·28·4·128·2 = 57,344 B (vLLM issue 22291).
    assert stage_kv_bytes(deploy("Qwen2.5-7B", "h100", tp=tp), 0) == per_token


def test_kv_heads_never_divide_below_one() -> None:
    # Qwen3-30B-A3B has 4 KV heads: at TP 8 each GPU still holds one, 2·128·2·48 B.
    assert stage_kv_bytes(deploy("Qwen3-30B-A3B", "h100", tp=8), 0) == 24_576


# --- pipelines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (32, 1, (32,)),
        (32, 4, (8, 8, 8, 8)),
        (61, 4, (15, 15, 16, 15)),
        (32, 3, (11, 11, 10)),
        (7, 4, (2, 2, 2, 1)),
        (4, 4, (1, 1, 1, 1)),
    ],
)
def test_stages_divide_the_layers_as_vllm_does(layers: int, stages: int, sizes: tuple[int, ...]) -> None:
    # get_pp_indices (vllm/distributed/utils.py): one layer more for the last but one stage, then for those before it.
    assert stage_layers(layers, stages) == sizes


def tokens_of_stages(deployment: Deployment, budget: int = 2048) -> list[float]:
    """Return, per stage, the tokens whose cache fits beside the stage's weights, in whole blocks."""
    settings = replace(default_settings(deployment), token_budget=budget)
    tokens = []
    for stage in range(deployment.pp):
        available = max(stage_budget(deployment, stage, settings).available, 0)
        tokens.append(available // (stage_kv_bytes(deployment, stage) * BLOCK_TOKENS) * BLOCK_TOKENS)
    return tokens


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.3-70B-Instruct"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_capacity_of_a_pipeline_is_its_smallest_stage(model: str, pp: int) -> None:
    # Each stage holds its own layers; capacity is the minimum over stages (vLLM issue 34076).
    deployment = deploy(model, "h200", pp=pp)
    assert memory_of(deployment, 32, 500, 8000, 1, 2048).kv_tokens == min(tokens_of_stages(deployment))


def test_capacity_of_a_pipeline_of_unequal_stages() -> None:
    # Llama-3.2-1B in 3 stages: 5, 6 and 5 layers; the middle one has fewer weights (no table) but more cache per token.
    deployment = deploy("Llama-3.2-1B", "h100", pp=3)
    assert memory_of(deployment, 1, 10, 10, 1, 2048).kv_tokens == min(tokens_of_stages(deployment))


@examples(60)
@given(deployments())
def test_stages_hold_the_whole_model_once(deployment: Deployment) -> None:
    # Σ over stages = one stage; a tied table is held by first and last.
    whole = replace(deployment, pp=1)
    patterns = stage_patterns(deployment)
    assert tuple(kind for pattern in patterns for kind in pattern) == deployment.architecture.pattern
    held = sum(stage_weight_bytes(deployment, stage) for stage in range(deployment.pp))
    architecture = deployment.architecture
    table = architecture.vocabulary * architecture.hidden / deployment.tp
    copied = table * deployment.format_bytes[architecture.embedding_format]
    if architecture.tied_embeddings and deployment.pp > 1:
        held -= copied
    assert held == pytest.approx(stage_weight_bytes(whole, 0), rel=1e-9)
    cache = sum(stage_kv_bytes(deployment, stage) for stage in range(deployment.pp))
    assert cache == pytest.approx(stage_kv_bytes(whole, 0))


# --- what must hold always -----------------------------------------------------------------------------------------------


@examples(80)
@given(
    deployments(),
    st.integers(1, 500),
    st.integers(0, 20_000),
    st.integers(1, 20_000),
    st.integers(1, 4),
    st.integers(1, 500),
)
def test_more_workload_needs_more_cache(
    deployment: Deployment, streams: int, context: int, prompt: int, prompts: int, more: int
) -> None:
    base = memory_of(deployment, streams, context, prompt, prompts, 2048)
    for load in (
        (streams + more, context, prompt, prompts),
        (streams, context + more, prompt, prompts),
        (streams, context, prompt + more, prompts),
        (streams, context, prompt, prompts + 1),
    ):
        other = memory_of(deployment, *load, 2048)
        assert slack(other) <= slack(base)
    assert base.fits == (base.kv_blocks_needed <= base.kv_blocks)
    assert base.kv_needed_bytes <= max(base.kv_available_bytes, 0) or not base.fits


def slack(memory: Memory) -> float:
    """Return what is left of the room for the cache [B]."""
    return memory.kv_available_bytes - memory.kv_needed_bytes


@pytest.mark.parametrize(
    ("prompt", "chunk", "budget"), [(7060, None, 8192), (7060, "engine", 8192), (7060, 2048, 2048)]
)
def test_a_server_that_does_not_start_with_the_models_own_length_is_said(
    prompt: int, chunk: int | str | None, budget: int
) -> None:
    """With the length that ``plan_memory`` gives for the same token budget."""
    asked = {"model": "gpt-oss-120b", "gpu": "h100"}
    found = predict(prompt, chunk=chunk, **asked)
    plan = plan_memory(max_num_batched_tokens=budget, **asked)
    assert found.memory.fits
    assert not plan.memory.fits
    text = f"vLLM will not start without --max-model-len {plan.memory.max_model_len} or less"
    assert len([warning for warning in found.warnings if warning.startswith(text)]) == 1


@pytest.mark.parametrize(
    "asked", [{}, {"model": "gpt-oss-120b", "engine": "sglang"}, {"model": "Llama-3.3-70B-Instruct"}]
)
def test_nothing_is_said_of_a_start_where_there_is_nothing_to_say(asked: dict[str, Any]) -> None:
    """It starts; the engine is another; or nothing fits at all, which is said instead."""
    assert not any("will not start" in warning for warning in predict(**asked).warnings)
