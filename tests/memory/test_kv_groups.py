"""KV cache as vLLM hands it out: groups of layers, blocks, and what a sequence takes. Hand counts; vllm/v1/core/kv_cache_utils.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.source import preset_config
from costmodel.deployment import Deployment, deploy
from costmodel.memory.blocks import (
    KvGroup,
    block_bytes,
    kv_blocks,
    kv_groups,
    longest_sequence,
    sequence_blocks,
    stage_groups,
    stage_kv_bytes,
)
from tests.strategies import deployments, examples


def test_one_group_where_all_layers_are_alike() -> None:
    (group,) = kv_groups(deploy("Llama-3.1-8B", "h100"))
    assert group.window is None
    assert len(group.layers) == 32
    assert block_bytes([group]) == 16 * 131_072
    assert group.blocks_of(15_049, 8192) == 941
    (wide,) = kv_groups(deploy("Llama-3.1-8B", "h100"), block_tokens=128)
    assert wide.blocks_of(15_049, 8192) == 118  # 15,049 tokens at block 128 (llm-d planner, measured over /metrics)


def test_a_window_in_every_layer_is_one_group_too(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(preset_config("Mistral-7B-v0.1")), encoding="utf-8")
    (group,) = kv_groups(deploy(str(path), "h100"))
    assert group.window == 4096
    assert group.blocks_of(32_768, 2048) == kv_blocks(4096 - 1 + 2048) + 1


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("gpt-oss-20b", [12, 12]),  # 12 windowed and 12 full layers
        ("gemma-3-27b-it", [10, 9, 9, 9, 9, 8, 8]),  # 10 full and 52 windowed: six groups of up to 10
        ("gemma-3-12b-it", [8] * 6),
        ("gemma-2-9b-it", [21, 21]),
    ],
)
def test_windows_make_groups_of_equal_size(model: str, sizes: list[int]) -> None:
    groups = kv_groups(deploy(model, "h100"))
    assert sorted((len(group.layers) for group in groups), reverse=True) == sizes
    numbers = sorted(number for group in groups for number, _ in group.layers)
    assert numbers == list(range(sum(sizes)))


def test_blocks_of_a_hybrid_by_hand() -> None:
    # gemma-3-27b: a block is 16 tokens of 10 layers of 2·16·128·2 B; a sequence of 100,000 tokens takes 6,250 in the full group and
    # ⌈(1,024 − 1 + 8,192)/16⌉ + 1 = 577 in each of six
    groups = kv_groups(deploy("gemma-3-27b-it", "h100"))
    assert block_bytes(groups) == 10 * 16 * 2 * 16 * 128 * 2
    assert sequence_blocks(groups, 100_000, 8192) == 6250 + 6 * 577
    assert sequence_blocks(groups, 160, 8192) == 10 + 6 * 11


def test_with_the_hybrid_allocator_off_windows_cost_full_length() -> None:
    deployment = deploy("gemma-3-27b-it", "h100")
    (group,) = kv_groups(deployment, hybrid=False)
    assert block_bytes([group]) == 16 * stage_kv_bytes(deployment, 0)
    assert group.blocks_of(100_000, 8192) == 6250
    hybrid = kv_groups(deployment)
    assert sequence_blocks(hybrid, 100_000, 8192) * block_bytes(hybrid) < 6250 * block_bytes([group]) / 3


def test_short_sequences_of_windowed_layers_cost_as_much_as_full_ones() -> None:
    # gpt-oss-120b: 36 layers of 2·8·64·2 B = 73,728 B per token, not half
    assert stage_kv_bytes(deploy("gpt-oss-120b", "h100"), 0) == 73_728


def test_mla_and_tensor_parallelism() -> None:
    # 576 elements per token and layer, once, whole on every GPU
    for tp in (1, 8):
        (group,) = kv_groups(deploy("DeepSeek-V3", "h200", tp=tp))
        assert block_bytes([group]) == 16 * 70_272
    # 4 KV heads on 8 GPUs: each is held twice
    heads = {tp: block_bytes(kv_groups(deploy("Qwen3-30B-A3B", "h100", tp=tp))) for tp in (1, 2, 4, 8)}
    assert heads == {1: 4 * heads[4], 2: 2 * heads[4], 4: heads[4], 8: heads[4]}


def test_stages_have_their_layers_of_each_group() -> None:
    groups = kv_groups(deploy("gemma-3-27b-it", "h100"))
    stages = [stage_groups(groups, first, 31) for first in (0, 31)]
    assert [sum(len(group.layers) for group in stage) for stage in stages] == [31, 31]
    assert all(block_bytes(stage) < block_bytes(groups) for stage in stages)


def test_longest_sequence_leaves_the_null_block() -> None:
    group = KvGroup(None, 16, ((0, 1024),))
    assert longest_sequence([group], 11, 0, 10_000) == 160
    assert longest_sequence([group], 1, 0, 10_000) == 0
    assert longest_sequence([group], 10_000, 0, 777) == 777


@examples(60)
@given(deployments(), st.integers(1, 100_000), st.integers(1, 20_000), st.integers(1, 10_000))
def test_longest_sequence_is_the_longest(deployment: Deployment, tokens: int, blocks: int, in_flight: int) -> None:
    groups = kv_groups(deployment)
    longest = longest_sequence(groups, blocks, in_flight, tokens)
    if longest:
        assert sequence_blocks(groups, longest, in_flight) + 1 <= blocks
    if longest < tokens:
        assert sequence_blocks(groups, longest + 1, in_flight) + 1 > blocks
    assert sorted({number for group in groups for number, _ in group.layers}) == layers_that_keep(deployment)


def layers_that_keep(deployment: Deployment) -> list[int]:
    """Return which layers of a model keep something of a sequence: keys and values, or a state."""
    architecture = deployment.architecture
    keep = [kind.attention.caches or kind.state is not None for kind in architecture.kinds]
    return [number for number, kind in enumerate(architecture.pattern) if keep[kind]]
