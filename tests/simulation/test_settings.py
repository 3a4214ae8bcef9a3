"""Settings and what follows from them."""

from __future__ import annotations

import pytest

from costmodel.simulation.settings import POLICIES, SCHEDULERS, Settings


def test_defaults_are_those_of_vllm() -> None:
    made = Settings(8192)
    assert made.chunked_prefill
    assert made.prefix_caching
    assert made.asynchronous
    assert (made.policy, made.scheduler, made.watermark, made.block_tokens) == ("fcfs", "vllm", 0.0, 16)
    assert (made.usable_blocks, made.watermark_blocks) == (None, 0)


def test_the_null_block_is_nobodys() -> None:
    assert Settings(1, kv_blocks=100).usable_blocks == 99


@pytest.mark.parametrize(("watermark", "blocks"), [(0.0, 0), (0.01, 1), (0.019, 1), (0.5, 50)])
def test_the_watermark_is_a_share_of_all_blocks_rounded_down(watermark: float, blocks: int) -> None:
    assert Settings(1, kv_blocks=100, watermark=watermark).watermark_blocks == blocks


def test_names() -> None:
    assert SCHEDULERS == ("vllm", "prefill-first", "separate", "sarathi")
    assert POLICIES == ("fcfs", "priority")
