"""Figures: what was measured against what was predicted, one point each; and how far the one is from the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from costmodel.cli.figures import style
from costmodel.hardware.errors import InputError


class Point(NamedTuple):
    """One thing that was measured.

    Attributes:
        kind: what sort of thing it is; each has a marker.
        measured, predicted: [s].
        fitted: the prediction was fitted to it, so that it proves little.
    """

    kind: str
    measured: float
    predicted: float
    fitted: bool = False


SIZE: Final = 9.5
"""Of markers [points]."""


def draw_residuals(points: Sequence[Point], band: tuple[float, float], title: str, foot: str) -> Figure:
    """Draw measured/predicted − 1 against the predicted time, what was fitted hollow.

    Args:
        points: at least one.
        band: interval of predictions, relative.
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: no points, or too many kinds of them.
    """
    kinds = _kinds(points)
    unit, name = style.time_unit(max(point.predicted for point in points))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        _add_legend(figure, kinds, any(point.fitted for point in points))
        axes = figure.subplots()
        low, high = (100 * share for share in band)
        axes.axhspan(low, high, color=style.PALE, zorder=0)
        axes.axhline(0.0, color=style.INK, linewidth=1.4, zorder=1)
        _scatter(axes, points, kinds, unit, relative=True)
        set_log_axis(axes, "x", [point.predicted / unit for point in points])
        most = max(*(abs(100 * (point.measured / point.predicted - 1)) for point in points), abs(low), abs(high), 1.0)
        axes.set_ylim(-1.15 * most, 1.15 * most)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+.0f}".replace("-", "−").replace("+0", "0"))
        )
        axes.grid(True)
        axes.set_xlabel(f"predicted time ({name})")
        axes.set_ylabel("measured more than predicted (%)")
    return figure


def draw_agreement(points: Sequence[Point], limit: float | None, title: str, foot: str) -> Figure:
    """Draw what was measured against what was predicted, on logarithmic axes of one scale.

    Args:
        points: at least one.
        limit: largest error that is allowed, as a share of the measurement; drawn as a band. None for none.
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: no points, or too many kinds of them.
    """
    kinds = _kinds(points)
    values = [value for point in points for value in (point.measured, point.predicted)]
    unit, name = style.time_unit(max(values))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        _add_legend(figure, kinds, any(point.fitted for point in points))
        axes = figure.subplots()
        set_log_axis(axes, "x", [value / unit for value in values])
        set_log_axis(axes, "y", [value / unit for value in values])
        ends = np.array(axes.get_xlim())
        if limit is not None:
            axes.fill_between(ends, ends * max(1 - limit, 1e-9), ends * (1 + limit), color=style.PALE, zorder=0)
        axes.plot(ends, ends, color=style.INK, linewidth=1.4, zorder=1)
        _scatter(axes, points, kinds, unit, relative=False)
        axes.set_xlim(*ends)
        axes.grid(True)
        axes.set_xlabel(f"measured ({name})")
        axes.set_ylabel(f"predicted ({name})")
    return figure


def _kinds(points: Sequence[Point]) -> dict[str, tuple[Any, Any, Any]]:
    """Return the look of each kind, in the order of their first point."""
    if not points:
        raise InputError("there is nothing to draw: no prediction has a measurement beside it")
    kinds = list(dict.fromkeys(point.kind for point in points))
    if len(kinds) > len(style.LOOKS):
        raise InputError(f"a figure tells {len(style.LOOKS)} kinds of points apart, not {len(kinds)}")
    return dict(zip(kinds, style.LOOKS, strict=False))


def _scatter(
    axes: Axes, points: Sequence[Point], kinds: dict[str, tuple[Any, Any, Any]], unit: float, *, relative: bool
) -> None:
    for kind, (color, _, marker) in kinds.items():
        for fitted in (True, False):
            some = [point for point in points if point.kind == kind and point.fitted == fitted]
            if relative:
                xs = [point.predicted / unit for point in some]
                ys = [100 * (point.measured / point.predicted - 1) for point in some]
            else:
                xs, ys = [point.measured / unit for point in some], [point.predicted / unit for point in some]
            axes.plot(xs, ys, linestyle="none", marker=marker, zorder=3, **style.mark(color, SIZE, fitted))


def _add_legend(figure: Figure, kinds: dict[str, tuple[Any, Any, Any]], hollow: bool) -> None:
    names = list(kinds)
    handles = [
        Line2D([], [], linestyle="none", marker=marker, **style.mark(color, SIZE, False))
        for color, _, marker in kinds.values()
    ]
    if hollow:
        handles.append(Line2D([], [], linestyle="none", marker="o", **style.mark(style.GREY, SIZE, True)))
        names.append("hollow: was fitted")
    if len(names) > 1:
        style.add_legend(figure, handles, names, min(len(names), 4))


def set_log_axis(axes: Axes, which: str, values: Sequence[float]) -> None:
    """Set a logarithmic axis that holds the values, with round ticks."""
    low, high = min(values), max(values)
    span = max(high / low, 2.0)
    limits = low / span**0.06, high * span**0.06
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
    ticks = style.decades(*limits)
    axis.set_ticks(ticks, [style.plain(tick) for tick in ticks])
    axis.set_ticks([], minor=True)
