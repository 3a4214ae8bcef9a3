"""What is computed on the spot: tiled attention, and speculative sampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.explaining import flash, speculation
from costmodel.explaining.scene import flops_of, make_scene, of, time_of


@given(
    queries=st.integers(1, 40), extra=st.integers(0, 40), tile=st.integers(1, 50), width=st.integers(1, 16), seed=st.integers(0, 999)
)  # fmt: skip
def test_tiling_is_exact_to_rounding(queries: int, extra: int, tile: int, width: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    q = generator.standard_normal((queries, width))
    k, v = (5 * generator.standard_normal((queries + extra, width)) for _ in range(2))
    plain = flash.plain_attention(q, k, v)
    assert np.abs(flash.tiled_attention(q, k, v, tile) - plain).max() < 1e-13 * max(np.abs(v).max(), 1)


def test_tiling_survives_scores_that_overflow_alone() -> None:
    q = np.full((4, 2), 1e3)
    k, v = np.array([[1e3, 0], [0, 1e3], [1e3, 1e3], [-1e3, 0]]), np.arange(8.0).reshape(4, 2)
    assert np.allclose(flash.tiled_attention(q, k, v, 1), flash.plain_attention(q, k, v))


def test_in_32_bits_tiles_are_as_good_as_the_plain_way() -> None:
    found = flash.demonstration()
    assert 0 < found["difference_64_bits"] < 1e-14  # type: ignore[operator]
    assert found["error_tiled_32_bits"] < 4 * found["error_plain_32_bits"] < 1e-5  # type: ignore[operator]


def test_flops_are_the_same_and_bytes_are_not() -> None:
    scene = make_scene()
    pairs = 8000 * 8001 / 2
    assert flops_of(of(scene.prefill(8000, floor=True), ["attention"])) == 4 * 32 * 128 * 32 * pairs
    once = 32 * 8000 * (32 + 8) * 2 * 128 * 2  # Q, O, K and V, 2 bytes each, 32 layers
    assert flash.tiled_bytes(scene, 8000) == once
    assert flash.naive_bytes(scene, 8000) == once + 32 * 4 * 32 * pairs * 2
    assert once < flash.tiled_bytes(scene, 8000, again=True) < flash.naive_bytes(scene, 8000)
    windowed = make_scene("gpt-oss-20b")
    assert flash.tiled_bytes(windowed, 64_000, again=True) < flash.naive_bytes(windowed, 64_000)


def test_what_is_drawn_is_of_the_models_distribution_and_the_drafts_tokens_are_not() -> None:
    found = speculation.demonstration()
    assert found["p_value"] > 1e-3  # type: ignore[operator]
    assert found["p_value_of_draft"] < 1e-9  # type: ignore[operator]
    assert found["degrees_of_freedom"] == 8 * 7
    assert found["largest_deviation"] < 0.02  # type: ignore[operator]
    assert 1 < found["demonstration_tokens_per_pass"] < 5  # type: ignore[operator]


SPECULATION = costmodel.Speculation("eagle", tokens=4, acceptance=0.7)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct"])
@pytest.mark.parametrize("calibration", [None, "none"])
def test_speculation_is_that_of_a_prediction(model: str, calibration: str | None) -> None:
    scene = make_scene(model, "h200", context=4000, speculation=SPECULATION, calibration=calibration)
    drafted = speculation.drafted(scene)
    assert drafted.known == [4]
    for streams in (1, 32):
        asked = costmodel.predict(
            model=model, gpu="h200", streams=streams, context=4000, speculation=SPECULATION, calibration=calibration
        ).speculation
        assert asked is not None
        found = drafted.at(scene, streams, 4)
        assert found["tpot_s"] == pytest.approx(asked.tpot_s, rel=1e-12)
        assert found["speedup_ratio"] == pytest.approx(asked.speedup, rel=1e-12)
        assert found["decode_step_s"] == pytest.approx(time_of(scene.decode(streams, 4000)), rel=1e-12)
        assert found["verification_s"] > found["decode_step_s"]  # type: ignore[operator]


def test_speculation_pays_less_in_larger_batches_and_at_last_not_at_all() -> None:
    asked = SPECULATION
    scene = make_scene(context=500, speculation=asked)
    drafted = speculation.drafted(scene)
    gains = [drafted.at(scene, streams, 4)["speedup_ratio"] for streams in (64, 256, 1024)]
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]
    assert drafted.at(scene, 1, 4)["speedup_ratio"] > 1.2  # type: ignore[operator]
    assert gains[-1] < 1  # type: ignore[operator]
    [topic] = costmodel.explain("speculation", context=500, speculation=asked).topics
    ends, drafts = topic.numbers["pays_until_streams"], topic.numbers["draft_tokens"]
    for streams, pays in ((ends, True), (ends + 1, False)):  # type: ignore[operator]
        assert (drafted.at(scene, streams, drafts)["speedup_ratio"] > 1) is pays  # type: ignore[arg-type,operator]
    never = speculation.drafted(make_scene(speculation=costmodel.Speculation("eagle", tokens=4, acceptance=0.0)))
    assert never.at(scene, 1, 4)["speedup_ratio"] < 1  # type: ignore[operator]


def test_the_acceptance_that_nobody_gave_is_said() -> None:
    [topic] = costmodel.explain("speculation").topics
    assert topic.numbers["acceptance_assumed"] is True
    assert "which is assumed" in topic.verdict
    assert "vllm#20780" in topic.labels["acceptance_assumed"]
    [given] = costmodel.explain("speculation", speculation=SPECULATION).topics
    assert "assumed" not in given.verdict
    lengths = costmodel.Speculation("eagle", lengths={2: 2.1, 3: 2.29})
    [measured] = costmodel.explain("speculation", speculation=lengths, streams=1, context=500).topics
    assert measured.numbers["acceptance_share"] is None
    assert "as were measured" in measured.verdict
