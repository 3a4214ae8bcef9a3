"""Workloads: who asks when, how long the texts are, and that a seed always gives the same."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.errors import InputError
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.workloads import closed_loop, gamma, interference, lengths, poisson


def taken(source: Any, count: int = 10**6) -> list[Request]:
    """Take what a source has to send, answering nobody."""
    found = []
    while source.next_arrival() < math.inf and len(found) < count:
        found.append(source.take())
    return found


def gaps(source: Listed) -> list[float]:
    times = [0.0, *(request.arrival for request in taken(source))]
    return [after - before for before, after in itertools.pairwise(times)]


def test_the_long_prompt_experiment_of_the_lesson() -> None:
    background, injected = interference(32, 500, 8000, every=10, first=5, duration=40)
    assert background == [Request(0.0, 500, 1, "stream", standing=True, held=True)] * 32
    assert injected == [Request(time, 8000, 1, "injected") for time in (5.0, 15.0, 25.0, 35.0)]


def test_streams_grow_and_prompts_come_together_if_asked() -> None:
    background, injected = interference(
        2, 100, 50, every=1, first=0, duration=2, prompts=3, grow=True, injected_output=7
    )
    assert not background[0].held
    assert [request.arrival for request in injected] == [0, 0, 0, 1, 1, 1]
    assert {request.output for request in injected} == {7}


def test_nothing_is_injected_at_the_end() -> None:
    assert len(interference(1, 1, 1, every=10, first=10, duration=40)[1]) == 3


@pytest.mark.parametrize("every", [0.1, 0.3, 1 / 3])
def test_injections_do_not_drift(every: float) -> None:
    injected = interference(1, 1, 1, every, first=every, duration=1000)[1]
    assert all(request.arrival == every + every * number for number, request in enumerate(injected))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"streams": 0}, "streams must be at least 1, not 0"),
        ({"context": 0}, "context must be at least 1, not 0"),
        ({"context": 2.5}, "context must be a whole number, not 2.5"),
        ({"prompt": -8}, "prompt must be at least 1, not -8"),
        ({"every": 0}, "every must be a finite number above zero, not 0"),
        ({"every": math.nan}, "every must be a finite number above zero, not nan"),
        ({"first": -1}, "first must be a finite number, 0 or above, not -1"),
        ({"first": 40}, "first must be before the end of the run (40 s), not 40 s"),
        ({"duration": "long"}, "duration must be a number, not 'long'"),
        ({"prompts": 0}, "prompts must be at least 1, not 0"),
        ({"injected_output": 0}, "injected_output must be at least 1, not 0"),
        ({"every": 1e-9}, "every 1e-09 s for 35 s makes more than 10,000,000 prompts; inject less often"),
    ],
)
def test_experiments_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    given_ = {"streams": 32, "context": 500, "prompt": 8000, "every": 10, "first": 5, "duration": 40}
    with pytest.raises(InputError) as error:
        interference(**{**given_, **changed})
    assert str(error.value) == message


def test_clients_begin_at_once_and_ask_again_when_answered() -> None:
    source = closed_loop(4, 6, 100, 10, think=0.5)
    burst = [source.take() for _ in range(4)]
    assert [request.arrival for request in burst] == [0] * 4
    assert source.next_arrival() == math.inf
    source.ended(burst[2], 3.0)
    source.ended(burst[0], 4.0)
    assert [source.take().arrival, source.take().arrival] == [3.5, 4.5]
    source.ended(burst[1], 5.0)
    assert source.next_arrival() == math.inf  # all six are sent


def test_clients_begin_one_after_another_on_a_ramp() -> None:
    assert [request.arrival for request in taken(closed_loop(4, 10, 100, 10, ramp=2))] == [0, 0.5, 1, 1.5]


def test_more_clients_than_requests() -> None:
    assert len(taken(closed_loop(8, 3, 100, 10))) == 3


def test_without_spread_lengths_are_exact() -> None:
    assert {(request.prompt, request.output) for request in taken(closed_loop(50, 50, 100, 10))} == {(100, 10)}


def test_lengths_reach_both_ends_and_none_is_more_frequent() -> None:
    drawn = list(itertools.islice(lengths(10, 1000, 0.2, 3), 30_000))
    prompts = [prompt for prompt, _output in drawn]
    assert {prompt: round(prompts.count(prompt) / 1000) for prompt in sorted(set(prompts))} == {8: 10, 9: 10, 10: 10}
    outputs = [output for _prompt, output in drawn]
    assert (min(outputs), max(outputs)) == (800, 1000)
    assert sum(outputs) / len(outputs) == pytest.approx(900, rel=0.002)


@pytest.mark.parametrize(("longest", "spread", "shortest"), [(1024, 0.2, 819), (10, 0.9, 1), (10, 0.7, 3), (1, 0.5, 1)])
def test_the_shortest_length_is_rounded_down(longest: int, spread: float, shortest: int) -> None:
    assert min(prompt for prompt, _output in itertools.islice(lengths(longest, 1, spread, 0), 5000)) == shortest


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**63 - 1),
)
def test_lengths_are_in_their_range(prompt: int, output: int, spread: float, seed: int) -> None:
    for drawn in itertools.islice(lengths(prompt, output, spread, seed), 20):
        for length, longest in zip(drawn, (prompt, output), strict=True):
            assert max(1, math.floor((1 - spread) * longest)) <= length <= longest


def test_a_seed_gives_the_same_on_every_python() -> None:
    assert list(itertools.islice(lengths(1024, 128, 0.2, 7), 4)) == [(885, 106), (953, 103), (929, 111), (830, 115)]
    arrivals = [request.arrival for request in taken(gamma(4, 0.5, 1024, 128, duration=1.5, spread=0.2, seed=7))]
    assert arrivals == pytest.approx([1.2120325453375653, 1.379236807090057], rel=1e-12)
    arrivals = [request.arrival for request in taken(gamma(4, 2.5, 10, 10, requests=4, seed=7))]
    assert arrivals == pytest.approx([0.382200131, 0.593139425, 0.795153913, 1.0], rel=1e-8)
    arrivals = [request.arrival for request in taken(poisson(4, 10, 10, requests=4, seed=7))]
    assert arrivals == pytest.approx([0.5229832038955209, 0.5860684036605069, 0.8225058160985024, 1.0], rel=1e-12)


def test_a_seed_gives_the_same_lengths_in_every_workload() -> None:
    expected = list(itertools.islice(lengths(900, 90, 0.5, 11), 20))
    for source in (closed_loop(20, 20, 900, 90, 0.5, 11), poisson(3, 900, 90, requests=20, spread=0.5, seed=11)):
        assert [(request.prompt, request.output) for request in taken(source)] == expected
    assert list(itertools.islice(lengths(900, 90, 0.5, 12), 20)) != expected


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_gaps_have_the_rate_and_the_variation(burstiness: float) -> None:
    found = gaps(gamma(5, burstiness, 10, 10, requests=40_000, seed=2))
    mean = sum(found) / len(found)
    variation = math.sqrt(sum((gap - mean) ** 2 for gap in found) / len(found)) / mean
    assert mean == pytest.approx(1 / 5, rel=1e-9)  # stretched, as vLLM does
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_a_duration_has_the_rate_on_average() -> None:
    source = poisson(5, 10, 10, duration=8000, seed=2)
    assert len(source) == pytest.approx(40_000, rel=0.02)
    assert taken(source)[-1].arrival < 8000


def test_poisson_is_gamma_of_burstiness_one() -> None:
    assert taken(poisson(2, 9, 9, requests=50, seed=4)) == taken(gamma(2, 1, 9, 9, requests=50, seed=4))


def test_endless_burstiness_is_a_clock() -> None:
    assert gaps(gamma(4, math.inf, 10, 10, duration=1.1)) == [0.25] * 4


def test_a_short_duration_may_have_no_request() -> None:
    assert len(poisson(1, 10, 10, duration=1e-9)) == 0


@given(st.floats(0.01, 10), st.integers(1, 30), st.integers(0, 1000))
def test_arrivals_are_sorted_and_end_with_the_rate(burstiness: float, count: int, seed: int) -> None:
    arrivals = [request.arrival for request in taken(gamma(2, burstiness, 10, 10, requests=count, seed=seed))]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] in (count / 2, 0)  # 0 if all gaps are below the smallest number


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rate": 0}, "rate must be a finite number above zero, not 0"),
        ({"rate": math.inf}, "rate must be a finite number above zero, not inf"),
        ({"prompt": 0}, "prompt must be at least 1, not 0"),
        ({"output": 0}, "output must be at least 1, not 0"),
        ({"spread": 1}, "spread must be below 1 (0.2 for lengths of 80 to 100 %), not 1"),
        ({"spread": -0.1}, "spread must be a finite number, 0 or above, not -0.1"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 0.5}, "seed must be a whole number, not 0.5"),
        ({"requests": 0}, "requests must be at least 1, not 0"),
        ({"requests": None}, "give either requests or duration, one of them"),
        ({"duration": 3}, "give either requests or duration, not both"),
        ({"requests": None, "duration": 0}, "duration must be a finite number above zero, not 0"),
        (
            {"requests": None, "duration": 1e9},
            "3 requests/s for 1e+09 s are more than 10,000,000; take a shorter duration",
        ),
        (
            {"burstiness": 0.001},
            "burstiness must be from 0.01 (gaps with a coefficient of variation of 10) to 1e+09, or inf for equal gaps, not 0.001",
        ),
        ({"burstiness": 0}, "burstiness must be a finite number above zero, not 0"),
    ],
)
def test_open_loops_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    given_ = {"rate": 3, "burstiness": 1, "prompt": 10, "output": 10, "requests": 5}
    with pytest.raises(InputError) as error:
        gamma(**{**given_, **changed})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"requests": 0}, "requests must be at least 1, not 0"),
        ({"requests": 10**8}, "requests must be at most 10000000, not 100000000"),
        ({"think": -1}, "think must be a finite number, 0 or above, not -1"),
        ({"ramp": math.inf}, "ramp must be a finite number, 0 or above, not inf"),
        ({"spread": math.nan}, "spread must be a finite number, 0 or above, not nan"),
    ],
)
def test_closed_loops_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        closed_loop(**{"clients": 2, "requests": 4, "prompt": 10, "output": 10, **changed})
    assert str(error.value) == message
