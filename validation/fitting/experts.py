"""Routed experts: one fused call (gate and up, activation, down) per layer, as the two products that a prediction makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import sympy

from costmodel.equations.parameters import ExpertGemm, Parameters
from costmodel.equations.rate_sources import RateSource
from costmodel.equations.work import Work
from costmodel.hardware.errors import InputError
from costmodel.validation.datasets import silicon
from costmodel.validation.datasets.expert_rules import expert_rules
from costmodel.validation.datasets.formats import quantisation
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.datasets.tables import MoeTable
from costmodel.validation.fitting.models import KernelModel, model_of
from costmodel.validation.fitting.task import Task, same

EXPERTS_GROUPED = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "padding_rows", "passes", "expert_s")
EXPERT_FORMATS = ("bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "mxfp4-fp8")
"""Stored formats of experts that are fitted."""


def matrix_suffix(stored: str) -> str:
    """Return the suffix of a calibration's entry for linear layers: the compute dtype where one stored format is all that it has."""
    return stored if stored == "fp8-block" else quantisation(stored).compute


def table_engine(engine: str, stored: str) -> str:
    """Return whose table of linear layers stands for ``engine``.

    vLLM's fp8-block and nvfp4 layers were called one by one, without a CUDA graph, so up to some hundred tokens the host's launches are
    what was measured (fp8-block: 57 µs on H100, 163 on B200; the kernel takes 8 to 10). SGLang calls the same libraries (DeepGEMM,
    FlashInfer) in a graph, as servers decode.
    """
    return "sglang" if engine == "vllm" and stored in ("fp8-block", "nvfp4") else engine


def experts_model(
    operator: str,
    form: str,
    free: tuple[str, ...],
    peak: float,
    bandwidth: float,
    weight_bytes: float,
    input_bytes: float,
) -> KernelModel:
    """Return the model of all routed experts on one GPU of a tensor-parallel group.

    Inputs: ``tokens`` N, ``hidden`` d, ``width`` of an expert on this GPU, ``top_k`` of ``experts``.

    Args:
        operator: key in the calibration, e.g. ``experts.fp8-block``.
        form: ``experts_grouped``, or another that experts take.
        free: parameters to fit; the others keep their defaults.
        peak, bandwidth: datasheet F [FLOP/s] and W [B/s].
        weight_bytes: bytes of a weight, scales included.
        input_bytes: bytes of an input as the matrix unit reads it; outputs take 2 bytes.
    """
    names = ("tokens", "hidden", "width", "top_k", "experts")
    tokens, hidden, width, chosen, experts = (sympy.Symbol(name, positive=True, integer=True) for name in names)
    name, _, dtype = operator.partition(".")

    def build(rates: RateSource) -> Parameters:
        products = []
        for inputs, outputs in ((hidden, 2 * width), (width, hidden)):
            rate = rates.kernel(name, dtype, peak, bandwidth, inputs, outputs)
            products.append(
                ExpertGemm(
                    name="experts",
                    flops_per_token=2 * inputs * outputs * chosen,
                    weight_bytes=inputs * outputs * experts * weight_bytes,
                    io_bytes_per_token=(inputs * input_bytes + outputs * 2) * chosen,
                    idle_probability=1 - chosen / experts,
                    replicas=1,
                    count=1,
                    rate=rate,
                    visits_per_token=chosen,
                    copies=experts,
                    grouped=rates.grouped(rate),
                )
            )
        return Parameters((), tuple(products), ())

    return model_of(operator, form, free, build, Work(tokens, tokens, tokens, 0, {}, {}, {}), names)


def expert_tasks(gpu: str, engine: str, peaks: Mapping[Any, float], bandwidth: float, fewest: int) -> Iterator[Task]:
    """Yield what is needed to fit the routed experts of every stored format that the part can multiply."""
    for stored in EXPERT_FORMATS:
        kind = quantisation(stored)
        if kind.compute not in peaks:
            continue
        yield Task(
            model=partial(
                same,
                experts_model(
                    f"experts.{stored}",
                    "experts_grouped",
                    EXPERTS_GROUPED,
                    peaks[kind.compute],
                    bandwidth,
                    kind.weights.bytes_per_weight,
                    kind.activation_bytes,
                ),
            ),
            read=partial(newest_table, gpu, engine, stored, fewest),
            rules=expert_rules(gpu),
            data=lambda table: {
                "tokens": table.tokens,
                "hidden": table.hidden,
                "width": table.width / table.tensor_parallel,
                "top_k": table.top_k,
                "experts": table.experts,
            },
            groups=("hidden", "width", "top_k", "experts"),
            ranges=lambda table: {"tokens": table.tokens},
        )


def newest_table(gpu: str, engine: str, stored: str, fewest: int) -> MoeTable:
    """Read the newest table of which the rules keep at least ``fewest`` rows: some hold the shapes of one new model only.

    Rows with expert parallelism are left out: they were measured on the busiest GPU, and what share of the tokens it had is not known.
    """
    for version in (None, *reversed(silicon.versions(gpu, "moe", engine))):
        try:
            table = silicon.moe(gpu, engine, stored, version)
            table = table.select(table.expert_parallel == 1)
        except InputError:
            continue
        if len(apply_rules(table, expert_rules(gpu))[0]) >= fewest:
            return table
    raise InputError(f"experts in {stored} were not measured enough on {gpu} with {engine}")
