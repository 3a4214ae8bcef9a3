"""Figure: the share of gaps that are longer than a given time, on logarithmic axes, so that the tail can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style
from costmodel.hardware.errors import InputError

_LEVELS: Final = ((0.5, "p50"), (0.1, "p90"), (0.01, "p99"), (0.001, "p99.9"))


class Curve(NamedTuple):
    """One run."""

    name: str
    edges: Any
    """Times, ascending [s], an array."""
    longer: Any
    """Share of the gaps that are longer than each, an array of the same length, falling to 0."""


def draw_distribution(curves: Sequence[Curve], title: str, foot: str) -> Figure:
    """Draw complementary cumulative distributions.

    Args:
        curves: runs.
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: no curves, or too many.
    """
    if not 1 <= len(curves) <= len(style.LOOKS):
        raise InputError(f"a figure of distributions needs 1 to {len(style.LOOKS)} runs with gaps, not {len(curves)}")
    least = min(float(curve.longer[curve.longer > 0].min(initial=1.0)) for curve in curves)
    low = min(float(curve.edges[0]) for curve in curves)
    high = max(float(curve.edges[-1]) for curve in curves)
    unit, name = style.time_unit(min(high, 9.0))
    bottom = min(10 ** np.floor(np.log10(least / 1.5)), 1e-4)
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        if len(curves) > 1:
            handles = [_handle(look) for look, _ in zip(style.LOOKS, curves, strict=False)]
            style.add_legend(figure, handles, [curve.name for curve in curves], len(curves))
        axes = figure.subplots()
        for curve, (color, line, _) in zip(curves, style.LOOKS, strict=False):
            axes.step(
                np.concatenate([[low / 10], curve.edges]) / unit, np.maximum(np.concatenate([[1.0], curve.longer]), bottom / 10),
                where="post", color=color, linestyle=line, linewidth=2.8, zorder=3,
            )  # fmt: skip
        _scale(axes, low / unit, high / unit, float(bottom))
        axes.set_xlabel(f"gap between two tokens ({name})")
        axes.set_ylabel("share of gaps that are longer (%)")
        style.settle(figure)
        _mark_percentiles(axes)
    return figure


def _handle(look: tuple[Any, Any, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look[0], linestyle=look[1], linewidth=2.8)


def _scale(axes: Axes, low: float, high: float, bottom: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    span = max(high / low, 3.0)
    axes.set_xlim(low / span**0.08, high * span**0.12)
    axes.set_ylim(bottom, 1.6)
    ticks = style.decades(*axes.get_xlim())
    axes.xaxis.set_ticks(ticks, [style.plain(tick) for tick in ticks])
    axes.xaxis.set_ticks([], minor=True)
    powers = [10.0**power for power in range(round(np.log10(bottom)), 1)]
    axes.yaxis.set_ticks(powers, [style.plain(float(f"{100 * power:.6g}")) for power in powers])
    axes.yaxis.set_ticks([], minor=True)
    axes.grid(True)


def _mark_percentiles(axes: Axes) -> None:
    """Mark where the percentiles are read: the curve crosses p99 where one gap in a hundred is longer."""
    right = axes.get_xlim()[1]
    for share, name in _LEVELS:
        if share > axes.get_ylim()[0]:
            axes.axhline(share, color=style.GREY, linewidth=1.0, linestyle=(0, (2, 3)), zorder=2)
            axes.text(right, share, f"{name} ", ha="right", va="bottom", size=style.SMALL_SIZE, color=style.GREY)
