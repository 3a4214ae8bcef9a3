"""The figure of ``costmodel measure --plot``: takes from a measurement what it shows."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from costmodel.cli.figures import draw_measured
from costmodel.cli.figures.measured import Half, Measured
from costmodel.cli.figures.style import creator, format_seconds
from costmodel.cli.text import percent, plural
from costmodel.validation.measurements.types import Measurement, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "prefill": "whole prompt",
    "chunk": "chunk on a context",
    "mixed": "beside decodes",
    "served": "served",
    "decode": "decode",
}
"""Purposes of steps with a prompt, as people read them."""


def draw(found: Measurement) -> Figure:
    """Return the figure.

    Raises:
        InputError: there is no step.
    """
    decodes = sorted((step for step in found.steps if not step.chunks), key=lambda step: len(step.decodes))
    prompts = [step for step in found.steps if step.chunks]
    groups = _groups(decodes)
    halves = (
        Half(
            "decodes alone, by number of sequences",
            "context of each sequence (tokens)",
            [_point(step, groups[len(step.decodes)], statistics.fmean(step.decodes)) for step in decodes],
        ),
        Half(
            "steps with a prompt",
            "new tokens of the prompts",
            [_point(step, NAMES[step.purpose], sum(new for new, _ in step.chunks)) for step in prompts],
        ),
    )
    return draw_measured(halves, _title(found), _foot(found))


def _point(step: Step, series: str, tokens: float) -> Measured:
    return Measured(series, max(tokens, 1.0), step.seconds, step.spread, step.held_out)


def _groups(decodes: list[Step]) -> dict[int, str]:
    """Return the name of the group of each number of sequences: up to a power of four, as the plan's sweep goes."""
    held: dict[int, list[int]] = {}
    for count in sorted({len(step.decodes) for step in decodes}):
        most = 1
        while most < count and most < 4**6:
            most *= 4
        held.setdefault(most, []).append(count)
    return {
        count: f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"
        for counts in held.values()
        for count in counts
    }


def _title(found: Measurement) -> str:
    if not found.steps:
        return "Nothing was measured"
    shortest, longest = (end(step.seconds for step in found.steps) for end in (min, max))
    spread = statistics.median(step.spread / step.seconds for step in found.steps)
    return f"Steps take {format_seconds(shortest)} to {format_seconds(longest)}; repeats of one differ by {percent(spread)}"


def _foot(found: Measurement) -> str:
    engine, machine = found.engine, found.machine
    parts = [
        f"{found.model.name} ({found.model.dtype})",
        f"{engine.name} {engine.version} on {machine.device}",
        plural(len(found.steps), "kind of step", "kinds of steps"),
        "CPU time" if found.clock == "cpu" else "wall time",
        "bars: median absolute deviation",
    ]
    return " · ".join([*parts, creator()])
