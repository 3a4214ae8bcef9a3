"""KV cache: bytes per token and sequence, and vLLM's groups of layers that share a pool of blocks.

Layers with the same window form groups of equal size that draw blocks from one pool; a block holds ``block_tokens`` tokens of every layer
of one group. Source: vllm/v1/core/kv_cache_utils.py (0.32), ``get_kv_cache_groups``, ``get_max_concurrency_for_kv_cache_config``.

A recurrent layer keeps a state per sequence instead. It takes a block of the same pool, so blocks are made long enough for one: multiples
of the block size until a block of an attention layer is as large as a state, which is padded to it (``_align_hybrid_block_size`` of
vllm/platforms/interface.py). With prefix caching, vLLM's default, a sequence has two such blocks: its state, and the one it began the block
with (``MambaSpec.max_memory_usage_bytes``, cache mode ``align``); and one more for each drafted token (``num_speculative_blocks``).

Layers that compress keys have caches of several kinds (:mod:`costmodel.memory.packed`).

Layers of cross-attention keep keys and values of the E states of a sequence's encoder: ⌈E/block⌉ blocks, however long the sequence is
(``CrossAttentionSpec``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from costmodel.architecture.counts import layer_kv_bytes, state_bytes_per_sequence
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value, minimum
from costmodel.equations.work import BothWays, LocalChunks, Window
from costmodel.hardware.errors import UnsupportedError
from costmodel.memory.packed import packed_layers
from costmodel.memory.weights import stage_patterns

BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default on GPUs."""
STATE_BLOCKS = 2
"""Blocks of a recurrent group that a sequence has with prefix caching."""
LATENT_ALIGNMENT = 128
"""Blocks of latent attention beside recurrent layers are multiples of so many tokens."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share block tables.

    Attributes:
        window: tokens that a query sees; None for full attention.
        block_tokens: tokens of one block.
        layers: layer number and bytes of one of its blocks (page), in order; a layer comes twice where it has two caches in the group.
        states: blocks that a sequence has, whatever its length, of recurrent layers, or of an encoder's states; 0 for other attention.
    """

    window: Window
    block_tokens: int
    layers: tuple[tuple[int, int], ...]
    states: int = 0

    @property
    def keeps_all(self) -> bool:
        """Whether it keeps every token of a sequence."""
        return self.window is None and not self.states

    def blocks_of(self, tokens: Value, in_flight: Value) -> Value:
        """Return the blocks that a sequence of ``tokens`` needs while ``in_flight`` of them are being computed; arrays too.

        Full: ⌈tokens/block⌉. Window w: ⌈min(w − 1 + in_flight, tokens)/block⌉ + 1, since it may begin inside a block. Local chunks of w
        begin with a block: ⌈min(w + in_flight, tokens)/block⌉ (kv_cache_interface.py, ``ChunkedLocalAttentionSpec``).
        """
        if self.states:
            return self.states + 0 * tokens
        if isinstance(self.window, LocalChunks):
            return kv_blocks(minimum(self.window.size + in_flight, tokens), self.block_tokens)
        if self.window is None:
            return kv_blocks(tokens, self.block_tokens)
        if isinstance(self.window, BothWays):
            return 0 * tokens
        return kv_blocks(minimum(self.window - 1 + in_flight, tokens), self.block_tokens) + 1


def kv_blocks(tokens: Value, block_tokens: int = BLOCK_TOKENS) -> Value:
    """Return the KV blocks that one sequence takes: whole ones, so its last may be partly empty."""
    return -(-tokens // block_tokens)


def stage_kv_bytes(deployment: Deployment, stage: int) -> float:
    """Return KV-cache bytes per token on one GPU of a stage, every layer keeping it [B]."""
    kinds = deployment.architecture.kinds
    elements = sum(
        layer_kv_bytes(kinds[index].attention, deployment.kv_bytes, deployment.tp) * layers
        for index, layers in Counter(stage_patterns(deployment)[stage]).items()
    )
    return float(elements)


@lru_cache(maxsize=1024)
def kv_groups(
    deployment: Deployment, block_tokens: int = BLOCK_TOKENS, hybrid: bool = True, drafts: int = 0
) -> tuple[KvGroup, ...]:
    """Return vLLM's groups of the layers of a whole model.

    None where no layer keeps anything; one where all layers have the same window, or the hybrid allocator is off. Else pages are made equal
    (a smaller page gets more tokens per block, or is padded), and layers of each window are dealt to groups of as many layers as the rarest
    window has, or as the commonest where that is less than 1.5 times as many. Recurrent layers are a kind of window of their own, with one
    state for a block.

    Raises:
        UnsupportedError: a model that compresses keys without the hybrid allocator.
    """
    architecture, tp = deployment.architecture, deployment.tp
    if architecture.compresses:
        return _packed(deployment, block_tokens, hybrid)
    tokens_of: list[tuple[int, Window, float]] = []
    states: list[tuple[int, float]] = []
    crossing: list[tuple[int, float]] = []
    for number, index in enumerate(architecture.pattern):
        kind = architecture.kinds[index]
        if kind.attention.caches:
            each = layer_kv_bytes(kind.attention, deployment.kv_bytes, tp)
            tokens_of.append((number, kind.attention.window if hybrid else None, float(each)))
        if kind.state is not None:
            size = state_bytes_per_sequence(kind.state, deployment.activation_bytes, tp, drafts)
            states.append((number, float(size)))
        if kind.cross is not None and deployment.encoder_states:
            crossing.append((number, float(layer_kv_bytes(kind.cross, deployment.kv_bytes, tp))))
    if not tokens_of and not states and not crossing:
        return ()  # every query sees both ways: nothing is kept (vllm/v1/kv_cache_interface.py, ``EncoderOnlyAttentionSpec``)
    if states:
        block_tokens = _stretched(deployment, block_tokens, tokens_of, max(size for _, size in states))
    pages = [(number, window, round(each * block_tokens)) for number, window, each in tokens_of]
    windows = {window for _, window, _ in pages}
    if len(windows) == 1 and not states and not crossing:
        return (KvGroup(windows.pop(), block_tokens, tuple((number, page) for number, _, page in pages)),)
    crossed = [round(each * block_tokens) for _, each in crossing]
    largest = max([page for *_, page in pages] + [-int(-size // 1) for _, size in states] + crossed)
    buckets: dict[tuple[Window, int, int], list[int]] = {}
    for number, window, page in pages:
        tokens = block_tokens * (largest // page) if largest % page == 0 else block_tokens
        buckets.setdefault((window, tokens, 0), []).append(number)
    if states:
        buckets[None, block_tokens, STATE_BLOCKS + drafts] = [number for number, _ in states]
    if crossing:
        kept = int(kv_blocks(deployment.encoder_states, block_tokens))
        buckets[None, block_tokens, kept] = [number for number, _ in crossing]
    counts = [len(numbers) for numbers in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for (window, tokens, kept), numbers in buckets.items():
        dealt = int(kv_blocks(len(numbers), size))
        groups += [
            KvGroup(window, tokens, tuple((number, largest) for number in numbers[start::dealt]), kept)
            for start in range(dealt)
        ]
    return tuple(groups)


def _packed(deployment: Deployment, block_tokens: int, hybrid: bool) -> tuple[KvGroup, ...]:
    """Return the groups of a model that compresses keys."""
    if not hybrid:
        raise UnsupportedError(
            f"{deployment.architecture.name} compresses keys: how its caches share memory is known for vLLM's hybrid KV cache manager only"
        )
    return tuple(KvGroup(*group) for group in packed_layers(deployment, block_tokens))


def _stretched(
    deployment: Deployment, block_tokens: int, tokens_of: Sequence[tuple[int, Window, float]], state: float
) -> int:
    """Return the tokens of a block that is at least as large as a state in the smallest layer that keeps tokens."""
    if not tokens_of:
        return block_tokens
    latent = any(kind.attention.kind == "mla" for kind in deployment.architecture.kinds)
    step = max(block_tokens, LATENT_ALIGNMENT) if latent else block_tokens
    each = min(size for *_, size in tokens_of)
    return step * max(int(-(-state // (step * each))), 1)


def stage_groups(groups: Sequence[KvGroup], first: int, layers: int) -> tuple[KvGroup, ...]:
    """Return what a pipeline stage that holds ``layers`` layers from number ``first`` on has of each group."""
    return tuple(
        replace(group, layers=tuple(layer for layer in group.layers if first <= layer[0] < first + layers))
        for group in groups
    )


def block_bytes(groups: Sequence[KvGroup]) -> int:
    """Return the bytes of one block of the pool: those of the group with most; 0 without a KV cache [B]."""
    return max((sum(page for _, page in group.layers) for group in groups), default=0)


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
