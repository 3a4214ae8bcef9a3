"""What a flock of decoding requests reads in layers that compress keys: a window, and an entry more every m tokens."""

from __future__ import annotations

import heapq
from collections import Counter

from costmodel.equations.compressed import Compressed


class Entries:
    """What the flock reads in the layers of one compression; as :class:`~costmodel.simulation.windows.Window`.

    A member reads as many tokens more in every step until its window is full, and one entry more in the steps in which one is complete,
    up to the k that an indexer chooses.

    Attributes:
        reach: what a query sees.
        read: Σ of what members read in the flock's next step [keys].
        growing: members whose window is not full.
    """

    def __init__(self, reach: Compressed) -> None:
        self.reach = reach
        self.read = 0
        self.growing = 0
        self._full: Counter[int] = Counter()
        """By count, how many members fill their window at it."""
        self._last: Counter[int] = Counter()
        """By count, how many members have all the entries that they read from it on."""
        self._whole: Counter[int] = Counter()
        """By count, how many members have an entry complete at it."""
        self._heap: list[int] = []

    def join(self, computed: int, count: int) -> None:
        """Add a member with ``computed`` tokens."""
        self._account(computed, count, 1)

    def leave(self, computed: int, count: int) -> None:
        """Take a member out."""
        self._account(computed, count, -1)

    def _account(self, computed: int, count: int, sign: int) -> None:
        seen, ratio, window = computed + 1, self.reach.ratio, self.reach.window
        self.read += sign * (min(seen, window) + int(self.reach.entries(seen)))
        if seen < window:
            self.growing += sign
            self._note(self._full, count + window - seen, sign)
        if (top := self.reach.top_k * ratio) and seen >= top:
            return
        self._note(self._whole, count + ratio - seen % ratio, sign)
        if top:
            self._note(self._last, count + top - seen, sign)

    def _note(self, members: Counter[int], at: int, number: int) -> None:
        members[at] += number
        heapq.heappush(self._heap, at)

    def advance(self, steps: int, count: int) -> None:
        """Let ``steps`` steps pass, of which none but the last may change what members read; ``count`` is the number after them."""
        self.read += self.growing * steps
        while self._heap and self._heap[0] <= count:
            at = heapq.heappop(self._heap)
            self.growing -= self._full.pop(at, 0)
            whole = self._whole.pop(at, 0)
            self.read += whole
            if more := whole - self._last.pop(at, 0):
                self._note(self._whole, at + self.reach.ratio, more)

    def steps_left(self, count: int) -> int:
        """Return the steps until what a member reads grows otherwise."""
        while self._heap and not any(kept.get(self._heap[0]) for kept in (self._full, self._whole, self._last)):
            heapq.heappop(self._heap)
        return self._heap[0] - count if self._heap else 1 << 40
