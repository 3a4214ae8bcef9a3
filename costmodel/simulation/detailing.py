"""A simulation with everything that its document sums up: every request, and what each server held over time."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from costmodel.hardware.errors import InputError, shown
from costmodel.simulation.interfering import run_interference, simulate_interference
from costmodel.simulation.results import Simulation
from costmodel.simulation.simulating import Simulated, run_load, run_trace, simulate_load, simulate_trace
from costmodel.simulation.tally import Served


class RequestRow(NamedTuple):
    """One request. Times are those of the simulation, latencies count from when it was sent [s]; None for what did not happen.

    A standing stream is there from the beginning: it is never scheduled, has no first token, and its TPOT is its mean gap.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int | None
    """That were asked for."""
    group: str
    priority: int
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    queueing_s: float | None
    tokens: int
    """That it got."""
    done: bool
    preemptions: int
    cached_tokens: int
    """Prompt tokens that were in the prefix cache."""
    refused: str | None


class Moment(NamedTuple):
    """What a server held at a time [s]."""

    time_s: float
    running: int
    waiting: int
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class Details:
    """A simulation in full.

    Attributes:
        document: what the function itself returns.
        requests: every request, in the order of arrival; of ``simulate_interference``, of the run with injections.
        courses: of every server (prefill servers first), what it held over time; thinned where it has more than 8,192 points.
    """

    document: Simulation
    requests: tuple[RequestRow, ...]
    courses: tuple[tuple[Moment, ...], ...]


RUNS: dict[Callable[..., Simulation], Callable[..., Simulated]] = {
    simulate_interference: run_interference,
    simulate_load: run_load,
    simulate_trace: run_trace,
}
"""Function → what it runs, which takes the same arguments in the same order."""


BY_NAME = ("cached_prefix", "images", "image_size")
"""Arguments that those take by their names."""


def details(simulate: Callable[..., Simulation], *arguments: Any, **options: Any) -> Details:
    """Simulate, and return every request and the course of time beside the document.

    >>> import costmodel
    >>> found = costmodel.details(costmodel.simulate_load, rate=4.0, requests=3)
    >>> [row.tokens for row in found.requests]
    [1024, 1024, 1024]

    Args:
        simulate: :func:`~costmodel.simulate_interference`, :func:`~costmodel.simulate_load` or :func:`~costmodel.simulate_trace`.
        arguments, options: its arguments.

    Raises:
        InputError: another function, or arguments that it would refuse.
    """
    if simulate not in RUNS:
        names = ", ".join(f"costmodel.{function.__name__}" for function in RUNS)
        raise InputError(f"details are of {names}, not of {shown(simulate)}")
    bound = inspect.signature(simulate).bind(*arguments, **options)
    bound.apply_defaults()
    given = dict(bound.arguments)
    by_name = {name: given.pop(name) for name in BY_NAME if name in given}
    found = RUNS[simulate](*given.values(), **by_name)
    run = found.runs[-1]
    return Details(
        found.document,
        tuple(map(request_row, run.served)),
        tuple(tuple(Moment(*sample) for sample in tally.samples) for tally in run.tallies),
    )


def request_row(item: Served) -> RequestRow:
    """Return one request as a row."""
    request, standing = item.request, item.request.standing
    if standing:
        tpot = (item.last - request.arrival) / item.tokens if item.tokens else None
    else:
        tpot = (item.last - item.first) / (item.tokens - 1) if item.done and item.tokens > 1 else None
    scheduled, first = (math.nan, math.nan) if standing else (item.scheduled, item.first)
    return RequestRow(
        request.arrival,
        request.prompt,
        None if standing else request.output,
        request.group,
        request.priority,
        _known(scheduled),
        _known(first),
        _known(item.last) if item.tokens else None,
        _known(first - request.arrival),
        tpot,
        _known(item.last - request.arrival) if item.done else None,
        _known(scheduled - request.arrival),
        item.tokens,
        item.done,
        item.preemptions,
        item.cached,
        item.refused or None,
    )


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds
