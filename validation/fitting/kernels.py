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
from costmodel.validation.fitting.attention import (
    FEWEST_ROWS,
    KINDS,
    PREFILL_TILE,
    PREFILL_WINDOW,
    Kind,
    decode_form,
    read_decode,
    read_prefill,
)
from costmodel.validation.fitting.experts import expert_tasks, matrix_suffix, table_engine
from costmodel.validation.fitting.holdout import (
    Errors,
    coverage,
    errors_by_size,
    errors_of,
    errors_where,
    folds,
    held_out,
    widened,
)
from costmodel.validation.fitting.least_squares import Array, Evaluator, FitResult, fit_kernel
from costmodel.validation.fitting.models import (
    KernelModel,
    all_reduce_model,
    decode_model,
    gemm_model,
    prefill_model,
    without,
)
from costmodel.validation.fitting.task import Task as _Task
from costmodel.validation.fitting.task import same

MOST_ROWS = 8000
"""Rows of one fit; more change nothing in the third digit and only take time."""

GEMM_SPLIT = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "ramp_inputs", "wave_s")
GEMM_QUANT = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "quantise_efficiency", "depth_s")
GEMM_QUANT_TILED = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "quantise_efficiency", "depth_s")
MATRICES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("bf16", "gemm_split", GEMM_SPLIT),
    ("fp8", "gemm_quant", GEMM_QUANT),
    ("fp8-block", "gemm_quant", GEMM_QUANT),
    ("nvfp4", "gemm_quant", GEMM_QUANT),
)
"""Tables of matrices that are fitted, by the format their weights are stored in, and the form that each takes."""
LINK_SWITCH = ("latency_s", "latency_per_log2_s", "bandwidth_efficiency", "two_shot_s")
LINK_SWITCH_LARGE = (*LINK_SWITCH, "one_shot_efficiency", "large_s")
"""vLLM's own all-reduce ends at 8 MiB, the default of ``large_bytes``; one shot of it uses links less well."""
LINK_RING = (
    "latency_s",
    "latency_per_hop_s",
    "bandwidth_efficiency",
    "sharing",
    "sharing_power",
    "small_sharing",
    "protocol_s",
)
OPTIONAL = {"wave_s": (), "large_s": (), "small_sharing": ("protocol_s",)}
"""Parameters that are dropped, and the rest fitted again, where the rows fitted put them at zero, each with those that mean nothing without
it; it goes as well where the rows do not determine these."""


@dataclass(frozen=True, slots=True)
class OperatorFit:
    """One operator of a calibration.

    Attributes:
        operator, form: its key and form.
        result: of the fit to all rows that the rules keep.
        errors: on held-out shapes, by a fit that did not see them.
        errors_served: of those, on shapes like a server's: matrices of at least 512 by 512, prompts and contexts of at least 512 tokens;
            None where the operator has no such shapes of its own.
        errors_all: the same fit on held-out shapes of all rows, those that the rules exclude included.
        ranges: smallest and largest value of tokens and KV tokens in the rows kept.
        by_size: ``errors`` of thirds by the first of those, each with its largest value.
        coverage: share of held-out rows within the intervals that the other half of them gives; None where that was not computed.
        rows_kept, excluded: rows that the rules keep, and by rule those that it takes.
        version: of the engine.
    """

    operator: str
    form: str
    result: FitResult
    errors: Errors
    errors_served: Errors | None
    errors_all: Errors
    ranges: dict[str, tuple[float, float]]
    by_size: tuple[tuple[float, Errors], ...]
    coverage: float | None
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
    peaks: dict[str, float] = {dtype: figure.value for dtype, figure in profile.peak_flops.items()}
    bandwidth = profile.memory_bandwidth.value
    units = profile.compute_units.value if profile.compute_units else 1.0
    tiled = profile.architecture == "hopper" and engine in (
        "vllm",
        "sglang",
    )  # CUTLASS; TensorRT-LLM has kernels of its own
    for stored, usual, parameters in MATRICES:
        kind = quantisation(stored)
        if kind.compute not in peaks:
            continue
        form, free = ("gemm_quant_tiled", GEMM_QUANT_TILED) if tiled and stored == "fp8" else (usual, parameters)
        peak, width = peaks[kind.compute], kind.weights.bytes_per_weight
        model = gemm_model(f"gemm.{matrix_suffix(stored)}", form, free, peak, bandwidth, width)
        yield _Task(
            model=partial(same, model),
            read=partial(silicon.gemm, gpu, table_engine(engine, stored), stored),
            rules=rules.gemm_rules(gpu),
            data=lambda table: {"tokens": table.tokens, "inputs": table.inputs, "outputs": table.outputs},
            groups=("inputs", "outputs"),
            ranges=lambda table: {"tokens": table.tokens},
            served=lambda table: np.minimum(table.inputs, table.outputs) >= rules.SERVED_MATRIX,
        )
    yield from expert_tasks(gpu, engine, peaks, bandwidth, FEWEST_ROWS)
    if "bf16" not in peaks:
        return
    for heads in KINDS:
        yield from _attention_tasks(heads, gpu, engine, peaks, bandwidth, units)
    link = profile.link.bandwidth_per_direction.value
    form, free = ("link_switch", LINK_SWITCH_LARGE if engine == "vllm" else LINK_SWITCH)
    if profile.link.kind == "pcie":  # two GPUs alone use the engine's own kernel, more a ring of NCCL's over the host
        form, free = "link_ring", LINK_RING
    messages = all_reduce_model(form, free, link)
    yield _Task(
        model=partial(same, messages),
        read=lambda: silicon.all_reduce(gpu, engine),
        rules=rules.all_reduce_rules(gpu),
        data=lambda table: {"gpus": table.gpus, "message": table.bytes},
        groups=("message",),
        ranges=lambda table: {"bytes": 2 * (table.gpus - 1) / table.gpus * table.bytes},  # that a GPU sends in a ring
        kinds=(lambda table: table.gpus) if form == "link_ring" else None,
    )


def _attention_tasks(
    kind: Kind, gpu: str, engine: str, peaks: dict[str, float], bandwidth: float, units: float
) -> Iterator[_Task]:
    """Prefill and decode attention of one kind. An 8-bit cache is multiplied in 8 bits where the part can (see Deployment)."""
    width = 1.0 if kind.kv_dtype == "fp8" else 2.0
    peak = peaks.get(kind.kv_dtype, peaks["bf16"])
    name = kind.suffix("bf16")
    tiled = PREFILL_TILE if kind.window is None else PREFILL_WINDOW

    def decode(table: Any) -> KernelModel:
        form, free = decode_form(table, kind)
        return decode_model(
            f"decode_attention.{name}", form, free, peak, bandwidth, width, windowed=kind.window is not None
        )

    yield _Task(
        model=lambda _table: prefill_model(
            f"prefill_attention.{name}", "prefill_tile", tiled, peak, bandwidth, units, width, kind.window
        ),
        read=partial(read_prefill, gpu, engine, kind),
        rules=rules.prefill_rules(gpu),
        data=lambda table: {**_heads(table), "batch": table.batch, "tokens": table.tokens, "cached": table.cached},
        groups=("heads", "kv_heads", "batch"),
        ranges=lambda table: {"kv_tokens": table.batch * (table.cached + table.tokens)},
        served=lambda table: table.tokens >= rules.SERVED_TOKENS,
    )
    yield _Task(
        model=decode,
        read=partial(read_decode, gpu, engine, kind),
        rules=rules.decode_rules(gpu),
        data=lambda table: {**_heads(table), "batch": table.batch, "read": _read(table)},
        groups=("heads", "kv_heads", "batch"),
        ranges=lambda table: {"kv_tokens": table.batch * (table.context + 1)},
        served=lambda table: table.context >= rules.SERVED_TOKENS,
    )


def _fit(task: _Task, table: KernelTable, off: tuple[str, ...], seed: int) -> OperatorFit | None:
    """Fit one operator; None where the rules keep too few rows for it."""
    known = {rule.name for rule in task.rules}
    kept, excluded = rules.apply_rules(table, task.rules, [name for name in off if name in known])
    if len(kept) < FEWEST_ROWS:
        return None
    model, data = task.model(kept), task.data(kept)
    evaluator = Evaluator(model)
    test = held_out([data[name] for name in task.groups], seed)
    if np.count_nonzero(~test) < FEWEST_ROWS // 2:
        return None  # hardly more than one shape was measured
    trained = _fit_rows(evaluator, data, kept.seconds, ~test, seed)
    if dropped := useless(trained):
        evaluator = Evaluator(without(model, dropped))
        trained = _fit_rows(evaluator, data, kept.seconds, ~test, seed)
    predicted, measured = evaluator.seconds(trained.values, _rows(data, test)), kept.seconds[test]
    errors = errors_of(predicted, measured)
    sizes = next(iter(task.ranges(kept).values()))[test]
    served = errors_where(predicted, measured, task.served(kept)[test]) if task.served else None
    by_size = errors_by_size(predicted, measured, sizes)
    if task.kinds:
        errors, by_size = _intervals_by_kind(task, evaluator, kept, errors, seed)
    whole = task.data(table)
    unseen = ~_member(whole, _rows(data, ~test), task.groups)
    everything = errors_of(evaluator.seconds(trained.values, _rows(whole, unseen)), table.seconds[unseen])
    final = _fit_rows(evaluator, data, kept.seconds, np.ones(len(kept), dtype=bool), seed)
    ranges = {name: (float(column.min()), float(column.max())) for name, column in task.ranges(kept).items()}
    return OperatorFit(
        model.operator,
        model.form,
        final,
        errors,
        served,
        everything,
        ranges,
        by_size,
        coverage(predicted, measured, sizes, held_out([data[name][test] for name in task.groups], seed, 0.5)),
        len(kept),
        excluded,
        table.engine_version,
        table.engine,
    )


def _intervals_by_kind(
    task: _Task, evaluator: Evaluator, kept: KernelTable, errors: Errors, seed: int
) -> tuple[Errors, tuple[tuple[float, Errors], ...]]:
    """Return errors, and those by size, with intervals that are no narrower than those of any kind of rows.

    They are cross-validated on all rows: those of one draw are too few of each kind.
    """
    assert task.kinds is not None
    data, kinds = task.data(kept), task.kinds(kept)
    sizes = next(iter(task.ranges(kept).values()))
    fold = folds([data[name] for name in task.groups], seed)
    predicted = np.empty(len(kept))
    for number in np.unique(fold):
        test = fold == number
        values = _fit_rows(evaluator, data, kept.seconds, ~test, seed).values
        predicted[test] = evaluator.seconds(values, _rows(data, test))
    low, by_size = -np.inf, []
    for edge, part in errors_by_size(predicted, kept.seconds, sizes):
        rows = (sizes > low) & (sizes <= edge)
        by_size.append((edge, widened(part, predicted[rows], kept.seconds[rows], kinds[rows])))
        low = edge
    return widened(errors, predicted, kept.seconds, kinds), tuple(by_size)


def useless(fit: FitResult) -> set[str]:
    """Return the optional parameters that the rows fitted put at zero or do not tell, with those that go with them."""
    gone = {
        name
        for name, others in OPTIONAL.items()
        if name in fit.values and (name in fit.at_bound or any(_unknown(fit, other) for other in others))
    }
    return gone.union(*(OPTIONAL[name] for name in gone))


def _unknown(fit: FitResult, name: str) -> bool:
    """Return whether the rows do not tell a parameter: no slope, at a bound, or less than its standard error."""
    return name in (*fit.undetermined, *fit.at_bound) or fit.values[name] < fit.standard_errors[name]


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


def _read(table: Any) -> Array:
    """Return the KV tokens that a decoding sequence reads."""
    return np.asarray(np.minimum(table.context + 1, table.window))
