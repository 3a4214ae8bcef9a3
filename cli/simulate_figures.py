"""The figures of ``costmodel simulate --plot``: takes from the runs what each shows and hands it to :mod:`costmodel.cli.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from costmodel.cli.figures import draw_distribution, draw_itl, draw_ladder, draw_load, save_figure
from costmodel.cli.figures.distribution import Curve
from costmodel.cli.figures.itl import Panel
from costmodel.cli.figures.ladder import Ladder
from costmodel.cli.figures.load import Course
from costmodel.cli.simulate_titles import foot, gap_title, latency_title, load_title, prompts, spike_title, trade_title
from costmodel.cli.simulate_words import value
from costmodel.cli.text import count
from costmodel.hardware.errors import InputError
from costmodel.rungs import Load, longest_step
from costmodel.simulation.clock import StepClock
from costmodel.simulation.gap_times import gap_times
from costmodel.simulation.results import SHARES, Percentiles, Simulation
from costmodel.simulation.simulating import Run, Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 4096
"""Of the distribution of gaps."""
POINTS = 2000
"""Of a course of several servers together."""


def draw(figure: str, found: Sequence[Simulated], path: Path, force: bool) -> None:
    """Draw one kind of figure of simulations, and save it.

    Args:
        figure: ``itl``, ``percentiles``, ``distribution`` or ``load``.
        found: simulations; several are of the same experiment with several token budgets.
        path, force: where to save, and whether to overwrite.

    Raises:
        InputError: the figure shows one simulation, or there is nothing to draw, or a file that cannot be written.
    """
    kinds = {"itl": _itl, "percentiles": _ladder, "distribution": _distribution, "load": _load}
    save_figure(kinds[figure](found), path, force)


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
        for each in found:
            ttft = each.runs[-1].result.ttft
            panel = _panel(_injected(each, True), each.runs[-1], each.document, len(each.runs) > 1)
            panels.append(panel._replace(ttft=ttft.p50_s if ttft else None))
        title = trade_title(found)
    return draw_itl(panels, float(first.workload["duration_s"] or 0), title, foot(first, budget=len(found) == 1))


def _panel(name: str, run: Run, document: Simulation, injected: bool) -> Panel:
    times = gap_times(run.tallies, run.server.clock)
    if not injected:
        return Panel(name, times.ends, times.gaps)
    sent = [spike.injected_s for spike in document.spikes]
    return Panel(name, times.ends, times.gaps, sent, height=_predicted(run, document))


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
    load = Load(prompt, at_once, streams, context, server.settings.token_budget, float(work["every_s"] or 0))
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
        return draw_ladder(ladders, "latency", latency_title(result), foot(first))
    several = len(found) > 1
    ladders = [
        Ladder(_injected(each, several), _rungs(each.runs[-1].result.itl)) for each in found if len(each.runs) > 1
    ]
    ladders.append(Ladder("baseline", _rungs(found[0].runs[0].result.itl)))
    title = spike_title(first) if len(found) == 1 else trade_title(found)
    return draw_ladder(ladders, "gap between two tokens", title, foot(first, budget=len(found) == 1))


def _rungs(found: Percentiles | None) -> dict[str, float]:
    return {} if found is None else {name: value(found, name) for name in SHARES}


def _injected(each: Simulated, several: bool) -> str:
    """Return the name of a run with injections."""
    return f"budget {count(each.document.server.token_budget)}" if several else "injected"


def _distribution(found: Sequence[Simulated]) -> Figure:
    first = found[0].document
    if first.result is not None:
        return draw_distribution(_curves([("", found[0].runs[0])]), gap_title(first.result), foot(first))
    several = len(found) > 1
    runs = [(_injected(each, several), each.runs[-1]) for each in found if len(each.runs) > 1]
    runs.append(("baseline", found[0].runs[0]))
    title = trade_title(found) if several else spike_title(first)
    return draw_distribution(_curves(runs), title, foot(first, budget=not several))


def _curves(runs: Sequence[tuple[str, Run]]) -> list[Curve]:
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
    if len(found) > 1:
        raise InputError(f"--figure load shows one simulation, not {len(found)}; --figure itl takes several")
    document, run = found[0].document, found[0].runs[-1]
    sent = [spike.injected_s for spike in document.spikes]
    blocks = run.server.settings.usable_blocks
    several = len(run.tallies)
    return draw_load(_course(run), blocks * several if blocks else None, load_title(run.result), foot(document), sent)


def _course(run: Run) -> Course:
    """Return what was noted, of several servers together."""
    noted = [np.array(tally.samples).reshape(-1, 4) for tally in run.tallies if tally.samples]
    if len(noted) == 1:
        return Course(*noted[0].T)
    if not noted:
        return Course(*np.zeros((4, 0)))
    times = np.linspace(0, max(float(each[-1, 0]) for each in noted), POINTS)
    total = np.zeros((3, POINTS))
    for each in noted:
        index = np.searchsorted(each[:, 0], times, side="right") - 1
        total += np.where(index >= 0, each[np.maximum(index, 0), 1:].T, 0.0)
    return Course(times, *total)
