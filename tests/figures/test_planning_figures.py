"""Figures of `costmodel plan`: texts neither overlap nor leave the page, and the curves are those of the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import costmodel
from costmodel.cli.figures import draw_budgets, draw_costs, draw_fleets, draw_memory, style
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


@pytest.mark.parametrize(
    ("gpus", "model", "said"),
    [(["h100", "l40s"], "Qwen3-32B", "off scale: l40s"), (["b200", "t4", "l4"], "Llama-3.1-405B", "do not run it: ")],
)
def test_parts_that_are_not_drawn_are_named(gpus: list[str], model: str, said: str) -> None:
    drawn = draw_costs(costmodel.plan_gpu(tpot=0.01, gpus=gpus, model=model))
    names = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
    assert len([name for name in names if ": " in name]) == 1
    assert any(name.startswith(said) for name in names)


@pytest.mark.parametrize("name", ["costs", "costs without prices", "costs, none will do"])
def test_ticks_span_the_data(name: str) -> None:
    axes = figure(name).axes[0]
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    for axis, values in (
        (axes.xaxis, [line.get_xdata()[0] for line in marks]),
        (axes.yaxis, [line.get_ydata()[0] for line in marks]),
    ):
        assert axis.get_ticklocs()[0] <= min(values)
        assert axis.get_ticklocs()[-1] >= max(values)


def memory_bars(tp: int, length: int) -> Figure:
    plans = [costmodel.plan_memory("Llama-3.3-70B-Instruct", tp=size, max_model_len=length) for size in (1, 2, 4)]
    return draw_memory(list(zip(("TP 1", "TP 2", "TP 4"), plans, strict=True)), "size", (1, 2, 4).index(tp))


def test_memory_is_titled_by_the_size_that_was_asked_about() -> None:
    assert "does not fit with TP 2; with TP 4, 13.9 fit at once" in memory_bars(2, 32_000).get_label()
    assert "with TP 4, 13.9 sequences of 32,000 tokens fit" in memory_bars(4, 32_000).get_label()
    assert memory_bars(2, 4_000).get_label().endswith("fit at once; with TP 4, 111.1")


def test_no_line_runs_through_a_label_of_the_memory() -> None:
    axes = memory_bars(2, 32_000).axes[0]
    levels = [line.get_ydata()[0] for line in axes.lines]
    above = [text for text in axes.texts if "fit" in text.get_text() or "sequences" in text.get_text()]
    assert len(above) == 3
    assert all(text.get_position()[1] > max(levels) for text in above)


def test_no_mark_is_under_what_is_said_of_overload() -> None:
    plan = costmodel.plan_replicas(60.0, ttft=0.2, tpot=0.01, around=2, **LOAD)
    first = plan.runs[0].model_copy(update={"keeps_up": False, "ttft_s": 30.0})
    drawn = draw_fleets(plan.model_copy(update={"runs": (first, *plan.runs[1:])}))
    drawn.draw_without_rendering()
    axes = drawn.axes[0]
    said = [text.get_window_extent() for text in axes.texts if "too many" in text.get_text()]
    assert said
    for line in axes.lines[:2]:
        for x, y in axes.transData.transform(line.get_xydata()):
            assert not any(box.x0 <= x <= box.x1 and y + 8 > box.y0 for box in said)


def test_the_footer_says_that_lengths_spread(texts: Callable[[Figure], list[Text]]) -> None:
    assert any("requests/s of 1,000 + 100 tokens" in text.get_text() for text in texts(figure("one server")))
    drawn = draw_fleets(costmodel.plan_replicas(1.0, ttft=1.0, spread=0.5, **LOAD))
    assert any("requests/s of up to 1,000 + 100 tokens" in text.get_text() for text in texts(drawn))
