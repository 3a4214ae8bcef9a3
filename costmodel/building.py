"""From a deployment to the parameters of the equations: which kernels a step runs, their FLOPs and bytes per token, their rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    crossing_parameters,
    index_bytes_per_token,
    kv_elements_per_token,
    parameter_table,
    total_parameters,
)
from costmodel.architecture.formats import INPUT_BYTES, PLAIN_FORMATS, WeightFormat, format_name
from costmodel.architecture.linears import Linear, kv_heads_per_gpu, layer_linears, query_heads_per_gpu
from costmodel.architecture.types import Attention, LayerKind
from costmodel.deployment import Deployment
from costmodel.dtypes import main_format
from costmodel.equations.numerics import Value, is_zero, total
from costmodel.equations.parameters import AttentionKernel, ExpertGemm, Gemm, Parameters, Rate, Transfer
from costmodel.equations.rate_sources import LATENT, DatasheetRates, RateSource
from costmodel.equations.textbook import Textbook
from costmodel.equations.work import EncoderStates, Reach, Window, window_name
from costmodel.lora_kernels import adapter_experts, adapter_gemms, adapter_transfers
from costmodel.states import state_kernels


def build_parameters(deployment: Deployment, rates: RateSource | None = None) -> Parameters:
    """Build the parameters of the step equations from architecture, profile and (through ``rates``) calibration.

    Args:
        deployment: model, part and number formats; its dimensions and hardware numbers may be symbols.
        rates: datasheet rates by default (roofline rung), or :class:`~costmodel.equations.rates.CalibratedRates`.
    """
    rates = rates or DatasheetRates()
    gemms: dict[tuple[object, ...], Gemm] = {}
    experts: dict[tuple[object, ...], ExpertGemm] = {}
    for kind, count in _kinds(deployment):
        for linear in layer_linears(kind, deployment.architecture.hidden, deployment.tp, deployment.ep):
            if linear.of_encoder:
                continue  # once per request, with its encoder
            key = (linear.name, linear.inputs, linear.outputs, linear.copies, linear.fmt)
            if linear.group == "experts":
                made = _expert_gemm(deployment, rates, kind, linear, count)
                experts[key] = _add(experts[key], made) if key in experts else made
            else:
                gemm = linear_gemm(deployment, rates, linear, count)
                gemms[key] = _add(gemms[key], gemm) if key in gemms else gemm
    layers = _blocks(deployment)
    architecture = deployment.architecture
    return Parameters(
        gemms=(
            *_distinct(gemms.values()),
            *_heads(deployment, rates),
            *adapter_gemms(deployment, rates, _kinds(deployment)),
        ),
        experts=tuple(_distinct([*experts.values(), *adapter_experts(deployment, rates, _kinds(deployment))])),
        attention=_attention_kernels(deployment, rates),
        transfers=(*_transfers(deployment, rates), *adapter_transfers(deployment, rates, _kinds(deployment))),
        elementwise=rates.elementwise(
            layers, architecture.hidden, deployment.activation_bytes, deployment.hardware.bandwidth
        ),
        overheads=rates.overheads(
            layers,
            _layers(deployment, lambda kind: kind.feed_forward.kind == "moe"),
            _layers(deployment, lambda kind: kind.attention.qk_norm != "none"),
        ),
        states=state_kernels(deployment, rates, _kinds(deployment)),
    )


@lru_cache(maxsize=256)
def roofline_parameters(deployment: Deployment) -> Parameters:
    """Return the parameters at datasheet rates, built once per deployment."""
    return build_parameters(deployment)


def build_textbook(deployment: Deployment, params: float | None = None) -> Textbook:
    """Build the textbook rung's numbers.

    Args:
        deployment: model and part.
        params: P that replaces the model's total, as in the lesson's 8e9; a mixture of experts keeps its active share. Weights are
            then P·b with the average bytes per weight. Of a model that pools, P is that of its layers: the tables of its embedding
            multiply nothing.
    """
    architecture = deployment.architecture
    total, active = total_parameters(architecture), active_parameters(architecture)
    stored = checkpoint_bytes(architecture)
    if architecture.pooling:  # rows of the embedding and of learned positions are looked up, and no lm_head reads them
        table, extra = architecture.vocabulary * architecture.hidden, architecture.extra_parameters
        active = active - table - extra
        stored = stored - table * architecture.embedding_format.bytes_per_weight
        stored = stored - extra * PLAIN_FORMATS[architecture.dtype].bytes_per_weight
    if is_zero(deployment.encoder_states):
        idle = crossing_parameters(architecture, deployment.layer_counts)
        stored, active = stored - idle * deployment.activation_bytes, active - idle
    if deployment.replicas > 1:
        # Whole experts are dealt to more GPUs than divide the rest: a GPU reads a replica's share of them only.
        routed = sum(row.bytes for row in parameter_table(architecture) if row.module == "experts")
        stored = stored - routed + routed / deployment.replicas
    share = 1 if params is None else params / total
    dtype = deployment.compute_dtype_of(main_format(architecture))
    widths: dict[Window, Value] = {}
    for kind, count in zip(architecture.kinds, deployment.layer_counts, strict=True):
        attention = kind.attention
        if attention.kind == "none":
            continue
        head_dim = attention.head_dim
        if attention.value_head_dim != head_dim:
            head_dim = (head_dim + attention.value_head_dim) / 2
        width = attention.query_heads * head_dim * count
        widths[attention.reach] = widths[attention.reach] + width if attention.reach in widths else width
    tower = architecture.vision
    return Textbook(
        weight_bytes=stored * share,
        active_parameters=active * share,
        attention=tuple(widths.items()),
        peak=deployment.hardware.peaks[dtype],
        attention_peak=deployment.hardware.peaks[deployment.attention_dtype],
        bandwidth=deployment.hardware.bandwidth,
        gpus=deployment.tp,
        encoder_parameters=architecture.vision_parameters,
        encoder_width=0 if tower is None else tower.heads * tower.head_dim * tower.layers,
        encoder_peak=deployment.hardware.peaks[deployment.activation_dtype],
    )


def linear_gemm(deployment: Deployment, rates: RateSource, linear: Linear, count: Value) -> Gemm:
    """Return a weight matrix that every token passes, in ``count`` layers."""
    dtype = deployment.compute_dtype_of(linear.fmt)
    return Gemm(
        name=linear.name,
        group="linear",
        flops_per_token=2 * linear.inputs * linear.outputs * count,
        weight_bytes=linear.inputs * linear.outputs * deployment.format_bytes[linear.fmt] * count,
        io_bytes_per_token=_io_bytes(deployment, linear.inputs, linear.outputs, dtype) * count,
        count=count,
        rate=_rate(rates, "gemm", dtype, deployment, linear.inputs, linear.outputs, linear.fmt),
    )


def _expert_gemm(
    deployment: Deployment, rates: RateSource, kind: LayerKind, linear: Linear, count: Value
) -> ExpertGemm:
    dtype = deployment.compute_dtype_of(linear.fmt)
    ff = kind.feed_forward
    # With expert parallelism whole experts live on one GPU, and r replicas send it their tokens: r·N·k/e = N·k/t of them arrive.
    visits = ff.experts_per_token / deployment.tp if deployment.ep > 1 else ff.experts_per_token
    rate = _rate(rates, "experts", dtype, deployment, linear.inputs, linear.outputs, linear.fmt)
    return ExpertGemm(
        name=linear.name,
        flops_per_token=2 * linear.inputs * linear.outputs * visits * count,
        weight_bytes=linear.weights * deployment.format_bytes[linear.fmt] * count,
        io_bytes_per_token=_io_bytes(deployment, linear.inputs, linear.outputs, dtype) * visits * count,
        idle_probability=1 - ff.experts_per_token / ff.experts,
        replicas=deployment.replicas,
        count=count,
        rate=rate,
        visits_per_token=visits,
        copies=linear.copies,
        imbalance=_imbalance(ff.experts, deployment.ep),
        grouped=rates.grouped(rate, linear.fmt.bytes_per_weight if linear.fmt.name == "mxfp4" else math.inf),
    )


def _imbalance(experts: Value, gpus: int) -> Value:
    """Rows of the busiest of e GPUs over the mean, if experts' popularity is spread exponentially: 1 + log2(e)/2·√(e/E).

    E/e experts of one GPU spread by √(e/E) of their mean, and the largest of e normal values is close to log2(e)/2 spreads above it.
    """
    return 1 if gpus == 1 else 1 + math.log2(gpus) / 2 * (gpus / experts) ** 0.5


def _rate(
    rates: RateSource,
    operator: str,
    dtype: str,
    deployment: Deployment,
    inputs: Value,
    outputs: Value,
    fmt: WeightFormat,
) -> Rate:
    hardware = deployment.hardware
    return rates.kernel(
        operator, dtype, hardware.peaks[dtype], hardware.bandwidth, inputs, outputs, format_name(fmt, dtype)
    )


def _heads(deployment: Deployment, rates: RateSource) -> tuple[Gemm, ...]:
    """Return what the rows pass after the layers: lm_head, or of a model that pools the matrices of its classifier, whole on every GPU."""
    architecture = deployment.architecture
    if not architecture.pooling:
        return (_lm_head(deployment, rates),)
    fmt, dtype, inputs = PLAIN_FORMATS[architecture.dtype], deployment.activation_dtype, architecture.hidden
    made = []
    for number, outputs in enumerate(architecture.head, start=1):
        made.append(
            Gemm(
                name="head" if number == 1 else f"head.{number}",
                group="lm_head",
                flops_per_token=2 * inputs * outputs,
                weight_bytes=inputs * outputs * deployment.activation_bytes,
                io_bytes_per_token=_io_bytes(deployment, inputs, outputs, dtype),
                count=1,
                rate=_rate(rates, "lm_head", dtype, deployment, inputs, outputs, fmt),
                per_row=True,
            )
        )
        inputs = outputs
    return tuple(made)


def _lm_head(deployment: Deployment, rates: RateSource) -> Gemm:
    architecture = deployment.architecture
    fmt = architecture.embedding_format if architecture.tied_embeddings else architecture.lm_head_format
    dtype = deployment.compute_dtype_of(fmt)
    vocabulary = architecture.vocabulary if deployment.tp == 1 else architecture.vocabulary / deployment.tp
    return Gemm(
        name="lm_head",
        group="lm_head",
        flops_per_token=2 * architecture.hidden * vocabulary,
        weight_bytes=architecture.hidden * vocabulary * deployment.format_bytes[fmt],
        io_bytes_per_token=_io_bytes(deployment, architecture.hidden, vocabulary, dtype),
        count=1,
        rate=_rate(rates, "lm_head", dtype, deployment, architecture.hidden, vocabulary, fmt),
        per_row=True,
    )


def _attention_kernels(deployment: Deployment, rates: RateSource) -> tuple[AttentionKernel, ...]:
    hardware, tp = deployment.hardware, deployment.tp
    counts: dict[tuple[Attention, bool], Value] = {}
    found = [(kind.attention, False, count) for kind, count in _kinds(deployment)]
    found += [(kind.cross, True, count) for kind, count in _kinds(deployment) if kind.cross is not None]
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
            keys_are_values=False,
            index_heads=0,
            index_head_dim=0,
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
        rows, windowed = 2 * widths * hardware.units * count, window is not None and not crosses
        kernels.append(
            AttentionKernel(
                window=window,
                suffix="" if crosses else suffixes[len(kernels)],
                flops_per_pair=spread * count,
                flops_per_kv_token=(absorbed if attention.kind == "mla" else pair) * count,
                kv_bytes_per_token=kv_elements_per_token(attention, tp) * deployment.kv_bytes * count,
                count=count,
                prefill_rate=prefill,
                decode_rate=decode,
                prefill_tile=rates.prefill_tile(prefill, heads * widths * deployment.activation_bytes * count, rows),
                decode_split=rates.decode_split(
                    decode, heads, kv_heads_per_gpu(attention, tp), attention.head_dim, count, windowed
                ),
                mixed_tiles=None if crosses else rates.mixed_tiles(prefill, heads / hardware.units, rows, count),
                name="cross_attention" if crosses else "attention",
            )
        )
    return (*kernels, *_indexers(deployment, rates))


def _indexers(deployment: Deployment, rates: RateSource) -> tuple[AttentionKernel, ...]:
    """Return the indexers of sparse attention: a score for every key before a query, 2·H_I·d_I FLOPs, in 8 bits where the part can.

    Each GPU computes all its heads and reads all its keys, whatever the tensor-parallel size (``Indexer`` of vLLM's deepseek_v2.py).
    """
    counts: dict[tuple[Value, Value], Value] = {}
    read: dict[tuple[Value, Value], Value] = {}
    for kind, count in _kinds(deployment):
        if kind.attention.index_heads != 0:
            key = kind.attention.index_heads, kind.attention.index_head_dim
            counts[key] = counts[key] + count if key in counts else count
            read[key] = index_bytes_per_token(kind.attention)
    hardware = deployment.hardware
    dtype = "fp8" if "fp8" in hardware.peaks else deployment.attention_dtype
    kernels = []
    for (heads, width), count in counts.items():
        flops = 2 * heads * width * count
        rate = rates.mixer("indexer", dtype, hardware.peaks[dtype], hardware.bandwidth)
        moved = read[heads, width] * count
        kernels.append(AttentionKernel(None, "", flops, flops, moved, count, rate, rate, name="indexer"))
    return tuple(kernels)


USUAL_HEAD_DIM = 128
"""Fitted attention kernels are of heads of this dimension where their names say nothing else."""


def _fitted_kinds(deployment: Deployment, attention: Attention) -> list[str]:
    """Return by which names a fitted attention kernel is looked for, the closest first.

    Heads of the same dimension count for more than the format of the cache, and that for more than the window. Latent attention is a kind
    of its own; where no kernel of it was fitted, it runs at the rates of grouped attention, and the rates say so.
    """
    dtype = deployment.attention_dtype
    formats = [f"kv-{deployment.kv_dtype}", dtype] if deployment.kv_dtype != deployment.activation_dtype else [dtype]
    dim = attention.fitted_head_dim or attention.head_dim
    dims = [""] if dim == USUAL_HEAD_DIM else [f".d{dim}", ""]
    if attention.kind == "mla":
        dims = [LATENT, ""]
    windows = [f".w{attention.window}", ""] if isinstance(attention.window, int) else [""]
    return [fmt + dim + window for dim in dims for fmt in formats for window in windows]


def _attention_suffixes(windows: list[Window]) -> list[str]:
    """Return what tells the attention kernels of a model apart: nothing for one, the window for several, a number where that recurs."""
    if len(windows) == 1:
        return [""]
    names = [f".{window_name(window)}" for window in windows]
    return [
        name if name not in names[:index] else f"{name}_{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _transfers(deployment: Deployment, rates: RateSource) -> tuple[Transfer, ...]:
    tp, ep, pp = deployment.tp, deployment.ep, deployment.pp
    hidden_bytes = deployment.architecture.hidden * deployment.activation_bytes
    link = deployment.hardware.link_bandwidth
    transfers = []
    reductions: Value = 0
    dispatches: dict[Value, Value] = {}
    for kind, count in _kinds(deployment):
        # Within one replica every GPU holds every token, and the experts' outputs are reduced; between replicas tokens travel.
        dispatched = deployment.replicas > 1 and kind.feed_forward.kind == "moe"
        reductions = reductions + count * (kind.mixers - int(dispatched))
        if dispatched:
            sent = kind.feed_forward.experts_per_token * hidden_bytes * (ep - 1) / ep / tp
            dispatches[sent] = dispatches[sent] + count if sent in dispatches else count
    for sent, count in dispatches.items():
        for name in ("expert_dispatch", "expert_combine"):
            transfers.append(rates.transfer("dispatch", name, count, sent, link, ep))
    if tp > 1:
        sent = 2 * (tp - 1) / tp * hidden_bytes  # ring: every GPU sends 2(t − 1)/t of the message
        transfers.insert(0, rates.transfer("all_reduce", "all_reduce", reductions, sent, link, tp))
        if normed := _layers(deployment, lambda kind: kind.attention.qk_norm == "full"):
            # A norm over the whole of q, and one of k, of which each GPU has a part: the mean square of every token, in fp32
            # (vllm/model_executor/layers/mamba/linear_attn.py, MiniMaxText01RMSNormTP).
            transfers.append(
                rates.transfer("all_reduce", "qk_norm_reduce", 2 * normed, 2 * (tp - 1) / tp * 4, link, tp)
            )
    if pp > 1:
        transfers.append(rates.transfer("pipeline", "pipeline_send", pp - 1, hidden_bytes / tp, link, 2))
    return tuple(transfers)


def _blocks(deployment: Deployment) -> Value:
    """Return L: layers of two mixers, attention and feed-forward; a layer that is one mixer counts half."""
    kinds = _kinds(deployment)
    if all(kind.mixers == 2 for kind, _ in kinds):
        return sum((count for _, count in kinds[1:]), kinds[0][1])
    return total(count * kind.mixers / 2 for kind, count in kinds)


def _layers(deployment: Deployment, chosen: Callable[[LayerKind], bool]) -> Value:
    """Return how many layers are of the chosen kinds."""
    return total(count for kind, count in _kinds(deployment) if chosen(kind))


def _kinds(deployment: Deployment) -> list[tuple[LayerKind, Value]]:
    """Return the kinds of layer with their counts, without those that there are none of: a stage of a pipeline may lack some.

    Nor with those that are left out because nothing was encoded.
    """
    pairs = zip(deployment.architecture.kinds, deployment.layer_counts, strict=True)
    encoded = not is_zero(deployment.encoder_states)
    return [(kind, count) for kind, count in pairs if not is_zero(count) and (encoded or not kind.needs_encoder)]


def _io_bytes(deployment: Deployment, inputs: Value, outputs: Value, dtype: str) -> Value:
    """Bytes of one token's inputs (quantised to the compute dtype) and outputs (in the activations' dtype)."""
    if dtype == deployment.activation_dtype:
        return (inputs + outputs) * deployment.activation_bytes
    return inputs * INPUT_BYTES[dtype] + outputs * deployment.activation_bytes


Kernel = TypeVar("Kernel", Gemm, ExpertGemm)


def _add(first: Kernel, second: Kernel) -> Kernel:
    """Merge the same matrix of two layer kinds."""
    return replace(
        first,
        flops_per_token=first.flops_per_token + second.flops_per_token,
        weight_bytes=first.weight_bytes + second.weight_bytes,
        io_bytes_per_token=first.io_bytes_per_token + second.io_bytes_per_token,
        count=first.count + second.count,
    )


def _distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Number the kernels whose names recur (layers whose matrices differ in shape or format), so that each can be told apart."""
    seen: dict[str, int] = {}
    renamed = []
    for kernel in kernels:
        seen[kernel.name] = seen.get(kernel.name, 0) + 1
        renamed.append(kernel if seen[kernel.name] == 1 else replace(kernel, name=f"{kernel.name}.{seen[kernel.name]}"))
    return renamed
