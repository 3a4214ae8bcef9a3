"""Figure: who runs, who waits and how full the KV cache is, over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style
from costmodel.hardware.errors import InputError


class Course(NamedTuple):
    """The state of a server over time, arrays of one length."""

    times: Any
    """[s]"""
    running: Any
    """Requests that run."""
    waiting: Any
    """Requests that wait."""
    used: Any
    """KV blocks that are used."""


def draw_load(course: Course, blocks: int | None, title: str, foot: str, injections: Sequence[float] = ()) -> Figure:
    """Draw batch, queue and KV use over time.

    Args:
        course: what was noted.
        blocks: that requests could have; None for memory without end.
        title: the finding.
        foot: what the figure is about.
        injections: when prompts were injected [s].

    Raises:
        InputError: nothing was noted.
    """
    if len(course.times) < 2:
        raise InputError("no step was run: there is nothing to draw")
    cache = np.asarray(course.used) / blocks * 100 if blocks else np.asarray(course.used)
    label = "KV cache\nused (%)" if blocks else "KV cache\n(blocks)"
    rows = [(course.running, "running\n(requests)", style.BLUE, True)]
    if np.any(course.waiting):
        rows.append((course.waiting, "waiting\n(requests)", style.VERMILLION, True))
    rows.append((cache, label, style.GREEN, not blocks))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        panels = figure.subplots(len(rows), 1, sharex=True)
        for axes, (values, name, color, whole) in zip(panels, rows, strict=True):
            _draw(axes, np.asarray(course.times), np.asarray(values, float), color, whole)
            axes.set_ylabel(name)
            style.mark_times(axes, injections, tops=False)
        start, end = 0.0, float(course.times[-1])
        panels[-1].set_xlim(start, end)
        ticks = style.nice_ticks(start, end, 8)
        panels[-1].set_xticks(ticks, [style.plain(tick, ticks[1] - ticks[0]) for tick in ticks])
        panels[-1].set_xlabel("time (s)")
        panels[-1].tick_params(axis="x", pad=8)  # clear of the zero of the other axis
        figure.align_ylabels(panels)
        style.settle(figure)
    return figure


def _draw(axes: Axes, times: Any, values: Any, color: str, whole: bool) -> None:
    """Draw one quantity, which stays as it is until something happens; ``whole`` if it is a number of things."""
    axes.fill_between(times, values, step="post", color=color, alpha=0.25, linewidth=0)
    axes.plot(times, values, drawstyle="steps-post", color=color, linewidth=1.4)
    top = max(float(values.max()), 1.0 if whole else 1e-3)
    step = max(style.nice_step(top / 4), 1.0 if whole else 0.0)
    ticks = style.multiples(step, 0, math.ceil(top / step - 1e-9) * step)
    axes.set_ylim(0, 1.04 * ticks[-1])
    axes.set_yticks(ticks, [style.plain(tick, step) for tick in ticks])
    axes.grid(True, axis="y")
