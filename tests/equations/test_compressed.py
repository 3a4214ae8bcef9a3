"""Sums over compressed keys against plain counts, and a step of DeepSeek-V4 by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.building.parameters import build_parameters
from costmodel.deployment import deploy, deploy_architecture
from costmodel.equations.compressed import Compressed
from costmodel.equations.step import step_operators
from costmodel.equations.textbook import _causal_area
from costmodel.equations.work import (
    Chunk,
    Decodes,
    attended_pairs,
    chunk_kv,
    decode_kv,
    longest_kv,
    make_work,
    seen_tokens,
    widest,
    window_name,
)

REACHES = [Compressed(4, 128, 16), Compressed(4, 8), Compressed(128, 128), Compressed(3, 0, 5), Compressed(4)]


def seen(position, reach):
    """Count the keys that the query at a position sees, one by one."""
    whole = sum(1 for key in range(position + 1) if key > position - reach.window)
    entries = sum(1 for entry in range(position + 1) if (entry + 1) * reach.ratio <= position + 1)
    return whole + (min(entries, reach.top_k) if reach.top_k else entries)


@pytest.mark.parametrize("reach", REACHES)
def test_sums_equal_plain_counts(reach):
    for cached in (0, 1, 3, 4, 63, 127, 128, 300):
        assert seen_tokens(cached, reach) == seen(cached, reach)
        for tokens in (1, 2, 5, 64, 200):
            positions = range(cached, cached + tokens)
            assert attended_pairs(tokens, cached, reach) == sum(seen(position, reach) for position in positions)
            assert longest_kv([Chunk(tokens, cached)], reach) == seen(cached + tokens - 1, reach)


@pytest.mark.parametrize("reach", REACHES)
def test_a_chunk_reads_what_its_queries_see_once(reach):
    """All whole keys from the first query's window on; the first query's entries and every one that is complete after it."""
    for cached in (0, 5, 127, 400):
        assert chunk_kv(1, cached, reach) == seen(cached, reach)
        for tokens in (2, 9, 130):
            whole = min(cached, reach.window - 1) + tokens if reach.window else 0
            first = seen(cached, Compressed(reach.ratio, 0, reach.top_k))
            later = (cached + tokens) // reach.ratio - (cached + 1) // reach.ratio
            assert chunk_kv(tokens, cached, reach) == whole + first + later
    assert chunk_kv(0, 100, reach) == 0
    assert decode_kv(Decodes(3, 500), reach) == 3 * seen(500, reach)


@pytest.mark.parametrize("reach", REACHES)
def test_arrays_are_the_same_as_floats(reach):
    tokens, cached = np.array([1.0, 7.0, 64.0, 300.0]), np.array([0.0, 3.0, 129.0, 40.0])
    for function in (attended_pairs, chunk_kv):
        singly = [function(float(n), float(c), reach) for n, c in zip(tokens, cached, strict=True)]
        assert function(tokens, cached, reach).tolist() == singly


def test_the_textbooks_area_is_the_sum_without_steps():
    for reach in (Compressed(4, 128, 512), Compressed(128, 128)):
        area, pairs = _causal_area(16_384, reach), attended_pairs(16_384, 0, reach)
        assert area == pytest.approx(pairs, rel=0.01)


def test_names_and_limits():
    assert window_name(Compressed(4, 128, 512)) == "compressed_4"
    assert widest(Compressed(4, 128, 512)) == 640
    assert widest(Compressed(128, 128)) is None
    short = Compressed(4, 128, 512)
    assert [seen_tokens(c, short) for c in (0, 2, 3, 126, 127, 2047, 9999)] == [1, 3, 5, 158, 160, 640, 640]


def operators(model, chunks=(), decodes=(), gpu="h200", tp=1):
    parameters = build_parameters(deploy(model, gpu, tp=tp))
    return {item.name: item for item in step_operators(parameters, make_work(chunks, decodes, parameters.windows))}


def test_a_decode_step_by_hand():
    """Flash, two sequences of which each has 9,999 tokens before: 64 heads of 512, 584 B a key, 132 B a key of the indexer."""
    found = operators("DeepSeek-V4-Flash", decodes=[Decodes(2, 9999)])
    pair = 2 * 64 * (512 + 512)
    layers = {"window_128": (2, 128), "compressed_4": (21, 128 + 512), "compressed_128": (20, 128 + 10_000 // 128)}
    for name, (count, keys) in layers.items():
        assert found[f"decode_attention.{name}"].flops == 2 * count * keys * pair
        assert found[f"decode_attention.{name}"].bytes == 2 * count * keys * 584
    assert found["decode_indexer"].flops == 2 * 21 * 2500 * 2 * 64 * 128
    assert found["decode_indexer"].bytes == 2 * 21 * 2500 * 132


def test_matrices_by_hand():
    """Two FLOPs for every weight that a token passes; partial states of compressors are written and read in fp32."""
    found = operators("DeepSeek-V4-Flash", decodes=[Decodes(1, 0)])
    assert found["o_a_proj"].flops == 43 * 2 * 8 * 4096 * 1024
    assert found["o_proj"].flops == 43 * 2 * 8192 * 4096
    assert found["hyper_connections"].flops == 43 * 2 * 2 * 4 * 4096 * 24
    assert found["hyper_connections.head"].flops == 2 * 4 * 4096 * 4
    assert found["compressor"].flops == 21 * 2 * 4096 * 2048
    assert found["compressor"].bytes == 21 * (4096 * 2048 * 2 + 4096 * 2 + 2048 * 8)
    assert found["compressor.2"].flops == 20 * 2 * 4096 * 1024
    assert found["indexer.compressor"].flops == 21 * 2 * 4096 * 512
    assert found["lm_head"].flops == 2 * 4096 * 129_280


COUNTED = {
    "qkv_a_proj": 5 * (3_538_944 + 2_064_384),
    "q_b_proj": 5 * 6_193_152,
    "o_a_proj": 5 * 4_423_680,
    "o_proj": 5 * 4_423_680,
    "router": 5 * 516_096,
    "shared_expert.gate_up_proj": 5 * 2 * 2_949_120,
    "shared_expert.down_proj": 5 * 2_949_120,
    "hyper_connections": 5 * 2 * 3_317_760,
    "hyper_connections.head": 663_552,
    "compressor": 2 * 2 * 7_077_888,
    "indexer.wq_b": 2 * 2_580_480,
    "indexer.weights_proj": 2 * 368_640,
    "indexer.compressor": 2 * 2 * 3_538_944,
}
"""FLOPs of DeepseekV4ForCausalLM (transformers 5.19.0) for 384 tokens, counted by torch's FlopCounterMode in each of its modules: the small
shape of reference_counts.json, 5 layers of which 2 have m = 4. lm_head: 73,728,000 for all tokens."""


def test_matrices_equal_the_flops_of_the_transformers_class():
    text = (Path(__file__).parents[1] / "architecture" / "reference_counts.json").read_text(encoding="utf-8")
    config = json.loads(text)["models"]["deepseek_v4"]["config"]
    parameters = build_parameters(deploy_architecture(architecture_from_config(config, "small"), "h200"))
    found = step_operators(parameters, make_work([Chunk(384)], [], parameters.windows))
    flops = {item.name: item.flops for item in found}
    assert {name: flops[name] for name in COUNTED} == COUNTED
    assert flops["lm_head"] == 73_728_000 / 384


def test_a_prompt_by_hand():
    """8,192 tokens at once: windows of 128, entries of 4 tokens up to 512, of 128 without end."""
    tokens = 8192
    found = operators("DeepSeek-V4-Flash", chunks=[Chunk(tokens)])
    window = sum(min(position, 128) for position in range(1, tokens + 1))
    chosen = sum(min(position // 4, 512) for position in range(1, tokens + 1))
    heavy, all_four = (sum(position // m for position in range(1, tokens + 1)) for m in (128, 4))
    pair = 2 * 64 * 1024
    assert found["prefill_attention.window_128"].flops == 2 * window * pair
    assert found["prefill_attention.compressed_4"].flops == 21 * (window + chosen) * pair
    assert found["prefill_attention.compressed_128"].flops == 20 * (window + heavy) * pair
    assert found["prefill_indexer"].flops == 21 * all_four * 2 * 64 * 128


def test_a_million_tokens_as_published():
    """One token at 2²⁰ of context: 27 % of the FLOPs of DeepSeek-V3.2 (the model card of DeepSeek-V4-Pro), 10 % Flash (its report)."""

    def flops(model):
        return sum(item.flops for item in operators(model, decodes=[Decodes(1, 2**20 - 1)], gpu="b200").values())

    base = flops("DeepSeek-V3.2")
    assert flops("DeepSeek-V4-Pro") / base == pytest.approx(0.27, abs=0.01)
    assert flops("DeepSeek-V4-Flash") / base == pytest.approx(0.10, abs=0.025)


def test_heads_are_divided_and_keys_are_not():
    one, four = (operators("DeepSeek-V4-Pro", decodes=[Decodes(4, 5000)], tp=tp) for tp in (1, 4))
    for name in ("decode_attention.compressed_4", "decode_attention.compressed_128"):
        assert four[name].flops == one[name].flops / 4
        assert four[name].bytes == one[name].bytes
    assert four["decode_indexer"].flops == one["decode_indexer"].flops
    assert four["hyper_connections"].flops == one["hyper_connections"].flops


def test_stages_send_all_residual_streams():
    two = build_parameters(deploy("DeepSeek-V4-Flash", "h200", tp=2, pp=2))
    sent = next(item for item in two.transfers if item.name == "pipeline_send")
    assert sent.bytes_per_token == 4 * 4096 * 2 / 2
    reduced = next(item for item in two.transfers if item.name == "all_reduce")
    assert reduced.bytes_per_token == 4096 * 2
