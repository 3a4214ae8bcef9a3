"""Kernel tables → the operators of a calibration: one fit per operator and dtype, errors from shapes that were held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError, unknown_name
from costmodel.hardware.profile import GpuProfile
from costmodel.validation.datasets import rules, silicon
from costmodel.validation.datasets.formats import quantisation
from costmodel.validation.datasets.package import available, package_folder
from costmodel.validation.datasets.tables import KernelTable
from costmodel.validation.fitting.experts import expert_tasks, matrix_suffix, table_engine
from costmodel.validation.fitting.holdout import Errors, errors_of, held_out
from costmodel.validation.fitting.least_squares import Array, Evaluator, FitResult, fit_kernel
from costmodel.validation.fitting.models import (
    all_reduce_model,
    decode_model,
    gemm_model,
    prefill_model,
)
from costmodel.validation.fitting.task import Task as _Task

MOST_ROWS = 8000
"""Rows of one fit; more change nothing in the third digit and only take time."""

FEWEST_ROWS = 50
"""An operator with fewer rows is left out of a calibration."""

GEMM_SPLIT = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "ramp_inputs")
GEMM_QUANT = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "quantise_efficiency", "depth_s")
MATRICES = (
    ("bf16", "gemm_split", GEMM_SPLIT),
    ("fp8", "gemm_quant", GEMM_QUANT),
    ("fp8-block", "gemm_quant", GEMM_QUANT),
    ("nvfp4", "gemm_quant", GEMM_QUANT),
)
"""Tables of matrices that are fitted, by the format their weights are stored in, and the form that each takes."""
PREFILL_TILE = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "tile_rows", "kv_passes")
DECODE_SPLIT = ("bandwidth_efficiency", "launch_s", "padding_tokens", "saturation_s", "saturation_tokens")
LINK_SWITCH = ("latency_s", "latency_per_log2_s", "bandwidth_efficiency", "two_shot_s")
HEAD_DIM = 128
"""Attention is fitted on heads of this dimension, which nearly all models served have."""


@dataclass(frozen=True, slots=True)
class OperatorFit:
    """One operator of a calibration.

    Attributes:
        operator, form: its key and form.
        result: of the fit to all rows that the rules keep.
        errors: on held-out shapes, by a fit that did not see them.
        errors_all: the same fit on held-out shapes of all rows, those that the rules exclude included.
        ranges: smallest and largest value of tokens and KV tokens in the rows kept.
        rows_kept, excluded: rows that the rules keep, and by rule those that it takes.
        version: of the engine.
    """

    operator: str
    form: str
    result: FitResult
    errors: Errors
    errors_all: Errors
    ranges: dict[str, tuple[float, float]]
    rows_kept: int
    excluded: dict[str, int]
    version: str
    engine: str = ""
    """Whose table it is, where that is not the engine of the calibration."""


def fit_kernels(gpu: str, engine: str = "vllm", off: Iterable[str] = (), seed: int = 0) -> Iterator[OperatorFit]:
    """Fit every operator that has been measured enough on a GPU with an engine, one after the other.

    Args:
        gpu: name of the part.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        off: rules of exclusion that are switched off.
        seed: which shapes are held out.

    Raises:
        InputError: no such part, nothing measured on it, or a fit that breaks the physical floor.
    """
    profile, choice = load_gpu(gpu)
    package_folder()  # says what to install where the measurements are missing
    found, skipped = False, tuple(off)
    tasks = list(_tasks(profile, choice.name, engine))
    known = {rule.name for task in tasks for rule in task.rules}
    for name in skipped:
        if name not in known:
            raise unknown_name("rule", name, known, "known: " + ", ".join(sorted(known)))
    for task in tasks:
        try:
            table = task.read()
        except InputError:
            continue  # not measured with this engine, or in this dtype
        fit = _fit(task, table, skipped, seed)
        if fit is not None:
            found = True
            yield fit
    if not found:
        measured = sorted({item.gpu for item in available() if item.engine == engine})
        raise InputError(
            f"no kernels of {choice.name} have been measured with {engine}; measured: {', '.join(measured)}"
        )


def _tasks(profile: GpuProfile, gpu: str, engine: str) -> Iterator[_Task]:
    peaks = {dtype: figure.value for dtype, figure in profile.peak_flops.items()}
    bandwidth = profile.memory_bandwidth.value
    units = profile.compute_units.value if profile.compute_units else 1.0
    for stored, form, free in MATRICES:
        kind = quantisation(stored)
        if kind.compute not in peaks:
            continue
        width = kind.weights.bytes_per_weight
        yield _Task(
            model=gemm_model(f"gemm.{matrix_suffix(stored)}", form, free, peaks[kind.compute], bandwidth, width),
            read=partial(silicon.gemm, gpu, table_engine(engine, stored), stored),
            rules=rules.gemm_rules(gpu),
            data=lambda table: {"tokens": table.tokens, "inputs": table.inputs, "outputs": table.outputs},
            groups=("inputs", "outputs"),
            ranges=lambda table: {"tokens": table.tokens},
        )
    yield from expert_tasks(gpu, engine, peaks, bandwidth, FEWEST_ROWS)
    if "bf16" not in peaks:
        return
    yield _Task(
        model=prefill_model(
            "prefill_attention.bf16", "prefill_tile", PREFILL_TILE, peaks["bf16"], bandwidth, units, 2.0
        ),
        read=lambda: _usual(silicon.prefill_attention(gpu, engine)),
        rules=rules.prefill_rules(gpu),
        data=lambda table: {**_heads(table), "batch": table.batch, "tokens": table.tokens, "cached": table.cached},
        groups=("heads", "kv_heads", "batch"),
        ranges=lambda table: {"kv_tokens": table.batch * (table.cached + table.tokens)},
    )
    yield _Task(
        model=decode_model("decode_attention.bf16", "decode_split", DECODE_SPLIT, peaks["bf16"], bandwidth, 2.0),
        read=lambda: _usual(silicon.decode_attention(gpu, engine)),
        rules=rules.decode_rules(gpu),
        data=lambda table: {**_heads(table), "batch": table.batch, "read": table.context + 1},
        groups=("heads", "kv_heads", "batch"),
        ranges=lambda table: {"kv_tokens": table.batch * (table.context + 1)},
    )
    yield _Task(
        model=all_reduce_model("link_switch", LINK_SWITCH, profile.link.bandwidth_per_direction.value),
        read=lambda: silicon.all_reduce(gpu, engine),
        rules=rules.all_reduce_rules(gpu),
        data=lambda table: {"gpus": table.gpus, "message": table.bytes},
        groups=("message",),
        ranges=lambda table: {"bytes": table.bytes},
    )


def _fit(task: _Task, table: KernelTable, off: tuple[str, ...], seed: int) -> OperatorFit | None:
    """Fit one operator; None where the rules keep too few rows for it."""
    known = {rule.name for rule in task.rules}
    kept, excluded = rules.apply_rules(table, task.rules, [name for name in off if name in known])
    if len(kept) < FEWEST_ROWS:
        return None
    evaluator, data = Evaluator(task.model), task.data(kept)
    test = held_out([data[name] for name in task.groups], seed)
    if np.count_nonzero(~test) < FEWEST_ROWS // 2:
        return None  # hardly more than one shape was measured
    trained = _fit_rows(evaluator, data, kept.seconds, ~test, seed)
    errors = errors_of(evaluator.seconds(trained.values, _rows(data, test)), kept.seconds[test])
    whole = task.data(table)
    unseen = ~_member(whole, _rows(data, ~test), task.groups)
    everything = errors_of(evaluator.seconds(trained.values, _rows(whole, unseen)), table.seconds[unseen])
    final = _fit_rows(evaluator, data, kept.seconds, np.ones(len(kept), dtype=bool), seed)
    ranges = {name: (float(column.min()), float(column.max())) for name, column in task.ranges(kept).items()}
    return OperatorFit(
        task.model.operator,
        task.model.form,
        final,
        errors,
        everything,
        ranges,
        len(kept),
        excluded,
        table.engine_version,
        table.engine,
    )


def _fit_rows(evaluator: Evaluator, data: dict[str, Array], seconds: Array, mask: Any, seed: int) -> FitResult:
    """Fit the masked rows, at most :data:`MOST_ROWS` of them."""
    rows = np.flatnonzero(mask)
    if len(rows) > MOST_ROWS:
        rows = np.random.default_rng(seed).choice(rows, MOST_ROWS, replace=False)
    return fit_kernel(evaluator, {name: column[rows] for name, column in data.items()}, seconds[rows])


def _rows(data: dict[str, Array], mask: Any) -> dict[str, Array]:
    return {name: column[mask] for name, column in data.items()}


def _member(data: dict[str, Array], of: dict[str, Array], groups: tuple[str, ...]) -> Any:
    """Return True for the rows whose group is among those of other rows."""
    seen = set(zip(*(of[name].tolist() for name in groups), strict=True))
    return np.array([key in seen for key in zip(*(data[name].tolist() for name in groups), strict=True)])


def _heads(table: Any) -> dict[str, Array]:
    return {"heads": table.query_heads, "kv_heads": table.kv_heads, "head_dim": table.head_dim}


def _usual(table: Any) -> Any:
    """Return the rows of full attention with heads of the usual dimension."""
    return table.select((table.head_dim == HEAD_DIM) & ~np.isfinite(table.window))
