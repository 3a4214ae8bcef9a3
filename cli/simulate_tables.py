"""Several simulations of one workload as a table for a person: token budgets, schedulers, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.cli.simulate_report import per_stream, remarks
from costmodel.cli.simulate_words import (
    cell,
    common_name,
    differs,
    itl_and_ttft,
    labels,
    moved,
    rung_name,
    spike_height,
    workload,
)
from costmodel.cli.text import count, milliseconds, percent, seconds, significant, table, wrapped
from costmodel.simulation.results import Percentiles, Result, Simulation

Columns = dict[str, Callable[[Simulation], str]]
"""Header → what stands below it."""


def comparison(items: Sequence[Simulation]) -> str:
    """Return one table of simulations of one workload with several token budgets or schedulers."""
    experiment = items[0].workload["kind"] == "interference"
    columns = _experiment(items) if experiment else _load(items)
    if len({item.server.gpus for item in items}) > 1:
        columns |= {
            "GPUs": lambda item: count(item.server.gpus),
            "tokens/s": lambda item: count(_last(item).output_tokens_per_s),
            "per GPU": lambda item: count(_last(item).output_tokens_per_s / item.server.gpus),
        }
    rows = [[name, *(show(item) for show in columns.values())] for name, item in zip(labels(items), items, strict=True)]
    text = table(rows, [_first(items), *columns])
    parts = [_heading(items), text, _legend(items, experiment), _best(items) if experiment else "", remarks(items)]
    return "\n\n".join(part for part in parts if part)


def _heading(items: Sequence[Simulation]) -> str:
    """Return what all have in common."""
    name = ", ".join(filter(None, [common_name(items), rung_name(items[0].server)]))
    return f"{name}\n{wrapped(workload(items[0].workload))}"


def _first(items: Sequence[Simulation]) -> str:
    scheduler, budget = differs(items)
    return ("scheduler, token budget" if budget else "scheduler") if scheduler else "token budget"


def _last(item: Simulation) -> Result:
    """Return the run that counts: the injected one, or the one of a load."""
    found = item.injected or item.baseline or item.result
    if found is None:
        raise ValueError("a simulation without a result")
    return found


def _latency(name: str, percentile: str) -> Callable[[Simulation], str]:
    def show(item: Simulation) -> str:
        found: Percentiles | None = getattr(_last(item), name)
        return cell(found, percentile)

    return show


def _experiment(items: Sequence[Simulation]) -> Columns:
    columns: Columns = {"steps": lambda item: count(max((spike.steps for spike in item.spikes), default=0))}
    if not differs(items)[0]:
        columns["height ms"] = lambda item: milliseconds(height) if (height := spike_height(item)) else "–"
    columns |= {
        "ITL p50": _latency("itl", "p50"),
        **{name: _latency("itl", name) for name in ("p99", "p99.9", "max")},
        "stalls": lambda item: significant(per_stream(item, _last(item).stalls), 3),
        "TTFT p50": _latency("ttft", "p50"),
        "TTFT max": _latency("ttft", "max"),
        "at the spike": lambda item: " ".join(moved(item)[0]) or "–",
    }
    if any(_last(item).requests.unfinished for item in items):
        columns["unfinished"] = lambda item: count(_last(item).requests.unfinished)
    return columns


def _load(items: Sequence[Simulation]) -> Columns:
    columns: Columns = {
        "TTFT p50": _latency("ttft", "p50"),
        "TTFT p99": _latency("ttft", "p99"),
        "ITL p50": _latency("itl", "p50"),
        "ITL p99": _latency("itl", "p99"),
        "ITL max": _latency("itl", "max"),
        "end to end p50": _latency("e2e", "p50"),
        "p99": _latency("e2e", "p99"),
        "requests/s": lambda item: significant(_rate(_last(item)), 3),
    }
    if any(_last(item).preemptions for item in items):
        columns["preemptions"] = lambda item: count(_last(item).preemptions)
    if any(_last(item).goodput for item in items):
        columns["good"] = lambda item: percent(good.share) if (good := _last(item).goodput) else "–"
    return columns


def _rate(result: Result) -> float:
    return result.requests.done / result.duration_s if result.duration_s > 0 else 0.0


def _legend(items: Sequence[Simulation], experiment: bool) -> str:
    if not experiment:
        return "  TTFT, ITL and end-to-end latency in ms, from when a request is sent"
    return (
        "  steps: mixed steps per prompt; ITL and TTFT in ms; stalls: gaps over "
        f"{_last(items[0]).stall_detail.factor:g} × the median per stream;\n"
        "  TTFT: of the injected prompts, from when the engine has them; at the spike: percentiles of the ITL"
    )


def _best(items: Sequence[Simulation]) -> str:
    """Say what is traded: the longest gap of the streams against the TTFT of the prompts."""
    full = [
        (name, item, latencies)
        for name, item in zip(labels(items), items, strict=True)
        if (latencies := itl_and_ttft(item)) is not None
    ]
    if len(full) < 2:
        return ""
    if differs(items)[0]:
        name, _, (itl, _) = min(full, key=lambda each: each[2][0].max_s)
        other, _, (_, ttft) = min(full, key=lambda each: each[2][1].p50_s)
        return wrapped(
            f"The longest gap is least with {name}: {seconds(itl.max_s)}. "
            f"The median TTFT of the prompt is least with {other}: {seconds(ttft.p50_s)}."
        )
    small, large = (pick(full, key=lambda each: each[1].server.token_budget) for pick in (min, max))
    if small is large:
        return ""
    (low_itl, low_ttft), (high_itl, high_ttft) = small[2], large[2]
    return wrapped(
        f"A budget of {count(small[1].server.token_budget)} instead of {count(large[1].server.token_budget)}: the longest gap is "
        f"{seconds(low_itl.max_s)} instead of {seconds(high_itl.max_s)}, the median TTFT of the prompt "
        f"{seconds(low_ttft.p50_s)} instead of {seconds(high_ttft.p50_s)}."
    )
