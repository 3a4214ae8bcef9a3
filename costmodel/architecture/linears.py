"""The weight matrices of a layer: name, shape, how tensor parallelism divides it. Every count of weights and FLOPs starts here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from costmodel.architecture.formats import WeightFormat
from costmodel.architecture.types import Attention, LayerKind, StateMixer
from costmodel.equations.numerics import Value, maximum

Group = Literal["attention", "feed_forward", "experts", "router"]


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
    """

    name: str
    group: Group
    inputs: Value
    outputs: Value
    fmt: WeightFormat
    copies: Value = 1
    biases: Value = 0
    of_encoder: bool = False

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
    if not layer.formats.overrides:
        return linears
    return [replace(linear, fmt=layer.formats.of(linear.name, linear.fmt)) for linear in linears]
