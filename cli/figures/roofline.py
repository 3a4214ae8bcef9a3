"""Figure (d): the roofline of the GPU, with the operators of the decode step and of the spike step on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from costmodel.cli.figures import style
from costmodel.cli.figures.groups import FEED_FORWARD, group_of
from costmodel.cli.figures.labels import Box, Label, place_labels, trace
from costmodel.documents import Operator, Prediction

_TERA: Final = 1e12
_LABELLED: Final = 0.01
"""Operators that take less of the step than this have a marker but no label."""
_NEAR: Final = 0.16
"""Operators of one step closer than this share a label [decades]."""


_Line = tuple[Sequence[float], Sequence[float]]


class _Point(NamedTuple):
    """An operator on the figure."""

    intensity: float
    rate: float
    share: float
    operator: Operator


def draw_roofline(prediction: Prediction, peaks: Mapping[str, float], bandwidth: float) -> Figure:
    """Draw attained TFLOP/s against arithmetic intensity on logarithmic axes, per GPU.

    Operators are those of the headline rung; on the roofline rung they lie on a roof, on the calibrated rung below. Hollow circles
    are the decode step's, filled diamonds the spike step's; the area of a marker tells the share of its step's time.

    Args:
        prediction: whose operators.
        peaks: dense peak of each compute dtype [FLOP/s]; only those in use are drawn.
        bandwidth: of the memory [B/s].
    """
    rung = prediction.best
    decode, spike = _points(rung.decode_operators), _points(rung.operators)
    roofs = roofs_in_use(prediction, peaks)
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _title(prediction), style.footer(prediction))
        axes = figure.subplots()
        _scale(axes, [*decode, *spike], roofs, bandwidth)
        lines = _draw_roofs(axes, roofs, bandwidth)
        _draw_points(axes, decode, style.BLUE, "o", hollow=True)
        _draw_points(axes, spike, style.VERMILLION, "D", hollow=False)
        _legend(axes, prediction)
        style.settle(figure)
        taken = _name_roofs(figure, axes, roofs, bandwidth)
        points = [trace(axes, *line) for line in lines]
        points.append(_name_slope(figure, axes, max(roofs.values()) / bandwidth, bandwidth, [*decode, *spike]))
        taken.append(_extent(figure, axes.get_legend()))
        for step in (decode, spike):
            points += [_ring(axes, point) for point in step]
        labels = [*_labels(decode, "○", style.BLUE), *_labels(spike, "◆", _DARK_RED)]
        place_labels(figure, axes, labels, np.concatenate(points), taken)
    return figure


_DARK_RED: Final = "#8F3F00"
"""Vermillion, dark enough for text."""


def roofs_in_use(prediction: Prediction, peaks: Mapping[str, float]) -> dict[str, float]:
    """Return the peaks that the workload's operators run into, highest first.

    A compute-bound operator of the roofline rung runs exactly at the peak of its dtype. The peak of the main compute dtype is always
    there. Of dtypes with the same peak, the one that the workload names is taken.
    """
    load, rung = prediction.workload, prediction.rungs.roofline
    reached = [
        operator.flops / operator.time_s
        for operator in (*rung.decode_operators, *rung.operators)
        if operator.bound == "compute" and operator.time_s > 0
    ]
    named = [load.compute_dtype, load.kv_dtype, load.dtype, "bf16", "fp16"]
    order = sorted(peaks, key=lambda dtype: named.index(dtype) if dtype in named else len(named))
    found: dict[str, float] = {}
    for dtype in order:
        peak = peaks[dtype]
        used = dtype == load.compute_dtype or any(math.isclose(rate, peak, rel_tol=1e-6) for rate in reached)
        if used and not any(math.isclose(peak, other, rel_tol=1e-6) for other in found.values()):
            found[dtype] = peak
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _points(operators: Iterable[Operator]) -> list[_Point]:
    """Return the operators that compute anything; communication and overheads have no place on a roofline."""
    total = sum(operator.time_s for operator in operators)
    return [
        _Point(
            operator.flops / operator.bytes, operator.flops / operator.time_s / _TERA, operator.time_s / total, operator
        )
        for operator in operators
        if operator.flops > 0 and operator.bytes > 0 and operator.time_s > 0
    ]


def _title(prediction: Prediction) -> str:
    rung, parts = prediction.best, []
    for name, operators, seconds in (
        ("Decode", rung.decode_operators, rung.decode_step_s),
        ("spike", rung.operators, rung.spike_s),
    ):
        bound, share = _main_bound(operators)
        parts.append(f"{name}: {style.format_share(share)} of {style.format_seconds(seconds)} is {bound}-bound")
    return "; ".join(parts)


def _main_bound(operators: Iterable[Operator]) -> tuple[str, float]:
    """Return what limits the operators that take most of the time, and their share of it."""
    sums: dict[str, float] = {}
    for operator in operators:
        sums[operator.bound] = sums.get(operator.bound, 0.0) + operator.time_s
    bound = max(sums, key=lambda each: sums[each])
    return bound, sums[bound] / sum(sums.values())


def _scale(axes: Axes, points: Sequence[_Point], roofs: Mapping[str, float], bandwidth: float) -> None:
    ridges = [peak / bandwidth for peak in roofs.values()]
    intensities = [point.intensity for point in points] + ridges
    rates = [point.rate for point in points] + [peak / _TERA for peak in roofs.values()]
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(intensities) / 5
    axes.set_xlim(low, max(max(intensities) * 25, max(ridges) * 60))
    axes.set_ylim(min(min(rates) / 6, low * bandwidth / _TERA * 2), max(rates) * 2.6)
    for axis, (begin, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        powers = range(math.ceil(math.log10(begin)), math.floor(math.log10(end)) + 1)
        ticks = [float(f"1e{power}") for power in powers]
        axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.grid(True)
    axes.set_xlabel("arithmetic intensity (FLOP/B)")
    axes.set_ylabel("attained rate per GPU (TFLOP/s)")


def _draw_roofs(axes: Axes, roofs: Mapping[str, float], bandwidth: float) -> list[_Line]:
    """Draw the slope of the memory and the roof of each dtype; return the lines."""
    low, high = axes.get_xlim()
    lines: list[_Line] = []
    for index, peak in enumerate(roofs.values()):
        ridge = peak / bandwidth
        xs = [low, ridge, high] if index == 0 else [ridge, high]
        ys = [min(x * bandwidth, peak) / _TERA for x in xs]
        axes.plot(xs, ys, color=style.INK, linewidth=2.4, linestyle=("-", "--", "-.", ":")[index % 4], zorder=2)
        axes.plot(
            [ridge, ridge], [axes.get_ylim()[0], peak / _TERA], color=style.GREY, linewidth=1.1, linestyle=":", zorder=1
        )
        lines += [(xs, ys), ([ridge, ridge], [axes.get_ylim()[0], peak / _TERA])]
    return lines


def _name_roofs(figure: Figure, axes: Axes, roofs: Mapping[str, float], bandwidth: float) -> list[Box]:
    """Write the peaks on the roofs, the bandwidth on the slope and the ridge points at the foot; return the boxes."""
    high, bottom = axes.get_xlim()[1], axes.get_ylim()[0]
    texts = []
    for index, (dtype, peak) in enumerate(roofs.items()):
        text = f"{dtype} peak {_plain(peak / _TERA)} TFLOP/s"
        place: dict[str, Any] = {"ha": "right", "va": "bottom", "textcoords": "offset points"}
        texts.append(axes.annotate(text, (high, peak / _TERA), (-4, 3), size=style.SMALL_SIZE, **place))
        ridge = peak / bandwidth
        words = f"ridge {style.significant(ridge)} FLOP/B"
        shift = (5 if index == 0 else -5, 5 + 18 * max(index - 1, 0))
        texts.append(
            axes.annotate(
                words,
                (ridge, bottom),
                shift,
                textcoords="offset points",
                ha="left" if index == 0 else "right",
                size=style.SMALL_SIZE,
                color=style.GREY,
            )
        )
    return [_extent(figure, text) for text in texts]


def _name_slope(figure: Figure, axes: Axes, ridge: float, bandwidth: float, points: Sequence[_Point]) -> Any:
    """Write the bandwidth along the slope where it is farthest from the operators; return points that cover it [pixels]."""
    low = axes.get_xlim()[0]
    text = f"memory {_plain(bandwidth / 1e12)} TB/s"
    begin, end = (axes.transData.transform((x, x * bandwidth / _TERA)) for x in (low, ridge))
    along = (end - begin) / np.hypot(*(end - begin))
    upwards = np.array([-along[1], along[0]])
    half = style.text_width(figure, text, style.SMALL_SIZE) * figure.dpi / 2
    length = float(np.hypot(*(end - begin)))
    markers = [axes.transData.transform((point.intensity, point.rate)) for point in points]
    places = [begin + along * place for place in np.linspace(half + 24, max(length - half - 8, half + 25), 40)]
    clear = [min((abs(float((marker - place) @ along)) for marker in markers), default=0.0) for place in places]
    middle = places[int(np.argmax(np.minimum(clear, half + 25)))]
    lift = 5.0 if max(clear) > half + 8 else 13.0  # over the markers where there is no room between them
    x, y = axes.transData.inverted().transform(middle + upwards * lift)
    axes.text(
        x,
        y,
        text,
        rotation=math.degrees(math.atan2(along[1], along[0])),
        rotation_mode="anchor",
        ha="center",
        va="bottom",
        size=style.SMALL_SIZE,
    )
    across = np.linspace(lift, lift + style.SMALL_SIZE * 1.2 * figure.dpi / 72, 5)
    return np.concatenate([middle + along * step + np.outer(across, upwards) for step in np.linspace(-half, half, 40)])


def _plain(value: float) -> str:
    """Write a datasheet number with the digits that it has."""
    return f"{round(value, 2):,.10g}"


def _extent(figure: Figure, artist: Any) -> Box:
    box = artist.get_window_extent(style.renderer(figure))
    return (box.x0, box.y0, box.x1, box.y1)


def _area(share: float) -> float:
    """Return the area of a marker [points²]."""
    return 40 + 700 * share


def _draw_points(axes: Axes, points: Sequence[_Point], color: str, marker: str, hollow: bool) -> None:
    axes.scatter(
        [point.intensity for point in points],
        [point.rate for point in points],
        s=[_area(point.share) for point in points],
        marker=marker,
        facecolors="none" if hollow else color,
        edgecolors=color if hollow else style.INK,
        linewidths=2.4 if hollow else 0.8,
        zorder=5 if hollow else 4,
    )


def _ring(axes: Axes, point: _Point) -> Any:
    """Return points that cover a marker [pixels]."""
    x, y = axes.transData.transform((point.intensity, point.rate))
    radius = math.sqrt(_area(point.share)) / 2 * axes.figure.dpi / 72
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    rings = [(x + size * np.cos(angles), y + size * np.sin(angles)) for size in (0.4 * radius, 1.1 * radius)]
    return np.concatenate([np.column_stack(ring) for ring in rings])


def _labels(points: Sequence[_Point], mark: str, color: str) -> list[Label]:
    """Return a label for every cluster of operators that takes a visible share of the step, the largest first.

    ``mark`` looks like the marker, so that no one needs the colour to tell whose label it is.
    """
    found = []
    for cluster in _clusters(points):
        share = math.fsum(point.share for point in cluster)
        if share < _LABELLED:
            continue
        anchor = max(cluster, key=lambda point: point.share)
        largest = sorted((point.operator for point in cluster), key=lambda operator: -operator.time_s)
        names = dict.fromkeys(map(_short, largest)) if len(cluster) > 1 else [_single(largest[0])]
        lines = _fold([*names], 26)
        text = "\n".join([*lines[:-1], f"{lines[-1]} {style.format_share(share)}"])
        text = f"{mark} {text}"
        found.append((share, Label(anchor.intensity, anchor.rate, text, color)))
    return [label for _, label in sorted(found, key=lambda item: -item[0])]


def _short(operator: Operator) -> str:
    """Return the name of an operator's group as on a label."""
    if operator.name.startswith("experts"):
        return "experts"
    group = group_of(operator)
    return "feed-forward" if group is FEED_FORWARD else group.name.split(" (")[0]


def _single(operator: Operator) -> str:
    """Return the name of one operator as on a label: ``experts gate_up``."""
    if operator.name.startswith(("prefill_attention", "decode_attention")):
        name, _, kind = operator.name.partition(".")
        return name.replace("_", " ") + (f" ({kind.replace('_', ' ')})" if kind else "")
    return operator.name.replace("_proj", "").replace(".", " ")


def _fold(names: Sequence[str], width: int) -> list[str]:
    """Join names with commas into lines of about ``width``."""
    lines = [names[0]]
    for name in names[1:]:
        if len(lines[-1]) + len(name) + 2 <= width:
            lines[-1] += f", {name}"
        else:
            lines[-1] += ","
            lines.append(name)
    return lines


def _clusters(points: Sequence[_Point]) -> list[list[_Point]]:
    """Gather operators whose markers nearly coincide."""
    clusters: list[list[_Point]] = []
    for point in sorted(points, key=lambda each: (each.intensity, each.rate)):
        near = [cluster for cluster in clusters if any(_distance(point, other) < _NEAR for other in cluster)]
        merged = [other for cluster in near for other in cluster]
        clusters = [cluster for cluster in clusters if cluster not in near] + [[*merged, point]]
    return clusters


def _distance(one: _Point, other: _Point) -> float:
    return math.hypot(math.log10(one.intensity / other.intensity), math.log10(one.rate / other.rate))


def _legend(axes: Axes, prediction: Prediction) -> None:
    rung, rest = prediction.best, []
    for name, operators in (("decode", rung.decode_operators), ("spike", rung.operators)):
        total = sum(operator.time_s for operator in operators)
        share = sum(operator.time_s for operator in operators if operator.flops <= 0) / total
        if share >= 0.0005:
            rest.append(f"{name} {style.format_share(share)}")
    hollow = Line2D(
        [], [], marker="o", markersize=12, linestyle="", markerfacecolor="none", color=style.BLUE, markeredgewidth=2.4
    )
    filled = Line2D([], [], marker="D", markersize=11, linestyle="", color=style.VERMILLION, markeredgecolor=style.INK)
    handles = [hollow, filled]
    labels = [
        f"decode step, {style.format_seconds(rung.decode_step_s)}",
        f"spike step, {style.format_seconds(prediction.spike.height_s)}",
    ]
    if rest:
        handles.append(Line2D([], [], linestyle=""))
        labels.append(f"no FLOPs, not shown:\n{', '.join(rest)}")
    axes.legend(
        handles,
        labels,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.1),
        title="area and %: share of the step's time",
        title_fontsize=style.SMALL_SIZE,
        alignment="left",
    )
