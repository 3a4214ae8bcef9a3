"""Each figure draws for every kind of model and prompt, tells its units, and shows the numbers of the document."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from costmodel.cli.figures import draw_breakdown, draw_heights, draw_roofline, draw_timeline, style
from costmodel.cli.figures.breakdown import distinguish
from costmodel.cli.figures.groups import GROUPS, group_of, seconds_by_group
from costmodel.cli.figures.labels import spread
from costmodel.cli.figures.roofline import roofs_in_use
from costmodel.cli.text import plural
from costmodel.documents import Operator
from costmodel.hardware.errors import InputError
from costmodel.prediction import predict

NAMES = (
    "default",
    "chunked",
    "long",
    "gpt-oss",
    "deepseek",
    "70b",
    "tiny",
    "several",
    "dense",
    "calibrated",
    "shipped",
)
KINDS = ("timeline", "breakdown", "roofline")
DRAWN = [(kind, name) for kind in KINDS for name in NAMES] + [
    ("heights", name) for name in ("default", "deepseek", "shipped")
]
UNITS = re.compile(r"\((s|ms|µs|tokens|TFLOP/s|FLOP/B)\)")


def contents(found: list[Text]) -> str:
    return "\n".join(text.get_text() for text in found).replace("\n", " ")


@pytest.mark.parametrize(("kind", "name"), DRAWN)
def test_texts_neither_overlap_nor_leave_the_page(
    kind: str, name: str, drawn: Callable[..., Figure], collisions: Callable[[Figure], list[str]]
) -> None:
    assert collisions(drawn(kind, name)) == []


@pytest.mark.parametrize(("kind", "name"), DRAWN)
def test_title_states_numbers_and_axes_state_units(
    kind: str, name: str, drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]]
) -> None:
    figure = drawn(kind, name)
    title = str(figure.get_label())
    assert re.search(r"\d (s|ms|µs)\b", title)
    assert title in contents(texts(figure))
    for axes in figure.axes:
        assert [label for label in (axes.get_xlabel(), axes.get_ylabel()) if UNITS.search(label)]
    footers = [text.get_text() for text in figure.texts if "costmodel" in text.get_text()]
    assert len(footers) == 1
    assert min(text.get_fontsize() for text in texts(figure)) >= style.FOOTER_SIZE


@pytest.mark.parametrize("name", NAMES)
def test_footer_names_model_gpu_and_rung(name: str, case: Callable, drawn: Callable[..., Figure]) -> None:
    prediction = case(name).prediction
    for kind in ("timeline", "roofline"):
        text = next(text.get_text() for text in drawn(kind, name).texts if "costmodel" in text.get_text())
        assert prediction.model.name in text
        assert prediction.gpu.name.removeprefix("NVIDIA ") in text
        assert f"{prediction.headline} rung" in text


@pytest.mark.parametrize("name", NAMES)
def test_timeline_bars_are_the_steps(name: str, case: Callable, drawn: Callable[..., Figure]) -> None:
    prediction, steps, _ = case(name)
    axes = drawn("timeline", name).axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert 1 <= len(bars) <= len(steps)
    assert len(bars) == len(steps) or len(steps) > 40
    for bar in bars:
        assert bar.get_width() == pytest.approx(bar.get_height())
        assert any(math.isclose(bar.get_height(), seconds, rel_tol=1e-9) for seconds in steps)
    assert max(bar.get_height() for bar in bars) == pytest.approx(prediction.spike.height_s)
    plain = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_facecolor()[3] > 0]
    decode = {patch.get_height() for patch in plain if not patch.get_hatch()}
    assert decode == {prediction.best.decode_step_s}


@pytest.mark.parametrize("name", NAMES)
def test_timeline_gives_height_ratio_and_decode_step(
    name: str, case: Callable, drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]]
) -> None:
    prediction = case(name).prediction
    text = contents(texts(drawn("timeline", name)))
    ratio = prediction.spike.height_s / prediction.best.decode_step_s
    assert style.format_seconds(prediction.spike.height_s) in text
    assert f"{style.format_seconds(prediction.best.decode_step_s)} each" in text
    assert f"{style.format_ratio(ratio)} decode steps" in text
    assert plural(prediction.workload.streams, "stream") in text


def test_timeline_of_the_lesson(drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]]) -> None:
    figure = drawn("timeline", "default")
    assert figure.get_label() == "One 8,000-token prompt freezes all 32 streams for 131 ms: 25 decode steps"
    assert "no stream gets a token for 131 ms" in contents(texts(figure))


def test_timeline_leaves_out_steps_and_says_so(
    case: Callable, drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]]
) -> None:
    _, steps, _ = case("long")
    axes = drawn("timeline", "long").axes[0]
    shown = sum(1 for patch in axes.patches if patch.get_hatch())
    assert shown < len(steps) == 50
    text = contents(texts(drawn("timeline", "long")))
    assert f"{50 - shown} more" in text
    assert f"{50 - shown} steps left out" in text


def test_timeline_ticks_are_the_tokens(case: Callable, drawn: Callable[..., Figure]) -> None:
    prediction, steps, _ = case("chunked")
    axes = drawn("timeline", "chunked").axes[1]
    rows = [line.get_segments() for line in axes.collections if len(line.get_paths()) > 2]
    assert len(rows) == 4  # streams 1, 2, 3 and 32
    times = sorted(segment[0][0] for segment in rows[0])
    inside = [time for time in times if 0 < time <= sum(steps) * (1 + 1e-9)]
    assert np.diff([0.0, *inside]) == pytest.approx(steps)
    assert sum(steps) == pytest.approx(prediction.spike.duration_s)


def test_timeline_refuses_the_steps_of_another_prediction(case: Callable) -> None:
    with pytest.raises(ValueError, match="not those of the prediction"):
        draw_timeline(case("default").prediction, case("chunked").steps)
    with pytest.raises(ValueError, match="not those of the prediction"):
        draw_timeline(case("default").prediction, [0.1])


@pytest.mark.parametrize("name", NAMES)
def test_breakdown_bars_add_up_to_the_steps(name: str, case: Callable, drawn: Callable[..., Figure]) -> None:
    prediction = case(name).prediction
    rungs = [prediction.rungs.textbook, prediction.rungs.roofline]
    rungs += [prediction.rungs.calibrated] if prediction.rungs.calibrated else []
    for axes, wanted in zip(
        drawn("breakdown", name).axes,
        ([rung.decode_step_s for rung in rungs], [rung.spike_s for rung in rungs]),
        strict=True,
    ):
        unit = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[UNITS.search(axes.get_xlabel()).group(1)]  # type: ignore[union-attr]
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        ends: dict[float, float] = {}
        for bar in bars:
            middle = round(bar.get_y() + bar.get_height() / 2, 6)
            ends[middle] = max(ends.get(middle, 0.0), bar.get_x() + bar.get_width())
        assert [ends[level] * unit for level in sorted(ends)] == pytest.approx(wanted)
        for total in wanted:
            assert style.format_seconds(total) in {text.get_text() for text in axes.texts}


def test_breakdown_of_several(collisions: Callable[[Figure], list[str]], texts: Callable[[Figure], list[Text]]) -> None:
    two = draw_breakdown([predict(model=model, calibration="none") for model in ("Llama-3.1-8B", "gpt-oss-120b")])
    assert collisions(two) == []
    assert "84.7 ms (gpt-oss-120b)" in str(two.get_label())
    assert "131 ms (Llama-3.1-8B)" in str(two.get_label())
    six = draw_breakdown([predict(prompt=tokens) for tokens in (1000, 2000, 4000, 8000, 16000, 32000)])
    assert collisions(six) == []
    assert "32,000 tokens" in contents(texts(six))
    assert collisions(draw_breakdown([predict(), predict()])) == []


def test_a_breakdown_does_not_rank_floors_among_forecasts(collisions: Callable[[Figure], list[str]]) -> None:
    measured = [predict(gpu="h100"), predict(gpu="a100")]
    floor = predict(gpu="mi300x")
    heights = [style.format_seconds(item.spike.height_s) for item in (*measured, floor)]
    figure = draw_breakdown([*measured, floor])
    title = " ".join(str(figure.get_label()).split())
    assert collisions(figure) == []
    assert f"{heights[0]} (H100" in title
    assert f"to {heights[1]} (A100" in title
    assert title.endswith("; 1 floor not ranked")
    assert heights[2] not in title
    one = " ".join(str(draw_breakdown([measured[0], floor]).get_label()).split())
    assert one.startswith(f"Spike step: {heights[0]} (H100")
    assert one.endswith("; 1 floor not ranked")
    assert "floor" not in str(draw_breakdown(measured).get_label())
    floors = [predict(gpu=gpu, calibration="none") for gpu in ("h100", "mi300x")]
    assert heights[2] in str(draw_breakdown(floors).get_label())  # floors among themselves are compared


@pytest.mark.parametrize("count", [0, 7])
def test_breakdown_refuses_more_than_is_legible(count: int) -> None:
    with pytest.raises(InputError, match="1 to 6"):
        draw_breakdown([predict()] * count)


def test_names_tell_what_differs() -> None:
    assert distinguish([predict(), predict(chunk=512)]) == ["one step", "budget 512"]
    parts = [predict(gpu=gpu, calibration="none") for gpu in ("h100", "h200")]
    assert distinguish(parts) == ["H100 SXM5 80GB", "H200 SXM 141GB"]
    # Calibrations are told where they differ, and so is an answer without one.
    assert distinguish([predict(), predict(engine="sglang")]) == ["vllm", "sglang"]
    assert distinguish([predict(), predict(calibration="none")]) == ["vllm", "uncalibrated"]
    assert distinguish([predict(), predict(dtype="fp8")]) == [
        "weights bf16 · compute bf16",
        "weights fp8 · compute fp8",
    ]
    assert distinguish([predict(), predict()]) == ["1", "2"]
    assert distinguish([predict(prompt=1), predict(prompt=2, prompts=2)]) == ["1 token", "2 × 2 tokens"]


def operator(name: str, bound: str = "compute") -> Operator:
    return Operator(name=name, flops=1.0, bytes=1.0, time_s=1.0, bound=bound)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("qkv_proj", "attention projections"),
        ("qkv_proj.2", "attention projections"),
        ("kv_a_proj", "attention projections"),
        ("experts.gate_up_proj", "feed-forward / experts"),
        ("shared_expert.down_proj", "feed-forward / experts"),
        ("shared_expert_gate", "feed-forward / experts"),
        ("router", "feed-forward / experts"),
        ("prefill_attention.window_128", "prefill attention"),
        ("decode_attention.full", "decode attention (KV read)"),
        ("lm_head", "lm_head"),
        ("all_reduce", "communication"),
        ("expert_combine", "communication"),
        ("elementwise", "elementwise + overhead"),
        ("overhead", "elementwise + overhead"),
        ("something_new", "elementwise + overhead"),
    ],
)
def test_operators_are_gathered(name: str, group: str) -> None:
    assert group_of(operator(name)).name == group


def test_unknown_communication_is_recognised_by_its_bound() -> None:
    assert group_of(operator("all_gather", "link")).name == "communication"


@pytest.mark.parametrize("name", NAMES)
def test_groups_lose_no_time(name: str, case: Callable) -> None:
    for operators in (case(name).prediction.best.operators, case(name).prediction.best.decode_operators):
        sums = seconds_by_group(operators)
        assert sum(sums.values()) == pytest.approx(sum(each.time_s for each in operators))
        assert list(sums) == [group for group in GROUPS if group in sums]


@pytest.mark.parametrize("name", NAMES)
def test_roofline_markers_are_the_operators(name: str, case: Callable, drawn: Callable[..., Figure]) -> None:
    prediction, _, deployment = case(name)
    axes = drawn("roofline", name).axes[0]
    for markers, operators in zip(
        axes.collections, (prediction.best.decode_operators, prediction.best.operators), strict=True
    ):
        wanted = [
            (each.flops / each.bytes, each.flops / each.time_s / 1e12)
            for each in operators
            if each.flops and each.bytes
        ]
        offsets = np.asarray(markers.get_offsets())
        assert offsets == pytest.approx(np.asarray(wanted))
        highest = max(deployment.hardware.peaks.values())
        roof = np.minimum(offsets[:, 0] * deployment.hardware.bandwidth, highest) / 1e12
        assert np.all(offsets[:, 1] <= roof * (1 + 1e-9))
    assert not axes.collections[0].get_facecolor().size  # hollow
    assert axes.collections[1].get_facecolor().size


@pytest.mark.parametrize(
    ("name", "roofs"),
    [
        ("default", {"bf16": 989e12}),
        ("deepseek", {"fp8": 1979e12, "bf16": 989e12}),
        ("tiny", {"bf16": 989e12}),
        ("70b", {"bf16": 312e12}),
    ],
)
def test_only_roofs_in_use_are_drawn(
    name: str,
    roofs: dict[str, float],
    case: Callable,
    drawn: Callable[..., Figure],
    texts: Callable[[Figure], list[Text]],
) -> None:
    prediction, _, deployment = case(name)
    found = roofs_in_use(prediction, deployment.hardware.peaks)
    assert found == roofs
    assert list(found.values()) == sorted(found.values(), reverse=True)
    text = contents(texts(drawn("roofline", name)))
    for dtype, peak in roofs.items():
        assert f"{dtype} peak {peak / 1e12:,.0f} TFLOP/s" in text
        assert f"ridge {style.significant(peak / deployment.hardware.bandwidth)} FLOP/B" in text


def test_roofline_of_one_peak_only(case: Callable) -> None:
    prediction, _, deployment = case("default")
    figure = draw_roofline(prediction, {"bf16": deployment.hardware.peaks["bf16"]}, deployment.hardware.bandwidth)
    assert figure.get_label() == "Decode: 100 % of 5.15 ms is memory-bound; spike: 99 % of 131 ms is compute-bound"


def test_heights_are_drawn_as_given(drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]]) -> None:
    prompts, curves = [1000, 8000], [("one step", [0.02, 0.13127]), ("512", [0.009, 0.01006])]
    figure = draw_heights(prompts, curves, (8000, 0.13127), 0.05, "Llama-3.1-8B · H100")
    lines = [line for line in figure.axes[0].lines if list(line.get_xdata()) == prompts]
    assert [list(line.get_ydata()) for line in lines] == [pytest.approx([20, 131.27]), pytest.approx([9, 10.06])]
    text = contents(texts(figure))
    assert "8,000 tokens: 131 ms" in text
    assert "limit 50 ms" in text
    assert "Llama-3.1-8B · H100 · costmodel" in text
    assert figure.get_label() == (
        "8,000 tokens in one step stall every stream for 131 ms; with a budget of 512, for 10.1 ms at a time"
    )
    looks = [(line.get_linestyle(), line.get_marker()) for line in lines]
    assert len({marker for _, marker in looks}) == len(looks)


def test_heights_without_mark_and_with_one_curve(collisions: Callable[[Figure], list[str]]) -> None:
    figure = draw_heights([10, 20, 30], [("one step", [0.005, 0.0051, 0.0052])], None)
    assert collisions(figure) == []
    assert figure.get_label() == "30 tokens in one step stall every stream for 5.20 ms"
    assert collisions(draw_heights([100], [("one step", [0.1])], (100, 0.1))) == []
    assert collisions(draw_heights([100, 200], [("one step", [20.0, 400.0])], (150, 90.0), 30.0)) == []


@pytest.mark.parametrize(
    ("prompts", "curves"), [([], [("one", [])]), ([1], []), ([1, 2], [("one", [1.0])]), ([1], [("x", [1.0])] * 9)]
)
def test_heights_refuse_what_cannot_be_drawn(prompts: list[int], curves: list[tuple[str, list[float]]]) -> None:
    with pytest.raises(InputError, match="curves"):
        draw_heights(prompts, curves, None)


def test_spread_keeps_distance_and_order() -> None:
    placed = spread([5.0, 5.0, 1.0, 20.0], 2.0, 0.0, 20.0)
    assert placed == pytest.approx([4.0, 6.0, 1.0, 20.0])
    tight = sorted(spread([0.0, 0.0, 0.0], 3.0, 0.0, 10.0))
    assert np.diff(tight) == pytest.approx([3.0, 3.0])
    assert tight[0] == 0.0
    assert max(spread([9.0, 9.5, 10.0], 3.0, 0.0, 10.0)) == 10.0
