"""The numbers of ``predict``: those of the lesson, chunks and several prompts, models and parts; more never takes less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.documents import Prediction
from costmodel.errors import InputError
from costmodel.hardware.shipped import ENGINES, shipped_calibration, shipped_calibrations
from costmodel.prediction import predict
from tests.model.samples import CALIBRATION
from tests.strategies import PRESETS, examples

MS = 1e-3

# --- anchors ----------------------------------------------------------------------------------------------------------


def test_the_default_call_is_the_lesson(lesson: Prediction) -> None:
    assert (lesson.model.name, lesson.gpu.profile) == ("Llama-3.1-8B", "h100-sxm")
    asked = lesson.workload
    assert (asked.prompt_tokens, asked.prompts, asked.streams, asked.context_tokens) == (8000, 1, 32, 500)
    assert (asked.chunk_tokens, asked.every_s, asked.dtype, asked.kv_dtype) == (None, 10.0, "bf16", "bf16")
    assert lesson.headline == "roofline"


def test_the_default_answer_is_the_shipped_calibrations(lesson: Prediction) -> None:
    default = predict(params=8e9)
    assert default.headline == "calibrated"
    shipped = shipped_calibration("h100-sxm", "vllm")
    assert shipped is not None
    assert default.calibration == shipped.name
    assert default == predict(params=8e9, calibration=shipped)
    assert (default.rungs.textbook, default.rungs.roofline) == (lesson.rungs.textbook, lesson.rungs.roofline)
    calibrated = default.rungs.calibrated
    assert calibrated is not None
    assert default.spike.height_s == calibrated.spike_s
    # AIConfigurator's sums of H100 bf16 kernels: 179 ms for the prefill, 7.48 ms for the decode step; elementwise kernels and the
    # engine come on top, and launches hide behind the kernel before.
    assert calibrated.prefill_s == pytest.approx(179 * MS, rel=0.15)
    assert calibrated.decode_step_s == pytest.approx(7.48 * MS, rel=0.15)
    assert default.intervals is not None
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = getattr(default.intervals, name)
        assert getattr(lesson.rungs.roofline, name) <= low < getattr(calibrated, name) < high


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_calibration_of_its_own(engine: str) -> None:
    shipped = shipped_calibration("h100-sxm", engine)
    assert shipped is not None
    assert shipped.engine == engine
    assert predict(engine=engine).calibration == shipped.name
    assert predict(engine=engine, calibration="none").calibration is None


def test_a_part_without_a_calibration_answers_on_the_roofline() -> None:
    found = predict(gpu="mi300x")
    assert (found.headline, found.calibration, found.intervals, found.rungs.calibrated) == (
        "roofline",
        None,
        None,
        None,
    )
    asked = predict(gpu="mi300x", calibration="none")
    assert found.model_copy(update={"warnings": asked.warnings}) == asked  # the reasons differ
    with pytest.raises(InputError, match="did you mean sglang"):
        predict(engine="sglan")


def test_textbook_rung(lesson: Prediction) -> None:
    # 16e9/3.35e12 = 4.776 ms; 2·8e9·8000/989e12 = 129.42 ms; 2·8000²·32·128·32/989e12 = 16.96 ms; their sum 146.39 ms.
    textbook = lesson.rungs.textbook
    assert textbook.decode_step_s == pytest.approx(4.776 * MS, rel=1e-4)
    assert textbook.prefill_linear_s == pytest.approx(129.42 * MS, rel=5e-5)
    assert textbook.prefill_attention_s == pytest.approx(16.96 * MS, rel=3e-4)
    assert textbook.prefill_s == textbook.spike_s == pytest.approx(146.39 * MS, rel=3e-5)
    assert textbook.spike_ratio == pytest.approx(30.65, rel=1e-4)
    assert textbook.prefill_linear_s / textbook.decode_step_s == pytest.approx(27.1, rel=1e-3)
    assert lesson.doubling.textbook_ratio == pytest.approx(2.232, rel=2e-4)


def test_doubling_from_4000_tokens() -> None:
    # (2·64.71 + 4·4.241)/(64.71 + 4.241) = 2.123
    assert predict(4000, params=8e9).doubling.textbook_ratio == pytest.approx(2.123, rel=2e-4)


def test_roofline_rung_by_hand(lesson: Prediction) -> None:
    # Layers: 2·218,103,808 weights·32·8000/989e12 = 112.91 ms, all compute-bound at 8,000 tokens.
    # Attention: 4·32·128·32·32,004,000 pairs/989e12 = 16.97 ms. lm_head, one row: 1.0506e9 B/3.35e12 = 0.3137 ms.
    roofline = lesson.rungs.roofline
    assert roofline.prefill_linear_s == pytest.approx(112.9 * MS, rel=5e-3)
    assert roofline.prefill_linear_s == pytest.approx(2 * 218_103_808 * 32 * 8000 / 989e12, rel=1e-12)
    assert roofline.prefill_attention_s == pytest.approx(17.0 * MS, rel=5e-3)
    head = roofline.prefill_s - roofline.prefill_linear_s - roofline.prefill_attention_s
    assert head == pytest.approx(0.3137 * MS, rel=1e-3)
    # Decode: weights of layers and head once, K and V of 32·501 tokens at 131,072 B, activations.
    weights, cache = 2 * (218_103_808 * 32 + 4096 * 128_256), 131_072 * 32 * 501
    assert roofline.decode_step_s == pytest.approx((weights + cache) / 3.35e12, rel=0.02)
    assert roofline.decode_step_s > (weights + cache) / 3.35e12


def test_the_floor_is_above_the_textbook_in_decode_only_because_of_the_cache(lesson: Prediction) -> None:
    assert lesson.rungs.roofline.decode_step_s > lesson.rungs.textbook.decode_step_s


def test_measured_kernels_are_above_the_floor(lesson: Prediction) -> None:
    # Sum of H100 bf16 kernel timings that AIConfigurator publishes: 179 ms for the prefill, 7.48 ms for the decode step.
    assert lesson.rungs.roofline.prefill_s < 179 * MS
    assert lesson.rungs.roofline.decode_step_s < 7.48 * MS


def test_spike_of_the_headline_rung(lesson: Prediction) -> None:
    spike, rung = lesson.spike, lesson.rungs.roofline
    assert (spike.chunks, spike.height_s, spike.duration_s) == (1, rung.spike_s, rung.spike_s)
    assert rung.spike_s == pytest.approx(sum(operator.time_s for operator in rung.operators))
    assert rung.decode_step_s == pytest.approx(sum(operator.time_s for operator in rung.decode_operators))
    assert rung.spike_ratio == rung.spike_s / rung.decode_step_s
    # G = (10 − 0.1313)/0.005153 + 1
    assert spike.gaps_per_period == pytest.approx((10 - rung.spike_s) / rung.decode_step_s + 1)
    assert spike.moves == {"p50": False, "p99": False, "p99.9": False, "max": True}


def test_a_prompt_every_second_moves_p999() -> None:
    spike = predict(every=1.0, calibration="none").spike
    assert spike.fraction_of_gaps == pytest.approx(1 / (0.8687 / 0.0051528 + 1), rel=1e-3)  # 0.59 %
    assert spike.moves == {"p50": False, "p99": False, "p99.9": True, "max": True}


def test_overload_is_said() -> None:
    prediction = predict(every=0.1)
    assert prediction.spike.overload
    assert prediction.spike.fraction_of_gaps == 1.0
    assert any(text.startswith("overload") for text in prediction.warnings)


def test_doubling_on_the_headline_rung(lesson: Prediction) -> None:
    twice = predict(16_000)
    assert lesson.doubling.prompt_tokens == 16_000
    assert lesson.doubling.spike_s == twice.rungs.roofline.spike_s
    assert lesson.doubling.ratio == pytest.approx(twice.rungs.roofline.spike_s / lesson.rungs.roofline.spike_s)


# --- chunks and several prompts ---------------------------------------------------------------------------------------


def test_a_budget_chunks_the_prompt() -> None:
    # 2048 − 32 = 2016 tokens per step: 8000 in 4 steps.
    chunked, whole = predict(chunk=2048), predict()
    assert chunked.spike.chunks == 4
    assert chunked.workload.chunk_tokens == 2048
    assert chunked.spike.height_s < whole.spike.height_s / 3
    assert chunked.spike.duration_s >= chunked.spike.height_s
    assert (
        chunked.spike.duration_s > whole.spike.duration_s
    )  # every chunk reads the weights and serves the streams again
    assert chunked.rungs.roofline.prefill_s == whole.rungs.roofline.prefill_s


@pytest.mark.parametrize("budget", [33, 40, 257, 2048, 8031, 8032, 100_000])
def test_every_budget_above_the_streams_is_taken(budget: int) -> None:
    spike = predict(chunk=budget, prompt=300 if budget < 256 else 8000).spike
    prompt = 300 if budget < 256 else 8000
    assert spike.chunks == -(-prompt // (budget - 32))


def test_many_small_chunks_are_summed_like_few() -> None:
    # 300 steps go through arrays; the sum is that of one by one.
    many = predict(prompt=300, chunk=33, streams=32).spike
    assert many.chunks == 300
    single = [
        predict(prompt=n, chunk=33, streams=32).spike.duration_s for n in (255, 256, 257)
    ]  # across the change of method
    assert single[1] - single[0] == pytest.approx(single[2] - single[1], rel=1e-4)
    assert many.duration_s == pytest.approx(single[1] + 44 * (single[2] - single[1]), rel=1e-4)


@pytest.mark.parametrize("budget", [1, 31, 32])
def test_a_budget_without_room_is_refused(budget: int) -> None:
    with pytest.raises(InputError, match="at least 33"):
        predict(chunk=budget)


def test_several_prompts_in_one_step() -> None:
    one, three = predict().rungs.roofline, predict(prompts=3).rungs.roofline
    assert three.prefill_attention_s == pytest.approx(3 * one.prefill_attention_s)
    assert three.prefill_linear_s == pytest.approx(3 * one.prefill_linear_s)
    # Attention within each prompt only: far less than one prompt of 24,000.
    assert predict(24_000).rungs.roofline.prefill_attention_s > 2.9 * three.prefill_attention_s
    # One row through lm_head for each of 32 streams and 3 prompts.
    (head,) = (item for item in three.operators if item.name == "lm_head")
    assert head.flops == 2 * 4096 * 128_256 * 35


def test_several_prompts_under_a_budget() -> None:
    prediction = predict(1000, prompts=3, chunk=2032)
    assert prediction.spike.chunks == 2  # 3000 tokens, 2000 per step


def test_chunk_engine_takes_vllms_default() -> None:
    # vllm serve takes 8192 on an H100, 2048 on an L4.
    assert predict(chunk="engine").workload.chunk_tokens == 8192
    small = predict(chunk="engine", gpu="l4", model="Llama-3.2-1B")
    assert (small.workload.chunk_tokens, small.spike.chunks) == (2048, 4)


@pytest.mark.parametrize(
    ("gpu", "budget"),
    [
        ("h100", 8192),
        ("h200", 8192),  # 139.8 GiB are less than 160
        ("b200", 16384),
        ("mi300x", 16384),
        ("a100-80gb-sxm", 2048),  # vLLM excepts the A100 from the larger default
        ("l4", 2048),
        ("l40s", 2048),
    ],
)
def test_engine_defaults(gpu: str, budget: int) -> None:
    # Source: vllm/engine/arg_utils.py, get_batch_defaults.
    engine = predict(gpu=gpu, model="Llama-3.2-1B").engine
    assert engine.max_num_batched_tokens == budget
    assert engine.one_step_budget == 8032
    assert engine.splits_prompt == (budget < 8032)
    assert engine.chunks == -(-8000 // (budget - 32))


# --- models and parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", PRESETS)
def test_every_family_predicts(model: str) -> None:
    prediction = predict(2000, "h200", model, chunk=1024)
    rungs = prediction.rungs
    assert 0 < rungs.roofline.decode_step_s < rungs.roofline.spike_s
    assert rungs.roofline.prefill_linear_s + rungs.roofline.prefill_attention_s < rungs.roofline.prefill_s
    assert prediction.spike.chunks == 3  # 2000 at 992 per step
    assert Prediction.model_validate_json(prediction.model_dump_json(by_alias=True)) == prediction


def test_experts_belong_to_the_linear_part() -> None:
    # Of the prompt alone, only lm_head (one row of 32,000) is neither linear layers nor attention; H200: 4.8 TB/s.
    rung = predict(gpu="h200", model="Mixtral-8x7B-v0.1").rungs.roofline
    head = rung.prefill_s - rung.prefill_linear_s - rung.prefill_attention_s
    assert head == pytest.approx(2 * (4096 * 32_000 + 36_096) / 4.8e12, rel=1e-6)


def test_active_parameters_of_a_mixture() -> None:
    # Mixtral-8x7B: 46.7e9 parameters, 12.9e9 of them in use per token.
    model = predict(model="Mixtral-8x7B-v0.1", tp=2).model
    assert (model.total_parameters, model.active_parameters) == (46_702_792_704, 12_879_925_248)


def test_quantised_weights_keep_a_16_bit_cache() -> None:
    # KV dtype follows the activations unless told otherwise.
    prediction = predict(dtype="fp8")
    assert (prediction.workload.dtype, prediction.workload.compute_dtype) == ("fp8", "fp8")
    assert (prediction.workload.kv_dtype, prediction.model.kv_bytes_per_token) == ("bf16", 131_072)
    assert predict(dtype="fp8", kv_dtype="fp8").model.kv_bytes_per_token == 65_536


def test_a_pipeline_names_its_stages() -> None:
    staged, whole = (predict(pp=stages, calibration="none") for stages in (3, 1))
    assert staged.gpu.count == 3
    assert staged.pipeline is not None
    assert sum(staged.pipeline.layers) == 32
    # A token passes all stages; the slowest sets the rate.
    assert staged.rungs.roofline.decode_step_s > whole.rungs.roofline.decode_step_s
    assert staged.pipeline.slowest_stage_decode_s < whole.rungs.roofline.decode_step_s / 2
    assert staged.pipeline.slowest_stage_decode_s > whole.rungs.roofline.decode_step_s / 3
    # With the shipped calibration the slowest stage is one of measured kernels, and links between stages were not measured.
    measured = predict(pp=3)
    assert measured.pipeline is not None
    assert (
        staged.pipeline.slowest_stage_decode_s
        < measured.pipeline.slowest_stage_decode_s
        < measured.best.decode_step_s / 2
    )
    assert any("datasheet rates: pipeline" in text for text in measured.warnings)


@pytest.mark.parametrize("pair", [None, *shipped_calibrations()], ids=str)
@pytest.mark.parametrize("model", ["DeepSeek-V2-Lite", "DeepSeek-R1", "Kimi-K2-Instruct", "GLM-4.5-Air", "GLM-4.5"])
def test_a_stage_may_lack_a_kind_of_layer(model: str, pair: tuple[str, str] | None) -> None:
    """The first layers are dense, and all others are mixtures of experts."""
    gpu, engine = pair or ("h200", "vllm")
    for stages in range(2, 9):
        found = predict(model=model, gpu=gpu, engine=engine, tp=4, pp=stages, calibration=None if pair else "none")
        assert found.pipeline is not None
        assert len(found.pipeline.layers) == stages
        assert 0 < found.pipeline.slowest_stage_decode_s < found.best.decode_step_s


def test_prompts_beyond_the_models_limit_are_said() -> None:
    # Llama-3.1 allows 131,072 positions.
    assert any("more than the 131,072" in text for text in predict(200_000).warnings)
    assert not any("more than the 131,072" in text for text in predict(131_072).warnings)


# --- monotonicity, through the front door ------------------------------------------------------------------------------


@examples(40)
@given(
    st.sampled_from(PRESETS),
    st.integers(1, 50_000),
    st.integers(1, 300),
    st.integers(0, 50_000),
    st.integers(0, 10_000),
    st.sampled_from([None, "none", CALIBRATION]),
)
def test_more_asked_never_takes_less(
    model: str, prompt: int, streams: int, context: int, more: int, calibration: Any
) -> None:
    base = predict(prompt, model=model, streams=streams, context=context, calibration=calibration)
    for changed in (
        predict(prompt + more, model=model, streams=streams, context=context, calibration=calibration),
        predict(prompt, model=model, streams=streams + more, context=context, calibration=calibration),
        predict(prompt, model=model, streams=streams, context=context + more, calibration=calibration),
    ):
        for name in ("decode_step_s", "prefill_s", "spike_s"):
            assert getattr(changed.best, name) >= getattr(base.best, name) * (1 - 1e-12)
