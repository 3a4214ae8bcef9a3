"""Words that reports and figures of simulations share: what was simulated, and what became of the percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costmodel.cli.text import count, milliseconds, percent, plural
from costmodel.simulation.results import SHARES, Percentiles, ServerInfo, Simulation

HALF_WAY = 0.5
"""A percentile is at the spike if it is at least this far from the baseline's to the longest gap."""
RAISED = 1.05
"""A percentile has moved if it is more than so many times the baseline's."""


def server_name(server: ServerInfo) -> str:
    """Return model and GPUs, or that the step times were fixed."""
    if server.model is None:
        return "Fixed step times"
    pools = ""
    if server.pools is not None:
        each = server.pools.gpus_per_server
        pools = f" ({server.pools.prefill_servers * each} prefill + {server.pools.decode_servers * each} decode)"
    return f"{server.model} on {server.gpus} × {server.gpu}{pools}"


def common_name(items: Sequence[Simulation]) -> str:
    """Return model and GPUs of simulations that are compared; without a number where they have different ones."""
    server = items[0].server
    if server.model is None or len({item.server.gpus for item in items}) == 1:
        return server_name(server)
    return f"{server.model} on {server.gpu}"


def rung_name(server: ServerInfo) -> str:
    """Return the rung in words; nothing where step times were fixed."""
    names = {"fixed": "", "roofline": "roofline rung", "calibrated": f"calibrated rung ({server.calibration})"}
    return names[server.rung]


def differs(items: Sequence[Simulation]) -> tuple[bool, bool]:
    """Tell whether simulations differ in their scheduler, and in their token budget."""
    schedulers = {item.server.scheduler for item in items}
    return len(schedulers) > 1, len({item.server.token_budget for item in items}) > 1


def labels(items: Sequence[Simulation]) -> list[str]:
    """Return what tells each simulation from the others: its scheduler, its token budget, or both."""
    scheduler, budget = differs(items)
    if not scheduler:
        return [budget_name(item) for item in items]
    return [", ".join([item.server.scheduler, *([budget_name(item)] if budget else [])]) for item in items]


def budget_name(item: Simulation) -> str:
    """Return a token budget: ``512``, or ``one step (8,032)`` where it is that of the injected prompts beside all streams."""
    work, tokens = item.workload, item.server.token_budget
    if work["kind"] == "interference":
        prompt, at_once, streams = (int(work[name] or 0) for name in ("prompt_tokens", "prompts", "streams"))
        if tokens == prompt * at_once + streams:
            return f"one step ({count(tokens)})"
    return count(tokens)


def prompt_words(work: Mapping[str, Any]) -> str:
    """Return what a prompt is made of: its tokens, and its images with theirs."""
    tokens = work["prompt_tokens"]
    if not work.get("images"):
        return plural(tokens, "token")
    return f"{plural(tokens - work['image_tokens'], 'token')} and {images_words(work)}"


def images_words(work: Mapping[str, Any]) -> str:
    """Return the images of a prompt in words."""
    size = f"{count(work['image_width'])} × {count(work['image_height'])} pixels"
    return f"{plural(work['images'], 'image')} of {size} ({plural(work['image_tokens'], 'token')} more)"


def workload(work: dict[str, Any]) -> str:
    """Return what was asked of the server, one line."""
    if work["kind"] == "interference":
        growing = ", growing" if work["grow"] else ""
        many = "a prompt" if work["prompts"] == 1 else f"{work['prompts']} prompts"
        answer = "" if work["injected_output_tokens"] == 1 else f" (answers of {count(work['injected_output_tokens'])})"
        cached = work.get("cached_prefix_tokens")
        answer += f" ({count(cached)} of them cached)" if cached else ""
        return (
            f"{plural(work['streams'], 'stream')} at context {count(work['context_tokens'])}{growing} for {work['duration_s']:g} s; "
            f"{many} of {prompt_words(work)}{answer} every {work['every_s']:g} s from {work['first_s']:g} s on"
        )
    if work["kind"] == "trace":
        faster = "" if work["speed"] == 1 else f", {work['speed']:g} times as fast"
        return f"Trace {work['path']} ({work['form']}): {plural(work['requests'], 'request')}{faster}"
    spread = (
        ""
        if not work["spread"]
        else f", lengths from {percent(1 - work['spread'])} of that (mean {percent(1 - work['spread'] / 2)})"
    )
    lengths = f"prompts of {prompt_words(work)}, answers of {count(work['output_tokens'])}{spread}"
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


def itl_and_ttft(item: Simulation) -> tuple[Percentiles, Percentiles] | None:
    """Return the gaps and the TTFTs of an experiment with injections; None where there are none of either."""
    if item.injected is None or item.injected.itl is None or item.injected.ttft is None:
        return None
    return item.injected.itl, item.injected.ttft


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
