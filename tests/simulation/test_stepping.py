"""The plain engine: what vLLM's scheduler did in 420 recordings, what other schedulers do instead, and what none of them may do."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache

import pytest

from costmodel.simulation.clock import FixedClock
from costmodel.simulation.requests import ClosedLoop, Listed, Request
from costmodel.simulation.settings import Scheduler, Settings
from costmodel.simulation.states import Batch
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from costmodel.validation.backends.recordings import Recording, read
from costmodel.validation.backends.scheduler_workloads import FAMILIES
from tests.simulation.replaying import PATH, differences

STEP_S = 0.01
CLOCK = FixedClock(STEP_S, 1.0, 10_000)
"""A decode step takes 10 ms, 10,000 tokens of prompt a second."""

Step = list[tuple[int, int]]
"""Request and tokens of every entry."""


@cache
def recordings() -> dict[str, list[Recording]]:
    found: dict[str, list[Recording]] = {}
    for each in read(PATH):
        found.setdefault(each.covers, []).append(each)
    return found


@pytest.mark.parametrize("family", [family.__name__ for family in FAMILIES])
def test_every_call_schedules_preempts_and_leaves_free_what_vllms_did(family: str) -> None:
    own = recordings()[family]
    assert len(own) >= 20
    for number, recording in enumerate(own):
        first = next(differences(recording), None)
        assert first is None, f"{family} {number}: {first}; {recording.settings}; {recording.requests}"


def test_recordings_replayed_are_all_of_them() -> None:
    assert sum(map(len, recordings().values())) == 420
    assert set(recordings()) == {family.__name__ for family in FAMILIES}


def run(
    settings: Settings, requests: list[Request], until: float = math.inf, delay: tuple[float, float] = (0.0, 0.0)
) -> tuple[Tally, list[Step]]:
    """Run requests to their end; return what was counted, and the steps."""
    steps: list[Step] = []

    def watch(batch: Batch) -> None:
        if not batch.empty:
            steps.append([(state.serial, tokens) for state, tokens, _ in batch.entries])

    tally = Tally(keep_steps=True)
    Engine(settings, CLOCK, Listed(requests), tally, delay, until, watch).run()
    return tally, steps


def settings(budget: int = 1000, scheduler: Scheduler = "vllm", **changed: object) -> Settings:
    """Return settings of an engine that schedules a step when the one before it has ended."""
    flags = {"max_num_seqs": 64, "asynchronous": False, "prefix_caching": False, "scheduler": scheduler, **changed}
    return Settings(budget, **flags)  # type: ignore[arg-type]


# --- what happens to one request ----------------------------------------------------------------------------------------------


def test_one_request_alone() -> None:
    tally, steps = run(settings(), [Request(0.5, 800, 3)])
    assert steps == [[(0, 800)], [(0, 1)], [(0, 1)]]
    (served,) = tally.served
    assert (served.scheduled, served.first, served.last) == pytest.approx((0.5, 0.58, 0.60))
    assert list(tally.gaps) == pytest.approx([0.01] * len(tally.gaps))
    assert sum(tally.gaps.values()) == 2
    assert tally.busy == pytest.approx(0.1)


def test_a_prompt_goes_in_chunks_beside_those_who_decode() -> None:
    _, steps = run(settings(100), [Request(0.0, 10, 5), Request(0.0, 250, 1)])
    assert steps == [[(0, 10), (1, 90)], [(0, 1), (1, 99)], [(0, 1), (1, 61)], [(0, 1)], [(0, 1)]]


def test_without_chunks_a_prompt_waits_until_it_fits_whole_and_so_do_those_behind_it() -> None:
    requests = [Request(0.0, 60, 2), Request(0.0, 50, 1), Request(0.0, 10, 1)]
    _, steps = run(settings(100, chunked_prefill=False), requests)
    assert steps == [[(0, 60)], [(0, 1), (1, 50), (2, 10)]]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    _, steps = run(settings(max_num_seqs=2), [Request(0.0, 10, 3) for _ in range(5)])
    assert max(map(len, steps)) == 2
    assert [{serial for serial, _ in step} for step in steps[::3]] == [{0, 1}, {2, 3}, {4}]


def test_a_delay_puts_off_everything_but_the_arrival() -> None:
    tally, _ = run(settings(), [Request(1.0, 100, 2)], delay=(0.25, 0.0))
    assert tally.served[0].request.arrival == 1.0
    assert tally.served[0].scheduled == 1.25


def test_a_delay_per_token_lets_short_prompts_overtake_long_ones() -> None:
    tally, steps = run(settings(), [Request(0.0, 900, 1), Request(0.1, 100, 1)], delay=(0.1, 0.001))
    assert steps == [[(0, 100)], [(1, 900)]]
    assert [item.request.arrival for item in tally.served] == [0.1, 0.0]
    assert [item.scheduled for item in tally.served] == pytest.approx([0.3, 1.0])


def test_prompts_are_held_back_for_some_decode_steps_if_asked_for() -> None:
    requests = [Request(0.0, 100, 12), Request(0.05 - 1e-6, 100, 1), Request(0.065, 100, 1)]
    for hold, expected in ((0, [0, 5, 7]), (1, [0, 6, 8]), (3, [0, 8])):
        tally, steps = run(settings(hold_steps=hold), requests)
        assert [n for n, step in enumerate(steps) if any(tokens > 1 for _, tokens in step)] == expected
        assert all(item.done for item in tally.served)
    assert steps[8] == [(0, 1), (1, 100), (2, 100)]


def test_long_prompts_take_no_more_than_the_threshold_beside_others() -> None:
    requests = [Request(0.0, 300, 1), Request(0.0, 20, 1)]
    assert run(settings(long_prefill_token_threshold=50), requests)[1][0] == [(0, 50), (1, 20)]
    assert run(settings(long_prefill_token_threshold=50), requests[:1])[1] == [[(0, 300)]]
    adaptive = settings(400, long_prefill_token_threshold=50, long_prefill_token_threshold_adaptive=True)
    assert run(adaptive, requests)[1][0] == [(0, 200), (1, 20)]


def test_priority_goes_before_arrival() -> None:
    requests = [Request(0.0, 10, 1, priority=2), Request(0.0, 10, 1, priority=1), Request(0.0, 10, 1, priority=1)]
    _, steps = run(settings(max_num_seqs=1, policy="priority"), requests)
    assert steps == [[(1, 10)], [(2, 10)], [(0, 10)]]


def test_an_answer_ends_at_the_longest_sequence() -> None:
    tally, _ = run(settings(max_model_len=100), [Request(0.0, 90, 50)])
    assert (tally.served[0].tokens, tally.served[0].done) == (10, True)
    tally, _ = run(settings(kv_blocks=4, block_tokens=16), [Request(0.0, 40, 50)])
    assert (tally.served[0].tokens, tally.served[0].done) == (8, True)


def test_time_is_up_in_the_middle_of_a_step() -> None:
    tally, _ = run(settings(), [Request(0.0, 100, 50), Request(0.2, 100, 1), Request(0.3, 1, 1)], until=0.2049)
    first, second = tally.served
    assert (first.tokens, first.done) == (20, False)
    assert second.tokens == 0
    assert tally.end == pytest.approx(0.2)


# --- what others do instead ---------------------------------------------------------------------------------------------------


def test_prefill_first_has_steps_of_prompts_as_long_as_any_wait() -> None:
    requests = [Request(0.0, 100, 4), Request(0.0, 900, 1), Request(0.005, 800, 1), Request(0.05, 5000, 1)]
    _, steps = run(settings(1000, "prefill-first"), requests)
    assert steps == [[(0, 100), (1, 900)], [(2, 800)], [(3, 5000)], [(0, 1)], [(0, 1)], [(0, 1)]]


def test_separate_takes_turns() -> None:
    requests = [Request(0.0, 100, 4), *(Request(0.005, 900, 1) for _ in range(3))]
    _, steps = run(settings(1000, "separate"), requests)
    assert steps == [[(0, 100)], [(0, 1)], [(1, 900)], [(0, 1)], [(2, 900)], [(0, 1)], [(3, 900)]]


def test_sarathi_serves_decodes_before_prompts_that_came_earlier() -> None:
    """vLLM goes through the running requests in turn: after a resumption, a prompt may come before those who decode."""
    requests = [Request(0.0, 250, 2), Request(0.0, 10, 3)]
    _, ours = run(settings(100, "sarathi", max_num_seqs=2), requests)
    _, vllm = run(settings(100, max_num_seqs=2), requests)
    assert ours == vllm  # one of them has the whole budget until it decodes
    for step in ours:
        tokens = [count for _, count in step]
        assert sum(tokens) <= 100
    # with a threshold, the prompt that came first leaves room for the one behind it, who then decodes
    _, vllm = run(settings(61, long_prefill_token_threshold=50, max_num_seqs=2), requests)
    _, ours = run(settings(61, "sarathi", long_prefill_token_threshold=50, max_num_seqs=2), requests)
    assert vllm[1] == [(0, 50), (1, 1)]
    assert ours[1] == [(1, 1), (0, 50)]


def longest_gap(scheduler: Scheduler) -> tuple[float, float]:
    """Return the longest gap between two tokens under load, and the mean time to the first token [s]."""
    chats = [Request(0.0, 100, 400) for _ in range(16)]
    pasted = [Request(0.5 + 0.2 * number, 3000, 2) for number in range(20)]
    tally, _ = run(settings(3072, scheduler), [*chats, *pasted])
    waits = [item.first - item.request.arrival for item in tally.served if item.request.prompt == 3000]
    return max(tally.gaps), sum(waits) / len(waits)


def test_prefill_first_stalls_everyone_for_seconds_under_load() -> None:
    """The lesson's A2: prompts come faster than they are prefilled, and nobody gets a token until the last of them is done."""
    stall, wait = longest_gap("prefill-first")
    vllm, vllm_wait = longest_gap("vllm")
    separate, _ = longest_gap("separate")
    assert stall > 5
    assert vllm == pytest.approx(0.3072, abs=0.01)  # one step of the whole budget
    assert separate == pytest.approx(0.31, abs=0.011)  # one step of a prompt, one of decodes
    assert wait < vllm_wait  # which is what it is for


def test_sarathi_bounds_the_gap_by_its_budget() -> None:
    chats = [Request(0.0, 100, 100) for _ in range(8)]
    tally, steps = run(settings(512, "sarathi"), [*chats, Request(0.3, 5000, 1)])
    assert max(tally.gaps) == pytest.approx(512 / 10_000, rel=0.02)
    assert all(sum(count for _, count in step) <= 512 for step in steps)


# --- memory -------------------------------------------------------------------------------------------------------------------


def test_the_last_to_come_gives_up_its_blocks() -> None:
    tally, steps = run(settings(kv_blocks=5, block_tokens=4), [Request(0.0, 7, 6), Request(0.0, 7, 6)])
    assert tally.served[0].preemptions == 0 < tally.served[1].preemptions
    # both have 2 of 4 blocks and fill them with one token; the first takes two more, the second starts again with 8 + 1 tokens
    assert steps[:3] == [[(0, 7), (1, 7)], [(0, 1), (1, 1)], [(0, 1)]]
    assert (1, 9) in itertools.chain(*steps)
    assert all(item.done and item.tokens == 6 for item in tally.served)


def test_under_priority_the_least_urgent_gives_up_its_blocks() -> None:
    requests = [Request(0.0, 7, 6, priority=5), Request(0.0, 7, 6, priority=1)]
    tally, _ = run(settings(kv_blocks=5, block_tokens=4, policy="priority"), requests)
    assert [item.preemptions for item in tally.served] == [1, 0]


def test_who_starts_again_finds_what_is_still_in_the_prefix_cache() -> None:
    requests = [Request(0.0, 40, 30), Request(0.0, 40, 30)]
    with_cache, steps = run(settings(kv_blocks=28, block_tokens=4, prefix_caching=True), requests)
    without, again = run(settings(kv_blocks=28, block_tokens=4), requests)
    assert with_cache.preemptions
    assert without.preemptions
    most = [max(tokens for step in log[1:] for _, tokens in step) for log in (steps, again)]
    assert most[0] < most[1]


def test_shared_prefixes_are_found_and_the_last_token_is_always_computed() -> None:
    shared = [Request(time, 64, 2, prefix=(1, 2, 3, 4)) for time in (0.0, 0.1)]
    tally, steps = run(settings(prefix_caching=True), shared)
    assert [item.cached for item in tally.served] == [0, 48]
    assert steps[2] == [(1, 16)]
    tally, _ = run(settings(), shared)
    assert [item.cached for item in tally.served] == [0, 0]


def test_ids_may_stand_for_more_or_fewer_tokens_than_a_block() -> None:
    def cached(each: int, first: tuple[int, ...], second: tuple[int, ...]) -> int:
        requests = [Request(time, 200, 1, prefix=ids, prefix_block=each) for time, ids in ((0.0, first), (1.0, second))]
        return run(settings(prefix_caching=True), requests)[0].served[1].cached

    assert cached(512, (7,), (7,)) == 192  # 12 whole blocks of 200 tokens
    assert cached(40, (1, 2), (1, 2)) == 80
    assert cached(40, (1, 2), (1, 3)) == 32  # the third block reaches into what differs
    assert cached(3, (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)) == 16
    assert cached(3, (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 9)) == 0
    assert cached(16, (1, 2), (2, 2)) == 0  # equal tokens after others are others


def test_a_watermark_keeps_blocks_free_beside_others_and_not_when_alone() -> None:
    requests = [Request(0.0, 32, 8), Request(0.0, 32, 8)]
    tally, _ = run(settings(kv_blocks=8, block_tokens=8, watermark=0.5), requests)
    assert tally.served[1].scheduled >= tally.served[0].last
    tally, _ = run(settings(kv_blocks=11, block_tokens=8), requests)
    assert tally.served[1].scheduled == 0.0


def test_a_prompt_that_does_not_fit_is_admitted_in_part_only_if_that_is_asked_for() -> None:
    requests = [Request(0.0, 40, 30), Request(0.0, 40, 1)]
    for reserve, waits in ((True, True), (False, False)):
        made = settings(60, kv_blocks=10, block_tokens=8, reserve_full_prompt=reserve)
        assert ((1, 20) in run(made, requests)[1][0]) is not waits


# --- what may never happen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("changed", "prompt", "reason"),
    [
        ({"max_model_len": 100}, 100, "prompt longer than max_model_len allows"),
        ({"kv_blocks": 5}, 64, "prompt larger than the KV cache"),
        ({"kv_blocks": 5}, 10**7, "prompt larger than the KV cache"),
        ({"chunked_prefill": False}, 1001, "prompt larger than the token budget, and prompts are not chunked"),
    ],
)
def test_what_can_never_be_served_is_refused_and_the_others_are_served(
    changed: dict[str, object], prompt: int, reason: str, asynchronous: bool
) -> None:
    requests = [Request(0.0, 10, 5), Request(0.0, prompt, 5), Request(0.0, 10, 5)]
    tally, _ = run(settings(asynchronous=asynchronous, **changed), requests)
    assert tally.refused == {reason: 1}
    assert [item.refused for item in tally.served] == ["", reason, ""]
    assert [item.done for item in tally.served] == [True, False, True]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nobody_outgrows_the_budget_without_chunks(asynchronous: bool) -> None:
    """A preempted request starts again in one step, its answer so far included: answers end at the budget."""
    requests = [Request(0.0, 30, 40), Request(0.0, 30, 40), Request(0.2, 30, 1)]
    made = settings(64, max_num_seqs=4, kv_blocks=8, block_tokens=16, chunked_prefill=False, asynchronous=asynchronous)
    tally, steps = run(made, requests)
    assert len(steps) < 200
    assert [item.done for item in tally.served] == [True] * 3
    assert [item.tokens for item in tally.served] == [64 - 30, 64 - 30, 1]
    assert tally.preemptions


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
def test_of_two_alike_the_later_one_gives_way(scheduler: Scheduler) -> None:
    """Otherwise the one that is ahead would start again for ever."""
    made = settings(
        512, scheduler, kv_blocks=121, block_tokens=1, policy="priority", long_prefill_token_threshold=16,
        reserve_full_prompt=False, prefix_caching=False,
    )  # fmt: skip
    tally, steps = run(made, [Request(0.0, 60, 60), Request(0.0, 60, 60)], until=60.0)
    assert [item.done for item in tally.served] == [True, True]
    assert tally.served[0].preemptions == 0 < tally.served[1].preemptions
    assert len(steps) < 300


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_that_starves_has_a_gap_that_is_open(asynchronous: bool) -> None:
    """Two streams fill the cache: one is preempted, and has no token until the end."""
    streams = [Request(0.0, 40, 1, "stream", standing=True)] * 2
    made = settings(512, kv_blocks=101, block_tokens=1, prefix_caching=False, asynchronous=asynchronous)
    tally, _ = run(made, streams, until=0.4044)
    assert tally.preemptions == 1
    [gap] = tally.open_gaps
    assert gap == pytest.approx(0.4044 - tally.served[1].last)
    assert max(tally.gaps) == gap > 0.25
    assert sum(tally.gaps.values()) == tally.served[0].tokens + tally.served[1].tokens + 1


def test_a_prompt_of_ten_million_tokens_takes_its_steps_and_no_more() -> None:
    tally, steps = run(settings(8192), [Request(0.0, 10**7, 2)])
    assert len(steps) == math.ceil(10**7 / 8192) + 1
    assert tally.served[0].done
    assert tally.served[0].first == pytest.approx(1000.0, rel=1e-3)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheduler", ["vllm", "prefill-first", "separate", "sarathi"])
def test_standing_streams_end_at_the_longest_sequence_unless_they_are_held(
    scheduler: Scheduler, asynchronous: bool
) -> None:
    for held, most in ((False, 9), (True, 99)):  # one of the 60 tokens is known before the first step
        streams = [Request(0.0, 50, 1, "stream", standing=True, held=held)] * 3
        made = settings(1000, scheduler, max_model_len=60, asynchronous=asynchronous)
        tally, steps = run(made, [*streams, Request(0.5, 40, 1)], until=1.0049)
        assert len(steps) <= 102
        assert [item.tokens for item in tally.served[:3]] == [pytest.approx(most, abs=2 * held)] * 3
        assert [item.done for item in tally.served[:3]] == [not held] * 3
        assert tally.served[3].done


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheduler", ["vllm", "prefill-first", "separate", "sarathi"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_every_scheduler_serves_everybody_in_little_memory(
    scheduler: Scheduler, policy: str, asynchronous: bool
) -> None:
    requests = [
        Request(0.01 * number, 10 + 7 * (number % 5), 1 + 9 * (number % 4), priority=number % 3, prefix=(number % 2,))
        for number in range(60)
    ]
    made = settings(
        128, scheduler, max_num_seqs=8, kv_blocks=16, block_tokens=8, policy=policy, prefix_caching=True, asynchronous=asynchronous
    )  # fmt: skip
    tally, steps = run(made, requests)
    assert tally.preemptions
    assert Counter(item.done for item in tally.served) == {True: 60}
    assert [item.tokens for item in tally.served] == [request.output for request in requests]
    assert sum(tally.gaps.values()) == sum(request.output - 1 for request in requests)
    assert tally.steps == len(steps)


def test_blocks_are_all_free_when_everybody_has_gone() -> None:
    for asynchronous in (False, True):
        made = settings(64, kv_blocks=16, block_tokens=4, prefix_caching=True, asynchronous=asynchronous)
        engine = Engine(made, CLOCK, Listed([Request(0.0, 20, 9, prefix=(1,)) for _ in range(9)]), Tally())
        engine.run()
        assert (engine.pool.free, engine.pool.used) == (15, 0)


def test_clients_whose_requests_are_all_refused_ask_until_there_are_no_more() -> None:
    count = itertools.count()
    source = ClosedLoop(3, lambda time: Request(time, 500, 1) if next(count) < 1000 else None)
    tally = Tally()
    Engine(settings(max_model_len=100), CLOCK, source, tally).run()
    assert tally.refused == {"prompt longer than max_model_len allows": 1000}
    assert not tally.steps
