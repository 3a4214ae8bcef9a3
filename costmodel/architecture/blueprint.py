"""What a family reads out of a configuration, before its weights have formats: one :class:`Layer` per decoder layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.types import Attention, FeedForward, Pooling, StateMixer
from costmodel.architecture.vision import VisionTower
from costmodel.equations.work import Window


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer without weight formats (see :class:`~costmodel.architecture.types.LayerKind`)."""

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2
    norm_bias: bool = False
    state: StateMixer | None = None
    scalars: int = 0
    cross: Attention | None = None
    residuals: int = 1


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """How a checkpoint calls its modules: quantisation configurations name them so.

    Each entry maps a kernel of :mod:`~costmodel.architecture.linears` to the checkpoint's modules that it is made of,
    relative to the layer; ``{e}`` stands for the number of a routed expert.
    """

    attention: tuple[tuple[str, tuple[str, ...]], ...]
    feed_forward: tuple[tuple[str, tuple[str, ...]], ...]
    experts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shared: tuple[tuple[str, tuple[str, ...]], ...] = ()
    latent: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prefixes: tuple[str, ...] = ("model.layers.",)
    """What precedes the layer's number in a full name; several where tools disagree."""


def attention_names(prefix: str, qkv: Sequence[str], output: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Name the two kernels of grouped-query attention."""
    return (("qkv_proj", tuple(prefix + name for name in qkv)), ("o_proj", (prefix + output,)))


def mlp_names(
    kernel: str, prefix: str, up: Sequence[str] = ("gate_proj", "up_proj"), down: str = "down_proj"
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Name the two kernels of a feed-forward; ``kernel`` is the prefix of the kernel's name."""
    up_kernel = "gate_up_proj" if len(up) > 1 or "gate_up" in up[0] else "up_proj"
    return (
        (kernel + up_kernel, tuple(prefix + name for name in up)),
        (kernel + "down_proj", (prefix + down,)),
    )


_LLAMA_ATTENTION = attention_names("self_attn.", ("q_proj", "k_proj", "v_proj"), "o_proj")

LLAMA_NAMES = ModuleNames(attention=_LLAMA_ATTENTION, feed_forward=mlp_names("", "mlp."))
"""Llama, Mistral, Qwen, Gemma, Granite, OLMo 2, Cohere."""

PHI3_NAMES = ModuleNames(
    attention=attention_names("self_attn.", ("qkv_proj",), "o_proj"),
    feed_forward=(("gate_up_proj", ("mlp.gate_up_proj",)), ("down_proj", ("mlp.down_proj",))),
)

MIXTRAL_NAMES = ModuleNames(
    attention=_LLAMA_ATTENTION,
    feed_forward=(),
    experts=mlp_names("experts.", "block_sparse_moe.experts.{e}.", ("w1", "w3"), "w2"),
)

QWEN_MOE_NAMES = ModuleNames(
    attention=_LLAMA_ATTENTION,
    feed_forward=mlp_names("", "mlp."),
    experts=mlp_names("experts.", "mlp.experts.{e}."),
    shared=mlp_names("shared_expert.", "mlp.shared_expert."),
)

SHARED_EXPERTS_NAMES = ModuleNames(
    attention=_LLAMA_ATTENTION,
    feed_forward=mlp_names("", "mlp."),
    experts=mlp_names("experts.", "mlp.experts.{e}."),
    shared=mlp_names("shared_expert.", "mlp.shared_experts."),
)
"""GLM-4.5."""

GPT_OSS_NAMES = ModuleNames(
    attention=_LLAMA_ATTENTION,
    feed_forward=(),
    experts=(
        ("experts.gate_up_proj", ("mlp.experts.gate_up_proj",)),
        ("experts.down_proj", ("mlp.experts.down_proj",)),
    ),
)

MLA_NAMES = ModuleNames(
    attention=(
        ("q_a_proj", ("self_attn.q_a_proj",)),
        ("q_b_proj", ("self_attn.q_b_proj",)),
        ("q_proj", ("self_attn.q_proj",)),
        ("kv_a_proj", ("self_attn.kv_a_proj_with_mqa",)),
        ("kv_b_proj", ("self_attn.kv_b_proj",)),
        ("o_proj", ("self_attn.o_proj",)),
        ("indexer.wq_b", ("self_attn.indexer.wq_b",)),
    ),
    feed_forward=SHARED_EXPERTS_NAMES.feed_forward,
    experts=SHARED_EXPERTS_NAMES.experts,
    shared=SHARED_EXPERTS_NAMES.shared,
)
"""DeepSeek V2 to V3.2, Kimi K2, GLM-5."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything of an :class:`~costmodel.architecture.types.Architecture` but its formats."""

    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    tied: bool
    names: ModuleNames = LLAMA_NAMES
    lm_head_bias: bool = False
    extra_parameters: int = 0
    vision: VisionTower | None = None
    max_positions: int = 0
    rotary: bool = True
    final_norm: bool = True
    residual_block: int = 0
    pooling: Pooling = ""
    head: tuple[int, ...] = ()
    kv_dtype: str | None = None
    """Of the KV cache where engines choose it for the model, and the checkpoint says nothing."""
    expert_format: str = ""
    """How routed experts are stored where ``quantization_config`` speaks of all other matrices (``mxfp4``); "" for as it says."""
    notes: tuple[str, ...] = field(default=())


def read_gqa(
    config: ConfigReader,
    hidden: int,
    *,
    window: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: Literal["none", "head", "full"] = "none",
    sinks: bool = False,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Attention:
    """Read multi-head or grouped-query attention.

    ``head_dim`` comes from the configuration; only where it is absent it is hidden / heads. Keyword values are the
    defaults that the family's own configuration class has for absent keys.

    Raises:
        InputError: query heads not divisible by KV heads, or a head dimension that must be derived and does not divide.
    """
    queries = config.integer("num_attention_heads", default=heads)
    keys = config.integer("num_key_value_heads", default=kv_heads if kv_heads is not None else queries)
    if queries % keys:
        raise config.fail("num_attention_heads", f"{queries} is not divisible by num_key_value_heads {keys}")
    if config.has("head_dim"):
        width = config.integer("head_dim")
    elif head_dim is not None:
        width = head_dim
    elif hidden % queries:
        raise config.fail(
            "hidden_size", f"{hidden} is not divisible by num_attention_heads {queries}, and head_dim is missing"
        )
    else:
        width = hidden // queries
    return Attention("gqa", queries, keys, width, width, window, 0, 0, 0, qkv_bias, output_bias, qk_norm, sinks)


def read_layer_windows(
    config: ConfigReader, layers: int, window: int | None, sliding: Sequence[bool] | None = None
) -> tuple[int | None, ...]:
    """Return each layer's window: from ``layer_types`` if it is there, else by the family's rule in ``sliding``.

    Args:
        config: the configuration.
        layers: number of layers.
        window: tokens a sliding layer sees; None if the configuration has no sliding layers.
        sliding: for each layer whether it slides, where ``layer_types`` is absent; None: all do, if there is a window.

    Raises:
        UnsupportedError: a layer type other than full and sliding attention.
        InputError: a wrong number of entries, or sliding layers without a window.
    """
    kinds = config.items("layer_types")
    if not kinds:
        slides = [window is not None] * layers if sliding is None else sliding
        return tuple(window if slide else None for slide in slides)
    if len(kinds) != layers:
        raise config.fail("layer_types", f"has {len(kinds)} entries for {layers} layers")
    other = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
    if other:
        raise config.unsupported(f"layer type {other[0]!r} is not covered (only full and sliding attention are)")
    if "sliding_attention" in kinds and window is None:
        raise config.fail("sliding_window", "is missing, but layer_types has sliding layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def windowed_layers(layer: Layer, windows: Sequence[Window]) -> tuple[Layer, ...]:
    """Return a layer for each window, equal windows sharing one object."""
    distinct = {window: replace(layer, attention=replace(layer.attention, window=window)) for window in set(windows)}
    return tuple(distinct[window] for window in windows)


def read_window(config: ConfigReader, default: int | None = None) -> int | None:
    """Return ``sliding_window``, or the family's ``default`` if the key is absent.

    None if it is null, or at least as long as the longest context, so that it never binds.
    """
    if "sliding_window" in config.config and not config.has("sliding_window"):
        return None
    window = config.integer("sliding_window", default=default or 0, least=0)
    positions = read_positions(config)
    return None if not window or (positions and window >= positions) else window


def read_positions(config: ConfigReader) -> int:
    """Return the longest context that the configuration allows; 0 if it does not say."""
    return config.first_integer("max_position_embeddings", "n_positions", default=0, least=0)
