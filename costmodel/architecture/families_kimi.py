"""Kimi Linear and Kimi K3: three layers of Kimi delta attention to one of latent attention, without rotation; many experts.

Shapes follow ``modeling_kimi_linear.py`` of Hugging Face transformers for Kimi Linear, vllm/models/kimi_k3/nvidia/model.py, kda.py and
mla.py for K3; the tests hold the counts against those classes.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.blueprint import LLAMA_NAMES, MLA_NAMES, Blueprint, Layer, ModuleNames, mlp_names
from costmodel.architecture.families_dense import prediction_notes, read_trunk, trunk_blueprint
from costmodel.architecture.families_moe import read_mla
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import NO_ATTENTION, Attention, FeedForward, StateMixer

KIMI_NAMES = ModuleNames(
    attention=(
        *MLA_NAMES.attention,
        ("g_proj", ("self_attn.g_proj",)),
        ("in_proj", tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "g_a", "f_a", "b"))),
        ("f_b_proj", ("self_attn.f_b_proj",)),
        ("g_b_proj", ("self_attn.g_b_proj",)),
        ("out_proj", ("self_attn.o_proj",)),
    ),
    feed_forward=LLAMA_NAMES.feed_forward,
    experts=mlp_names("experts.", "block_sparse_moe.experts.{e}.", ("w1", "w3"), "w2"),
    shared=mlp_names("shared_expert.", "block_sparse_moe.shared_experts."),
)
K3_NAMES = replace(
    KIMI_NAMES,
    attention=tuple(
        (kernel, tuple(name.replace("g_a_proj", "g_proj") for name in modules))
        for kernel, modules in KIMI_NAMES.attention
    ),
)
"""Projections into and out of the latent space of K3's experts are stored in 16 bits, whatever its configuration's targets are."""


def kimi_linear(config: ConfigReader) -> Blueprint:
    """Kimi-Linear-48B-A3B and the decoder of Kimi K3 (``kimi_k3`` wraps it with a tower).

    K3 gates the outputs of latent attention (``mla_use_output_gate``), has experts in a latent space with a norm behind them, and in the
    place of the residual sum attention over sums of ``attn_res_block_size`` layers (two norms and two vectors of d a layer, one of each at
    the end).
    """
    trunk = read_trunk(config)
    trunk = replace(trunk, positions=trunk.positions or config.integer("model_max_length", default=0, least=0))
    config.require("mla_use_nope", True, "latent attention with rotation is not read here")
    attention = read_mla(config)
    if config.flag("mla_use_output_gate", False):
        attention = replace(attention, gate_dim=attention.value_head_dim)
    recurrent, state = _read_recurrent(config, trunk.layers)
    experts = _read_experts(config)
    dense = FeedForward("dense", config.integer("intermediate_size"))
    first, every = (
        config.integer("first_k_dense_replace", default=0, least=0),
        config.integer("moe_layer_freq", default=1),
    )
    block = config.integer("attn_res_block_size", default=0, least=0)
    made: dict[tuple[bool, bool], Layer] = {}
    for delta in (False, True):
        for moe in (False, True):
            scalars = 2 * trunk.hidden if block else 0
            mixer: tuple[Attention, StateMixer | None] = (NO_ATTENTION, state) if delta else (attention, None)
            feed_forward = experts if moe else dense
            made[delta, moe] = Layer(mixer[0], feed_forward, 4 if block else 2, state=mixer[1], scalars=scalars)
    layers = tuple(made[index in recurrent, index >= first and index % every == 0] for index in range(trunk.layers))
    names = KIMI_NAMES if state.gate_rank else K3_NAMES
    blueprint = trunk_blueprint(trunk, layers, names, prediction_notes(config))
    extra = 2 * trunk.hidden if block else 0
    return replace(blueprint, rotary=False, residual_block=block, extra_parameters=extra)


def _read_recurrent(config: ConfigReader, layers: int) -> tuple[set[int], StateMixer]:
    """Read which layers are recurrent, by numbers from 1 on, and their shape; prefill goes in chunks of 64 tokens (FLA).

    vLLM keeps the state in 32 bits (``kda_state_dtype`` of vllm/model_executor/layers/mamba/mamba_utils.py).

    Raises:
        InputError: layers that are in both lists, or in none.
    """
    section = config.section("linear_attn_config")
    recurrent, full = (section.items(key) for key in ("kda_layers", "full_attn_layers"))
    if sorted([*recurrent, *full]) != list(range(1, layers + 1)):
        raise section.fail("kda_layers", f"and full_attn_layers must name each of the layers 1 to {layers} once")
    heads, width = section.integer("num_heads"), section.integer("head_dim")
    whole = section.flag("use_full_rank_gate", False)
    section.ignore("gate_lower_bound")
    state = StateMixer(
        "kda",
        heads=heads,
        key_heads=heads,
        key_dim=width,
        value_dim=width,
        conv_kernel=section.integer("short_conv_kernel_size", default=4),
        state_bytes=4.0,
        gate_rank=0 if whole else width,
    )
    section.finish()
    return {number - 1 for number in recurrent}, state


def _read_experts(config: ConfigReader) -> FeedForward:
    width, experts = config.integer("moe_intermediate_size"), config.integer("num_experts")
    chosen = config.integer("num_experts_per_token")
    if chosen > experts:
        raise config.fail("num_experts_per_token", f"{chosen} is more than the {experts} experts")
    latent = config.integer("routed_expert_hidden_size", default=0, least=0)
    norm = config.flag("latent_moe_use_norm", False) and bool(latent)
    config.ignore(
        "activation_situ_beta",
        "activation_situ_linear_beta",
        "moe_renormalize",
        "moe_router_activation_func",
        "num_expert_group",
        "use_grouped_topk",
    )
    shared = config.integer("num_shared_experts", default=0, least=0)
    return FeedForward(
        "moe",
        width,
        experts=experts,
        experts_per_token=chosen,
        shared_intermediate=shared * width,
        router_bias=config.text("topk_method", "noaux_tc") == "noaux_tc",
        latent=latent,
        latent_norm=norm,
    )
