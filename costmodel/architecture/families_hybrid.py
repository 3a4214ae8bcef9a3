"""Decoders whose layers are in part recurrent: Qwen3-Next, Qwen 3.5 and 3.6 (gated delta nets), Nemotron-H and Nemotron 3 (Mamba 2).

Shapes follow the model classes of Hugging Face transformers (``modeling_<model_type>.py``), whose parameter counts the tests hold
against what is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.architecture.blueprint import (
    QWEN_MOE_NAMES,
    Blueprint,
    Layer,
    ModuleNames,
    attention_names,
    mlp_names,
    read_gqa,
    read_positions,
)
from costmodel.architecture.families_dense import Trunk, prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.families_moe import read_experts
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import NO_ATTENTION, NO_FEED_FORWARD, Attention, FeedForward, StateMixer

_GDN_KERNELS = (
    ("in_proj", ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")),
    ("in_proj_ba", ("linear_attn.in_proj_b", "linear_attn.in_proj_a")),
    ("out_proj", ("linear_attn.out_proj",)),
)
QWEN35_NAMES = replace(QWEN_MOE_NAMES, attention=(*QWEN_MOE_NAMES.attention, *_GDN_KERNELS))
QWEN_NEXT_NAMES = replace(
    QWEN_MOE_NAMES,
    attention=(
        *QWEN_MOE_NAMES.attention,
        ("in_proj", ("linear_attn.in_proj_qkvz",)),
        ("in_proj_ba", ("linear_attn.in_proj_ba",)),
        ("out_proj", ("linear_attn.out_proj",)),
    ),
)
NEMOTRON_H_NAMES = ModuleNames(
    attention=(
        *attention_names("mixer.", ("q_proj", "k_proj", "v_proj"), "o_proj"),
        ("in_proj", ("mixer.in_proj",)),
        ("out_proj", ("mixer.out_proj",)),
    ),
    feed_forward=mlp_names("", "mixer.", ("up_proj",)),
    experts=mlp_names("experts.", "mixer.experts.{e}.", ("up_proj",)),
    shared=mlp_names("shared_expert.", "mixer.shared_experts.", ("up_proj",)),
    latent=(("latent_in_proj", ("mixer.fc1_latent_proj",)), ("latent_out_proj", ("mixer.fc2_latent_proj",))),
    prefixes=("backbone.layers.", "model.layers."),
)

_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 0.0}


def read_state_bytes(config: ConfigReader, *keys: str, default: str = "auto") -> float:
    """Return the bytes of an element of the recurrent state; 0 where it is kept as activations are.

    Raises:
        InputError: a dtype that no engine keeps states in.
    """
    for key in keys:
        if config.has(key):
            found = config.text(key, default).removeprefix("torch.")
            if found not in _STATE_BYTES:
                raise config.fail(key, f"{found!r} is not one of {', '.join(_STATE_BYTES)}")
            return _STATE_BYTES[found]
    return _STATE_BYTES[default]


def read_gated_delta_net(config: ConfigReader) -> StateMixer:
    """Read a gated delta net: heads of keys and values of their own, a convolution over q, k and v together (modeling_qwen3_next.py).

    Prefill goes in chunks of 64 tokens (vllm/model_executor/layers/fla/ops/chunk.py). vLLM keeps the state in ``mamba_ssm_dtype`` where
    the configuration names one, as Qwen 3.5's do (vllm/model_executor/models/config.py).

    Raises:
        InputError: value heads not divisible by key heads.
    """
    keys = config.integer("linear_num_key_heads", default=16)
    values = config.integer("linear_num_value_heads", default=32)
    if values % keys:
        raise config.fail("linear_num_value_heads", f"{values} is not divisible by linear_num_key_heads {keys}")
    return StateMixer(
        "gdn",
        heads=values,
        key_heads=keys,
        key_dim=config.integer("linear_key_head_dim", default=128),
        value_dim=config.integer("linear_value_head_dim", default=128),
        conv_kernel=config.integer("linear_conv_kernel_dim", default=4),
        state_bytes=read_state_bytes(config, "mamba_ssm_dtype"),
    )


def _read_linear_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Return for each layer whether it is recurrent: by ``layer_types``, else all but every ``full_attention_interval``-th."""
    period = config.integer("full_attention_interval", default=4)
    kinds = config.items("layer_types")
    if not kinds:
        return [(index + 1) % period != 0 for index in range(layers)]
    if len(kinds) != layers:
        raise config.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
    other = [kind for kind in kinds if kind not in ("full_attention", "linear_attention")]
    if other:
        raise config.unsupported(f"layer type {other[0]!r} is not covered (only full and linear attention are)")
    return [kind == "linear_attention" for kind in kinds]


def _qwen_hybrid(
    config: ConfigReader, trunk: Trunk, feed_forwards: Sequence[FeedForward], names: ModuleNames
) -> Blueprint:
    bias = config.flag("attention_bias", False)
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias, qk_norm="head", head_dim=256)
    config.require("attn_output_gate", True, "its attention always gates its outputs")
    attention = replace(attention, output_gate=True)
    state = read_gated_delta_net(config)
    made: dict[tuple[bool, FeedForward], Layer] = {}
    layers = []
    for recurrent, feed_forward in zip(_read_linear_layers(config, trunk.layers), feed_forwards, strict=True):
        key = (recurrent, feed_forward)
        if key not in made:
            mixer = state if recurrent else None
            made[key] = Layer(NO_ATTENTION if recurrent else attention, feed_forward, state=mixer)
        layers.append(made[key])
    config.ignore("mtp_use_dedicated_embeddings", "output_gate_type")
    count = config.integer("mtp_num_hidden_layers", default=0, least=0)
    notes = (f"{count} multi-token-prediction layer(s) not counted (loaded for speculation only)",) if count else ()
    return trunk_blueprint(trunk, tuple(layers), names, (*notes, *prediction_notes(config)))


def _qwen_experts(config: ConfigReader, layers: int) -> list[FeedForward]:
    experts = read_experts(config, config.integer("moe_intermediate_size"), "num_experts")
    shared = config.integer("shared_expert_intermediate_size")
    experts = replace(experts, shared_intermediate=shared, shared_gate=True)
    step, dense_only = config.integer("decoder_sparse_step", default=1), config.items("mlp_only_layers")
    width = config.integer("intermediate_size") if dense_only or step > 1 else 0
    config.ignore("intermediate_size")
    dense = FeedForward("dense", width)
    return [dense if index in dense_only or (index + 1) % step else experts for index in range(layers)]


def qwen3_next(config: ConfigReader) -> Blueprint:
    """Qwen3-Next-80B-A3B, Qwen3-Coder-Next: three gated delta nets to one gated attention, 512 small experts (modeling_qwen3_next.py)."""
    trunk = read_trunk(config)
    return _qwen_hybrid(config, trunk, _qwen_experts(config, trunk.layers), QWEN_NEXT_NAMES)


def qwen3_5(config: ConfigReader) -> Blueprint:
    """Qwen 3.5 and 3.6, dense (modeling_qwen3_5.py)."""
    trunk = read_trunk(config)
    config.ignore("mlp_only_layers")
    dense = FeedForward("dense", config.integer("intermediate_size"))
    return _qwen_hybrid(config, trunk, [dense] * trunk.layers, QWEN35_NAMES)


def qwen3_5_moe(config: ConfigReader) -> Blueprint:
    """Qwen 3.5 and 3.6 with experts (modeling_qwen3_5_moe.py)."""
    trunk = read_trunk(config)
    return _qwen_hybrid(config, trunk, _qwen_experts(config, trunk.layers), QWEN35_NAMES)


_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_layers(config: ConfigReader) -> list[str]:
    pattern, listed = config.text("hybrid_override_pattern", ""), config.items("layers_block_type")
    kinds = [_NEMOTRON_LETTERS.get(letter, letter) for letter in pattern] or [str(kind) for kind in listed]
    if not kinds:
        raise config.fail("hybrid_override_pattern", "is missing, and so is layers_block_type")
    kinds = ["attention" if kind == "full_attention" else kind for kind in kinds]
    other = [kind for kind in kinds if kind not in _NEMOTRON_LETTERS.values()]
    if other:
        raise config.unsupported(f"layer type {other[0]!r} is not covered (only {', '.join(_NEMOTRON_LETTERS)} are)")
    layers = config.integer("num_hidden_layers", default=len(kinds))
    if layers != len(kinds):
        raise config.fail("num_hidden_layers", f"{layers} differs from the {len(kinds)} layers of the pattern")
    return kinds


def _read_mamba2(config: ConfigReader) -> StateMixer:
    heads, groups = config.integer("mamba_num_heads", default=128), config.integer("n_groups", default=8)
    if heads % groups:
        raise config.fail("mamba_num_heads", f"{heads} is not divisible by n_groups {groups}")
    config.ignore("expand", "mamba_hidden_act", "time_step_rank", "use_mamba_kernels", "residual_in_fp32")
    config.ignore("rescale_prenorm_residual", "time_step_limit", "time_step_min", "time_step_max", "time_step_floor")
    return StateMixer(
        "mamba2",
        heads=heads,
        key_heads=groups,
        key_dim=config.integer("ssm_state_size", default=128),
        value_dim=config.integer("mamba_head_dim", default=64),
        conv_kernel=config.integer("conv_kernel", default=4),
        chunk=config.integer("chunk_size", default=128),
        state_bytes=read_state_bytes(config, "mamba_ssm_cache_dtype", default="float32"),
        conv_bias=config.flag("use_conv_bias", True),
        projection_bias=config.flag("use_bias", False),
    )


def _read_latent_experts(config: ConfigReader, bias: bool) -> FeedForward:
    width = config.integer("moe_intermediate_size")
    experts = read_experts(config, width, "n_routed_experts", gated=False, bias=bias, router_bias=True)
    shared = config.integer("n_shared_experts", default=1, least=0)
    each = config.integer("moe_shared_expert_intermediate_size", default=width)
    config.ignore("moe_shared_expert_overlap")
    latent = config.integer("moe_latent_size", default=0, least=0)
    return replace(experts, shared_intermediate=shared * each, latent=latent)


def nemotron_h(config: ConfigReader) -> Blueprint:
    """Nemotron-H and Nemotron 3 Nano, Super and Ultra: a layer is one mixer behind one norm (modeling_nemotron_h.py).

    ``M`` Mamba 2, ``*`` attention without rotation, ``-`` feed-forward of two matrices, ``E`` experts of two matrices, in Super and Ultra
    in a latent space. vLLM keeps the state in ``mamba_ssm_cache_dtype``, float32 where it is absent.
    """
    kinds = _nemotron_layers(config)
    hidden = config.integer("hidden_size")
    bias = config.flag("mlp_bias", False)
    config.require("attention_bias", False, "Nemotron-H has no biases on attention")
    config.ignore("attention_head_dim", "num_logits_to_keep", "sliding_window", "mtp_hybrid_override_pattern")
    config.ignore("mtp_layers_block_type", "mlp_hidden_act", "intermediate_size", "head_dim")
    width = config.first_integer(
        "head_dim", "attention_head_dim", default=hidden // config.integer("num_attention_heads")
    )
    heads = config.integer("num_attention_heads")
    keys = config.integer("num_key_value_heads", default=heads)
    if heads % keys:
        raise config.fail("num_attention_heads", f"{heads} is not divisible by num_key_value_heads {keys}")
    made: dict[str, Layer] = {}
    if "mamba" in kinds:
        made["mamba"] = Layer(NO_ATTENTION, NO_FEED_FORWARD, 1, state=_read_mamba2(config))
    if "attention" in kinds:
        made["attention"] = Layer(Attention("gqa", heads, keys, width, width), NO_FEED_FORWARD, 1)
    if "mlp" in kinds:
        inner = config.integer("intermediate_size")
        made["mlp"] = Layer(NO_ATTENTION, FeedForward("dense", inner, gated=False, bias=bias), 1)
    if "moe" in kinds:
        made["moe"] = Layer(NO_ATTENTION, _read_latent_experts(config, bias), 1)
    return Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size"),
        layers=tuple(made[kind] for kind in kinds),
        tied=config.flag("tie_word_embeddings", False),
        names=NEMOTRON_H_NAMES,
        max_positions=read_positions(config),
        notes=prediction_notes(config),
    )
