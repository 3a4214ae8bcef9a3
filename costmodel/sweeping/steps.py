"""The step-level sweep of one deployment: every combination of the inner axes as one array evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.architecture.source import load_model
from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs, default_token_budget, part_token_budget
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import load_gpu
from costmodel.rungs import MAX_STEPS
from costmodel.sweeping.columns import Column, Floats
from costmodel.sweeping.fitting import Room, room_of
from costmodel.sweeping.grid import INNER, Grid, part_of
from costmodel.sweeping.loops import solve_loops
from costmodel.sweeping.mixed import chunk_times, seconds
from costmodel.sweeping.rows import types_of

ANSWERED, NO_ROOM, MANY_STEPS, TOO_LONG, NO_CACHE, NO_FIT, LOOP_LONG, LOOP_PLACES, LOOP_FIT = range(9)
"""Why a row has no answer; from :data:`LOOP_LONG` on, only the closed loop has none."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The inner axes of a grid as arrays of six dimensions that broadcast."""

    chunk: Floats
    """NaN: the prompt in one step."""
    rate: Floats
    prompt: Floats
    streams: Floats
    context: Floats
    output: Floats
    """NaN: not asked about."""

    @property
    def budget(self) -> Floats:
        """Token budget; for the prompt in one step, one that takes it."""
        one_step = np.isnan(self.chunk)
        return np.where(one_step, self.prompt + self.streams, self.chunk) if one_step.any() else self.chunk


def points_of(grid: Grid, engine_budget: int) -> Points:
    """Return the inner axes of a grid for a part whose default token budget is given."""
    made = []
    for place, name in enumerate(INNER):
        values = [engine_budget if value == "engine" else value for value in getattr(grid, name)]
        shape = [1] * len(INNER)
        shape[place] = len(values)
        made.append(np.array(values, dtype=np.float64).reshape(shape))
    return Points(*made)


def sweep_steps(deployment: Deployment, fitted: Calibration | None, grid: Grid, gpu: str) -> dict[str, Column]:
    """Return all columns of one deployment, in the order of the grid; ``gpu`` is the name of its part."""
    parameters = build_parameters(deployment, CalibratedRates(fitted)) if fitted else roofline_parameters(deployment)
    points = points_of(grid, default_token_budget(deployment))
    room = room_of(deployment, points.streams, points.budget)
    needed = room.needed_blocks(points.streams, points.context, points.prompt)
    problem = _problems(deployment, points, room, needed, grid.inner)
    values: dict[str, Any] = {
        "gpus": float(deployment.gpus),
        "tensor_parallel": float(deployment.tp),
        "chunk_tokens": points.chunk,
        "rate_per_s": points.rate,
        "prompt_tokens": points.prompt,
        "streams": points.streams,
        "context_tokens": points.context,
        "output_tokens": points.output,
        "kv_tokens": room.tokens,
        "kv_available_bytes": room.available,
        "kv_needed_bytes": room.bytes_of(needed),
        "fits": room.holds(needed),
    }
    timed = (problem == ANSWERED) | (problem >= LOOP_LONG)
    for name, value in _times(parameters, points, timed).items():
        values[name] = np.where(timed, value, np.nan)
    values |= _loops(parameters, fitted, deployment, points, problem)
    texts: dict[str, str | None] = {
        "model": deployment.architecture.name,
        "gpu": gpu,
        "dtype": deployment.dtype,
        "rung": "calibrated" if fitted else "roofline",
    }
    return _columns(grid, values, texts, problem, problem_texts(deployment))


def unanswered(grid: Grid, each: dict[str, Any], reason: str) -> dict[str, Column]:
    """Return the columns of a deployment that there cannot be: the configurations, and why."""
    points = points_of(grid, part_token_budget(load_gpu(each["gpu"])[0]))
    values = {
        "tensor_parallel": float(each["tp"]),
        "chunk_tokens": points.chunk,
        "rate_per_s": points.rate,
        "prompt_tokens": points.prompt,
        "streams": points.streams,
        "context_tokens": points.context,
        "output_tokens": points.output,
    }
    texts = {
        "model": load_model(each["model"])[0].name,
        "gpu": part_of(each["gpu"]),
        "dtype": each["dtype"],
        "rung": None,
    }
    return _columns(grid, values, texts, np.ones(grid.inner, dtype=np.intp), ("", reason))


def problem_texts(deployment: Deployment) -> tuple[str, ...]:
    """Return what each number of a problem says."""
    name, limit = deployment.architecture.name, deployment.architecture.max_positions
    places = default_max_num_seqs(deployment)
    return (
        "",
        "the token budget leaves no room for a prompt beside the streams, each of which takes one token of it",
        f"the prompt takes more than {MAX_STEPS:,} steps: use a larger chunk",
        f"prompt or context are longer than the {limit or 0:,} tokens that {name} allows",
        "does not fit: weights and activations leave no room for a KV cache",
        "does not fit: the KV cache is too small for streams and prompt",
        f"no closed loop: prompt and answer are longer than the {limit or 0:,} tokens that {name} allows",
        f"no closed loop: a default server runs {places:,} sequences at once, further clients would queue",
        "no closed loop: the KV cache is too small for all clients, prompts would queue",
    )


def _problems(deployment: Deployment, points: Points, held: Room, needed: Any, shape: tuple[int, ...]) -> Any:
    """Return the first problem of every row, by number."""
    budget, limit = points.budget, deployment.architecture.max_positions or np.inf
    room = budget - points.streams
    with np.errstate(divide="ignore"):
        steps = np.where(room > 0, np.ceil(points.prompt / room), 1)
    asked = ~np.isnan(points.output)
    total = points.prompt + np.where(asked, points.output, 0)
    loop_needed = held.needed_blocks(points.streams, total, points.prompt)
    checks = {
        NO_ROOM: room < 1,
        MANY_STEPS: steps > MAX_STEPS,
        TOO_LONG: (points.prompt > limit) | (points.context + 1 > limit),
        NO_CACHE: held.available <= 0,
        NO_FIT: ~held.holds(needed),
        LOOP_LONG: asked & (total > limit),
        LOOP_PLACES: asked & (points.streams > default_max_num_seqs(deployment)),
        LOOP_FIT: asked & ~held.holds(loop_needed),
    }
    found = np.zeros(shape, dtype=np.int8)
    for number, holds in reversed(checks.items()):
        np.copyto(found, number, where=np.broadcast_to(holds, shape))
    return found


def _times(parameters: Parameters, points: Points, timed: Any) -> dict[str, Any]:
    """Return step times and who sees them; what is not to be ``timed`` may hold anything."""
    decode = seconds(parameters, decodes=points.streams, context=points.context)
    prefill = seconds(parameters, points.prompt)
    # neither rate nor output has a say in a mixed step
    shape = tuple(1 if place in (1, 5) else count for place, count in enumerate(timed.shape))
    usable = timed.any(axis=(1, 5), keepdims=True).reshape(-1)
    prompt, room, streams, context = (
        np.broadcast_to(value, shape).reshape(-1)[usable]
        for value in (points.prompt, points.budget - points.streams, points.streams, points.context)
    )
    before = np.ceil(prompt / room) - 1
    last = seconds(parameters, prompt - before * room, before * room, streams, context)
    tallest, duration = last.copy(), last.copy()
    split = before > 0
    if split.any():
        whole, n, d, x = before[split], room[split], streams[split], context[split]
        total, longest = chunk_times(parameters, whole * n, n, d, x)
        tallest[split] = np.maximum(last[split], longest)
        duration[split] += total

    def spread(values: Floats) -> Floats:
        found = np.full(usable.shape, np.nan)
        found[usable] = values
        return found.reshape(shape)

    spike, mixed, steps = spread(tallest), spread(duration), spread(before + 1)
    every = 1 / points.rate
    overload = mixed >= every
    gaps = (every - mixed) / decode + steps
    fraction = np.where(overload, 1.0, steps / gaps)
    rated = ~np.isnan(points.rate)
    return {
        "decode_step_s": decode,
        "prefill_s": prefill,
        "spike_s": spike,
        "spike_ratio": spike / decode,
        "chunks": steps,
        "mixed_s": mixed,
        "fraction_of_gaps": np.where(rated, fraction, np.nan),
        "overload": np.where(rated, overload, np.nan),
    }


def _loops(
    parameters: Parameters, fitted: Calibration | None, deployment: Deployment, points: Points, problem: Any
) -> dict[str, Any]:
    """Return what the closed form says of as many clients as there are streams, NaN where it says nothing."""
    shape = tuple(1 if place in (1, 4) else count for place, count in enumerate(problem.shape))
    asked = np.broadcast_to(~np.isnan(points.output), problem.shape) & (problem == ANSWERED)
    usable = asked.any(axis=(1, 4), keepdims=True).reshape(-1)
    clients, prompt, output, room = (
        np.broadcast_to(value, shape).reshape(-1)[usable]
        for value in (points.streams, points.prompt, points.output, points.budget - points.streams)
    )
    ttft, tpot, rate = (np.full(usable.shape, np.nan) for _ in range(3))
    if usable.any():
        loops = solve_loops(parameters, fitted, clients, prompt, output, room)
        ttft[usable], tpot[usable] = loops.ttft, loops.tpot
        rate[usable] = deployment.replicas * clients * output / (loops.ttft + output * loops.tpot)
    found = {"ttft_s": ttft, "tpot_s": tpot, "output_tokens_per_s": rate}
    found["output_tokens_per_s_per_gpu"] = rate / deployment.gpus
    return {name: np.where(asked, value.reshape(shape), np.nan) for name, value in found.items()}


def _columns(
    grid: Grid, values: dict[str, Any], texts: dict[str, str | None], problem: Any, reasons: tuple[str, ...]
) -> dict[str, Column]:
    """Return the columns of one deployment; what is not given is missing."""
    size = problem.size
    made = {}
    for name, type_ in types_of("steps").items():
        if name == "problem":
            occurring = [number for number in np.unique(problem).tolist() if number != ANSWERED]
            places = np.full(len(reasons), np.nan)
            places[occurring] = np.arange(len(occurring))
            made[name] = Column("text", places[problem.reshape(-1)], tuple(reasons[number] for number in occurring))
        elif name in texts:
            text = texts[name]
            made[name] = Column("text", np.full(size, np.nan if text is None else 0.0), () if text is None else (text,))
        else:
            full = np.broadcast_to(np.asarray(values.get(name, np.nan), dtype=np.float64), grid.inner)
            made[name] = Column(type_, full.reshape(-1))
    return made
