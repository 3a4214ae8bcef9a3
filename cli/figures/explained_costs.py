"""Figures of misunderstandings: long contexts, batches, what is expensive, and the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.cli.text import count
from costmodel.explaining.documents import Table, Topic

GB, MS = 1e9, 1e-3


def numbers(table: Table, key: str) -> Any:
    """Return a column as an array of numbers."""
    return np.array([float(str(value)) if not isinstance(value, bool) else float(value) for value in table.column(key)])


def number(topic: Topic, key: str) -> float:
    """Return one number of a topic."""
    return float(str(topic.numbers[key]))


def framed(
    topic: Topic, foot: str, columns: int = 1, widths: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with the topic's finding as title, and its axes side by side."""
    figure = style.new_figure()
    style.add_frame(figure, topic.finding, foot)
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=widths)
    return figure, list(axes[0])


def scale_tokens(axes: Axes, values: Any, label: str) -> None:
    """Let x be a logarithmic number of tokens or sequences, with a tick at the largest."""
    low, high = float(min(values)), float(max(values))
    axes.set_xscale("log")
    room = (high / low) ** 0.03 if high > low else 2.0  # for the markers at both ends
    axes.set_xlim(low / room, high * room)
    ticks = [2.0**power for power in range(0, 40) if low <= 2.0**power <= high / 1.4] + [high]
    ticks = ticks[:: -len(ticks) // 6][::-1]  # at most six, the largest among them
    axes.set_xticks(ticks, [_tokens(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)


def _tokens(value: float) -> str:
    return f"{value / 1024:,.0f}k" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"


def scale_log(axes: Axes, values: Any, label: str) -> None:
    """Let y be logarithmic, with few ticks that can be read."""
    positive = [value for value in np.asarray(values, float).ravel() if value > 0]
    low, high = min(positive), max(positive)
    if low == high:
        low, high = low / 2, high * 2
    axes.set_yscale("log")
    axes.set_ylim(low / 1.25, high * 1.4)
    ticks = style.decades(low / 1.25, high * 1.4)
    axes.set_yticks(ticks, [style.plain(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel(label)
    axes.grid(True, axis="y")


def draw_long_context(topic: Topic, foot: str) -> Figure:
    """Draw prefill time and KV cache against the length of a context; the effective context, where it was measured."""
    table = topic.table("lengths")
    tokens, prefill = numbers(table, "context_tokens"), numbers(table, "prefill_s")
    attention = prefill * numbers(table, "attention_time_share")
    cache = numbers(table, "kv_bytes") / GB
    factor, unit = style.time_unit(float(prefill.max()))
    with style.styled():
        figure, (left, right) = framed(topic, foot, 2)
        curves: tuple[tuple[Any, str, Any], ...] = (
            (prefill, "prefill", style.LOOKS[0]),
            (attention, f"of it {_short(topic.labels['attention_time_share'].partition(' in ')[2])}", style.LOOKS[1]),
            (prefill[0] * tokens / tokens[0], "if it grew like the length", style.LOOKS[7]),
        )
        for values, name, (color, line, marker) in curves:
            left.plot(tokens, values / factor, color=color, linestyle=line, marker=marker, label=name, markersize=7)
        drawn = np.concatenate([values[values > 0] for values, *_ in curves])
        scale_log(left, drawn / factor, f"time of a prompt ({unit})")
        left.legend(loc="upper left")
        low, high = left.get_ylim()
        left.set_ylim(low, high * (high / low) ** 0.25)
        color, line, marker = style.LOOKS[2]
        right.plot(tokens, cache, color=color, linestyle=line, marker=marker, markersize=7)
        room = number(topic, "kv_cache_bytes") / GB
        scale_log(right, [*cache, room] if room > 0 else cache, "KV cache of one sequence (GB)")
        if room > 0:
            right.axhline(room, color=style.INK, linewidth=1.4, linestyle=style.DASHED)
            right.text(
                0.02, room * 1.04, f"all there is: {room:.0f} GB", transform=right.get_yaxis_transform(), va="bottom"
            )
        effective = topic.numbers["measured_effective_tokens"]
        if effective and float(effective) > tokens[-1]:  # beyond the window of the config
            effective = None
        for axes in (left, right):
            scale_tokens(axes, tokens, "context (tokens)")
            if effective:
                axes.axvline(float(effective), color=style.GREY, linewidth=1.4, linestyle=style.DOTTED)
        if effective:
            right.text(
                float(effective), 0.03, f"effective: {_tokens(float(effective))} \n(measured, RULER) ", ha="right", va="bottom",
                transform=right.get_xaxis_transform(), size=style.SMALL_SIZE, color=style.GREY,
            )  # fmt: skip
        style.settle(figure)
    return figure


def _short(label: str) -> str:
    """Return what attention grows with where it is one thing, ``attention, ∝ n²``; where layers differ, ``attention``."""
    return label if label.endswith((", ∝ n²", ", ∝ n")) and label.count("∝") == 1 else label.partition(",")[0]


def draw_batch_size(topic: Topic, foot: str) -> Figure:
    """Draw TPOT and tokens per second against the batch; where memory ends, and where TPOT has doubled."""
    table = topic.table("batches")
    full: dict[str, Any] = {"facecolor": "none", "edgecolor": style.GREY, "hatch": "//", "alpha": 0.4, "linewidth": 0}
    batch, tpot, rate = numbers(table, "streams"), numbers(table, "tpot_s") / MS, numbers(table, "tokens_per_s")
    most, double = number(topic, "most_streams_in_kv_cache"), number(topic, "most_streams_at_twice_the_tpot")
    with style.styled():
        figure, panels = framed(topic, foot, 2)
        doubled = Line2D([], [], color=style.GREY, linewidth=1.4, linestyle=style.DOTTED)
        style.add_legend(
            figure,
            [doubled, Patch(**full)],
            [
                f"up to {count(double)} sequences: at most twice the TPOT of one",
                f"KV cache full at {count(most)}" if most else "not one fits into the KV cache",
            ],
            2,
        )
        for axes, values, label, look in (
            (panels[0], tpot, "every reader's TPOT (ms)", style.LOOKS[0]),
            (panels[1], rate, "all together (tokens/s)", style.LOOKS[1]),
        ):
            color, line, marker = look
            axes.plot(batch, values, color=color, linestyle=line, marker=marker, markersize=7)
            axes.set_ylim(0, 1.15 * float(values.max()))
            ticks = style.nice_ticks(0, 1.15 * float(values.max()), 6)
            axes.set_yticks(ticks, [style.plain(tick) for tick in ticks])
            axes.set_ylabel(label)
            axes.grid(True, axis="y")
            scale_tokens(axes, batch, "batch (sequences)")
            axes.axvspan(max(most, batch[0]), batch[-1], **full)
            axes.axvline(double, color=style.GREY, linewidth=1.4, linestyle=style.DOTTED)
        style.settle(figure)
    return figure


PARTS = (
    ("answer_kv_s", "answer: KV cache", style.GREEN, ".."),
    ("answer_weights_s", "answer: weights", style.BLUE, ""),
    ("answer_launches_s", "answer: launches", style.PURPLE, "--"),
    ("answer_rest_s", "answer: rest", style.SKY, "\\\\"),
    ("prompt_rest_s", "prompt: rest", style.PALE, ""),
    ("prompt_matrices_s", "prompt: matrices, ∝ n", style.ORANGE, "//"),
    ("prompt_attention_s", "prompt: attention, ∝ n²", style.VERMILLION, "xx"),
)
"""Column, name, colour and hatch of each part of a request, from the bottom."""
BEYOND: dict[str, Any] = {"facecolor": "white", "edgecolor": style.INK, "alpha": 0.55, "linewidth": 0.8}
"""Look of what lies over lengths that do not fit: paler than what does."""


def draw_quadratic(topic: Topic, foot: str) -> Figure:
    """Draw the shares of a request's GPU time against the length of its prompt."""
    table = topic.table("requests")
    prompt = numbers(table, "prompt_tokens")
    parts = [numbers(table, key) for key, *_ in PARTS]
    whole = sum(parts)
    with style.styled():
        figure, (axes,) = framed(topic, foot)
        handles: list[Any] = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for _, _, color, hatch in PARTS]
        names = [_short(topic.labels[key]) if key == "prompt_attention_s" else name for key, name, *_ in PARTS]
        here = float(prompt[int(np.argmin(np.abs(whole - number(topic, "request_gpu_s"))))])  # that of the title
        marks = [(here, style.DOTTED, f"asked about: {count(here)} tokens")]
        overtakes = topic.numbers["overtakes_tokens"]
        if overtakes and prompt[0] < float(overtakes) < prompt[-1]:
            at = float(overtakes)
            marks.append((at, style.DASHED, f"{_what(topic)} > matrices: from {count(at)} on"))
        handles += [Line2D([], [], color=style.INK, linewidth=1.6, linestyle=line) for _, line, _ in marks]
        names += [name for *_, name in marks]
        fits = number(topic, "longest_prompt_that_fits_tokens")
        if fits < prompt[-1]:
            handles.append(Patch(**BEYOND))
            names.append(f"does not fit: beyond {count(fits)}" if fits >= prompt[0] else "does not fit")
        style.add_legend(figure, handles, names, 3)
        bottom = np.zeros(len(prompt))
        for values, (_, _, color, hatch) in zip(parts, PARTS, strict=True):
            top = bottom + 100 * values / whole
            axes.fill_between(prompt, bottom, top, facecolor=color, hatch=hatch, edgecolor="white", linewidth=0.8)
            bottom = top
        axes.set_ylim(0, 100)
        axes.set_yticks(range(0, 101, 20))
        axes.set_ylabel("share of a request's GPU time (%)")
        scale_tokens(axes, prompt, "prompt (tokens)")
        axes.set_xlim(prompt[0], prompt[-1])
        axes.tick_params(axis="x", pad=8)  # clear of the zero of the other axis
        for at, line, _ in marks:
            axes.axvline(at, color=style.INK, linewidth=1.6, linestyle=line)
        if fits < prompt[-1]:
            axes.axvspan(max(fits, prompt[0]), prompt[-1], zorder=3, **BEYOND)
        style.settle(figure)
    return figure


def _what(topic: Topic) -> str:
    return "n²" if topic.labels["prompt_attention_s"] == "prompt: attention, ∝ n²" else "attention"


def draw_prefix_cache(topic: Topic, foot: str) -> Figure:
    """Draw the time of prefill by what was sent before, enlarged, and beside it that of the whole request."""
    table = topic.table("shares")
    shares = 100 * numbers(table, "same_tokens") / number(topic, "prompt_tokens")
    prefill, answer = numbers(table, "prefill_s"), numbers(table, "answer_s")
    whole = prefill + answer
    first, second = (PREFILL, style.ORANGE, "//"), (ANSWER, style.BLUE, "")
    with style.styled():
        figure, (left, right) = framed(topic, foot, 2)
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for _, color, hatch in (first, second)]
        style.add_legend(figure, handles, [name for name, *_ in (first, second)], 2)
        enlarged = float(whole.max() / prefill.max())
        for axes, values, title in (
            (left, prefill, "prefill alone" + (f", {style.format_ratio(enlarged)} × enlarged" if enlarged > 1 else "")),
            (right, whole, "the whole request"),
        ):
            longest = max(float(values.max()), 1e-9)
            factor, unit = (1.0, "s") if longest >= 1 else style.time_unit(longest)
            places = range(len(values))
            bars = axes.barh(places, prefill / factor, 0.66, color=first[1], hatch=first[2], edgecolor="white")
            if axes is right:
                bars = axes.barh(
                    places, answer / factor, 0.66, prefill / factor, color=second[1], hatch=second[2], edgecolor="white"
                )
            axes.bar_label(bars, [style.format_seconds(value) for value in values], padding=4, size=style.SMALL_SIZE)
            axes.set_yticks(places, [f"{share:.0f} %" for share in shares])
            axes.invert_yaxis()
            axes.set_xlim(0, 1.25 * longest / factor)
            ticks = style.nice_ticks(0, longest / factor, 5)
            axes.set_xticks(ticks, [style.plain(tick, ticks[1] - ticks[0]) for tick in ticks])
            axes.set_xlabel(f"time ({unit})")
            axes.set_title(title)
        left.set_ylabel("of the prompt sent before")
        style.settle(figure)
    return figure


PREFILL, ANSWER = "prefill: saved by what is cached", "answer: computed as ever"
