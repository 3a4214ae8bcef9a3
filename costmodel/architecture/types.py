"""What a model is made of. Frozen dataclasses, so that the same types carry numbers or SymPy symbols.

An :class:`Architecture` is read from a ``config.json`` by :mod:`costmodel.architecture.source`; nothing here reads
files. Dimensions that equations use are :data:`~costmodel.equations.numerics.Value`; structure (kinds, windows,
flags) is plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.vision import VisionTower
from costmodel.equations.compressed import Compressed
from costmodel.equations.numerics import Value
from costmodel.equations.work import BothWays, OwnReach, Window

Pooling = Literal["", "cls", "mean", "last"]
"""How the tokens' outputs become one vector; "" for a model that writes text."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One kind of attention layer.

    ``kind`` is ``gqa`` (multi-head, grouped-query and multi-query alike), ``mla`` (multi-head latent attention) or ``none``
    (:data:`NO_ATTENTION`: a layer that mixes tokens otherwise, or not at all).
    """

    kind: Literal["gqa", "mla", "none"]
    query_heads: Value
    """h"""
    kv_heads: Value
    """h_kv; for ``mla`` the latent is shared by all heads and this equals ``query_heads``."""
    head_dim: Value
    """d_h, the query/key dimension of one head; for ``mla`` qk_nope_head_dim + qk_rope_head_dim."""
    value_head_dim: Value
    """Dimension of one value head (= d_h except for ``mla`` and some hybrids)."""
    window: Window = None
    """Tokens that a query sees, itself included; chunks that it sees its own of; both ways in encoders; None for full attention."""
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
    gate_dim: Value = 0
    """Numbers per head of another projection that gates the output: 1 (Step-3.5), d_v (Kimi K3); 0 without one."""
    fitted_head_dim: int = 0
    """d_h as a number, by which fitted kernels are chosen, where ``head_dim`` is a symbol; else 0."""
    top_k: int = 0
    """Sparse attention: keys that an indexer chooses for every query; the cache keeps all. 0: a query sees all that its window has."""
    index_heads: Value = 0
    """H_I, heads of the indexer; 0 where there is none, or the choice of an earlier layer is taken over."""
    index_head_dim: Value = 0
    """d_I, dimension of an indexer's head; it caches one key of it per token for all its heads."""
    index_by_group: bool = False
    """False: the indexer's heads choose together, and its key is cached in 8 bits (DeepSeek-V3.2). True: each chooses for a group of query
    heads, that of a KV head, and is divided with those; it is cached in 16 bits, and has no weights of heads (MiniMax-M3)."""
    keys_are_values: bool = False
    """Values are the keys before their norm and rotation: one projection less, both are cached (Gemma 4)."""
    shared_kv: bool = False
    """One vector of d_h per token and KV head is key and value alike, and cached once; queries come from a latent (DeepSeek-V4)."""
    compression: int = 0
    """m, tokens whose keys a compressor makes into one more that is cached, beside the last ``window`` as they are; ``top_k`` then counts
    compressed ones. 0: keys of tokens alone."""
    output_groups: Value = 0
    """g, groups of heads whose outputs are projected to ``output_rank`` each before the output projection; 0 where there is but that."""
    output_rank: Value = 0
    """r_o, width of one of these groups."""

    @property
    def reach(self) -> OwnReach:
        """What a query reads of the keys: its window, as many as the indexer chooses, or compressed keys beside its window."""
        if self.compression:
            return Compressed(self.compression, int(self.window) if isinstance(self.window, int) else 0, self.top_k)
        return self.top_k or self.window

    @property
    def index_reach(self) -> OwnReach:
        """What an indexer compares a query with: all keys before it, or all that are compressed."""
        return Compressed(self.compression) if self.compression else None

    @property
    def caches(self) -> bool:
        """Whether keys and values are kept for later steps: a query that sees both ways needs its whole sequence in one step."""
        return self.kind != "none" and not isinstance(self.window, BothWays)


NO_ATTENTION = Attention("none", 0, 0, 0, 0)
"""Of a layer without attention."""


@dataclass(frozen=True, slots=True)
class StateMixer:
    """A recurrent layer: it keeps a state of fixed size per sequence instead of keys and values.

    ``gdn``: gated delta net (Qwen3-Next; Yang et al., arXiv:2412.06464), S ← g·S + β·k(v − kᵀS)ᵀ per value head, o = qᵀS.
    ``mamba2``: state-space duality (Dao & Gu, arXiv:2405.21060), S ← a·S + Δ·x·Bᵀ per head, y = S·C, with B and C shared by a group.
    ``kda``: Kimi delta attention (Kimi Linear, arXiv:2510.26692), a gated delta net with a decay of its own for every row of the state.
    A causal convolution over ``conv_kernel`` tokens precedes all.
    """

    kind: Literal["gdn", "kda", "mamba2"]
    heads: Value
    """H, value heads (``gdn``) or heads: one state each."""
    key_heads: Value
    """G, heads of q and k, or groups of B and C."""
    key_dim: Value
    """N, rows of a state: dimension of a key, or ``ssm_state_size``."""
    value_dim: Value
    """P, columns of a state: dimension of a value, or of a head."""
    conv_kernel: int = 4
    """K, tokens that the convolution sees."""
    chunk: int = 64
    """Q, tokens of a chunk of the prefill's scan."""
    state_bytes: float = 0
    """Bytes of an element of the state; 0: as activations, as the convolution's inputs always are."""
    conv_bias: bool = False
    projection_bias: bool = False
    gate_rank: Value = 0
    """Rank through which ``kda`` projects its output gate, where it does (Kimi Linear); the decays' is N."""

    @property
    def inner(self) -> Value:
        """H·P, width of the mixer's values and outputs."""
        return self.heads * self.value_dim

    @property
    def conv_width(self) -> Value:
        """2·G·N + H·P, channels of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One kind of feed-forward layer, dense or mixture of experts.

    For ``dense`` only ``intermediate`` counts. For ``moe`` the router sends each token to ``experts_per_token`` of
    ``experts``, and every token also passes the shared expert, if there is one.
    """

    kind: Literal["dense", "moe", "none"]
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
    latent: Value = 0
    """Width that routed experts work in, between two projections from and to d (Nemotron 3 Super); 0: d itself."""
    latent_norm: bool = False
    """Their sum has a norm before it is projected back (Kimi K3), so that GPUs add it up before, not only after."""


NO_FEED_FORWARD = FeedForward("none", 0)
"""Of a layer without one."""


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
    state: StateMixer | None = None
    """The recurrent mixer of a layer that has one."""
    scalars: Value = 0
    """Learned numbers that are no matrix, bias, norm or sink: scales of a router's inputs and experts (Gemma 4), gates (Mllama)."""
    cross: Attention | None = None
    """Attention over the states of an encoder, beside the layer's own or instead of it; they are as wide as the decoder."""
    residuals: int = 1
    """n, residual streams of width d, which hyper-connections mix at each half of the layer (DeepSeek-V4); 1: the usual one."""

    @property
    def mixers(self) -> int:
        """How many of the two halves of a usual layer there are: what mixes tokens, and the feed-forward; cross-attention is one more."""
        mixes = self.attention.kind != "none" or self.state is not None
        return int(mixes) + int(self.cross is not None) + int(self.feed_forward.kind != "none")

    @property
    def needs_encoder(self) -> bool:
        """Whether the layer is left out where a sequence has nothing encoded: one that has no attention but cross-attention."""
        return self.cross is not None and self.attention.kind == "none"


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
        vision: the vision tower and its projector, which hold memory, but take part only in steps with images; None without.
        extra_parameters: others that are stored but not covered by the layers (learned positions, norms of embeddings, heads).
        rotary: positions are rotations, of which engines keep a table, and not learned.
        final_norm: a norm of width d before lm_head.
        residual_block: layers whose outputs are summed to a block; every mixer attends to the blocks before it, one query for all tokens
            (AttnRes of Kimi K3); 0 for the usual sum of all layers.
        pooling: how a model that has no lm_head and writes no text makes one vector of a document: ``cls`` (the first token's),
            ``mean`` or ``last``; "" for a model that writes text.
        head: outputs of the matrices that follow, one row per document: d, then the labels of a classifier.
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
    vision: VisionTower | None = None
    extra_parameters: int = 0
    rotary: bool = True
    final_norm: bool = True
    residual_block: int = 0
    pooling: Pooling = ""
    head: tuple[int, ...] = ()
    quantization: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.pattern)

    @property
    def residuals(self) -> int:
        """n, residual streams between the layers."""
        return max((kind.residuals for kind in self.kinds), default=1)

    @property
    def compresses(self) -> bool:
        """Whether keys are compressed in any layer, so that caches of several kinds lie side by side."""
        return any(kind.attention.compression for kind in self.kinds)

    @property
    def vision_parameters(self) -> int:
        """Parameters of the vision tower and its projector."""
        return self.vision.parameters if self.vision is not None else 0

    @property
    def bidirectional(self) -> bool:
        """Whether queries see both ways: then nothing is kept of a sequence, and its whole prompt goes in one step."""
        return any(isinstance(kind.attention.window, BothWays) for kind in self.kinds)

    @property
    def splits_prompts(self) -> bool:
        """Whether a prompt may go in several steps: attention is causal, and no pooling needs the outputs of all its tokens at once.

        As vLLM has it (vllm/config/model.py, ``is_chunked_prefill_supported``).
        """
        return not self.bidirectional and self.pooling in ("", "last")
