"""How far an answer can be trusted: its intervals, and where it leaves what the calibration was fitted on."""

from __future__ import annotations

from typing import Any

from costmodel.planning.serving import Site
from costmodel.planning.steady import Steady, decode_s
from costmodel.rungs import Load
from costmodel.simulation.ranges import DECODE, MIXED


def interval_numbers(site: Site, load: Steady, budget: int, values: dict[str, float | None]) -> dict[str, Any]:
    """Return the intervals of times; nothing without a calibration that has residuals.

    Args:
        site: model and GPU.
        load, budget: streams and prompts, and tokens per step.
        values: ``itl``, ``tpot`` and ``ttft``; None where there is none [s].
    """
    if site.fitted is None or not (shares := site.fitted.shares(_load(load, budget))):
        return {}
    longest = MIXED if load.prompts and (values["itl"] or 0.0) > decode_s(site.clock, load) else DECODE
    found: dict[str, Any] = {"level": site.fitted.level}
    for name, step in (("itl", longest), ("tpot", DECODE), ("ttft", MIXED)):
        if (value := values[name]) is not None and step in shares:
            low, high = shares[step]
            found[f"{name}_interval_s"] = value * low, value * high
    return found


def outside(site: Site, *loads: tuple[Steady, int]) -> tuple[str, ...]:
    """Return the warnings of the first of these loads, the answer and its neighbour, that leaves the ranges of the calibration."""
    for load, budget in loads:
        if site.fitted is not None and (found := site.fitted.outside(_load(load, budget))):
            return found
    return ()


def _load(load: Steady, budget: int) -> Load:
    images = load.encoding.images if load.encoding else None
    return Load(load.prompt, load.prompts, load.streams, load.context, budget, load.every, load.cached, images)
