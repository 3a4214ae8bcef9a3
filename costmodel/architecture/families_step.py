"""Step-3.5-Flash and Step-3.7-Flash: sliding layers with more query heads than full ones, a gate of every head, many small experts.

Shapes follow ``modeling_step3p7.py`` of Hugging Face transformers, whose parameter count the tests hold against what is read here, and
vllm/model_executor/models/step3p5.py.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.blueprint import LLAMA_NAMES, Blueprint, Layer, ModuleNames, mlp_names, read_window
from costmodel.architecture.families_dense import prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward

STEP_NAMES = ModuleNames(
    attention=(*LLAMA_NAMES.attention, ("g_proj", ("self_attn.g_proj",))),
    feed_forward=LLAMA_NAMES.feed_forward,
    experts=mlp_names("experts.", "moe."),
    shared=mlp_names("shared_expert.", "share_expert."),
)
_KINDS = ("full_attention", "sliding_attention")


def step3p5(config: ConfigReader) -> Blueprint:
    """The decoder of both: norms on heads of q and k; layers in ``moe_layers_enum`` have experts and a shared one, the others are dense.

    ``attention_other_setting`` gives the layers of its type other heads. ``layer_types`` may go on with the prediction layers.
    """
    trunk = read_trunk(config)
    config.require("att_impl_type", "GQA", "only grouped-query attention is")
    for key, expected in (("attention_bias", False), ("mlp_bias", False), ("sink", False), ("use_qk_norm", True)):
        config.require(key, expected, "Step-3.5 has norms on the heads of q and k, no biases and no sinks")
    config.ignore("max_seq_len", "use_rope_layers", "partial_rotary_factors", "yarn_only_types", "zero_centered")
    config.ignore("need_fp32_gate", "moe_router_activation", "norm_expert_weight", "use_moe", "moe_every_n_layer")
    config.ignore("moe_layer_offset", "swiglu_limits", "swiglu_limits_shared", "query_pre_attn_scalar")
    attention = _read_attention(config)
    kinds = config.items("layer_types")[: trunk.layers]
    if len(kinds) != trunk.layers:
        raise config.fail("layer_types", f"has {len(kinds)} entries for {trunk.layers} layers")
    if other := [kind for kind in kinds if kind not in _KINDS]:
        raise config.unsupported(f"layer type {other[0]!r} is not covered (only full and sliding attention are)")
    window = read_window(config)
    if window is None and _KINDS[1] in kinds and not config.has("sliding_window"):
        raise config.fail("sliding_window", "is missing, but layer_types has sliding layers")
    of_kind = {
        kind: replace(_other_attention(config, attention, kind), window=window if kind == _KINDS[1] else None)
        for kind in _KINDS
    }
    config.ignore("attention_other_setting")
    sparse, experts = _read_sparse(config), _read_experts(config)
    dense = FeedForward("dense", config.integer("intermediate_size"))
    made = {(kind, moe): Layer(of_kind[kind], experts if moe else dense) for kind in _KINDS for moe in (False, True)}
    layers = tuple(made[kind, index in sparse] for index, kind in enumerate(kinds))
    return trunk_blueprint(trunk, layers, STEP_NAMES, prediction_notes(config))


def _read_attention(config: ConfigReader) -> Attention:
    heads = config.integer("num_attention_heads")
    keys = config.first_integer("num_attention_groups", "num_key_value_heads")
    width = config.integer("head_dim")
    gate = int(config.flag("use_head_wise_attn_gate", False))
    return _checked(config, Attention("gqa", heads, keys, width, width, qk_norm="head", gate_dim=gate))


def _other_attention(config: ConfigReader, attention: Attention, kind: str) -> Attention:
    """Return the attention of a kind of layer: with heads of its own where ``attention_other_setting`` is of this kind."""
    if not config.has("attention_other_setting"):
        return attention
    other = config.section("attention_other_setting")
    if other.text("attention_type", _KINDS[1]) != kind:
        return attention
    width = other.integer("head_dim", default=int(attention.head_dim))
    other.ignore("true_head_dim")
    made = replace(
        attention,
        query_heads=other.integer("num_attention_heads"),
        kv_heads=other.integer("num_attention_groups", default=int(attention.kv_heads)),
        head_dim=width,
        value_head_dim=width,
    )
    other.finish()
    return _checked(other, made)


def _checked(config: ConfigReader, attention: Attention) -> Attention:
    if attention.query_heads % attention.kv_heads:
        raise config.fail(
            "num_attention_heads",
            f"{attention.query_heads} is not divisible by num_attention_groups {attention.kv_heads}",
        )
    return attention


def _read_sparse(config: ConfigReader) -> set[int]:
    """Return the layers with experts: ``moe_layers_enum``, numbers in a list or between commas."""
    found = config.get("moe_layers_enum")
    if found is None:
        raise config.fail("moe_layers_enum", "is missing")
    entries = found.split(",") if isinstance(found, str) else config.items("moe_layers_enum")
    try:
        return {int(entry) for entry in entries if str(entry).strip()}
    except (TypeError, ValueError):
        raise config.fail("moe_layers_enum", f"must hold numbers of layers, not {found!r}") from None


def _read_experts(config: ConfigReader) -> FeedForward:
    experts, chosen = config.integer("moe_num_experts"), config.integer("moe_top_k")
    if chosen > experts:
        raise config.fail("moe_top_k", f"{chosen} is more than the {experts} experts")
    config.require("num_experts", experts, f"it contradicts moe_num_experts {experts}")
    config.require("num_experts_per_tok", chosen, f"it contradicts moe_top_k {chosen}")
    return FeedForward(
        "moe",
        config.integer("moe_intermediate_size"),
        experts=experts,
        experts_per_token=chosen,
        shared_intermediate=config.first_integer("share_expert_dim", "share_expert_dims"),
        router_bias=config.flag("use_moe_router_bias", True),
    )
