"""The weight matrices of a layer: name, shape, how tensor parallelism divides it. Every count of weights and FLOPs starts here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.types import Architecture, Attention, LayerKind, StateMixer
from costmodel.equations.numerics import Value, maximum

Group = Literal["attention", "feed_forward", "experts", "router", "hyper_connections"]

CONNECTIONS_FORMAT = PLAIN_FORMATS["fp32"]
"""Engines hold the matrices of hyper-connections so (vllm/models/deepseek_v4/nvidia/model.py, ``hc_attn_fn``)."""
PARTIAL_BYTES = 8.0
"""Of each output of a compressor's projection: fp32, written to its state and read again when an entry is complete [B]."""


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix (or several fused into one kernel) as one GPU holds it.

    Attributes:
        name: kernel name, e.g. ``qkv_proj``.
        group: which entry of :class:`~costmodel.architecture.types.LayerFormats` stores it.
        inputs: k, rows of the matrix on this GPU.
        outputs: m, columns of the matrix on this GPU.
        copies: matrices of this shape on this GPU (experts), else 1.
        biases: bias elements on this GPU.
        fmt: how it is stored.
        of_encoder: it serves an encoder's states, once per request, and no tokens.
        output_bytes: that move for one output; 0: an activation's [B].
    """

    name: str
    group: Group
    inputs: Value
    outputs: Value
    fmt: WeightFormat
    copies: Value = 1
    biases: Value = 0
    of_encoder: bool = False
    output_bytes: float = 0.0

    @property
    def weights(self) -> Value:
        """Weights on this GPU, biases not counted: copies·k·m."""
        return self.copies * self.inputs * self.outputs


def query_heads_per_gpu(attention: Attention, tp: int) -> Value:
    """Return the query heads one GPU computes: h / t."""
    return attention.query_heads if tp == 1 else attention.query_heads / tp


def kv_heads_per_gpu(attention: Attention, tp: int) -> Value:
    """Return the KV heads one GPU holds: max(h_kv / t, 1); more GPUs than heads store each head more than once."""
    if attention.kind == "none":
        return 0
    return attention.kv_heads if tp == 1 else maximum(attention.kv_heads / tp, 1)


def index_heads_per_gpu(attention: Attention, tp: int) -> Value:
    """Return the indexer's heads that one GPU computes: all of them, or where they choose by group max(H_I / t, 1)."""
    if tp == 1 or not attention.index_by_group:
        return attention.index_heads
    return maximum(attention.index_heads / tp, 1)


def index_linears(attention: Attention, hidden: Value, fmt: WeightFormat, plain: WeightFormat) -> list[Linear]:
    """Return the projections of an indexer: its queries, from the compressed ones if there are, its key and its heads' weights.

    They are whole on every GPU; engines hold the latter two in 16 bits, ``plain`` (vllm/model_executor/models/deepseek_v2.py, ``Indexer``).
    """
    inputs, width = attention.q_lora_rank, attention.index_heads * attention.index_head_dim
    return [
        Linear("indexer.wq_b", "attention", inputs if inputs != 0 else hidden, width, fmt),
        Linear("indexer.wk", "attention", hidden, attention.index_head_dim, plain or fmt),
        Linear("indexer.weights_proj", "attention", hidden, attention.index_heads, plain or fmt),
    ]


def attention_linears(
    attention: Attention, hidden: Value, fmt: WeightFormat, tp: int = 1, plain: WeightFormat | None = None
) -> list[Linear]:
    """Return the projections of one attention layer on one of ``tp`` GPUs.

    ``gqa``: qkv d → (h + 2·h_kv)·d_h and output h·d_h → d, divided by heads. ``mla``: query (compressed to
    q_lora_rank or direct), the joint compression d → kv_lora_rank + rope_head_dim (replicated on every GPU), its
    expansion to keys and values, output. An indexer adds its own (:func:`index_linears`), parts of it in 16 bits, ``plain``; where its
    heads choose by group, its queries and its key are further columns of qkv, (H_I + 1)·d_I, H_I divided as KV heads are
    (vllm/models/minimax_m3/nvidia/model.py, ``MinimaxM3QKVParallelLinearWithIndexer``).
    """
    if attention.kind == "none":
        return []
    if attention.shared_kv:
        return shared_kv_linears(attention, hidden, fmt, tp, plain or fmt)
    h, d_qk, d_v = (
        query_heads_per_gpu(attention, tp),
        attention.head_dim,
        attention.value_head_dim,
    )
    linears = []
    if attention.kind == "gqa":
        h_kv = kv_heads_per_gpu(attention, tp)
        q_width = h * d_qk * 2 if attention.output_gate else h * d_qk
        width = q_width + h_kv * d_qk + (0 if attention.keys_are_values else h_kv * d_v)
        if attention.index_by_group:
            width = width + (index_heads_per_gpu(attention, tp) + 1) * attention.index_head_dim
        linears.append(Linear("qkv_proj", "attention", hidden, width, fmt, biases=width if attention.qkv_bias else 0))
    else:
        latent = attention.kv_lora_rank + attention.rope_head_dim
        if attention.q_lora_rank:
            linears.append(Linear("q_a_proj", "attention", hidden, attention.q_lora_rank, fmt))
            linears.append(Linear("q_b_proj", "attention", attention.q_lora_rank, h * d_qk, fmt))
        else:
            linears.append(Linear("q_proj", "attention", hidden, h * d_qk, fmt))
        linears.append(
            Linear("kv_a_proj", "attention", hidden, latent, fmt, biases=latent if attention.qkv_bias else 0)
        )
        expanded = h * (d_qk - attention.rope_head_dim + d_v)
        linears.append(Linear("kv_b_proj", "attention", attention.kv_lora_rank, expanded, fmt))
    if attention.index_heads != 0 and not attention.index_by_group:
        linears += index_linears(attention, hidden, fmt, plain or fmt)
    if attention.gate_dim != 0:
        linears.append(Linear("g_proj", "attention", hidden, h * attention.gate_dim, fmt))
    linears.append(Linear("o_proj", "attention", h * d_v, hidden, fmt, biases=hidden if attention.output_bias else 0))
    return linears


def shared_kv_linears(
    attention: Attention, hidden: Value, fmt: WeightFormat, tp: int, plain: WeightFormat
) -> list[Linear]:
    """Return the projections of attention whose key is its value (DeepSeek-V4), and those of its compressor and indexer.

    The query's latent and the vector of every token in one kernel, d → r_q + h_kv·d_h, whole on every GPU; h·d_h queries from the latent,
    by heads; outputs in g groups of h/g heads, each h·d_h/g → r_o, and g·r_o → d, by groups. A compressor makes a value and a weight of
    every element, 2·h_kv·d_h, twice that where entries overlap; so does that of the indexer. They are held in 16 bits, whole on every GPU
    (vllm/models/deepseek_v4/attention.py and compressor.py).
    """
    width = query_heads_per_gpu(attention, tp) * attention.head_dim
    cached, rank = kv_heads_per_gpu(attention, tp) * attention.head_dim, attention.q_lora_rank
    if rank != 0:
        linears = [
            Linear("qkv_a_proj", "attention", hidden, rank + cached, fmt),
            Linear("q_b_proj", "attention", rank, width, fmt),
        ]
    else:
        linears = [Linear("qkv_proj", "attention", hidden, width + cached, fmt)]
    if attention.compression:
        linears.append(_compressor("compressor", hidden, compressor_width(attention, cached), plain))
    if attention.index_heads != 0:
        index = attention.index_heads * attention.index_head_dim
        linears.append(Linear("indexer.wq_b", "attention", rank if rank != 0 else hidden, index, fmt))
        linears.append(Linear("indexer.weights_proj", "attention", hidden, attention.index_heads, plain))
        inner = compressor_width(attention, attention.index_head_dim)
        linears.append(_compressor("indexer.compressor", hidden, inner, plain))
    if attention.output_groups != 0:
        groups = attention.output_groups / tp if tp > 1 else attention.output_groups
        inputs = _per(attention.query_heads * attention.head_dim, attention.output_groups)
        linears.append(Linear("o_a_proj", "attention", inputs, attention.output_rank, fmt, copies=groups))
        width = groups * attention.output_rank
    linears.append(Linear("o_proj", "attention", width, hidden, fmt))
    return linears


def _per(value: Value, parts: Value) -> Value:
    """Return value ÷ parts, whole where it is."""
    whole = isinstance(value, int) and isinstance(parts, int) and value % parts == 0
    return value // parts if whole else value / parts


def compressor_width(attention: Attention, width: Value) -> Value:
    """Return the elements that a compressor holds of every token for entries of ``width``: of each a value and a weight.

    Entries of m = 4 overlap: each is of 2·m tokens, which are projected for the one that begins with them and for the one before
    (vllm/models/deepseek_v4/compressor.py, ``coff``).
    """
    return 2 * compressor_overlap(attention) * width


def compressor_overlap(attention: Attention) -> int:
    """Return how many entries a token is part of: 2 where m = 4, else 1."""
    return 2 if attention.compression == 4 else 1


def _compressor(name: str, hidden: Value, width: Value, fmt: WeightFormat) -> Linear:
    return Linear(name, "attention", hidden, width, fmt, output_bytes=PARTIAL_BYTES)


def connection_linears(layer: LayerKind, hidden: Value) -> list[Linear]:
    """Return the matrices of hyper-connections, one for each half of the layer: n·d → n·(2 + n), whole on every GPU.

    From all n residuals how each goes in, how each takes the result, and how they mix: n + n + n² (Xie et al., arXiv:2512.24880).
    """
    if layer.residuals == 1:
        return []
    inputs, outputs = layer.residuals * hidden, layer.residuals * (2 + layer.residuals)
    return [Linear("hyper_connections", "hyper_connections", inputs, outputs, CONNECTIONS_FORMAT)] * layer.mixers


def joining_linears(architecture: Architecture) -> list[Linear]:
    """Return the matrix that makes one of the n residuals after the last layer, n·d → n; none where there is but one."""
    residuals = architecture.residuals
    if residuals == 1:
        return []
    return [
        Linear(
            "hyper_connections.head",
            "hyper_connections",
            residuals * architecture.hidden,
            residuals,
            CONNECTIONS_FORMAT,
        )
    ]


def cross_linears(attention: Attention, hidden: Value, fmt: WeightFormat, tp: int = 1) -> list[Linear]:
    """Return the projections of cross-attention: queries d → h·d_h, keys and values of the encoder's states d → 2·h_kv·d_h, output.

    With ``qkv_bias`` queries and values have biases, keys have none (Whisper).
    """
    width = query_heads_per_gpu(attention, tp) * attention.head_dim
    cached = kv_heads_per_gpu(attention, tp) * attention.head_dim
    q_bias, v_bias = (width, cached) if attention.qkv_bias else (0, 0)
    o_bias = hidden if attention.output_bias else 0
    return [
        Linear("cross.q_proj", "attention", hidden, width, fmt, biases=q_bias),
        Linear("cross.kv_proj", "attention", hidden, 2 * cached, fmt, biases=v_bias, of_encoder=True),
        Linear("cross.o_proj", "attention", width, hidden, fmt, biases=o_bias),
    ]


def state_groups_per_gpu(state: StateMixer, tp: int) -> Value:
    """Return the key heads, or groups, one GPU holds: max(G / t, 1); a single group is stored on every GPU."""
    return state.key_heads if tp == 1 else maximum(state.key_heads / tp, 1)


def state_share(state: StateMixer, tp: int) -> StateMixer:
    """Return what one of ``tp`` GPUs has of a recurrent mixer: H / t heads, and their groups."""
    if tp == 1:
        return state
    return replace(state, heads=state.heads / tp, key_heads=state_groups_per_gpu(state, tp))


def state_linears(state: StateMixer, hidden: Value, fmt: WeightFormat, tp: int = 1) -> list[Linear]:
    """Return the projections of one recurrent layer on one of ``tp`` GPUs.

    Into the convolution's channels (2·G·N + H·P) and the gate of the output (H·P), and out of H·P. ``mamba2`` projects a step width per
    head in the same kernel; ``gdn`` a decay and a step width per head in one of their own. ``kda`` projects a step width per head, and
    through a rank of N, which is whole on every GPU, its H·N decays, and perhaps its gate likewise
    (vllm/models/kimi_k3/nvidia/kda.py, ``in_proj_qkvgfab``).
    """
    share = state_share(state, tp)
    width = share.conv_width + share.inner
    linears = []
    if state.kind == "mamba2":
        width = width + share.heads
    if state.kind == "kda":
        width = width + share.heads + state.key_dim
        if state.gate_rank != 0:
            width = width - share.inner + state.gate_rank
    bias = state.projection_bias
    linears.append(Linear("in_proj", "attention", hidden, width, fmt, biases=width if bias else 0))
    if state.kind == "gdn":
        linears.append(Linear("in_proj_ba", "attention", hidden, 2 * share.heads, fmt))
    if state.kind == "kda":
        linears.append(Linear("f_b_proj", "attention", state.key_dim, share.heads * state.key_dim, fmt))
        if state.gate_rank != 0:
            linears.append(Linear("g_b_proj", "attention", state.gate_rank, share.inner, fmt))
    linears.append(Linear("out_proj", "attention", share.inner, hidden, fmt, biases=hidden if bias else 0))
    return linears


def mlp_linears(
    prefix: str,
    group: Group,
    hidden: Value,
    width: Value,
    fmt: WeightFormat,
    gated: bool,
    bias: bool,
    copies: Value = 1,
) -> list[Linear]:
    """Return the two kernels of a feed-forward of ``width`` d_ff: d → d_ff (twice that if gated), and d_ff → d."""
    up = 2 * width if gated else width
    return [
        Linear(
            f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj",
            group,
            hidden,
            up,
            fmt,
            copies,
            copies * up if bias else 0,
        ),
        Linear(f"{prefix}down_proj", group, width, hidden, fmt, copies, copies * hidden if bias else 0),
    ]


def feed_forward_linears(layer: LayerKind, hidden: Value, tp: int = 1, ep: int = 1) -> list[Linear]:
    """Return the matrices of one feed-forward layer on one GPU.

    Dense layers and shared experts are divided by ``tp``. Routed experts are divided by ``tp`` within each expert,
    or, with expert parallelism, whole experts are dealt to ``ep`` GPUs: copies = E / e.
    """
    ff, formats = layer.feed_forward, layer.formats

    def split(width: Value) -> Value:
        return width / tp if tp > 1 else width

    if ff.kind == "none":
        return []
    if ff.kind == "dense":
        return mlp_linears("", "feed_forward", hidden, split(ff.intermediate), formats.feed_forward, ff.gated, ff.bias)
    router = Linear("router", "router", hidden, ff.experts, formats.router, biases=ff.experts if ff.router_bias else 0)
    width, copies = (ff.intermediate, ff.experts / ep) if ep > 1 else (split(ff.intermediate), ff.experts)
    inside = ff.latent if ff.latent != 0 else hidden
    linears = [router, *mlp_linears("experts.", "experts", inside, width, formats.experts, ff.gated, ff.bias, copies)]
    if ff.latent != 0:
        linears.append(Linear("latent_in_proj", "feed_forward", hidden, ff.latent, formats.feed_forward))
        linears.append(Linear("latent_out_proj", "feed_forward", ff.latent, hidden, formats.feed_forward))
    if ff.shared_intermediate != 0:
        shared = split(ff.shared_intermediate)
        linears += mlp_linears(
            "shared_expert.", "feed_forward", hidden, shared, formats.feed_forward, ff.gated, ff.bias
        )
        if ff.shared_gate:
            linears.append(Linear("shared_expert_gate", "router", hidden, 1, formats.router))
    return linears


def layer_linears(layer: LayerKind, hidden: Value, tp: int = 1, ep: int = 1) -> list[Linear]:
    """Return every weight matrix of one layer as one GPU holds it, single kernels in their own formats where they differ."""
    linears = attention_linears(layer.attention, hidden, layer.formats.attention, tp, layer.formats.router)
    if layer.state is not None:
        linears += state_linears(layer.state, hidden, layer.formats.attention, tp)
    if layer.cross is not None:
        linears += cross_linears(layer.cross, hidden, layer.formats.attention, tp)
    linears += feed_forward_linears(layer, hidden, tp, ep)
    linears += connection_linears(layer, hidden)
    if not layer.formats.overrides:
        return linears
    return [replace(linear, fmt=layer.formats.of(linear.name, linear.fmt)) for linear in linears]
