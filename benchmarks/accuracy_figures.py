"""Figures of docs/accuracy.md: predicted against measured, and errors by GPU, model, engine and load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from end_to_end import Predicted

from costmodel.cli.figures import style
from costmodel.cli.figures.saving import save_figure
from costmodel.validation.datasets.end_to_end import EndToEndRow
from costmodel.validation.fitting.closed_loops import Loops

ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}
LOOKS = {"vllm": (style.BLUE, "o"), "trtllm": (style.ORANGE, "^"), "sglang": (style.BLACK, "x")}
EDGE = 100
"""Largest error that the figure of errors shows [%]; of bars beyond it, the end is written."""
FOOT = "rows of aiconfigurator-core 0.12 that the fit did not see (random thirds) · python benchmarks/accuracy.py"


def draw_scatter(loops: Loops, predicted: Predicted, path: Path) -> None:
    """Draw predicted against measured TPOT and TTFT."""
    with style.styled():
        figure = style.new_figure()
        errors = [
            np.median(np.abs(values / measured - 1))
            for values, measured in ((predicted.tpot, loops.tpot), (predicted.ttft, loops.ttft))
        ]
        within = [f"{name} within {100 * error:.1f} %" for name, error in zip(("TPOT", "TTFT"), errors, strict=True)]
        title = f"Predicted against measured: {' and '.join(within)} for half of {len(loops):,} rows"
        style.add_frame(figure, title, FOOT)
        axes = figure.subplots(1, 2)
        engines = np.array([row.engine for row in loops.rows])
        for ax, name, values, measured in (
            (axes[0], "TPOT", predicted.tpot, loops.tpot),
            (axes[1], "TTFT", predicted.ttft, loops.ttft),
        ):
            low, high = float(measured.min()) * 0.7e3, float(measured.max()) * 1.4e3
            ax.plot([low, high], [low, high], color=style.INK, linewidth=1.2, zorder=4)
            for factor in (0.8, 1.25):
                ax.plot(
                    [low, high], [low * factor, high * factor], color=style.GREY, linewidth=1, linestyle="--", zorder=4
                )
            for engine, (color, marker) in LOOKS.items():
                chosen = engines == engine
                ax.scatter(
                    measured[chosen] * 1e3, values[chosen] * 1e3, s=14, c=color, marker=marker, alpha=0.55, linewidths=0.8,
                    label=ENGINES[engine],
                )  # fmt: skip
            ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
            ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if low <= tick <= high]
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
                axis.set_ticks([], minor=True)
            ax.grid(True)
            ax.set_xlabel(f"measured {name} (ms)")
            ax.set_ylabel(f"predicted {name} (ms)")
        axes[0].legend(loc="upper left", markerscale=1.8)
        axes[1].text(
            0.97, 0.03, "dashed: 20 % too fast, 25 % too slow", transform=axes[1].transAxes, ha="right", fontsize=12
        )
        save_figure(figure, path, force=True)


def draw_errors(loops: Loops, predicted: Predicted, path: Path) -> None:
    """Draw the middle and the central 80 % of signed errors by GPU, engine, model and clients."""
    groups: list[tuple[str, Callable[[EndToEndRow], Any]]] = [
        ("GPU", lambda row: row.gpu),
        ("engine", lambda row: ENGINES[row.engine]),
        ("model", lambda row: row.family),
        ("clients", _load),
    ]
    with style.styled():
        figure = style.new_figure(height=style.HEIGHT * 1.25)
        style.add_frame(
            figure, "Where closed loops are predicted too fast or too slow: median and central 80 % of the errors", FOOT
        )
        left, right = figure.subplots(1, 2, sharey=True)
        lines = _lines(loops, groups)
        places = np.arange(len(lines))[::-1]
        for ax, name, values, measured in (
            (left, "TPOT", predicted.tpot, loops.tpot),
            (right, "TTFT", predicted.ttft, loops.ttft),
        ):
            error = (values / measured - 1) * 100
            ax.axvline(0, color=style.INK, linewidth=1.2)
            for place, (_, chosen) in zip(places, lines, strict=True):
                if chosen is None:
                    continue
                low, middle, high = np.quantile(error[chosen], [0.1, 0.5, 0.9])
                ax.plot([low, high], [place, place], color=style.SKY, linewidth=5, solid_capstyle="butt")
                ax.plot([middle], [place], marker="D", color=style.INK, markersize=6)
                if high > EDGE:  # the bar goes on beyond the panel: say how far
                    ax.text(
                        EDGE + 1, place, f"▸ {high:+.0f}", ha="left", va="center", fontsize=11, color=style.INK, clip_on=False
                    )  # fmt: skip
            ax.set_xlim(-EDGE, EDGE)
            ax.set_xticks([-80, -40, 0, 40, 80], ["−80", "−40", "0", "+40", "+80"])
            ax.set_xlabel(f"error of predicted {name} (%)")
            ax.grid(True, axis="x")
        left.set_yticks(places, [label for label, _ in lines], fontsize=12)
        for text, (_, chosen) in zip(left.get_yticklabels(), lines, strict=True):
            if chosen is None:
                text.set_fontweight("bold")
        save_figure(figure, path, force=True)


def _lines(loops: Loops, groups: Sequence[tuple[str, Callable[[EndToEndRow], Any]]]) -> list[tuple[str, Any]]:
    """Return the lines of the figure: a heading (without rows), then a label and a mask for each value."""
    made: list[tuple[str, Any]] = []
    for heading, key in groups:
        made.append((heading, None))
        values = [key(row) for row in loops.rows]
        for value in sorted(set(values)):
            chosen = np.array([each == value for each in values])
            label = value[1] if isinstance(value, tuple) else value
            made.append((f"{label} ({int(chosen.sum()):,})", chosen))
    return made


def _load(row: EndToEndRow) -> tuple[int, str]:
    """Return a band of concurrent clients, with its place in the order."""
    bands = ((8, "1–8"), (16, "9–16"), (32, "17–32"), (64, "33–64"), (128, "65–128"))
    return next(((index, name) for index, (most, name) in enumerate(bands) if row.concurrency <= most), (9, "over 128"))
