"""Figure: a request's way through the server: its stages above, the server's steps below, and the KV blocks that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.cli.text import plural
from costmodel.explaining.documents import RequestExplanation

ROWS = (
    ("tokenise", "tokenise", style.PURPLE, ""),
    ("queue", "queue", style.GREY, ""),
    ("prefill", "prefill", style.VERMILLION, "//"),
    ("decode", "decode loop", style.BLUE, ""),
    ("stream", "stream", style.SKY, ".."),
    ("free", "free or keep", style.GREEN, ""),
)
"""Stage, name, colour and hatch of each row, from the top."""
KINDS = (
    ("of others alone", style.PALE, ""),
    ("with its prompt", style.VERMILLION, "//"),
    ("with a token of its answer", style.BLUE, ""),
)


def draw_request(document: RequestExplanation, foot: str) -> Figure:
    """Draw a request's way against time.

    Args:
        document: what happens.
        foot: what the figure is about.
    """
    factor, unit = style.time_unit(document.e2e_s)
    with style.styled():
        figure = style.new_figure(height=8.6)
        style.add_frame(figure, _title(document), foot)
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for _, color, hatch in KINDS]
        style.add_legend(figure, handles, [f"step {name}" for name, *_ in KINDS], 3)
        above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=(1.5, 1, 1))
        _stages(above, document, factor)
        _steps(middle, document, factor)
        _blocks(below, document, factor)
        end = document.e2e_s / factor
        below.set_xlim(-0.01 * end, 1.17 * end)
        ticks = style.nice_ticks(0, end, 8)
        below.set_xticks(ticks, [style.plain(tick, ticks[1] - ticks[0]) for tick in ticks])
        below.set_xlabel(f"time since the request was sent ({unit})")
        figure.align_ylabels([middle, below])
        style.settle(figure)
    return figure


def _title(document: RequestExplanation) -> str:
    first = style.format_seconds(document.ttft_s)
    rest = "" if document.tpot_s is None else f", then one every {style.format_seconds(document.tpot_s)}"
    return (
        f"{plural(document.prompt_tokens, 'token')} of prompt: the first of {document.output_tokens:,} tokens after {first}{rest}; "
        f"{plural(document.kv_blocks, 'KV block')} at its end"
    )


def _stages(axes: Axes, document: RequestExplanation, factor: float) -> None:
    stages = {stage.name: stage for stage in document.stages}
    for place, (name, _, color, hatch) in enumerate(ROWS):
        stage = stages[name]  # type: ignore[index]
        start, end = stage.start_s / factor, (stage.start_s + stage.duration_s) / factor
        if stage.duration_s > 0:
            axes.barh(place, end - start, 0.66, start, color=color, hatch=hatch, edgecolor="white", linewidth=0.6)
        else:
            axes.plot(start, place, "D", color=color, markersize=9)
        text = {"stream": plural(document.output_tokens, "token"), "free": _kept(document)}
        shown = text.get(name, style.format_seconds(stage.duration_s))
        inside, gap = end - start > 0.3 * document.e2e_s / factor, 0.012 * document.e2e_s / factor
        at, side = ((start + end) / 2, "center") if inside else (end + gap, "left")
        if name == "free":  # nothing else is in its row
            at, side = start - 1.6 * gap, "right"
        axes.text(
            at, place, shown, va="center", ha=side, size=style.SMALL_SIZE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5} if inside else None,
        )  # fmt: skip
    axes.set_yticks(range(len(ROWS)), [name for _, name, *_ in ROWS])
    axes.set_ylim(len(ROWS) - 0.3, -0.5)
    axes.tick_params(axis="y", length=0)


def _kept(document: RequestExplanation) -> str:
    """Return what becomes of the blocks: how many of all stay cached."""
    if not document.kept_blocks:
        return f"{plural(document.kv_blocks, 'block')} free"
    return f"{document.kept_blocks:,} of {document.kv_blocks:,} blocks stay cached until their room is needed"


def _steps(axes: Axes, document: RequestExplanation, factor: float) -> None:
    """Draw each step as wide and as high as it takes."""
    in_ms = [step.duration_s * 1e3 for step in document.steps]
    kinds: dict[str, list[Any]] = {name: [] for name, *_ in KINDS}
    first = document.ttft_s
    for step, height in zip(document.steps, in_ms, strict=True):
        start, end = step.start_s / factor, (step.start_s + step.duration_s) / factor
        name = KINDS[0 if not step.own_tokens else 1 if step.start_s + step.duration_s <= first * (1 + 1e-9) else 2][0]
        kinds[name].append([(start, 0), (start, height), (end, height), (end, 0)])
    edge = 0.5 if len(document.steps) <= 120 else 0.0
    for name, color, hatch in KINDS:
        axes.add_collection(
            PolyCollection(kinds[name], facecolor=color, hatch=hatch or None, edgecolor="white", linewidth=edge),
            autolim=False,
        )
    top = 1.2 * max(in_ms)
    axes.set_ylim(0, top)
    ticks = style.nice_ticks(0, top, 4)
    axes.set_yticks(ticks, [style.plain(tick, ticks[1] - ticks[0]) for tick in ticks])
    axes.set_ylabel("steps (ms)")
    axes.grid(True, axis="y")


def _blocks(axes: Axes, document: RequestExplanation, factor: float) -> None:
    times = np.array([step.start_s for step in document.steps] + [document.e2e_s]) / factor
    held = np.array([step.own_kv_blocks for step in document.steps] + [0], float)
    axes.fill_between(times, held, step="post", color=style.GREEN, alpha=0.3, linewidth=0)
    axes.plot(times, held, drawstyle="steps-post", color=style.GREEN, linewidth=1.8)
    top = 1.3 * max(float(held.max()), 1.0)
    axes.set_ylim(0, top)
    ticks = sorted({float(round(tick)) for tick in style.nice_ticks(0, top, 4)})
    axes.set_yticks(ticks, [style.plain(tick) for tick in ticks])
    axes.text(
        float(times[-1]),
        float(held.max()),
        f" {document.kv_blocks:,}\n at its end",
        va="center",
        ha="left",
        size=style.SMALL_SIZE,
    )
    axes.set_ylabel("its KV blocks")
    axes.grid(True, axis="y")
