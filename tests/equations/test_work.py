"""The sums of one step, against counting every (query, key) pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.equations.work import Chunk, Decodes, Window, attended_pairs, chunk_kv, decode_kv, longest_kv, make_work
from tests.strategies import chunks, decodes, examples

SMALL = st.integers(0, 60)
WINDOWS: st.SearchStrategy[Window] = st.none() | st.integers(1, 80)


def keys_of(query: int, window: Window) -> range:
    """Return the positions that the token at position ``query`` (from 0) attends: itself and up to w − 1 before it."""
    return range(0 if window is None else max(query + 1 - window, 0), query + 1)


@examples(300)
@given(SMALL, SMALL, WINDOWS)
def test_attended_pairs_counts_every_pair(tokens: int, cached: int, window: Window) -> None:
    # Σ over queries of the keys each attends (causal mask, sliding window with the query in it).
    brute = sum(len(keys_of(query, window)) for query in range(cached, cached + tokens))
    assert attended_pairs(tokens, cached, window) == brute


@examples(300)
@given(SMALL, SMALL, WINDOWS)
def test_chunk_kv_counts_every_key_once(tokens: int, cached: int, window: Window) -> None:
    touched = {key for query in range(cached, cached + tokens) for key in keys_of(query, window)}
    assert chunk_kv(tokens, cached, window) == len(touched)


@examples(200)
@given(st.integers(0, 5), SMALL, WINDOWS)
def test_decode_kv_counts_the_keys_of_the_next_token(count: int, context: int, window: Window) -> None:
    assert decode_kv(Decodes(count, context), window) == count * len(keys_of(context, window))


@examples(200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), SMALL, WINDOWS)
def test_pairs_of_chunks_add_up_to_those_of_one_step(sizes: list[int], cached: int, window: Window) -> None:
    whole, parts, done = attended_pairs(sum(sizes), cached, window), 0, cached
    for size in sizes:
        parts += attended_pairs(size, done, window)
        done += size
    assert parts == whole


def test_pairs_of_a_long_prompt_by_hand() -> None:
    # 8000·8001/2 = 32,004,000; with 100 cached 8000·100 more.
    assert attended_pairs(8000, 0) == 32_004_000
    assert attended_pairs(8000, 100) == 32_804_000
    # Window 4096: 4096·4097/2 + (8000 − 4096)·4096 = 8,390,656 + 15,990,784.
    assert attended_pairs(8000, 0, 4096) == 24_381_440
    # A chunk far behind the window: every query sees w keys.
    assert attended_pairs(512, 100_000, 4096) == 512 * 4096
    assert chunk_kv(512, 100_000, 4096) == 512 + 4095


@examples(100)
@given(st.lists(chunks(), max_size=5), st.lists(decodes(), max_size=4), st.sets(WINDOWS, min_size=1, max_size=3))
def test_make_work_sums_over_sequences(parts: list[Chunk], groups: list[Decodes], windows: set[Window]) -> None:
    work = make_work(parts, groups, windows)
    decoding = sum(group.count for group in groups)
    assert work.tokens == sum(part.tokens for part in parts) + decoding
    assert work.rows == len(parts) + decoding  # one row through lm_head per scheduled sequence
    assert (work.prefills, work.decodes) == (len(parts), decoding)
    for window in windows:
        assert work.pairs[window] == sum(attended_pairs(part.tokens, part.cached, window) for part in parts)
        assert work.prefill_kv[window] == sum(chunk_kv(part.tokens, part.cached, window) for part in parts)
        assert work.decode_kv[window] == sum(decode_kv(group, window) for group in groups)


def test_an_empty_chunk_is_no_chunk() -> None:
    empty = make_work([Chunk(0.0, 50.0)], [Decodes(3.0, 7.0)], (None, 4))
    assert empty == make_work([], [Decodes(3.0, 7.0)], (None, 4))
    assert longest_kv(empty.chunks) == 0


@examples(60)
@given(st.lists(chunks(), max_size=6), WINDOWS)
def test_the_longest_chunk_is_the_one_with_most_to_see(parts: list[Chunk], window: Window) -> None:
    seen = [min(part.cached + part.tokens, window or float("inf")) for part in parts if part.tokens]
    assert longest_kv(parts, window) == max(seen, default=0)


@examples(60)
@given(st.lists(chunks(), min_size=1, max_size=12), WINDOWS)
def test_arrays_read_like_floats(parts: list[Chunk], window: Window) -> None:
    q, c = (np.array([getattr(part, name) for part in parts]) for name in ("tokens", "cached"))
    work = make_work([Chunk(q, c)], [Decodes(32.0, c)], (window,))
    for index, part in enumerate(parts):
        one = make_work([part], [Decodes(32.0, part.cached)], (window,))
        for name in ("pairs", "prefill_kv", "decode_kv"):
            assert getattr(work, name)[window][index] == getattr(one, name)[window]
        assert (work.tokens[index], work.rows[index]) == (one.tokens, one.rows)


@pytest.mark.parametrize("window", [None, 4096])
def test_long_prompts_do_not_overflow_as_float64(window: Window) -> None:
    # 100,000·100,001/2 = 5,000,050,000 > 2³¹: a 32-bit count would wrap around.
    tokens = np.array([100_000], dtype=np.int32).astype(np.float64)
    expected = 5_000_050_000 if window is None else 4096 * 4097 // 2 + (100_000 - 4096) * 4096
    assert attended_pairs(tokens, np.zeros(1), window)[0] == expected == attended_pairs(100_000, 0, window)
