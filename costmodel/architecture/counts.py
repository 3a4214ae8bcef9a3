"""Counting parameters, stored bytes and cached bytes. Pure functions of an architecture; dimensions may be SymPy symbols.

With d = hidden, V = vocabulary and, per layer, h heads, h_kv KV heads, d_h head dimension, d_ff or E experts of width
d_e::

    total = V·d (embedding) + V·d (lm_head, unless tied) + Σ_layers [linear weights + biases + norms + sinks] + final norm
    active = total − vision − Σ_layers (E − k)·(weights of one expert)
    KV elements per token and layer = 2·h_kv·d_h (gqa), kv_lora_rank + rope_head_dim (mla)
    state per sequence and recurrent layer = H·N·P elements, and (K − 1)·(2·G·N + H·P) inputs of its convolution

Multi-token-prediction layers are not part of an architecture, and so are in no count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.linears import (
    Linear,
    compressor_overlap,
    joining_linears,
    kv_heads_per_gpu,
    layer_linears,
    query_heads_per_gpu,
    state_share,
)
from costmodel.architecture.types import Architecture, Attention, LayerKind, StateMixer
from costmodel.equations.numerics import Value, maximum

_MODULE_NAMES: Final = {
    "attention": "attention",
    "feed_forward": "feed-forward",
    "experts": "experts",
    "router": "router",
    "hyper_connections": "hyper-connections",
}


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """Parameters of one module in one format, over all layers of one GPU.

    Attributes:
        module: embedding, lm_head, attention, feed-forward, shared expert, experts, router, norms, biases and sinks,
            vision, other.
        count: number of parameters.
        format: name of the format they are stored in.
        bytes: what they take, scales included [B].
    """

    module: str
    count: Value
    format: str
    bytes: Value


def norm_parameters(hidden: Value, bias: bool) -> Value:
    """Return the parameters of one norm of width ``hidden``: a weight, and a bias if it is a LayerNorm with one."""
    return 2 * hidden if bias else hidden


def attention_extras(attention: Attention, tp: int = 1) -> Value:
    """Return the parameters of an attention layer outside its projections: norms of q, k and latents, and sinks.

    ``head``: one norm of d_h for q and one for k; ``full``: over all heads, h·d_h and h_kv·d_h; ``mla``: over the
    latents.
    """
    heads = query_heads_per_gpu(attention, tp)
    count: Value = heads if attention.sinks else 0
    if attention.shared_kv:
        return count + shared_kv_extras(attention, tp)
    if attention.index_heads != 0:
        count = count + 2 * attention.index_head_dim  # LayerNorm of its key; or norms of its queries' heads and its key
    if attention.kind == "mla":
        count = count + attention.kv_lora_rank + attention.q_lora_rank
    if attention.qk_norm == "head":
        count = count + 2 * attention.head_dim
    elif attention.qk_norm == "full":
        count = count + (heads + kv_heads_per_gpu(attention, tp)) * attention.head_dim
    return count


def shared_kv_extras(attention: Attention, tp: int = 1) -> Value:
    """Return the norms of latent and key of DeepSeek-V4's attention, and what its compressors have beside their projections.

    A norm of the entries of D = h_kv·d_h, and a bias for every element of each of the m tokens: m·D, twice that where entries overlap;
    the same of the indexer's, whose D is d_I.
    """
    width = kv_heads_per_gpu(attention, tp) * attention.head_dim
    count = attention.q_lora_rank + width
    if attention.compression:
        biases = attention.compression * compressor_overlap(attention)
        entries = width + (attention.index_head_dim if attention.index_heads != 0 else 0)
        count = count + (biases + 1) * entries
    return count


def layer_small_parameters(layer: LayerKind, hidden: Value, tp: int = 1) -> Value:
    """Return the parameters of a layer that are no matrices and no biases of matrices: its norms and sinks."""
    count = layer.norms * norm_parameters(hidden, layer.norm_bias) + attention_extras(layer.attention, tp)
    if layer.state is not None:
        count = count + state_extras(layer.state, tp)
    if layer.cross is not None:
        count = count + attention_extras(layer.cross, tp)
    if layer.feed_forward.latent_norm:
        count = count + layer.feed_forward.latent
    return count + layer.scalars


def state_extras(state: StateMixer, tp: int = 1) -> Value:
    """Return the parameters of a recurrent layer outside its projections.

    The convolution, K·(2·G·N + H·P) and perhaps biases; per head a decay and a bias of the step width, for ``mamba2`` also a skip; and the
    norm of the gated outputs, P for ``gdn`` (shared by its heads), H·P for ``mamba2``. ``kda`` is as ``gdn``, with a bias for each of its
    H·N decays instead.
    """
    share = state_share(state, tp)
    count = (state.conv_kernel + int(state.conv_bias)) * share.conv_width
    if state.kind == "gdn":
        return count + 2 * share.heads + state.value_dim
    if state.kind == "kda":  # a bias for every decay
        return count + share.heads + share.heads * state.key_dim + state.value_dim
    return count + 3 * share.heads + share.inner


def layer_parameters(layer: LayerKind, hidden: Value) -> Value:
    """Return all parameters of one layer."""
    linears = layer_linears(layer, hidden)
    return sum(linear.weights + linear.biases for linear in linears) + layer_small_parameters(layer, hidden)


def expert_parameters(layer: LayerKind, hidden: Value) -> Value:
    """Return the parameters of one routed expert of a layer (0 in a dense layer)."""
    ff = layer.feed_forward
    if ff.kind != "moe":
        return 0
    inputs, width = ff.latent if ff.latent != 0 else hidden, ff.intermediate
    matrices = 3 if ff.gated else 2
    biases = (matrices - 1) * width + inputs if ff.bias else 0
    return matrices * inputs * width + biases


def layer_counts(arch: Architecture) -> list[tuple[LayerKind, int]]:
    """Return each layer kind with the number of layers of that kind."""
    count = Counter(arch.pattern)
    return [(kind, count[index]) for index, kind in enumerate(arch.kinds)]


def text_parameters(arch: Architecture) -> Value:
    """Return the parameters of the text model: everything but the vision tower and its projector."""
    total = sum(count * layer_parameters(kind, arch.hidden) for kind, count in layer_counts(arch))
    total = total + sum(linear.weights for linear in joining_linears(arch))
    total = total + arch.vocabulary * arch.hidden * (1 if arch.tied_embeddings else 2)
    if arch.lm_head_bias:
        total = total + arch.vocabulary
    if arch.final_norm:
        total = total + norm_parameters(arch.hidden, _final_norm_bias(arch))
    return total + arch.extra_parameters


def total_parameters(arch: Architecture) -> Value:
    """Return the parameters that serving holds in memory: the text model, and the vision tower if there is one."""
    return text_parameters(arch) + arch.vision_parameters


def active_parameters(arch: Architecture) -> Value:
    """Return the parameters that take part in a text token: the text model without the routed experts not chosen.

    The embedding counts whole, as on most model cards; some publish the figure without it.
    """
    idle: Value = 0
    for kind, count in layer_counts(arch):
        ff = kind.feed_forward
        if ff.kind == "moe":
            idle = idle + count * (ff.experts - ff.experts_per_token) * expert_parameters(kind, arch.hidden)
    return text_parameters(arch) - idle


def parameter_table(arch: Architecture, tp: int = 1, ep: int = 1) -> list[ParameterRow]:
    """Return what one of ``tp`` GPUs holds, by module and format, in the order in which a token passes.

    Norms, biases of output projections, routers and the vision tower are held whole by every GPU; KV heads that are
    fewer than GPUs are held more than once.
    """
    plain = PLAIN_FORMATS[arch.dtype]
    rows: dict[tuple[str, str], list[Value]] = {}

    def add(module: str, count: Value, fmt: WeightFormat) -> None:
        if isinstance(count, int | float) and count == 0:
            return
        entry = rows.setdefault((module, fmt.name), [0, 0])
        entry[0] = entry[0] + count
        entry[1] = entry[1] + count * fmt.bytes_per_weight

    vocabulary = arch.vocabulary / tp if tp > 1 else arch.vocabulary
    add("embedding", vocabulary * arch.hidden, arch.embedding_format)
    small: Value = 0
    for kind, count in layer_counts(arch):
        for linear in layer_linears(kind, arch.hidden, tp, ep):
            add(_module_name(linear), count * linear.weights, linear.fmt)
            small = small + count * linear.biases
        small = small + count * layer_small_parameters(kind, arch.hidden, tp)
    for linear in joining_linears(arch):
        add(_module_name(linear), linear.weights, linear.fmt)
    if arch.final_norm:
        small = small + norm_parameters(arch.hidden, _final_norm_bias(arch))
    if arch.lm_head_bias:
        small = small + vocabulary
    if not arch.tied_embeddings:
        add("lm_head", vocabulary * arch.hidden, arch.lm_head_format)
    add("norms, biases, sinks", small, plain)
    add("other", arch.extra_parameters, plain)
    add("vision", arch.vision_parameters, plain)
    return [ParameterRow(module, count, fmt, size) for (module, fmt), (count, size) in rows.items()]


def checkpoint_bytes(arch: Architecture) -> Value:
    """Return the bytes of all weights, scales included [B]; tied embeddings once."""
    return weight_bytes_per_gpu(arch)


def weight_bytes_per_gpu(arch: Architecture, tp: int = 1, ep: int = 1) -> Value:
    """Return the bytes of weights that one of ``tp`` GPUs holds [B]; routed experts are dealt to ``ep`` GPUs if ``ep`` > 1."""
    return sum(row.bytes for row in parameter_table(arch, tp, ep))


def kv_elements_per_token(attention: Attention, tp: int = 1) -> Value:
    """Return the elements that one GPU caches per token and layer.

    ``gqa``: h_kv·(d_k + d_v), KV heads divided by ``tp`` but never below one. ``mla``: the latent and the rotary key,
    once (no factor 2), and whole on every GPU. A vector that is key and value alike counts once too. The keys of an indexer come on top
    (:func:`index_bytes_per_token`).
    """
    if attention.kind == "none":
        return 0
    if attention.kind == "mla":
        return attention.kv_lora_rank + attention.rope_head_dim
    if attention.shared_kv:
        return kv_heads_per_gpu(attention, tp) * attention.head_dim
    return kv_heads_per_gpu(attention, tp) * (attention.head_dim + attention.value_head_dim)


def cached_key_bytes(attention: Attention, kv_bytes: Value, tp: int = 1) -> Value:
    """Return the bytes that one GPU caches for one key and its value in one layer, b_kv for each element [B].

    An 8-bit cache of vectors that are key and value alike keeps their rotary part in 16 bits, and a scale for every 64 of the others,
    8 B for 448: 448 + 2·64 + 8 = 584 B for DeepSeek-V4 (vllm/models/deepseek_v4/attention.py, ``fp8_ds_mla``).
    """
    elements = kv_elements_per_token(attention, tp) * kv_bytes
    if not attention.shared_kv:
        return elements
    beside = attention.rope_head_dim + (attention.head_dim - attention.rope_head_dim) / 64 + 1
    return elements + kv_heads_per_gpu(attention, tp) * beside * maximum(2 - kv_bytes, 0)


def index_key_bytes(attention: Attention) -> Value:
    """Return the bytes of one key of an indexer, whole on every GPU, whatever the format of the KV cache [B].

    8 bits and a 4-byte scale for every 128 of its elements: d_I + 4·d_I/128 (vllm/model_executor/models/deepseek_v2.py, ``Indexer``).
    Where its heads choose by group, 16 bits: 2·d_I (vllm/models/minimax_m3/common/indexer.py, ``MiniMaxM3IndexerCache``).
    """
    if attention.index_heads == 0:
        return 0
    width = attention.index_head_dim
    return 2 * width if attention.index_by_group else width + width / 32


def index_bytes_per_token(attention: Attention) -> Value:
    """Return the bytes that an indexer caches per token and layer: one key, or one for every m tokens where keys are compressed [B]."""
    return index_key_bytes(attention) / attention.compression if attention.compression else index_key_bytes(attention)


def layer_kv_bytes(attention: Attention, kv_bytes: Value, tp: int = 1) -> Value:
    """Return the bytes that one GPU caches per token in one layer, the indexer's included; none of bidirectional attention [B].

    Where keys are compressed 1 + 1/m of them: that of the token, which its window drops, and its share of an entry, which stays.
    """
    if not attention.caches:
        return 0
    each = cached_key_bytes(attention, kv_bytes, tp)
    kept = each + each / attention.compression if attention.compression else each
    return kept + index_bytes_per_token(attention)


def state_bytes_per_sequence(state: StateMixer, activation_bytes: Value, tp: int = 1, drafts: int = 0) -> Value:
    """Return the bytes that one GPU keeps per sequence for one recurrent layer [B].

    H·N·P elements of state, and the last K − 1 inputs of the convolution's 2·G·N + H·P channels, as many more as there are ``drafts``
    to verify in a step (vllm/model_executor/layers/mamba/mamba_utils.py, ``MambaStateShapeCalculator``).
    """
    share = state_share(state, tp)
    recurrent = share.heads * state.key_dim * state.value_dim * (state.state_bytes or activation_bytes)
    return recurrent + (state.conv_kernel - 1 + drafts) * share.conv_width * activation_bytes


def state_bytes(arch: Architecture, activation_bytes: float = 2.0, tp: int = 1) -> Value:
    """Return the bytes that one GPU keeps per sequence whatever its length, over all layers [B]."""
    return sum(
        count * state_bytes_per_sequence(kind.state, activation_bytes, tp)
        for kind, count in layer_counts(arch)
        if kind.state is not None
    )


def crossing_parameters(arch: Architecture, counts: Sequence[Value]) -> Value:
    """Return the parameters of the layers that are left out where nothing is encoded; ``counts`` are the layers of each kind."""
    pairs = zip(arch.kinds, counts, strict=True)
    return sum(count * layer_parameters(kind, arch.hidden) for kind, count in pairs if kind.needs_encoder)


def cross_bytes(arch: Architecture, states: Value, kv_bytes: Value = 2.0, tp: int = 1) -> Value:
    """Return the bytes of keys and values of ``states`` of an encoder that one GPU keeps per sequence, over all layers [B]."""
    return sum(
        count * states * kv_elements_per_token(kind.cross, tp) * kv_bytes
        for kind, count in layer_counts(arch)
        if kind.cross is not None
    )


def kv_bytes_per_token(arch: Architecture, kv_bytes: float = 2.0, tp: int = 1) -> Value:
    """Return the bytes that one GPU caches per token, over all layers [B].

    Sliding layers count in full, as they do for every token until the window is full; beyond it they hold no more.

    Args:
        arch: the model.
        kv_bytes: bytes of one cached element (2 for bf16).
        tp: tensor-parallel size.
    """
    return sum(count * layer_kv_bytes(kind.attention, kv_bytes, tp) for kind, count in layer_counts(arch))


def _final_norm_bias(arch: Architecture) -> bool:
    return arch.kinds[-1].norm_bias


def _module_name(linear: Linear) -> str:
    if linear.name.startswith("shared_expert."):
        return "shared expert"
    return _MODULE_NAMES[linear.group]
