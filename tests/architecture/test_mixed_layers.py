"""Models whose layers differ, or are recurrent: parameters against the reference classes, states and caches against a hand count."""

import pytest

from costmodel.architecture.counts import (
    active_parameters,
    index_bytes_per_token,
    kv_bytes_per_token,
    layer_parameters,
    state_bytes,
    text_parameters,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.equations.work import LocalChunks
from costmodel.hardware.errors import InputError, UnsupportedError
from tests.architecture.mixed_configs import GEMMA4, GLM52, LLAMA4, NAS, NEMOTRON3, QWEN35, QWEN_NEXT, layers_of

# Counted by the Hugging Face transformers classes (5.19.0) on the meta device, from configurations of the same shape.


def test_a_gated_delta_net_by_hand():
    """Qwen3-Next-80B-A3B, one recurrent layer: d 2048, 16 key heads and 32 value heads of 128, a convolution over 4."""
    arch = architecture_from_config(QWEN_NEXT, "next")
    kind = next(kind for kind in arch.kinds if kind.state is not None)
    keys, values = 16 * 128, 32 * 128
    mixer = 2048 * (2 * keys + 2 * values) + 2048 * 2 * 32 + values * 2048
    small = 4 * (2 * keys + values) + 2 * 32 + 128
    experts = 512 * 3 * 2048 * 512 + 2048 * 512 + 3 * 2048 * 512 + 2048
    assert layer_parameters(kind, 2048) == mixer + small + experts + 2 * 2048
    assert kind.attention.kind == "none"


def test_qwen3_next_80b_is_as_large_as_its_name():
    """https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct: 80B total, 3B activated, 79B without embeddings."""
    arch = architecture_from_config(QWEN_NEXT, "next")
    assert (
        total_parameters(arch) == 79_674_391_296
    )  # the class; the checkpoint has a multi-token-prediction layer besides
    assert active_parameters(arch) == pytest.approx(3.3e9 + 2 * 151_936 * 2048, rel=0.2)
    assert layers_of(arch) == {"gdn": 36, "gqa": 12}


def test_a_state_and_a_cache_by_hand():
    """Qwen3-Next: 36 states of 32 × 128 × 128 in 16 bits and 3 inputs of 8,192 channels; 12 layers of two KV heads of 256."""
    arch = architecture_from_config(QWEN_NEXT, "next")
    assert state_bytes(arch) == 36 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)
    assert kv_bytes_per_token(arch) == 12 * 2 * 2 * 256 * 2
    doubled = state_bytes(arch, tp=2)
    assert doubled == state_bytes(arch) / 2


def test_the_state_of_qwen35_is_in_32_bits():
    config = QWEN35["text_config"]
    arch = architecture_from_config(QWEN35, "qwen3.5")
    recurrent = sum(kind.state is not None for kind in (arch.kinds[index] for index in arch.pattern))
    heads = config["linear_num_value_heads"]
    conv = 2 * 16 * 128 + heads * 128
    assert state_bytes(arch) == recurrent * (heads * 128 * 128 * 4 + 3 * conv * 2)


def test_a_mamba_2_layer_by_hand():
    """Nemotron 3 Super: d 4096, 128 heads of 64, 8 groups of 128 states, a convolution over 4 with biases."""
    arch = architecture_from_config(NEMOTRON3, "nemotron")
    kind = next(kind for kind in arch.kinds if kind.state is not None)
    inner, groups = 128 * 64, 2 * 8 * 128
    mixer = 4096 * (2 * inner + groups + 128) + inner * 4096
    small = (4 + 1) * (inner + groups) + 3 * 128 + inner
    assert layer_parameters(kind, 4096) == mixer + small + 4096
    assert kind.mixers == 1
    assert state_bytes(arch) == 40 * (128 * 64 * 128 * 4 + 3 * (inner + groups) * 2)


def test_experts_in_a_latent_space_by_hand():
    """Nemotron 3 Super: 512 experts of 1024 → 2688 → 1024, two projections, a shared expert of 5376 on d 4096, a router with bias."""
    arch = architecture_from_config(NEMOTRON3, "nemotron")
    kind = next(kind for kind in arch.kinds if kind.feed_forward.kind == "moe")
    experts = 512 * 2 * 1024 * 2688
    rest = 2 * 4096 * 1024 + 2 * 4096 * 5376 + 512 * 4096 + 512
    assert layer_parameters(kind, 4096) == experts + rest + 4096
    # https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16: 120B, 12B active without the embedding.
    assert total_parameters(arch) == 120_668_687_360 + 40 * 512
    assert active_parameters(arch) == pytest.approx(12e9 + 131_072 * 4096, rel=0.03)


def test_an_indexer_by_hand_and_layers_that_take_over_its_choice():
    """GLM-5.2: 32 heads of 128 from queries of rank 2048, one key from d 6144, a weight per head; every fourth layer after the third."""
    arch = architecture_from_config(GLM52, "glm")
    kinds = [arch.kinds[index] for index in arch.pattern]
    own = [kind for kind in kinds if kind.attention.index_heads]
    taken = next(kind for kind in kinds if not kind.attention.index_heads and kind.feed_forward.kind == "moe")
    given = next(kind for kind in own if kind.feed_forward.kind == "moe")
    indexer = 2048 * 32 * 128 + 6144 * 128 + 6144 * 32 + 2 * 128
    assert layer_parameters(given, 6144) - layer_parameters(taken, 6144) == indexer
    assert total_parameters(arch) == 743_377_000_704 + 75 * 256  # the router's correction bias is a buffer of the class
    assert index_bytes_per_token(given.attention) == 128 + 4
    assert index_bytes_per_token(taken.attention) == 0
    assert kv_bytes_per_token(arch) == 78 * 576 * 2 + len(own) * 132


def test_llama_4_by_hand():
    """Maverick: experts in every other layer, three layers of chunks to a full one; 400B, 17B active (its model card)."""
    arch = architecture_from_config(LLAMA4, "llama")
    assert text_parameters(arch) == 400_711_848_960
    assert active_parameters(arch) == pytest.approx(17.2e9, rel=0.01)
    windows = [arch.kinds[index].attention.window for index in arch.pattern]
    assert windows[:4] == [LocalChunks(8192)] * 3 + [None]
    assert sum(arch.kinds[index].feed_forward.kind == "moe" for index in arch.pattern) == 24
    assert any("vision" in note for note in arch.notes)


def test_gemma_4_by_hand():
    """26B-A4B: full layers of 2 KV heads of 512 whose values are their keys, sliding ones of 8 of 256; experts beside a dense half."""
    arch = architecture_from_config(GEMMA4, "gemma")
    assert (
        total_parameters(arch) == 25_805_933_872 + 30 + 2 * 1152
    )  # scalars of layers, mean and scale of the tower: buffers
    full = next(kind for kind in arch.kinds if kind.attention.window is None)
    attention = 2816 * (16 * 512 + 2 * 512) + 16 * 512 * 2816 + 2 * 512
    moe = 128 * 3 * 2816 * 704 + 128 * 2816 + 3 * 2816 * 2112 + 2816 + 128
    assert layer_parameters(full, 2816) == attention + moe + 7 * 2816 + 1
    assert kv_bytes_per_token(arch) == 2 * (25 * 2 * 8 * 256 + 5 * 2 * 2 * 512)
    assert active_parameters(arch) == pytest.approx(3.8e9, rel=0.02)  # its model card: 3.8B active


def test_blocks_of_an_architecture_search():
    arch = architecture_from_config(NAS, "nas")
    first, second, third = (arch.kinds[index] for index in arch.pattern)
    assert (first.attention.kv_heads, first.feed_forward.intermediate) == (1, 14_336)
    assert second.attention.kind == "none"
    assert third.feed_forward.kind == "none"
    assert [kind.mixers for kind in (first, second, third)] == [2, 1, 1]
    assert [kind.norms for kind in (first, second, third)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("config", "change", "error", "said"),
    [
        (QWEN_NEXT, {"linear_num_value_heads": 33}, InputError, "not divisible by linear_num_key_heads"),
        (QWEN_NEXT, {"layer_types": ["full_attention"]}, InputError, "1 entries for 48 layers"),
        (QWEN_NEXT, {"layer_types": ["mamba"] * 48}, UnsupportedError, "layer type 'mamba'"),
        (NEMOTRON3, {"hybrid_override_pattern": "MX"}, UnsupportedError, "layer type 'X'"),
        (NEMOTRON3, {"mamba_ssm_cache_dtype": "int3"}, InputError, "'int3' is not one of"),
        (GLM52, {"indexer_types": ["full"]}, InputError, "each of the 78 layers"),
        (GLM52, {"q_lora_rank": None}, UnsupportedError, "without compressed queries"),
    ],
)
def test_what_does_not_fit_together_is_refused(config, change, error, said):
    with pytest.raises(error, match=said):
        architecture_from_config({**config, **change}, "model")
