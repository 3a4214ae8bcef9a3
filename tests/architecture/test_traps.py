"""The traps that public calculators fell into, as far as they concern architectures. Each names the public report."""

import pytest

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    kv_bytes_per_token,
    kv_elements_per_token,
    parameter_table,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.source import load_model, preset_config

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "head_dim", "wrong"),
    [
        ("Mistral-Small-24B-2501", 128, 160),
        ("gpt-oss-20b", 64, 45),
        ("gemma-3-12b-it", 256, 240),
        ("Qwen3-4B", 128, 80),
    ],
)
def test_head_dim_is_read_and_not_divided(name, head_dim, wrong):
    """https://github.com/NVIDIA/Model-Optimizer/issues/2482 and https://github.com/LMCache/LMCache/issues/688."""
    arch, _ = load_model(name)
    attention = arch.kinds[0].attention
    assert attention.head_dim == attention.value_head_dim == head_dim
    assert arch.hidden // attention.query_heads == wrong


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_latent_attention_caches_576_elements_once_on_every_gpu(tp):
    """https://github.com/LMCache/LMCache/pull/694 and /issues/2132: 61 · 576 · 2 B, no factor 2, replicated."""
    arch, _ = load_model("DeepSeek-V3")
    assert kv_elements_per_token(arch.kinds[0].attention, tp) == 576
    assert kv_bytes_per_token(arch, 2, tp) == 70_272


def test_sliding_layers_cost_like_full_ones_at_short_context():
    """https://github.com/alvarobartt/hf-mem/issues/60: gpt-oss-120b 73,728 B/token, not 36,864."""
    arch, _ = load_model("gpt-oss-120b")
    assert [kind.attention.window for kind in arch.kinds] == [128, None]
    assert arch.pattern == (0, 1) * 18
    assert kv_bytes_per_token(arch, 2) == 73_728


def test_kv_uses_kv_heads_and_not_hidden():
    """https://github.com/vllm-project/vllm/issues/22291: Qwen2.5-7B 2 · 28 · 4 · 128 · 2 B."""
    assert kv_bytes_per_token(load_model("Qwen2.5-7B")[0], 2) == 57_344
    assert kv_bytes_per_token(load_model("Llama-3.1-8B")[0], 2) == 131_072


def test_gpus_beyond_the_kv_heads_store_heads_twice():
    """https://github.com/tenstorrent/vllm/pull/50: TP 8 on 4 KV heads."""
    arch, _ = load_model("Qwen2.5-7B")
    assert kv_bytes_per_token(arch, 2, 4) == 57_344 / 4
    assert kv_bytes_per_token(arch, 2, 8) == 57_344 / 4


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ],
)
def test_quantised_weights_keep_a_16_bit_cache(section):
    """https://github.com/redhat-performance/configiq/issues/112."""
    arch = architecture_from_config({**preset_config("Qwen3-32B"), "quantization_config": section}, "quantised")
    assert arch.quantization
    assert arch.dtype == "bf16"
    assert arch.kv_dtype is None


def test_memory_needs_all_experts():
    """https://github.com/jranaraki/vllm-fit/issues/27: Mixtral 47B in memory, 13B active."""
    arch, _ = load_model("Mixtral-8x7B-v0.1")
    assert total_parameters(arch) / 1e9 == pytest.approx(47, rel=0.01)
    assert active_parameters(arch) / 1e9 == pytest.approx(13, rel=0.01)
    assert checkpoint_bytes(arch) == 2 * total_parameters(arch)


def test_tied_embeddings_are_in_memory_once():
    """https://github.com/pytorch/torchtitan/pull/3225 and https://github.com/huggingface/trl/pull/6707."""
    arch, _ = load_model("Llama-3.2-1B")
    assert arch.tied_embeddings
    modules = [row.module for row in parameter_table(arch)]
    assert modules.count("embedding") == 1
    assert "lm_head" not in modules
    untied = architecture_from_config({**preset_config("Llama-3.2-1B"), "tie_word_embeddings": False}, "untied")
    assert total_parameters(untied) - total_parameters(arch) == 128_256 * 2048


def llama_405b_fp8(kv_heads):
    """Rebuild Llama-3.1-405B-FP8 as published in July 2024.

    Only feed-forwards are converted, and not those of the first and last layer (The Llama 3 Herd of Models, section 6.2).
    """
    excluded = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(126) for p in "qkvo"]
    excluded += [f"model.layers.{i}.mlp.{p}_proj" for i in (0, 125) for p in ("gate", "up", "down")]
    section = {
        "quant_method": "fbgemm_fp8",
        "activation_scale_ub": 1200.0,
        "modules_to_not_convert": [*excluded, "lm_head"],
    }
    config = {**preset_config("Llama-3.1-405B"), "num_key_value_heads": kv_heads, "quantization_config": section}
    return architecture_from_config(config, "Llama-3.1-405B-FP8")


def test_an_fp8_checkpoint_need_not_have_a_byte_per_parameter():
    """https://github.com/vllm-project/vllm/issues/6746, and 57.7485 GiB on each of 8 GPUs in /issues/6689.

    The first release stored 16 KV heads; https://github.com/ollama/ollama/issues/6303 reports the change to 8.
    """
    measured = 8 * 57.7485
    first, later = llama_405b_fp8(16), llama_405b_fp8(8)
    assert checkpoint_bytes(first) / GIB == pytest.approx(measured, rel=0.002)
    assert checkpoint_bytes(later) / GIB == pytest.approx(measured, rel=0.02)
    assert total_parameters(later) / GIB == pytest.approx(378, rel=0.001)  # what one byte per parameter would give
    kinds = [later.kinds[i].formats for i in later.pattern]
    assert [kind.feed_forward.name for kind in kinds] == ["bf16"] + ["fp8"] * 124 + ["bf16"]
    assert {kind.attention.name for kind in kinds} == {"bf16"}
    assert not kinds[1].feed_forward.weight_only
