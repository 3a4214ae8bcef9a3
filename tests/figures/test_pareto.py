"""The figure of a sweep: texts stay apart and on the page, every frontier is drawn whole, and what cannot be drawn is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import costmodel
from costmodel.cli.figures.pareto import MOST_POINTS, draw_pareto, series_of
from costmodel.hardware.errors import InputError

SWEEPS: dict[str, dict[str, Any]] = {
    "one row": {},
    "parts": {"gpu": ["h100", "h200", "b200", "a100", "l40s"], "streams": [1, 8, 64], "prompt": 1000},
    "models": {
        "gpu": ["h100", "mi300x", "rtx-pro-6000-blackwell-server"],
        "model": ["Llama-3.1-8B", "Mistral-Small-3.1-24B-2503"],
        "streams": [1, 8, 64],
        "prompt": 1000,
        "tp": [1, 2, 3],
    },
    "many": {"streams": range(1, 129), "prompt": range(100, 2100, 20)},
    "simulated": {
        "simulate": "load",
        "rate": [1, 4],
        "requests": 10,
        "prompt": 100,
        "output": 10,
        "workers": 1,
        "gpu": ["h100", "a100"],
    },
}


@cache
def swept(name: str) -> costmodel.Sweep:
    return costmodel.sweep(prices={"h100": 2.5, "a100": 1.5}, **SWEEPS[name])


@pytest.mark.parametrize("figure", ["tpot", "interactivity", "price"])
@pytest.mark.parametrize("name", SWEEPS)
def test_texts_neither_overlap_nor_leave_the_page(
    name: str, figure: str, collisions: Callable[[Figure], list[str]]
) -> None:
    drawn = draw_pareto(swept(name), figure)
    assert collisions(drawn) == []
    assert " at " in str(drawn.get_label())
    assert "ms per token" in str(drawn.get_label())


def test_frontiers_are_drawn_whole_and_the_rest_is_thinned() -> None:
    found = swept("many")
    tpot, gain = found.numbers("tpot_s"), found.numbers("output_tokens_per_s_per_gpu")
    [series] = series_of(found, tpot, gain)
    assert len(series.places) > MOST_POINTS
    [axes] = draw_pareto(found, "tpot").axes
    faint, line, rings = axes.lines
    assert len(faint.get_xdata()) <= MOST_POINTS
    assert np.array_equal(line.get_xdata(), tpot[series.best] * 1e3)
    assert np.array_equal(rings.get_ydata(), gain[series.best])
    assert np.all(np.diff(line.get_ydata()) > 0)


def test_what_cannot_be_drawn_is_told() -> None:
    with pytest.raises(InputError, match="no row has a TPOT"):
        draw_pareto(costmodel.sweep(tp=3), "tpot")
    with pytest.raises(InputError, match="no row has a price and a TPOT"):
        draw_pareto(costmodel.sweep(), "price")
    parts = ["h100", "h200", "b200", "a100", "l40s", "mi300x", "b300", "gb200", "gb300"]
    with pytest.raises(InputError, match="9 lines, one for each model on each GPU, are more than the 8"):
        draw_pareto(costmodel.sweep(gpu=parts, prompt=100), "tpot")
