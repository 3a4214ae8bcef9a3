"""The KV block pool against one that keeps every block, as vLLM's does: a queue of free blocks, and a map from content to blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from costmodel.simulation.blocks import UNLIMITED, Block, BlockPool, Run, unused_among

BLOCKS = 12
Content = tuple[object, int]
"""Whose tokens, and which block of them."""


class EveryBlock:
    """vLLM's pool, block by block: the first of the queue is taken next."""

    def __init__(self, count: int) -> None:
        self.queue = list(range(count))
        self.content: dict[int, Content | None] = dict.fromkeys(range(count))
        self.users = dict.fromkeys(range(count), 0)
        self.holders: dict[Content, list[int]] = {}

    def allocate(self, count: int) -> list[int]:
        """Take blocks from the front; what they held is lost."""
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            if (content := self.content[block]) is not None:
                self.holders[content].remove(block)
                self.content[block] = None
            self.users[block] = 1
        return taken

    def find(self, contents: list[Content]) -> list[int]:
        """Return blocks that hold the longest run of contents from the first."""
        found = []
        for content in contents:
            if not self.holders.get(content):
                break
            found.append(self.holders[content][0])
        return found

    def touch(self, blocks: list[int]) -> None:
        """Use blocks that hold something."""
        for block in blocks:
            if not self.users[block]:
                self.queue.remove(block)
            self.users[block] += 1

    def hold(self, block: int, content: Content) -> None:
        """Note what a block holds."""
        self.content[block] = content
        self.holders.setdefault(content, []).append(block)

    def release(self, blocks: list[int]) -> None:
        """Give blocks back from the last to the first: those without content to the front, the others to the end."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.queue.insert(0 if self.content[block] is None else len(self.queue), block)


@dataclass(eq=False)
class Holder:
    """A request in both pools."""

    number: int
    prefix: list[Content]
    shared: list[Block] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    full: int = 0


class Pools(RuleBasedStateMachine):
    """Requests with shared prefixes come, grow, go, and come again, in both pools."""

    active = Bundle("active")

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.every = BlockPool(BLOCKS), EveryBlock(BLOCKS)
        self.holders: list[Holder] = []
        self.gone: list[tuple[Holder, Run]] = []
        self.numbers = 0

    def _start(self, holder: Holder, more: int) -> None:
        """Use what is found of the prefix and take the rest of it, and ``more``."""
        found, theirs = self.pool.find(holder.prefix), self.every.find(holder.prefix)
        assert len(found) == len(theirs)
        assert unused_among(found) == sum(not self.every.users[block] for block in theirs)
        needed = len(holder.prefix) - len(found) + more
        if needed + unused_among(found) > self.pool.free:
            return
        self.pool.touch(found)
        self.every.touch(theirs)
        self.pool.allocate(needed)
        holder.blocks = theirs + self.every.allocate(needed)
        holder.shared = found + [self.pool.hold(key) for key in holder.prefix[len(found) :]]
        for block, key in list(zip(holder.blocks, holder.prefix, strict=False))[len(found) :]:
            self.every.hold(block, key)
        holder.full = len(holder.prefix)
        self.holders.append(holder)

    @rule(which=st.integers(0, 1), shared=st.integers(0, 4), more=st.integers(0, 3))
    def come(self, which: int, shared: int, more: int) -> None:
        """A request with some blocks of one of two prefixes."""
        self.numbers += 1
        self._start(Holder(self.numbers, [(f"prefix {which}", index) for index in range(shared)]), more)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), count=st.integers(1, 4))
    def grow(self, data: st.DataObject, count: int) -> None:
        """A request takes blocks."""
        holder = data.draw(st.sampled_from(self.holders))
        if count <= self.pool.free:
            self.pool.allocate(count)
            holder.blocks += self.every.allocate(count)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """A request fills blocks with what is its own."""
        holder = data.draw(st.sampled_from(self.holders))
        full = data.draw(st.integers(holder.full, len(holder.blocks)))
        for index in range(holder.full, full):
            self.every.hold(holder.blocks[index], (holder.number, index))
        holder.full = full

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """A request gives its blocks back."""
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        run = self.pool.release(holder.shared, holder.full, len(holder.blocks))
        self.every.release(holder.blocks)
        assert (run is None) == (holder.full == len(holder.prefix))
        if run is not None:
            self.gone.append((holder, run))

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def come_again(self, data: st.DataObject) -> None:
        """A request finds its prefix and what is left of its own."""
        holder, run = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        found = self.pool.find(holder.prefix)
        count = data.draw(st.integers(0, run.high - run.low))
        if len(found) < len(holder.prefix) or not count or unused_among(found) + count > self.pool.free:
            return
        theirs = self.every.find(holder.prefix)
        own = self.every.find([(holder.number, index) for index in range(run.low, run.low + count)])
        assert len(own) == count
        again = Holder(self.numbers + 1, holder.prefix, found, theirs + own, len(found) + count)
        self.numbers += 1
        self.pool.touch(found)
        self.pool.take_back(run, count)
        self.every.touch(theirs + own)
        for index, block in enumerate(own, len(found)):  # to be found by its new number
            content = self.every.content[block]
            assert content is not None
            self.every.holders[content].remove(block)
            self.every.hold(block, (again.number, index))
        self.holders.append(again)
        if run.low < run.high:
            self.gone.append((holder, run))

    @invariant()
    def the_same_is_free(self) -> None:
        """Both have as many free blocks."""
        assert self.pool.free == len(self.every.queue)
        assert self.pool.used == BLOCKS - len(self.every.queue)

    @invariant()
    def the_same_is_left(self) -> None:
        """Both still hold as much of what has gone, and of the prefixes."""
        for holder, run in self.gone:
            left = [index for index in range(BLOCKS) if self.every.holders.get((holder.number, index))]
            assert left == list(range(run.low, run.high))
        for which in range(2):
            keys: list[Content] = [(f"prefix {which}", index) for index in range(4)]
            assert len(self.pool.find(keys)) == len(self.every.find(keys))


Pools.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestPools = Pools.TestCase


def test_blocks_without_content_are_taken_before_those_with() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    shared = [pool.hold("a")]
    pool.release(shared, 1, 2)
    pool.allocate(3)
    assert pool.find(["a"])
    pool.allocate(1)
    assert not pool.find(["a"])
    assert pool.free == 0


def test_the_end_of_what_a_request_had_goes_first() -> None:
    pool = BlockPool(4)
    pool.allocate(4)
    run = pool.release([pool.hold("a")], 4, 4)
    assert run is not None
    assert (run.low, run.high) == (1, 4)
    pool.allocate(1)
    assert (run.low, run.high) == (1, 3)
    pool.allocate(2)
    assert run.low == run.high
    assert pool.find(["a"])


def test_equal_contents_are_kept_twice_and_found_as_long_as_one_is_there() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    first, second = pool.hold("a"), pool.hold("a")
    assert pool.find(["a"]) == [first]
    pool.release([first], 1, 1)
    pool.allocate(1)
    assert pool.find(["a"]) == [second]


def test_who_shares_a_block_keeps_it_from_being_free() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    block = pool.hold("a")
    pool.touch([block])
    pool.release([block], 1, 1)
    assert (pool.free, block.users) == (2, 1)
    pool.release([block], 1, 1)
    assert (pool.free, block.users) == (3, 0)


@pytest.mark.parametrize("count", [1, 10**9])
def test_memory_without_end(count: int) -> None:
    pool = BlockPool(None)
    pool.allocate(count)
    assert (pool.used, pool.free) == (count, UNLIMITED - count)
