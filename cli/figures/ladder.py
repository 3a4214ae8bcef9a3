"""Figure: the percentiles from p50 to the maximum, as a ladder on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style
from costmodel.cli.figures.labels import Label, place_labels, spread, trace
from costmodel.hardware.errors import InputError

_LABELLED: Final = 2
"""With more curves than this, only beginnings and ends have numbers."""


class Ladder(NamedTuple):
    """One curve."""

    name: str
    rungs: Mapping[str, float]
    """Percentile → seconds, in the order in which they are drawn."""
    look: int | None = None
    """Of :data:`~costmodel.cli.figures.style.LOOKS`; None for the next."""
    hollow: bool = False
    """Dashed, with hollow markers: a prediction beside the curve of the same look, which is then solid."""


def draw_ladder(ladders: Sequence[Ladder], what: str, title: str, foot: str) -> Figure:
    """Draw percentiles.

    Args:
        ladders: curves with the same percentiles.
        what: what the percentiles are of, for the axis.
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: no curves, or too many.
    """
    ladders = [ladder for ladder in ladders if ladder.rungs]
    if not 1 <= len(ladders) <= len(style.LOOKS):
        raise InputError(f"a ladder of percentiles needs 1 to {len(style.LOOKS)} runs with gaps, not {len(ladders)}")
    names = list(ladders[0].rungs)
    heights = [value for ladder in ladders for value in ladder.rungs.values()]
    unit, unit_name = style.time_unit(min(max(heights), 9.0))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        axes = figure.subplots()
        beside = {ladder.look for ladder in ladders if ladder.hollow}
        for index, ladder in enumerate(ladders):
            color, line, marker = style.LOOKS[index if ladder.look is None else ladder.look]
            if ladder.look in beside:
                line = style.DASHED if ladder.hollow else "-"
            axes.plot(
                range(len(names)), [value / unit for value in ladder.rungs.values()], color=color, linestyle=line, marker=marker,
                linewidth=2.6, markersize=10, clip_on=False, zorder=4 if ladder.hollow else 3,
                markerfacecolor="white" if ladder.hollow else color, markeredgecolor=color if ladder.hollow else "white",
                markeredgewidth=2.0 if ladder.hollow else 0.8,
            )  # fmt: skip
        _scale(axes, names, [height / unit for height in heights])
        axes.set_xlabel("percentile")
        axes.set_ylabel(f"{what} ({unit_name})")
        style.settle(figure)
        _make_room(figure, axes, ladders)
        _name_ends(figure, axes, ladders, unit)
        _name_values(figure, axes, ladders, unit)
    return figure


def _scale(axes: Axes, names: Sequence[str], heights: Sequence[float]) -> None:
    axes.set_yscale("log")
    low, high = min(heights), max(heights)
    span = max(high / low, 3.0)
    axes.set_ylim(low / span**0.12, high * span**0.14)
    ticks = style.decades(*axes.get_ylim())
    axes.yaxis.set_ticks(ticks, [style.plain(tick) for tick in ticks])
    axes.yaxis.set_ticks([], minor=True)
    axes.set_xlim(-0.75, len(names) - 1)
    axes.set_xticks(range(len(names)), names)
    axes.grid(True, axis="y")


def _end(ladder: Ladder) -> str:
    """Return what stands beside the end of a curve: its name and its last value."""
    return f"{ladder.name}\n{style.format_seconds(list(ladder.rungs.values())[-1])}"


def _make_room(figure: Figure, axes: Axes, ladders: Sequence[Ladder]) -> None:
    """Narrow the axes so that the names of the curves fit beside them."""
    lines = [line for ladder in ladders for line in _end(ladder).splitlines()]
    widest = max(style.text_width(figure, line, style.TEXT_SIZE, bold=True) for line in lines)
    box = axes.get_position()
    right = 1 - (widest + 0.75) / figure.get_size_inches()[0]
    axes.set_position((box.x0, box.y0, min(right, box.x1) - box.x0, box.height))


def _name_ends(figure: Figure, axes: Axes, ladders: Sequence[Ladder], unit: float) -> None:
    """Name each curve at its end, and give its value at its beginning, spread so that they do not overlap."""
    box = axes.get_window_extent()
    line = style.TEXT_SIZE * 1.3 * figure.dpi / 72
    back = axes.transData.inverted().transform
    last = len(ladders[0].rungs) - 1
    for right, at in ((True, last), (False, 0)):
        shown = ladders if right else _different_starts(ladders)
        values = [list(ladder.rungs.values())[at] / unit for ladder in shown]
        wanted = [float(axes.transData.transform((at, value))[1]) for value in values]
        placed = spread(wanted, 2 * line + 4 if right else line, box.y0 + line, box.y1 - line)
        begin = box.x1 + 0.3 * figure.dpi if right else axes.transData.transform((0, 1))[0] - 0.3 * figure.dpi
        for ladder, value, level in zip(shown, values, placed, strict=True):
            x, y = back((begin, level))
            axes.plot([at, x], [value, y], color=style.GREY, linewidth=0.8, clip_on=False, zorder=1)
            text = _end(ladder) if right else style.format_seconds(value * unit)
            axes.annotate(
                text, (x, y), (5 if right else -4, 0), textcoords="offset points", va="center", ha="left" if right else "right",
                size=style.TEXT_SIZE if right else style.SMALL_SIZE, weight="bold" if right else "normal", linespacing=1.15,
                annotation_clip=False,
            )  # fmt: skip


def _different_starts(ladders: Sequence[Ladder]) -> list[Ladder]:
    """Return one curve for each of the values that curves begin with."""
    return list({style.format_seconds(next(iter(ladder.rungs.values()))): ladder for ladder in ladders}.values())


def _name_values(figure: Figure, axes: Axes, ladders: Sequence[Ladder], unit: float) -> None:
    """Write the values between beginning and end beside the points of a few curves, equal ones once."""
    if len(ladders) > _LABELLED:
        return
    points = [trace(axes, range(len(each.rungs)), [value / unit for value in each.rungs.values()]) for each in ladders]
    labels: dict[tuple[int, str], Label] = {}
    for ladder in ladders:
        texts = [style.format_seconds(value) for value in ladder.rungs.values()]
        for index, value in list(enumerate(ladder.rungs.values()))[1:-1]:
            text = texts[index]
            if text not in (texts[index - 1], texts[-1]):  # said already, or at the end
                labels.setdefault((index, text), Label(index, value / unit, text))
    place_labels(figure, axes, list(labels.values()), np.concatenate(points))
