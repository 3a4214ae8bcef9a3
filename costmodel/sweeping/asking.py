"""``sweep``: many configurations in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.adapters import plain
from costmodel.calibrations import choose_calibration
from costmodel.checks import choice
from costmodel.deployment import Deployment, deploy
from costmodel.engine import other_defaults
from costmodel.hardware.errors import InputError, shown
from costmodel.prices import Prices, read_prices
from costmodel.simulation.running import Limits
from costmodel.sweeping.cluster import run_on_dask
from costmodel.sweeping.columns import Column, joined
from costmodel.sweeping.grid import Grid, make_grid
from costmodel.sweeping.journal import Journal
from costmodel.sweeping.results import Sweep
from costmodel.sweeping.rows import types_of
from costmodel.sweeping.runners import run_local
from costmodel.sweeping.simulated import Asked, simulate_all
from costmodel.sweeping.steps import sweep_steps, unanswered

KINDS = ("load", "interference")
Progress = Callable[[int, int], None]


def sweep(
    *,
    model: str | Sequence[str] = "Llama-3.1-8B",
    gpu: str | Sequence[str] = "h100",
    tp: int | Sequence[int] = 1,
    dtype: str | Sequence[str | None] | None = None,
    chunk: int | str | Sequence[int | str | None] | None = "engine",
    rate: float | Sequence[float | None] | None = None,
    prompt: int | Sequence[int] = 8000,
    streams: int | Sequence[int] = 32,
    context: int | Sequence[int] = 500,
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
    spread: float = 0.0,
    burstiness: float = 1.0,
    seed: int = 0,
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
        streams: sequences that decode; clients of a closed loop.
        context: tokens that each has in the KV cache (not of a load).
        output: tokens of an answer; None to leave out what depends on it.
        ep, kv_dtype, compute_dtype, lora, engine, calibration, assume_efficiency: of all rows, as in :func:`costmodel.predict`.
            The calibration is a file or ``"none"``; one for a single part needs that part alone.
        prices: price per hour of one GPU: by name, or a CSV or TOML table (:func:`costmodel.prices.read_prices`).
        simulate: ``"load"`` or ``"interference"``: simulate each instead (:func:`costmodel.simulate_load`,
            :func:`costmodel.simulate_interference`).
        requests, duration, spread, burstiness, seed, limits, max_num_seqs: of the simulations.
        workers: processes on this machine; None for one per core.
        dask: address of a Dask scheduler that runs the simulations instead, such as ``tcp://10.0.0.1:8786`` (extra ``dask``). Files that
            options name must be there on every worker.
        journal: file that gets each simulated row at once.
        resume: take from it what is there, and go on.
        progress: called with the simulations done and those in all.

    Returns:
        A :class:`~costmodel.sweeping.results.Sweep`; Ctrl-C ends simulations with the rows that are done.

    Raises:
        InputError: an unknown name, a value that cannot be for any row, or options that contradict each other.
    """
    grid = make_grid(model, gpu, tp, dtype, chunk, rate, prompt, streams, context, output)
    priced = {} if prices is None else read_prices(prices).per_hour
    placed = {"ep": ep, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype, "lora": plain(lora)}
    fitted = {"engine": engine, "calibration": calibration, "assume_efficiency": assume_efficiency}
    if simulate is None:
        _refuse_simulation_only(
            requests=requests,
            duration=duration,
            limits=limits,
            max_num_seqs=max_num_seqs,
            workers=workers,
            dask=dask,
            journal=journal,
        )
        made = Sweep("steps", _step_columns(grid, placed, fitted), notes=other_defaults(engine))
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
        )
        if dask is not None and workers is not None:
            raise InputError("--workers are processes of this machine, --dask has its own; leave out one of them")
        if resume and journal is None:
            raise InputError("resume needs the journal to go on with")

        def run(configurations: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
            return run_local(configurations, workers) if dask is None else run_on_dask(configurations, dask)

        kept = Journal(Path(journal).expanduser(), resume) if journal is not None else None
        try:
            made = simulate_all(grid, asked, run, kept, progress or _silent)
        finally:
            if kept is not None:
                kept.close()
    return replace(made, columns=_priced(made.columns, priced), notes=(*made.notes, *_unpriced(made.columns, priced)))


def _silent(done: int, total: int) -> None:
    """Show no progress."""


def _refuse_simulation_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for sweeps of simulations; give simulate as well, or leave it out")


def _step_columns(grid: Grid, placed: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Column]:
    """Return the columns of all deployments, one after another."""
    blocks = []
    for each in grid.deployments():
        try:
            deployment = deploy(**each, **placed)
        except InputError as error:
            blocks.append(unanswered(grid, each, str(error)))
            continue
        blocks.append(sweep_steps(deployment, _calibration(deployment, fitted), grid))
    return {name: joined(type_, [block[name] for block in blocks]) for name, type_ in types_of("steps").items()}


def _calibration(deployment: Deployment, fitted: dict[str, Any]) -> Any:
    if fitted["calibration"] is not None and not isinstance(fitted["calibration"], (str, Path)):
        raise InputError(f"calibration must be a file or 'none' here, not {shown(fitted['calibration'])}")
    return choose_calibration(
        fitted["calibration"], deployment, fitted["engine"], assume_efficiency=fitted["assume_efficiency"]
    )


def _priced(columns: Mapping[str, Column], prices: Mapping[str, float]) -> dict[str, Column]:
    """Return the columns with prices, where there is one for the GPU."""
    if not prices:
        return dict(columns)
    gpu = columns["gpu"]
    each = np.array([prices.get(name, np.nan) for name in gpu.texts] + [np.nan])
    per_hour = each[np.where(gpu.missing, len(gpu.texts), gpu.values).astype(np.intp)] * columns["gpus"].values
    tokens = columns["output_tokens_per_s"].values * 3600 / per_hour
    return {
        **columns,
        "price_per_hour": Column("number", per_hour),
        "output_tokens_per_price": Column("number", tokens),
    }


def _unpriced(columns: Mapping[str, Column], prices: Mapping[str, float]) -> tuple[str, ...]:
    missing = [name for name in columns["gpu"].texts if name not in prices] if prices else []
    return (f"no price of {', '.join(missing)} in the table",) if missing else ()
