"""Dense decoders of the Llama kind: Llama, Mistral, Qwen, Gemma, Phi-3, Granite, OLMo 2, GLM-4, Cohere, MiMo, SmolLM3.

Shapes follow the model classes of Hugging Face transformers (``modeling_<model_type>.py``), whose parameter counts
equal the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from costmodel.architecture.blueprint import (
    LLAMA_NAMES,
    PHI3_NAMES,
    Blueprint,
    Layer,
    ModuleNames,
    read_gqa,
    read_layer_windows,
    read_positions,
    read_window,
    windowed_layers,
)
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import FeedForward


@dataclass(frozen=True, slots=True)
class Trunk:
    """What nearly every family shares: sizes under the same keys."""

    hidden: int
    layers: int
    vocabulary: int
    positions: int
    tied: bool


def read_trunk(config: ConfigReader, tied: bool = False, vocabulary: int | None = None) -> Trunk:
    """Read the sizes; ``tied`` is the family's default for an absent ``tie_word_embeddings``."""
    return Trunk(
        hidden=config.integer("hidden_size"),
        layers=config.integer("num_hidden_layers"),
        vocabulary=config.integer("vocab_size", default=vocabulary),
        positions=read_positions(config),
        tied=config.flag("tie_word_embeddings", tied),
    )


def trunk_blueprint(
    trunk: Trunk,
    layers: tuple[Layer, ...],
    names: ModuleNames,
    notes: tuple[str, ...] = (),
    lm_head_bias: bool = False,
) -> Blueprint:
    """Build a model from its sizes and its layers."""
    return Blueprint(
        hidden=trunk.hidden,
        vocabulary=trunk.vocabulary,
        layers=layers,
        tied=trunk.tied,
        names=names,
        lm_head_bias=lm_head_bias,
        max_positions=trunk.positions,
        notes=notes,
    )


def dense_blueprint(
    config: ConfigReader,
    trunk: Trunk,
    *,
    windows: tuple[int | None, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: Literal["none", "head", "full"] = "none",
    norms: int = 2,
    names: ModuleNames = LLAMA_NAMES,
    notes: tuple[str, ...] = (),
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Blueprint:
    """Build a dense model with gated feed-forwards and RMS norms."""
    attention = read_gqa(
        config,
        trunk.hidden,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    feed_forward = FeedForward("dense", config.integer("intermediate_size"), bias=mlp_bias)
    layers = windowed_layers(Layer(attention, feed_forward, norms), windows or (None,) * trunk.layers)
    return trunk_blueprint(trunk, layers, names, notes)


def llama(config: ConfigReader) -> Blueprint:
    """Llama 1 to 3.3, Code Llama, Yi, DeepSeek-Coder and everything else of model type ``llama``; Granite has the same shapes.

    ``attention_bias`` puts biases on q, k, v and output (modeling_llama.py).
    """
    bias = config.flag("attention_bias", False)
    return dense_blueprint(
        config, read_trunk(config), qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False)
    )


def granite(config: ConfigReader) -> Blueprint:
    """Granite 3: Llama's shapes with scalar multipliers on embeddings, residuals, attention and logits."""
    config.ignore("logits_scaling")
    return llama(config)


def mistral(config: ConfigReader) -> Blueprint:
    """Mistral and Ministral: a non-null ``sliding_window`` holds for every layer, 4096 if absent (configuration_mistral.py)."""
    trunk = read_trunk(config)
    windows = read_layer_windows(config, trunk.layers, read_window(config, 4096))
    config.require("attention_bias", False, "Mistral has no biases")
    return dense_blueprint(config, trunk, windows=windows)


def qwen_windows(config: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Return Qwen's windows: none unless ``use_sliding_window``; else layers from ``max_window_layers`` on slide."""
    window = read_window(config) if config.flag("use_sliding_window", False) else None
    config.ignore("sliding_window")
    first = config.integer("max_window_layers", default=layers, least=0)
    return read_layer_windows(config, layers, window, [window is not None and i >= first for i in range(layers)])


def qwen2(config: ConfigReader) -> Blueprint:
    """Qwen 2 and 2.5: biases on q, k and v whatever the configuration says (modeling_qwen2.py)."""
    trunk = read_trunk(config)
    config.ignore("attention_bias", "use_mrope")
    return dense_blueprint(config, trunk, windows=qwen_windows(config, trunk.layers), qkv_bias=True)


def mimo(config: ConfigReader) -> Blueprint:
    """MiMo-7B: Qwen 2's layers and one multi-token-prediction layer, which ordinary serving does not load."""
    trunk = read_trunk(config)
    config.ignore("use_mrope")
    notes = prediction_notes(config)
    bias = config.flag("attention_bias", True)
    return dense_blueprint(config, trunk, windows=qwen_windows(config, trunk.layers), qkv_bias=bias, notes=notes)


def qwen3(config: ConfigReader) -> Blueprint:
    """Qwen 3: a norm on each head of q and k; ``attention_bias`` (false in every release) would be on q, k, v and output."""
    trunk = read_trunk(config)
    bias = config.flag("attention_bias", False)
    windows = qwen_windows(config, trunk.layers)
    return dense_blueprint(
        config, trunk, windows=windows, qkv_bias=bias, output_bias=bias, qk_norm="head", head_dim=128
    )


def gemma(config: ConfigReader) -> Blueprint:
    """Gemma 1: tied embeddings; head_dim 256 is the class default (configuration_gemma.py)."""
    config.require("attention_bias", False, "Gemma has no biases")
    return dense_blueprint(config, read_trunk(config, tied=True), head_dim=256)


def gemma2(config: ConfigReader) -> Blueprint:
    """Gemma 2: four norms a layer; every other layer slides, the first one does (configuration_gemma2.py)."""
    config.require("attention_bias", False, "Gemma has no biases")
    trunk = read_trunk(config, tied=True)
    windows = read_layer_windows(
        config, trunk.layers, read_window(config, 4096), [i % 2 == 0 for i in range(trunk.layers)]
    )
    config.ignore("sliding_window_size", "cache_implementation")
    return dense_blueprint(config, trunk, windows=windows, norms=4, head_dim=256)


def gemma3_text(config: ConfigReader) -> Blueprint:
    """Gemma 3: four norms, norms on the heads of q and k; five sliding layers to one full (configuration_gemma3.py).

    Absent keys have that class's defaults: 8 heads, 4 KV heads, head_dim 256, vocabulary 262,208, window 4096,
    pattern 6.
    """
    config.require("attention_bias", False, "Gemma has no biases")
    trunk = read_trunk(config, tied=True, vocabulary=262_208)
    if not trunk.positions:
        trunk = replace(trunk, positions=131_072)
    period = config.first_integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    sliding = [(i + 1) % period != 0 for i in range(trunk.layers)]
    windows = read_layer_windows(config, trunk.layers, read_window(config, 4096), sliding)
    config.ignore("cache_implementation", "use_bidirectional_attention")
    return dense_blueprint(config, trunk, windows=windows, qk_norm="head", norms=4, heads=8, kv_heads=4, head_dim=256)


def phi3(config: ConfigReader) -> Blueprint:
    """Phi-3, Phi-3.5 and Phi-4: fused projections without biases; a non-null window holds for every layer."""
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        config.require(key, False, "Phi-3 has no biases")
    config.require("full_attn_mod", 1, "every layer of Phi-4-mini has full attention")
    trunk = read_trunk(config)
    windows = read_layer_windows(config, trunk.layers, read_window(config))
    return dense_blueprint(config, trunk, windows=windows, names=PHI3_NAMES)


def olmo2(config: ConfigReader) -> Blueprint:
    """OLMo 2: norms after attention and feed-forward, norms over the whole of q and k (modeling_olmo2.py)."""
    config.require("attention_bias", False, "OLMo 2 has no biases")
    return dense_blueprint(config, read_trunk(config), qk_norm="full")


def _glm(config: ConfigReader, norms: int) -> Blueprint:
    names = replace(LLAMA_NAMES, feed_forward=PHI3_NAMES.feed_forward)
    bias = config.flag("attention_bias", False)
    return dense_blueprint(config, read_trunk(config), qkv_bias=bias, norms=norms, names=names)


def glm(config: ConfigReader) -> Blueprint:
    """GLM-4-9B: fused gate and up, biases on q, k and v only (modeling_glm.py)."""
    return _glm(config, norms=2)


def glm4(config: ConfigReader) -> Blueprint:
    """GLM-4-0414: GLM with four norms a layer (modeling_glm4.py)."""
    return _glm(config, norms=4)


def cohere(config: ConfigReader) -> Blueprint:
    """Command R and R+: one bias-free LayerNorm a layer (parallel block), tied embeddings, optional norms on q and k."""
    config.ignore("logit_scale")
    bias = config.flag("attention_bias", False)
    norm: Literal["none", "full"] = "full" if config.flag("use_qk_norm", False) else "none"
    trunk = read_trunk(config, tied=True)
    return dense_blueprint(config, trunk, qkv_bias=bias, output_bias=bias, qk_norm=norm, norms=1)


def cohere2(config: ConfigReader) -> Blueprint:
    """Command R7B and Command A: Cohere's block with three sliding layers to one full (configuration_cohere2.py)."""
    config.ignore("logit_scale", "order_of_interleaved_layers", "rotary_pct", "use_embedding_sharing")
    config.ignore(
        "layer_switch", "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "cache_implementation"
    )
    config.require("use_qk_norm", False, "Command R7B has no norms on q and k")
    bias = config.flag("attention_bias", False)
    trunk = read_trunk(config, tied=True)
    period = config.first_integer("sliding_window_pattern", "_sliding_window_pattern", default=4)
    sliding = [(i + 1) % period != 0 for i in range(trunk.layers)]
    windows = read_layer_windows(config, trunk.layers, read_window(config, 4096), sliding)
    return dense_blueprint(config, trunk, windows=windows, qkv_bias=bias, output_bias=bias, norms=1)


def smollm3(config: ConfigReader) -> Blueprint:
    """SmolLM3: Llama's shapes; rotary embeddings are left out of every fourth layer, which changes no count."""
    config.ignore("no_rope_layers", "no_rope_layer_interval", "max_window_layers")
    bias = config.flag("attention_bias", False)
    trunk = read_trunk(config, tied=True)
    if config.flag("use_sliding_window", False):
        raise config.unsupported("SmolLM3 with sliding windows is not covered")
    config.ignore("sliding_window")
    windows = read_layer_windows(config, trunk.layers, None)
    return dense_blueprint(
        config, trunk, windows=windows, qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False)
    )


def prediction_notes(config: ConfigReader) -> tuple[str, ...]:
    """Return the note about multi-token-prediction layers, if the configuration has any."""
    count = config.integer("num_nextn_predict_layers", default=0, least=0)
    if not count:
        return ()
    return (
        f"{count} multi-token-prediction layer{'s' if count > 1 else ''} not counted (loaded for speculation only)",
    )
