"""States of recurrent layers in vLLM's pool of blocks, and caches of layers that differ."""

import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.deployment import check_parallelism, deploy_architecture, divides
from costmodel.equations.work import LocalChunks
from costmodel.hardware.errors import InputError
from costmodel.memory import memory_of
from costmodel.memory.blocks import KvGroup, kv_groups, sequence_blocks, stage_kv_bytes
from costmodel.memory.engines import default_settings
from costmodel.memory.pool import pool_of
from tests.architecture.mixed_configs import GEMMA4, GLM52, LLAMA4, NEMOTRON3, QWEN_NEXT


def deployed(config, gpu="h100", **sizes):
    return deploy_architecture(architecture_from_config(config, "model"), gpu, **sizes)


@pytest.mark.parametrize(
    ("config", "tokens", "page"),
    [
        # vLLM 0.32, Platform._align_hybrid_block_size of these configurations: "Setting attention block size to … tokens".
        (NEMOTRON3, 4160, 4_259_840),
        ({**QWEN_NEXT, "mamba_ssm_dtype": "float32"}, 1056, 2_162_688),
        # By hand: 32·128·128·2 + 3·8192·2 = 1,097,728 B are 536 tokens of 2·2·256·2 = 2048 B, so 34 times 16 of them.
        (QWEN_NEXT, 544, 1_114_112),
    ],
)
def test_blocks_are_as_long_as_a_state_is_large(config, tokens, page):
    groups = kv_groups(deployed(config))
    assert {group.block_tokens for group in groups} == {tokens}
    assert {size for group in groups for _, size in group.layers} == {page}


def test_recurrent_layers_are_dealt_to_groups_of_as_many_as_there_are_others():
    """Qwen3-Next: 12 layers of attention, 36 recurrent ones in three groups of 12; a sequence has two blocks of each."""
    groups = kv_groups(deployed(QWEN_NEXT))
    assert [len(group.layers) for group in groups] == [12] * 4
    assert [group.states for group in groups] == [0, 2, 2, 2]
    assert sequence_blocks(groups, 1, 1) == 1 + 6
    assert sequence_blocks(groups, 10 * 544, 8192) == 10 + 6


def test_layers_without_anything_to_keep_are_in_no_group():
    """Nemotron 3 Super: 8 layers of attention and 40 of Mamba 2 keep something, 40 of experts nothing."""
    groups = kv_groups(deployed(NEMOTRON3))
    assert sum(len(group.layers) for group in groups) == 48


def test_states_are_what_a_short_sequence_costs():
    """A thousand streams of one token each take their states: 36 layers of two padded blocks of 1,114,112 B."""
    memory = memory_of(deployed(QWEN_NEXT, "b200", tp=4), 1000, 1, 1, 0, 8192)
    groups = kv_groups(deployed(QWEN_NEXT, "b200", tp=4))
    assert memory.kv_blocks_needed == 1000 * 7
    assert memory.kv_needed_bytes == 1000 * 7 * sum(page for _, page in groups[0].layers)


def test_tokens_of_the_pool_are_those_of_as_many_sequences_as_fit():
    deployment = deployed(QWEN_NEXT, "b200", tp=4)
    pool = pool_of(deployment, default_settings(deployment))
    blocks = -(-100_000 // pool.groups[0].block_tokens) + 6  # and the states of three groups, two each
    assert pool.tokens(100_000) == pool.blocks / blocks * 100_000 // 1


def test_an_indexer_keeps_its_keys_beside_the_latents():
    """GLM-5.2: 78 layers of 576 elements, 21 of them with 132 B for the indexer; one group, whole on every GPU."""
    for tp in (1, 8):
        deployment = deployed(GLM52, "h200", tp=tp)
        own = GLM52["indexer_types"].count("full")
        assert stage_kv_bytes(deployment, 0) == 78 * 576 * 2 + own * 132
        (group,) = kv_groups(deployment)
        assert sum(page for _, page in group.layers) == 16 * stage_kv_bytes(deployment, 0)


def test_local_chunks_keep_one_chunk():
    groups = kv_groups(deployed(LLAMA4, "b200", tp=8))
    local = [group for group in groups if isinstance(group.window, LocalChunks)]
    assert [len(group.layers) for group in groups] == [12] * 4
    assert len(local) == 3
    assert local[0].blocks_of(5000, 1) == -(-5000 // 16)
    assert local[0].blocks_of(100_000, 1) == -(-8193 // 16)


def test_layers_with_smaller_pages_have_longer_blocks():
    """Gemma 4 26B: a token takes 8,192 B in a sliding layer and 4,096 B in a full one, whose blocks hold 32 tokens for 16."""
    groups = kv_groups(deployed(GEMMA4))
    assert {(group.window, group.block_tokens) for group in groups} == {(1024, 16), (None, 32)}


def test_a_group_of_states_takes_no_more_for_longer_sequences():
    group = KvGroup(None, 544, ((0, 1),), states=2)
    assert not group.keeps_all
    assert [group.blocks_of(tokens, 8192) for tokens in (1, 10**6)] == [2, 2]


def test_recurrent_layers_divide_by_their_heads_and_groups():
    arch = architecture_from_config(QWEN_NEXT, "next")
    assert [tp for tp in (1, 2, 3, 4, 8, 16, 32) if divides(arch, tp)] == [1, 2, 4, 8, 16]
    with pytest.raises(InputError, match="tp 32 does not divide"):
        check_parallelism(arch, 32, 1, 1)
