"""Attention as kernels of a step: pairs of query and key, bytes of K and V, indexers of sparse attention."""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.counts import cached_key_bytes, index_key_bytes
from costmodel.architecture.linears import index_heads_per_gpu, kv_heads_per_gpu, query_heads_per_gpu
from costmodel.architecture.types import Attention
from costmodel.building.layers import layer_kinds
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value
from costmodel.equations.parameters import AttentionKernel
from costmodel.equations.rate_sources import CHOSEN, LATENT, RateSource
from costmodel.equations.work import EncoderStates, OwnReach, Reach, window_name


def attention_kernels(deployment: Deployment, rates: RateSource) -> tuple[AttentionKernel, ...]:
    """Return one kernel per shape and window of attention, cross-attention and indexers included."""
    hardware, tp = deployment.hardware, deployment.tp
    counts: dict[tuple[Attention, bool], Value] = {}
    found = [(kind.attention, False, count) for kind, count in layer_kinds(deployment)]
    found += [(kind.cross, True, count) for kind, count in layer_kinds(deployment) if kind.cross is not None]
    for each, crosses, count in found:
        if each.kind == "none":
            continue
        shape = replace(
            each,
            qkv_bias=False,
            output_bias=False,
            qk_norm="none",
            sinks=False,
            output_gate=False,
            gate_dim=0,
            keys_are_values=False,
            index_heads=0,
            index_head_dim=0,
            index_by_group=False,
        )
        key = shape, crosses
        counts[key] = counts[key] + count if key in counts else count
    dtype = deployment.attention_dtype
    suffixes = _attention_suffixes([attention.reach for attention, crosses in counts if not crosses])
    kernels: list[AttentionKernel] = []
    for (attention, crosses), count in counts.items():
        heads = query_heads_per_gpu(attention, tp)
        pair = 2 * heads * (attention.head_dim + attention.value_head_dim)
        # MLA decodes on the latent itself: scores over kv_lora_rank + rope, values over kv_lora_rank, for every head.
        absorbed = 2 * heads * (2 * attention.kv_lora_rank + attention.rope_head_dim)
        # So does sparse attention in prefill: every query has keys of its own, and no keys and values are expanded for them
        # (vllm/v1/attention/backends/mla/flashmla_sparse.py).
        spread = absorbed if attention.kind == "mla" and attention.top_k else pair
        window: Reach = EncoderStates(deployment.encoder_states) if crosses else attention.reach
        peak = hardware.peaks[dtype]
        fitted = _fitted_kinds(deployment, attention)
        prefill = rates.attention("prefill_attention", fitted, peak, hardware.bandwidth)
        decode = rates.attention("decode_attention", fitted, peak, hardware.bandwidth)
        widths = attention.head_dim + attention.value_head_dim
        windowed = (
            window is not None and not crosses and not attention.shared_kv
        )  # whose kernels serve all heads together
        rows = 2 * widths * hardware.units * count
        kernels.append(
            AttentionKernel(
                window=window,
                suffix="" if crosses else suffixes[len(kernels)],
                flops_per_pair=spread * count,
                flops_per_kv_token=(absorbed if attention.kind == "mla" else pair) * count,
                kv_bytes_per_token=cached_key_bytes(attention, deployment.kv_bytes, tp) * count,
                count=count,
                prefill_rate=prefill,
                decode_rate=decode,
                prefill_tile=rates.prefill_tile(prefill, heads * widths * deployment.activation_bytes * count, rows),
                decode_split=rates.decode_split(
                    decode, heads, kv_heads_per_gpu(attention, tp), attention.head_dim, count, windowed
                ),
                mixed_tiles=None
                if crosses or attention.shared_kv
                else rates.mixed_tiles(prefill, heads / hardware.units, rows, count),
                name="cross_attention" if crosses else "attention",
            )
        )
    return (*kernels, *_indexers(deployment, rates))


def _indexers(deployment: Deployment, rates: RateSource) -> tuple[AttentionKernel, ...]:
    """Return the indexers of sparse attention: a score for every key before a query, 2·H_I·d_I FLOPs, in 8 bits where the part can.

    Each GPU computes all its heads and reads all its keys, whatever the tensor-parallel size (``Indexer`` of vLLM's deepseek_v2.py).
    Heads that choose by group are divided, and score in 16 bits (``MiniMaxM3Indexer``).
    """
    counts: dict[tuple[Value, Value, bool, OwnReach], Value] = {}
    read: dict[tuple[Value, Value, bool, OwnReach], Value] = {}
    for kind, count in layer_kinds(deployment):
        attention = kind.attention
        if attention.index_heads != 0:
            heads = index_heads_per_gpu(attention, deployment.tp)
            key = heads, attention.index_head_dim, attention.index_by_group, attention.index_reach
            counts[key] = counts[key] + count if key in counts else count
            read[key] = index_key_bytes(attention)
    hardware = deployment.hardware
    kernels = []
    for key, count in counts.items():
        heads, width, by_group, reach = key
        dtype = "fp8" if "fp8" in hardware.peaks and not by_group else deployment.activation_dtype
        flops = 2 * heads * width * count
        rate = rates.mixer("indexer", dtype, hardware.peaks[dtype], hardware.bandwidth)
        kernels.append(AttentionKernel(reach, "", flops, flops, read[key] * count, count, rate, rate, name="indexer"))
    return tuple(kernels)


USUAL_HEAD_DIM = 128
"""Fitted attention kernels are of heads of this dimension where their names say nothing else."""


def _fitted_kinds(deployment: Deployment, attention: Attention) -> list[str]:
    """Return by which names a fitted attention kernel is looked for, the closest first.

    Heads of the same dimension count for more than the format of the cache, and that for more than the window. Latent attention is a kind
    of its own, as is a vector that is key and value alike; where no kernel of it was fitted, it runs at the rates of grouped attention, and
    the rates say so. So is grouped attention over chosen keys, which runs at the rates of attention over all.
    """
    dtype = deployment.attention_dtype
    formats = [f"kv-{deployment.kv_dtype}", dtype] if deployment.kv_dtype != deployment.activation_dtype else [dtype]
    dim = attention.fitted_head_dim or attention.head_dim
    dims = [""] if dim == USUAL_HEAD_DIM else [f".d{dim}", ""]
    if attention.top_k:
        dims = [dims[0] + CHOSEN, *dims]
    if attention.kind == "mla" or attention.shared_kv:
        dims = [LATENT, ""]
    windows = [f".w{attention.window}", ""] if isinstance(attention.window, int) else [""]
    return [fmt + dim + window for dim in dims for fmt in formats for window in windows]


def _attention_suffixes(windows: list[OwnReach]) -> list[str]:
    """Return what tells the attention kernels of a model apart: nothing for one, the window for several, a number where that recurs."""
    if len(windows) == 1:
        return [""]
    names = [f".{window_name(window)}" for window in windows]
    return [
        name if name not in names[:index] else f"{name}_{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]
