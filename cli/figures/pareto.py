"""Figure: throughput of a GPU against what a user waits for a token, one line per GPU, model and work, the frontier marked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from costmodel.cli.figures import style
from costmodel.cli.text import count, plural, significant
from costmodel.hardware.catalog import title
from costmodel.hardware.errors import InputError
from costmodel.sweeping.columns import Column
from costmodel.sweeping.pareto import WORK, comparable, frontier, frontiers, groups_of, waiting
from costmodel.sweeping.results import Sweep

MOST_POINTS: Final = 4000
"""More points of a series are thinned out; those of its frontier never."""

WORDS: Final = {
    "prompt_tokens": "prompts of {:,.0f}", "output_tokens": "answers of {:,.0f}", "context_tokens": "contexts of {:,.0f}",
    "rate_per_s": "{:.4g} prompts/s",
}  # fmt: skip
"""Of what makes the work of rows different."""
MOST_MARKED: Final = 40
"""Of the points of a line not more are marked one by one."""
_RING: Final = 17


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Rows of one model with one work on one GPU, at one rung.

    Attributes:
        name: for the legend.
        places: of all its rows.
        best: of those on its own frontier, by rising TPOT.
    """

    name: str
    places: np.ndarray
    best: np.ndarray


def draw_pareto(found: Sweep, figure: str) -> Figure:
    """Draw the rows of a sweep.

    Args:
        found: rows with a TPOT.
        figure: ``tpot``, ``interactivity`` (tokens/s that one user gets) or ``price`` (tokens for a unit of currency, against TPOT).

    Raises:
        InputError: no row has an answer, or there are more lines than can be told apart.
    """
    tpot, priced = waiting(found.columns), figure == "price"
    gain = 1 / found.numbers("cost_per_million_tokens") if priced else found.numbers("output_tokens_per_s_per_gpu")
    best = frontiers(comparable(found.kind, found.columns), tpot, gain)
    if not len(best):
        what = "a price and a TPOT" if priced else "a TPOT"
        raise InputError(f"there is nothing to draw: no row has {what} (see the reasons in the table)")
    series = series_of(found, tpot, gain)
    check_lines(len(series))
    across = 1 / tpot if figure == "interactivity" else tpot * 1e3
    with style.styled():
        drawn = style.new_figure()
        style.add_frame(drawn, _title(found, series, best, gain, priced), _footer(found))
        axes = drawn.subplots()
        handles = []
        for each, (color, line, marker) in zip(series, style.LOOKS, strict=False):
            others = each.places[:: -(-len(each.places) // MOST_POINTS)]
            faint: dict[str, Any] = {"color": color, "markersize": 4, "alpha": 0.35, "linestyle": "", "clip_on": False}
            axes.plot(across[others], gain[others], marker, zorder=2, **faint)
            looks: dict[str, Any] = {
                "color": color,
                "linestyle": line,
                "marker": marker,
                "linewidth": 2.4,
                "markersize": 8,
            }
            looks |= {"markeredgecolor": "white", "markeredgewidth": 0.6}
            every = _every(len(each.best))
            axes.plot(across[each.best], gain[each.best], zorder=3, clip_on=False, markevery=every, **looks)
            handles.append(Line2D([], [], **looks))
        ring: dict[str, Any] = {
            "marker": "o", "markersize": _RING, "markerfacecolor": "none", "markeredgecolor": style.INK, "linestyle": "",
            "markeredgewidth": 1.4,
        }  # fmt: skip
        axes.plot(across[best], gain[best], zorder=4, clip_on=False, markevery=_every(len(best)), **ring)
        handles.append(Line2D([], [], **{**ring, "markersize": 11}))
        _scale(axes, across[~np.isnan(across) & ~np.isnan(gain)])
        loop = ", closed loop" if found.kind == "steps" else ""
        axes.set_xlabel(
            ("tokens/s that one user gets" if figure == "interactivity" else "time per output token [ms]") + loop
        )
        axes.set_ylabel(f"million output tokens per {_unit(found)}" if priced else "output tokens/s per GPU")
        axes.grid(True)
        names = [*(each.name for each in series), "no comparable row beats it"]
        style.add_legend(drawn, handles, names, _legend_columns(drawn, names))
        style.settle(drawn)
    return drawn


def check_lines(count: int) -> None:
    """Raise :class:`InputError` for more lines than can be told apart."""
    if count > len(style.LOOKS):
        raise InputError(
            f"{count:,} lines, one for each model, GPU, prompt and answer, are more than the {len(style.LOOKS)} that can be told apart; "
            "sweep fewer of them"
        )


def series_of(found: Sweep, tpot: np.ndarray, gain: np.ndarray) -> list[Series]:
    """Return the rows with an answer, group by group that may be compared and GPU by GPU; named by what differs, floors as such."""
    there = np.flatnonzero(~np.isnan(tpot) & ~np.isnan(gain))
    columns = {name: Column(each.type, each.values[there], each.texts) for name, each in found.columns.items()}
    each = groups_of(
        {"group": Column("whole", comparable(found.kind, columns).astype(float)), **columns}, ("group", "gpu")
    )
    order = np.argsort(each, kind="stable")
    firsts = np.flatnonzero(np.diff(each[order], prepend=-1))
    check_lines(len(firsts))
    several = [name for name in ("model", *WORK[found.kind]) if len(np.unique(columns[name].values)) > 1]
    made = []
    for places in np.split(there[order], firsts[1:]):
        top = found.rows[int(places[0])]
        words = [getattr(top, name) if name == "model" else WORDS[name].format(getattr(top, name)) for name in several]
        name = ", ".join([*words[: "model" in several], _part(top.gpu), *words["model" in several :]])
        name += " (a floor)" if top.rung == "roofline" else ""
        made.append(Series(name, places, places[frontier(tpot[places], gain[places])]))
    return made


def _part(gpu: str) -> str:
    try:
        return title(gpu)
    except (InputError, KeyError):  # a profile of one's own
        return Path(gpu).stem


def _every(count: int) -> int:
    """Return how many points of a line there are to one that is marked."""
    return max(-(-count // MOST_MARKED), 1)


def _legend_columns(figure: Figure, names: list[str]) -> int:
    """Return how many entries of a legend fit beside each other."""
    widest = max(style.text_width(figure, name, style.SMALL_SIZE) for name in names) + 0.9
    return max(min(int((figure.get_size_inches()[0] - 0.5) / widest), 4), 1)


def _scale(axes: Axes, across: np.ndarray) -> None:
    """Begin both axes at zero, or make that of the waiting time logarithmic where it spans more than a decade."""
    axes.set_ylim(bottom=0)
    low, high = float(across.min()), float(across.max())
    top = axes.get_ylim()[1]
    axes.yaxis.set_ticks(ticks := style.nice_ticks(0, top, 7), [style.plain(tick, ticks[1]) for tick in ticks])
    if high > 10 * low:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        ticks = style.decades(*axes.get_xlim())
        axes.xaxis.set_ticks(ticks, [style.plain(tick) for tick in ticks])
        axes.xaxis.set_ticks([], minor=True)
    else:
        axes.set_xlim(0, high * 1.05)
        ticks = style.nice_ticks(0, high * 1.05, 8)
        axes.xaxis.set_ticks(ticks, [style.plain(tick, ticks[1]) for tick in ticks])


def _title(found: Sweep, series: list[Series], best: np.ndarray, gain: np.ndarray, priced: bool) -> str:
    """Say what the row with most throughput is, of those that were measured where there are any."""
    rung = found.columns["rung"]
    measured = [place for place in best.tolist() if rung.texts[int(rung.values[place])] != "roofline"]
    place = max(measured or best.tolist(), key=lambda each: gain[each])
    top = found.rows[place]
    name = next(each.name for each in series if place in each.places)
    what = f"million tokens per {_unit(found)}" if priced else "tokens/s per GPU"
    most = significant(float(gain[place]), 3)
    return f"{most} {what} at {significant((top.tpot_s or 0) * 1e3, 3)} ms per token: {name}, TP {top.tensor_parallel}, {top.dtype}"


def _unit(found: Sweep) -> str:
    return found.currency or "unit of currency"


def _footer(found: Sweep) -> str:
    answered = int((~found.columns["tpot_s"].missing).sum())
    how = {"steps": "closed form", "load": "simulated load", "interference": "simulated long-prompt experiment"}[
        found.kind
    ]
    models = found.columns["model"].texts
    rungs = " and ".join(found.columns["rung"].texts)
    about = [models[0] if len(models) == 1 else plural(len(models), "model")]
    for name, what in (("prompt_tokens", "prompts"), ("output_tokens", "answers")):
        values = found.columns[name].values
        if len(values) and (values == values[0]).all():
            about.append(f"{what} of {values[0]:,.0f} tokens")
    about += [how, rungs]
    about += [f"{count(answered)} of {plural(len(found), 'row')}", style.creator()]
    return " · ".join(about)
