"""Caches of compressed keys: groups, pages and blocks as vLLM 0.32 makes them of the same layers.

Expected numbers are those of ``get_kv_cache_groups``, ``_get_kv_cache_bytes_per_block`` and
``get_max_concurrency_for_kv_cache_config`` (vllm/v1/core/kv_cache_utils.py), called with the specs that
vllm/models/deepseek_v4 registers for each layer, for 65,536 tokens of which 16,384 are in flight.
"""

from dataclasses import replace

import pytest

import costmodel
from costmodel.deployment import deploy
from costmodel.hardware.errors import UnsupportedError
from costmodel.memory.activations import activation_parts
from costmodel.memory.blocks import block_bytes, kv_groups, sequence_blocks, stage_groups
from costmodel.memory.packed import _repeats
from costmodel.memory.weights import loaded_weight_rows

FLASH_8 = [
    (22, 64, 823_680, 259),
    (21, 64, 786_240, 259),
    (62, 256, 1_002_240, 256),
    (42, 4, 870_912, 4099),
    (20, 8, 656_640, 2065),
]
FLASH_16 = [
    (22, 64, 1_441_792, 259),
    (21, 64, 1_376_256, 259),
    (62, 256, 1_600_000, 256),
    (42, 4, 860_160, 4099),
    (20, 8, 655_360, 2065),
]
PRO_8 = [
    (31, 64, 1_160_640, 259),
    (30, 64, 1_123_200, 259),
    (91, 256, 1_435_968, 256),
    (31, 8, 1_017_792, 2065),
    (60, 4, 1_244_160, 4099),
]
PRO_16 = [
    (31, 64, 2_031_616, 259),
    (30, 64, 1_966_080, 259),
    (91, 256, 2_290_688, 256),
    (31, 8, 1_015_808, 2065),
    (60, 4, 1_228_800, 4099),
]


@pytest.mark.parametrize(
    ("model", "kv_dtype", "expected"),
    [
        ("DeepSeek-V4-Flash", None, FLASH_8),
        ("DeepSeek-V4-Flash", "bf16", FLASH_16),
        ("DeepSeek-V4-Pro", None, PRO_8),
        ("DeepSeek-V4-Pro", "bf16", PRO_16),
    ],
)
def test_groups_are_those_of_vllm(model, kv_dtype, expected):
    groups = kv_groups(deploy(model, "h200", tp=8, kv_dtype=kv_dtype))
    found = [
        (len(group.layers), group.block_tokens, sum(page for _, page in group.layers), group.blocks_of(65_536, 16_384))
        for group in groups
    ]
    assert sorted(found) == sorted(expected)
    assert block_bytes(groups) == max(size for _, _, size, _ in expected)
    assert 100_000 / sequence_blocks(groups, 65_536, 16_384) == pytest.approx(14.413375612568464)


def test_pages_by_hand():
    """64 entries of 584 B, of 132 B, two of 584 B, states of 4 × 2,048 and 4 × 512 floats, of 8 × 1,024, in multiples of 576 B."""
    groups = kv_groups(deploy("DeepSeek-V4-Flash", "h200", tp=8))
    pages = {(group.window, group.block_tokens): {page for _, page in group.layers} for group in groups}
    assert pages == {(128, 64): {37_440}, (None, 256): {37_440, 8640, 1728}, (8, 4): {32_832, 8640}, (128, 8): {32_832}}


def test_layers_are_dealt_so_that_least_is_empty():
    """43 layers of a window beside 21 with two sizes of page and 20: groups of 22, not 21 or 43."""
    assert _repeats([{1: list(range(43))}, {2: list(range(21)), 3: list(range(21))}, {4: list(range(20))}]) == 22
    assert _repeats([{1: list(range(43))}, {2: list(range(20))}]) is None


def test_stages_have_their_own_layers():
    groups = kv_groups(deploy("DeepSeek-V4-Flash", "h200", tp=2, pp=2))
    first, second = stage_groups(groups, 0, 21), stage_groups(groups, 21, 22)
    whole = sum(len(group.layers) for group in groups)
    assert sum(len(group.layers) for group in (*first, *second)) == whole == 43 + 2 * 21 + 20 + 2 * 21 + 20


def test_a_plan_of_memory():
    plan = costmodel.plan_memory(model="DeepSeek-V4-Flash", gpu="h200", tp=4)
    assert (plan.memory.kv_block_tokens, plan.memory.kv_groups) == (256, 5)
    assert plan.stages[0].kv_bytes_per_block == 1_002_240
    assert plan.memory.kv_blocks == plan.memory.kv_available_bytes // 1_002_240


def test_what_is_not_known_of_other_engines_is_refused():
    for options in ({"engine": "sglang"}, {"engine": "trtllm"}, {"hybrid_kv_cache": False}):
        with pytest.raises(UnsupportedError, match="compresses keys"):
            costmodel.plan_memory(model="DeepSeek-V4-Flash", gpu="h200", tp=4, **options)


def test_rotary_tables_are_two_in_32_bits():
    """Flash has layers with and without compressed keys, 2²⁰ rows of 64 each; Pro has none without."""
    for model, tables in (("DeepSeek-V4-Flash", 2), ("DeepSeek-V4-Pro", 1)):
        rows = {row.module: row for row in loaded_weight_rows(deploy(model, "h200", tp=8), 0)}
        assert rows["rotary tables"].bytes == tables * 2**20 * 64 * 4


def test_activations_hold_four_residual_streams_and_64_heads():
    """8,192 tokens: 2·64 heads of 512, and the streams before and after, and one vector of d."""
    deployment = deploy("DeepSeek-V4-Flash", "h200", tp=8)
    layers = activation_parts(deployment, 8192, 1)[0]
    without = replace(
        deployment,
        architecture=replace(
            deployment.architecture, kinds=tuple(replace(kind, residuals=1) for kind in deployment.architecture.kinds)
        ),
    )
    assert layers - activation_parts(without, 8192, 1)[0] == 8192 * 2 * 6 * 4096
    assert layers >= 8192 * 2 * (2 * 64 * 512 + 9 * 4096)
