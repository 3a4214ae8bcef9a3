"""Who waits in which order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation.queues import WaitQueue
from tests.strategies import examples


@dataclass(frozen=True)
class Waiting:
    """Somebody of a priority."""

    number: int
    priority: int = 0

    @property
    def order(self) -> tuple[int, float, int]:
        """Lowest first."""
        return self.priority, float(self.number), self.number


def drained(queue: WaitQueue[Waiting]) -> list[int]:
    """Pop everybody."""
    return [queue.pop().number for _ in range(len(queue))]


def test_first_come_first_served_and_the_preempted_before_all() -> None:
    queue: WaitQueue[Waiting] = WaitQueue("fcfs")
    for number in range(3):
        queue.push(Waiting(number, priority=-number))
    queue.push_first(Waiting(7))
    queue.push_first(Waiting(8))
    assert queue.first().number == 8
    queue.remove(Waiting(1, -1))
    assert drained(queue) == [8, 7, 0, 2]
    assert not queue


def test_by_priority_then_by_arrival_the_preempted_too() -> None:
    queue: WaitQueue[Waiting] = WaitQueue("priority")
    for number, priority in enumerate([2, 1, 1, 0]):
        queue.push(Waiting(number, priority))
    queue.push_first(Waiting(-1, 1))
    queue.push_first(Waiting(9, 2))
    assert queue.first().number == 3
    assert drained(queue) == [3, -1, 1, 2, 0, 9]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(priorities=st.lists(st.integers(0, 3), max_size=8), count=st.integers(0, 8))
@examples(50)
def test_who_is_skipped_comes_back_to_the_same_place(policy: str, priorities: list[int], count: int) -> None:
    queue: WaitQueue[Waiting] = WaitQueue(policy)
    same: WaitQueue[Waiting] = WaitQueue(policy)
    for number, priority in enumerate(priorities):
        queue.push(Waiting(number, priority))
        same.push(Waiting(number, priority))
    queue.put_back([queue.pop() for _ in range(min(count, len(queue)))])
    assert drained(queue) == drained(same)
