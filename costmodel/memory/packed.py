"""KV cache of compressed keys (DeepSeek-V4): caches of several kinds side by side in the blocks of vLLM's one pool.

A layer has up to five, each with pages of its own size and blocks of its own length:

- the keys of its window, blocks of 64 tokens;
- its compressed keys and those of its indexer, one for m tokens, blocks of 256 tokens;
- the state of each compressor, values and weights in fp32 of the tokens that an entry still needs: windows of 2·m tokens in blocks of 4
  where entries overlap (m = 4), of m in blocks of 8 else.

Caches of one window and one length of block are a bucket. Where a bucket has as many pages of each size, and another has pages of several
sizes, buckets of one size are dealt to groups of about as many layers as that; a block is as large as the largest group.

Source: vllm/v1/core/kv_cache_utils.py (0.32), ``_get_packed_kv_cache_groups``, ``_get_kv_cache_bytes_per_block``;
vllm/models/deepseek_v4/attention.py and compressor.py, ``get_kv_cache_spec``; vllm/v1/attention/backends/mla/sparse_swa.py.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.architecture.counts import cached_key_bytes, index_key_bytes
from costmodel.architecture.linears import compressor_overlap, compressor_width, kv_heads_per_gpu
from costmodel.architecture.types import Attention
from costmodel.deployment import Deployment
from costmodel.equations.work import Window

WHOLE_TOKENS = 256
"""Tokens of a block of compressed keys; the only size that the kernels take, and multiples of it."""
WINDOW_TOKENS = 64
"""Tokens of a block of a window's keys."""
STATE_TOKENS = {2: 4, 1: 8}
"""Tokens of a block of a compressor's state, by how many entries a token is part of."""
STATE_BYTES = 4
"""Bytes of an element of it: fp32."""
ALIGNMENT = {1.0: 576}
"""Pages are whole multiples of so many bytes by the bytes of a cached element: FlashMLA's rows of 8 bits; 512 for others."""


class Cache(NamedTuple):
    """One cache of one layer."""

    layer: int
    window: Window
    tokens: int
    """Of a block."""
    page: int
    """Bytes of a block."""


Bucket = dict[int, list[int]]
"""Layers with pages of each size."""


def packed_layers(deployment: Deployment, block_tokens: int) -> list[tuple[Window, int, tuple[tuple[int, int], ...]]]:
    """Return (window, tokens of a block, (layer, page)…) of each group of caches.

    Args:
        deployment: a model that compresses keys.
        block_tokens: as asked for; blocks of compressed keys are whole multiples of :data:`WHOLE_TOKENS`.
    """
    whole = -(-block_tokens // WHOLE_TOKENS) * WHOLE_TOKENS
    buckets: dict[tuple[Window, int], Bucket] = {}
    for number, index in enumerate(deployment.architecture.pattern):
        attention = deployment.architecture.kinds[index].attention
        if not attention.caches:
            continue
        for cache in _caches(deployment, number, attention, whole):
            pages = buckets.setdefault((cache.window, cache.tokens), {})
            pages.setdefault(cache.page, []).append(number)
    repeats = _repeats(list(buckets.values()))
    widest = max(_widest(bucket, _parts(key, bucket, repeats)) for key, bucket in buckets.items())
    groups = []
    for (window, tokens), bucket in buckets.items():
        parts = _groups(bucket, repeats)
        if repeats is None and window is not None:  # as many as fit into a block that the others need anyway
            parts = max(parts, -(-sum(map(len, bucket.values())) // max(widest // next(iter(bucket)), 1)))
        for start in range(parts):
            layers = [(number, page) for page, numbers in bucket.items() for number in numbers[start::parts]]
            groups.append((window, tokens, tuple(sorted(layers))))
    return groups


def _caches(deployment: Deployment, number: int, attention: Attention, whole: int) -> list[Cache]:
    each, kv_bytes = cached_key_bytes(attention, deployment.kv_bytes, deployment.tp), float(deployment.kv_bytes)
    step = ALIGNMENT.get(kv_bytes, 512)

    def page(size: float) -> int:
        return int(-(-size // step) * step)

    found = [Cache(number, attention.window, WINDOW_TOKENS, page(WINDOW_TOKENS * each))]
    if not attention.compression:
        return found
    entries, overlap = whole // attention.compression, compressor_overlap(attention)
    window, tokens = overlap * attention.compression, STATE_TOKENS[overlap]
    inner = [kv_heads_per_gpu(attention, deployment.tp) * attention.head_dim]
    found.append(Cache(number, None, whole, page(entries * each)))
    if attention.index_heads:
        found.append(Cache(number, None, whole, page(entries * index_key_bytes(attention))))
        inner.append(attention.index_head_dim)
    for width in inner:
        state = tokens * compressor_width(attention, width) * STATE_BYTES
        found.append(Cache(number, window, tokens, page(state)))
    return found


def _balanced(bucket: Bucket) -> bool:
    """Tell whether there are as many layers of each size of page."""
    return len({len(numbers) for numbers in bucket.values()}) == 1


def _most(bucket: Bucket) -> int:
    """Return how many layers share a size of page at most."""
    return max(map(len, bucket.values()))


def _repeats(buckets: list[Bucket]) -> int | None:
    """Return how many layers of each size a group has: that which leaves least room empty, and is enough for those that stay whole.

    Ties go to more (``_approximate_gcd``). None where no bucket mixes pages of several sizes evenly.
    """
    balanced = [bucket for bucket in buckets if _balanced(bucket)]
    least = max((_most(bucket) for bucket in balanced if len(bucket) > 1), default=0)
    if not least:
        return None
    counts = [_most(bucket) for bucket in balanced]
    return min(range(least, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


def _groups(bucket: Bucket, repeats: int | None) -> int:
    """Return to how many groups the layers of a bucket are dealt."""
    return 1 if repeats is None or not _balanced(bucket) else -(-_most(bucket) // repeats)


def _parts(key: tuple[Window, int], bucket: Bucket, repeats: int | None) -> int:
    """Return the same for the room that a block needs in any case: buckets with a window could be dealt out one by one."""
    if repeats is None and key[0] is not None:
        return sum(map(len, bucket.values()))
    return _groups(bucket, repeats)


def _widest(bucket: Bucket, parts: int) -> int:
    """Return the bytes of the largest of so many groups."""
    return sum(-(-len(numbers) // parts) * page for page, numbers in bucket.items())
