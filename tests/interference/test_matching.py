"""Spikes and injections, one to one: on runs made by hand, whose truth is known."""

import pytest

from costmodel.validation.interference.matching import match
from costmodel.validation.interference.records import Answer, Injection, Run

DECODE = 0.01


def make_run(spikes, injections, end=10.0, streams=3, extra=(), own=()):
    """Return a run whose streams step every 10 ms, but in steps that begin at a time and have a length.

    ``spikes`` are steps (begin, length) of all streams; ``own`` gaps (stream, begin, length) of one stream alone.
    """
    answers = []
    for stream in range(streams):
        mine = sorted([*spikes, *[(begin, length) for who, begin, length in own if who == stream]])
        times, now = [0.0], 0.0
        while now < end:
            step = DECODE
            if mine and now >= mine[0][0] - 1e-9:
                step = mine.pop(0)[1]
            now += step
            times.append(now)
        answers.append(Answer(stream=stream, sent=-1.0, times=tuple(times)))
    return Run(
        name="injected", start=0.0, end=end, answers=(*answers, *extra), injections=tuple(injections), complete=True
    )


def prompt(sent, first):
    return Injection(sent=sent, first=first, outcome="whole")


def test_each_injection_has_its_spike():
    run = make_run([(1.0, 0.2), (4.0, 0.21), (7.0, 0.19)], [prompt(0.995, 1.2), prompt(4.0, 4.2), prompt(6.99, 7.2)])
    found = match(run, DECODE)
    assert [spike.injection for spike in found.spikes] == [0, 1, 2]
    assert [spike.height for spike in found.spikes] == pytest.approx([0.2, 0.21, 0.19])
    assert all(spike.cause == "injection" and spike.steps == 1 and spike.streams == 3 for spike in found.spikes)
    assert found.threshold == pytest.approx(0.1)
    assert not found.unfelt


def test_chunks_of_one_prompt_are_one_spike():
    run = make_run([(1.0, 0.05), (1.05, 0.05), (1.10, 0.05), (1.15, 0.015)], [prompt(1.0, 1.17)])
    (spike,) = match(run, DECODE).spikes
    assert spike.steps == 3  # the last chunk is too small to be told from a decode step
    assert spike.height == pytest.approx(0.05)


def test_prompts_that_queue_have_a_spike_each():
    run = make_run([(1.0, 0.2), (1.2, 0.2)], [prompt(0.99, 1.2), prompt(1.0, 1.4)])
    found = match(run, DECODE)
    assert [(spike.injection, round(spike.start, 2)) for spike in found.spikes] == [(0, 1.0), (1, 1.2)]


def test_a_stall_of_the_server_belongs_to_nobody():
    run = make_run([(1.0, 0.2), (5.0, 0.3)], [prompt(1.0, 1.2)])
    found = match(run, DECODE)
    assert [spike.cause for spike in found.spikes] == ["injection", "unknown"]


def test_a_new_answer_of_a_stream_is_a_restart():
    begun = Answer(stream=0, sent=5.0, times=(5.1, 5.11))
    run = make_run([(1.0, 0.2), (5.0, 0.15)], [prompt(1.0, 1.2)], extra=(begun,))
    assert [spike.cause for spike in match(run, DECODE).spikes] == ["injection", "restart"]


def test_a_client_that_was_late_itself():
    run = make_run([(1.0, 0.2), (5.0, 0.3), (7.0, 0.3)], [prompt(1.0, 1.2)])
    run = run.model_copy(update={"late": ((5.3, 0.28), (7.1, 0.05))})
    assert [spike.cause for spike in match(run, DECODE).spikes] == ["injection", "client", "unknown"]


def test_what_one_stream_feels_is_no_spike():
    run = make_run([(1.0, 0.2)], [prompt(1.0, 1.2)], own=[(0, 5.0, 0.4)])
    assert [spike.cause for spike in match(run, DECODE).spikes] == ["injection"]


def test_injections_that_are_not_felt():
    run = make_run([(1.0, 0.2), (5.0, 0.2)], [prompt(1.0, 1.2), prompt(3.0, 3.02), prompt(5.0, 5.2)])
    found = match(run, DECODE)
    assert [spike.injection for spike in found.spikes] == [0, 2]
    assert found.unfelt == (1,)
    quiet = match(make_run([], [prompt(1.0, 1.02)]), DECODE)
    assert quiet.threshold is None
    assert quiet.unfelt == (0,)


def test_prompts_without_an_answer_need_no_spike():
    run = make_run([(1.0, 0.2)], [prompt(1.0, 1.2), Injection(sent=3.0, outcome="failed", problem="slow")])
    found = match(run, DECODE)
    assert len(found.spikes) == 1
    assert not found.unfelt


@pytest.mark.parametrize("run", [make_run([], []), Run(name="injected", start=0.0, end=0.0)])
def test_nothing_to_match(run):
    assert match(run, DECODE).spikes == ()
