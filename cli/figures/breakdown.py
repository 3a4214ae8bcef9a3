"""Figure (c): where the time of a decode step and of the spike step goes, rung by rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.cli.figures.groups import GROUPS, WHOLE, Group, seconds_by_group
from costmodel.documents import Operator, Prediction, Rung
from costmodel.hardware.errors import InputError

MOST_PREDICTIONS: Final = 6
"""A figure of more would not be legible."""
_BAR: Final = 0.74


class _Row(NamedTuple):
    """One bar in each panel."""

    level: float
    rung: str
    decode: dict[Group, float]
    spike: dict[Group, float]


def draw_breakdown(predictions: Sequence[Prediction]) -> Figure:
    """Draw stacked bars of the decode step and of the spike step, one bar per rung, one group of bars per prediction.

    Args:
        predictions: one to six.

    Raises:
        InputError: none, or more than six.
    """
    if not 1 <= len(predictions) <= MOST_PREDICTIONS:
        raise InputError(
            f"a breakdown of {len(predictions)} predictions would not be legible; "
            f"plot 1 to {MOST_PREDICTIONS} of them in one figure"
        )
    names = distinguish(predictions)
    rows = _rows(predictions)
    with style.styled():
        figure = style.new_figure()
        alone = style.footer(predictions[0], "all rungs")
        style.add_frame(figure, _title(predictions, names), alone if len(predictions) == 1 else _common(predictions))
        decode, spike = figure.subplots(1, 2, sharey=True)
        _draw_panel(decode, "Decode step", [(row.level, row.decode) for row in rows])
        _draw_panel(spike, "Spike step", [(row.level, row.spike) for row in rows])
        size = style.SMALL_SIZE if len(rows) <= 12 else style.FOOTER_SIZE
        decode.set_yticks([row.level for row in rows], [row.rung for row in rows], size=size)
        decode.set_ylim(rows[-1].level + 0.6, rows[0].level - (0.6 if len(predictions) == 1 else 1.2))
        decode.tick_params(left=False)
        spike.tick_params(left=False)
        _legend(figure, rows)
        style.settle(figure)
        for axes, bars in (
            (decode, [(row.level, row.decode) for row in rows]),
            (spike, [(row.level, row.spike) for row in rows]),
        ):
            _write_values(figure, axes, bars, size)
        if len(predictions) > 1:
            _write_names(figure, (decode, spike), names, rows)
    return figure


def distinguish(predictions: Sequence[Prediction]) -> list[str]:
    """Return what tells predictions apart, in words; their numbers where nothing does."""
    parts: list[list[str]] = [[] for _ in predictions]
    for column in zip(*map(_facts, predictions), strict=True):
        if len(set(column)) > 1:
            for part, fact in zip(parts, column, strict=True):
                part.append(fact)
    names = [" · ".join(part) for part in parts]
    if len(set(names)) == len(names):
        return names
    return [f"{index + 1}. {name}".rstrip(". ") for index, name in enumerate(names)]


def _facts(prediction: Prediction) -> list[str]:
    """Return everything that was asked for, in words."""
    load = prediction.workload
    budget = "one step" if load.chunk_tokens is None else f"budget {style.format_tokens(load.chunk_tokens)}"
    return [
        prediction.model.name,
        style.short_gpu(prediction),
        f"TP {load.tensor_parallel}",
        f"PP {load.pipeline_parallel}",
        f"EP {load.expert_parallel}",
        f"weights {load.dtype}",
        f"KV {load.kv_dtype}",
        f"compute {load.compute_dtype}",
        f"{load.prompts} × {style.plural(load.prompt_tokens, 'token')}"
        if load.prompts > 1
        else style.plural(load.prompt_tokens, "token"),
        budget,
        style.plural(load.streams, "stream"),
        f"context {style.format_tokens(load.context_tokens)}",
        prediction.calibration or "uncalibrated",
    ]


def _common(predictions: Sequence[Prediction]) -> str:
    """Return the footer of several predictions: model and GPU if they share them."""
    models = {prediction.model.name for prediction in predictions}
    gpus = {style.short_gpu(prediction) for prediction in predictions}
    shared = [text for (text, *others) in (sorted(models), sorted(gpus)) if not others]
    return " · ".join([*shared, style.plural(len(predictions), "configuration"), "all rungs", style.creator()])


def _rungs(prediction: Prediction) -> list[tuple[str, Rung]]:
    rungs = prediction.rungs
    found = [("textbook", rungs.textbook), ("roofline", rungs.roofline)]
    return found + ([("calibrated", rungs.calibrated)] if rungs.calibrated else [])


def _rows(predictions: Sequence[Prediction]) -> list[_Row]:
    rows, level = [], 0.0
    for prediction in predictions:
        for name, rung in _rungs(prediction):
            rows.append(_Row(level, name, seconds_by_group(rung.decode_operators), seconds_by_group(rung.operators)))
            level += 1
        level += 0.9
    return rows


def _title(predictions: Sequence[Prediction], names: Sequence[str]) -> str:
    """Say what takes most of each step, or which configuration has the lowest and the highest spike."""
    if len(predictions) == 1:
        rung, spike = predictions[0].best, predictions[0].spike
        decode = _largest(rung.decode_operators)
        mixed = _largest(rung.operators)
        first = f"{decode[0]}: {style.format_share(decode[1])} of the {style.format_seconds(rung.decode_step_s)} decode step"
        same = "" if mixed[0] == decode[0] else f"{mixed[0]}: "
        return f"{first}, {same}{style.format_share(mixed[1])} of the {style.format_seconds(spike.height_s)} spike step"
    heights = [(prediction.spike.height_s, name) for prediction, name in zip(predictions, names, strict=True)]
    (low, best), (high, worst) = min(heights), max(heights)
    if low >= 0.995 * high:
        return f"All {len(predictions)} configurations spike to {style.format_seconds(high)}"
    return f"Spike step: {style.format_seconds(low)} ({best}) to {style.format_seconds(high)} ({worst})"


def _largest(operators: Sequence[Operator]) -> tuple[str, float]:
    """Return the name and share of the group that takes most time."""
    sums = seconds_by_group(operators)
    group = max(sums, key=lambda each: sums[each])
    name = group.name.split(" (")[0]
    return name[0].upper() + name[1:] if name != "lm_head" else name, sums[group] / sum(sums.values())


def _draw_panel(axes: Axes, title: str, bars: Sequence[tuple[float, dict[Group, float]]]) -> None:
    """Stacked horizontal bars on a scale of their own."""
    longest = max(sum(parts.values()) for _, parts in bars)
    unit, name = style.time_unit(longest)
    for level, parts in bars:
        begin = 0.0
        for group, seconds in parts.items():
            box = {"left": begin / unit, "height": _BAR, "linewidth": 0}
            ink = style.ink_on(group.color)
            axes.barh(level, seconds / unit, color=group.color, hatch=group.hatch, edgecolor=ink, **box)
            axes.barh(level, seconds / unit, color="none", edgecolor=style.INK, **{**box, "linewidth": 0.8})
            begin += seconds
    axes.set_xlim(0, 1.22 * longest / unit)
    axes.set_title(title, weight="bold")
    axes.set_xlabel(f"time ({name})")
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.spines["left"].set_position(("data", 0))


def _legend(figure: Figure, rows: Sequence[_Row]) -> None:
    used = {group for row in rows for group in (*row.decode, *row.spike)}
    shown = [group for group in GROUPS if group in used]
    handles = [
        Patch(facecolor=group.color, hatch=group.hatch * 2, edgecolor=style.ink_on(group.color), linewidth=0.8)
        for group in shown
    ]
    figure.legend(
        handles,
        [group.name for group in shown],
        loc="outside upper left",
        ncols=4,
        handlelength=2.2,
        handleheight=1.3,
        columnspacing=1.4,
        borderaxespad=0.2,
    )


def _write_values(figure: Figure, axes: Axes, bars: Sequence[tuple[float, dict[Group, float]]], size: float) -> None:
    """Write the value into each segment that is wide enough, and the total after the bar."""
    low, high = axes.get_xlim()
    inches = axes.get_window_extent().width / figure.dpi / (high - low)
    unit, _ = style.time_unit(max(sum(parts.values()) for _, parts in bars))
    for level, parts in bars:
        begin = 0.0
        for group, seconds in parts.items():
            text = style.significant(seconds / unit)
            if style.text_width(figure, text, size) + 0.12 <= seconds / unit * inches:
                axes.text(
                    (begin + seconds / 2) / unit,
                    level,
                    text,
                    ha="center",
                    va="center",
                    size=size,
                    color=style.ink_on(group.color),
                    bbox={"facecolor": group.color, "edgecolor": "none", "pad": 1.5} if group is not WHOLE else None,
                )
            begin += seconds
        total = style.format_seconds(sum(parts.values()))
        axes.annotate(
            total,
            (begin / unit, level),
            (6, 0),
            textcoords="offset points",
            va="center",
            size=size,
            weight="bold",
        )


def _write_names(figure: Figure, panels: Sequence[Axes], names: Sequence[str], rows: Sequence[_Row]) -> None:
    """Write each prediction's name above its bars."""
    first = [row.level for row in rows if row.rung == "textbook"]
    size = style.TEXT_SIZE if len(rows) <= 12 else style.SMALL_SIZE - 1
    axes = panels[0]
    for name, level in zip(names, first, strict=True):
        axes.annotate(
            name,
            (0, level - _BAR / 2),
            (2, 3),
            textcoords="offset points",
            va="bottom",
            size=size,
            weight="bold",
        )
