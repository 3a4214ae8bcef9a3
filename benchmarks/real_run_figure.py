"""The figure of docs/real-run.md: the state of the server over time and the distributions of latencies, measured and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from real_run import Comparison, errors, latencies, measured, state_at

from costmodel.cli.figures import style
from costmodel.cli.figures.saving import save_figure
from costmodel.validation.datasets.tables import Column
from costmodel.validation.fitting.served_ticks import tick_offset

REAL: dict[str, Any] = {"color": style.INK, "linewidth": 2.4, "label": "measured"}
MADE: dict[str, Any] = {"color": style.VERMILLION, "linewidth": 1.8, "linestyle": (0, (4, 1.5)), "label": "simulated"}


def draw(found: Comparison, path: Path) -> None:
    """Draw the figure.

    Args:
        found: a run and its simulation.
        path: of the file.
    """
    off = errors(found.requests, found.simulated, ~found.fitted)
    others = int((~found.fitted).sum())
    title = f"A real run, simulated: mean TTFT {_percent(off['TTFT', 'mean'])} and mean TPOT {_percent(off['TPOT', 'mean'])}"
    title += f" for the {others} requests that were not fitted to"
    served = found.server.served
    foot = f"{served.model.rpartition('/')[2]}, {served.gpu}, {served.engine}, {len(found.requests)} requests · "
    foot += f"one overhead per step fitted to the first {found.fit.requests} to finish · python benchmarks/real_run.py"
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        columns = figure.add_gridspec(1, 2, width_ratios=(1.25, 1))
        left, right = columns[0].subgridspec(3, 1), columns[1].subgridspec(2, 1)
        _draw_state(found, [figure.add_subplot(left[row]) for row in range(3)])
        _draw_distributions(found, [figure.add_subplot(right[row]) for row in range(2)])
        save_figure(figure, path, force=True)


def _draw_state(found: Comparison, panels: list[Any]) -> None:
    """Draw running, waiting and KV use over time."""
    requests, ticks, run = found.requests, found.run.ticks, found.simulated
    start = float(requests.arrival.min())
    end = float(max(requests.last_token.max(), np.nanmax(run.last))) - start
    if ticks is not None:
        times = ticks.time + tick_offset(requests, ticks)
        real = [ticks.running, ticks.waiting, ticks.kv_share * 100]
    else:
        times, real = np.arange(0.5, end), []
    running, waiting, blocks = state_at(run, times + start)
    names = ("running requests", "waiting requests", "KV blocks in use (%)")
    for index, (panel, name, made) in enumerate(zip(panels, names, (running, waiting, blocks * 100), strict=True)):
        if real:
            panel.plot(times, real[index], **REAL)
        panel.plot(times, made, **MADE)
        panel.set_xlim(0, end)
        panel.set_ylim(0, 1.1 * panel.dataLim.y1)
        panel.set_title(name, fontsize=style.TEXT_SIZE, pad=4)
        panel.grid(True, axis="y")
        if panel is not panels[-1]:
            panel.tick_params(labelbottom=False)
    panels[-1].set_xlabel("time since the first arrival (s)")
    panels[1].legend(loc="upper right")


def _draw_distributions(found: Comparison, panels: list[Any]) -> None:
    """Draw the shares of the other requests with at most so much TTFT and TPOT."""
    chosen, run = ~found.fitted, found.simulated
    real, made = measured(found.requests), latencies(found.requests, run.first, run.last)
    for panel, what, unit, scale in zip(panels, ("TTFT", "TPOT"), ("s", "ms"), (1, 1e3), strict=True):
        for values, look in ((real[what], REAL), (made[what], MADE)):
            ordered = np.sort(values[chosen & ~np.isnan(values)]) * scale
            panel.step(*_steps(ordered), where="post", **look)
        panel.set_ylim(0, 1.02)
        panel.set_xlim(0 if what == "TTFT" else None, None)
        panel.set_yticks([0, 0.5, 0.9, 1], ["0", "50", "90", "100"])
        panel.set_ylabel("requests (%)")
        panel.set_xlabel(f"{what} ({unit})")
        panel.grid(True)


def _steps(ordered: Column) -> tuple[Column, Column]:
    return np.concatenate([[ordered[0]], ordered]), np.arange(len(ordered) + 1) / len(ordered)


def _percent(value: float) -> str:
    return f"{value:+.1f} %".replace("-", "−")
