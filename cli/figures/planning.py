"""Figures of ``costmodel plan``: gaps and TTFT against the token budget, cost against TPOT, and the SLO against the number of servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from costmodel.cli.figures import style
from costmodel.cli.figures.labels import Label, place_labels, trace
from costmodel.hardware.errors import InputError
from costmodel.planning.documents import ChunkPlan, FleetPlan, FleetRun, GpuOption, GpuPlan, Plan

NAMES: Final = {"itl_s": "ITL", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "end to end"}


def draw_budgets(plan: ChunkPlan) -> Figure:
    """Draw the trade-off of the token budget: the longest gap of the streams and the TTFT of the prompt, with the answer and its limits.

    Args:
        plan: the answer of :func:`costmodel.plan_chunk`.

    Raises:
        InputError: nothing was worked out, as the load does not fit.
    """
    points = plan.points
    if not points:
        raise InputError("no token budget to draw")
    budgets = [point.max_num_batched_tokens for point in points]
    gaps, ttfts = [point.itl_s for point in points], [point.ttft_s for point in points]
    unit, unit_name = style.time_unit(min(max(ttfts), 9.0))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _budget_title(plan), _footer(plan))
        axes = figure.subplots()
        curves = (("longest gap of a stream", gaps), ("TTFT of the prompt, at worst", ttfts))
        handles = []
        for (_, values), (color, line, marker) in zip(curves, style.LOOKS, strict=False):
            [drawn] = axes.plot(
                budgets, [value / unit for value in values], color=color, linestyle=line, marker=marker, linewidth=2.6, markersize=7,
                markeredgecolor="white", markeredgewidth=0.6, zorder=3,
            )  # fmt: skip
            handles.append(drawn)
        names = [name for name, _ in curves]
        for limit, name, dash in (
            (plan.limits.itl_s, "limit on the gap", style.DASHED),
            (plan.limits.ttft_s, "limit on the TTFT", style.DOTTED),
        ):
            if limit is not None:
                handles.append(axes.axhline(limit / unit, color=style.INK, linewidth=1.6, linestyle=dash))
                names.append(f"{name}, {style.format_limit(limit)}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        levels = [*gaps, *ttfts, *(limit for limit in (plan.limits.itl_s, plan.limits.ttft_s) if limit is not None)]
        low, high = min(levels) / unit, max(levels) / unit
        span = max(high / low, 2.0)
        axes.set_ylim(low / span**0.1, high * span**0.12)
        axes.set_xlim(budgets[0] * 0.9, max(budgets[-1] * 1.1, budgets[0] * 1.2))
        for axis, (begin, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = [256.0 * 2**power for power in range(20)] if axis is axes.xaxis else style.decades(begin, end)
            ticks = [tick for tick in ticks if begin <= tick <= end] or style.decades(begin, end)
            axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        axes.grid(True)
        axes.set_xlabel("token budget per step, max_num_batched_tokens (tokens)")
        axes.set_ylabel(f"time ({unit_name})")
        style.add_legend(figure, handles, names, 2)
        style.settle(figure)
        _mark_budgets(figure, axes, plan, unit)
    return figure


def _mark_budgets(figure: Figure, axes: Axes, plan: ChunkPlan, unit: float) -> None:
    """Ring the answer and, over the limit, the next multiple."""
    budgets = [point.max_num_batched_tokens for point in plan.points]
    curves = [[point.itl_s / unit for point in plan.points], [point.ttft_s / unit for point in plan.points]]
    covered = [trace(axes, budgets, curve) for curve in curves]
    labels = []
    if plan.at is not None and plan.feasible:
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": 17,
            "color": style.INK,
            "fillstyle": "none",
            "markeredgewidth": 2.2,
        }
        for value in (plan.at.itl_s, plan.at.ttft_s):
            if value is not None:
                axes.plot(plan.at.value, value / unit, **ring)
                covered.append(_around(axes, plan.at.value, value / unit, 12))
                labels.append(
                    Label(
                        plan.at.value,
                        value / unit,
                        f"{plan.at.value:,}: {style.format_seconds(value)}",
                        size=style.TEXT_SIZE,
                    )
                )
    place_labels(figure, axes, labels, np.concatenate(covered))


def _around(axes: Axes, x: float, y: float, radius: float) -> Any:
    """Return points on a circle around a mark, which labels do not cover [pixels]."""
    middle, angles = axes.transData.transform((x, y)), np.linspace(0, 2 * np.pi, 16)
    return np.column_stack([middle[0] + radius * np.cos(angles), middle[1] + radius * np.sin(angles)])


def _budget_title(plan: ChunkPlan) -> str:
    if not plan.feasible or plan.at is None or plan.at.itl_s is None or plan.at.ttft_s is None:
        return f"No token budget will do: {plan.binds}"
    first = f"{plan.at.value:,} tokens per step keep every gap within {style.format_limit(plan.limits.itl_s or 0)}"
    return f"{first}; the prompt of {plan.workload['prompt_tokens']:,} tokens then takes {style.format_seconds(plan.at.ttft_s)}"


def _footer(plan: Plan) -> str:
    load = plan.workload
    where = f"{plan.gpus} × {plan.gpu}" if plan.gpu and (plan.gpus or 1) > 1 else plan.gpu or "fixed step times"
    if load["kind"] == "interference":
        text = f"{load['streams']:,} streams at context {load['context_tokens']:,}, "
        text += f"{load['prompt_tokens']:,} tokens every {load['every_s']:g} s"
    elif load["kind"] == "load":
        most = "up to " if load.get("spread") else ""
        text = (
            f"{load['rate_per_s']:g} requests/s of {most}{load['prompt_tokens']:,} + {load['output_tokens']:,} tokens, "
        )
        text += f"{load['requests']:,} simulated"
    else:
        text = f"trace of {load['requests']:,} requests"
    return " · ".join(filter(None, [plan.model, where, plan.rung, text, style.creator()]))


def draw_costs(plan: GpuPlan) -> Figure:
    """Draw what every part costs, or how many GPUs it takes, against the TPOT there; those that hold the limits filled.

    Args:
        plan: the answer of :func:`costmodel.plan_gpu`.

    Raises:
        InputError: no part runs the load.
    """
    farthest = FARTHEST * (plan.limits.tpot_s or math.inf)
    tried = [option for option in plan.tried if option.tpot_s is not None and option.tpot_s <= farthest]
    if not tried:
        raise InputError("no part of those asked about runs the load anywhere near the limits: nothing to draw")
    parts = list(dict.fromkeys(option.gpu for option in plan.options if any(each.gpu == option.gpu for each in tried)))[
        :MOST_PARTS
    ]
    tried = [option for option in tried if option.gpu in parts]
    priced = all(option.cost_per_hour is not None for option in tried)
    unit, unit_name = style.time_unit(max(option.tpot_s or 0 for option in tried))
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _cost_title(plan, priced), _footer(plan))
        axes = figure.subplots()
        handles: list[Any] = []
        labels: list[Label] = []
        for part, (color, line, marker) in zip(parts, style.LOOKS, strict=False):
            own = sorted((option for option in tried if option.gpu == part), key=lambda option: option.gpus)
            xs, ys = [(option.tpot_s or 0) / unit for option in own], [_cost(option, priced) for option in own]
            axes.plot(xs, ys, color=color, linestyle=line, linewidth=1.8, zorder=2)
            for option, x, y in zip(own, xs, ys, strict=True):
                face = color if option.meets else "white"
                axes.plot(
                    x, y, marker=marker, color=color, markersize=12, markerfacecolor=face, markeredgewidth=2.0, zorder=3
                )
                labels.append(Label(x, y, f"{option.gpus}"))
            handles.append(Line2D([], [], color=color, linestyle=line, marker=marker, markersize=10))
        floors = {option.gpu for option in tried if option.rung == "roofline"}
        names = [f"{part} (a floor)" if part in floors else part for part in parts]
        if plan.limits.tpot_s is not None:
            handles.append(
                axes.axvline(plan.limits.tpot_s / unit, color=style.INK, linewidth=1.6, linestyle=style.DASHED)
            )
            names.append(f"limit on the TPOT, {style.format_limit(plan.limits.tpot_s)}")
        handles += [
            Line2D([], [], color=style.INK, linestyle="", marker="o", markersize=10, markerfacecolor=face)
            for face in (style.INK, "white")
        ]
        names += ["holds all limits", "does not"]
        for text in _left_out(plan, parts):
            handles.append(Line2D([], [], linestyle=""))
            names.append(text)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _log_ticks(axes, [(option.tpot_s or 0) / unit for option in tried], [_cost(option, priced) for option in tried])
        axes.grid(True)
        axes.set_xlabel(f"mean gap of a stream, TPOT ({unit_name}); numbers: GPUs")
        currency = f" ({plan.currency})" if plan.currency else ""
        axes.set_ylabel(f"cost per hour{currency}" if priced else "GPUs")
        style.add_legend(figure, handles, names, 4)
        style.settle(figure)
        marks = [_around(axes, label.x, label.y, 7) for label in labels]
        if plan.limits.tpot_s is not None:
            marks.append(trace(axes, [plan.limits.tpot_s / unit] * 2, axes.get_ylim()))
        place_labels(figure, axes, labels, np.concatenate(marks))
    return figure


FARTHEST: Final = 5
"""What has a TPOT of more than so many limits is not drawn."""
FEWEST_TICKS: Final = 4
"""With fewer round numbers of a logarithmic axis, evenly spaced ones are taken."""
MOST_PARTS: Final = len(style.LOOKS)
"""Parts of a figure: the first of the table."""


def _left_out(plan: GpuPlan, parts: Sequence[str]) -> list[str]:
    """Say which parts are not drawn, and why."""
    reasons: dict[str, list[str]] = {"off scale": [], "do not run it": [], "not drawn": []}
    for part in dict.fromkeys(option.gpu for option in plan.options if option.gpu not in parts):
        slowest = [option.tpot_s for option in plan.tried if option.gpu == part and option.tpot_s is not None]
        far = bool(slowest) and min(slowest) > FARTHEST * (plan.limits.tpot_s or math.inf)
        reasons["off scale" if far else "not drawn" if slowest else "do not run it"].append(part)
    said = {reason: gone[:1] + [f"{len(gone) - 1} more"] * (len(gone) > 1) for reason, gone in reasons.items() if gone}
    return [f"{reason}: {' and '.join(gone)}" for reason, gone in said.items()]


def _cost(option: GpuOption, priced: bool) -> float:
    return option.cost_per_hour or 0.0 if priced else float(option.gpus)


def _log_ticks(axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> None:
    for axis, values, setting in ((axes.xaxis, xs, axes.set_xlim), (axes.yaxis, ys, axes.set_ylim)):
        low, high = min(values), max(values)
        span = max(high / low, 3.0)
        begin, end = low / span**0.1, high * span**0.15
        fine = _fine_ticks(low, high)
        choices = (style.decades(begin, end), [tick for tick in fine if begin <= tick <= end])
        narrow = style.nice_ticks(begin, end, 2 * FEWEST_TICKS)
        ticks = _spanning(next((each for each in choices if len(each) >= FEWEST_TICKS), narrow), fine, low, high)
        setting(min(begin, *ticks), max(end, *ticks))
        axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _fine_ticks(low: float, high: float) -> list[float]:
    """Return round numbers, the first at or below ``low`` and the last at or above ``high``."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in (1, 1.5, 2, 3, 4, 5, 7)]
    first, last = max(tick for tick in ticks if tick <= low), min(tick for tick in ticks if tick >= high)
    return [tick for tick in ticks if first <= tick <= last]


def _spanning(ticks: Sequence[float], fine: Sequence[float], low: float, high: float) -> list[float]:
    """Return ticks with one at or below the least value and one at or above the greatest, and without those too near to these."""
    first = [] if ticks[0] <= low else [fine[0]]
    last = [] if ticks[-1] >= high else [fine[-1]]
    near = (fine[-1] / fine[0]) ** 0.06
    kept = [tick for tick in ticks if all(max(tick / end, end / tick) > near for end in first + last)]
    return first + kept + last


def _cost_title(plan: GpuPlan, priced: bool) -> str:
    if not plan.feasible or plan.advice is None:
        return f"No part holds the limits: {plan.binds}"
    best = next(option for option in plan.options if option.gpu == plan.advice.gpu)
    what = f"{plan.model}: {best.gpus} × {best.name} hold all limits"
    if best.gpus == 1:
        what = f"{plan.model}: one {best.name} holds all limits"
    if priced and best.cost_per_hour is not None:
        return f"{what} at the lowest cost, {best.cost_per_hour:,.4g}{' ' + plan.currency if plan.currency else ''} an hour"
    return f"{what}, with the fewest GPUs"


def draw_fleets(plan: FleetPlan) -> Figure:
    """Draw the percentiles that have a limit against the number of servers, in units of the limit.

    Args:
        plan: the answer of :func:`costmodel.plan_replicas`.

    Raises:
        InputError: nothing was simulated.
    """
    if not plan.runs:
        raise InputError("nothing was simulated: no figure")
    limited = [name for name in NAMES if getattr(plan.limits, name) is not None]
    at = f"p{plan.limits.percentile:g}"
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _fleet_title(plan), _footer(plan))
        axes = figure.subplots()
        handles, names, every = [], [], [1.0]
        for name, (color, line, marker) in zip(limited, style.LOOKS, strict=False):
            limit = getattr(plan.limits, name)
            shown = [(run.servers, getattr(run, name) / limit) for run in plan.runs if getattr(run, name) is not None]
            if not shown:
                continue
            every += [value for _, value in shown]
            [drawn] = axes.plot(
                *zip(*shown, strict=True),
                color=color,
                linestyle=line,
                marker=marker,
                linewidth=2.6,
                markersize=10,
                markeredgecolor="white",
            )
            handles.append(drawn)
            names.append(f"{NAMES[name]} {at}, limit {style.format_limit(limit)}")
        handles.append(axes.axhline(1.0, color=style.INK, linewidth=1.6, linestyle=style.DASHED))
        names.append("limit")
        axes.set_yscale("log")
        low, high = min(every), max(every)
        span = max(high / low, 3.0)
        over = 0.15 if all(run.keeps_up for run in plan.runs) else 0.3  # with room for what is said of overload
        axes.set_ylim(low / span**0.12, high * span**over)
        ticks = style.decades(*axes.get_ylim())
        axes.yaxis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axes.yaxis.set_ticks([], minor=True)
        counts = [run.servers for run in plan.runs]
        axes.set_xlim(min(counts) - 0.5, max(counts) + 0.5)
        axes.set_xticks(_whole_ticks(min(counts), max(counts)))
        axes.grid(True)
        axes.set_xlabel("servers")
        axes.set_ylabel(f"{at} ÷ its limit")
        if plan.feasible and plan.at is not None:
            axes.axvline(plan.at.servers, color=style.GREY, linewidth=6, alpha=0.25, zorder=1)
        style.add_legend(figure, handles, names, 2)
        style.settle(figure)
        _mark_overload(axes, plan.runs)
    return figure


def _whole_ticks(low: int, high: int) -> list[int]:
    step = max(math.ceil(style.nice_step(max((high - low) / 10, 1))), 1)
    return [value for value in range(low, high + 1) if (value - low) % step == 0 or high - low <= 12]


def _mark_overload(axes: Axes, runs: Sequence[FleetRun]) -> None:
    """Write above the fleets that do not keep up that they do not."""
    top = axes.get_ylim()[1]
    for run in runs:
        if not run.keeps_up:
            axes.annotate(
                "too many\nrequests", (run.servers, top), (0, -6), textcoords="offset points", ha="center", va="top", size=style.SMALL_SIZE,
                color=style.INK,
            )  # fmt: skip


def _fleet_title(plan: FleetPlan) -> str:
    if not plan.feasible or plan.at is None:
        return f"No number of servers will do: {plan.binds}"
    load = plan.workload
    rate = f"{load['rate_per_s']:,.3g} requests a second"
    if plan.at.servers == 1:
        return f"One server holds the limits at {rate}"
    return f"{rate} take {plan.at.servers:,} servers; {plan.at.servers - 1:,} miss the limits"
