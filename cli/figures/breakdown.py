"""Figure (c): where the time of a decode step and of the spike step goes, rung by rung."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.cli.figures.groups import FEED_FORWARD, GROUPS, WHOLE, Group, seconds_by_group
from costmodel.cli.text import count, plural
from costmodel.documents import Operator, Prediction, Rung
from costmodel.hardware.errors import InputError

MOST_PREDICTIONS: Final = 6
"""A figure of more would not be legible."""
_BAR: Final = 0.78
_NAME: Final = 1.2
"""Room for the name of a prediction above its bars, in bars."""
_LONG_NAME: Final = 48


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
    rows, experts = _rows(predictions), _has_experts(predictions)
    with style.styled():
        figure = style.new_figure(height=style.HEIGHT + 0.3 * max(len(rows) - 12, 0))
        alone = style.footer(predictions[0], "all rungs")
        style.add_frame(
            figure, _title(predictions, names, experts), alone if len(predictions) == 1 else _common(predictions)
        )
        decode, spike = figure.subplots(1, 2, sharey=True)
        _draw_panel(decode, "Decode step", [(row.level, row.decode) for row in rows])
        _draw_panel(spike, "Spike step", [(row.level, row.spike) for row in rows])
        size = style.SMALL_SIZE if len(rows) <= 9 else style.FOOTER_SIZE
        decode.set_yticks([row.level for row in rows], [row.rung for row in rows], size=size)
        decode.set_ylim(rows[-1].level + 0.6, rows[0].level - (0.6 if len(predictions) == 1 else 0.4 + _NAME))
        decode.tick_params(left=False)
        spike.tick_params(left=False)
        _legend(figure, rows, experts)
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
    asked, formats = ([facts(prediction) for prediction in predictions] for facts in (_facts, _formats))
    names = [" · ".join(parts) for parts in _differing(asked)]
    if len(set(names)) < len(names):  # formats mostly follow from the model, so they are told only where they must be
        names = [" · ".join(parts) for parts in _differing([[*a, *b] for a, b in zip(asked, formats, strict=True)])]
    if len(set(names)) == len(names):
        return names
    return [f"{index + 1}. {name}".rstrip(". ") for index, name in enumerate(names)]


def _differing(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows without the columns in which all are equal."""
    columns = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    return [[column[index] for column in columns] for index in range(len(rows))]


def _formats(prediction: Prediction) -> list[str]:
    """Return the number formats, in words."""
    load = prediction.workload
    return [f"weights {load.dtype}", f"KV {load.kv_dtype}", f"compute {load.compute_dtype}"]


def _facts(prediction: Prediction) -> list[str]:
    """Return what was asked for but the number formats, in words."""
    load = prediction.workload
    budget = "one step" if load.chunk_tokens is None else f"budget {count(load.chunk_tokens)}"
    return [
        prediction.model.name,
        style.short_gpu(prediction),
        f"TP {load.tensor_parallel}",
        f"PP {load.pipeline_parallel}",
        f"EP {load.expert_parallel}",
        f"{load.prompts} × {plural(load.prompt_tokens, 'token')}"
        if load.prompts > 1
        else plural(load.prompt_tokens, "token"),
        budget,
        plural(load.streams, "stream"),
        f"context {count(load.context_tokens)}",
        _calibration(prediction),
    ]


def _calibration(prediction: Prediction) -> str:
    """Return the calibration's name without the part's, which is told beside it."""
    return (prediction.calibration or "uncalibrated").removeprefix(f"{prediction.gpu.profile} ")


def _common(predictions: Sequence[Prediction]) -> str:
    """Return the footer of several predictions: model and GPU if they share them."""
    models = {prediction.model.name for prediction in predictions}
    gpus = {style.short_gpu(prediction) for prediction in predictions}
    shared = [text for (text, *others) in (sorted(models), sorted(gpus)) if not others]
    return " · ".join([*shared, plural(len(predictions), "configuration"), "all rungs", style.creator()])


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
        level += _NAME
    return rows


def _title(predictions: Sequence[Prediction], names: Sequence[str], experts: bool) -> str:
    """Say what takes most of each step, or which configuration has the lowest and the highest spike, floors and forecasts apart."""
    if len(predictions) == 1:
        rung = predictions[0].best
        (decode, first), (mixed, second) = (
            _largest(operators, experts) for operators in (rung.decode_operators, rung.operators)
        )
        begin = f"{first} of the {style.format_seconds(rung.decode_step_s)} decode step"
        end = f"{second} of the {style.format_seconds(rung.spike_s)} spike step"
        return f"{begin} and {end} are {decode}" if decode == mixed else f"{begin} is {decode}, {end} {mixed}"
    floors = [prediction.headline != "calibrated" for prediction in predictions]
    unlike = any(floors) and not all(floors)
    heights = [
        (prediction.spike.height_s, name)
        for prediction, name, floor in zip(predictions, names, floors, strict=True)
        if not (unlike and floor)  # a floor is not comparable to a forecast
    ]
    rest = f"; {plural(sum(floors), 'floor')} not ranked" if unlike else ""
    (low, best), (high, worst) = min(heights), max(heights)
    best, worst = (name if len(name) <= _LONG_NAME else f"{name[: _LONG_NAME - 1]}…" for name in (best, worst))
    if len(heights) == 1:
        return f"Spike step: {style.format_seconds(low)} ({best}){rest}"
    if low >= 0.995 * high:
        who = f"All {len(heights)}" + (" calibrated" if unlike else "")
        return f"{who} configurations spike to {style.format_seconds(high)}{rest}"
    return f"Spike step: {style.format_seconds(low)} ({best}) to {style.format_seconds(high)} ({worst}){rest}"


def _largest(operators: Sequence[Operator], experts: bool) -> tuple[str, str]:
    """Return the name and share of the group that takes most time."""
    sums = seconds_by_group(operators)
    group = max(sums, key=lambda each: sums[each])
    name = _name(group, experts).split(" (")[0].replace(" / ", " and ").replace(" + ", " and ")
    return name, style.format_share(sums[group] / sum(sums.values()))


def _name(group: Group, experts: bool) -> str:
    """Return a group's name; a dense model has no experts."""
    return group.name if group is not FEED_FORWARD or experts else "feed-forward"


def _has_experts(predictions: Sequence[Prediction]) -> bool:
    operators = [operator for prediction in predictions for operator in prediction.rungs.roofline.operators]
    return any(operator.name.startswith("experts") for operator in operators)


def _draw_panel(axes: Axes, title: str, bars: Sequence[tuple[float, dict[Group, float]]]) -> None:
    """Stacked horizontal bars on a scale of their own."""
    longest = max(sum(parts.values()) for _, parts in bars)
    unit, name = style.time_unit(longest)
    for level, parts in bars:
        begin = 0.0
        for group, seconds in parts.items():
            box: dict[str, Any] = {"left": begin / unit, "height": _BAR, "linewidth": 0}
            ink = style.ink_on(group.color)
            axes.barh(level, seconds / unit, color=group.color, hatch=group.hatch, edgecolor=ink, **box)
            axes.barh(level, seconds / unit, color="none", edgecolor=style.INK, **{**box, "linewidth": 0.8})
            begin += seconds
    axes.set_xlim(0, 1.22 * longest / unit)
    axes.set_title(title, weight="bold")
    axes.set_xlabel(f"time ({name})")
    ticks = style.nice_ticks(0, 1.08 * longest / unit, 5)  # none at the very end, where the next panel begins
    axes.set_xticks(ticks, [style.plain(tick) for tick in ticks])
    axes.spines["left"].set_position(("data", 0))


def _legend(figure: Figure, rows: Sequence[_Row], experts: bool) -> None:
    used = {group for row in rows for group in (*row.decode, *row.spike)}
    shown = [group for group in GROUPS if group in used]
    handles = [
        Patch(facecolor=group.color, hatch=group.hatch * 2, edgecolor=style.ink_on(group.color), linewidth=0.8)
        for group in shown
    ]
    style.add_legend(figure, handles, [_name(group, experts) for group in shown], 4)


def _write_values(figure: Figure, axes: Axes, bars: Sequence[tuple[float, dict[Group, float]]], size: float) -> None:
    """Write the value into each segment that is wide enough, and the total after the bar."""
    low, high = axes.get_xlim()
    inches = axes.get_window_extent().width / figure.dpi / (high - low)
    unit, _ = style.time_unit(max(sum(parts.values()) for _, parts in bars))
    for level, parts in bars:
        begin = 0.0
        for group, seconds in parts.items():
            text = _value(seconds / unit)
            if style.text_width(figure, text, size) + 0.1 <= seconds / unit * inches:
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


def _value(value: float) -> str:
    """Write a segment's time with at most three digits, and at most two decimals."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _write_names(figure: Figure, panels: Sequence[Axes], names: Sequence[str], rows: Sequence[_Row]) -> None:
    """Write each prediction's name above its bars."""
    first = [row.level for row in rows if row.rung == "textbook"]
    size = style.TEXT_SIZE if len(rows) <= 9 else style.FOOTER_SIZE + 1
    axes = panels[0]
    room = (panels[-1].get_window_extent().x1 - axes.get_window_extent().x0) / figure.dpi
    for name, level in zip(names, first, strict=True):
        axes.annotate(
            style.shorten(figure, name, size, room, bold=True),
            (0, level - _BAR / 2),
            (2, 3),
            textcoords="offset points",
            va="bottom",
            size=size,
            weight="bold",
        )
