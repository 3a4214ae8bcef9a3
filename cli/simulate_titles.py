"""Titles and footers of the figures of simulations: what each shows, in one sentence with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from costmodel.cli.figures.style import creator, format_ratio, format_seconds, format_share
from costmodel.cli.simulate_words import budget_name, common_name, differs, itl_and_ttft, labels, moved, rung_name
from costmodel.cli.text import count, listed, plural
from costmodel.simulation.results import Result, Simulation
from costmodel.simulation.simulating import Simulated


def prompts(item: Simulation) -> str:
    """Return what is injected."""
    work = item.workload
    many = "a prompt" if work["prompts"] == 1 else f"{work['prompts']} prompts"
    return f"{many} of {count(float(work['prompt_tokens'] or 0))} tokens every {work['every_s']:g} s"


def spike_title(item: Simulation) -> str:
    """Say how high the spike is, and which percentiles are there."""
    if item.injected is None or item.injected.itl is None or item.baseline is None or item.baseline.itl is None:
        itl = item.baseline.itl if item.baseline else None
        return "Without injections" + (f" no gap is longer than {format_seconds(itl.max_s)}" if itl else "")
    found = moved(item)
    most, usual = item.injected.itl.max_s, item.baseline.itl.p50_s
    if not found.at:
        tokens = count(float(item.workload["prompt_tokens"] or 0))
        return f"A prompt of {tokens} tokens is not felt: no gap is longer than {format_seconds(most)}"
    still = f"; {listed(found.still)} {'does' if len(found.still) == 1 else 'do'} not move" if found.still else ""
    return (
        f"Every {item.workload['every_s']:g} s a gap of {format_seconds(most)}, {format_ratio(most / usual)} times the usual: "
        f"{listed(found.at)} {'is' if len(found.at) == 1 else 'are'} at the spike{still}"
    )


def trade_title(found: Sequence[Simulated]) -> str:
    """Compare the smallest budget with the largest, or the scheduler with the shortest gap with the one with the earliest token."""
    documents = [each.document for each in found]
    full = [
        (name, item, latencies)
        for name, item in zip(labels(documents), documents, strict=True)
        if (latencies := itl_and_ttft(item)) is not None
    ]
    if len(full) < 2:
        return spike_title(documents[0])
    if differs(documents)[0]:
        name, _, (itl, _) = min(full, key=lambda each: each[2][0].max_s)
        other, _, (_, ttft) = min(full, key=lambda each: each[2][1].p50_s)
        return (
            f"The longest gap is least with {name}: {format_seconds(itl.max_s)}; "
            f"the prompt's TTFT is least with {other}: {format_seconds(ttft.p50_s)}"
        )
    small, large = (pick(full, key=lambda each: each[1].server.token_budget) for pick in (min, max))
    (low, late), (high, soon) = small[2], large[2]
    return (
        f"A budget of {count(small[1].server.token_budget)} tokens lowers the longest gap from {format_seconds(high.max_s)} to "
        f"{format_seconds(low.max_s)}; the prompt's TTFT goes from {format_seconds(soon.p50_s)} to {format_seconds(late.p50_s)}"
    )


def latency_title(result: Result) -> str:
    """Say how soon the first tokens come."""
    ttft, itl = result.ttft, result.itl
    if ttft is None or itl is None:
        return "Latencies of the simulated requests"
    return f"Half of the requests have their first token within {format_seconds(ttft.p50_s)}, 99 % within {format_seconds(ttft.p99_s)}"


def gap_title(result: Result) -> str:
    """Say how long the gaps of a load are."""
    itl = result.itl
    if itl is None:
        return "Gaps between two tokens"
    share = result.stalls / result.gaps
    return (
        f"The median gap is {format_seconds(itl.p50_s)}; {format_share(share)} are over {result.stall_detail.factor:g} times that, "
        f"the longest is {format_seconds(itl.max_s)}"
    )


def gaps_title(found: Sequence[Simulated]) -> str:
    """Compare the longest gaps of several loads."""
    documents = [each.document for each in found]
    full = [
        (itl.max_s, name)
        for name, item in zip(labels(documents), documents, strict=True)
        if item.result and (itl := item.result.itl)
    ]
    if len(full) < 2:
        return "Gaps between two tokens"
    (low, best), (high, worst) = min(full), max(full)
    what = "" if differs(documents)[0] else "a budget of "
    return f"The longest gap is {format_seconds(low)} with {what}{best} and {format_seconds(high)} with {what}{worst}"


class Peaks(NamedTuple):
    """The fullest that a server was, or all servers together: what the panels of the figure show."""

    running: int
    waiting: int
    used: int
    """KV blocks."""
    blocks: int | None
    """KV blocks that requests could have; None for memory without end."""


def load_title(result: Result, peaks: Peaks, servers: int) -> str:
    """Say how full the servers get."""
    cache = f", {plural(result.preemptions, 'preemption')}" if result.preemptions else ""
    if peaks.blocks:
        whose = "the KV cache" if servers == 1 else "all KV caches"
        cache += f"; at most {format_share(peaks.used / peaks.blocks)} of {whose} is used"
    where = "" if servers == 1 else f" on {servers} servers"
    waiting = {0: "none waits", 1: "one waits"}.get(peaks.waiting, f"up to {count(peaks.waiting)} wait")
    return (
        f"Up to {plural(peaks.running, 'request')} run{where}, {waiting} in {format_seconds(result.duration_s)}{cache}"
    )


def foot(items: Sequence[Simulation]) -> str:
    """Return the footer: model, GPU, rung and what was asked; of several simulations, what they have in common."""
    server, work = items[0].server, items[0].workload
    parts = [common_name(items).replace("NVIDIA ", ""), rung_name(server)]
    if work["kind"] == "interference":
        parts.append(
            f"{plural(int(work['streams'] or 0), 'stream')} at context {count(float(work['context_tokens'] or 0))}"
        )
    elif work["kind"] == "trace":
        parts.append(Path(str(work["path"])).name)
    if len(items) == 1:
        budget = budget_name(items[0])
        parts.append("one step" if "step" in budget else f"budget {budget}")
        if server.scheduler != "vllm" and server.pools is None:
            parts.append(server.scheduler)
    return " · ".join([*filter(None, parts), creator()])
