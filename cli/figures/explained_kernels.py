"""Figures of misunderstandings: arithmetic intensity, KV heads, what is cached, tiles, and speculation."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.cli.figures.explained_costs import GB, framed, number, numbers, scale_log, scale_tokens
from costmodel.cli.text import size
from costmodel.explaining.documents import Topic

TERA = 1e12


MARKS = ("o", "s", "^", "*", "D", "X", "P")
"""Marker of each point of a roofline, in the order of the table."""
STAR = "*"
"""The smallest of these for its size."""


def draw_decode_bound(topic: Topic, foot: str) -> Figure:
    """Draw the roofline of the GPU with decode and prefill on it; the legend says which point is which."""
    table = topic.table("points")
    intensity, rate = numbers(table, "flops_per_byte"), numbers(table, "flops_per_s") / TERA
    peak, bandwidth = number(topic, "peak_flops_per_s") / TERA, number(topic, "bandwidth_bytes_per_s") / TERA
    ridge = number(topic, "ridge_flops_per_byte")
    shown = intensity > 0
    low, high = min(float(intensity[shown].min()), ridge) / 3, max(float(intensity[shown].max()), ridge) * 6
    with style.styled():
        figure, (axes,) = framed(topic, foot)
        handles, names = [], []
        for index in np.flatnonzero(shown):
            what = str(table.rows[index]["what"])
            if what in (str(row["what"]) for row in table.rows[:index]):
                continue  # one stream is all that there are
            decode = what.startswith("decode")
            marker, color = MARKS[index % len(MARKS)], style.BLUE if decode else style.VERMILLION
            look = style.mark(color, 19 if marker == STAR else 12, hollow=decode)
            handles += axes.plot(intensity[index], rate[index], marker, zorder=4, color=color, **look)
            names.append(f"{what}: {style.significant(float(intensity[index]))} FLOP/B")
        style.add_legend(figure, handles, names, 2)
        axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=style.INK, linewidth=2)
        axes.axvline(ridge, color=style.GREY, linewidth=1.4, linestyle=style.DOTTED)
        axes.axvspan(low, ridge, facecolor=style.SKY, alpha=0.13, linewidth=0)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        scale_log(axes, [*rate[shown], peak * 1.6, low * bandwidth], "attained at best (TFLOP/s)")
        ticks = style.decades(low, high)
        if len(ticks) > 9:  # the longer numbers need room
            ticks = [tick for tick in ticks if f"{tick:e}".startswith("1.0")]
        axes.set_xticks(ticks, [style.plain(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("arithmetic intensity (FLOPs per byte)")
        for height, text, side in (
            (0.03, f" ridge point {ridge:,.0f}", "left"),
            (0.12, "waits for memory ← ", "right"),
            (0.12, " → waits for multipliers", "left"),
        ):
            axes.text(
                ridge, height, text, transform=axes.get_xaxis_transform(), ha=side, va="bottom", size=style.SMALL_SIZE
            )
        style.settle(figure)
    return figure


VARIANTS = ((style.GREY, "//"), (style.BLUE, ""), (style.ORANGE, "xx"))
QUANTITIES = (
    ("prefill_attention_flops", "attention's FLOPs\n(prompt)"),
    ("decode_attention_flops", "attention's FLOPs\n(decode)"),
    ("projection_flops_per_token", "projections' FLOPs\n(q, k, v, o)"),
    ("kv_bytes_per_token", "KV cache\n(bytes per token)"),
    ("decode_step_s", "decode step\n(time, {0})"),
)


def draw_gqa(topic: Topic, foot: str) -> Figure:
    """Draw FLOPs, bytes and time of the model with other numbers of KV heads, relative to one per query head."""
    table = topic.table("variants")
    width = 0.8 / len(table.rows)
    with style.styled():
        figure, (axes,) = framed(topic, foot)
        names = [str(name) for name in table.column("variant")]
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for color, hatch in VARIANTS[: len(names)]]
        style.add_legend(figure, handles, names, 1 if max(map(len, names)) > 40 else 3)
        tallest = 0.0
        for place, (key, _) in enumerate(QUANTITIES):
            values = 100 * numbers(table, key) / numbers(table, key)[0]
            tallest = max(tallest, float(values.max()))
            for index, value in enumerate(values):
                color, hatch = VARIANTS[index]
                at = place + (index - (len(values) - 1) / 2) * width
                axes.bar(at, value, width * 0.94, color=color, hatch=hatch, edgecolor="white")
                axes.text(at, value, f"{value:.3g}", ha="center", va="bottom", size=style.SMALL_SIZE)
        axes.set_ylim(0, 1.12 * tallest)
        ticks = style.nice_ticks(0, tallest, 6)
        axes.set_yticks(ticks, [style.plain(tick) for tick in ticks])
        batch = (
            f"{style.plain(number(topic, 'compared_streams'))} stream{'s' * (number(topic, 'compared_streams') != 1)}"
        )
        axes.set_xticks(range(len(QUANTITIES)), [label.format(batch) for _, label in QUANTITIES])
        axes.set_ylabel("MHA, one KV head per query head = 100")
        axes.tick_params(axis="x", length=0)
        style.settle(figure)
    return figure


def draw_kv_cache(topic: Topic, foot: str) -> Figure:
    """Draw the bytes of a token that are kept, those of each kind of layer together, the states of a sequence, and what is not kept.

    They are points, not bars: from one to the next is a factor, and on a logarithmic axis a bar has no beginning.
    """
    table = topic.table("kept")
    parts: dict[tuple[str, bool], float] = {}
    states: list[tuple[str, float, bool]] = []
    for name, value, stays, per in zip(
        table.column("what"), numbers(table, "bytes"), table.column("kept"), table.column("per"), strict=True
    ):
        if per == "sequence":
            states.append((str(name), float(value), bool(stays)))
            continue
        parts[str(name), bool(stays)] = parts.get((str(name), bool(stays)), 0.0) + float(value)
    rows = [(name, value, True) for (name, stays), value in parts.items() if stays]
    rows.append(("kept, all together", sum(value for _, value, _ in rows), True))
    rows += states
    rows += [(name, value, False) for (name, stays), value in parts.items() if not stays]
    with style.styled():
        figure, (axes,) = framed(topic, foot)
        looks = {True: (style.GREEN, "o", "kept in the cache"), False: (style.VERMILLION, "X", "never stored")}
        handles = {}
        for place, (_, value, stays) in enumerate(rows):
            color, marker, _ = looks[stays]
            axes.axhline(place, color=style.PALE, linewidth=0.8, zorder=0)
            [handles[stays]] = axes.plot(value, place, marker, color=color, **style.mark(color, 13, hollow=False))
            axes.annotate(
                size(value), (value, place), (12, 0), textcoords="offset points", va="center", size=style.SMALL_SIZE,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        style.add_legend(figure, list(handles.values()), [looks[stays][2] for stays in handles], 2)
        axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xscale("log")
        values = [value for _, value, _ in rows if value > 0]
        low, high = min(values) / 2, max(values) * 4
        axes.set_xlim(low, high)
        ticks = [tick for tick in (10.0**power for power in range(16)) if low <= tick <= high]
        axes.set_xticks(ticks, [size(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
        per = "per token, all layers" + ("; states: per sequence" if states else "")
        axes.set_xlabel(f"{per} (bytes; each line is ten times the one before)")
        style.settle(figure)
    return figure


def draw_flash_attention(topic: Topic, foot: str) -> Figure:
    """Draw bytes moved with scores in memory and in tiles, and the times of moving and of multiplying."""
    table = topic.table("prompts")
    prompt = numbers(table, "prompt_tokens")
    again = numbers(topic.table("curves"), "tiled_again_bytes") / GB
    naive, tiled = numbers(table, "naive_bytes") / GB, numbers(table, "tiled_bytes") / GB
    times = [numbers(table, key) for key in ("naive_moving_s", "tiled_moving_s", "computing_s")]
    factor, unit = style.time_unit(float(max(each.max() for each in times)))
    with style.styled():
        figure, (left, right) = framed(topic, foot, 2)
        curves: tuple[tuple[Any, str, Any], ...] = (
            (naive, "scores in memory", style.LOOKS[0]),
            (again, "tiles, K and V again for each", style.LOOKS[7]),
            (tiled, "tiles, K and V once", style.LOOKS[1]),
        )
        for values, name, look in curves:
            left.plot(prompt, values, color=look[0], linestyle=look[1], marker=look[2], label=name, markersize=7)
        scale_log(left, [naive, again, tiled], "moved by attention (GB)")
        named: tuple[tuple[Any, str, Any], ...] = (
            (times[0], "moving, scores in memory", style.LOOKS[0]),
            (times[1], "moving, in tiles", style.LOOKS[1]),
            (times[2], "multiplying, both ways", style.LOOKS[5]),
        )
        for values, name, look in named:
            right.plot(
                prompt, values / factor, color=look[0], linestyle=look[1], marker=look[2], label=name, markersize=7
            )
        scale_log(right, [each / factor for each in times], f"time at full bandwidth or peak ({unit})")
        for axes in (left, right):
            scale_tokens(axes, prompt, "prompt (tokens)")
            axes.legend(loc="upper left")
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (high / low) ** 0.28)
        style.settle(figure)
    return figure


def draw_speculation(topic: Topic, foot: str) -> Figure:
    """Draw the speed-up of some numbers of draft tokens, and of the best, against the batch; the load that is asked about is circled."""
    table = topic.table("curves")
    batch, drafts, speedup = (numbers(table, key) for key in ("streams", "draft_tokens", "speedup_ratio"))
    best = topic.table("batches")
    rate = topic.numbers["acceptance_share"]
    accepted = "as accepted" if rate is None else f"if {float(rate):.0%} of drafts are accepted".replace("%", " %")
    with style.styled():
        figure, (axes,) = framed(topic, foot)
        shown = sorted(set(drafts))
        for look, k in zip(style.LOOKS, shown, strict=False):
            chosen = drafts == k
            axes.plot(
                batch[chosen], speedup[chosen], color=look[0], linestyle=look[1], marker=look[2], markersize=8,
                label=f"k = {k:.0f} drafts per pass",
            )  # fmt: skip
        if len(set(best.column("draft_tokens")) | set(shown)) > 1:
            axes.plot(
                numbers(best, "streams"), numbers(best, "speedup_ratio"), color=style.INK, linestyle=style.DOTTED, linewidth=1.6,
                label="the best k of each batch", zorder=1,
            )  # fmt: skip
        here = number(topic, "streams"), number(topic, "speedup_ratio")
        axes.plot(
            *here, color=style.INK, marker="o", markersize=12, fillstyle="none", linestyle="none",
            label=f"asked about: batch of {here[0]:,.0f}",
        )  # fmt: skip
        top = 1.15 * max(float(speedup.max()), 1.2)
        axes.axhline(1, color=style.INK, linewidth=1.6)
        axes.axhspan(0, 1, facecolor="none", edgecolor=style.GREY, hatch="//", alpha=0.25, linewidth=0)
        axes.text(
            0.99, 0.98, "below: it does not pay ", transform=axes.get_yaxis_transform(), ha="right", va="top", size=style.SMALL_SIZE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
        )  # fmt: skip
        axes.set_ylim(0, top)
        ticks = style.nice_ticks(0, top, 7)
        axes.set_yticks(ticks, [style.plain(tick, ticks[1] - ticks[0]) for tick in ticks])
        axes.set_ylabel(f"speed-up {accepted} (×)")
        axes.grid(True, axis="y")
        scale_tokens(axes, batch, "batch (sequences)")
        last = float(batch.max())
        own = sorted({here[0], last}) if here[0] < last / 1.3 else [last]
        within = sorted(
            [*(float(t) for t in axes.get_xticks() if all(max(t, each) > 1.3 * min(t, each) for each in own)), *own]
        )
        axes.set_xticks(within, [f"{tick:,.0f}" for tick in within])
        most = number(topic, "most_streams_in_kv_cache")
        if 0 < most < last:
            axes.axvline(most, color=style.GREY, linewidth=1.4, linestyle=style.DOTTED)
            late = most > last**0.5
            axes.text(
                most, 0.02, f" KV cache full at {most:,.0f} ", transform=axes.get_xaxis_transform(), ha="right" if late else "left",
                va="bottom", size=style.SMALL_SIZE, color=style.GREY,
            )  # fmt: skip
        style.add_legend(figure, *axes.get_legend_handles_labels(), 3)
        style.settle(figure)
    return figure
