"""LoRA adapters as kernels of a step: FLOPs and bytes of x·A and of (x·A)·B, for adapters that requests of one batch share.

Per layer and GPU, for a kernel of k inputs and m outputs that s matrices are fused in, rank r, N tokens, a = min(adapters, sequences)
adapters that a step uses::

    shrink  2·s·k·r·N FLOPs   a·s·k·r·b_a bytes of A   + N·(k·b_a + 4·s·r)      inputs, and the product in fp32
    expand  2·r·m·N FLOPs     a·r·m·b_a bytes of B     + N·(4·s·r + 2·m·b_a)    and outputs, read and written
    experts k_e times the FLOPs and activations; A and B of a·E·(1 − (1 − k_e/E)^(N/a)) pairs of adapter and expert

(vllm/lora/punica_wrapper/punica_gpu.py, ``add_lora_linear``; vllm/lora/ops/triton_ops: both kernels are grouped by adapter, and read the
weights of those that have tokens.) Column-parallel layers hold A whole and m/t of B, row-parallel ones k/t of A and B whole. Fully
sharded, they hold r/t of A and m/t of B, and exchange the products between: gathered in the former, reduced in the latter. The
embedding has only an expand and reads r numbers of A for every token; lm_head has both, for every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.adapters import EMBEDDING, EXPERTS, LM_HEAD, Adapted, Lora, adapted_linears
from costmodel.architecture.types import FeedForward, LayerKind
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value, total
from costmodel.equations.parameters import ExpertGemm, Gemm, Rate, Transfer
from costmodel.equations.rate_sources import RateSource

Kinds = Sequence[tuple[LayerKind, Value]]
BUFFER_BYTES = 4
"""Of a number between the two kernels: fp32."""


def adapter_gemms(deployment: Deployment, rates: RateSource, kinds: Kinds) -> tuple[Gemm, ...]:
    """Return the adapters of all kernels but experts: ``lora_shrink`` and ``lora_expand``, summed over layers, and ``lora_lm_head``."""
    lora = deployment.lora
    if lora is None:
        return ()
    layers = [(each, count) for each, count in _adapted(deployment, lora, kinds) if each.linear.group != EXPERTS]
    shrinks = [(each.shrink * count, _shrink_io(deployment, each) * count, count) for each, count in layers]
    expands = [(each.expand * count, _expand_io(deployment, each) * count, count) for each, count in layers]
    hidden, activation = deployment.architecture.hidden, deployment.activation_bytes
    if lora.has(EMBEDDING):
        expands.append((lora.rank * hidden, 2 * (lora.rank + hidden) * activation, 1))
    made = [
        _gemm(deployment, rates, name, terms) for name, terms in (("shrink", shrinks), ("expand", expands)) if terms
    ]
    if lora.has(LM_HEAD):
        vocabulary = deployment.architecture.vocabulary
        io = (hidden + 2 * vocabulary) * activation + 2 * BUFFER_BYTES * lora.rank
        made.append(_gemm(deployment, rates, "lm_head", [(lora.rank * (hidden + vocabulary), io, 2)]))
    return tuple(made)


def _gemm(deployment: Deployment, rates: RateSource, name: str, terms: list[tuple[Value, Value, Value]]) -> Gemm:
    """Return the sum of kernels, each of so many weights, bytes of activations per token, and launches."""
    assert deployment.lora is not None
    weights = total(weights for weights, _, _ in terms)
    return Gemm(
        name=f"lora_{name}",
        group="lm_head" if name == "lm_head" else "linear",
        flops_per_token=2 * weights,
        weight_bytes=weights * deployment.activation_bytes,
        io_bytes_per_token=total(io for _, io, _ in terms),
        count=total(count for *_, count in terms),
        rate=_rate(deployment, rates, "expand" if name == "expand" else "shrink"),
        per_row=name == "lm_head",
        adapters=deployment.lora.adapters,
    )


def adapter_experts(deployment: Deployment, rates: RateSource, kinds: Kinds) -> tuple[ExpertGemm, ...]:
    """Return the adapters of routed experts: a shrink and an expand for each of their two kernels and each kind of layer."""
    lora = deployment.lora
    if lora is None:
        return ()
    counts: dict[tuple[Adapted, FeedForward], Value] = {}
    for kind, count in kinds:
        for each in _layer(deployment, lora, kind):
            if each.linear.group == EXPERTS:
                key = each, kind.feed_forward
                counts[key] = counts[key] + count if key in counts else count
    made = []
    for (each, ff), count in counts.items():
        visits = ff.experts_per_token / deployment.tp if deployment.ep > 1 else ff.experts_per_token
        shrink = "shrink", each.shrink, _shrink_io(deployment, each)
        expand = "expand", each.expand, _expand_io(deployment, each)
        for name, weights, io in (shrink, expand):
            made.append(
                ExpertGemm(
                    name=f"lora_{name}.{each.linear.name}",
                    flops_per_token=2 * weights * visits * count,
                    weight_bytes=each.linear.copies * weights * deployment.activation_bytes * count,
                    io_bytes_per_token=io * visits * count,
                    idle_probability=1 - ff.experts_per_token / ff.experts,
                    replicas=deployment.replicas,
                    count=count,
                    rate=_rate(deployment, rates, name),
                    visits_per_token=visits,
                    copies=each.linear.copies,
                    adapters=lora.adapters,
                )
            )
    return tuple(made)


def adapter_transfers(deployment: Deployment, rates: RateSource, kinds: Kinds) -> tuple[Transfer, ...]:
    """Return what fully sharded adapters exchange between their two kernels; nothing for others.

    Gathered: (t − 1)/t of N·s·r numbers of fp32; reduced: 2(t − 1)/t of N·r of them (``_mcp_apply`` of column_parallel_linear.py,
    ``RowParallelLinearWithShardedLoRA``).
    """
    lora, tp = deployment.lora, deployment.tp
    if lora is None or not lora.fully_sharded or tp == 1:
        return ()
    made = []
    for name, split, passes in (("lora_gather", "columns", 1), ("lora_reduce", "rows", 2)):
        sent = [
            (count, count * _visits(each, kind) * passes * (tp - 1) / tp * BUFFER_BYTES * each.slices * lora.rank)
            for kind, count in kinds
            for each in _layer(deployment, lora, kind)
            if each.split == split
        ]
        if sent:
            messages = total(count for count, _ in sent)
            mean = total(size for _, size in sent) / messages
            made.append(rates.transfer("all_reduce", name, messages, mean, deployment.hardware.link_bandwidth, tp))
    return tuple(made)


def _visits(each: Adapted, kind: LayerKind) -> Value:
    return kind.feed_forward.experts_per_token if each.linear.group == EXPERTS else 1


def _layer(deployment: Deployment, lora: Lora, kind: LayerKind) -> list[Adapted]:
    architecture = deployment.architecture
    made = adapted_linears(architecture.model_type, kind, architecture.hidden, deployment.tp, deployment.ep, lora)
    return [each for each in made if each.runs]


def _adapted(deployment: Deployment, lora: Lora, kinds: Kinds) -> list[tuple[Adapted, Value]]:
    return [(each, count) for kind, count in kinds for each in _layer(deployment, lora, kind)]


def _shrink_io(deployment: Deployment, each: Adapted) -> Value:
    return each.linear.inputs * deployment.activation_bytes + BUFFER_BYTES * each.slices * each.a_rank


def _expand_io(deployment: Deployment, each: Adapted) -> Value:
    return BUFFER_BYTES * each.slices * each.rank + 2 * each.outputs * deployment.activation_bytes


def _rate(deployment: Deployment, rates: RateSource, name: str) -> Rate:
    hardware, dtype = deployment.hardware, deployment.activation_dtype
    return rates.mixer(f"lora_{name}", dtype, hardware.peaks[dtype], hardware.bandwidth)
