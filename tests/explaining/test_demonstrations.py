"""What is computed on the spot: tiled attention, and speculative sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

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


@pytest.mark.parametrize("seed", range(5))
def test_speculative_sampling_keeps_the_distribution(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    target, draft = generator.dirichlet(np.ones(15)), generator.dirichlet(np.ones(15))
    tokens, proposed, accepted = speculation.speculative_sample(target, draft, 100_000, seed)
    assert speculation.chi_squared(tokens, target)[1] > 1e-3
    assert speculation.chi_squared(proposed, target)[1] < 1e-9  # the test sees a difference where there is one
    assert accepted == pytest.approx(np.minimum(target, draft).sum(), abs=5e-3)  # 1 − total variation


def test_greedy_decoding_gives_the_models_own_token() -> None:
    target, draft = np.eye(5)[2], np.full(5, 0.2)
    tokens, _, accepted = speculation.speculative_sample(target, draft, 10_000)
    assert set(tokens) == {2}
    assert accepted == pytest.approx(0.2, abs=0.02)


def test_a_perfect_draft_is_always_accepted() -> None:
    same = np.array([0.5, 0.25, 0.25])
    tokens, proposed, accepted = speculation.speculative_sample(same, same, 1_000)
    assert accepted == 1
    assert (tokens == proposed).all()


def test_the_p_value_is_that_of_scipy() -> None:
    generator = np.random.default_rng(1)
    distribution = generator.dirichlet(np.ones(11))
    tokens = generator.choice(11, 5000, p=distribution)
    statistic, chance = speculation.chi_squared(tokens, distribution)
    assert chance == pytest.approx(stats.chi2.sf(statistic, 10), rel=1e-12)
    with pytest.raises(ValueError, match="not even"):
        speculation.chi_squared(tokens, np.full(12, 1 / 12))


def test_tokens_per_pass_are_those_of_drawn_passes() -> None:
    generator = np.random.default_rng(2)
    for acceptance, drafts in ((0.0, 3), (0.6, 1), (0.7, 4), (0.9, 7)):
        accepted = np.cumprod(generator.random((200_000, drafts)) < acceptance, axis=1).sum(axis=1)
        assert speculation.expected_tokens(acceptance, drafts) == pytest.approx(1 + accepted.mean(), abs=0.02)
    assert speculation.expected_tokens(1, 5) == 6
    assert speculation.expected_tokens(1 - 1e-9, 5) == pytest.approx(6, abs=1e-6)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b"])
def test_verification_is_a_step_of_more_rows(model: str) -> None:
    scene = make_scene(model, context=4000)
    for streams in (1, 32):
        assert speculation.verification_s(scene, streams, 0) == pytest.approx(
            time_of(scene.decode(streams, 4000)), rel=1e-12
        )
        times = [speculation.verification_s(scene, streams, k) for k in range(8)]
        assert times == sorted(times)
        assert times[7] < 8 * times[0]


def test_speculation_pays_less_in_larger_batches_and_at_last_not_at_all() -> None:
    scene = make_scene(context=500)
    gains = [speculation.passes(scene, streams, 4, 0.7)["speedup_ratio"] for streams in (1, 64, 256, 1024)]
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]
    assert gains[0] > 1.5
    assert gains[-1] < 1
    assert speculation.passes(scene, 1, 4, 0.0)["speedup_ratio"] < 1  # type: ignore[operator]  # drafts that are never kept
    assert math.isclose(float(str(speculation.passes(scene, 1, 4, 1.0)["tokens_per_pass"])), 5)
