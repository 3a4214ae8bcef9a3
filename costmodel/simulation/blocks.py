"""KV blocks as vLLM hands them out: a count of free ones, and with prefix caching what they still hold.

Free blocks without content are taken first, then those with content, the longest unused first. A request gives its blocks back from its
last to its first, so that its beginning stays longest. Source: vllm/v1/core/block_pool.py (0.32): ``get_new_blocks``, ``touch``,
``free_blocks``; equal blocks are never merged, so a content may be there twice.

Only what can be found again is kept one by one: blocks of prefixes that requests share. What a request has for itself only it can find,
after a preemption, and it is kept as a run of blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

Key = Hashable
"""What a full block holds: equal for blocks with the same tokens after the same tokens."""


class Block:
    """A full block of a shared prefix."""

    __slots__ = ("key", "users")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.users = 1


class Run:
    """Free blocks ``low`` to ``high`` of one request, which still hold its tokens."""

    __slots__ = ("high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high


class BlockPool:
    """The KV cache.

    Args:
        blocks: that requests can have; None for no limit.
    """

    __slots__ = ("_blocks", "_cached", "_clean", "_unused", "free")

    def __init__(self, blocks: int | None) -> None:
        self._blocks = self._clean = UNLIMITED if blocks is None else blocks
        self.free = self._blocks
        """Blocks that nobody uses, whatever they still hold."""
        self._unused: OrderedDict[Block | Run, None] = OrderedDict()
        self._cached: dict[Key, list[Block]] = {}

    @property
    def used(self) -> int:
        """Blocks that somebody uses."""
        return self._blocks - self.free

    def allocate(self, count: int) -> None:
        """Take ``count`` ≤ free blocks; the longest unused content is lost first."""
        self.free -= count
        if count <= self._clean:
            self._clean -= count
            return
        count -= self._clean
        self._clean = 0
        unused = self._unused
        while count:
            oldest = next(iter(unused))
            if isinstance(oldest, Run):
                size = oldest.high - oldest.low
                if size > count:
                    oldest.high -= count
                    return
                count -= size
                oldest.high = oldest.low
            else:
                self._forget(oldest)
                count -= 1
            unused.popitem(last=False)

    def find(self, keys: Iterable[Key]) -> list[Block]:
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
                self.free -= 1
            block.users += 1

    def take_back(self, run: Run, count: int) -> None:
        """Use the first ``count`` blocks of a run that is still there."""
        run.low += count
        self.free -= count
        if run.low == run.high:
            del self._unused[run]

    def hold(self, key: Key) -> Block:
        """Note that a block in use is full and holds this content of a shared prefix."""
        block = Block(key)
        self._cached.setdefault(key, []).append(block)
        return block

    def release(self, shared: Sequence[Block], full: int, held: int) -> Run | None:
        """Give back a request's blocks.

        Args:
            shared: those of a shared prefix, its first.
            full: blocks that hold what can be found again, ``shared`` included.
            held: all its blocks.

        Returns:
            The run of what it had for itself; None if that is nothing.
        """
        self.free += held - len(shared)
        self._clean += held - full
        run = None
        if full > len(shared):
            run = Run(len(shared), full)
            self._unused[run] = None
        for block in reversed(shared):
            block.users -= 1
            if block.users == 0:
                self._unused[block] = None
                self.free += 1
        return run

    def _forget(self, block: Block) -> None:
        same = self._cached[block.key]
        if len(same) == 1:
            del self._cached[block.key]
        else:
            same.remove(block)


UNLIMITED = 1 << 60
"""Blocks of a cache without a limit."""


def unused_among(blocks: Sequence[Block]) -> int:
    """Return how many of these blocks are free, and would no longer be if they were touched."""
    return sum(block.users == 0 for block in blocks)
