"""Words and parts of attention over compressed keys (DeepSeek-V4), for the topics that tell kinds of layers apart."""

from __future__ import annotations

from costmodel.architecture.counts import cached_key_bytes, index_bytes_per_token, kv_elements_per_token
from costmodel.architecture.types import Architecture, Attention

LOOKING = {
    "all": "the last ones and all keys that stand for {1:,} tokens each",
    "chosen": "the last ones and, of keys that stand for {1:,} tokens each, the {0:,} that an indexer chooses",
}
"""What a token looks at, by what it sees of compressed keys; {0} is k, {1} m."""
PAIRS = {
    "all": "n·w − w(w − 1)/2 + Σ ⌊t/m⌋ where all compressed keys are seen, ≈ n²/2m",
    "chosen": "n·w − w(w − 1)/2 + Σ min(⌊t/m⌋, k) where k of them are chosen",
}
"""Pairs of a prompt, likewise."""


def cached_parts(attention: Attention, tp: int, kv_bytes: float) -> list[tuple[str, str, float, float]]:
    """Return what is cached per token and layer on one GPU where the key is the value: name, for how long, elements, bytes."""
    elements, each = float(kv_elements_per_token(attention, tp)), float(cached_key_bytes(attention, kv_bytes, tp))
    parts = [("the vector that is K and V", f"the last {attention.window:,}", elements, each)]
    if attention.compression:
        share = attention.compression
        parts.append(("its share of a compressed one", "all tokens", elements / share, each / share))
    if attention.index_heads:
        width = attention.index_head_dim / attention.compression
        parts.append(("its share of an indexer's key", "all tokens", width, float(index_bytes_per_token(attention))))
    return parts


def own_formulas(architecture: Architecture) -> tuple[str, ...]:
    """Return what a model whose key is its value computes and keeps instead of what the general formulas say; nothing for others."""
    if not any(kind.attention.shared_kv for kind in architecture.kinds):
        return ()
    return (
        "this model: one vector is K and V, so KV bytes per token = h_kv·d_h·b_kv·(1 + 1/m) where m tokens make a compressed key; queries "
        "come through a latent of q_lora_rank, outputs go through o_groups of o_lora_rank",
    )
