"""Figure (a): a few decode steps, the step or steps that carry the prompt, and who waits meanwhile, to scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from costmodel.cli.figures import style
from costmodel.cli.text import count, plural
from costmodel.documents import Prediction

ALL_SHOWN: Final = 40
"""Up to so many mixed steps are all drawn; of more, the first and the last few."""
_BAR_INK: Final = style.ink_on(style.VERMILLION)
_SIDE: Final = 0.2
"""Decode steps on either side take at least this much of the time of the mixed steps shown."""
_FEWEST_DECODES: Final = 6
_MOST_DECODES: Final = 400
"""More decode steps than this are drawn as one band: single ones would be too thin to see."""
_ROWS: Final = 5
_HEADROOM: Final = 1.45
"""Height of the upper panel over that of its tallest step; the brackets need the rest."""


class _Shown(NamedTuple):
    """What is drawn, in seconds since the first mixed step began; ``hidden`` seconds are cut out at ``cut``."""

    decode: float
    decodes: int
    head: list[float]
    tail: list[float]
    skipped: int
    hidden: float
    cut: float
    gap: float

    @property
    def mixed_end(self) -> float:
        """Where the last mixed step ends on the page."""
        return self.cut + self.gap + sum(self.tail)

    @property
    def left(self) -> float:
        """Where the first decode step begins."""
        return -self.decodes * self.decode

    @property
    def right(self) -> float:
        """Where the last decode step ends on the page."""
        return self.mixed_end + self.decodes * self.decode

    def mixed(self) -> list[tuple[float, float]]:
        """Return (begin on the page, seconds) of the mixed steps that are drawn."""
        found = _follow(0.0, self.head)
        return found + _follow(self.cut + self.gap, self.tail)

    def decoding(self) -> list[tuple[float, float]]:
        """Return (begin on the page, seconds) of the decode steps."""
        steps = [self.decode] * self.decodes
        return _follow(self.left, steps) + _follow(self.mixed_end, steps)


def draw_timeline(prediction: Prediction, steps_s: Sequence[float]) -> Figure:
    """Draw steps and tokens against time, to scale.

    Above, each step is as wide and as high as it takes; below, each stream has a tick where it receives a token.

    Args:
        prediction: what is drawn, on its headline rung.
        steps_s: the mixed steps of the prompt in order, on the same rung
            (:func:`costmodel.rungs.mixed_step_times`) [s].

    Raises:
        ValueError: ``steps_s`` are not the steps of this prediction.
    """
    spike = prediction.spike
    if len(steps_s) != spike.chunks or not math.isclose(max(steps_s), spike.height_s, rel_tol=1e-6):
        raise ValueError(
            f"{len(steps_s)} steps of up to {max(steps_s, default=0.0):g} s are not those of the prediction: "
            f"{spike.chunks} of up to {spike.height_s:g} s"
        )
    shown = _choose(prediction.best.decode_step_s, list(steps_s))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _title(prediction), style.footer(prediction))
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.35, 1))
        _draw_steps(above, prediction, shown)
        _draw_streams(below, prediction, shown)
        _label_time(below, shown)
        style.settle(figure)
        _write_in_block(figure, above, prediction, shown)
        _write_in_rows(figure, below, prediction, shown)
    return figure


def _follow(begin: float, steps: Sequence[float]) -> list[tuple[float, float]]:
    found = []
    for seconds in steps:
        found.append((begin, seconds))
        begin += seconds
    return found


def _choose(decode: float, steps: list[float]) -> _Shown:
    """Choose which steps to draw: all, or as many of the first and last as leave the decode steps visible."""
    kept = len(steps)
    if len(steps) > ALL_SHOWN:
        kept = next((k for k in range(12, 3, -1) if sum(steps[:k]) + sum(steps[-k:]) <= 120 * decode), 3)
    head, tail = (steps[:kept], steps[-kept:]) if kept < len(steps) else (steps, [])
    visible = sum(head) + sum(tail)
    decodes = max(math.ceil(_SIDE * visible / decode), _FEWEST_DECODES)
    hidden = math.fsum(steps) - visible if tail else 0.0
    gap = 0.2 * visible if tail else 0.0
    return _Shown(decode, decodes, head, tail, len(steps) - len(head) - len(tail), hidden, sum(head), gap)


def _title(prediction: Prediction) -> str:
    spike, rung = prediction.spike, prediction.best
    height, decode = style.format_seconds(spike.height_s), style.format_seconds(rung.decode_step_s)
    many = prediction.workload.prompts > 1
    streams = prediction.workload.streams
    everyone = f"all {streams:,} streams" if streams > 1 else "the running stream"
    ratio = spike.height_s / rung.decode_step_s
    if spike.chunks > 1:
        total = style.format_seconds(spike.duration_s)
        return (
            f"{_prompt(prediction)} in {plural(spike.chunks, 'step')}: tokens come up to {height} apart "
            f"instead of {decode}, for {total}"
        )
    if ratio < 1.5:
        felt = "not" if ratio < 1.05 else "hardly"
        verb = "are" if many else "is"
        return f"{_prompt(prediction)} {verb} {felt} felt: the step takes {height}, a decode step {decode}"
    verb = "freeze" if many else "freezes"
    return f"{_prompt(prediction)} {verb} {everyone} for {height}: {style.format_ratio(ratio)} decode steps"


def _prompt(prediction: Prediction) -> str:
    tokens = count(prediction.workload.prompt_tokens)
    many = prediction.workload.prompts
    return f"{many:,} prompts of {tokens} tokens" if many > 1 else f"One {tokens}-token prompt"


def _draw_steps(axes: Axes, prediction: Prediction, shown: _Shown) -> None:
    """The steps, each as wide and as high as it takes, and brackets that say what they are."""
    tallest = max(prediction.spike.height_s, shown.decode)
    unit, name = style.time_unit(tallest)
    if shown.decodes > _MOST_DECODES:
        for begin in (shown.left, shown.mixed_end):
            _add_bar(axes, begin, shown.decodes * shown.decode, shown.decode, False, 0.5)
    else:
        thin = min(1.0, 300 * shown.decode / (shown.right - shown.left))
        for begin, seconds in shown.decoding():
            _add_bar(axes, begin, seconds, seconds, False, thin)
    for begin, seconds in shown.mixed():
        _add_bar(axes, begin, seconds, seconds, True, 1.0)
    _bracket(axes, (shown.left, 0.0), tallest, f"decode steps\n{style.format_seconds(shown.decode)} each")
    _bracket(axes, (0.0, shown.mixed_end), tallest, _mixed_label(prediction, shown))
    _bracket(axes, (shown.mixed_end, shown.right), tallest, "decode steps\nagain")
    if shown.tail:
        middle = shown.cut + shown.gap / 2
        text = f"…\n{shown.skipped:,} more\nsteps in\n{style.format_seconds(shown.hidden)}\n…"
        axes.text(middle, tallest * 0.5, text, ha="center", va="center", size=style.SMALL_SIZE, linespacing=1.25)
    axes.set_xlim(shown.left, shown.right)
    axes.set_ylim(0, _HEADROOM * tallest)
    ticks = style.nice_ticks(0.0, tallest, 4)
    axes.set_yticks(ticks, [style.plain(tick / unit) for tick in ticks])
    axes.set_ylabel(f"time of the step ({name})", y=0.5 / _HEADROOM)
    axes.spines["left"].set_bounds(0, ticks[-1])
    axes.tick_params(labelbottom=False, bottom=False)


def _add_bar(axes: Axes, begin: float, width: float, height: float, mixed: bool, line: float) -> None:
    face, hatch = (style.VERMILLION, "//") if mixed else (style.SKY, "")
    axes.add_patch(Rectangle((begin, 0), width, height, facecolor=face, hatch=hatch, edgecolor=_BAR_INK, linewidth=0))
    axes.add_patch(Rectangle((begin, 0), width, height, facecolor="none", edgecolor=style.INK, linewidth=line))


def _bracket(axes: Axes, span: tuple[float, float], tallest: float, text: str) -> None:
    """A dimension line over ``span`` with a text above it."""
    begin, end = span
    level, foot = 1.1 * tallest, 1.06 * tallest
    inset = 0.002 * (end - begin)
    xs = [begin + inset, begin + inset, end - inset, end - inset]
    axes.plot(xs, [foot, level, level, foot], color=style.GREY, linewidth=1.2)
    axes.text(
        (begin + end) / 2,
        1.14 * tallest,
        text,
        ha="center",
        va="bottom",
        size=style.SMALL_SIZE,
        linespacing=1.25,
    ).set_in_layout(False)


def _mixed_label(prediction: Prediction, shown: _Shown) -> str:
    spike, load = prediction.spike, prediction.workload
    tokens = load.prompt_tokens * load.prompts
    height = style.format_seconds(spike.height_s)
    ratio = f"{style.format_ratio(spike.height_s / shown.decode)} decode steps"
    prompt = f"{plural(tokens, 'prompt token')}"
    if spike.chunks == 1:
        return f"{prompt} in one step\n{height} = {ratio}"
    total = style.format_seconds(spike.duration_s)
    return f"{prompt} in {spike.chunks:,} steps, {total} in all\nlongest step {height} = {ratio}"


def _rows(streams: int) -> list[str]:
    """Return the labels of the rows: every stream, or the first, an ellipsis and the last."""
    if streams <= _ROWS:
        return [f"stream {index + 1:,}" for index in range(streams)]
    return ["stream 1", "stream 2", "stream 3", "⋮", f"stream {streams:,}"]


def _draw_streams(axes: Axes, prediction: Prediction, shown: _Shown) -> None:
    """A row per stream with a tick per token, and one for the prompt."""
    rows = _rows(prediction.workload.streams)
    tokens = [begin + seconds for begin, seconds in shown.mixed()]
    dense = shown.decodes > _MOST_DECODES
    if not dense:
        tokens += [begin + seconds for begin, seconds in shown.decoding()[:-1]]
    line = 2.2 if shown.decodes < 40 else 0.8
    parts = [(0.0, shown.cut), (shown.cut + shown.gap, shown.mixed_end)] if shown.tail else [(0.0, shown.cut)]
    for begin, end in parts:
        axes.axvspan(begin, end, color=style.ORANGE, alpha=0.18, linewidth=0)
    for row, label in enumerate(rows):
        if label == "⋮":
            continue
        axes.vlines(sorted(tokens), row - 0.32, row + 0.32, color=style.INK, linewidth=line)
        if dense:
            for begin in (shown.left, shown.mixed_end):
                axes.fill_betweenx(
                    (row - 0.32, row + 0.32), begin, begin + shown.decodes * shown.decode, color=style.INK
                )
    prompt_row = len(rows) + 0.25
    for begin, end in parts:
        box = (begin, prompt_row - 0.36), end - begin, 0.72
        axes.add_patch(Rectangle(*box, facecolor=style.VERMILLION, hatch="//", edgecolor=_BAR_INK, linewidth=0))
        axes.add_patch(Rectangle(*box, facecolor="none", edgecolor=style.INK, linewidth=1.0))
    if shown.tail:
        for level in [float(index) for index, label in enumerate(rows) if label != "⋮"] + [prompt_row]:
            axes.text(shown.cut + shown.gap / 2, level, "…", ha="center", va="center")
    axes.plot(shown.mixed_end, prompt_row, marker="D", markersize=10, color=style.INK, clip_on=False)
    many = prediction.workload.prompts > 1
    axes.set_yticks([*range(len(rows)), prompt_row], [*rows, "new prompts" if many else "new prompt"])
    axes.set_ylim(prompt_row + 0.6, -0.6)
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_ylabel(f"{plural(prediction.workload.streams, 'stream')}:\na tick per token")


def _label_time(axes: Axes, shown: _Shown) -> None:
    """Ticks in true time on either side of the cut."""
    unit, name = style.time_unit(shown.right + shown.hidden)
    span = shown.right - shown.left
    before_end, offset = (shown.cut, shown.hidden - shown.gap) if shown.tail else (shown.right, 0.0)
    step = style.nice_step(span / 8)
    before = [tick for tick in style.multiples(step, shown.left, before_end) if tick <= before_end]
    after = []
    if shown.tail:
        first = shown.cut + shown.gap + offset
        after = list(style.multiples(step, first, shown.right + offset))
    labels = [style.plain(tick / unit, step / unit) for tick in before + after]
    axes.set_xticks([*before, *(tick - offset for tick in after)], labels)
    scale = f"to scale, {plural(shown.skipped, 'step')} left out" if shown.tail else "to scale"
    axes.set_xlabel(f"time since the prompt was scheduled ({name}), {scale}")
    if shown.tail:
        axes.plot(
            [shown.cut, shown.cut + shown.gap],
            [0, 0],
            transform=axes.get_xaxis_transform(),
            color="white",
            linewidth=3,
            clip_on=False,
            zorder=5,
        )


def _write_in_block(figure: Figure, axes: Axes, prediction: Prediction, shown: _Shown) -> None:
    """Write the height into a single long step, where there is room."""
    if prediction.spike.chunks == 1:
        text = style.format_seconds(prediction.spike.height_s)
        _write_if_fits(figure, axes, shown, prediction.spike.height_s / 2, [text], 34, style.VERMILLION)


def _write_in_rows(figure: Figure, axes: Axes, prediction: Prediction, shown: _Shown) -> None:
    """Say who waits, in the empty part of the rows, and what the prompt gets."""
    rows, spike = len(_rows(prediction.workload.streams)), prediction.spike
    height, total = style.format_seconds(spike.height_s), style.format_seconds(spike.duration_s)
    if spike.chunks == 1:
        texts = [f"no stream gets a token for {height}", f"no stream gets\na token for {height}", "no\ntoken"]
        _write_if_fits(figure, axes, shown, (rows - 1) / 2, texts, style.TEXT_SIZE + 2, None)
    if not shown.tail:
        steps = f" in {spike.chunks:,} steps" if spike.chunks > 1 else ""
        texts = [f"prefill{steps}: {total}", total]
        _write_if_fits(figure, axes, shown, rows + 0.25, texts, style.SMALL_SIZE, style.VERMILLION)
    axes.annotate(
        "first tokens" if prediction.workload.prompts > 1 else "first token",
        (shown.mixed_end, rows + 0.25),
        (10, 0),
        textcoords="offset points",
        va="center",
        size=style.SMALL_SIZE,
    )


def _write_if_fits(
    figure: Figure, axes: Axes, shown: _Shown, level: float, texts: Sequence[str], size: float, on: str | None
) -> None:
    """Write the first of ``texts`` that is narrower than the mixed steps into the middle of them."""
    box = axes.get_window_extent()
    room = 0.92 * box.width / figure.dpi * shown.mixed_end / (shown.right - shown.left)
    for text in texts:
        if max(style.text_width(figure, line, size, bold=True) for line in text.splitlines()) <= room:
            break
    else:
        return
    around = None if on is None else {"facecolor": on, "edgecolor": "none", "pad": 3}
    color = style.INK if on is None else style.ink_on(on)
    axes.text(
        shown.mixed_end / 2, level, text, ha="center", va="center", size=size, weight="bold", color=color, bbox=around
    )
