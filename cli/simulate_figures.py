"""The figures of ``costmodel simulate --plot``: takes from the runs what each shows and hands it to :mod:`costmodel.cli.figures`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.cli.figures import draw_distribution, draw_itl, draw_ladder, draw_load, save_figure
from costmodel.cli.figures.distribution import Curve
from costmodel.cli.figures.itl import Panel, check_panels
from costmodel.cli.figures.ladder import Ladder
from costmodel.cli.figures.load import Course
from costmodel.cli.figures.style import LOOKS
from costmodel.cli.simulate_titles import (
    Peaks,
    foot,
    gap_title,
    gaps_title,
    latency_title,
    load_title,
    prompts,
    spike_title,
    trade_title,
)
from costmodel.cli.simulate_words import differs, labels, value
from costmodel.hardware.errors import InputError
from costmodel.rungs import Load, longest_step
from costmodel.simulation.clock import StepClock
from costmodel.simulation.gap_times import gap_times
from costmodel.simulation.results import SHARES, Percentiles, Simulation
from costmodel.simulation.running import Run
from costmodel.simulation.simulating import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 4096
"""Of the distribution of gaps."""
STEPS = 4000
"""Of a run of decode steps between two injections, whose gaps lie on one another."""
POINTS = 50_000
"""Of a course of several servers together."""


def draw(figure: str, found: Sequence[Simulated], path: Path, force: bool) -> None:
    """Draw one kind of figure of simulations, and save it.

    Args:
        figure: ``itl``, ``percentiles``, ``distribution`` or ``load``.
        found: simulations; several are of one workload with several token budgets or schedulers.
        path, force: where to save, and whether to overwrite.

    Raises:
        InputError: the figure shows one simulation, or there is nothing to draw, or a file that cannot be written.
    """
    save_figure(KINDS[figure](found), path, force)


def check_count(figure: str, count: int, experiment: bool) -> None:
    """Refuse a figure of more simulations than it can show, before they are run.

    Args:
        figure: its kind.
        count: simulations.
        experiment: with a baseline, which takes a curve of its own; otherwise loads or traces.

    Raises:
        InputError: it can show fewer.
    """
    if count == 1:
        return
    other = "itl" if experiment else "distribution"
    if figure == "load" or (figure == "percentiles" and not experiment):
        raise InputError(f"--figure {figure} shows one simulation, not {count}; --figure {other} takes several")
    if figure == "itl":
        check_panels(count)
    most = len(LOOKS) - experiment
    if count > most:
        raise InputError(f"--figure {figure} has up to {most} curves of simulations, not {count}; give fewer values")


def _itl(found: Sequence[Simulated]) -> Figure:
    first = found[0].document
    panels = []
    if len(found) == 1:
        names = ("baseline: no injection", f"with {prompts(first)}")
        for name, run in zip(names, found[0].runs, strict=False):
            injected = run is not found[0].runs[0]
            panels.append(_panel(name, run, found[0].document, injected))
        title = spike_title(first)
    else:
        for name, each in zip(_names(found), found, strict=True):
            ttft = each.runs[-1].result.ttft
            panel = _panel(name, each.runs[-1], each.document, len(each.runs) > 1)
            panels.append(panel._replace(ttft=ttft.p50_s if ttft else None))
        title = trade_title(found)
    return draw_itl(panels, float(first.workload["duration_s"] or 0), title, foot([each.document for each in found]))


def _panel(name: str, run: Run, document: Simulation, injected: bool) -> Panel:
    times, itl = gap_times(run.tallies, run.server.clock, STEPS), run.result.itl
    usual, longest = (itl.p50_s, itl.max_s) if itl is not None else (0.0, 0.0)
    panel = Panel(name, times.ends, times.gaps, usual, longest)
    if not injected:
        return panel
    return panel._replace(injections=[spike.injected_s for spike in document.spikes], height=_predicted(run, document))


def _predicted(run: Run, document: Simulation) -> float | None:
    """Return the height of the spike by the equations of ``costmodel predict`` [s]; None where they are not about this server."""
    work, server = document.workload, run.server
    if (
        not isinstance(server.clock, StepClock)
        or server.settings.scheduler not in ("vllm", "sarathi")
        or document.server.pools
    ):
        return None
    if work["grow"] or server.settings.long_prefill_token_threshold or not server.settings.chunked_prefill:
        return None
    prompt, at_once, streams, context = (
        int(work[name] or 0) for name in ("prompt_tokens", "prompts", "streams", "context_tokens")
    )
    load = Load(
        prompt,
        at_once,
        streams,
        context,
        server.settings.token_budget,
        float(work["every_s"] or 0),
        int(work.get("cached_prefix_tokens") or 0),
        server.settings.encoding.images if server.settings.encoding else None,
    )
    if load.one_step_budget <= server.settings.token_budget:
        load = replace(load, budget=None)
    return longest_step(server.clock.parameters, load)[1]


def _ladder(found: Sequence[Simulated]) -> Figure:
    first = found[0].document
    if first.result is not None:
        result = first.result
        kinds = (("end to end", result.e2e), ("TTFT", result.ttft), ("ITL", result.itl), ("TPOT", result.tpot))
        ladders = [Ladder(name, _rungs(each)) for name, each in kinds if each is not None]
        if not ladders:
            raise InputError("no request got a token: there are no percentiles to draw")
        return draw_ladder(ladders, "latency", latency_title(result), foot([first]))
    several = len(found) > 1
    ladders = [
        Ladder(name, _rungs(each.runs[-1].result.itl))
        for name, each in zip(_names(found), found, strict=True)
        if len(each.runs) > 1
    ]
    ladders.append(Ladder("baseline", _rungs(found[0].runs[0].result.itl)))
    title = trade_title(found) if several else spike_title(first)
    return draw_ladder(ladders, "gap between two tokens", title, foot([each.document for each in found]))


def _rungs(found: Percentiles | None) -> dict[str, float]:
    return {} if found is None else {name: value(found, name) for name in SHARES}


def _names(found: Sequence[Simulated]) -> list[str]:
    """Return the names of the runs that are compared, or of the one run with injections."""
    if len(found) == 1:
        return ["injected"]
    documents = [each.document for each in found]
    names = labels(documents)
    return names if differs(documents)[0] else [name if "step" in name else f"budget {name}" for name in names]


def _distribution(found: Sequence[Simulated]) -> Figure:
    first = found[0].document
    several = len(found) > 1
    named = list(zip(_names(found), found, strict=True))
    if first.result is not None:
        loads = [(name, each.runs[0]) for name, each in named]
        title = gaps_title(found) if several else gap_title(first.result)
        return draw_distribution(_curves(loads), title, foot([each.document for each in found]))
    runs = [(name, each.runs[-1]) for name, each in named if len(each.runs) > 1]
    runs.append(("baseline", found[0].runs[0]))
    title = trade_title(found) if several else spike_title(first)
    return draw_distribution(_curves(runs), title, foot([each.document for each in found]))


def _curves(runs: Sequence[tuple[str, Run]]) -> list[Curve]:
    import numpy as np

    curves = []
    for name, run in runs:
        itl = run.result.itl
        if itl is None:
            continue
        low = min(float(values.min()) for values, _ in run.gaps.blocks())
        edges = (
            np.geomspace(low * (1 - 1e-9), itl.max_s * (1 + 1e-9), BINS + 1)
            if itl.max_s > low
            else np.array([low, low * (1 + 1e-9)])
        )
        counts = run.gaps.histogram(edges)
        longer = 1 - np.concatenate([[0.0], np.cumsum(counts)]) / max(run.gaps.count, 1)
        longer[-1] = 0.0
        curves.append(Curve(name, edges, np.maximum(longer, 0.0)))
    if not curves:
        raise InputError("no token came after another: there is no gap to draw")
    return curves


def _load(found: Sequence[Simulated]) -> Figure:
    document, run = found[0].document, found[0].runs[-1]
    sent = [spike.injected_s for spike in document.spikes]
    blocks, servers, result = run.server.settings.usable_blocks, len(run.tallies), run.result
    blocks = blocks * servers if blocks else None
    course = _course(run)
    peaks = Peaks(result.running_max, result.waiting_max, result.kv_blocks_max, blocks)
    if servers > 1 and len(course.times):
        running, waiting, used = (round(float(values.max())) for values in course[1:])
        peaks = Peaks(running, waiting, used, blocks)
    return draw_load(course, blocks, load_title(result, peaks, servers), foot([document]), sent)


def _course(run: Run) -> Course:
    """Return what was noted, of several servers together."""
    import numpy as np

    noted = [np.array(tally.samples).reshape(-1, 4) for tally in run.tallies if tally.samples]
    if len(noted) == 1:
        return Course(*noted[0].T)
    if not noted:
        return Course(*np.zeros((4, 0)))
    times = np.unique(np.concatenate([each[:, 0] for each in noted]))
    if len(times) > POINTS:
        times = np.linspace(0, times[-1], POINTS)
    total = np.zeros((3, len(times)))
    for each in noted:
        index = np.searchsorted(each[:, 0], times, side="right") - 1
        total += np.where(index >= 0, each[np.maximum(index, 0), 1:].T, 0.0)
    return Course(times, *total)


KINDS: dict[str, Callable[[Sequence[Simulated]], Figure]] = {
    "itl": _itl,
    "percentiles": _ladder,
    "distribution": _distribution,
    "load": _load,
}
"""Figure → what draws it."""
