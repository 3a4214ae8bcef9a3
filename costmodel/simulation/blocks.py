"""KV blocks as vLLM hands them out: a count of free ones, and with prefix caching what each of them still holds.

Free blocks without content are taken first, then those with content, the longest unused first. A request frees its blocks from its last
to its first, so that its beginning stays longest. Source: vllm/v1/core/block_pool.py (0.32): ``get_new_blocks``, ``touch``,
``free_blocks``; a request's own blocks are never merged with equal ones, so a content may be there twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

Key = Hashable
"""What a full block holds: equal for blocks with the same tokens after the same tokens."""


class Block:
    """A full block that the prefix cache knows."""

    __slots__ = ("key", "users")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.users = 1


class BlockPool:
    """The KV cache.

    Args:
        blocks: that requests can have; None for no limit.
    """

    __slots__ = ("_blocks", "_cached", "_clean", "_unused")

    def __init__(self, blocks: int | None) -> None:
        self._blocks = self._clean = 1 << 62 if blocks is None else blocks
        self._unused: OrderedDict[Block, None] = OrderedDict()
        self._cached: dict[Key, list[Block]] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody uses, whatever they still hold."""
        return self._clean + len(self._unused)

    @property
    def used(self) -> int:
        """Blocks that somebody uses."""
        return self._blocks - self.free

    def allocate(self, count: int) -> None:
        """Take blocks, of which ``count`` are free; the longest unused content is lost first."""
        if count <= self._clean:
            self._clean -= count
            return
        evicted = count - self._clean
        self._clean = 0
        for _ in range(evicted):
            block, _none = self._unused.popitem(last=False)
            same = self._cached[block.key]
            if len(same) == 1:
                del self._cached[block.key]
            else:
                same.remove(block)

    def find(self, keys: Sequence[Key]) -> list[Block]:
        """Return the blocks that hold the longest run of these contents from the first."""
        found = []
        for key in keys:
            same = self._cached.get(key)
            if same is None:
                break
            found.append(same[0])
        return found

    def touch(self, blocks: Sequence[Block]) -> None:
        """Use blocks that :meth:`find` found."""
        for block in blocks:
            if block.users == 0:
                del self._unused[block]
            block.users += 1

    def hold(self, key: Key) -> Block:
        """Note that a block that is in use is full and holds this content."""
        block = Block(key)
        self._cached.setdefault(key, []).append(block)
        return block

    def release(self, blocks: Sequence[Block], without_content: int) -> None:
        """Give back a request's blocks.

        Args:
            blocks: full ones that the cache knows, in the order of the request's tokens.
            without_content: how many others.
        """
        self._clean += without_content
        unused = self._unused
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                unused[block] = None


def unused_among(blocks: Sequence[Block]) -> int:
    """Return how many of these blocks are free, and would no longer be if they were touched."""
    return sum(block.users == 0 for block in blocks)
