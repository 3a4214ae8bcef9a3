"""Figures of simulations: every kind of run is drawn, texts neither overlap nor leave the page, spikes are never thinned out."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from costmodel.cli.figures import style
from costmodel.cli.figures.distribution import Curve, draw_distribution
from costmodel.cli.figures.itl import MOST_POINTS, Panel, draw_itl
from costmodel.cli.figures.ladder import Ladder, draw_ladder
from costmodel.cli.figures.load import Course, draw_load
from costmodel.cli.figures.tokens import Injected, draw_tokens
from costmodel.cli.simulate_figures import KINDS, check_count
from costmodel.hardware.errors import InputError
from costmodel.simulation.interfering import run_interference
from costmodel.simulation.pools import Pools
from costmodel.simulation.simulating import Simulated, run_load

EXPERIMENTS: dict[str, list[dict[str, Any]]] = {
    "default": [{}],
    "lesson": [{"decode_s": 0.010, "prefill_s": 0.1464}],
    "often": [{"every": 0.2}],
    "grow": [{"grow": True, "model": "gpt-oss-20b"}],
    "two budgets": [{"chunk": 512}, {}],
    "four budgets": [{"chunk": 512}, {"chunk": 1024}, {"chunk": 2048}, {}],
    "not felt": [{"prompt": 2, "rung": "roofline"}],
    "pools": [{"pools": Pools(), "injected_output": 20}],
    "huge": [{"prompt": 120_000, "every": 20.0, "streams": 1}],
}
LOADS: dict[str, dict[str, Any]] = {
    "light": {"rate": 2.0, "requests": 40},
    "out of memory": {"rate": 30.0, "requests": 200, "kv_tokens": 20_000},
    "one": {"rate": 1.0, "requests": 1},
    "pools": {"rate": 10.0, "requests": 60, "pools": Pools(2, 1)},
}
KIND_OF_EXPERIMENT = ("itl", "percentiles", "distribution", "load")
KIND_OF_LOAD = ("percentiles", "distribution", "load")
CASES = [
    (kind, name) for kind in KIND_OF_EXPERIMENT for name in EXPERIMENTS if kind != "load" or len(EXPERIMENTS[name]) == 1
]
CASES += [(kind, f"load {name}") for kind in KIND_OF_LOAD for name in LOADS]


@cache
def simulated(name: str) -> tuple[Simulated, ...]:
    if name.startswith("load "):
        asked = dict(LOADS[name.removeprefix("load ")])
        rate, requests, pools = asked.pop("rate"), asked.pop("requests"), asked.pop("pools", None)
        return (run_load(None, rate, 1.0, requests, None, 1000, 100, 0.5, 0.0, 0.0, 0, None, pools, asked),)  # type: ignore[arg-type]
    found = []
    for changed in EXPERIMENTS[name]:
        asked = {
            "prompt": 8000, "streams": 32, "context": 500, "every": 10.0, "first": 5.0, "duration": 40.0, "prompts": 1, "grow": False,
            "injected_output": 1, "limits": None, "pools": None,
        }  # fmt: skip
        options = {key: value for key, value in changed.items() if key not in asked}
        asked |= {key: value for key, value in changed.items() if key in asked}
        found.append(run_interference(**asked, options=options, keep_times=True))
    return tuple(found)


@cache
def drawn(kind: str, name: str) -> Figure:
    return KINDS[kind](simulated(name))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_texts_neither_overlap_nor_leave_the_page(
    kind: str, name: str, collisions: Callable[[Figure], list[str]]
) -> None:
    assert collisions(drawn(kind, name)) == []


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_titles_state_numbers_and_axes_units(kind: str, name: str, texts: Callable[[Figure], list[Text]]) -> None:
    figure = drawn(kind, name)
    assert re.search(r"\d (s|ms|µs)\b", str(figure.get_label()))
    for axes in figure.axes:
        labels = axes.get_xlabel() + axes.get_ylabel()
        assert re.search(r"\((s|ms|µs|%|requests|blocks)\)", labels)
    assert min(text.get_fontsize() for text in texts(figure)) >= style.FOOTER_SIZE
    [foot] = [text.get_text() for text in figure.texts if "costmodel" in text.get_text()]
    server = simulated(name)[0].document.server
    assert server.model is None or f"on {server.gpus} × H100" in foot
    assert "…" not in foot


def stems(figure: Figure, index: int) -> list[float]:
    """Return the heights of the stems of a panel."""
    first = next(item for item in figure.axes[index].collections if isinstance(item, LineCollection))
    return [float(segment[1][1]) for segment in first.get_segments()]


def test_stems_are_the_spikes_and_both_panels_have_one_axis() -> None:
    figure, found = drawn("itl", "default"), simulated("default")[0].document
    assert stems(figure, 0) == []
    assert stems(figure, 1) == pytest.approx([spike.height_s * 1e3 for spike in found.spikes])
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    for name in ("default", "two budgets"):
        for axes, each in zip(drawn("itl", name).axes[-len(simulated(name)) :], simulated(name), strict=True):
            dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
            assert each.document.injected is not None
            assert each.document.injected.itl is not None
            heights = [line.get_ydata()[0] for line in dashed]
            assert heights == pytest.approx([each.document.injected.itl.max_s * 1e3], rel=0.01)


def test_thinning_keeps_every_piece_of_time_with_its_tallest_gap() -> None:
    ends = np.linspace(0.001, 100, 200_000)
    gaps = np.where(np.arange(200_000) % 2, 0.01, 0.1)
    gaps[123_457] = 0.25
    figure = draw_itl([Panel("many", ends, gaps, 0.01, 0.25)], 100.0, "title", "foot")
    heights = stems(figure, 0)
    assert len(heights) <= MOST_POINTS + 1
    assert max(heights) == pytest.approx(250)


def test_the_distribution_crosses_the_percentiles() -> None:
    axes, result = drawn("distribution", "lesson").axes[0], simulated("lesson")[0].document.injected
    assert result is not None
    injected = axes.lines[0]
    longer = float(np.interp(50.0, injected.get_xdata(), injected.get_ydata()))
    assert longer == pytest.approx(result.stalls / result.gaps)


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(InputError, match="no gap"):
        draw_itl([Panel("none", np.array([]), np.array([]), 0.0, 0.0)], 1.0, "title", "foot")
    with pytest.raises(InputError, match="panels"):
        draw_itl([], 1.0, "title", "foot")
    with pytest.raises(InputError, match="ladder"):
        draw_ladder([Ladder("none", {})], "gap", "title", "foot")
    with pytest.raises(InputError, match="distributions"):
        draw_distribution([], "title", "foot")
    with pytest.raises(InputError, match="no step"):
        draw_load(Course(*np.zeros((4, 0))), None, "title", "foot")


def test_a_distribution_may_be_one_gap() -> None:
    figure = draw_distribution([Curve("one", np.array([0.01, 0.0100001]), np.array([1.0, 0.0]))], "title", "foot")
    assert len(figure.axes) == 1


def test_every_panel_of_a_load_goes_in_steps_up_to_its_last_tick() -> None:
    for name in ("load out of memory", "load light", "default"):
        for axes in drawn("load", name).axes:
            assert {line.get_drawstyle() for line in axes.lines} == {"steps-post"}
            peak = max(axes.lines[0].get_ydata())
            assert peak <= axes.get_yticks()[-1] <= axes.get_ylim()[1]


def test_who_waits_has_a_panel_only_if_somebody_does() -> None:
    for name, panels in (("load out of memory", 3), ("load light", 2)):
        labels = [axes.get_ylabel().split()[0] for axes in drawn("load", name).axes]
        assert len(labels) == panels
        assert ("waiting" in labels) == (panels == 3)


def test_the_title_of_pools_is_about_what_the_panels_show() -> None:
    figure, [found] = drawn("load", "load pools"), simulated("load pools")
    running, cache = (max(axes.lines[0].get_ydata()) for axes in figure.axes)
    assert running > found.document.result.running_max  # type: ignore[union-attr]
    title = str(figure.get_label())
    assert f"Up to {running:.0f} requests run on 3 servers" in title
    assert f"at most {cache:.1f} % of all KV caches" in title


def test_a_value_of_a_ladder_is_written_once() -> None:
    rungs = {"p50": 0.01, "p90": 0.01, "p99": 0.02, "p99.9": 0.03, "max": 0.03}
    figure = draw_ladder([Ladder("one", rungs)], "gap", "title", "foot")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(texts) == ["10.0 ms", "20.0 ms", "one\n30.0 ms"]


def test_a_legend_names_what_is_drawn() -> None:
    spikes = "gaps over 1.5 × the median"
    for name, expected in (("default", True), ("not felt", False), ("pools", False)):
        [legend] = drawn("itl", name).legends
        assert (spikes in [text.get_text() for text in legend.get_texts()]) == expected


def test_a_budget_of_one_step_is_named() -> None:
    titles = [axes.get_title("left").splitlines()[0] for axes in drawn("itl", "two budgets").axes]
    assert titles == ["budget 512", "one step (8,032)"]
    assert [text.get_text() for text in drawn("distribution", "two budgets").legends[0].get_texts()] == [
        "budget 512", "one step (8,032)", "baseline",
    ]  # fmt: skip


def test_several_loads_are_distributions_of_one_figure() -> None:
    found = (*simulated("load light"), *simulated("load pools"))
    figure = KINDS["distribution"](found)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["vllm", "disaggregated"]
    assert len(figure.axes[0].lines) >= 2
    [foot] = [text.get_text() for text in figure.texts if "costmodel" in text.get_text()]
    assert "Llama-3.1-8B on H100 SXM5 80GB" in foot


def test_figures_of_more_than_they_can_show_are_refused() -> None:
    for figure, count, experiment in (
        ("itl", 5, True),
        ("load", 2, True),
        ("percentiles", 2, False),
        ("percentiles", 8, True),
    ):
        with pytest.raises(InputError):
            check_count(figure, count, experiment)
    for figure, count, experiment in (
        ("itl", 4, True),
        ("load", 1, False),
        ("percentiles", 7, True),
        ("distribution", 8, False),
    ):
        check_count(figure, count, experiment)


def test_many_injections_are_not_marked_one_by_one() -> None:
    axes = drawn("itl", "often").axes[1]
    assert all(line.get_marker() != "^" for line in axes.lines)
    assert any(line.get_marker() == "^" for line in drawn("itl", "default").axes[1].lines)


def test_a_prediction_has_the_look_of_what_it_is_about(collisions: Callable[[Figure], list[str]]) -> None:
    rungs = {"p50": 0.016, "p90": 0.024, "p99": 0.1, "p99.9": 0.15, "max": 0.33}
    high = {"p50": 0.0161, "p90": 0.022, "p99": 0.05, "p99.9": 0.63, "max": 0.655}
    ladders = [
        Ladder("one step, measured", high, 0),
        Ladder("one step, predicted", high, 0, hollow=True),
        Ladder("budget 256, measured", rungs, 1),
        Ladder("budget 256, predicted", rungs, 1, hollow=True),
        Ladder("baseline", dict.fromkeys(rungs, 0.013), 2),
    ]
    figure = draw_ladder(ladders, "gap", "title", "foot")
    assert collisions(figure) == []
    curves = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(rungs)]
    for measured, predicted in ((0, 1), (2, 3)):
        one, other = curves[measured], curves[predicted]
        assert (one.get_color(), one.get_marker()) == (other.get_color(), other.get_marker())
        assert one.get_linestyle() == "-" != other.get_linestyle()
        assert other.get_markerfacecolor() == "white" != one.get_markerfacecolor()


@pytest.mark.parametrize("steps", [1, 9])
def test_the_label_of_a_spike_hides_no_token(steps: int, texts: Callable[[Figure], list[Text]]) -> None:
    tokens = [0.1 * index for index in range(21) if steps > 1 or not 10 < index < 19]
    injected = Injected(1.0, 1.9, (1.0, 1.9), 0.9 / steps, steps)
    figure = draw_tokens([tokens] * 4, injected, (0.0, 2.0), "title", "foot")
    figure.draw_without_rendering()
    [label] = [
        text for text in texts(figure) if "no token for" in text.get_text() or "gaps of up to" in text.get_text()
    ]
    axes, box = figure.axes[0], label.get_window_extent()
    ticks = [axes.transData.transform((moment - 1.0, 0))[0] for moment in tokens]
    below = box.y0 < axes.get_window_extent().y1
    assert below == (steps == 1)
    assert not (below and any(box.x0 < tick < box.x1 for tick in ticks))
