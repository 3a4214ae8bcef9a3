"""Sweeps of simulations: from a grid to configurations, and from their results, in whatever order they come, to rows in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from costmodel.architecture.source import load_model
from costmodel.calibrations import choose_calibration
from costmodel.checks import positive, whole
from costmodel.deployment import Deployment, deploy
from costmodel.engine import part_token_budget
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import CostModelError, InputError
from costmodel.hardware.reading import shown_path
from costmodel.simulation.options import check_options
from costmodel.simulation.running import Limits
from costmodel.simulation.workloads import closed_loop, gamma
from costmodel.sweeping.columns import columns_of
from costmodel.sweeping.configurations import Configuration, file_stamps, key_of
from costmodel.sweeping.grid import INNER, Grid, part_of
from costmodel.sweeping.journal import Journal
from costmodel.sweeping.results import Sweep
from costmodel.sweeping.rows import Kind, SimulatedRow, types_of
from costmodel.sweeping.runners import Numbered

MOST_SIMULATIONS = 1_000_000
DEFAULT_EVERY_S = 10.0
"""From one injection to the next, where no rate is given."""
LEAST_DURATION_S, LEAST_INJECTIONS = 40.0, 4
"""How long the long-prompt experiment lasts, where no duration is given."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What all simulations of a sweep have in common."""

    kind: Literal["load", "interference"]
    server: dict[str, Any]
    requests: int | None
    duration: float | None
    spread: float | None
    burstiness: float | None
    seed: int | None
    limits: Limits
    axes: frozenset[str]
    """Those that were given, not left at their defaults."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row: what is known of it beforehand, and the configuration to simulate; None where there cannot be one."""

    known: dict[str, Any]
    configuration: Configuration | None


def points_of(grid: Grid, asked: Asked) -> tuple[list[Point], tuple[str, ...]]:
    """Return every row to be, in order, and the choices that were made for the user.

    Args:
        grid: all axes; those that a simulation of this kind does not have must have one value.
        asked: what is common to all.

    Raises:
        InputError: axes that do not go together, or a simulation that cannot be for any row.
    """
    grid = _relevant(grid, asked)
    if len(grid) > MOST_SIMULATIONS:
        raise InputError(f"{len(grid):,} simulations are more than {MOST_SIMULATIONS:,}")
    notes: list[str] = []
    return list(_points(grid, asked, notes)), tuple(dict.fromkeys(notes))


def simulate_points(
    kind: Kind,
    points: Sequence[Point],
    run: Callable[[Sequence[Configuration]], Iterator[Numbered]],
    journal: Journal | None,
    progress: Callable[[int, int], None],
) -> Sweep:
    """Simulate what :func:`points_of` returns.

    Args:
        kind: of simulation.
        points: rows to be.
        run: simulates configurations, somewhere.
        journal: gets every row as it comes; what it has already is not simulated again.
        progress: called with the simulations done and those in all.

    Raises:
        CostModelError: a simulation failed, or where they run is lost.
    """
    keys = {number: key_of(point.configuration) for number, point in enumerate(points) if point.configuration}
    found = {number: journal.rows[key] for number, key in keys.items() if journal and key in journal.rows}
    first: dict[str, int] = {}
    for number, key in keys.items():
        if number not in found:
            first.setdefault(key, number)  # two points may be the same, such as a part under two names
    missing = list(first.values())
    interrupted = False
    progress(len(keys) - len(missing), len(keys))
    results = run([points[number].configuration or {} for number in missing]) if missing else iter(())
    try:
        for done, (place, row) in enumerate(results, start=len(keys) - len(missing) + 1):
            number = missing[place]
            found[number] = row
            if journal is not None:
                journal.add(points[number].configuration or {}, row)
            progress(done, len(keys))
    except KeyboardInterrupt:
        interrupted = True
    except InputError:
        raise
    except CostModelError as error:
        if journal is None or not found:
            raise
        raise CostModelError(
            f"{error}; journal {shown_path(journal.path)} has what was simulated, --resume goes on with it"
        ) from None
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()
    for number, key in keys.items():
        if number not in found and first.get(key) in found:
            found[number] = found[first[key]]
    empty = dict.fromkeys(types_of(kind))
    rows = [
        SimulatedRow(**{**empty, **point.known, **found.get(number, {})})
        for number, point in enumerate(points)
        if number in found or point.configuration is None
    ]
    rows = [row if row.problem is None else replace(row, rung=None) for row in rows]
    return Sweep(kind, columns_of(kind, rows), interrupted)


def _relevant(grid: Grid, asked: Asked) -> Grid:
    """Return the grid without the axes that these simulations do not have."""
    if asked.kind == "interference":
        for name in ("requests", "spread", "burstiness", "seed"):
            if getattr(asked, name) is not None:
                raise InputError(f"{name} is for a load; the long-prompt experiment has streams and injections")
        if asked.limits.tpot is not None:
            raise InputError(
                "a limit on TPOT is for a load; an injected prompt has an answer of one token, and no TPOT"
            )
        if asked.duration is not None:
            positive(asked.duration, "duration")
            late = [_late(rate, asked.duration) for rate in grid.rate]
            if all(late):
                raise InputError(str(late[0]))
        return _without(grid, asked, "output", "the long-prompt experiment has standing streams", None)
    rated = [rate for rate in grid.rate if rate is not None]
    _check_load(asked, bool(rated))
    if rated and len(rated) < len(grid.rate):
        raise InputError("a load has either clients or arrivals at a rate: give numbers for all of rate, or none")
    if None in grid.output:
        raise InputError("a load needs the length of its answers; give output")
    if None in grid.chunk:
        raise InputError("chunk must be a number of tokens for a load, or 'engine' for vLLM's default")
    grid = _without(grid, asked, "context", "a load makes its own", 0)
    return _without(grid, asked, "streams", "requests at a rate are no clients", 1) if rated else grid


def _late(rate: float | None, duration: float | None) -> str | None:
    """Say that an experiment ends before its first prompt comes; None if it does not."""
    first = (DEFAULT_EVERY_S if rate is None else 1 / rate) / 2
    if duration is None or first < duration:
        return None
    return f"duration of {duration:g} s: the first prompt comes after {first:g} s, half of 1/rate; give more than that, or a higher rate"


def _check_load(asked: Asked, rated: bool) -> None:
    """Raise :class:`InputError` for what can be no load, whatever the row."""
    spread, seed = asked.spread or 0.0, asked.seed or 0
    if rated:
        gamma(1.0, 1.0 if asked.burstiness is None else asked.burstiness, 1, 1, requests=1, spread=spread, seed=seed)
        if asked.requests is not None and asked.duration is not None:
            raise InputError("give either requests or duration, not both")
    else:
        if asked.duration is not None:
            raise InputError("a closed loop ends after a number of requests, not after a duration")
        if asked.burstiness is not None:
            raise InputError("burstiness is for requests at a rate; clients send when their last answer ends")
        closed_loop(1, 1, 1, 1, spread, seed)
    if asked.requests is not None:
        whole(asked.requests, "requests", 1)
    if asked.duration is not None:
        positive(asked.duration, "duration")


def _without(grid: Grid, asked: Asked, name: str, why: str, value: Any) -> Grid:
    if name in asked.axes or len(getattr(grid, name)) > 1:
        raise InputError(f"{name} makes no difference here ({why}); leave it out")
    changed: dict[str, Any] = {name: (value,)}
    return replace(grid, **changed)


def _points(grid: Grid, asked: Asked, notes: list[str]) -> Iterator[Point]:
    """Yield every row to be, in order; add the choices that were made for the user to the ``notes``."""
    for each in grid.deployments():
        placed = {name: asked.server[name] for name in ("ep", "kv_dtype", "compute_dtype", "lora")}
        deployment: Deployment | None = None
        problem = None
        try:
            deployment = deploy(**each, **placed)
        except InputError as error:
            problem = str(error)
        server = {**each, **asked.server}
        if isinstance(server["calibration"], Path):
            server["calibration"] = str(server["calibration"])
        if deployment is not None:
            notes += deployment.notes
            check_options({name: value for name, value in server.items() if value is not None})
            choose_calibration(server["calibration"], deployment, server["engine"], server["assume_efficiency"])
        names = {
            "model": deployment.architecture.name if deployment else load_model(each["model"])[0].name,
            "gpu": part_of(each["gpu"]),
            "gpus": deployment.gpus if deployment else None,
            "tensor_parallel": each["tp"],
            "dtype": deployment.dtype if deployment else each["dtype"],
            "problem": problem,
        }
        stamps = file_stamps(server)
        budget = part_token_budget(load_gpu(each["gpu"])[0])
        for values in itertools.product(*(getattr(grid, name) for name in INNER)):
            point = dict(zip(INNER, values, strict=True))
            configuration = None
            late = _late(point["rate"], asked.duration) if asked.kind == "interference" else None
            if problem is None and late is None:
                configuration = {
                    "kind": asked.kind,
                    "workload": _workload(point, asked),
                    "server": {**server, "chunk": _chunk(point["chunk"], asked.kind)},
                    "limits": asdict(asked.limits),
                    "files": stamps,
                }
            yield Point({**names, "problem": problem or late, **_known(point, asked, budget)}, configuration)


def _workload(point: dict[str, Any], asked: Asked) -> dict[str, Any]:
    if asked.kind == "interference":
        every = DEFAULT_EVERY_S if point["rate"] is None else 1 / point["rate"]
        return {
            "prompt": point["prompt"],
            "streams": point["streams"],
            "context": point["context"],
            "every": every,
            "first": every / 2,
            "duration": max(LEAST_DURATION_S, LEAST_INJECTIONS * every) if asked.duration is None else asked.duration,
        }
    return {
        "clients": point["streams"] if point["rate"] is None else None,
        "rate": point["rate"],
        "burstiness": 1.0 if asked.burstiness is None else asked.burstiness,
        "requests": asked.requests,
        "duration": asked.duration,
        "prompt": point["prompt"],
        "output": point["output"],
        "spread": asked.spread or 0.0,
        "seed": asked.seed or 0,
    }


def _chunk(chunk: int | str | None, kind: str) -> int | str:
    return "one-step" if chunk is None and kind == "interference" else chunk or "engine"


def _known(point: dict[str, Any], asked: Asked, budget: int) -> dict[str, Any]:
    """Return the columns that a point fills before it is simulated; the engine's token budget on the part is given."""
    load = asked.kind == "load"
    rate = point["rate"] if load or point["rate"] is not None else 1 / DEFAULT_EVERY_S
    return {
        "chunk_tokens": budget if point["chunk"] == "engine" else point["chunk"],
        "rate_per_s": rate,
        "prompt_tokens": point["prompt"],
        "streams": None if load and rate is not None else point["streams"],
        "context_tokens": None if load else point["context"],
        "output_tokens": point["output"],
    }
