"""Decoders with LayerNorm, biases or parallel blocks: GPT-J, GPT-NeoX, Falcon, Phi-1 and 2, StarCoder 2."""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.blueprint import (
    LLAMA_NAMES,
    Blueprint,
    Layer,
    ModuleNames,
    attention_names,
    mlp_names,
    read_gqa,
    read_layer_windows,
    read_positions,
    read_window,
    windowed_layers,
)
from costmodel.architecture.families_dense import read_trunk, trunk_blueprint
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward

_GPTJ_NAMES = ModuleNames(
    attention=attention_names("attn.", ("q_proj", "k_proj", "v_proj"), "out_proj"),
    feed_forward=mlp_names("", "mlp.", ("fc_in",), "fc_out"),
    prefixes=("transformer.h.",),
)
_NEOX_NAMES = ModuleNames(
    attention=attention_names("attention.", ("query_key_value",), "dense"),
    feed_forward=mlp_names("", "mlp.", ("dense_h_to_4h",), "dense_4h_to_h"),
    prefixes=("gpt_neox.layers.",),
)
_FALCON_NAMES = ModuleNames(
    attention=attention_names("self_attention.", ("query_key_value",), "dense"),
    feed_forward=mlp_names("", "mlp.", ("dense_h_to_4h",), "dense_4h_to_h"),
    prefixes=("transformer.h.",),
)
_PHI_NAMES = ModuleNames(
    attention=attention_names("self_attn.", ("q_proj", "k_proj", "v_proj"), "dense"),
    feed_forward=mlp_names("", "mlp.", ("fc1",), "fc2"),
)
_STARCODER2_NAMES = replace(LLAMA_NAMES, feed_forward=mlp_names("", "mlp.", ("c_fc",), "c_proj"))


def gptj(config: ConfigReader) -> Blueprint:
    """GPT-J: parallel block with one LayerNorm, biases in the feed-forward and lm_head, none in attention (modeling_gptj.py)."""
    hidden, heads = config.integer("n_embd"), config.integer("n_head")
    if hidden % heads:
        raise config.fail("n_embd", f"{hidden} is not divisible by n_head {heads}")
    width = hidden // heads
    layer = Layer(
        Attention("gqa", heads, heads, width, width),
        FeedForward("dense", config.integer("n_inner", default=4 * hidden), gated=False, bias=True),
        norms=1,
        norm_bias=True,
    )
    config.ignore("n_ctx")
    return Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size"),
        layers=(layer,) * config.integer("n_layer"),
        tied=config.flag("tie_word_embeddings", False),
        names=_GPTJ_NAMES,
        lm_head_bias=True,
        max_positions=read_positions(config),
    )


def gpt_neox(config: ConfigReader) -> Blueprint:
    """GPT-NeoX-20B and Pythia: two LayerNorms, biases everywhere but in the output embedding (modeling_gpt_neox.py)."""
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", True)
    layer = Layer(
        read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias),
        FeedForward("dense", config.integer("intermediate_size"), gated=False, bias=True),
        norm_bias=True,
    )
    return trunk_blueprint(trunk, (layer,) * trunk.layers, _NEOX_NAMES)


def falcon(config: ConfigReader) -> Blueprint:
    """Falcon 7B, 40B, 180B and 11B (modeling_falcon.py).

    The new decoder architecture has grouped KV heads and two LayerNorms before a parallel block; the old one has one
    KV head (``multi_query``) and one LayerNorm if parallel. Embeddings are tied unless the configuration says
    otherwise, as engines assume, although checkpoints of 7B and 180B store lm_head a second time.
    """
    hidden = config.first_integer("hidden_size", "n_embed")
    heads = config.first_integer("num_attention_heads", "n_head")
    if hidden % heads:
        raise config.fail("hidden_size", f"{hidden} is not divisible by num_attention_heads {heads}")
    width = hidden // heads
    new, parallel = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    multi_query = config.flag("multi_query", True)
    kv_heads = config.first_integer("num_kv_heads", "n_head_kv", default=heads) if new else 1 if multi_query else heads
    config.ignore("num_kv_heads", "n_head_kv")
    if heads % kv_heads:
        raise config.fail("num_attention_heads", f"{heads} is not divisible by num_kv_heads {kv_heads}")
    norms = config.integer("num_ln_in_parallel_attn", default=2 if new else 1) if new or parallel else 2
    config.ignore("num_ln_in_parallel_attn", "alibi")
    bias = config.flag("bias", False)
    layer = Layer(
        Attention("gqa", heads, kv_heads, width, width, qkv_bias=bias, output_bias=bias),
        FeedForward("dense", config.integer("ffn_hidden_size", default=4 * hidden), gated=False, bias=bias),
        norms=norms,
        norm_bias=True,
    )
    return Blueprint(
        hidden=hidden,
        vocabulary=config.integer("vocab_size"),
        layers=(layer,) * config.first_integer("num_hidden_layers", "n_layer"),
        tied=config.flag("tie_word_embeddings", True),
        names=_FALCON_NAMES,
        max_positions=read_positions(config),
    )


def phi(config: ConfigReader) -> Blueprint:
    """Phi-1, 1.5 and 2: parallel block with one LayerNorm, biases everywhere, lm_head included (modeling_phi.py)."""
    config.require("qk_layernorm", False, "no published Phi has it")
    trunk = read_trunk(config)
    layer = Layer(
        read_gqa(config, trunk.hidden, qkv_bias=True, output_bias=True),
        FeedForward("dense", config.integer("intermediate_size"), gated=False, bias=True),
        norms=1,
        norm_bias=True,
    )
    return trunk_blueprint(trunk, (layer,) * trunk.layers, _PHI_NAMES, lm_head_bias=True)


def starcoder2(config: ConfigReader) -> Blueprint:
    """StarCoder 2: LayerNorm and biases throughout, plain feed-forward, tied by default; a window holds for every layer."""
    trunk = read_trunk(config, tied=True)
    bias = config.flag("use_bias", True)
    config.require("mlp_type", "default", "only the plain feed-forward is")
    attention = read_gqa(config, trunk.hidden, qkv_bias=bias, output_bias=bias)
    feed_forward = FeedForward("dense", config.integer("intermediate_size"), gated=False, bias=bias)
    windows = read_layer_windows(config, trunk.layers, read_window(config))
    return trunk_blueprint(
        trunk, windowed_layers(Layer(attention, feed_forward, norm_bias=True), windows), _STARCODER2_NAMES
    )
