"""``sweep``: many configurations in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.adapters import asked_lora, plain
from costmodel.calibrations import choose_calibration
from costmodel.checks import choice, whole
from costmodel.deployment import Deployment, deploy
from costmodel.engine import other_defaults
from costmodel.hardware.errors import InputError, shown
from costmodel.prices import Prices, read_prices
from costmodel.simulation.running import Limits
from costmodel.sweeping.cluster import check_distributed, run_on_dask
from costmodel.sweeping.columns import Column, joined
from costmodel.sweeping.grid import Grid, check_placement, make_grid, part_of
from costmodel.sweeping.journal import Journal
from costmodel.sweeping.memory import free_memory
from costmodel.sweeping.results import Sweep
from costmodel.sweeping.rows import types_of
from costmodel.sweeping.runners import MOST_WORKERS, run_local
from costmodel.sweeping.simulated import Asked, points_of, simulate_points
from costmodel.sweeping.steps import sweep_steps, unanswered

KINDS = ("load", "interference")
MOST_MEMORY = 0.75
"""Share of the free memory that the rows may take: what is computed on the way, and tables and figures, need some too."""
Progress = Callable[[int, int], None]
Run = Callable[[Sequence[dict[str, Any]]], Iterator[tuple[int, dict[str, Any]]]]


def sweep(
    *,
    model: str | Sequence[str] = "Llama-3.1-8B",
    gpu: str | Sequence[str] = "h100",
    tp: int | Sequence[int] = 1,
    dtype: str | Sequence[str | None] | None = None,
    chunk: int | str | Sequence[int | str | None] | None = "engine",
    rate: float | Sequence[float | None] | None = None,
    prompt: int | Sequence[int] = 8000,
    streams: int | Sequence[int] | None = None,
    context: int | Sequence[int] | None = None,
    output: int | Sequence[int | None] | None = 500,
    ep: int = 1,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    engine: str = "vllm",
    calibration: str | Path | None = None,
    assume_efficiency: bool = False,
    prices: str | Path | Mapping[str, float] | Prices | None = None,
    simulate: str | None = None,
    requests: int | None = None,
    duration: float | None = None,
    spread: float | None = None,
    burstiness: float | None = None,
    seed: int | None = None,
    limits: Limits | None = None,
    max_num_seqs: int | None = None,
    workers: int | None = None,
    dask: str | None = None,
    journal: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Predict or simulate every combination of GPUs, models, parallelism, number formats and load.

    A combination that cannot be (the model does not fit, TP does not divide it, the part cannot compute in the dtype) is a row with the
    reason as its ``problem``.

    Without ``simulate`` every deployment is one array evaluation. Step times, spike and who sees it are those of :func:`costmodel.predict`
    with ``every`` = 1/rate; TTFT, TPOT and tokens per second those of :func:`costmodel.closed_loop` with as many clients as there are
    streams, each with prompts of ``prompt`` and answers of ``output`` tokens.

    Args:
        model, gpu, tp, dtype: one or several, as in :func:`costmodel.predict`.
        chunk: token budgets; ``"engine"`` for vLLM's default on each part, None for the prompt in one step (not for a load).
        rate: prompts per second (of a load: requests per second); None for none of it: no share of gaps, clients in a closed loop,
            an injection every 10 s.
        prompt: tokens of a prompt.
        streams: sequences that decode; clients of a closed loop; 32 unless given (not of a load at a rate).
        context: tokens that each has in the KV cache; 500 unless given (not of a load).
        output: tokens of an answer; None to leave out what depends on it.
        ep, kv_dtype, compute_dtype, lora, engine, calibration, assume_efficiency: of all rows, as in :func:`costmodel.predict`.
            The calibration is a file or ``"none"``; one for a single part needs that part alone.
        prices: price per hour of one GPU: by name, or a CSV or TOML table (:func:`costmodel.prices.read_prices`).
        simulate: ``"load"`` or ``"interference"``: simulate each instead (:func:`costmodel.simulate_load`,
            :func:`costmodel.simulate_interference`).
        requests, duration, spread, burstiness, seed, limits, max_num_seqs: of the simulations; None for the defaults of
            :func:`costmodel.simulate_load`.
        workers: processes on this machine; None for one per core.
        dask: address of a Dask scheduler that runs the simulations instead, such as ``tcp://10.0.0.1:8786`` (extra ``dask``). Files that
            options name must be there on every worker.
        journal: file that gets each simulated row at once.
        resume: take from it what is there, and go on.
        progress: called with the simulations done and those in all.

    Returns:
        A :class:`~costmodel.sweeping.results.Sweep`; Ctrl-C ends simulations with the rows that are done.

    Raises:
        InputError: an unknown name, a value that cannot be for any row, options that contradict each other or have no say, no memory
            for so many rows.
        CostModelError: simulations failed, or the machines that run them are lost.
    """
    axes = frozenset(name for name, value in (("streams", streams), ("context", context)) if value is not None)
    streams, context = 32 if streams is None else streams, 500 if context is None else context
    grid = make_grid(model, gpu, tp, dtype, chunk, rate, prompt, streams, context, output)
    check_placement(ep, kv_dtype, compute_dtype)
    priced = Prices({}) if prices is None else read_prices(prices)
    placed = {"ep": ep, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype, "lora": plain(asked_lora(lora)[0])}
    fitted = {"engine": engine, "calibration": calibration, "assume_efficiency": assume_efficiency}
    if simulate is None:
        _refuse_simulation_only(
            requests=requests,
            duration=duration,
            spread=spread,
            burstiness=burstiness,
            seed=seed,
            limits=limits,
            max_num_seqs=max_num_seqs,
            workers=workers,
            dask=dask,
            journal=journal,
        )
        made = _within_memory(grid, lambda: _step_rows(grid, placed, fitted))
    else:
        asked = Asked(
            kind=choice(simulate, KINDS, "simulation"),  # type: ignore[arg-type]
            server={**placed, **fitted, "max_num_seqs": max_num_seqs},
            requests=requests,
            duration=duration,
            spread=spread,
            burstiness=burstiness,
            seed=seed,
            limits=(limits or Limits()).checked(),
            axes=axes,
        )
        if max_num_seqs is not None:
            whole(max_num_seqs, "max_num_seqs", 1)
        made = _simulated(grid, asked, _runner(workers, dask), journal, resume, progress or _silent)
    return replace(
        made,
        columns=_priced(made.columns, priced),
        notes=(*other_defaults(engine), *made.notes, *_unpriced(made.columns, priced)),
        currency=priced.currency,
    )


def _runner(workers: int | None, dask: str | None) -> Run:
    """Return what simulates configurations; refuse what cannot be before anything is done."""
    if dask is None:
        if workers is not None:
            whole(workers, "workers", 1, MOST_WORKERS)
        return lambda configurations: run_local(configurations, workers)
    if workers is not None:
        raise InputError("--workers are processes of this machine, --dask has its own; leave out one of them")
    check_distributed()
    return lambda configurations: run_on_dask(configurations, dask)


def _simulated(
    grid: Grid, asked: Asked, run: Run, journal: str | Path | None, resume: bool, progress: Progress
) -> Sweep:
    """Simulate a grid; the journal is opened when all else is checked."""
    if resume and journal is None:
        raise InputError("resume needs the journal to go on with")
    points, notes = points_of(grid, asked)
    kept = Journal(Path(journal).expanduser(), resume) if journal is not None else None
    try:
        return replace(simulate_points(asked.kind, points, run, kept, progress), notes=notes)
    finally:
        if kept is not None:
            kept.close()


def _silent(done: int, total: int) -> None:
    """Show no progress."""


def _refuse_simulation_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for sweeps of simulations; give simulate as well, or leave it out")


def _within_memory(grid: Grid, make: Callable[[], Sweep]) -> Sweep:
    """Return what is made, or raise :class:`InputError` where the rows of a grid are more than there is memory for."""
    several = math.prod(len(axis) for axis in (grid.model, grid.gpu, grid.tp, grid.dtype)) > 1
    needed = len(grid) * len(types_of("steps")) * 8 * (2 if several else 1)  # pieces, and all of them joined
    free = free_memory()
    if free is None or needed <= MOST_MEMORY * free:
        with suppress(MemoryError):
            return make()
    room = "" if free is None else f", of which {free / 1e9:,.1f} GB are free"
    raise InputError(
        f"{len(grid):,} rows take about {needed / 1e9:,.1f} GB of memory{room}; sweep fewer at a time, or leave axes out"
    )


def _step_rows(grid: Grid, placed: dict[str, Any], fitted: dict[str, Any]) -> Sweep:
    """Return the rows of all deployments, one after another."""
    blocks: list[dict[str, Column]] = []
    notes: list[str] = []
    for each in grid.deployments():
        try:
            deployment = deploy(**each, **placed)
        except InputError as error:
            blocks.append(unanswered(grid, each, str(error)))
            continue
        notes += deployment.notes
        blocks.append(sweep_steps(deployment, _calibration(deployment, fitted), grid, part_of(each["gpu"])))
    columns = {name: joined(type_, [block[name] for block in blocks]) for name, type_ in types_of("steps").items()}
    return Sweep("steps", columns, notes=tuple(dict.fromkeys(notes)))


def _calibration(deployment: Deployment, fitted: dict[str, Any]) -> Any:
    if fitted["calibration"] is not None and not isinstance(fitted["calibration"], (str, Path)):
        raise InputError(f"calibration must be a file or 'none' here, not {shown(fitted['calibration'])}")
    return choose_calibration(
        fitted["calibration"], deployment, fitted["engine"], assume_efficiency=fitted["assume_efficiency"]
    )


def _priced(columns: Mapping[str, Column], prices: Prices) -> dict[str, Column]:
    """Return the columns with prices, where there is one for the GPU."""
    if not prices.per_hour:
        return dict(columns)
    gpu = columns["gpu"]
    each = np.array([*(prices.of(name) for name in gpu.texts), None], dtype=np.float64)
    per_hour = each[np.where(gpu.missing, len(gpu.texts), gpu.values).astype(np.intp)] * columns["gpus"].values
    tokens = columns["output_tokens_per_s"].values * 3600
    with np.errstate(divide="ignore"):
        per_million = np.where(tokens > 0, per_hour / tokens * 1e6, np.nan)
    return {
        **columns,
        "cost_per_hour": Column("number", per_hour),
        "cost_per_million_tokens": Column("number", per_million),
    }


def _unpriced(columns: Mapping[str, Column], prices: Prices) -> tuple[str, ...]:
    missing = [name for name in columns["gpu"].texts if prices.of(name) is None] if prices.per_hour else []
    return (f"no price of {', '.join(missing)} in the table",) if missing else ()
