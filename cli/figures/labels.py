"""Placing labels next to what they name, so that none covers another, a marker or a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.cli.figures import style

Box = tuple[float, float, float, float]
"""Left, bottom, right, top [pixels]."""


class Label(NamedTuple):
    """A text for a point of the axes."""

    x: float
    y: float
    text: str
    color: str = style.INK
    size: float = style.SMALL_SIZE


def place_labels(
    figure: Figure, axes: Axes, labels: Sequence[Label], points: Any, taken: Sequence[Box] = ()
) -> list[Box]:
    """Write labels where they cover nothing, near their points, with a leader line where they are not right beside them.

    Every label takes the nearest free place around its point; where there is none, the place that covers least.

    Args:
        figure, axes: laid out already (:func:`costmodel.cli.figures.style.settle`).
        labels: in order of importance.
        points: what must stay uncovered, an array of (x, y) [pixels].
        taken: what else must stay uncovered [pixels].

    Returns:
        The boxes of the labels [pixels].
    """
    boxes = list(taken)
    placed: list[Box] = []
    frame = axes.get_window_extent()
    for label in labels:
        anchor = axes.transData.transform((label.x, label.y))
        lines = label.text.splitlines()
        wide = max(style.text_width(figure, line, label.size) for line in lines) * figure.dpi + 16
        high = len(lines) * label.size * 1.3 * figure.dpi / 72 + 2
        places = _places(anchor, wide, high, figure.dpi / 72)
        bounds = (*frame.min, *frame.max)
        box = min(places, key=lambda place: _cost(place, anchor, bounds, boxes, points))[1]
        boxes.append(box)
        placed.append(box)
        points = np.concatenate([points, _leader(anchor, box)])
        _write(axes, label, anchor, box)
    return placed


def _places(anchor: Any, wide: float, high: float, point: float) -> list[tuple[float, Box]]:
    """Return (distance, box) around a point, for some distances and directions."""
    found = []
    for distance in (9, 13, 18, 24, 31, 40, 50, 62, 76, 92, 110, 130, 155, 185):
        for step in range(36):
            angle = step * math.pi / 18
            x = anchor[0] + math.cos(angle) * (distance * point + wide / 2)
            y = anchor[1] + math.sin(angle) * (distance * point + high / 2)
            found.append((float(distance), (x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)))
    return found


def _cost(place: tuple[float, Box], anchor: Any, frame: Box, boxes: Sequence[Box], points: Any) -> float:
    """Return how bad a place is: what it or its leader line covers counts far more than how far away it is."""
    distance, (left, bottom, right, top) = place
    outside = max(frame[0] - left, 0) + max(frame[1] - bottom, 0) + max(right - frame[2], 0) + max(top - frame[3], 0)
    overlap = sum(
        max(min(right, other[2]) - max(left, other[0]), 0) * max(min(top, other[3]) - max(bottom, other[1]), 0)
        for other in boxes
    )
    leader = _leader(anchor, place[1])
    crossed = sum(_inside(leader, box) for box in boxes)
    return float(1e4 * outside + 1e2 * overlap + 300 * (_inside(points, place[1]) + crossed) + distance)


def _inside(points: Any, box: Box) -> int:
    """Count the points within a box."""
    left, bottom, right, top = box
    x, y = points[:, 0], points[:, 1]
    return int(np.count_nonzero((x > left) & (x < right) & (y > bottom) & (y < top)))


def _nearest(anchor: Any, box: Box) -> tuple[float, float]:
    """Return the point of a box that is nearest to ``anchor``."""
    left, bottom, right, top = box
    return (min(max(anchor[0], left), right), min(max(anchor[1], bottom), top))


def _leader(anchor: Any, box: Box) -> Any:
    """Return points along the leader line, without its ends."""
    return np.linspace(anchor, _nearest(anchor, box), 24)[3:-1]


def _write(axes: Axes, label: Label, anchor: Any, box: Box) -> None:
    left, bottom, right, top = box
    middle = ((left + right) / 2, (bottom + top) / 2)
    nearest = _nearest(anchor, box)
    back = axes.transData.inverted().transform
    if math.dist(nearest, anchor) > 0.2 * axes.figure.dpi:
        ends = np.array([back(anchor), back(nearest)])
        axes.plot(ends[:, 0], ends[:, 1], color=style.GREY, linewidth=0.9, zorder=2.5)
    x, y = back(middle)
    axes.text(
        x,
        y,
        label.text,
        ha="center",
        va="center",
        size=label.size,
        color=label.color,
        linespacing=1.2,
        zorder=6,
    )


def trace(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> Any:
    """Return points every few pixels along a line in data coordinates [pixels]."""
    corners = axes.transData.transform(np.column_stack([xs, ys]))
    pieces = [corners[:1]]
    for begin, end in pairwise(corners):
        count = max(int(np.hypot(*(end - begin)) / 4), 1)
        pieces.append(begin + (end - begin) * np.linspace(0, 1, count + 1)[1:, None])
    return np.concatenate(pieces)


def spread(levels: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Return levels at least ``distance`` apart within [low, high], each as near its own as the others allow; order is kept."""
    order = sorted(range(len(levels)), key=lambda index: levels[index])
    clusters: list[list[float]] = []  # [sum of wanted middles, members]
    for index in order:
        clusters.append([levels[index], 1.0])
        while len(clusters) > 1 and _top(clusters[-2], distance) > _bottom(clusters[-1], distance):
            total, members = clusters.pop()
            clusters[-1] = [clusters[-1][0] + total, clusters[-1][1] + members]
    placed: list[float] = []
    for total, members in clusters:
        middle = total / members
        placed += [middle + (index - (members - 1) / 2) * distance for index in range(int(members))]
    for index in range(len(placed)):
        placed[index] = max(placed[index], low + index * distance)
    for index in range(len(placed)):
        placed[-1 - index] = min(placed[-1 - index], high - index * distance)
    result = [0.0] * len(levels)
    for place, index in zip(placed, order, strict=True):
        result[index] = place
    return result


def _top(cluster: list[float], distance: float) -> float:
    return cluster[0] / cluster[1] + cluster[1] * distance / 2


def _bottom(cluster: list[float], distance: float) -> float:
    return cluster[0] / cluster[1] - cluster[1] * distance / 2
