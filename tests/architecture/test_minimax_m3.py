"""MiniMax-M3: counts, cache, kernels and quantisation against a hand count."""

import math

import pytest

from costmodel.architecture.counts import (
    active_parameters,
    kv_bytes_per_token,
    layer_parameters,
    parameter_table,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.source import load_model, preset_config
from costmodel.building import build_parameters
from costmodel.calibrations import shipped_calibration
from costmodel.deployment import deploy_architecture
from costmodel.encoder import encoder_parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.memory.blocks import kv_groups
from costmodel.memory.engines import default_settings

M3 = load_model("MiniMax-M3")[0]
HIDDEN, EXPERT = 6144, 3 * 6144 * 3072
OWN = 6144 * (64 + 2 * 4) * 128 + 64 * 128 * 6144 + 2 * 128 + 2 * 6144
"""q, k, v and output of 64 and 4 heads of 128, norms on heads, two norms."""
INDEX = 6144 * (4 + 1) * 128 + 2 * 128
"""Queries of four heads and a key of 128, a norm on each."""


def operators(chunks=(), decodes=(), tp=1, gpu="b200"):
    deployment = deploy_architecture(M3, gpu, tp=tp)
    parameters = build_parameters(deployment)
    return {item.name: item for item in step_operators(parameters, make_work(chunks, decodes, parameters.windows))}


def changed(**keys):
    config = preset_config("MiniMax-M3")
    sparse = {**config["text_config"]["sparse_attention_config"], **keys.pop("sparse", {})}
    text = {**config["text_config"], "sparse_attention_config": sparse, **keys}
    return architecture_from_config({**config, "text_config": text}, "model")


def test_parameters_of_a_layer_and_of_all():
    """3 dense layers, 57 of an indexer, 128 experts and a shared one, a router with correction biases; "428B", "23B" without embeddings."""
    dense, sparse = M3.kinds
    assert layer_parameters(dense, HIDDEN) == OWN + 3 * 6144 * 12_288
    assert layer_parameters(sparse, HIDDEN) == OWN + INDEX + 129 * EXPERT + 128 * 6144 + 128
    assert M3.pattern == (0,) * 3 + (1,) * 57
    table = 2 * 200_064 * 6144
    text = 3 * layer_parameters(dense, HIDDEN) + 57 * layer_parameters(sparse, HIDDEN) + table + 6144
    assert total_parameters(M3) == text + 631_185_920 + 234_381_312 == 427_040_140_160
    assert active_parameters(M3) == text - 57 * 124 * EXPERT
    assert round((active_parameters(M3) - table) / 1e9, 1) == 23.5


def test_the_cache_holds_k_and_v_of_four_heads_and_a_key_of_the_indexer():
    """Per token 60·2·4·128 elements, and 57·128 of the indexer's in 16 bits, which an 8-bit cache does not change."""
    assert kv_bytes_per_token(M3) == 60 * 2 * 4 * 128 * 2 + 57 * 256
    assert kv_bytes_per_token(M3, 1) == 60 * 2 * 4 * 128 + 57 * 256
    assert kv_bytes_per_token(M3, 2, 8) == 60 * 2 * 128 * 2 + 57 * 256  # a KV head is the least


def test_one_group_of_blocks_of_128_tokens():
    deployment = deploy_architecture(M3, "b200", tp=8)
    assert default_settings(deployment).block_tokens == 128
    (group,) = kv_groups(deployment, 128)
    assert sum(page for _, page in group.layers) == 128 * (60 * 512 + 57 * 256)
    assert default_settings(deploy_architecture(load_model("MiniMax-M2")[0], "b200", tp=8)).block_tokens == 16


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_decode_reads_what_was_chosen_and_scores_all(tp):
    """At 10,000 tokens 3 layers read them all, 57 read 16 blocks of 128; the indexer scores all with a head for each KV head."""
    found = operators(decodes=[Decodes(2, 9999)], tp=tp)
    heads, groups = 64 / tp, max(4 / tp, 1)
    full, chosen = found["decode_attention.full"], found["decode_attention.window_2048"]
    assert full.flops == 3 * 2 * 10_000 * 4 * heads * 128
    assert full.bytes == 3 * 2 * 10_000 * 2 * groups * 128 * 2
    assert chosen.flops == 57 * 2 * 2048 * 4 * heads * 128
    assert chosen.bytes == 57 * 2 * 2048 * 2 * groups * 128 * 2
    indexer = found["decode_indexer"]
    assert indexer.flops == 57 * 2 * 10_000 * 2 * groups * 128
    assert indexer.bytes == 57 * 2 * 10_000 * 256


def test_prefill_scores_all_pairs_and_attends_to_the_chosen():
    found = operators([Chunk(8000)])
    pairs = 2048 * 2049 / 2 + (8000 - 2048) * 2048
    assert found["prefill_attention.window_2048"].flops == 57 * pairs * 4 * 64 * 128
    assert found["prefill_attention.full"].flops == 3 * 8000 * 8001 / 2 * 4 * 64 * 128
    assert found["prefill_indexer"].flops == 57 * 8000 * 8001 / 2 * 2 * 4 * 128


def test_the_indexer_is_in_the_kernel_of_q_k_and_v():
    found = operators(decodes=[Decodes(1, 100)])
    assert found["qkv_proj.2"].flops == 57 * 2 * 6144 * (72 + 5) * 128
    assert not any(name.startswith("indexer.") for name in found)
    rows = {row.module: row for row in parameter_table(M3, 8)}
    qkv = 3 * 6144 * (8 + 2) * 128 + 57 * 6144 * (8 + 2 + 2) * 128
    assert rows["attention"].count == qkv + 60 * 8 * 128 * 6144


def test_attention_over_chosen_keys_tells_whose_rates_it_has():
    deployment = deploy_architecture(M3, "b200", tp=8)
    rates = CalibratedRates(shipped_calibration("b200", "vllm"))
    build_parameters(deployment, rates)
    assert any("over chosen keys" in note for note in rates.borrowed)


def test_the_projector_works_on_patches_and_the_merger_on_tokens():
    """1,024 × 1,024 pixels are shrunk to 672 × 672: 48² patches, 24² tokens and two markers."""
    tower = M3.vision
    image = tower.rule(1024, 1024)
    assert (image.width, image.height, image.patches, image.features, image.tokens) == (672, 672, 2304, 576, 578)
    found = {gemm.name: gemm for gemm in encoder_parameters(deploy_architecture(M3, "b200")).gemms}
    assert found["projector.linear_1"].flops_per_token == 4 * 2 * 1280 * 6144
    assert found["merger.linear_1"].flops_per_token == 2 * 4 * 6144 * 6144
    assert found["projector.linear_1"].weight_bytes == 1280 * 6144 * 2


def test_what_differs_is_refused():
    with pytest.raises(UnsupportedError, match="sparse_num_index_heads 8 differs from the 4 KV heads"):
        changed(sparse={"sparse_num_index_heads": 8})
    with pytest.raises(UnsupportedError, match="values and outputs"):
        changed(sparse={"sparse_disable_index_value": [0] * 60})
    with pytest.raises(InputError, match="moe_layer_freq has 1 entries for 60 layers"):
        changed(moe_layer_freq=[1])
    with pytest.raises(UnsupportedError, match="intermediate_size 3072"):
        changed(shared_intermediate_size=6144)
    with pytest.raises(UnsupportedError, match="sparse_new_size"):
        changed(sparse={"sparse_new_size": 3})


def test_an_indexer_stored_otherwise_than_its_kernel_is_refused():
    config = preset_config("MiniMax-M3")
    quant = {"quant_method": "fp8", "modules_to_not_convert": ["index_q_proj", "index_k_proj"]}
    with pytest.raises(UnsupportedError, match="layer 3: qkv_proj and the indexer are one kernel"):
        architecture_from_config({**config, "quantization_config": quant}, "model")


def test_longer_contexts_cost_the_indexer_only():
    short, long = (operators(decodes=[Decodes(4, context)]) for context in (100_000, 400_000))
    assert long["decode_attention.window_2048"] == short["decode_attention.window_2048"]
    assert math.isclose(long["decode_indexer"].bytes / short["decode_indexer"].bytes, 4, rel_tol=1e-4)
