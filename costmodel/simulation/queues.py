"""Requests that wait: in the order of their arrival, or by priority; preempted ones first."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Ordered(Protocol):
    """What can wait."""

    @property
    def order(self) -> tuple[int, float, int]:
        """Place under the policy ``priority``: priority, arrival, serial number."""


Item = TypeVar("Item", bound=Ordered)


class WaitQueue(Generic[Item]):
    """Who waits.

    Args:
        policy: ``fcfs`` or ``priority``.
    """

    __slots__ = ("_by_priority", "_items")

    def __init__(self, policy: str) -> None:
        self._by_priority = policy == "priority"
        self._items: Any = [] if self._by_priority else deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def first(self) -> Item:
        """Return who is next."""
        found: Item = self._items[0]
        return found

    def pop(self) -> Item:
        """Return who is next, and take it out."""
        found: Item = self._items.pop(0) if self._by_priority else self._items.popleft()
        return found

    def push(self, item: Item) -> None:
        """Let a request wait."""
        if self._by_priority:
            bisect.insort(self._items, item, key=lambda other: other.order)
        else:
            self._items.append(item)

    def push_first(self, item: Item) -> None:
        """Let a preempted request wait: before all others, or by its priority."""
        if self._by_priority:
            self.push(item)
        else:
            self._items.appendleft(item)

    def put_back(self, items: Sequence[Item]) -> None:
        """Put back those that were popped, in the order in which they were."""
        if self._by_priority:
            for item in items:
                self.push(item)
        else:
            self._items.extendleft(reversed(items))

    def remove(self, item: Item) -> None:
        """Take out a request."""
        self._items.remove(item)
