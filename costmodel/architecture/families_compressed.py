"""DeepSeek-V4: keys compressed by 4 or 128, a vector that is key and value alike, residual streams that hyper-connections mix.

Shapes follow ``modeling_deepseek_v4.py`` of Hugging Face transformers and vllm/models/deepseek_v4, whose parameter counts they equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from costmodel.architecture.blueprint import Blueprint, Layer, ModuleNames, mlp_names
from costmodel.architecture.families_dense import Trunk, prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.families_moe import read_experts
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention

DEEPSEEK_V4_NAMES: Final = ModuleNames(
    attention=(
        ("qkv_a_proj", ("attn.wq_a", "attn.wkv")),
        ("q_b_proj", ("attn.wq_b",)),
        ("indexer.wq_b", ("attn.indexer.wq_b",)),
        ("o_a_proj", ("attn.wo_a",)),
        ("o_proj", ("attn.wo_b",)),
    ),
    feed_forward=(),
    experts=mlp_names("experts.", "ffn.experts.{e}.", ("w1", "w3"), "w2"),
    shared=mlp_names("shared_expert.", "ffn.shared_experts.", ("w1", "w3"), "w2"),
    prefixes=("layers.", "model.layers."),
)

SELECTIVE: Final = 4
"""Tokens per compressed key in layers whose queries see those that an indexer chooses."""
HEAVY: Final = 128
"""The same in layers whose queries see all of them."""
CACHE_NOTE: Final = (
    "KV cache in 8 bits unless --kv-dtype says otherwise: "
    "vLLM's FlashMLA kernels for this model take no other (584 B per key)"
)
_EXPERT_FORMATS: Final = {"fp4": "mxfp4", "fp8": ""}


def deepseek_v4(config: ConfigReader) -> Blueprint:
    """DeepSeek-V4: ``expert_dtype`` says how routed experts are stored.

    Raises:
        InputError: it is absent where weights are in 8 bits. vLLM takes fp4 then, but there are copies with experts in 8 bits without it.
    """
    found, stored = config.text("expert_dtype", ""), config.get("quantization_config") or {}
    if (
        not found
        and isinstance(stored, Mapping)
        and stored.get("quant_method") == "fp8"
        and not stored.get("moe_quant_algo")
    ):
        raise config.fail("expert_dtype", "is missing: it says whether routed experts are stored in fp4 or in fp8")
    return _deepseek_v4(config, found or "fp8")


def deepseek_ref(config: ConfigReader) -> Blueprint:
    """DeepSeek-V4 as SGLang's authors publish it again, experts in 8 bits like the rest: ``sgl-project/DeepSeek-V4-Flash-FP8``."""
    return _deepseek_v4(config, config.text("expert_dtype", "fp8"))


def _deepseek_v4(config: ConfigReader, expert_dtype: str) -> Blueprint:
    """Read a model of this kind.

    The first ``num_hash_layers`` choose experts by a table of tokens instead of the router's scores, and have no correction bias; the
    multi-token-prediction layer is not counted.

    Raises:
        UnsupportedError: a compression that there are no equations for, or another format of the experts.
        InputError: fewer entries of ``compress_ratios`` than layers.
    """
    if expert_dtype not in _EXPERT_FORMATS:
        raise config.unsupported(f"expert_dtype {expert_dtype!r} is not covered ({' and '.join(_EXPERT_FORMATS)} are)")
    trunk = read_trunk(config)
    attention = _read_attention(config)
    width, shared = config.integer("moe_intermediate_size"), config.integer("n_shared_experts", default=0, least=0)
    experts = read_experts(config, width, "n_routed_experts")
    experts = replace(experts, shared_intermediate=shared * width)
    corrected = replace(experts, router_bias=config.text("topk_method", "noaux_tc") == "noaux_tc")
    hashed = config.integer("num_hash_layers", default=0, least=0)
    residuals = config.integer("hc_mult", least=2)
    # Of each half of a layer: n + n + n² biases and three scales; after the last layer n biases and one scale.
    scalars = 2 * (residuals * (2 + residuals) + 3)
    layers = tuple(
        Layer(each, experts if index < hashed else corrected, scalars=scalars, residuals=residuals)
        for index, each in enumerate(_layers(config, trunk, attention))
    )
    blueprint = trunk_blueprint(trunk, layers, DEEPSEEK_V4_NAMES, (*prediction_notes(config), CACHE_NOTE))
    tables = min(hashed, trunk.layers) * trunk.vocabulary * int(experts.experts_per_token)
    return replace(
        blueprint,
        extra_parameters=tables + residuals + 1,
        kv_dtype="fp8",
        expert_format=_EXPERT_FORMATS[expert_dtype],
    )


def _read_attention(config: ConfigReader) -> Attention:
    config.require("attention_bias", False, "DeepSeek-V4 has no biases")
    config.require("num_key_value_heads", 1, "one vector of a token is key and value of all heads")
    heads, groups = config.integer("num_attention_heads"), config.integer("o_groups")
    if heads % groups:
        raise config.fail("o_groups", f"{groups} does not divide num_attention_heads {heads}")
    width = config.integer("head_dim")
    return Attention(
        "gqa",
        query_heads=heads,
        kv_heads=1,
        head_dim=width,
        value_head_dim=width,
        window=config.integer("sliding_window"),
        q_lora_rank=config.integer("q_lora_rank"),
        rope_head_dim=config.integer("qk_rope_head_dim"),
        sinks=True,
        shared_kv=True,
        output_groups=groups,
        output_rank=config.integer("o_lora_rank"),
    )


def _layers(config: ConfigReader, trunk: Trunk, attention: Attention) -> list[Attention]:
    """Return the attention of each layer: its window alone, or compressed keys beside it, chosen by an indexer or all of them."""
    ratios = config.items("compress_ratios")
    if len(ratios) < trunk.layers:  # one more is of the layer that predicts several tokens
        raise config.fail("compress_ratios", f"has {len(ratios)} entries for {trunk.layers} layers")
    chosen = replace(
        attention,
        compression=SELECTIVE,
        top_k=config.integer("index_topk"),
        index_heads=config.integer("index_n_heads"),
        index_head_dim=config.integer("index_head_dim"),
    )
    kinds = {0: attention, 1: attention, SELECTIVE: chosen, HEAVY: replace(attention, compression=HEAVY)}
    other = [ratio for ratio in ratios[: trunk.layers] if ratio not in kinds]
    if other:
        raise config.unsupported(f"keys compressed by {other[0]!r} are not covered ({SELECTIVE} and {HEAVY} are)")
    return [kinds[ratio] for ratio in ratios[: trunk.layers]]
