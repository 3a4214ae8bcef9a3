"""Weight matrices as kernels of a step: those that every token passes, the experts, and what the rows pass after the layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from costmodel.architecture.formats import INPUT_BYTES, PLAIN_FORMATS, WeightFormat, format_name
from costmodel.architecture.linears import Linear, joining_linears
from costmodel.architecture.types import LayerKind
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value
from costmodel.equations.parameters import ExpertGemm, Gemm, Rate
from costmodel.equations.rate_sources import RateSource


def linear_gemm(deployment: Deployment, rates: RateSource, linear: Linear, count: Value) -> Gemm:
    """Return a weight matrix that every token passes, in ``count`` layers."""
    dtype = deployment.compute_dtype_of(linear.fmt)
    moved = _io_bytes(deployment, linear.inputs, linear.outputs, dtype)
    if linear.output_bytes:
        moved = linear.inputs * deployment.activation_bytes + linear.outputs * linear.output_bytes
    every = linear.copies * count  # groups of heads have a matrix each, in one kernel
    return Gemm(
        name=linear.name,
        group="linear",
        flops_per_token=2 * linear.inputs * linear.outputs * every,
        weight_bytes=linear.inputs * linear.outputs * deployment.format_bytes[linear.fmt] * every,
        io_bytes_per_token=moved * every,
        count=count,
        rate=_rate(rates, "gemm", dtype, deployment, linear.inputs, linear.outputs, linear.fmt),
    )


def expert_gemm(deployment: Deployment, rates: RateSource, kind: LayerKind, linear: Linear, count: Value) -> ExpertGemm:
    """Return a weight matrix of the routed experts, in ``count`` layers."""
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


def head_gemms(deployment: Deployment, rates: RateSource) -> tuple[Gemm, ...]:
    """Return what the rows pass after the layers: lm_head, or of a model that pools the matrices of its classifier, whole on every GPU."""
    architecture = deployment.architecture
    if not architecture.pooling:
        joined = joining_linears(architecture)
        return (*(linear_gemm(deployment, rates, linear, 1) for linear in joined), _lm_head(deployment, rates))
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


def _io_bytes(deployment: Deployment, inputs: Value, outputs: Value, dtype: str) -> Value:
    """Bytes of one token's inputs (quantised to the compute dtype) and outputs (in the activations' dtype)."""
    if dtype == deployment.activation_dtype:
        return (inputs + outputs) * deployment.activation_bytes
    return inputs * INPUT_BYTES[dtype] + outputs * deployment.activation_bytes


Kernel = TypeVar("Kernel", Gemm, ExpertGemm)


def add(first: Kernel, second: Kernel) -> Kernel:
    """Merge the same matrix of two layer kinds."""
    return replace(
        first,
        flops_per_token=first.flops_per_token + second.flops_per_token,
        weight_bytes=first.weight_bytes + second.weight_bytes,
        io_bytes_per_token=first.io_bytes_per_token + second.io_bytes_per_token,
        count=first.count + second.count,
    )


def distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Number the kernels whose names recur (layers whose matrices differ in shape or format), so that each can be told apart."""
    seen: dict[str, int] = {}
    renamed = []
    for kernel in kernels:
        seen[kernel.name] = seen.get(kernel.name, 0) + 1
        renamed.append(kernel if seen[kernel.name] == 1 else replace(kernel, name=f"{kernel.name}.{seen[kernel.name]}"))
    return renamed
