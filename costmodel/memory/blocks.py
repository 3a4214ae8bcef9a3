"""KV cache: bytes per token and sequence, and vLLM's groups of layers that share a pool of blocks.

Layers with the same window form groups of equal size that draw blocks from one pool; a block holds ``block_tokens`` tokens of every layer
of one group. Source: vllm/v1/core/kv_cache_utils.py (0.32), ``get_kv_cache_groups``, ``get_max_concurrency_for_kv_cache_config``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from costmodel.architecture.counts import kv_elements_per_token
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value, minimum
from costmodel.memory.weights import stage_patterns

BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default on GPUs."""
CPU_BLOCK_TOKENS = 128
"""Likewise on CPUs (vllm/platforms/cpu.py)."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share block tables.

    Attributes:
        window: tokens that a query sees; None for full attention.
        block_tokens: tokens of one block.
        layers: layer number and bytes of one of its blocks (page), in order.
    """

    window: int | None
    block_tokens: int
    layers: tuple[tuple[int, int], ...]

    def blocks_of(self, tokens: Value, in_flight: Value) -> Value:
        """Return the blocks that a sequence of ``tokens`` needs while ``in_flight`` of them are being computed; arrays too.

        Full: ⌈tokens/block⌉. Window w: ⌈min(w − 1 + in_flight, tokens)/block⌉ + 1, since it may begin inside a block.
        """
        if self.window is None:
            return kv_blocks(tokens, self.block_tokens)
        return kv_blocks(minimum(self.window - 1 + in_flight, tokens), self.block_tokens) + 1


def kv_blocks(tokens: Value, block_tokens: int = BLOCK_TOKENS) -> Value:
    """Return the KV blocks that one sequence takes: whole ones, so its last may be partly empty."""
    return -(-tokens // block_tokens)


def stage_kv_bytes(deployment: Deployment, stage: int) -> float:
    """Return KV-cache bytes per token on one GPU of a stage, every layer keeping it [B]."""
    kinds = deployment.architecture.kinds
    elements = sum(
        kv_elements_per_token(kinds[index].attention, deployment.tp) * layers
        for index, layers in Counter(stage_patterns(deployment)[stage]).items()
    )
    return float(elements * deployment.kv_bytes)


@lru_cache(maxsize=1024)
def kv_groups(deployment: Deployment, block_tokens: int = BLOCK_TOKENS, hybrid: bool = True) -> tuple[KvGroup, ...]:
    """Return vLLM's groups of the layers of a whole model.

    One group where all layers have the same window, or the hybrid allocator is off. Else pages are made equal (a smaller page gets more
    tokens per block, or is padded), and layers of each window are dealt to groups of as many layers as the rarest window has, or as the
    commonest where that is less than 1.5 times as many.
    """
    pages = []
    for index in deployment.architecture.pattern:
        attention = deployment.architecture.kinds[index].attention
        page = round(kv_elements_per_token(attention, deployment.tp) * deployment.kv_bytes * block_tokens)
        pages.append((attention.window if hybrid else None, page))
    windows = {window for window, _ in pages}
    if len(windows) == 1:
        layers = tuple((number, page) for number, (_, page) in enumerate(pages))
        return (KvGroup(windows.pop(), block_tokens, layers),)
    largest = max(page for _, page in pages)
    buckets: dict[tuple[int | None, int], list[int]] = {}
    for number, (window, page) in enumerate(pages):
        tokens = block_tokens * (largest // page) if largest % page == 0 else block_tokens
        buckets.setdefault((window, tokens), []).append(number)
    counts = [len(numbers) for numbers in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for (window, tokens), numbers in buckets.items():
        dealt = int(kv_blocks(len(numbers), size))
        groups += [
            KvGroup(window, tokens, tuple((number, largest) for number in numbers[start::dealt]))
            for start in range(dealt)
        ]
    return tuple(groups)


def stage_groups(groups: Sequence[KvGroup], first: int, layers: int) -> tuple[KvGroup, ...]:
    """Return what a pipeline stage that holds ``layers`` layers from number ``first`` on has of each group."""
    return tuple(
        replace(group, layers=tuple(layer for layer in group.layers if first <= layer[0] < first + layers))
        for group in groups
    )


def block_bytes(groups: Sequence[KvGroup]) -> int:
    """Return the bytes of one block of the pool: those of the group with most [B]."""
    return max(sum(page for _, page in group.layers) for group in groups)


def sequence_blocks(groups: Sequence[KvGroup], tokens: Value, in_flight: Value) -> Value:
    """Return the blocks of the pool that one sequence of ``tokens`` needs: the sum over groups; arrays too."""
    return sum(group.blocks_of(tokens, in_flight) for group in groups)


def longest_sequence(groups: Sequence[KvGroup], blocks: int, in_flight: int, most: int) -> int:
    """Return the longest sequence, up to ``most`` tokens, for which ``blocks`` are enough beside the null block; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(groups, middle, in_flight) + 1 <= blocks:
            low = middle
        else:
            high = middle - 1
    return low
