"""Figures of `costmodel plan`: texts neither overlap nor leave the page, and the curves are those of the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import costmodel
from costmodel.cli.figures import draw_budgets, draw_costs, draw_fleets, style
from costmodel.errors import InputError
from costmodel.planning.documents import ChunkPlan

PRICES = {"h100": 2.5, "h200": 3.4, "b200": 5.0, "l40s": 1.0, "a100": 1.4}
LOAD = {"prompt": 1000, "output": 100, "requests": 200}
FIGURES: dict[str, Callable[[], Figure]] = {
    "budgets": lambda: draw_budgets(costmodel.plan_chunk(itl=0.05)),
    "budgets, two limits": lambda: draw_budgets(costmodel.plan_chunk(32_000, itl=0.2, ttft=3.0)),
    "budgets, none will do": lambda: draw_budgets(costmodel.plan_chunk(itl=0.005)),
    "budgets, one step": lambda: draw_budgets(costmodel.plan_chunk(200, itl=1.0)),
    "costs": lambda: draw_costs(costmodel.plan_gpu(tpot=0.02, ttft=1.0, model="Llama-3.3-70B-Instruct", prices=PRICES)),
    "costs without prices": lambda: draw_costs(costmodel.plan_gpu(tpot=0.02)),
    "costs, none will do": lambda: draw_costs(costmodel.plan_gpu(tpot=0.0015, gpus=["h100", "h200"])),
    "fleets": lambda: draw_fleets(costmodel.plan_replicas(60.0, ttft=0.2, tpot=0.01, around=2, **LOAD)),
    "one server": lambda: draw_fleets(costmodel.plan_replicas(1.0, ttft=1.0, around=2, **LOAD)),
    "no number of servers": lambda: draw_fleets(costmodel.plan_replicas(1.0, ttft=0.001, **LOAD)),
}


@cache
def figure(name: str) -> Figure:
    return FIGURES[name]()


@pytest.mark.parametrize("name", FIGURES)
def test_texts_can_be_read(
    name: str, texts: Callable[[Figure], list[Text]], collisions: Callable[[Figure], list[str]]
) -> None:
    drawn = figure(name)
    assert collisions(drawn) == []
    assert min(text.get_fontsize() for text in texts(drawn)) >= style.FOOTER_SIZE
    assert drawn.get_label()
    for axes in drawn.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()


def test_the_curves_are_those_of_the_answer() -> None:
    plan = costmodel.plan_chunk(itl=0.05)
    gaps, ttfts = figure("budgets").axes[0].lines[:2]
    assert list(gaps.get_xdata()) == [point.max_num_batched_tokens for point in plan.points]
    assert list(gaps.get_ydata()) == pytest.approx([point.itl_s * 1e3 for point in plan.points])
    assert list(ttfts.get_ydata()) == pytest.approx([point.ttft_s * 1e3 for point in plan.points])
    fleet = costmodel.plan_replicas(60.0, ttft=0.2, tpot=0.01, around=2, **LOAD)
    line = figure("fleets").axes[0].lines[0]
    assert list(line.get_xdata()) == [run.servers for run in fleet.runs]


def test_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="nothing was simulated"):
        draw_fleets(costmodel.plan_replicas(1.0, ttft=1.0, model="Llama-3.3-70B-Instruct"))
    with pytest.raises(InputError, match="nothing to draw"):
        draw_costs(costmodel.plan_gpu(tpot=0.02, gpus=["t4"], model="Llama-3.1-405B"))
    with pytest.raises(InputError, match="no token budget"):
        draw_budgets(
            ChunkPlan.model_validate({**costmodel.plan_chunk(itl=0.05).model_dump(by_alias=True), "points": ()})
        )
