"""Decoders whose layers differ in their attention: Llama 4, Gemma 4, MiMo-V2, Llama-Nemotron of a neural architecture search.

Shapes follow the model classes of Hugging Face transformers (``modeling_<model_type>.py``), whose parameter counts the tests hold
against what is read here, or, where there is none, the ``modeling_*.py`` published with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.architecture.blueprint import (
    LLAMA_NAMES,
    SHARED_EXPERTS_NAMES,
    Blueprint,
    Layer,
    ModuleNames,
    mlp_names,
    read_gqa,
    read_window,
)
from costmodel.architecture.families_dense import read_trunk, trunk_blueprint
from costmodel.architecture.families_moe import read_experts
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.towers_crossing import whisper as whisper_tower
from costmodel.architecture.types import NO_ATTENTION, NO_FEED_FORWARD, Attention, FeedForward
from costmodel.equations.work import LocalChunks, Window

LLAMA4_NAMES = ModuleNames(
    attention=LLAMA_NAMES.attention,
    feed_forward=mlp_names("", "feed_forward."),
    experts=mlp_names("experts.", "feed_forward.experts.", ("gate_up_proj",)),
    shared=mlp_names("shared_expert.", "feed_forward.shared_expert."),
)
GEMMA4_NAMES = replace(
    LLAMA_NAMES,
    experts=mlp_names("experts.", "experts.{e}."),
    shared=mlp_names("shared_expert.", "mlp."),
)
"""The dense feed-forward beside Gemma 4's experts is counted as their shared expert."""

MLLAMA_CROSSING = [3, 8, 13, 18, 23, 28, 33, 38]
"""``cross_attention_layers`` of the 11B, the default of configuration_mllama.py."""
MLLAMA_NOTE = (
    "vLLM serves Llama 3.2 Vision up to 0.10.2 only; what later releases would do is counted here as if they did"
)
MLLAMA_NAMES = replace(
    LLAMA_NAMES,
    attention=(
        *LLAMA_NAMES.attention,
        ("cross.q_proj", ("cross_attn.q_proj",)),
        ("cross.kv_proj", ("cross_attn.k_proj", "cross_attn.v_proj")),
        ("cross.o_proj", ("cross_attn.o_proj",)),
    ),
)


def llama4_text(config: ConfigReader) -> Blueprint:
    """Llama 4 Scout and Maverick: three layers of chunked local attention to one of full attention (modeling_llama4.py).

    Every ``interleave_moe_layer_step``-th layer has experts of ``intermediate_size`` and a shared one of the same width, the others are
    ``intermediate_size_mlp`` wide. Norms of q and k have no weights. A layer slides where its entry of ``no_rope_layers`` is 1.
    """
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", False)
    config.ignore("use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    config.ignore("router_aux_loss_coef", "no_rope_layer_interval", "cache_implementation", "layer_types")
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias, head_dim=128)
    width, dense = config.integer("intermediate_size"), config.integer("intermediate_size_mlp", default=16_384)
    experts = replace(read_experts(config, width, "num_local_experts"), shared_intermediate=width)
    size = config.integer("attention_chunk_size", default=8192)
    chunks = None if trunk.positions and size >= trunk.positions else LocalChunks(size)
    rotated = config.items("no_rope_layers") or [int((index + 1) % 4 != 0) for index in range(trunk.layers)]
    step = config.integer("interleave_moe_layer_step", default=1)
    sparse = config.items("moe_layers") or [i for i in range(trunk.layers) if (i + 1) % step == 0]
    made: dict[tuple[bool, bool], Layer] = {}
    layers = []
    for index in range(trunk.layers):
        key = (bool(rotated[index]), index in sparse)
        if key not in made:
            window: Window = chunks if key[0] else None
            made[key] = Layer(replace(attention, window=window), experts if key[1] else FeedForward("dense", dense))
        layers.append(made[key])
    return trunk_blueprint(trunk, tuple(layers), LLAMA4_NAMES)


def _read_kinds(config: ConfigReader, key: str, layers: int, kinds: Sequence[object]) -> list[object]:
    found = config.items(key)
    if len(found) != layers:
        raise config.fail(key, f"has {len(found)} entries for {layers} layers")
    other = [kind for kind in found if kind not in kinds]
    if other:
        raise config.unsupported(
            f"{key} has {other[0]!r}, which is not covered (only {kinds[0]!r} and {kinds[1]!r} are)"
        )
    return found


def gemma4_text(config: ConfigReader) -> Blueprint:
    """Gemma 4 26B-A4B and 31B: sliding layers, and full ones with heads and KV heads of their own (modeling_gemma4.py).

    With ``attention_k_eq_v`` full layers project no values: these are the keys before their norm; both are cached. Four norms a layer, and
    three more beside experts, whose router scales its inputs and each expert's output. The 31B has no experts.

    Raises:
        UnsupportedError: per-layer embeddings or layers that share a KV cache (the E2B and E4B models).
    """
    config.require("hidden_size_per_layer_input", 0, "per-layer embeddings have no equations here")
    config.require("num_kv_shared_layers", 0, "layers that share a KV cache have no equations here")
    config.require("use_double_wide_mlp", False, "feed-forwards of two widths have no equations here")
    config.ignore("vocab_size_per_layer_input", "use_bidirectional_attention", "expert_intermediate_size")
    config.require("attention_bias", False, "Gemma has no biases")
    trunk = read_trunk(config, tied=True)
    kinds = _read_kinds(config, "layer_types", trunk.layers, ("full_attention", "sliding_attention"))
    window = read_window(config, 512)
    sliding = replace(read_gqa(config, trunk.hidden, qk_norm="head", head_dim=256), window=window)
    width = config.integer("global_head_dim", default=512)
    same = config.flag("attention_k_eq_v", False)
    own = config.integer("num_global_key_value_heads", default=int(sliding.kv_heads))
    full = replace(
        sliding,
        window=None,
        kv_heads=own if same else sliding.kv_heads,
        head_dim=width,
        value_head_dim=width,
        keys_are_values=same,
    )
    inner, norms, scalars = config.integer("intermediate_size"), 4, 1
    feed_forward = FeedForward("dense", inner)
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    if config.flag("enable_moe_block", False):
        experts, chosen = config.integer("num_experts"), config.integer("top_k_experts")
        feed_forward = FeedForward(
            "moe",
            config.integer("moe_intermediate_size"),
            experts=experts,
            experts_per_token=chosen,
            shared_intermediate=inner,
        )
        norms, scalars = 7, 1 + trunk.hidden + experts
    made = {
        "full_attention": Layer(full, feed_forward, norms, scalars=scalars),
        "sliding_attention": Layer(sliding, feed_forward, norms, scalars=scalars),
    }
    return trunk_blueprint(trunk, tuple(made[str(kind)] for kind in kinds), GEMMA4_NAMES)


def mimo_v2(config: ConfigReader) -> Blueprint:
    """MiMo-V2-Flash: five sliding layers to one full, each with KV heads of their own; keys wider than values (modeling_mimo_v2_flash.py).

    The first layer is dense, the others have experts (``moe_layer_freq``). ``attention_sink_bias`` is one logit per query head.
    """
    trunk = read_trunk(config)
    config.require("attention_bias", False, "MiMo-V2 has no biases on attention")
    config.ignore("sliding_window_size", "attention_chunk_size", "attention_value_scale", "swa_rope_theta", "head_dim")
    heads, keys = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    width, values = config.integer("head_dim"), config.integer("v_head_dim", default=config.integer("head_dim"))
    full = Attention("gqa", heads, keys, width, values, sinks=config.flag("add_full_attention_sink_bias", False))
    sliding = Attention(
        "gqa",
        config.integer("swa_num_attention_heads", default=heads),
        config.integer("swa_num_key_value_heads", default=keys),
        config.integer("swa_head_dim", default=width),
        config.integer("swa_v_head_dim", default=values),
        window=read_window(config),
        sinks=config.flag("add_swa_attention_sink_bias", False),
    )
    for attention in (full, sliding):
        if attention.query_heads % attention.kv_heads:
            raise config.fail("num_attention_heads", f"{heads} is not divisible by the KV heads {attention.kv_heads}")
    slides = _read_kinds(config, "hybrid_layer_pattern", trunk.layers, (0, 1))
    sparse = _read_kinds(config, "moe_layer_freq", trunk.layers, (0, 1))
    corrected = config.text("topk_method", "") == "noaux_tc"
    experts = read_experts(config, config.integer("moe_intermediate_size"), "n_routed_experts", router_bias=corrected)
    shared = config.integer("n_shared_experts", default=0, least=0)
    experts = replace(experts, shared_intermediate=shared * experts.intermediate)
    dense = FeedForward("dense", config.integer("intermediate_size"))
    made = {
        (slide, moe): Layer(sliding if slide else full, experts if moe else dense) for slide in (0, 1) for moe in (0, 1)
    }
    layers = tuple(made[slide, moe] for slide, moe in zip(slides, sparse, strict=True))  # type: ignore[index]
    return trunk_blueprint(trunk, layers, SHARED_EXPERTS_NAMES)


def nemotron_nas(config: ConfigReader) -> Blueprint:
    """Llama-3.x-Nemotron Super and Ultra: ``block_configs`` gives each layer its KV groups and width, or none (modeling_decilm.py).

    A feed-forward is ⌈2·ffn_mult·d/3⌉ wide, cut to a whole number first and then rounded up to a multiple of 256.

    Raises:
        UnsupportedError: blocks that were replaced by a linear layer, or made sparse, which no published model has.
    """
    trunk = read_trunk(config)
    config.require("attention_bias", False, "Llama-Nemotron has no biases")
    config.require("mlp_bias", False, "Llama-Nemotron has no biases")
    config.ignore("num_key_value_heads", "intermediate_size")
    heads = config.integer("num_attention_heads")
    width = config.integer("head_dim", default=trunk.hidden // heads)
    blocks = config.items("block_configs")
    if len(blocks) != trunk.layers:
        raise config.fail("block_configs", f"has {len(blocks)} entries for {trunk.layers} layers")
    made: dict[Layer, Layer] = {}
    layers = []
    for number, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise config.fail("block_configs", f"has no object for layer {number}")
        where = f"{config.where}, block {number}"
        attention = _nas_attention(ConfigReader(block, where).section("attention"), heads, width)
        feed_forward = _nas_feed_forward(ConfigReader(block, where).section("ffn"), trunk.hidden)
        norms = int(attention is not NO_ATTENTION) + int(feed_forward is not NO_FEED_FORWARD)
        layer = Layer(attention, feed_forward, norms)
        layers.append(made.setdefault(layer, layer))
    return trunk_blueprint(trunk, tuple(layers), LLAMA_NAMES)


def _nas_attention(block: ConfigReader, heads: int, width: int) -> Attention:
    block.require("replace_with_linear", False, "attention that was replaced by a linear layer is not read")
    for key in ("sparsify", "num_sink_tokens", "window_length"):
        block.require(key, None, "blocks without windows or sparsity are read only")
    block.ignore("unshifted_sink", "use_prefill_window_in_sink_attention")
    if block.flag("no_op", False):
        return NO_ATTENTION
    group = block.integer("n_heads_in_group")
    if heads % group:
        raise block.fail("n_heads_in_group", f"{group} does not divide the {heads} query heads")
    return Attention("gqa", heads, heads // group, width, width)


def _nas_feed_forward(block: ConfigReader, hidden: int) -> FeedForward:
    block.require("replace_with_linear", False, "a feed-forward that was replaced by a linear layer is not read")
    block.require("sparsify", None, "sparse feed-forwards are not read")
    if block.flag("no_op", False):
        return NO_FEED_FORWARD
    multiple = block.get("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 1000:
        raise block.fail("ffn_mult", f"must be a number above 0, not {multiple!r}")
    return FeedForward("dense", -(-int(2 * multiple * hidden / 3) // 256) * 256)


def mllama_text(config: ConfigReader) -> Blueprint:
    """Llama 3.2 Vision: Llama's layers, and among them some of cross-attention over the features of images (modeling_mllama.py).

    Those have no self-attention, norms on heads of q and k, and two gates; without images they are left out. The embedding has eight
    rows more than the vocabulary.
    """
    trunk = read_trunk(config)
    crossing = config.items("cross_attention_layers") if config.has("cross_attention_layers") else MLLAMA_CROSSING
    attention = read_gqa(config, trunk.hidden)
    feed_forward = FeedForward("dense", config.integer("intermediate_size"))
    own = Layer(attention, feed_forward)
    cross = Layer(NO_ATTENTION, feed_forward, scalars=2, cross=replace(attention, qk_norm="head"))
    layers = tuple(cross if index in crossing else own for index in range(trunk.layers))
    blueprint = trunk_blueprint(trunk, layers, MLLAMA_NAMES, (MLLAMA_NOTE,))
    return replace(blueprint, extra_parameters=8 * trunk.hidden)


def whisper(config: ConfigReader) -> Blueprint:
    """Whisper: an encoder of 30 s of audio, a decoder whose layers attend to their own tokens and to its states (modeling_whisper.py).

    Keys have no biases; LayerNorms; positions are learned; lm_head is the embedding.
    """
    hidden, layers = config.integer("d_model", default=256), config.integer("decoder_layers", default=4)
    heads = config.integer("decoder_attention_heads", default=6)
    positions = config.integer("max_target_positions", default=448)
    if hidden % heads:
        raise config.fail("decoder_attention_heads", f"{heads} does not divide d_model {hidden}")
    config.ignore(
        "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "classifier_proj_size", "apply_spec_augment"
    )
    config.ignore(
        "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "median_filter_width", "alignment_heads"
    )
    config.ignore("lang_ids", "use_weighted_layer_sum", "is_encoder_decoder", "max_length", "scale_embedding")
    attention = Attention("gqa", heads, heads, hidden // heads, hidden // heads, qkv_bias=True, output_bias=True)
    feed_forward = FeedForward("dense", config.integer("decoder_ffn_dim", default=1536), gated=False, bias=True)
    layer = Layer(attention, feed_forward, 3, norm_bias=True, cross=attention)
    return Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size", default=51_865),
        layers=(layer,) * layers,
        tied=config.flag("tie_word_embeddings", True),
        names=MLLAMA_NAMES,
        # A bias of every query and value was counted as one of q, k and v: keys have none.
        extra_parameters=positions * hidden - layers * hidden,
        max_positions=positions,
        vision=whisper_tower(config),
    )
