"""Figure (b): how high the spike is for prompts of any length, for several token budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style
from costmodel.cli.figures.labels import Label, place_labels, spread, trace
from costmodel.cli.text import count, plural
from costmodel.hardware.errors import InputError


def draw_heights(
    prompts: Sequence[int],
    curves: Sequence[tuple[str, Sequence[float]]],
    mark: tuple[int, float] | None,
    limit_s: float | None = None,
    subtitle: str = "",
) -> Figure:
    """Draw the height of the spike against the length of the prompt, on logarithmic axes.

    Args:
        prompts: lengths, ascending [tokens].
        curves: name and heights [s] for each token budget; a name of digits is shown as tokens. The first is compared with the
            lowest in the title.
        mark: the prompt that was asked for, and its height [tokens, s].
        limit_s: a limit to draw [s].
        subtitle: what the figure is about: model, GPU, rung, streams.

    Raises:
        InputError: no curves, too many of them, or heights that do not go with the prompts.
    """
    if not prompts or not 1 <= len(curves) <= len(style.LOOKS) or any(len(ys) != len(prompts) for _, ys in curves):
        raise InputError(
            f"a figure of spike heights needs 1 to {len(style.LOOKS)} curves with a height for every prompt"
        )
    heights = (
        [height for _, ys in curves for height in ys] + ([mark[1]] if mark else []) + ([limit_s] if limit_s else [])
    )
    unit, name = style.time_unit(min(max(heights), 9.0))
    with style.styled():
        figure = style.new_figure()
        foot = " · ".join([text for text in (subtitle, style.creator()) if text])
        style.add_frame(figure, _title(prompts, curves, mark), foot)
        axes = figure.subplots()
        for (_, ys), (color, line, marker) in zip(curves, style.LOOKS, strict=False):
            axes.plot(
                prompts,
                [value / unit for value in ys],
                color=color,
                linestyle=line,
                linewidth=2.6,
                marker=marker,
                markersize=7,
                markeredgecolor="white",
                markeredgewidth=0.6,
                clip_on=False,
                zorder=3,
            )
        _scale(axes, prompts, [height / unit for height in heights])
        axes.set_xlabel("length of the prompt (tokens)")
        axes.set_ylabel(f"height of the spike ({name})")
        style.settle(figure)
        _make_room(figure, axes, [label for label, _ in curves])
        _label_ends(figure, axes, prompts[-1], [(label, ys[-1] / unit) for label, ys in curves])
        _label_marks(figure, axes, (prompts, curves), mark, limit_s, unit)
    return figure


def _title(
    prompts: Sequence[int], curves: Sequence[tuple[str, Sequence[float]]], mark: tuple[int, float] | None
) -> str:
    """Compare the first curve with the lowest, at the prompt that was asked for if it is on the curves."""
    at = prompts.index(mark[0]) if mark and mark[0] in prompts else len(prompts) - 1
    first, lowest = curves[0], min(curves, key=lambda curve: curve[1][at])
    tokens = count(prompts[at])
    begin = f"{tokens} tokens {_how(first[0])} stall every stream for {style.format_seconds(first[1][at])}"
    if lowest is first or lowest[1][at] >= 0.995 * first[1][at]:
        return begin
    return f"{begin}; {_how(lowest[0])}, for {style.format_seconds(lowest[1][at])} at a time"


def _how(label: str) -> str:
    """Return a curve's name as part of a sentence."""
    if label.replace(",", "").isdigit():
        return f"with a budget of {count(int(label.replace(',', '')))}"
    return f"in {label}" if label.startswith("one") else f"with {label}"


def _shown(label: str) -> str:
    return count(int(label)) if label.isdigit() else label


def _scale(axes: Axes, prompts: Sequence[int], heights: Sequence[float]) -> None:
    """Logarithmic axes with ticks that can be read."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = min(heights), max(heights)
    span = max(high / low, 1.5)
    axes.set_ylim(low / span**0.06, high * span**0.16)
    axes.set_xlim(prompts[0] * 0.93, max(prompts[-1], prompts[0] * 1.01))
    for axis, (begin, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        ticks = style.decades(begin, end)
        axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.grid(True)


def _make_room(figure: Figure, axes: Axes, labels: Sequence[str]) -> None:
    """Narrow the axes so that the labels at the ends of the lines fit beside them."""
    widest = max(style.text_width(figure, text, style.TEXT_SIZE) for text in [*map(_shown, labels), *_HEADER])
    box = axes.get_position()
    right = 1 - (widest + 0.65) / figure.get_size_inches()[0]
    axes.set_position((box.x0, box.y0, min(right, box.x1) - box.x0, box.height))


_HEADER: Final = ("token budget", "per step")


def _label_ends(figure: Figure, axes: Axes, end: float, labels: Sequence[tuple[str, float]]) -> None:
    """Name each curve at its end, spread so that the names do not overlap."""
    box = axes.get_window_extent()
    line = style.TEXT_SIZE * 1.45 * figure.dpi / 72
    wanted = [float(axes.transData.transform((end, value))[1]) for _, value in labels]
    placed = spread(wanted, line, box.y0, box.y1 - 2.6 * line)
    back = axes.transData.inverted().transform
    gap = 0.3 * figure.dpi
    for (label, value), level, (color, _, marker) in zip(labels, placed, style.LOOKS, strict=False):
        x, y = back((box.x1 + gap, level))
        axes.plot([end, x], [value, y], color=style.GREY, linewidth=0.8, clip_on=False, zorder=1)
        axes.plot(x, y, marker=marker, color=color, markersize=9, clip_on=False)
        axes.annotate(
            _shown(label),
            (x, y),
            (8, 0),
            textcoords="offset points",
            va="center",
            size=style.TEXT_SIZE,
            annotation_clip=False,
        )
    x, y = back((box.x1 + gap - 6, max(placed) + 0.9 * line))
    axes.text(
        x,
        y,
        "\n".join(_HEADER),
        size=style.SMALL_SIZE,
        color=style.GREY,
        va="bottom",
        linespacing=1.2,
    )


def _label_marks(
    figure: Figure,
    axes: Axes,
    drawn: tuple[Sequence[int], Sequence[tuple[str, Sequence[float]]]],
    mark: tuple[int, float] | None,
    limit_s: float | None,
    unit: float,
) -> None:
    """Mark the prompt that was asked for, and the limit."""
    prompts, curves = drawn
    points = [trace(axes, prompts, [value / unit for value in ys]) for _, ys in curves]
    labels = []
    low, high = axes.get_xlim()
    if limit_s is not None:
        axes.axhline(limit_s / unit, color=style.INK, linewidth=1.6, linestyle=(0, (8, 4)))
        points.append(trace(axes, [low, high], [limit_s / unit] * 2))
        labels.append(Label(low * 1.25, limit_s / unit, f"limit {style.format_limit(limit_s)}"))
    if mark is not None:
        tokens, height = mark
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": 20,
            "color": style.INK,
            "fillstyle": "none",
            "markeredgewidth": 2.2,
        }
        axes.plot(tokens, height / unit, **ring)
        x, y = axes.transData.transform((tokens, height / unit))
        angles = np.linspace(0, 2 * np.pi, 24)
        points += [np.column_stack([x + radius * np.cos(angles), y + radius * np.sin(angles)]) for radius in (4, 14)]
        text = f"{plural(tokens, 'token')}:\n{style.format_seconds(height)}"
        labels.insert(0, Label(tokens, height / unit, text, size=style.TEXT_SIZE + 2))
        if tokens in prompts:
            lowest = min(ys[prompts.index(tokens)] for _, ys in curves)
            if lowest < 0.995 * height:
                axes.plot(tokens, lowest / unit, **{**ring, "markersize": 15})
                labels.append(Label(tokens, lowest / unit, style.format_seconds(lowest), size=style.TEXT_SIZE))
    place_labels(figure, axes, labels, np.concatenate(points))
