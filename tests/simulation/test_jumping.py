"""The engine that jumps gives the token times of the plain one, whatever comes: held together on random workloads."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.memory.blocks import KvGroup
from costmodel.simulation.jumping import JumpingEngine, can_jump
from costmodel.simulation.requests import Request
from costmodel.simulation.seats import Seats
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from tests.simulation.pairs import (
    CLOCKS,
    LOCAL_CHUNKS,
    SAME_S,
    Workload,
    clock_of,
    compare,
    crowded_workload,
    random_workload,
    run,
)
from tests.strategies import examples

WORKLOADS = 900
GROUPS = 3


def counted(plain: Tally, jumped: Tally) -> Counter[str]:
    """Return how often what makes it hard has happened."""
    return Counter(
        preemptions=plain.preemptions,
        hits=sum(item.cached > 0 for item in plain.served),
        resumed=sum(item.preemptions > 0 and item.done for item in plain.served),
        refused=sum(plain.refused.values()),
        unfinished=sum(not item.done for item in plain.served),
        jumped=jumped.steps - jumped.events,
        steps=plain.steps,
    )


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_workloads(group: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(group, WORKLOADS, GROUPS):
        happened += counted(*compare(random_workload(seed)))
    least = {"preemptions": 50, "hits": 200, "resumed": 20, "refused": 100, "unfinished": 100}
    assert all(happened[what] > count for what, count in least.items()), happened
    assert happened["jumped"] > 0.4 * happened["steps"], happened


@pytest.mark.parametrize("group", range(3))
def test_crowded_workloads(group: int) -> None:
    """Little memory, many alike: several end at once, and in which order they give back their blocks decides what is found again."""
    happened: Counter[str] = Counter()
    for seed in range(group, 150, 3):
        happened += counted(*compare(crowded_workload(seed)))
    least = {"preemptions": 500, "hits": 500, "resumed": 200}
    assert all(happened[what] > count for what, count in least.items()), happened


@pytest.mark.parametrize("group", range(3))
def test_crowded_workloads_of_layers_with_a_window(group: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(group, 120, 3):
        workload = crowded_workload(seed)
        windows = tuple(KvGroup(width, workload.settings.block_tokens, ()) for width in (6, 20)[: 1 + seed % 2])
        settings = replace(workload.settings, seats=Seats(windows, 1 + seed % 3, 0, 2))
        if settings.kv_blocks is not None:  # room for as many sequences as without
            settings = replace(settings, kv_blocks=settings.kv_blocks + 4 * settings.seats.of(10**6))
        happened += counted(*compare(replace(workload, settings=settings)))
    least = {"preemptions": 100, "hits": 100, "resumed": 50}
    assert all(happened[what] > count for what, count in least.items()), happened


@pytest.mark.parametrize("seed", [2036, 2084, 3615])
def test_held_streams_that_give_up_their_blocks_twice_running(seed: int) -> None:
    plain, _ = compare(random_workload(seed))
    assert any(item.request.held for item in plain.served)
    assert plain.preemptions


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """A few requests, small enough to be shrunk to what matters."""
    block = draw(st.sampled_from([1, 2, 16]))
    budget = draw(st.integers(1, 40))
    settings = Settings(
        token_budget=budget,
        max_num_seqs=draw(st.integers(1, budget)),
        kv_blocks=draw(st.none() | st.integers(4, 30)),
        block_tokens=block,
        prefix_caching=draw(st.booleans()),
        asynchronous=draw(st.booleans()),
        reserve_full_prompt=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.2])),
    )
    requests = st.builds(
        Request,
        arrival=st.sampled_from([0.0, 0.0, 0.0123, 0.05, 7.001]),
        prompt=st.integers(1, 40),
        output=st.sampled_from([1, 2, 9, 40]),
        prefix=st.lists(st.integers(1, 2), max_size=4).map(tuple),
        prefix_block=st.just(block),
    )
    return Workload(
        settings,
        clock_of(draw(st.sampled_from(CLOCKS[:-1]))),
        draw(st.lists(requests, min_size=1, max_size=8)),
        clients=draw(st.integers(0, 3)),
        think=draw(st.sampled_from([0.0, 0.0317])),
        delay=draw(st.sampled_from([0.0, 0.0071])),
        until=draw(st.sampled_from([math.inf, 0.1037])),
    )


@given(workloads())
@examples(250)
def test_any_workload(workload: Workload) -> None:
    compare(workload)


# --- shapes that are rare at random -------------------------------------------------------------------------------------------


def test_streams_that_starve_or_reach_the_longest_sequence() -> None:
    ended = starved = 0
    for seed in range(150):
        draw = random.Random(seed)
        context, count, block = draw.randint(1, 60), draw.randint(1, 5), draw.choice([1, 4, 16])
        blocks = draw.choice([None, max(draw.randint(8, 60), count * -(-(context + 1) // block) + 1)])
        settings = Settings(
            draw.choice([64, 512]), 8, blocks, block,
            max_model_len=draw.choice([None, context + 1, context + 2, context + 30, 200]),
            asynchronous=draw.random() < 0.5, chunked_prefill=draw.random() < 0.9, prefix_caching=draw.random() < 0.5,
        )  # fmt: skip
        requests = [Request(0.0, context, 1, "s", standing=True, held=draw.random() < 0.2) for _ in range(count)] + [
            Request(draw.random(), draw.randint(1, 60), draw.choice([1, 40])) for _ in range(draw.randint(0, 8))
        ]
        plain, jumped = compare(
            Workload(settings, clock_of(draw.choice(CLOCKS)), requests, until=draw.choice([1.0037, 2.9971]))
        )
        assert sorted(jumped.open_gaps) == pytest.approx(sorted(plain.open_gaps), abs=SAME_S)
        ended += sum(item.done for item in plain.served if item.request.standing)
        starved += len(plain.open_gaps)
    assert min(ended, starved - 5) > 0, (ended, starved)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("which", CLOCKS, ids=str)
def test_long_silences_between_short_bursts(which: tuple[str, str, bool] | None, asynchronous: bool) -> None:
    settings = Settings(64, 8, 200, asynchronous=asynchronous)
    requests = [Request(1e4 * burst, 20, 1 + 30 * (n % 2), prefix=(1,)) for burst in range(5) for n in range(12)]
    compare(Workload(settings, clock_of(which), requests, delay=0.011))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_contexts_cross_their_windows_together_and_apart(asynchronous: bool) -> None:
    """128 tokens in gpt-oss, 1,024 in gemma-3: short of it, at it, one before and one beyond."""
    settings = Settings(4096, 64, None, asynchronous=asynchronous)
    for which in CLOCKS[2:6]:
        for window in (128, 1024):
            requests = [Request(0.0, window + off, 60) for off in (-30, -30, -2, -1, 0, 1)]
            requests += [Request(0.0401, window - 40, 60), Request(0.0, 1, 60)]
            compare(Workload(settings, clock_of(which), requests))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_contexts_cross_their_local_chunks_together_and_apart(asynchronous: bool) -> None:
    settings = Settings(4096, 64, None, asynchronous=asynchronous)
    requests = [Request(0.0, 3 * LOCAL_CHUNKS + off, 5 * LOCAL_CHUNKS) for off in (-30, -30, -2, -1, 0, 0, 1)]
    requests += [Request(0.0301, LOCAL_CHUNKS, 60), Request(0.0, 1, 90)]
    compare(Workload(settings, clock_of(("llama-4", "b200", False)), requests))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("prompt", [15, 16, 17])
def test_standing_streams_in_little_memory(prompt: int, asynchronous: bool) -> None:
    """At the edge of a block; the streams grow until prompts, and then the streams themselves, have to give way."""
    clock = clock_of(CLOCKS[0])
    each = clock.decode(4, [64.0])
    for held in (False, True):
        streams = [Request(0.0, prompt, 1, "s", standing=True, held=held)] * 3
        requests = [Request(0.01 * number, 30, 40) for number in range(6)]
        for blocks in (11, 14, 30):
            settings = Settings(64, 8, blocks, asynchronous=asynchronous)
            compare(Workload(settings, clock, [*streams, *requests], until=120.3 * each))


def test_steps_that_are_counted_are_those_that_end_in_time() -> None:
    """Cut anywhere: a run to a time has the same tokens as a longer one has by then."""
    clock = clock_of(CLOCKS[0])
    for asynchronous in (False, True):
        settings = Settings(256, 16, 60, asynchronous=asynchronous)
        requests = [Request(0.013 * number, 40, 1 + 13 * (number % 5)) for number in range(20)]
        whole = run(JumpingEngine, Workload(settings, clock, requests))[1]
        for until in [0.0219 * number for number in range(1, 40)]:
            workload = Workload(settings, clock, requests, until=until)
            _, cut = compare(workload)
            assert cut.end <= until
            for item, complete in zip(cut.served, whole.served, strict=False):
                for name in ("scheduled", "first"):
                    here, there = getattr(item, name), getattr(complete, name)
                    assert math.isnan(here) or here == pytest.approx(there, abs=1e-9)
                assert item.done == (complete.last <= until)


def test_steps_with_prefill_are_kept_alike() -> None:
    for seed in range(40):
        workload = random_workload(seed)
        plain, jumped = run(Engine, workload)[1], run(JumpingEngine, workload)[1]
        first = [(step.decodes, step.chunks) for step in plain.mixed_steps]
        assert first == [(step.decodes, step.chunks) for step in jumped.mixed_steps]
        ends = [(step.end, step.duration) for step in plain.mixed_steps]
        for (end, duration), step in zip(ends, jumped.mixed_steps, strict=True):
            assert (step.end, step.duration) == (pytest.approx(end, abs=1e-9), pytest.approx(duration, abs=1e-9))


def test_the_most_that_ran_waited_and_held_blocks_are_alike() -> None:
    for seed in range(40):
        workload = replace(crowded_workload(seed), until=math.inf)
        plain, jumped = run(Engine, workload)[1], run(JumpingEngine, workload)[1]
        assert (plain.most[0], plain.most[2]) == (jumped.most[0], jumped.most[2])


def test_blocks_are_all_free_when_everybody_has_gone() -> None:
    for seed in range(60):
        workload = crowded_workload(seed)
        for kind in (Engine, JumpingEngine):
            engine, tally = run(kind, replace(workload, until=math.inf))
            assert all(item.done or item.refused for item in tally.served)
            assert engine.pool.used == 0
            assert not engine.running
            assert not engine.waiting


def test_jumps_are_few_where_nothing_happens() -> None:
    workload = Workload(Settings(8192, 64, None), clock_of(CLOCKS[0]), [Request(0.0, 100, 50_000)] * 8)
    _, tally = run(JumpingEngine, workload)
    assert tally.steps == pytest.approx(50_000, abs=10)
    assert tally.events < 20


@pytest.mark.parametrize(
    ("changed", "can"),
    [
        ({}, True),
        ({"max_num_seqs": 101}, False),
        ({"scheduler": "sarathi"}, False),
        ({"scheduler": "separate"}, False),
        ({"scheduler": "prefill-first"}, False),
        ({"policy": "priority"}, False),
        ({"long_prefill_token_threshold": 1}, False),
        ({"chunked_prefill": False, "asynchronous": False, "prefix_caching": False, "kv_blocks": 10}, True),
    ],
)
def test_what_can_jump(changed: dict[str, object], can: bool) -> None:
    assert can_jump(replace(Settings(100, 100), **changed)) == can  # type: ignore[arg-type]
