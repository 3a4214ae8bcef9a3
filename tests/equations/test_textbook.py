"""The lesson's numbers: P = 8e9 in bf16 on an H100 SXM, F = 989 TFLOP/s, W = 3.35 TB/s; 32 layers of 32 heads of 128."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_textbook
from costmodel.deployment import deploy
from costmodel.equations.textbook import (
    Textbook,
    textbook_attention,
    textbook_decode,
    textbook_linear,
    textbook_prefill,
)
from tests.strategies import examples

MS = 1e-3


@pytest.fixture(scope="module")
def lesson() -> Textbook:
    return build_textbook(deploy("Llama-3.1-8B", "h100-sxm"), 8e9)


def test_decode_is_weights_over_bandwidth(lesson: Textbook) -> None:
    # 16e9 B / 3.35e12 B/s = 4.776 ms
    assert textbook_decode(lesson) == pytest.approx(4.776 * MS, rel=1e-4)


def test_prefill_of_8000_tokens(lesson: Textbook) -> None:
    # 2·8e9·8000/989e12 = 128e12/989e12 = 129.42 ms
    assert textbook_linear(lesson, 8000) == pytest.approx(129.42 * MS, rel=5e-5)
    # 2·8000²·32·128·32/989e12 = 16.777e12/989e12 = 16.96 ms: the causal half of 4·n²·h·d_h·L
    assert textbook_attention(lesson, 8000) == pytest.approx(2 * 8000**2 * 32 * 128 * 32 / 989e12, rel=1e-14)
    assert textbook_attention(lesson, 8000) == pytest.approx(16.96 * MS, rel=3e-4)
    assert textbook_prefill(lesson, 8000) == pytest.approx(146.39 * MS, rel=3e-5)


def test_spike_in_decode_steps(lesson: Textbook) -> None:
    # 129.42/4.776 = 27.1 without attention, 146.39/4.776 = 30.65 with it
    decode = textbook_decode(lesson)
    assert textbook_linear(lesson, 8000) / decode == pytest.approx(27.1, rel=1e-3)
    assert textbook_prefill(lesson, 8000) / decode == pytest.approx(30.65, rel=1e-4)


@pytest.mark.parametrize(("n", "ratio"), [(4000, 2.123), (8000, 2.232)])
def test_doubling_the_prompt_more_than_doubles_the_spike(lesson: Textbook, n: int, ratio: float) -> None:
    # (2x + 4y)/(x + y) with x the linear and y the attention part
    assert textbook_prefill(lesson, 2 * n) / textbook_prefill(lesson, n) == pytest.approx(ratio, rel=3e-4)


def test_exact_parameters_by_default() -> None:
    # Llama-3.1-8B: 8,030,261,248 parameters, all of which every token passes.
    textbook = build_textbook(deploy("Llama-3.1-8B", "h100-sxm"))
    assert textbook.weight_bytes == 2 * 8_030_261_248
    assert textbook.active_parameters == 8_030_261_248


def test_a_mixture_reads_all_weights_and_computes_with_the_active_ones() -> None:
    # Mixtral-8x7B: 46,702,792,704 parameters, 12,879,925,248 of them active.
    textbook = build_textbook(deploy("Mixtral-8x7B-v0.1", "h100-sxm"))
    assert textbook.weight_bytes == 2 * 46_702_792_704
    assert textbook.active_parameters == 12_879_925_248
    halved = build_textbook(deploy("Mixtral-8x7B-v0.1", "h100-sxm"), 46_702_792_704 / 2)
    assert halved.active_parameters == pytest.approx(12_879_925_248 / 2)


def test_tensor_parallelism_divides_everything() -> None:
    one, four = (build_textbook(deploy("Llama-3.1-8B", "h100-sxm", tp=tp)) for tp in (1, 4))
    assert textbook_decode(four) == pytest.approx(textbook_decode(one) / 4)
    assert textbook_prefill(four, 8000) == pytest.approx(textbook_prefill(one, 8000) / 4)


def test_latent_attention_counts_query_and_value_widths() -> None:
    # DeepSeek-V3: 2·h·(d_qk + d_v)/2 · n² per layer with d_qk = 192, d_v = 128, h = 128, L = 61.
    textbook = build_textbook(deploy("DeepSeek-V3", "h200"))
    assert textbook.attention == ((None, 128 * 160 * 61),)


@examples(60)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=8), st.sampled_from([None, 1, 128, 4096]))
def test_chunks_share_the_triangle(sizes: list[int], window: int | None) -> None:
    # Chunked prefill costs the same FLOPs on the textbook rung: the areas add up.
    model = Textbook(16e9, 8e9, ((window, 32 * 128 * 32),), 989e12, 989e12, 3.35e12)
    parts, done = 0.0, 0
    for size in sizes:
        parts += textbook_prefill(model, size, done)
        done += size
    assert parts == pytest.approx(textbook_prefill(model, done), rel=1e-12)


@examples(60)
@given(st.integers(1, 100_000), st.integers(1, 8192))
def test_a_window_cuts_the_triangle_off(n: int, window: int) -> None:
    # ∫₀ⁿ min(x, w) dx = n²/2 up to the window, n·w − w²/2 beyond it
    model = Textbook(16e9, 8e9, ((window, 1.0),), 1.0, 1.0, 1.0)
    area = n * n / 2 if n <= window else n * window - window * window / 2
    assert textbook_attention(model, n) == pytest.approx(4 * area)
    assert textbook_attention(model, np.array([float(n)]))[0] == pytest.approx(4 * area)
