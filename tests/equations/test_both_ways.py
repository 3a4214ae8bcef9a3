"""Bidirectional attention: pairs counted one by one, its limits, and FLOPs of a model by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import formula, predict_embedding
from costmodel.building import build_textbook, roofline_parameters
from costmodel.deployment import deploy
from costmodel.equations.step import step_operators
from costmodel.equations.textbook import textbook_attention, textbook_linear
from costmodel.equations.work import (
    BothWays,
    Chunk,
    attended_pairs,
    chunk_kv,
    longest_kv,
    make_work,
    seen_tokens,
    window_name,
)


def counted(tokens, cached, side):
    """Count the pairs of queries cached … cached + tokens − 1 one by one."""
    end = cached + tokens
    reach = end if side is None else side
    return sum(min(place, reach) + 1 + min(end - 1 - place, reach) for place in range(cached, end))


@given(st.integers(0, 60), st.integers(0, 40), st.none() | st.integers(1, 50))
def test_pairs_are_those_counted_one_by_one(tokens, cached, side):
    assert attended_pairs(tokens, cached, BothWays(side)) == counted(tokens, cached, side)


def test_a_whole_sequence_has_n_squared_pairs_and_a_window_of_its_length_too():
    assert attended_pairs(512, 0, BothWays()) == 512**2
    assert attended_pairs(512, 0, BothWays(511)) == attended_pairs(512, 0, BothWays(10_000)) == 512**2
    assert attended_pairs(512, 0, BothWays()) == 2 * attended_pairs(512, 0) - 512
    assert attended_pairs(1000, 0, BothWays(64)) == 1000 * 129 - 64 * 65


def test_arrays_are_read_as_numbers_are():
    tokens = np.array([1.0, 64.0, 65.0, 2000.0])
    found = attended_pairs(tokens, 0, BothWays(64))
    assert list(found) == [attended_pairs(float(each), 0, BothWays(64)) for each in tokens]


def test_what_is_read_and_the_longest_tile():
    assert chunk_kv(512, 0, BothWays()) == chunk_kv(512, 0, BothWays(64)) == 512
    assert chunk_kv(8, 100, BothWays(64)) == 72
    assert longest_kv([Chunk(512), Chunk(100)], BothWays()) == 512
    assert longest_kv([Chunk(512)], BothWays(64)) == 129
    assert seen_tokens(10, BothWays()) == 11
    assert [window_name(BothWays()), window_name(BothWays(64))] == ["both_ways", "both_ways_64"]


def test_flops_of_bge_m3_by_hand():
    """A document of 512 tokens: 24 layers of 12·d² weights, 2 FLOPs each and token; 4·d FLOPs for each of 512² pairs; no lm_head."""
    parameters = roofline_parameters(deploy("bge-m3", "h100", pooling=True))
    operators = step_operators(parameters, make_work([Chunk(512)], windows=parameters.windows))
    flops = {operator.name: operator.flops for operator in operators}
    assert flops.pop("prefill_attention") == 24 * 4 * 1024 * 512**2
    assert sum(flops.values()) == 2 * 512 * 24 * 12 * 1024**2
    assert "lm_head" not in flops


def test_flops_of_modernbert_by_hand():
    """2,000 tokens: 10 layers of n² pairs, 18 of 129·n − 64·65."""
    parameters = roofline_parameters(deploy("ModernBERT-large", "h100", pooling=True))
    operators = step_operators(parameters, make_work([Chunk(2000)], windows=parameters.windows))
    flops = {operator.name: operator.flops for operator in operators}
    assert flops["prefill_attention.both_ways"] == 10 * 4 * 1024 * 2000**2
    assert flops["prefill_attention.both_ways_64"] == 18 * 4 * 1024 * (129 * 2000 - 64 * 65)


def test_the_head_of_a_reranker_has_a_row_per_document():
    parameters = roofline_parameters(deploy("bge-reranker-v2-m3", "h100", pooling=True))
    operators = step_operators(parameters, make_work([Chunk(512)] * 3, windows=parameters.windows))
    flops = {operator.name: operator.flops for operator in operators}
    assert (flops["head"], flops["head.2"]) == (2 * 3 * 1024**2, 2 * 3 * 1024)


@pytest.mark.parametrize("name", ["bge-reranker-v2-m3", "ModernBERT-large", "Qwen3-Embedding-0.6B"])
@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("tokens", [40, 700])
def test_the_formula_is_the_prediction(name, rung, tokens):
    made = formula(deploy(name, "h100", pooling=True), "prefill", rung, prompt=tokens)
    found = getattr(predict_embedding(tokens, "h100", name).rungs, rung)
    assert made.evaluate() == pytest.approx(found.latency_s, rel=1e-12)


def test_textbook_counts_n_squared_and_no_tables():
    """P is that of the layers: 24·(12·d² + 13·d); attention 4·n²·d·L/F, twice the causal half."""
    deployment = deploy("bge-m3", "h100", pooling=True)
    textbook, d = build_textbook(deployment), 1024
    assert textbook.active_parameters == 24 * (12 * d**2 + 13 * d)
    assert textbook.weight_bytes == 2 * textbook.active_parameters
    assert textbook_linear(textbook, 512) == pytest.approx(2 * 512 * textbook.active_parameters / 989e12)
    assert textbook_attention(textbook, 512) == pytest.approx(4 * 512**2 * d * 24 / 989e12)


def test_textbook_window_is_twice_that_of_one_side():
    textbook = build_textbook(deploy("ModernBERT-large", "h100", pooling=True))
    area = 10 * 2000**2 + 18 * 2 * (64**2 / 2 + (2000 - 64) * 64)
    assert textbook_attention(textbook, 2000) == pytest.approx(4 * 1024 * area / 989e12)
