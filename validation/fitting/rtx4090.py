"""Layer timings of the RTX 4090 folder → the operators of a calibration, and how well they add up to what a server sees.

GEMMs are fitted over the four matrices of a layer, elementwise kernels as their sum over a layer, attention of steps with prefill as
one kernel whether sequences decode beside the chunk or not, and attention of pure decode steps by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.architecture.linears import kv_heads_per_gpu, query_heads_per_gpu
from costmodel.building import build_parameters
from costmodel.deployment import Deployment, deploy
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.errors import InputError, unknown_name
from costmodel.hardware.reading import shown_path
from costmodel.validation.datasets.rtx4090 import GPU, WHAT, LayerTable, MixedTable, Rtx4090, RunSettings
from costmodel.validation.datasets.rules import FLOOR, Rule, apply_rules
from costmodel.validation.datasets.tables import Column, Mask
from costmodel.validation.fitting.calibrate import layer_calibration
from costmodel.validation.fitting.holdout import Errors, errors_by_size, errors_of, errors_where, held_out
from costmodel.validation.fitting.kernels import OperatorFit
from costmodel.validation.fitting.least_squares import Array, Evaluator, fit_kernel
from costmodel.validation.fitting.models import (
    KernelModel,
    decode_model,
    elementwise_model,
    gemm_model,
    mixed_model,
)
from costmodel.validation.fitting.served_run import fit_decode_overhead
from costmodel.validation.fitting.served_steps import served_steps

MODEL: Final = "Llama-3.1-8B"
"""The model whose layers were measured."""
ROOFLINE: Final = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness")
GEMM_TILES: Final = (*ROOFLINE, "slowdown")
"""Tiles of 128 rows and the 16 rows of the kernel for few are cuBLAS's on this part; they stay as the form has them."""
LM_HEAD: Final = ("bandwidth_efficiency", "sharpness")
"""Its launch fits to nothing and its compute to the datasheet's, so both stay there."""
ELEMENTWISE: Final = ("passes", "launch_s", "cached_bytes")
MIXED: Final = ("compute_efficiency", "launch_s", "tile_s", "empty_tile_s")
"""Fitted of ``mixed_tiles``; tiles of 64 rows are the kernel's, set by hand and counted as a parameter in the docs."""
DECODE: Final = ("bandwidth_efficiency", "launch_s", "padding_tokens", "extra_launch_s")
"""Fitted of ``decode_blocks``; heads are shared here, so nothing depends on the other parameter."""
KERNELS_PER_LAYER: Final = {"layernorm": 2, "rotary_emb": 1, "act_fn": 1}
"""Elementwise kernels that a layer calls, and how often."""
SERVED_DECODES: Final = 8
SERVED_TOKENS: Final = 128
"""Steps like those of a loaded server have at least so many decoding sequences, and chunks and contexts of so many tokens."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one operator: the model's inputs by name, what was measured, and which of them go into the fit."""

    file: str
    model: KernelModel
    data: dict[str, Array]
    seconds: Array
    kept: Mask
    excluded: dict[str, int]
    groups: tuple[str, ...]
    ranges: dict[str, Array]
    size: Array
    """Of every row, by which errors are told apart: the variable of ``ranges``, of the operator itself."""
    served: Mask | None = None
    """Rows like those of a loaded server; None where all are."""


def fit_rtx4090(
    data: Rtx4090, off: Iterable[str] = (), seed: int = 0
) -> Iterator[tuple[OperatorFit, dict[str, Errors]]]:
    """Fit every operator of the folder, the overhead of decode steps last, each with errors on held-out shapes of its parts or sums.

    Args:
        data: the folder.
        off: rules of exclusion that are switched off.
        seed: which shapes are held out.

    Raises:
        InputError: an unknown rule, or a fit that breaks the physical floor.
    """
    deployment = deploy(MODEL, GPU)
    fits, version = [], f"vLLM {data.settings.vllm_version}"
    for fit, parts in fit_layers(data, deployment, off, seed):
        fits.append(fit)
        yield fit, parts
    kernels = build_parameters(deployment, CalibratedRates(layer_calibration(fits, {}, "being fitted")))
    with _naming(data, "requests.jsonl"):
        overhead = fit_decode_overhead(data.requests, kernels, version)
    whole = build_parameters(deployment, CalibratedRates(layer_calibration([*fits, overhead], {}, "being fitted")))
    yield overhead, _whole_steps(data, whole)


def fit_layers(
    data: Rtx4090, deployment: Deployment, off: Iterable[str] = (), seed: int = 0
) -> Iterator[tuple[OperatorFit, dict[str, Errors]]]:
    """Fit the operators of layer tables of the same format, whatever dense model and part they are of.

    Args:
        data: the tables, of one GPU's share of every layer.
        deployment: whose layers these are.
        off: rules of exclusion that are switched off.
        seed: which shapes are held out.

    Raises:
        InputError: an unknown rule, a layer that was not measured, or a fit that breaks the physical floor.
    """
    skipped = tuple(off)
    known = [rule.name for rule in attention_rules(data.settings, deployment)]
    for name in skipped:
        if name not in known:
            raise unknown_name("rule", name, known, "known: " + ", ".join(known))
    version = f"vLLM {data.settings.vllm_version}"
    for rows, checks in (
        (_matrices(data.dense, deployment), _layer_sum),
        (_lm_head(data.per_sequence, deployment), _no_checks),
        (_elementwise(data.dense, deployment), _no_checks),
        (_attention(data, deployment, skipped, mixed=True), _mixed_checks),
        (_attention(data, deployment, skipped, mixed=False), _no_checks),
    ):
        with _naming(data, rows.file):
            found = _fit(rows, checks, seed, version)
        yield found


@contextmanager
def _naming(data: Rtx4090, file: str) -> Iterator[None]:
    """Let errors of a fit name the file whose rows it was."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{WHAT} {shown_path(data.folder / file)}: {error}") from None


def attention_rules(settings: RunSettings, deployment: Deployment | None = None) -> tuple[Rule[MixedTable], ...]:
    """Return the rules for attention: shapes that this server could not run, and rows faster than the datasheet allows."""
    deployment = deployment or deploy(MODEL, GPU)
    part = deployment.profile
    peak, bandwidth = part.peak_flops["bf16"].value, part.memory_bandwidth.value
    query_heads, kv_heads, head_dim = _heads(deployment)

    def possible(table: MixedTable) -> Mask:
        pairs = table.chunk * table.cached + table.chunk * (table.chunk + 1) / 2
        prefilled = (table.cached + table.chunk) * np.minimum(table.chunk, 1)
        read = table.decodes * (table.context + 1)
        flops, width = 4 * query_heads * head_dim, 4 * kv_heads * head_dim
        floor = np.maximum(flops * pairs / peak, width * prefilled / bandwidth)
        return np.asarray(table.seconds >= floor + np.maximum(flops * read / peak, width * read / bandwidth))

    def fits(table: MixedTable) -> Mask:
        held = table.cached + table.chunk + table.decodes * (table.context + 1)
        return np.asarray(held <= settings.kv_blocks * settings.block_size)

    return (
        Rule(
            "above the token budget",
            "The chunk and the decoding sequences together exceed the tokens that a step of this server may have.",
            lambda table: np.asarray(table.chunk + table.decodes <= settings.max_num_batched_tokens),
        ),
        Rule(
            "beyond the KV cache", "The card cannot hold the KV cache of these sequences, so no step of it is like that.", fits
        ),
        Rule(FLOOR, "Faster than datasheet compute or bandwidth allows: the KV cache of one sequence came from L2.", possible),
    )  # fmt: skip


def _fit(
    rows: _Rows, checks: Callable[[_Rows, Array, Mask], dict[str, Errors]], seed: int, version: str
) -> tuple[OperatorFit, dict[str, Errors]]:
    evaluator = Evaluator(rows.model)
    kept, size = rows.kept, len(rows.seconds)
    if size == 0:
        raise InputError(f"no rows for {rows.model.operator}")
    test = held_out([rows.data[name] for name in rows.groups], seed)
    if not np.any(kept & test):
        raise InputError(
            f"the rules keep {np.count_nonzero(kept)} of {size} rows for {rows.model.operator}, too few to hold some out"
        )
    trained = fit_kernel(evaluator, _select(rows.data, kept & ~test), rows.seconds[kept & ~test])
    predicted = evaluator.seconds(trained.values, rows.data)
    final = fit_kernel(evaluator, _select(rows.data, kept), rows.seconds[kept])
    fit = OperatorFit(
        operator=rows.model.operator,
        form=rows.model.form,
        result=final,
        errors=errors_of(predicted[kept & test], rows.seconds[kept & test]),
        errors_served=None if rows.served is None else errors_where(predicted, rows.seconds, kept & test & rows.served),
        errors_all=errors_of(predicted[test], rows.seconds[test]),
        ranges={name: (float(column.min()), float(column.max())) for name, column in rows.ranges.items()},
        by_size=errors_by_size(predicted[kept & test], rows.seconds[kept & test], rows.size[kept & test]),
        coverage=None,
        rows_kept=int(kept.sum()),
        excluded=rows.excluded,
        version=version,
    )
    parts = checks(rows, predicted, test)
    if fit.errors_served is not None:
        parts[f"{fit.operator}, as on a loaded server"] = fit.errors_served
    return fit, parts


def _heads(deployment: Deployment) -> tuple[int, int, int]:
    """Return the query heads and KV heads of one GPU, and their dimension."""
    attention = deployment.architecture.kinds[0].attention
    heads = query_heads_per_gpu(attention, deployment.tp), kv_heads_per_gpu(attention, deployment.tp)
    return int(heads[0]), int(heads[1]), int(attention.head_dim)


def _matrices(table: LayerTable, deployment: Deployment) -> _Rows:
    query_heads, kv_heads, head_dim = _heads(deployment)
    hidden, width = deployment.architecture.hidden, query_heads * head_dim
    intermediate = deployment.architecture.kinds[0].feed_forward.intermediate / deployment.tp
    shapes = {
        "qkv_proj": (hidden, width + 2 * kv_heads * head_dim),
        "o_proj": (width, hidden),
        "gate_up_proj": (hidden, 2 * intermediate),
        "down_proj": (intermediate, hidden),
    }
    layers = [(table.layer(name), shape) for name, shape in shapes.items()]
    data = {
        "tokens": np.concatenate([layer.size for layer, _ in layers]),
        "inputs": np.concatenate([np.full(len(layer), float(shape[0])) for layer, shape in layers]),
        "outputs": np.concatenate([np.full(len(layer), float(shape[1])) for layer, shape in layers]),
    }
    seconds = np.concatenate([layer.seconds for layer, _ in layers])
    return _dense("dense.csv", deployment, "gemm.bf16", "gemm_tiles", GEMM_TILES, data, seconds)


def _lm_head(table: LayerTable, deployment: Deployment) -> _Rows:
    layer, architecture = table.layer("lm_head"), deployment.architecture
    shape = {"inputs": float(architecture.hidden), "outputs": float(architecture.vocabulary / deployment.tp)}
    data = {"tokens": layer.size, **{name: np.full(len(layer), size) for name, size in shape.items()}}
    return _dense("per_sequence.csv", deployment, "lm_head.bf16", "smooth_roofline", LM_HEAD, data, layer.seconds)


def _dense(
    file: str,
    deployment: Deployment,
    operator: str,
    form: str,
    free: tuple[str, ...],
    data: dict[str, Array],
    seconds: Array,
) -> _Rows:
    part = deployment.profile
    model = gemm_model(operator, form, free, part.peak_flops["bf16"].value, part.memory_bandwidth.value, 2.0)
    tokens = data["tokens"]
    return _Rows(file, model, data, seconds, np.ones(len(seconds), bool), {}, ("tokens",), {"tokens": tokens}, tokens)


def _elementwise(table: LayerTable, deployment: Deployment) -> _Rows:
    tokens = table.layer("layernorm").size
    seconds = np.zeros(len(tokens))
    for name, calls in KERNELS_PER_LAYER.items():
        layer = table.layer(name)
        order = dict(zip(layer.size.tolist(), layer.seconds.tolist(), strict=True))
        seconds += calls * np.array([order[size] for size in tokens.tolist()])
    model = elementwise_model(ELEMENTWISE, deployment.profile.memory_bandwidth.value, deployment.architecture.hidden)
    every = np.ones(len(tokens), bool)
    return _Rows("dense.csv", model, {"tokens": tokens}, seconds, every, {}, ("tokens",), {"tokens": tokens}, tokens)


def _attention(data: Rtx4090, deployment: Deployment, off: tuple[str, ...], *, mixed: bool) -> _Rows:
    """Return the rows with a chunk, or those without."""
    part, heads = deployment.profile, _heads(deployment)
    peak, bandwidth = part.peak_flops["bf16"].value, part.memory_bandwidth.value
    table = data.attention.select((data.attention.chunk > 0) == mixed)
    rules = attention_rules(data.settings, deployment)
    left, excluded = apply_rules(table, rules, off)
    kept = np.logical_and.reduce([rule.keep(table) for rule in rules if rule.name not in off])
    served = (table.decodes >= SERVED_DECODES) & (table.context >= SERVED_TOKENS)
    if mixed:
        served &= table.chunk >= SERVED_TOKENS
    read, prefilled = left.decodes * (left.context + 1), left.cached + left.chunk
    if not mixed:
        model = decode_model("decode_attention.bf16", "decode_blocks", DECODE, peak, bandwidth, 2.0)
        columns: dict[str, Column] = {"batch": table.decodes, "read": table.context + 1}
        for name, value in zip(("heads", "kv_heads", "head_dim"), heads, strict=True):
            columns[name] = np.full(len(table), float(value))
        size = table.decodes * (table.context + 1)
        return _Rows(
            "attention.csv",
            model,
            columns,
            table.seconds,
            kept,
            excluded,
            ("batch", "read"),
            {"kv_tokens": read},
            size,
            served,
        )
    units = part.compute_units.value if part.compute_units else 1.0
    model = mixed_model("prefill_attention.bf16", MIXED, peak, bandwidth, units, 2.0, heads)
    columns = {
        "tokens": table.chunk, "cached": table.cached, "decodes": table.decodes, "context": table.context
    }  # fmt: skip
    covered = {"kv_tokens": np.concatenate([prefilled, read[read > 0]])}
    size, groups = table.cached + table.chunk, ("tokens", "cached", "decodes")
    return _Rows("attention.csv", model, columns, table.seconds, kept, excluded, groups, covered, size, served)


def _no_checks(_rows: _Rows, _predicted: Array, _test: Mask) -> dict[str, Errors]:
    return {}


def _layer_sum(rows: _Rows, predicted: Array, test: Mask) -> dict[str, Errors]:
    """Sum the four matrices of a layer at each token count that was held out."""
    tokens = rows.data["tokens"]
    sums = [(predicted[tokens == size].sum(), rows.seconds[tokens == size].sum()) for size in np.unique(tokens[test])]
    return {"sum of a layer's GEMMs": errors_of(*(np.array(column) for column in zip(*sums, strict=True)))}


def _mixed_checks(rows: _Rows, predicted: Array, test: Mask) -> dict[str, Errors]:
    """Tell prompts alone from mixed steps."""
    decodes = rows.data["decodes"]
    parts = {
        "attention of prompts alone": rows.kept & (decodes == 0),
        "attention of mixed steps": rows.kept & (decodes > 0),
        "attention of mixed steps, all rows": decodes > 0,
    }
    asked = {name: mask & test for name, mask in parts.items() if np.any(mask & test)}
    return {name: errors_of(predicted[chosen], rows.seconds[chosen]) for name, chosen in asked.items()}


def _whole_steps(data: Rtx4090, parameters: Parameters) -> dict[str, Errors]:
    """Hold whole predicted steps against steps with prefill of the served run, to which nothing is fitted."""
    steps = served_steps(data.requests, data.settings.max_num_batched_tokens)
    if not steps:
        return {}
    predicted = np.array([step.predicted(parameters) for step in steps])
    return {"whole steps with prefill, served": errors_of(predicted, np.array([step.seconds for step in steps]))}


def _select(data: dict[str, Array], mask: Mask) -> dict[str, Array]:
    return {name: column[mask] for name, column in data.items()}
