"""Figures of `costmodel explain`: texts neither overlap nor leave the page, and the curves are those of the document."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import costmodel
from costmodel.cli.explain_figures import DRAWN_BY, draw_topic, draw_way
from costmodel.cli.figures import style
from costmodel.explaining.asking import TOPICS

CASES: dict[str, dict[str, object]] = {
    "usual": {},
    "short": {"context": 500},
    "latent": {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8},
    "windows": {"model": "gpt-oss-120b", "gpu": "mi300x"},
    "small": {"model": "Llama-2-7B", "gpu": "l40s", "streams": 1, "context": 1000},
    "full": {"model": "Llama-3.1-70B", "gpu": "rtx-3090"},
    "one token": {"context": 1, "output": 1, "streams": 1},
    "window": {"context": 131_072, "streams": 2},
    "chunks": {"model": "Llama-4-Scout-17B-16E-Instruct", "tp": 4, "context": 16_000},
    "recurrent": {"model": "Qwen3-Next-80B-A3B-Instruct", "gpu": "h200", "tp": 2, "context": 200_000},
}
REQUESTS: dict[str, dict[str, object]] = {
    "one step": {},
    "chunks": {"chunk": 512, "output": 20},
    "short": {"prompt": 30, "output": 5, "streams": 1},
    "one token": {"prompt": 300, "output": 1},
    "long answer": {"prompt": 100, "output": 2000, "streams": 4},
}


@cache
def figure(name: str, case: str) -> Figure:
    if name == "request":
        return draw_way(costmodel.explain_request(**REQUESTS[case]))  # type: ignore[arg-type]
    return draw_topic(costmodel.explain(name, **CASES[case]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "case"), [*((name, case) for name in TOPICS for case in CASES), *(("request", case) for case in REQUESTS)]
)
def test_texts_can_be_read(
    name: str, case: str, texts: Callable[[Figure], list[Text]], collisions: Callable[[Figure], list[str]]
) -> None:
    drawn = figure(name, case)
    assert collisions(drawn) == []
    assert min(text.get_fontsize() for text in texts(drawn)) >= style.FOOTER_SIZE
    assert drawn.get_label()
    assert drawn.axes[-1].get_xlabel() or name == "gqa"


def test_every_topic_is_drawn() -> None:
    assert set(DRAWN_BY) == set(TOPICS)


def test_the_curves_are_those_of_the_document() -> None:
    [topic] = costmodel.explain("batch-size").topics
    table = topic.table("batches")
    tpot, rate = figure("batch-size", "usual").axes
    assert list(tpot.lines[0].get_xdata()) == table.column("streams")
    assert list(tpot.lines[0].get_ydata()) == pytest.approx([1e3 * float(str(each)) for each in table.column("tpot_s")])
    assert list(rate.lines[0].get_ydata()) == pytest.approx(table.column("tokens_per_s"))


def test_the_number_of_the_title_is_a_point_of_the_roofline() -> None:
    for case in ("usual", "latent", "windows"):
        [topic] = costmodel.explain("decode-bound", **CASES[case]).topics  # type: ignore[arg-type]
        drawn = figure("decode-bound", case)
        intensity = topic.numbers["decode_flops_per_byte"]
        assert any(line.get_xdata()[0] == pytest.approx(intensity) for line in drawn.axes[0].lines)
        names = [text.get_text() for text in drawn.legends[0].get_texts()]
        assert f"decode, 32 streams: all of it: {style.significant(float(str(intensity)))} FLOP/B" in names


def test_decode_steps_of_kv_heads_are_those_of_a_batch_that_fits() -> None:
    [topic] = costmodel.explain("gqa").topics
    [axes] = figure("gqa", "usual").axes
    assert axes.get_xticklabels()[-1].get_text() == "decode step\n(time, 13 streams)"
    mha, own, *_ = (float(str(value)) for value in topic.table("variants").column("decode_step_s"))
    assert any(text.get_text() == f"{100 * own / mha:.3g}" for text in axes.texts)
    assert (topic.numbers["compared_streams"], topic.numbers["mha_most_streams_in_kv_cache"]) == (13, 13)


@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_is_named_once_and_summed(case: str) -> None:
    [topic] = costmodel.explain("kv-cache", **CASES[case]).topics  # type: ignore[arg-type]
    [axes] = figure("kv-cache", case).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(set(names)) == len(names)
    values = dict(
        zip(names, (float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() != "None"), strict=True)
    )
    assert values["kept, all together"] == pytest.approx(topic.numbers["kv_bytes_per_token"])
    assert ("states (per sequence)" in values) is ("state_bytes_per_sequence" in topic.numbers)
    assert values["Q"] == pytest.approx(topic.numbers["q_bytes_per_token"])


def test_prefill_and_answer_are_drawn_to_one_scale() -> None:
    [topic] = costmodel.explain("prefix-cache").topics
    rows = topic.table("shares").rows
    left, right = figure("prefix-cache", "usual").axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx(
        [1e3 * float(str(row["prefill_s"])) for row in rows]
    )
    prefill, answer = right.containers
    assert [bar.get_width() for bar in prefill] == pytest.approx([float(str(row["prefill_s"])) for row in rows])
    assert [bar.get_width() for bar in answer] == pytest.approx([float(str(row["answer_s"])) for row in rows])
    assert len(right.get_xticks()) >= 3


@pytest.mark.parametrize("name", ["long-context", "quadratic"])
def test_the_longest_context_has_a_tick(name: str) -> None:
    for axes in figure(name, "usual").axes:
        assert axes.get_xticks()[-1] == 131_072
        assert axes.get_xticklabels()[-1].get_text() == "128k"


def test_the_request_of_the_title_is_marked() -> None:
    [axes] = figure("quadratic", "usual").axes
    assert any(list(line.get_xdata()) == [8000, 8000] for line in axes.lines)


def test_the_shares_of_a_request_fill_the_figure() -> None:
    [axes] = figure("quadratic", "usual").axes
    tops = [collection.get_paths()[0].vertices for collection in axes.collections]
    assert max(float(np.max(points[:, 1])) for points in tops) == pytest.approx(100)


def test_the_steps_and_blocks_are_those_of_the_request() -> None:
    document = costmodel.explain_request(**REQUESTS["chunks"])  # type: ignore[arg-type]
    _, steps, blocks = figure("request", "chunks").axes
    assert sum(len(collection.get_paths()) for collection in steps.collections) == len(document.steps)
    held = blocks.lines[0].get_ydata()
    assert list(held) == [*(step.own_kv_blocks for step in document.steps), 0]


def test_the_speed_up_of_the_title_is_on_a_curve_and_the_last_batch_has_a_tick() -> None:
    [topic] = costmodel.explain("speculation").topics
    [axes] = figure("speculation", "usual").axes
    here = topic.numbers["streams"], topic.numbers["speedup_ratio"]
    best = next(line for line in axes.lines if line.get_label() == "the best k of each batch")
    assert here in zip(best.get_xdata(), best.get_ydata(), strict=True)
    assert topic.finding.endswith(f"{float(str(here[1])):.2f} × as fast")
    assert axes.get_xticks()[-1] == topic.table("batches").column("streams")[-1]
    assert 32 in axes.get_xticks()
    assert "asked about: batch of 32" in [text.get_text() for text in axes.figure.legends[0].get_texts()]  # type: ignore[union-attr]


@pytest.mark.parametrize("streams", [1, 13, 48, 60, 500])
def test_the_batch_that_is_asked_about_has_a_tick_that_can_be_read(streams: int) -> None:
    [axes] = draw_topic(costmodel.explain("speculation", streams=streams)).axes
    ticks = list(axes.get_xticks())
    assert ticks == sorted(ticks)
    last = ticks[-1]
    assert streams in ticks or streams >= last / 1.3
    assert all(after > 1.2 * before for before, after in itertools.pairwise(ticks))


def test_line_and_hatching_of_batches_are_named_for_both_panels() -> None:
    [topic] = costmodel.explain("batch-size").topics
    drawn = figure("batch-size", "usual")
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert topic.numbers["most_streams_at_twice_the_tpot"] == 20
    assert names == ["up to 20 sequences: at most twice the TPOT of one", "KV cache full at 56"]
    for axes in drawn.axes:
        assert any(list(line.get_xdata()) == [20, 20] for line in axes.lines)


def test_attention_and_its_indexer_reach_the_peaks_of_their_formats() -> None:
    """H200: 989 TFLOP/s in bf16, 1,979 in fp8, dense; one point of both would lie between them."""
    [topic] = costmodel.explain("decode-bound", model="DeepSeek-V3.2", gpu="h200", tp=8).topics
    rates = {row["what"]: row["flops_per_s"] for row in topic.table("points").rows}
    assert rates["prompt, 8,000 tokens: attention (bf16)"] == pytest.approx(989e12)
    assert rates["prompt, 8,000 tokens: indexer (fp8)"] == pytest.approx(1979e12)
    [plain] = costmodel.explain("decode-bound").topics
    assert plain.table("points").column("what")[-1] == "prompt, 8,000 tokens: attention"


def test_a_measurement_beyond_the_window_is_not_drawn() -> None:
    drawn = draw_topic(costmodel.explain("long-context", model="Qwen3-32B", tp=4))
    assert not any("RULER" in text.get_text() for axes in drawn.axes for text in axes.texts)
    assert any("RULER" in text.get_text() for axes in figure("long-context", "usual").axes for text in axes.texts)


@pytest.mark.parametrize("case", ["usual", "recurrent"])
def test_the_best_numbers_of_drafts_have_curves(case: str) -> None:
    [topic] = costmodel.explain("speculation", **CASES[case]).topics  # type: ignore[arg-type]
    best, drawn = (set(topic.table(name).column("draft_tokens")) for name in ("batches", "curves"))
    assert best <= drawn if len(best) <= 5 else len(drawn) == 5
    names = {str(line.get_label()) for line in figure("speculation", case).axes[0].lines}
    assert {f"k = {k} drafts per pass" for k in drawn} <= names


@pytest.mark.parametrize(("case", "marked"), [("chunks", True), ("usual", False)])
def test_what_does_not_fit_is_marked_and_no_band_is_covered(case: str, marked: bool) -> None:
    [topic] = costmodel.explain("quadratic", **CASES[case]).topics  # type: ignore[arg-type]
    drawn = figure("quadratic", case)
    [axes] = drawn.axes
    assert not [text for text in axes.texts if text.get_text()]
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    overtakes, fits = (int(str(topic.numbers[key])) for key in ("overtakes_tokens", "longest_prompt_that_fits_tokens"))
    assert any(name.endswith(f" > matrices: from {overtakes:,} on") for name in names)
    assert any(list(line.get_xdata()) == [overtakes, overtakes] for line in axes.lines)
    assert (f"does not fit: beyond {fits:,}" in names) is marked
    assert [float(patch.get_x()) for patch in axes.patches] == ([fits] if marked else [])  # type: ignore[attr-defined]


def test_the_foot_keeps_the_margin_at_the_resolution_of_a_file() -> None:
    drawn = figure("quadratic", "chunks")
    [foot] = [text for text in drawn.texts if "Llama-4-Scout" in text.get_text()]
    assert "…" not in foot.get_text()  # and says all of it
    wide, _ = drawn.get_size_inches()
    measured = drawn.dpi
    try:
        drawn.set_dpi(200)
        extent = foot.get_window_extent(FigureCanvasAgg(drawn).get_renderer())
        assert extent.x1 / 200 <= wide - extent.x0 / 200 + 0.02
    finally:
        drawn.set_dpi(measured)
