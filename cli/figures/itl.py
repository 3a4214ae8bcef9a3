"""Figure: the gap before every token against the time at which it came, in one panel for each run, on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from costmodel.cli.figures import style
from costmodel.hardware.errors import InputError

MOST_PANELS: Final = 4
MOST_POINTS: Final = 4000
"""More gaps near the median are not all drawn, as they lie on one another; of more high ones, the tallest in each piece of time."""
HIGH: Final = 1.5
"""A gap of more than so many medians is high and drawn with a stem, where a panel does not say otherwise."""
_LOG_FROM: Final = 60.0
"""A longest gap of more than so many medians needs a logarithmic axis."""


class Panel(NamedTuple):
    """One run."""

    name: str
    ends: Any
    """When each token came [s], an array."""
    gaps: Any
    """The gap before it [s], an array of the same length; of gaps near the median, some are enough."""
    usual: float
    """Median gap [s]."""
    longest: float
    """Longest gap [s]."""
    injections: Sequence[float] = ()
    """When prompts were sent [s]."""
    ttft: float | None = None
    """Median TTFT of the prompts [s]; None to leave it out."""
    height: float | None = None
    """What the equations say of the spike [s]; None for no line."""
    high: float = HIGH
    """A gap of more than so many medians is high."""


def check_panels(count: int) -> None:
    """Raise :class:`InputError` if there is no room for so many panels."""
    if not 1 <= count <= MOST_PANELS:
        raise InputError(f"the figure of gaps has up to {MOST_PANELS} panels, not {count}; give fewer values")


def draw_itl(panels: Sequence[Panel], duration: float, title: str, foot: str) -> Figure:
    """Draw every gap against time.

    Args:
        panels: runs, from left to right.
        duration: of each run, the length of the axis [s].
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: too many panels, or no gap in any.
    """
    check_panels(len(panels))
    shown = [panel for panel in panels if len(panel.gaps)]
    if not shown:
        raise InputError("no token came after another: there is no gap to draw")
    tallest = max([*(panel.longest for panel in shown), *(panel.height for panel in panels if panel.height)])
    lowest = min(min(float(np.min(panel.gaps)), panel.usual) for panel in shown)
    unit, name = style.time_unit(tallest)
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        _add_legend(figure, panels)
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        logarithmic = tallest > _LOG_FROM * lowest
        _scale(row[0], lowest / unit, tallest / unit, logarithmic)
        for axes, panel in zip(row, panels, strict=True):
            _draw(axes, panel, unit, duration, len(panels) > 2)
        row[0].set_ylabel(f"gap between two tokens of a stream ({name})")
        engine = figure.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine):
            engine.set(wspace=0.06)  # the last tick of a panel stays clear of the first of the next
        style.settle(figure)
    return figure


def _scale(axes: Axes, lowest: float, tallest: float, logarithmic: bool) -> None:
    if logarithmic:
        axes.set_yscale("log")
        span = max(tallest / lowest, 2.0)
        axes.set_ylim(lowest / span**0.12, tallest * span**0.2)
        ticks = style.decades(*axes.get_ylim())
        axes.yaxis.set_ticks(ticks, [style.plain(tick) for tick in ticks])
        axes.yaxis.set_ticks([], minor=True)
        return
    axes.set_ylim(0, 1.08 * tallest)
    step = style.nice_step(tallest / 5)
    ticks = style.multiples(step, 0, tallest)
    axes.set_yticks(ticks, [style.plain(tick, step) for tick in ticks])


def _draw(axes: Axes, panel: Panel, unit: float, duration: float, narrow: bool) -> None:
    """Draw the gaps of a run: points, and stems where they are high."""
    ends, gaps = np.asarray(panel.ends), np.asarray(panel.gaps) / unit
    bottom = axes.get_ylim()[0]
    usual = panel.usual / unit
    high = np.flatnonzero(gaps > panel.high * usual)
    if len(high) > MOST_POINTS:
        high = _tallest(ends, gaps, high, duration)
    floor = np.flatnonzero(gaps <= panel.high * usual)
    floor = floor[:: max(math.ceil(len(floor) / MOST_POINTS), 1)]
    axes.vlines(ends[high], bottom, gaps[high], color=style.VERMILLION, linewidth=1.1, zorder=2)
    axes.plot(ends[floor], gaps[floor], ".", color=style.BLUE, markersize=2.5, zorder=3, rasterized=True)
    axes.plot(ends[high], gaps[high], "o", color=style.VERMILLION, markersize=4.5, zorder=4, markeredgewidth=0)
    style.mark_times(axes, panel.injections)
    if panel.height is not None:
        axes.axhline(panel.height / unit, color=style.INK, linewidth=1.4, linestyle=style.DASHED, zorder=3)
    axes.set_title(_name(panel, narrow), linespacing=1.3)
    axes.set_xlim(0, duration)
    axes.set_xlabel("time (s)", labelpad=8)
    axes.tick_params(axis="x", pad=7)
    ticks = style.nice_ticks(0, duration, 5)
    axes.set_xticks(ticks, [style.plain(tick, ticks[1] - ticks[0] if len(ticks) > 1 else None) for tick in ticks])
    axes.grid(True, axis="y")


def _tallest(ends: Any, gaps: Any, chosen: Any, duration: float) -> Any:
    """Return of the chosen gaps the tallest of each short piece of time, narrower than a dot."""
    piece = (ends[chosen] / duration * MOST_POINTS).astype(int)
    order = np.lexsort((-gaps[chosen], piece))
    return chosen[order[np.unique(piece[order], return_index=True)[1]]]


def _name(panel: Panel, narrow: bool) -> str:
    """Return a panel's title: what it is, what is usual, and what is not."""
    remarks = ["no gaps"]
    if len(panel.gaps):
        usual, most = panel.usual, panel.longest
        remarks = [f"longest gap {style.format_seconds(most)}"]
        if most <= panel.high * usual:
            remarks = [f"no gap over {style.format_seconds(most)}"]
        elif not narrow and panel.ttft is None:
            remarks.insert(0, f"median {style.format_seconds(usual)}")
    if panel.ttft is not None:
        remarks.append(f"TTFT {style.format_seconds(panel.ttft)}")
    return "\n".join([panel.name, *remarks] if narrow else [panel.name, ", ".join(remarks)])


def _add_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    """Say what point, triangle and dashed line are."""
    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=style.BLUE, linewidth=3), "usual gaps"),
    ]
    if any(panel.longest > panel.high * panel.usual for panel in panels):
        stem = Line2D([], [], color=style.VERMILLION, marker="o", linewidth=1.1)
        entries.append((stem, f"gaps over {panels[0].high:g} × the median"))
    if any(0 < len(set(panel.injections)) <= style.MOST_MARKS for panel in panels):
        entries.append(
            (
                Line2D([], [], color=style.GREY, linestyle=style.DOTTED, marker="^", markerfacecolor=style.INK),
                "prompt sent",
            )
        )
    if any(panel.height is not None for panel in panels):
        entries.append(
            (Line2D([], [], color=style.INK, linestyle=style.DASHED, linewidth=1.4), "height by the equations")
        )
    style.add_legend(figure, [handle for handle, _ in entries], [name for _, name in entries], len(entries))
