"""What all figures share: palette, fonts, size, title and footer, and how numbers are written.

Figures are made for a slide of 16:9. Everything that a colour tells is also told by a hatch, a marker, a line style or a label.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from costmodel.cli import text
from costmodel.documents import Prediction

BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
PALETTE: Final = (BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE)
"""Okabe and Ito's colours, which the colour-blind can tell apart."""

INK: Final = "#1A1A1A"
GREY: Final = "#555555"
PALE: Final = "#E4E4E4"

LOOKS: Final = (
    (VERMILLION, "-", "o"),
    (BLUE, (0, (6, 2)), "s"),
    (GREEN, (0, (3, 1.5)), "^"),
    (PURPLE, "-.", "D"),
    (ORANGE, (0, (1, 1)), "v"),
    (BLACK, (0, (5, 1, 1, 1, 1, 1)), "P"),
    (SKY, "--", "X"),
    (GREY, ":", "*"),
)
"""Colour, line style and marker of each curve."""

TITLE_SIZE: Final = 21
TEXT_SIZE: Final = 15
SMALL_SIZE: Final = 14
FOOTER_SIZE: Final = 11

DOTTED: Final = (0, (2, 3))
DASHED: Final = (0, (7, 4))
MOST_MARKS: Final = 100
"""More moments than this are not marked one by one."""

WIDTH: Final = 12.8
HEIGHT: Final = 7.2
"""Inches; 16:9."""

_MARGIN: Final = 0.25
_PRINTED = 1.025
"""How much wider small text is at the resolution of a file than at that at which it is measured, at most: glyphs are whole pixels."""
_TITLE_LINE: Final = TITLE_SIZE * 1.25 / 72
_FOOTER_LINE: Final = 0.32

RC: Final[dict[str, Any]] = {
    "font.family": ["DejaVu Sans"],  # comes with Matplotlib, so that a figure looks alike everywhere
    "font.size": TEXT_SIZE,
    "axes.titlesize": 16,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": TEXT_SIZE,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.9,
    "legend.fontsize": SMALL_SIZE,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a model's name is a dollar sign
    "xtick.labelsize": SMALL_SIZE,
    "ytick.labelsize": SMALL_SIZE,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "costmodel",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw with Matplotlib's defaults and the settings of these figures, whatever the user's own settings are."""
    with matplotlib.style.context(["default", RC]):
        yield


def mark(color: str, size: float, hollow: bool) -> dict[str, Any]:
    """Return how a marker is drawn: filled with a white rim, or hollow."""
    return {
        "markersize": size,
        "markerfacecolor": "white" if hollow else color,
        "markeredgecolor": color if hollow else "white",
        "markeredgewidth": 1.6 if hollow else 0.7,
    }


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """Return an empty figure with its own canvas; no display and no global state.

    Args:
        width, height: size [inches].
    """
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_frame(figure: Figure, title: str, footer: str) -> None:
    """Write title and footer, and let the axes share what is left.

    Args:
        figure: new figure.
        title: the finding, one sentence; it is broken into lines that fit.
        footer: what the figure is about, small.
    """
    width, height = figure.get_size_inches()
    left = _MARGIN / width
    lines = wrap(figure, title, TITLE_SIZE, width - 2 * _MARGIN, bold=True)
    top = height - 0.18
    figure.text(
        left,
        top / height,
        "\n".join(lines),
        size=TITLE_SIZE,
        weight="bold",
        va="top",
        linespacing=1.2,
    )
    top -= len(lines) * _TITLE_LINE + 0.06
    figure.text(
        left,
        0.1 / height,
        shorten(figure, footer, FOOTER_SIZE, (width - 2 * _MARGIN) / _PRINTED),
        size=FOOTER_SIZE,
        color=GREY,
        va="bottom",
    )
    figure.set_label(title)
    bottom = _FOOTER_LINE / height
    rect = (left, bottom, 1 - 2 * left, (top - 0.08) / height - bottom)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=rect, w_pad=0.04, h_pad=0.04))


def settle(figure: Figure) -> None:
    """Lay the axes out and keep them there, so that labels can be placed by what they would cover."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def renderer(figure: Figure) -> RendererAgg:
    """Return what measures texts."""
    canvas: Any = figure.canvas if isinstance(figure.canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    found: RendererAgg = canvas.get_renderer()
    return found


def text_width(figure: Figure, text: str, size: float, bold: bool = False) -> float:
    """Return the width of one line of text [inches]."""
    drawn = figure.text(0, 0, text, size=size, weight="bold" if bold else "normal")
    width = float(drawn.get_window_extent(renderer(figure)).width) / figure.dpi
    drawn.remove()
    return width


def wrap(figure: Figure, text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Break a text into the fewest lines that fit ``width`` [inches]: at a pause near the middle, else about equally long."""

    def fits(lines: Sequence[str]) -> bool:
        return all(text_width(figure, line, size, bold) <= width for line in lines)

    if fits([text]):
        return [text]
    for pause in ("; ", ", "):
        first, found, rest = text.partition(pause)
        halves = [first + pause.rstrip(), rest]
        if found and max(map(len, halves)) <= 0.65 * len(text) and fits(halves):
            return halves
    tied = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    for count in range(2, 6):
        lines = textwrap.wrap(tied, -(-len(text) // count) + 8)
        if len(lines) <= count and fits(lines):
            break
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def shorten(figure: Figure, text: str, size: float, width: float, bold: bool = False) -> str:
    """Take out the middle of one line of text that is wider than ``width`` [inches]."""
    shown, kept = text, len(text)
    while text_width(figure, shown, size, bold) > width and kept > 20:
        kept -= 4
        shown = f"{text[: kept // 2]} … {text[-(kept // 2) :]}"
    return shown


def creator() -> str:
    """Return ``costmodel`` and its version."""
    try:
        return f"costmodel {version('llm-costmodel')}"
    except PackageNotFoundError:
        return "costmodel"


def short_gpu(prediction: Prediction) -> str:
    """Return the GPUs of a prediction: ``8 × H200 SXM 141GB``."""
    name = prediction.gpu.name.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").removeprefix("AMD ")
    return f"{prediction.gpu.count} × {name}" if prediction.gpu.count > 1 else name


def rung_name(prediction: Prediction) -> str:
    """Return the headline rung in words."""
    if prediction.headline == "calibrated" and prediction.calibration:
        return f"calibrated rung ({prediction.calibration})"
    return f"{prediction.headline} rung"


def footer(prediction: Prediction, rung: str | None = None) -> str:
    """Return the footer of a figure about one prediction.

    Args:
        prediction: what the figure shows.
        rung: the rung in words; the headline rung by default.
    """
    return " · ".join([prediction.model.name, short_gpu(prediction), rung or rung_name(prediction), creator()])


def add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    """Write a legend in rows below the title, and move the axes out of its way.

    Args:
        figure: after :func:`add_frame`.
        handles, names: entries, in reading order.
        columns: entries per row.
    """
    rows = -(-len(names) // columns)
    order = [row * columns + column for column in range(columns) for row in range(rows)]  # columns are filled first
    order = [index for index in order if index < len(names)]
    engine = figure.get_layout_engine()
    if not isinstance(engine, ConstrainedLayoutEngine):
        raise TypeError("a legend goes below the title, before the axes are settled")
    left, bottom, width, height = engine.get()["rect"]
    legend = figure.legend(
        [handles[index] for index in order],
        [names[index] for index in order],
        loc="upper left",
        bbox_to_anchor=(left, bottom + height),
        ncols=columns,
        handlelength=2.2,
        handleheight=1.3,
        columnspacing=1.4,
        borderaxespad=0.0,
        borderpad=0.1,
    )
    legend.set_in_layout(False)
    taken = legend.get_window_extent(renderer(figure)).height / figure.dpi / figure.get_size_inches()[1]
    engine.set(rect=(left, bottom, width, height - taken - 0.015))


def significant(value: float) -> str:
    """Write a number with three significant digits, thousands apart: 0.0515, 5.15, 131, 1,050."""
    return text.significant(value, 3)


def format_seconds(seconds: float) -> str:
    """Write a time with three significant digits and the unit that suits it: ``16.2 µs``, ``5.15 ms``, ``1.05 s``."""
    return text.seconds(seconds, 3)


def format_limit(seconds: float) -> str:
    """Write a time that someone chose, with the digits that it has: ``50 ms``."""
    factor, unit = time_unit(seconds) if seconds < 1 else (1.0, "s")
    return f"{seconds / factor:,.10g} {unit}"


def format_ratio(ratio: float) -> str:
    """Write how many times: ``25`` or, below 10, ``2.0``."""
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def format_share(share: float) -> str:
    """Write a share of a whole as a percentage."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def time_unit(longest: float) -> tuple[float, str]:
    """Return the unit of an axis that reaches to ``longest`` seconds: seconds per unit, and its name."""
    if longest >= 10:
        return 1.0, "s"
    return (1e-3, "ms") if longest >= 1e-3 else (1e-6, "µs")


def nice_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def multiples(step: float, low: float, high: float) -> list[float]:
    """Return the multiples of ``step`` within [low, high]."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return at most about ``count`` round numbers within [low, high]."""
    return multiples(nice_step((high - low) / count), low, high)


def decades(low: float, high: float) -> list[float]:
    """Return the ticks 1, 2 and 5 of every power of ten within [low, high]; without the 2 and 5 where they are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{factor}e{power}") for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 12:
            break
    return ticks


def plain(value: float, step: float | None = None) -> str:
    """Write a tick without needless digits, with a true minus sign; with ``step``, all ticks get as many decimals as it needs."""
    decimals = 0 if step is None else max(-math.floor(math.log10(step) + 1e-9), 0)
    text = f"{value:,.10g}" if decimals == 0 else f"{value:,.{decimals}f}"
    return text.replace("-", "−")


def mark_times(axes: Axes, times: Sequence[float], tops: bool = True) -> None:
    """Mark when something happened with dotted lines, and triangles on the time axis; nothing where the marks would be a grey area.

    Args:
        axes: with time along x.
        times: [s].
        tops: with triangles.
    """
    shown = list(dict.fromkeys(times))
    if not shown or len(shown) > MOST_MARKS:
        return
    across = axes.get_xaxis_transform()
    axes.vlines(shown, 0, 1, color=GREY, linewidth=0.9, linestyle=DOTTED, zorder=1, transform=across)
    if tops:
        axes.plot(shown, [0.0] * len(shown), "^", color=INK, markersize=9, clip_on=False, zorder=5, transform=across)


def luminance(color: str) -> float:
    """Return how light ``#RRGGBB`` is, from 0 (black) to 1 (white): relative luminance as in WCAG 2."""
    channels = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(color: str) -> str:
    """Return the text colour, black or white, with the better contrast on ``color``."""
    lightness = luminance(color) + 0.05
    return "white" if 1.05 / lightness > lightness / 0.05 else BLACK
