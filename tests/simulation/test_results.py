"""What users felt, by hand: three requests, their gaps and what counts as a stall."""

from __future__ import annotations

import math

import pytest

from costmodel.simulation.clock import FixedClock
from costmodel.simulation.quantiles import Gaps
from costmodel.simulation.requests import Request
from costmodel.simulation.results import Result, make_result, make_spikes, percentiles
from costmodel.simulation.tally import MixedStep, Served, Tally

CLOCK = FixedClock(0.01, 0.1, 100)


def served() -> list[Served]:
    """Return two that are done, one under way, one that waits and two that were refused."""
    return [
        Served(Request(0.0, 100, 5), 0.1, 0.2, 0.6, 5, done=True, cached=32),
        Served(Request(1.0, 50, 1), 1.0, 1.5, 1.5, 1, done=True, preemptions=1),
        Served(Request(2.0, 70, 9), 2.5, 3.0, 3.2, 3),
        Served(Request(2.5, 10, 9)),
        Served(Request(0.5, 999, 1), refused="too long"),
        Served(Request(0.6, 999, 1), refused="too long"),
    ]


def tally() -> Tally:
    """Return what was counted of them: 6 gaps of 0.1 s but for one."""
    made = Tally(steps=12, busy=1.6, preemptions=1, most=(2, 1, 9))
    made.gap(0.1, 5, 1.0)
    made.gap(0.35, 1, 1.0)
    return made


def result(**changed: object) -> Result:
    arguments = {"duration": 4.0, "kv_blocks": 50, **changed}
    made = tally()
    return make_result([made], Gaps([made], CLOCK), served(), **arguments)  # type: ignore[arg-type]


def test_requests_add_up() -> None:
    counts = result().requests
    assert (counts.sent, counts.done, counts.unfinished) == (6, 2, 2)
    assert counts.refused == {"too long": 2}


def test_times_count_from_when_a_request_is_sent() -> None:
    made = result()
    assert made.ttft is not None
    assert (made.ttft.p50_s, made.ttft.max_s) == (0.5, 1.0)
    assert made.ttft.mean_s == pytest.approx(1.7 / 3)
    assert made.queueing is not None
    assert (made.queueing.p50_s, made.queueing.max_s) == (0.1, 0.5)
    assert made.e2e is not None
    assert (made.e2e.p50_s, made.e2e.max_s) == (0.5, 0.6)
    assert made.tpot is not None
    assert made.tpot.max_s == made.tpot.p50_s == pytest.approx(0.1)  # of answers of two tokens or more


def test_stalls_are_gaps_of_more_than_three_medians_and_more_than_a_limit() -> None:
    made = result(stall_limit=0.05)
    assert (made.gaps, made.stalls) == (6, 1)
    assert (made.stall_detail.factor, made.stall_detail.count, made.stall_detail.over_limit) == (3.0, 1, 6)
    assert result(stall_factor=4.0).stalls == 0
    assert result().stall_detail.over_limit is None


def test_throughput_and_what_was_used() -> None:
    made = result()
    assert made.output_tokens == 9  # 5 + 1 + 3
    assert made.output_tokens_per_s == pytest.approx(9 / 4)
    assert (made.prompt_tokens, made.cached_prompt_tokens) == (220, 32)
    assert made.busy_share == pytest.approx(0.4)
    assert (made.running_max, made.waiting_max, made.kv_blocks, made.kv_blocks_max) == (2, 1, 50, 9)
    assert (made.preemptions, made.steps) == (1, 12)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ((0.5, None, None), 2),
        ((0.3, None, None), 1),
        ((None, 0.05, None), 1),  # an answer of one token has no time per token
        ((None, None, 0.55), 1),
        ((0.3, 0.05, None), 0),
        ((0.2, 0.11, 0.6), 1),
    ],
)
def test_goodput_is_what_keeps_every_limit(limits: tuple[float | None, float | None, float | None], good: int) -> None:
    made = result(limits=limits).goodput
    assert made is not None
    assert made.requests == good
    assert made.share == good / 4  # two done, two refused
    assert made.requests_per_s == good / 4.0
    assert (made.ttft_s, made.tpot_s, made.e2e_s) == limits


def test_without_limits_there_is_no_goodput() -> None:
    assert result().goodput is None


def test_streams_have_the_mean_gap_as_their_time_per_token() -> None:
    made = result(streams=2)
    assert made.gaps_per_stream == 3.0
    assert made.tpot is not None
    assert made.tpot.max_s == pytest.approx(0.85 / 6)
    assert made.output_tokens == 6


def test_nothing_happened() -> None:
    empty = Tally()
    made = make_result([empty], Gaps([empty], CLOCK), [], 0.0, None)
    assert made.itl is made.ttft is made.tpot is made.e2e is made.queueing is None
    assert (made.gaps, made.stalls, made.output_tokens_per_s, made.busy_share) == (0, 0, 0.0, 0.0)
    assert made.requests.sent == 0


def test_keys_of_the_document() -> None:
    made = result().model_dump(by_alias=True)
    assert {"gaps", "stalls", "itl", "ttft", "tpot"} <= set(made)
    assert set(made["itl"]) == {"mean_s", "p50_s", "p90_s", "p99_s", "p99.9_s", "max_s"}


def test_percentiles_are_nearest_rank() -> None:
    made = percentiles([float(number) for number in range(1, 1001)])
    assert made is not None
    assert (made.p50_s, made.p90_s, made.p99_s, made.p99_9_s, made.max_s) == (500, 900, 990, 999, 1000)
    assert made.mean_s == 500.5
    assert percentiles([]) is None


def test_a_spike_is_the_steps_that_carried_a_prompt() -> None:
    """The second request was refused and has no number; two prompts share a step."""
    requests = [
        Served(Request(1.0, 300, 1, "injected"), 1.1, first=1.7),
        Served(Request(1.0, 9999, 1, "injected"), refused="too long"),
        Served(Request(1.2, 120, 1, "injected"), 1.4, first=math.nan),
    ]
    steps = [
        MixedStep(1.3, 0.2, 4, ((0, 200),)),
        MixedStep(1.7, 0.3, 4, ((0, 100), (1, 50))),
        MixedStep(1.8, 0.1, 4, ((1, 70),)),
    ]
    first, second = make_spikes(steps, requests)
    assert (first.injected_s, first.prompt_tokens, first.steps) == (1.0, 300, 2)
    assert (first.time_s, first.height_s, first.duration_s) == pytest.approx((1.1, 0.3, 0.6))
    assert first.ttft_s == pytest.approx(0.7)
    assert (second.prompt_tokens, second.steps, second.ttft_s) == (120, 2, None)
    assert second.duration_s == pytest.approx(0.4)
    assert make_spikes([], requests) == ()


def test_a_stream_that_is_computed_again_is_no_injected_prompt() -> None:
    streams = [Served(Request(0.0, 300, 1, "stream", standing=True), preemptions=1)]
    assert make_spikes([MixedStep(1.3, 0.2, 4, ((0, 200),))], streams) == ()


def test_answers_that_ended_before_they_should_are_counted() -> None:
    items = [Served(Request(0.0, 10, 5), 0.0, 0.1, 0.5, tokens, done=True) for tokens in (5, 4, 1)]
    assert make_result([Tally()], Gaps([Tally()], CLOCK), items, 1.0, None).requests.cut_short == 2


def test_a_gap_that_is_open_gave_no_token() -> None:
    tally = Tally()
    tally.gap(0.1, 2, 0.1)
    tally.open_gap(5.0, 5.1)
    made = make_result([tally], Gaps([tally], CLOCK), [], 5.1, None, streams=2)
    assert (made.gaps, made.output_tokens) == (3, 2)
    assert made.itl is not None
    assert made.itl.max_s == 5.0
