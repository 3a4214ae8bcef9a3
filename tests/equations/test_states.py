"""Recurrent layers, indexers and local chunks: FLOPs and bytes of a step against a hand count."""

import math

import numpy as np
import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters
from costmodel.deployment import deploy_architecture
from costmodel.equations.step import step_operators, step_times
from costmodel.equations.textbook import Textbook, textbook_attention
from costmodel.equations.work import Chunk, Decodes, LocalChunks, attended_pairs, chunk_kv, make_work, seen_tokens
from tests.architecture.mixed_configs import GLM52, LLAMA4, MIXED, NEMOTRON3, QWEN_NEXT


def operators(config, chunks=(), decodes=(), tp=1, gpu="h100"):
    deployment = deploy_architecture(architecture_from_config(config, "model"), gpu, tp=tp)
    parameters = build_parameters(deployment)
    work = make_work(chunks, decodes, parameters.windows)
    return {operator.name: operator for operator in step_operators(parameters, work)}


@pytest.mark.parametrize("tp", [1, 4])
def test_a_gated_delta_net_in_decode(tp):
    """Qwen3-Next: 36 layers of 32 states of 128 × 128 in 16 bits, read and written; a convolution of 4 over 8,192 channels."""
    found = operators(QWEN_NEXT, decodes=[Decodes(10, 500)], tp=tp)["decode_gdn"]
    channels = (2 * 16 + 32) * 128
    state = 32 * 128 * 128 * 2 + 3 * channels * 2
    io = (channels + 2 * 32 * 128) * 2
    assert found.bytes == 36 * (10 * (2 * state + io) + 4 * channels * 2) / tp
    assert found.flops == 36 * 10 * (7 * 32 * 128 * 128 + 2 * 4 * channels) / tp


def test_a_gated_delta_net_in_prefill():
    """Per token and head 6·128·128 with the state and 64·5·128 within a chunk of 64; the state is read and written once per prompt."""
    found = operators(QWEN_NEXT, chunks=[Chunk(4000, 100)])["prefill_gdn"]
    channels = (2 * 16 + 32) * 128
    scan = 32 * (6 * 128 * 128 + 64 * 5 * 128) + 2 * 4 * channels
    assert found.flops == 36 * 4000 * scan
    state = 32 * 128 * 128 * 2 + 3 * channels * 2
    io = (channels + 2 * 32 * 128) * 2
    assert found.bytes == 36 * (2 * state + 4000 * io + 4 * channels * 2)


def test_mamba_2_in_both():
    """Nemotron 3 Super: 40 layers of 128 states of 128 × 64 in 32 bits, 8 groups, chunks of 128."""
    found = operators(NEMOTRON3, [Chunk(1000)], [Decodes(3, 50)])
    channels = 2 * 8 * 128 + 128 * 64
    state = 128 * 128 * 64 * 4 + 3 * channels * 2
    io = (channels + 2 * 128 * 64) * 2
    decode, prefill = found["decode_mamba2"], found["prefill_mamba2"]
    assert decode.flops == 40 * 3 * (5 * 128 * 128 * 64 + 8 * channels)
    assert decode.bytes == 40 * (3 * (2 * state + io) + 8 * channels)
    within = 128 * 128 * 64 + 8 * 128 * 128
    assert prefill.flops == 40 * 1000 * (4 * 128 * 128 * 64 + within + 8 * channels)
    assert prefill.bytes == 40 * (2 * state + 1000 * io + 8 * channels)


def test_a_state_costs_the_same_at_any_context():
    short, long = (operators(QWEN_NEXT, decodes=[Decodes(8, context)]) for context in (10, 100_000))
    assert short["decode_gdn"] == long["decode_gdn"]
    assert long["decode_attention"].bytes > 1000 * short["decode_attention"].bytes


def test_a_layer_of_one_mixer_is_reduced_once():
    """Nemotron 3 Super has 88 layers of one mixer each: 88 all-reduces, not 176."""
    deployment = deploy_architecture(architecture_from_config(NEMOTRON3, "model"), "h100", tp=8)
    (reduce,) = build_parameters(deployment).transfers
    assert reduce.count == 88


def test_sparse_attention_reads_what_it_chose():
    """GLM-5.2 at 10,000 tokens: 78 layers read 2,048 latents of 576 elements; its indexers score all keys, at 128 + 4 bytes each."""
    found = operators(GLM52, decodes=[Decodes(2, 9999)], gpu="h200")
    own = sum(kind == "full" for kind in GLM52["indexer_types"])
    attention, indexer = found["decode_attention"], found["decode_indexer"]
    assert attention.bytes == 78 * 2 * 2048 * 576 * 2
    assert attention.flops == 78 * 2 * 2048 * 2 * 64 * (2 * 512 + 64)
    assert indexer.bytes == own * 2 * 10_000 * 132
    assert indexer.flops == own * 2 * 10_000 * 2 * 32 * 128


def test_sparse_attention_of_a_short_context_is_that_of_a_full_one():
    config = {**GLM52, "index_topk": 2048}
    short = operators(config, decodes=[Decodes(2, 1000)], gpu="h200")["decode_attention"]
    assert short.bytes == 78 * 2 * 1001 * 576 * 2


def test_sparse_prefill_works_on_the_latent():
    """Each of 8,000 queries sees min(position + 1, 2048) keys of 512 + 64, and their values of 512; the indexer sees all before it."""
    found = operators(GLM52, [Chunk(8000)], gpu="h200")
    own = sum(kind == "full" for kind in GLM52["indexer_types"])
    pairs = 2048 * 2049 / 2 + (8000 - 2048) * 2048
    assert found["prefill_attention"].flops == 78 * pairs * 2 * 64 * (2 * 512 + 64)
    assert found["prefill_indexer"].flops == own * 8000 * 8001 / 2 * 2 * 32 * 128


def test_the_indexer_is_whole_on_every_gpu():
    alone, shared = (operators(GLM52, decodes=[Decodes(2, 9999)], gpu="h200", tp=tp) for tp in (1, 8))
    assert shared["decode_indexer"] == alone["decode_indexer"]
    assert shared["decode_attention"].flops == alone["decode_attention"].flops / 8


@pytest.mark.parametrize(
    ("cached", "tokens"), [(0, 5), (0, 8), (0, 21), (3, 4), (3, 5), (7, 9), (8, 8), (13, 1), (16, 0)]
)
def test_local_chunks_by_counting(cached, tokens):
    window = LocalChunks(8)
    positions = range(cached, cached + tokens)
    assert attended_pairs(float(tokens), float(cached), window) == sum(position % 8 + 1 for position in positions)
    keys = {key for position in positions for key in range(position - position % 8, position + 1)}
    assert chunk_kv(float(tokens), float(cached), window) == len(keys)
    assert seen_tokens(float(cached), window) == cached % 8 + 1


def test_local_chunks_of_arrays_equal_those_of_numbers():
    contexts, window = np.arange(40.0), LocalChunks(16)
    assert list(seen_tokens(contexts, window)) == [seen_tokens(float(c), window) for c in contexts]
    pairs = attended_pairs(contexts, 5.0, window)
    assert list(pairs) == [attended_pairs(float(c), 5.0, window) for c in contexts]


def test_llama_4_reads_no_more_than_its_chunk():
    """Maverick at 20,000 tokens: 12 full layers read them all, 36 layers what their chunk of 8,192 has: 20,000 mod 8,192 + 1."""
    found = operators(LLAMA4, decodes=[Decodes(3, 20_000)], gpu="b200", tp=8)
    each = 2 * 1 * 128 * 2  # one of 8 KV heads on each of 8 GPUs
    assert found["decode_attention.full"].bytes == 12 * 3 * 20_001 * each
    assert found["decode_attention.chunks_8192"].bytes == 36 * 3 * (20_000 % 8192 + 1) * each


def test_the_textbook_cuts_its_triangle_into_chunks():
    model = Textbook(1.0, 1.0, ((LocalChunks(100), 1.0),), 1.0, 1.0, 1.0)
    assert textbook_attention(model, 250.0) == 4 * (2 * 100**2 / 2 + 50**2 / 2)
    plain = Textbook(1.0, 1.0, ((None, 1.0),), 1.0, 1.0, 1.0)
    assert textbook_attention(model, 80.0) == textbook_attention(plain, 80.0)


@pytest.mark.parametrize("name", MIXED)
def test_steps_of_every_kind_grow_with_their_work(name):
    architecture = architecture_from_config(MIXED[name], name)
    deployment = deploy_architecture(architecture, "b200", tp=8)
    parameters = build_parameters(deployment)

    def seconds(chunks=(), decodes=()):
        return step_times(parameters, make_work(chunks, decodes, parameters.windows)).total

    assert 0 < seconds(decodes=[Decodes(1, 100)]) < seconds(decodes=[Decodes(64, 100)])
    assert seconds([Chunk(500)]) < seconds([Chunk(4000)]) < seconds([Chunk(4000)], [Decodes(64, 100)])
    assert math.isclose(seconds([Chunk(500, 0)]), seconds([Chunk(500)]), rel_tol=1e-12)
