"""Figure: what was measured, step by step: decodes against their context, and steps with a prompt against its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style
from costmodel.cli.figures.agreement import set_log_axis
from costmodel.hardware.errors import InputError

SIZE: Final = 8.5
"""Of markers [points]."""


class Measured(NamedTuple):
    """One kind of step.

    Attributes:
        series: which it belongs to.
        tokens: on the horizontal axis.
        seconds: median of the repeats [s].
        spread: median absolute deviation of them [s].
        held_out: no fit sees it.
    """

    series: str
    tokens: float
    seconds: float
    spread: float
    held_out: bool = False


class Half(NamedTuple):
    """One half of the figure: what it shows, the name of its horizontal axis, and the steps."""

    name: str
    axis: str
    steps: Sequence[Measured]


def draw_measured(halves: Sequence[Half], title: str, foot: str) -> Figure:
    """Draw the time of steps on logarithmic axes, side by side on one scale of time.

    What was held out is hollow; lines join the others of a series that has one step at each place.

    Args:
        halves: with a step in one of them at least; one without any is left out.
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: nothing was measured, or there are too many series.
    """
    halves = [half for half in halves if half.steps]
    if not halves:
        raise InputError("there is nothing to draw: no step was measured")
    times = [time for half in halves for step in half.steps for time in _ends(step)]
    unit, name = style.time_unit(max(times))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        panels = figure.subplots(1, len(halves), sharey=True, squeeze=False)[0]
        set_log_axis(panels[0], "y", [time / unit for time in times])
        for axes, half in zip(panels, halves, strict=True):
            _draw_half(axes, half, unit)
        panels[0].set_ylabel(f"time of a step ({name})")
    return figure


def _draw_half(axes: Axes, half: Half, unit: float) -> None:
    series = list(dict.fromkeys(step.series for step in half.steps))
    if len(series) > len(style.LOOKS):
        raise InputError(f"a figure tells {len(style.LOOKS)} series apart, not {len(series)}")
    for which, (color, line, marker) in zip(series, style.LOOKS, strict=False):
        steps = sorted(step for step in half.steps if step.series == which)
        joined = [step for step in steps if not step.held_out]
        xs = [step.tokens for step in joined]
        joins = len(set(xs)) == len(xs) > 1  # a line through steps of several contexts says nothing
        drawn = line if joins else "none"
        axes.plot(xs, [step.seconds / unit for step in joined], color=color, linestyle=drawn, linewidth=1.3, zorder=2)
        axes.plot([], [], color=color, linestyle=drawn, marker=marker, markersize=SIZE, label=which)
        for step in steps:
            low, high = (end / unit for end in _ends(step))
            axes.plot([step.tokens] * 2, [low, high], color=color, linewidth=4, alpha=0.45, zorder=1)
            axes.plot(
                step.tokens,
                step.seconds / unit,
                linestyle="none",
                marker=marker,
                zorder=3,
                **style.mark(color, SIZE, step.held_out),
            )
    if any(step.held_out for step in half.steps):
        axes.plot([], [], linestyle="none", marker="o", **style.mark(style.GREY, SIZE, True), label="hollow: held out")
    set_log_axis(axes, "x", [max(step.tokens, 1.0) for step in half.steps])
    axes.grid(True)
    axes.set_title(half.name)
    axes.set_xlabel(half.axis)
    axes.legend(loc="upper left")


def _ends(step: Measured) -> tuple[float, float]:
    """Return the ends of the bar that shows the spread; it never goes below a tenth of the median, as the axis has no zero."""
    return max(step.seconds - step.spread, step.seconds / 10), step.seconds + step.spread
