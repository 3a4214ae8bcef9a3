"""Where requests come from."""

from __future__ import annotations

import math

from costmodel.simulation.requests import ClosedLoop, Listed, Request


def test_an_open_loop_is_in_the_order_of_arrival_and_equal_arrivals_in_theirs() -> None:
    source = Listed([Request(2.0, 1, 1), Request(1.0, 2, 1), Request(1.0, 3, 1)])
    assert len(source) == 3
    assert not source.hears
    found = []
    while source.next_arrival() < math.inf:
        time = source.next_arrival()
        found.append(source.take())
        assert found[-1].arrival == time
        source.ended(found[-1], 5.0)
    assert [request.prompt for request in found] == [2, 3, 1]


def test_a_closed_loop_waits_for_its_answers() -> None:
    left = iter(range(5))
    source = ClosedLoop(
        2, lambda time: None if (n := next(left, None)) is None else Request(time, 1 + n, 1), 0.5, ramp=2.0
    )
    assert source.hears
    assert source.next_arrival() == 0.0
    first = source.take()
    assert source.next_arrival() == 1.0  # half of the ramp
    second = source.take()
    assert source.next_arrival() == math.inf
    source.ended(second, 7.0)
    source.ended(first, 6.0)
    assert source.next_arrival() == 6.5
    assert (source.take().prompt, source.take().prompt) == (4, 3)
    source.ended(first, 9.0)
    source.ended(second, 9.0)
    assert source.take().arrival == 9.5
    assert source.next_arrival() == math.inf
