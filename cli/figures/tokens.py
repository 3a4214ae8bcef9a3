"""Figure: every token of every stream as a tick, around one injected prompt, to scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from costmodel.cli.figures import style
from costmodel.hardware.errors import InputError

MOST_ROWS: Final = 32
"""Of more streams, some are drawn."""


class Injected(NamedTuple):
    """The prompt in the figure, in seconds since the run began."""

    sent: float
    first: float
    spike: tuple[float, float] | None = None
    """When its spike began and ended."""
    height: float | None = None
    """Longest gap."""
    steps: int = 1
    """High gaps."""


def draw_tokens(
    streams: Sequence[Sequence[float]], injected: Injected, window: tuple[float, float], title: str, foot: str
) -> Figure:
    """Draw when tokens came.

    Args:
        streams: token times of each [s].
        injected: the prompt.
        window: what is shown [s].
        title: the finding.
        foot: what the figure is about.

    Raises:
        InputError: no stream has a token in the window.
    """
    stride = -(-len(streams) // MOST_ROWS)
    rows = [[moment for moment in times if window[0] <= moment <= window[1]] for times in streams][::stride]
    if not any(rows):
        raise InputError("no stream has a token around the prompt: there is nothing to draw")
    unit, name = style.time_unit(max(abs(window[0] - injected.sent), window[1] - injected.sent))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, title, foot)
        entries = [
            (Line2D([], [], color=style.BLUE, marker="|", linestyle="", markersize=14, markeredgewidth=2), "token")
        ]
        entries.append((Line2D([], [], color=style.GREY, linestyle=style.DOTTED), "prompt sent"))
        entries.append((Line2D([], [], color=style.INK, linestyle=style.DASHED), "its first token"))
        style.add_legend(figure, [handle for handle, _ in entries], [text for _, text in entries], len(entries))
        axes = figure.subplots()
        if injected.spike is not None:
            begin, end = ((moment - injected.sent) / unit for moment in injected.spike)
            axes.axvspan(begin, end, facecolor=style.PALE, edgecolor="none", zorder=0)
        axes.eventplot(
            [[(moment - injected.sent) / unit for moment in times] for times in rows],
            colors=style.BLUE,
            linelengths=0.8,
            linewidths=1.8,
        )
        axes.axvline(0, color=style.GREY, linestyle=style.DOTTED, linewidth=1.6)
        axes.axvline((injected.first - injected.sent) / unit, color=style.INK, linestyle=style.DASHED, linewidth=1.4)
        axes.set_xlim((window[0] - injected.sent) / unit, (window[1] - injected.sent) / unit)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        shown = list(range(0, len(rows), max(-(-len(rows) // 8), 1)))
        axes.set_yticks(shown, [str(row * stride + 1) for row in shown])
        axes.set_ylabel("stream")
        axes.set_xlabel(f"time since the prompt was sent ({name})")
        if injected.spike is not None and injected.height is not None:
            begin, end = ((moment - injected.sent) / unit for moment in injected.spike)
            _say(axes, (begin + end) / 2, len(rows), injected)
        style.settle(figure)
    return figure


def _say(axes: Axes, middle: float, rows: int, injected: Injected) -> None:
    """Say how long the streams wait: in the empty middle of one gap, or above several, where no token is hidden."""
    assert injected.height is not None
    longest = style.format_seconds(injected.height)
    if injected.steps <= 1:
        around = {"facecolor": style.PALE, "edgecolor": "none", "pad": 3}
        axes.text(
            middle, (rows - 1) / 2, f"no token for\n{longest}", ha="center", va="center", size=style.TEXT_SIZE, weight="bold", bbox=around,
        )  # fmt: skip
        return
    axes.annotate(
        f"{injected.steps} gaps of up to {longest}", (middle, 1), (0, 6), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="center", va="bottom", size=style.TEXT_SIZE, weight="bold", annotation_clip=False,
    )  # fmt: skip
