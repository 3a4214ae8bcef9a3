"""Mixtures of experts: Mixtral, Phi-3.5-MoE, Qwen MoE, gpt-oss, DeepSeek V2 and V3, Kimi K2, GLM-4.5, MiniMax-M2.

Shapes follow the model classes of Hugging Face transformers (``modeling_<model_type>.py``), or, where there is none,
the ``modeling_*.py`` published with the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from costmodel.architecture.blueprint import (
    GPT_OSS_NAMES,
    MIXTRAL_NAMES,
    MLA_NAMES,
    QWEN_MOE_NAMES,
    SHARED_EXPERTS_NAMES,
    Blueprint,
    Layer,
    ModuleNames,
    read_gqa,
    read_layer_windows,
    read_window,
    windowed_layers,
)
from costmodel.architecture.families_dense import Trunk, prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward


def read_experts(config: ConfigReader, width: int, *count_keys: str, **flags: bool) -> FeedForward:
    """Read the routed experts.

    Raises:
        InputError: more experts per token than experts.
    """
    experts = config.first_integer(*count_keys)
    chosen = config.first_integer("num_experts_per_tok", "experts_per_token")
    config.ignore("experts_per_token")
    if chosen > experts:
        raise config.fail("num_experts_per_tok", f"{chosen} is more than the {experts} experts")
    return FeedForward("moe", width, experts=experts, experts_per_token=chosen, **flags)


def mixtral(config: ConfigReader) -> Blueprint:
    """Mixtral 8x7B and 8x22B."""
    trunk = read_trunk(config)
    attention = read_gqa(config, trunk.hidden)
    experts = read_experts(config, config.integer("intermediate_size"), "num_local_experts")
    windows = read_layer_windows(config, trunk.layers, read_window(config))
    return trunk_blueprint(trunk, windowed_layers(Layer(attention, experts), windows), MIXTRAL_NAMES)


def phimoe(config: ConfigReader) -> Blueprint:
    """Phi-3.5-MoE: Mixtral with LayerNorm, biases on attention and lm_head (modeling_phimoe.py)."""
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", False)
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias)
    experts = read_experts(config, config.integer("intermediate_size"), "num_local_experts")
    windows = read_layer_windows(config, trunk.layers, read_window(config))
    layers = windowed_layers(Layer(attention, experts, norm_bias=True), windows)
    return trunk_blueprint(trunk, layers, MIXTRAL_NAMES, lm_head_bias=config.flag("lm_head_bias", False))


def _qwen_moe(config: ConfigReader, trunk: Trunk, attention: Attention, experts: FeedForward) -> Blueprint:
    if config.flag("use_sliding_window", False):
        raise config.unsupported(
            "sliding windows of Qwen mixtures of experts are not covered (no published model has them)"
        )
    config.ignore("sliding_window", "max_window_layers")
    read_layer_windows(config, trunk.layers, None)
    step = config.integer("decoder_sparse_step", default=1)
    dense_only = config.items("mlp_only_layers")
    dense_width = config.integer("intermediate_size") if dense_only or step > 1 else 0
    config.ignore("intermediate_size")
    sparse, dense = Layer(attention, experts), Layer(attention, FeedForward("dense", dense_width))
    layers = tuple(dense if i in dense_only or (i + 1) % step else sparse for i in range(trunk.layers))
    return trunk_blueprint(trunk, layers, QWEN_MOE_NAMES)


def qwen2_moe(config: ConfigReader) -> Blueprint:
    """Qwen1.5-MoE and Qwen2-57B-A14B: biases on q, k, v; a shared expert behind a learned gate (modeling_qwen2_moe.py)."""
    trunk = read_trunk(config)
    attention = read_gqa(config, trunk.hidden, qkv_bias=config.flag("qkv_bias", True))
    experts = read_experts(config, config.integer("moe_intermediate_size"), "num_experts")
    experts = replace(experts, shared_intermediate=config.integer("shared_expert_intermediate_size"), shared_gate=True)
    return _qwen_moe(config, trunk, attention, experts)


def qwen3_moe(config: ConfigReader) -> Blueprint:
    """Qwen3-30B-A3B, 235B-A22B and Coder-480B: norms on the heads of q and k, no shared expert (modeling_qwen3_moe.py)."""
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", False)
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias, qk_norm="head")
    config.require("shared_expert_intermediate_size", 0, "Qwen3 has no shared expert")
    experts = read_experts(config, config.integer("moe_intermediate_size"), "num_experts")
    config.require("use_qk_norm", True, "Qwen3 has norms on the heads of q and k")
    config.require("qkv_bias", bias, "it contradicts attention_bias")
    config.ignore("num_local_experts")
    return _qwen_moe(config, trunk, attention, experts)


def gpt_oss(config: ConfigReader) -> Blueprint:
    """gpt-oss: biases on every projection, router and expert; sinks; every other layer slides, the first one does."""
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", True)
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias, sinks=True, head_dim=64)
    width = config.integer("intermediate_size")
    experts = read_experts(config, width, "num_local_experts", bias=True, router_bias=True)
    sliding = [i % 2 == 0 for i in range(trunk.layers)]
    windows = read_layer_windows(config, trunk.layers, read_window(config, 128), sliding)
    return trunk_blueprint(trunk, windowed_layers(Layer(attention, experts), windows), GPT_OSS_NAMES)


def _shared_experts_model(
    config: ConfigReader, trunk: Trunk, attention: Attention, names: ModuleNames, router_bias: bool
) -> Blueprint:
    """Build a model of DeepSeek's kind: the first layers dense, routed and shared experts in the others."""
    experts = read_experts(config, config.integer("moe_intermediate_size"), "n_routed_experts", router_bias=router_bias)
    shared = config.integer("n_shared_experts", default=0, least=0)
    sparse = Layer(attention, replace(experts, shared_intermediate=shared * experts.intermediate))
    dense = Layer(attention, FeedForward("dense", config.integer("intermediate_size")))
    first = config.integer("first_k_dense_replace", default=0, least=0)
    if isinstance(config.get("moe_layer_freq"), list):
        raise config.unsupported("moe_layer_freq as a list is not covered")
    every = config.integer("moe_layer_freq", default=1)
    layers = tuple(sparse if i >= first and i % every == 0 else dense for i in range(trunk.layers))
    return trunk_blueprint(trunk, layers, names, prediction_notes(config))


def read_mla(config: ConfigReader) -> Attention:
    """Read multi-head latent attention (modeling_deepseek.py).

    Raises:
        UnsupportedError: biases on the latent projections, which no published model has.
    """
    config.require("attention_bias", False, "biases on latent attention are not counted")
    heads = config.integer("num_attention_heads")
    keys = config.integer("num_key_value_heads", default=heads)
    if keys != heads:
        raise config.fail(
            "num_key_value_heads", f"{keys} differs from num_attention_heads {heads}: latent attention has no KV groups"
        )
    rope = config.integer("qk_rope_head_dim")
    config.ignore("head_dim", "qk_head_dim")
    return Attention(
        "mla",
        query_heads=heads,
        kv_heads=heads,
        head_dim=config.integer("qk_nope_head_dim") + rope,
        value_head_dim=config.integer("v_head_dim"),
        q_lora_rank=config.integer("q_lora_rank", default=0, least=0),
        kv_lora_rank=config.integer("kv_lora_rank"),
        rope_head_dim=rope,
    )


def deepseek(config: ConfigReader) -> Blueprint:
    """DeepSeek V2, V2-Lite, V3, R1, V3.1 and Kimi K2: latent attention, the first layers dense, shared experts.

    The router's correction bias exists where ``topk_method`` is ``noaux_tc`` (V3 and Kimi K2). The
    multi-token-prediction layer that V3 checkpoints carry (``num_nextn_predict_layers``) is not counted.
    """
    trunk = read_trunk(config)
    attention = read_mla(config)
    corrected = config.text("topk_method", "") == "noaux_tc"
    return _shared_experts_model(config, trunk, attention, MLA_NAMES, router_bias=corrected)


def read_indexer(config: ConfigReader, attention: Attention) -> Attention:
    """Add DeepSeek's sparse attention: an indexer's heads, and how many keys it chooses (DeepSeek-V3.2 report, section 2.1).

    Raises:
        UnsupportedError: queries that are not compressed, which the indexer starts from.
    """
    if attention.q_lora_rank == 0:
        raise config.unsupported("an indexer without compressed queries (q_lora_rank) is not covered")
    config.ignore("indexer_rope_interleave", "index_share_for_mtp_iteration")
    return replace(
        attention,
        top_k=config.integer("index_topk", default=2048),
        index_heads=config.integer("index_n_heads", default=64),
        index_head_dim=config.integer("index_head_dim", default=128),
    )


def deepseek_sparse(config: ConfigReader) -> Blueprint:
    """DeepSeek-V3.2, GLM-5 to 5.3: DeepSeek's layers, whose queries attend to the keys that an indexer chooses.

    GLM-5.2 and 5.3 run the indexer in some layers only (``indexer_types``); the others take over the choice of the one before
    (modeling_deepseek_v32.py, modeling_glm_moe_dsa.py).
    """
    trunk = read_trunk(config)
    attention = read_indexer(config, read_mla(config))
    sharing = config.items("indexer_types")
    config.ignore("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "mlp_layer_types")
    config.ignore("moe_router_dtype")
    experts = config.integer("n_routed_experts")
    config.require("num_experts", experts, f"it contradicts n_routed_experts {experts}")
    if other := [kind for kind in config.items("layer_types") if kind != "deepseek_sparse_attention"]:
        raise config.unsupported(f"layer type {other[0]!r} is not covered (only deepseek_sparse_attention is)")
    corrected = config.text("topk_method", "noaux_tc") == "noaux_tc"
    blueprint = _shared_experts_model(config, trunk, attention, MLA_NAMES, router_bias=corrected)
    if not sharing:
        return blueprint
    if len(sharing) != trunk.layers or any(kind not in ("full", "shared") for kind in sharing):
        raise config.fail("indexer_types", f"must say 'full' or 'shared' of each of the {trunk.layers} layers")
    without = {
        layer: replace(layer, attention=replace(layer.attention, index_heads=0, index_head_dim=0))
        for layer in set(blueprint.layers)
    }
    pairs = zip(blueprint.layers, sharing, strict=True)
    return replace(blueprint, layers=tuple(layer if kind == "full" else without[layer] for layer, kind in pairs))


def glm4_moe(config: ConfigReader) -> Blueprint:
    """GLM-4.5, 4.5-Air and 4.6: biases on q, k, v; optional norms on their heads; first layers dense (modeling_glm4_moe.py)."""
    trunk = read_trunk(config)
    norm: Literal["none", "head"] = "head" if config.flag("use_qk_norm", False) else "none"
    bias = config.flag("attention_bias", False)
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, qk_norm=norm, head_dim=128)
    return _shared_experts_model(config, trunk, attention, SHARED_EXPERTS_NAMES, router_bias=True)


def minimax_m2(config: ConfigReader) -> Blueprint:
    """MiniMax-M2: norms over the whole of q and k, a correction bias in the router (modeling_minimax_m2.py)."""
    trunk = read_trunk(config)
    norm: Literal["none", "full"] = "none"
    if config.flag("use_qk_norm", True):
        config.require("qk_norm_type", "per_layer", "only a norm over the whole of q and k is")
        norm = "full"
    config.ignore("qk_norm_type")
    attention = read_gqa(config, trunk.hidden, qk_norm=norm)
    kinds = config.items("attn_type_list")
    if any(kind != 1 for kind in kinds):
        raise config.unsupported("attn_type_list has layers of linear attention, for which there are no equations")
    config.require("shared_intermediate_size", 0, "MiniMax-M2 has no shared expert")
    config.require("layernorm_full_attention_beta", 1.0, "scaled residuals are not read")
    width = config.integer("intermediate_size")
    config.ignore("mlp_intermediate_size", "sliding_window", "max_model_len", "shared_moe_mode")
    config.require("attention_bias", False, "MiniMax-M2 has no biases on attention")
    bias = config.flag("use_routing_bias", True)
    experts = read_experts(config, width, "num_local_experts", router_bias=bias)
    notes: tuple[str, ...] = ()
    if config.flag("use_mtp", False):
        notes = ("multi-token-prediction layers not counted (loaded for speculation only)",)
    config.ignore("mtp_transformer_layers", "num_mtp_modules", "layernorm_linear_attention_beta", "layernorm_mlp_beta")
    return trunk_blueprint(trunk, (Layer(attention, experts),) * trunk.layers, MIXTRAL_NAMES, notes)
