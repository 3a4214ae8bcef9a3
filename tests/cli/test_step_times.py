"""``costmodel.step_times``: many steps at once give, element by element, what ``predict`` gives one at a time."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.equations.step import StepTimes
from costmodel.vectorised import BLOCK
from tests.strategies import PARTS, PRESETS, calibrations, examples

ROUNDING = 1e-12
PARTS_OF_A_STEP = [item.name for item in fields(StepTimes)]
COUNTS = st.integers(1, 30_000)


def total(times: StepTimes[Any]) -> Any:
    """The sum of the groups, which is the total."""
    return times.linear + times.attention + times.lm_head + times.communication + times.other


@given(
    st.sampled_from(PRESETS),
    st.sampled_from(PARTS),
    st.lists(COUNTS, min_size=1, max_size=3),
    st.lists(st.integers(1, 512), min_size=1, max_size=3),
    st.lists(st.integers(0, 50_000), min_size=1, max_size=2),
)
@examples(40)
def test_a_grid_is_predict_at_every_point(
    model: str, gpu: str, prompts: list[int], streams: list[int], contexts: list[int]
) -> None:
    q, d, c = (np.array(values) for values in (prompts, streams, contexts))
    mixed = costmodel.step_times(
        gpu, model, prefill_tokens=q[:, None, None], decodes=d[None, :, None], decode_context=c[None, None, :]
    )  # calibrated where the part has a calibration
    decode = costmodel.step_times(gpu, model, decodes=d[:, None], decode_context=c[None, :])
    alone = costmodel.step_times(gpu, model, prefill_tokens=q)
    assert mixed.total.shape == (len(q), len(d), len(c))
    for i, prompt in enumerate(prompts):
        for j, stream in enumerate(streams):
            for k, context in enumerate(contexts):
                rung = costmodel.predict(prompt, gpu, model, streams=stream, context=context).best
                assert mixed.total[i, j, k] == pytest.approx(rung.spike_s, rel=ROUNDING)
                assert decode.total[j, k] == pytest.approx(rung.decode_step_s, rel=ROUNDING)
                assert alone.total[i] == pytest.approx(rung.prefill_s, rel=ROUNDING)
                assert alone.linear[i] == pytest.approx(rung.prefill_linear_s, rel=ROUNDING)
                assert alone.attention[i] == pytest.approx(rung.prefill_attention_s, rel=ROUNDING)


@given(st.sampled_from(PRESETS), calibrations(), COUNTS, st.integers(1, 512), st.integers(0, 50_000))
@examples(40)
def test_a_calibrated_grid_likewise(
    model: str, fitted: costmodel.Calibration, prompt: int, streams: int, context: int
) -> None:
    rung = costmodel.predict(prompt, "h100", model, streams=streams, context=context, calibration=fitted).best
    times = costmodel.step_times(
        "h100",
        model,
        prefill_tokens=[0, prompt, prompt],
        decodes=[streams, 0, streams],
        decode_context=context,
        calibration=fitted,
    )
    assert times.total == pytest.approx([rung.decode_step_s, rung.prefill_s, rung.spike_s], rel=ROUNDING)
    assert total(times) == pytest.approx(times.total, rel=ROUNDING)


@given(st.sampled_from(PRESETS), COUNTS, st.integers(1, 512))
@examples(40)
def test_the_textbook_takes_a_step_for_its_prefill_alone(model: str, prompt: int, streams: int) -> None:
    rung = costmodel.predict(prompt, "h100", model, streams=streams).rungs.textbook
    times = costmodel.step_times(
        "h100", model, prefill_tokens=[prompt, prompt, 0], decodes=[0, streams, streams], rung="textbook"
    )
    assert times.total == pytest.approx([rung.prefill_s, rung.spike_s, rung.decode_step_s], rel=ROUNDING)
    assert times.attention[0] == pytest.approx(rung.prefill_attention_s, rel=ROUNDING)
    assert times.attention[2] == 0
    assert total(times) == pytest.approx(times.total, rel=ROUNDING)


def test_chunks_of_a_prompt_are_the_spike_of_predict() -> None:
    """Each chunk after those before it, beside the streams; the textbook's chunks add up to the whole."""
    start = np.arange(0, 8000, 2016)
    chunk = np.minimum(2016, 8000 - start)
    found = costmodel.predict(chunk=2048)
    times = costmodel.step_times(prefill_tokens=chunk, prefill_cached=start, decodes=32, decode_context=500)
    assert times.total.max() == pytest.approx(found.spike.height_s, rel=ROUNDING)
    assert times.total.sum() == pytest.approx(found.spike.duration_s, rel=ROUNDING)
    textbook = costmodel.step_times(prefill_tokens=chunk, prefill_cached=start, rung="textbook")
    assert textbook.total.sum() == pytest.approx(found.rungs.textbook.prefill_s, rel=ROUNDING)
    assert textbook.total.max() == pytest.approx(found.rungs.textbook.spike_s, rel=ROUNDING)


def test_parallel_sizes_and_formats_are_those_of_predict() -> None:
    options: dict[str, Any] = {"model": "gpt-oss-20b", "tp": 2, "ep": 4, "pp": 2, "kv_dtype": "fp8"}
    rung = costmodel.predict(4000, **options).best
    times = costmodel.step_times(prefill_tokens=[4000], decodes=32, decode_context=500, **options)
    assert times.total[0] == pytest.approx(rung.spike_s, rel=ROUNDING)
    assert times.communication[0] > 0


@pytest.mark.parametrize("rung", ["textbook", "roofline"])
def test_numbers_give_numbers(rung: Any) -> None:
    times = costmodel.step_times(prefill_tokens=4000, decodes=32, decode_context=500, rung=rung)
    for name in PARTS_OF_A_STEP:
        assert isinstance(getattr(times, name), (int, float))
    same = costmodel.step_times(prefill_tokens=[4000], decodes=32, decode_context=500, rung=rung)
    assert same.total.shape == (1,)
    assert times.total == pytest.approx(same.total[0], rel=ROUNDING)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_engine_is_that_of_predict(engine: str) -> None:
    times = costmodel.step_times(prefill_tokens=8000, decodes=32, decode_context=500, engine=engine)
    assert times.total == pytest.approx(costmodel.predict(engine=engine).best.spike_s, rel=ROUNDING)
    plain = costmodel.step_times(prefill_tokens=8000, decodes=32, decode_context=500, calibration="none")
    assert plain.total == pytest.approx(costmodel.predict().rungs.roofline.spike_s, rel=ROUNDING)
    assert plain.total < times.total


def test_numbers_of_numpy_give_one_step() -> None:
    expected = costmodel.step_times(prefill_tokens=4000, decodes=32, decode_context=500).total
    for kind in (np.int32, np.int64, np.float32, np.float64, np.uint16):
        times = costmodel.step_times(prefill_tokens=kind(4000), decodes=kind(32), decode_context=kind(500))
        assert np.shape(times.total) == ()
        assert float(times.total) == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        (((3, 1), (), (1, 4), ()), (3, 4)),
        (((2, 1, 1), (3, 1), (4,), ()), (2, 3, 4)),
        (((5,), (5,), (5,), (5,)), (5,)),
        (((1,), (), (), ()), (1,)),
        (((), (), (2, 2), (2,)), (2, 2)),
        (((0,), (), (), ()), (0,)),
        (((3, 1), (), (1, 0), ()), (3, 0)),
    ],
)
def test_shapes_broadcast(
    rung: Any, shapes: tuple[tuple[int, ...], ...], result: tuple[int, ...], calibration: costmodel.Calibration
) -> None:
    generator = np.random.default_rng(1)
    given_arrays = [generator.integers(1, 5000, shape) for shape in shapes]
    names = ("prefill_tokens", "prefill_cached", "decodes", "decode_context")
    times = costmodel.step_times(rung=rung, calibration=calibration, **dict(zip(names, given_arrays, strict=True)))
    for name in PARTS_OF_A_STEP:
        values = getattr(times, name)
        assert values.shape == result
        assert values.dtype == np.float64
    spread = np.broadcast_arrays(*given_arrays)
    for index in np.ndindex(*result):
        one = costmodel.step_times(
            rung=rung,
            calibration=calibration,
            **{name: int(array[index]) for name, array in zip(names, spread, strict=True)},
        )
        for name in PARTS_OF_A_STEP:
            assert getattr(times, name)[index] == pytest.approx(getattr(one, name), rel=ROUNDING)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.float32, np.float64, list, tuple])
def test_every_kind_of_number_counts_the_same(kind: Any) -> None:
    """n(n + 1)/2 of 100,000 tokens is more than an int32 holds, and more than a float32 resolves."""
    tokens = [1, 70_000, 100_000]
    expected = costmodel.step_times(prefill_tokens=np.array(tokens, dtype=np.float64), decodes=32).total
    values = kind(tokens) if kind in (list, tuple) else np.array(tokens, dtype=kind)
    assert np.array_equal(costmodel.step_times(prefill_tokens=values, decodes=32).total, expected)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_blocks_leave_no_seam(rung: Any, size: int, calibration: costmodel.Calibration) -> None:
    tokens = np.arange(1, size + 1)
    options: dict[str, Any] = {"rung": rung, "calibration": calibration, "decodes": 32, "decode_context": 500}
    whole = costmodel.step_times(prefill_tokens=tokens, **options).total
    assert whole.shape == (size,)
    for index in {0, BLOCK - 2, min(BLOCK - 1, size - 1), min(BLOCK, size - 1), size - 1}:
        one = costmodel.step_times(prefill_tokens=int(tokens[index]), **options)
        assert whole[index] == pytest.approx(one.total, rel=ROUNDING)


def test_arrays_that_are_given_stay_as_they_are() -> None:
    tokens = np.array([[1, 2], [3, 4]], dtype=np.int32)
    tokens.flags.writeable = False
    strided = np.arange(20)[::-5]
    costmodel.step_times(prefill_tokens=tokens, decodes=1)
    assert costmodel.step_times(decodes=strided).total.shape == strided.shape


@pytest.mark.parametrize(
    ("steps", "fragment"),
    [
        ({}, "at least one token"),
        ({"prefill_tokens": [1, 0]}, "at least one token"),
        ({"prefill_tokens": -1, "decodes": 2}, "prefill_tokens must be numbers between 0"),
        ({"prefill_tokens": [5, -1], "decodes": 2}, "prefill_tokens must be numbers between 0"),
        ({"prefill_tokens": 5, "prefill_cached": -1}, "prefill_cached must be numbers between 0"),
        ({"decodes": [1, np.nan]}, "decodes must be numbers between 0"),
        ({"decodes": float("nan")}, "decodes must be numbers between 0"),
        ({"decodes": 1, "decode_context": np.inf}, "decode_context must be numbers between 0"),
        ({"prefill_tokens": [1, 2], "decodes": [1, 2, 3]}, "do not fit together"),
        ({"prefill_tokens": ["a"]}, "do not fit together"),
        ({"prefill_tokens": "many"}, "do not fit together"),
        ({"prefill_tokens": None}, "prefill_tokens"),
        ({"prefill_tokens": [[1], [2, 3]]}, "do not fit together"),
        ({"decodes": 1, "rung": "rooffline"}, "unknown rung 'rooffline'"),
        ({"decodes": 1, "rung": "calibrated", "gpu": "mi300x"}, "no calibration of mi300x for vllm"),
        ({"decodes": 1, "gpu": "h10O"}, "did you mean h100"),
        ({"decodes": 1, "tp": 3}, "possible: 1, 2, 4"),
        ({"prefill_tokens": 1e300}, "prefill_tokens"),
    ],
    ids=str,
)
def test_steps_that_cannot_be_are_refused(steps: dict[str, Any], fragment: str) -> None:
    with pytest.raises(costmodel.InputError) as error:
        costmodel.step_times(**steps)
    assert fragment in str(error.value)
