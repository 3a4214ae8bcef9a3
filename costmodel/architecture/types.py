"""What a model is made of. Frozen dataclasses, so that the same types carry numbers or SymPy symbols.

An :class:`Architecture` is read from a ``config.json`` by :mod:`costmodel.architecture.source`; nothing here reads
files. Dimensions that equations use are :data:`~costmodel.equations.numerics.Value`; structure (kinds, windows,
flags) is plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.equations.numerics import Value


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention layer.

    ``kind`` is ``gqa`` (multi-head, grouped-query and multi-query alike) or ``mla`` (multi-head latent attention).
    """

    kind: Literal["gqa", "mla"]
    query_heads: Value
    """h"""
    kv_heads: Value
    """h_kv; for ``mla`` the latent is shared by all heads and this equals ``query_heads``."""
    head_dim: Value
    """d_h, the query/key dimension of one head; for ``mla`` qk_nope_head_dim + qk_rope_head_dim."""
    value_head_dim: Value
    """Dimension of one value head (= d_h except for ``mla`` and some hybrids)."""
    window: int | None = None
    """Tokens that a query sees, itself included; None for full attention."""
    q_lora_rank: Value = 0
    """``mla``: rank of the query compression; 0 if queries are projected directly."""
    kv_lora_rank: Value = 0
    """``mla``: rank of the cached latent."""
    rope_head_dim: Value = 0
    """``mla``: the rotary part of the key that is cached beside the latent."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    """Normalisation of q and k: one weight per head dimension (Qwen3, Gemma 3), or over all heads (MiniMax-M2, OLMo 2)."""
    sinks: bool = False
    """One learned sink logit per query head (gpt-oss)."""
    output_gate: bool = False
    """Queries are projected to twice their width and gate the output."""
    fitted_head_dim: int = 0
    """d_h as a number, by which fitted kernels are chosen, where ``head_dim`` is a symbol; else 0."""


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One kind of feed-forward layer, dense or mixture of experts.

    For ``dense`` only ``intermediate`` counts. For ``moe`` the router sends each token to ``experts_per_token`` of
    ``experts``, and every token also passes the shared expert, if there is one.
    """

    kind: Literal["dense", "moe"]
    intermediate: Value
    """d_ff of a dense layer; d_e, the width of one routed expert, for ``moe``."""
    gated: bool = True
    """True: gate and up projections (SwiGLU, GeGLU), 3·d·d_ff weights; False: 2·d·d_ff."""
    bias: bool = False
    """Biases on the projections (gpt-oss experts, Phi, GPT-2 kind)."""
    experts: Value = 0
    """E"""
    experts_per_token: Value = 0
    """k"""
    shared_intermediate: Value = 0
    """Width of all shared experts together; 0 if there are none."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a learned gate of d weights (Qwen2-MoE)."""
    router_bias: bool = False
    """One bias per expert in the router (gpt-oss, DeepSeek-V3's correction bias)."""


@dataclass(frozen=True, slots=True)
class LayerFormats:
    """Weight format of each group of linear modules in a layer."""

    attention: WeightFormat
    """q, k, v and output projections (and the latent projections of ``mla``)."""
    feed_forward: WeightFormat
    """Dense feed-forward, or the shared experts of a ``moe`` layer."""
    experts: WeightFormat
    """Routed experts; equal to ``feed_forward`` in a dense layer."""
    router: WeightFormat
    overrides: tuple[tuple[str, WeightFormat], ...] = ()
    """Single kernels (``o_proj``, ``kv_a_proj`` …) that are stored otherwise than their group, by name."""

    def of(self, kernel: str, group: WeightFormat) -> WeightFormat:
        """Return how one kernel is stored: as its ``group``, unless there is an override."""
        for name, fmt in self.overrides:
            if name == kernel:
                return fmt
        return group

    @classmethod
    def uniform(cls, fmt: WeightFormat) -> LayerFormats:
        """Return formats with every module stored alike."""
        return cls(fmt, fmt, fmt, fmt)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A decoder layer: its attention, its feed-forward, how its weights are stored."""

    attention: Attention
    feed_forward: FeedForward
    formats: LayerFormats
    norms: int = 2
    """Norms of width d in the layer (Llama 2, Gemma 2 and 3 have 4, parallel blocks 1)."""
    norm_bias: bool = False
    """LayerNorm with bias instead of RMSNorm."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything the equations need to know of a model.

    Attributes:
        name: how the user may call it again, e.g. ``Llama-3.1-8B``.
        model_type: ``model_type`` of the config.
        hidden: d.
        vocabulary: V, rows of the embedding as stored.
        kinds: the distinct layer kinds, in order of first appearance.
        pattern: for each layer, in order, the index of its kind; L = len(pattern).
        dtype: 16- or 32-bit dtype of activations and unquantised weights (``bf16``, ``fp16``, ``fp32``).
        tied_embeddings: lm_head shares the embedding's weights.
        embedding_format, lm_head_format: how those two are stored.
        lm_head_bias: bias of V in lm_head.
        kv_dtype: dtype of the KV cache if the checkpoint fixes it (``fp8`` where it carries KV scales), else None: as
            ``dtype``.
        max_positions: longest context the config allows; 0 if it does not say.
        vision_parameters: of a vision tower and its projector, which hold memory but take no part in text steps.
        extra_parameters: others that are stored but not covered by the layers (learned positions).
        final_norm: a norm of width d before lm_head.
        quantization: name of the quantisation method, or "" (for display).
        notes: what the reader should know, e.g. "multi-token-prediction layer not counted".
    """

    name: str
    model_type: str
    hidden: Value
    vocabulary: Value
    kinds: tuple[LayerKind, ...]
    pattern: tuple[int, ...]
    dtype: str
    tied_embeddings: bool
    embedding_format: WeightFormat = PLAIN_FORMATS["bf16"]
    lm_head_format: WeightFormat = PLAIN_FORMATS["bf16"]
    lm_head_bias: bool = False
    kv_dtype: str | None = None
    max_positions: int = 0
    vision_parameters: int = 0
    extra_parameters: int = 0
    final_norm: bool = True
    quantization: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.pattern)
