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
from costmodel.prices import Prices

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
    "many": {"streams": range(1, 129), "context": range(100, 2100, 20), "prompt": 500},
    "works": {"gpu": ["h100", "h100-pcie"], "streams": [1, 8, 64], "prompt": [100, 1000], "output": [50, 500]},
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
    with pytest.raises(InputError, match="9 lines, one for each model, GPU, prompt and answer, are more than the 8"):
        draw_pareto(costmodel.sweep(gpu=parts, prompt=100), "tpot")


def names_of(figure: Figure) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_each_work_and_each_floor_is_a_line_of_its_own(collisions: Callable[[Figure], list[str]]) -> None:
    drawn = draw_pareto(swept("works"), "tpot")
    assert len(names_of(drawn)) == 2 * 4 + 1
    assert "NVIDIA H100 SXM5 80GB, prompts of 100, answers of 50" in names_of(drawn)
    assert "NVIDIA H100 PCIe 80GB, prompts of 1,000, answers of 500 (a floor)" in names_of(drawn)
    assert "a floor" not in str(drawn.get_label())
    assert "(a floor)" in str(draw_pareto(costmodel.sweep(gpu="h100-pcie"), "tpot").get_label())


def test_the_title_is_of_a_row_with_a_tpot() -> None:
    """Answers of one token have no TPOT, but the most tokens."""
    found = costmodel.sweep(
        **{
            "simulate": "load",
            "streams": 1,
            "prompt": 1,
            "requests": 20,
            "output": [1, 2],
            "calibration": "none",
            "workers": 1,
        }
    )
    assert found.rows[0].tpot_s is None
    assert " at " in str(draw_pareto(found, "tpot").get_label())


def test_prices_are_drawn_in_their_currency() -> None:
    found = costmodel.sweep(streams=[1, 8], prices=Prices({"h100-sxm": 2.5}, "EUR"))
    [axes] = draw_pareto(found, "price").axes
    assert axes.get_ylabel() == "million output tokens per EUR"
    assert axes.get_xlabel() == "time per output token [ms], closed loop"
    cost = found.numbers("cost_per_million_tokens")
    assert max(axes.lines[-1].get_ydata()) == 1 / cost.min()
