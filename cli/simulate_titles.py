"""Titles and footers of the figures of simulations: what each shows, in one sentence with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from costmodel.cli.figures.style import creator, format_ratio, format_seconds, format_share
from costmodel.cli.simulate_words import moved, server_name
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
    """Compare the smallest budget with the largest."""
    full = [each for each in found if each.runs[-1].result.itl and each.runs[-1].result.ttft]
    if len(full) < 2:
        return spike_title(found[0].document)
    small, large = (pick(full, key=lambda each: each.document.server.token_budget) for pick in (min, max))
    parts = []
    for each in (large, small):
        itl, ttft = each.runs[-1].result.itl, each.runs[-1].result.ttft
        if itl is not None and ttft is not None:
            parts.append((itl.max_s, ttft.p50_s))
    (high, soon), (low, late) = parts
    return (
        f"A budget of {count(small.document.server.token_budget)} tokens lowers the longest gap from {format_seconds(high)} to "
        f"{format_seconds(low)}; the prompt's TTFT goes from {format_seconds(soon)} to {format_seconds(late)}"
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


def load_title(result: Result) -> str:
    """Say how full the server gets."""
    cache = f", {plural(result.preemptions, 'preemption')}" if result.preemptions else ""
    if result.kv_blocks:
        cache += f"; at most {format_share(result.kv_blocks_max / result.kv_blocks)} of the KV cache is used"
    running = plural(result.running_max, "request")
    waiting = {0: "none waits", 1: "one waits"}.get(result.waiting_max, f"up to {count(result.waiting_max)} wait")
    return f"Up to {running} run, {waiting} in {format_seconds(result.duration_s)}{cache}"


def foot(item: Simulation, budget: bool = True) -> str:
    """Return the footer: model, GPU, rung and what was asked."""
    server, work = item.server, item.workload
    rungs = {"fixed": "", "roofline": "roofline rung", "calibrated": f"calibrated rung ({server.calibration})"}
    parts = [server_name(server), rungs[server.rung]]
    if work["kind"] == "interference":
        parts.append(
            f"{plural(int(work['streams'] or 0), 'stream')} at context {count(float(work['context_tokens'] or 0))}"
        )
    elif work["kind"] == "trace":
        parts.append(Path(str(work["path"])).name)
    if budget:
        parts.append(f"budget {count(server.token_budget)}")
    if server.scheduler != "vllm":
        parts.append(server.scheduler)
    return " · ".join([*filter(None, parts), creator()])
