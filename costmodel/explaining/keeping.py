"""What a sequence holds in the cache, and what stays of it for a prompt that begins alike: one count for every explanation.

vLLM finds a prefix of whole blocks if each group of layers still has what the token after it looks at: layers that keep everything all of
its blocks, layers with a window w the last ⌈(w − 1)/block⌉, layers with local chunks those of the chunk that is begun, recurrent layers the
state at its end. Layers of cross-attention keep nothing of a prompt. Source: vllm/v1/core/single_type_kv_cache_manager.py (0.32),
``find_longest_cache_hit`` of each manager.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.equations.work import LocalChunks
from costmodel.explaining.scene import Scene
from costmodel.explaining.words import count, listed
from costmodel.memory.blocks import KvGroup, kv_blocks


class Kept(NamedTuple):
    """KV blocks of the pool that a sequence holds, or that a prefix takes from the cache, on one GPU."""

    full: int
    """Of layers that keep every token."""
    windows: int
    """Of layers with a window or local chunks."""
    states: int
    """Of recurrent layers."""
    bytes: float
    """Of all of them [B]."""
    alike: bool
    """Whether all layers keep every token."""

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.full + self.windows + self.states

    @property
    def said(self) -> str:
        """``512 of the layers that keep every token and 384 of …``; nothing where all layers do."""
        parts = [
            (self.full, "of the layers that keep every token"),
            (self.windows, "of those that look at the last tokens only"),
            (self.states, "of recurrent layers, for the states at its end"),
        ]
        named = [f"{count(blocks)} {what}" for blocks, what in parts if blocks]
        return "" if self.alike else listed(named)


def held_of(scene: Scene, tokens: int) -> Kept:
    """Return what a sequence of ``tokens`` holds while it decodes: all that its windows may need, and both states of recurrent layers."""
    pool = scene.pool()
    full = windows = states = 0
    for group in pool.groups:
        blocks = int(group.blocks_of(tokens, pool.settings.rules.in_flight))
        full += blocks if group.keeps_all else 0
        states += blocks if group.states else 0
        windows += 0 if group.keeps_all or group.states else blocks
    return _counted(scene, full, windows, states)


def held_formula(scene: Scene) -> str:
    """Return the blocks that :func:`held_of` counts, by the groups of layers that there are."""
    pool = scene.pool()
    counts: dict[str, int] = {}
    for group in pool.groups:
        if group.states:
            said = f"{group.states} blocks of {'recurrent layers' if scene.parameters.states else 'an encoder'}"
        elif group.keeps_all:
            said = "⌈n/block⌉ of layers that keep every token"
        elif isinstance(group.window, LocalChunks):
            said = "⌈min(n, w + f)/block⌉ of local chunks of w (there must be room for a whole one, however far the last has come)"
        else:
            said = "(⌈min(n, w − 1 + f)/block⌉ + 1) of a window w (it may begin inside a block)"
        counts[said] = counts.get(said, 0) + 1
    parts = [f"{number} × {said}" if number > 1 or len(counts) > 1 else said for said, number in counts.items()]
    flying = f"; f = {pool.settings.rules.in_flight} tokens that may be under way" if "f)" in " ".join(parts) else ""
    groups = ", one term for each group of layers" if len(pool.groups) > 1 else ""
    return f"blocks of n tokens{groups}: {' + '.join(parts)}{flying}"


def kept_of(scene: Scene, tokens: int) -> Kept:
    """Return what a prefix of ``tokens``, rounded down to whole blocks, takes from the cache."""
    pool, architecture = scene.pool(), scene.architecture
    full = windows = states = 0
    for group in pool.groups:
        if group.keeps_all:
            full += tokens // group.block_tokens
        elif group.states:
            kind = architecture.kinds[architecture.pattern[group.layers[0][0]]]
            states += int(kind.state is not None and tokens > 0)
        else:
            windows += _of_window(group, tokens)
    return _counted(scene, full, windows, states)


def _counted(scene: Scene, full: int, windows: int, states: int) -> Kept:
    pool = scene.pool()
    size = float(pool.block_bytes[0]) if pool.groups else 0.0
    alike = all(group.keeps_all for group in pool.groups)
    return Kept(full, windows, states, (full + windows + states) * size, alike)


def _of_window(group: KvGroup, tokens: int) -> int:
    whole = tokens // group.block_tokens
    if isinstance(group.window, LocalChunks):
        return int(tokens % group.window.size // group.block_tokens)
    assert isinstance(group.window, int)
    return min(int(kv_blocks(group.window - 1, group.block_tokens)), whole)
