"""Words that reports and figures of simulations share: what was simulated, and what became of the percentiles."""

from __future__ import annotations

from typing import Any, NamedTuple

from costmodel.cli.text import count, milliseconds, percent, plural
from costmodel.simulation.results import SHARES, Percentiles, ServerInfo, Simulation

HALF_WAY = 0.5
"""A percentile is at the spike if it is at least this far from the baseline's to the longest gap."""
RAISED = 1.05
"""A percentile has moved if it is more than so many times the baseline's."""


def server_name(server: ServerInfo) -> str:
    """Return model and GPU, or that the step times were fixed."""
    if server.model is None:
        return "Fixed step times"
    return f"{server.model} on {server.gpus} × {server.gpu}"


def workload(work: dict[str, Any]) -> str:
    """Return what was asked of the server, one line."""
    if work["kind"] == "interference":
        growing = ", growing" if work["grow"] else ""
        many = "a prompt" if work["prompts"] == 1 else f"{work['prompts']} prompts"
        answer = "" if work["injected_output_tokens"] == 1 else f" (answers of {count(work['injected_output_tokens'])})"
        return (
            f"{plural(work['streams'], 'stream')} at context {count(work['context_tokens'])}{growing} for {work['duration_s']:g} s; "
            f"{many} of {plural(work['prompt_tokens'], 'token')}{answer} every {work['every_s']:g} s from {work['first_s']:g} s on"
        )
    if work["kind"] == "trace":
        faster = "" if work["speed"] == 1 else f", {work['speed']:g} times as fast"
        return f"Trace {work['path']} ({work['form']}): {plural(work['requests'], 'request')}{faster}"
    spread = "" if not work["spread"] else f", lengths from {percent(1 - work['spread'])} of that"
    lengths = f"prompts of {plural(work['prompt_tokens'], 'token')}, answers of {count(work['output_tokens'])}{spread}"
    if work["clients"] is not None:
        pauses = f" after {work['think_s']:g} s" if work["think_s"] else ""
        ramp = f", beginning over {work['ramp_s']:g} s" if work["ramp_s"] else ""
        return (
            f"{plural(work['clients'], 'client')} that ask again{pauses} when their answer ends{ramp}: "
            f"{plural(work['requests'], 'request')}; {lengths}"
        )
    how_many = f"{work['duration_s']:g} s" if work["duration_s"] is not None else plural(work["requests"], "request")
    bursts = "" if work["burstiness"] == 1 else f" (burstiness {work['burstiness']:g})"
    return f"{work['rate_per_s']:g} requests/s at random{bursts}, {how_many}; {lengths}"


class Moved(NamedTuple):
    """Percentiles of the ITL by what became of them."""

    at: list[str]
    """At the spike."""
    higher: list[str]
    """Higher than the baseline's, but not as high as the spike."""
    still: list[str]
    """Where they were."""


def moved(item: Simulation) -> Moved:
    """Return what the injections did to the percentiles of the ITL."""
    at: list[str] = []
    higher: list[str] = []
    still: list[str] = []
    if item.baseline is None or item.injected is None or item.baseline.itl is None or item.injected.itl is None:
        return Moved(at, higher, still)
    most = item.injected.itl.max_s
    for name in SHARES:
        before, after = value(item.baseline.itl, name), value(item.injected.itl, name)
        if after <= RAISED * before:
            still.append(name)
        elif after - before >= HALF_WAY * (most - before):
            at.append(name)
        else:
            higher.append(name)
    return Moved(at, higher, still)


def spike_height(item: Simulation) -> float:
    """Return the longest step with an injected prompt, 0 without any [s]."""
    return max((spike.height_s for spike in item.spikes), default=0.0)


def value(found: Percentiles, name: str) -> float:
    """Return a percentile by its name in :data:`~costmodel.simulation.results.SHARES`, or the mean [s]."""
    seconds: float = getattr(found, name.replace(".", "_") + "_s")
    return seconds


def cell(found: Percentiles | None, name: str) -> str:
    """Return the same in milliseconds for a table, – where there is none."""
    return "–" if found is None else milliseconds(value(found, name))
