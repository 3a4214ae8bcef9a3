"""Recordings of vLLM's scheduler: what they are of, that they hold together, and that they hold what they are meant to."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from costmodel.validation.backends.recordings import Recording, from_json, read, to_json, write
from costmodel.validation.backends.scheduler_workloads import FAMILIES, draw
from costmodel.validation.backends.summaries import EVENTS, count, summary
from costmodel.validation.backends.vllm_scheduler import OWN_TOKENS, prompt_tokens

PATH = Path(__file__).parents[1] / "simulation" / "recordings" / "vllm-0.32.0.jsonl.gz"
LEAST = {
    "partial": 5000,
    "hits": 800,
    "preemptions": 1500,
    "several at once": 80,
    "resumed on hits": 300,
    "ends preempted": 10,
}


@cache
def recordings() -> tuple[Recording, ...]:
    return tuple(read(PATH))


def test_recordings_are_of_the_workloads_drawn_today() -> None:
    drawn = list(draw(len(recordings()), 0))
    assert [each.settings for each in recordings()] == [each.settings for each in drawn]
    for recording, workload in zip(recordings(), drawn, strict=True):
        assert recording.covers == workload.covers
        for recorded, request in zip(recording.requests, workload.requests, strict=True):
            assert recorded.arrival_step <= request.arrival_step
            assert (recorded.prompt, recorded.output, recorded.priority) == (
                request.prompt,
                request.output,
                request.priority,
            )
            assert (recorded.id, recorded.prefix) == (request.id, request.prefix)


def test_families_and_modes_are_all_there() -> None:
    kinds = Counter((each.covers, each.settings.async_scheduling) for each in recordings())
    assert set(kinds) == {(family.__name__, later) for family in FAMILIES for later in (False, True)}
    assert min(kinds.values()) >= 10


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_all_there(event: str) -> None:
    assert sum(count(each)[event] for each in recordings()) >= LEAST.get(event, 50)


def test_steps_keep_the_limits() -> None:
    for recording in recordings():
        settings = recording.settings
        assert len(recording.steps) == len(recording.preempted) == len(recording.free_blocks)
        for step, free in zip(recording.steps, recording.free_blocks, strict=True):
            assert sum(tokens for _, tokens, _ in step) <= settings.token_budget
            assert len(step) <= settings.max_num_seqs
            assert 0 <= free < settings.kv_blocks
            assert all(tokens > 0 for _, tokens, _ in step)


def test_every_request_computes_all_but_its_last_token_and_finishes() -> None:
    for recording in recordings():
        reached: dict[int, int] = {}
        for step, victims in zip(recording.steps, recording.preempted, strict=True):
            assert not set(victims) & {request for request, _, _ in step}
            for victim in victims:
                del reached[victim]
            for request, tokens, computed in step:
                assert computed == reached.get(request, computed)
                reached[request] = computed + tokens
        for request in recording.requests:
            length = min(request.prompt + request.output, recording.settings.max_model_len)
            assert reached.get(request.id, length - 1) == length - 1
        assert sorted(recording.finished) == [each.id for each in recording.requests]


def test_written_recordings_are_read_again_and_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.gz", recordings()[:20])
    write(tmp_path / "b.gz", read(tmp_path / "a.gz"))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert from_json(to_json(recordings()[0])) == recordings()[0]


def test_prompts_share_named_blocks_and_nothing_else() -> None:
    recording = next(each for each in recordings() if each.covers == "identical")
    prompts = [prompt_tokens(each, recording.settings.block_tokens) for each in recording.requests]
    assert [len(each) for each in prompts] == [each.prompt for each in recording.requests]
    own = [token for prompt in prompts for token in prompt if token >= OWN_TOKENS]
    assert len(own) == len(set(own))
    assert prompts[0][0] == prompts[1][0] < OWN_TOKENS


def test_summary_has_a_line_for_each_family() -> None:
    lines = summary(recordings()[: len(FAMILIES)]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*(family.__name__ for family in FAMILIES), "all"]
