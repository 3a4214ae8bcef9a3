"""The experiment against a real HTTP server, which behaves or misbehaves."""

import asyncio
import re

import pytest

from costmodel.validation.interference.addresses import parse_url
from costmodel.validation.interference.client import Client
from costmodel.validation.interference.experiment import Experiment, ServerLostError
from costmodel.validation.interference.reading import read_record
from costmodel.validation.interference.records import Header, Plan, Recorder
from costmodel.validation.interference.records import Server as ServerInfo
from costmodel.validation.interference.streams import Prompts, Speech, learn
from tests.interference import misbehaving

PLAN = Plan(
    streams=3,
    context_tokens=20,
    output_tokens=3000,
    prompt_tokens=1000,
    every_s=0.6,
    first_s=0.3,
    duration_s=1.6,
    baseline_s=0.5,
)


def run(tmp_path, behaviour, plan=PLAN, api="tokens", patience=1.0, key=None):
    """Run the experiment; return the record and the error that ended it."""
    path = tmp_path / "record.jsonl"
    header = Header(server=ServerInfo(url="http://x"), model_name="tiny", plan=plan, date="2026-01-01", command="")
    lost = None

    async def go(address):
        client = Client(parse_url(address), key, patience)
        speech = Speech("tiny", api, Prompts(seed=1))
        await learn(client, speech)
        with Recorder(path, header) as recorder:
            await Experiment(client, speech, recorder, plan).run()

    with misbehaving.serving(behaviour) as address:
        try:
            asyncio.run(go(address))
        except ServerLostError as error:
            lost = error
    return read_record(path), lost


def problems(record):
    return [answer.problem for each in record.runs for answer in each.answers if answer.outcome == "failed"]


def test_streams_feel_every_injection(tmp_path):
    behaviour = misbehaving.Behaviour()
    record, lost = run(tmp_path, behaviour)
    assert lost is None
    assert record.complete
    baseline, injected = record.runs
    assert not problems(record)
    assert max(baseline.gaps) < 0.1
    assert len(injected.injections) == 3
    for injection in injected.injections:
        assert injection.outcome == "whole"
        assert injection.prompt_tokens == 1000
        assert injection.first - injection.sent == pytest.approx(0.215, abs=0.06)
        for answer in injected.answers:
            felt = [gap for end, gap in answer.gaps if injection.sent < end < injection.first + 0.05]
            assert max(felt) > 0.19
    bodies = [body for path, body in behaviour.seen if len(body["prompt"]) == 1000]
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == len(bodies)
    assert injected.lag.max_s < 0.2


@pytest.mark.parametrize("counts", [True, False])
def test_several_tokens_in_a_piece(tmp_path, counts):
    behaviour = misbehaving.Behaviour(bundle=3, counts=counts)
    record, lost = run(tmp_path, behaviour, PLAN.model_copy(update={"output_tokens": 30}))
    whole = [answer for answer in record.baseline.answers if answer.outcome != "stopped"]
    assert lost is None
    assert whole
    assert all(len(set(answer.times)) <= 12 for answer in whole)
    assert all(answer.output_tokens == 30 for answer in whole)  # where pieces have no counts, only the sum shows it
    assert all(len(answer.times) == (30 if counts else 10) for answer in whole)


WRONG = {
    "slow": "slow: the server sent nothing for 0.3 s",
    "drop": "dropped: the server closed the connection in the middle",
    "stop": "stopped mid-stream: no reason to finish after 5 tokens",
    "close": "stopped mid-stream",
    "error": "status 503: 'overloaded, try later'",
    "garbage": "malformed: .* is no JSON",
    "no-events": "malformed: '<html>' is no line of an event stream",
    "bad-chunk": "malformed: illegal chunk header",
    "no-choices": "malformed: .*hello.* has no choices",
    "broken-off": "the server broke off: 'EngineCore died'",
    "abort": "the server ended the answer: 'abort'",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_goes_wrong_is_said(tmp_path, wrong):
    """Three streams go wrong once, and go on with a new answer."""
    plan = PLAN.model_copy(update={"duration_s": 0.5, "first_s": 0.1})
    record, lost = run(tmp_path, misbehaving.Behaviour(wrong=wrong, times=3), plan, patience=0.3)
    assert lost is None
    assert record.complete
    found = problems(record)
    assert len(found) == 3
    for problem in found:
        assert re.search(WRONG[wrong], problem)
    restarted = [answer for answer in record.baseline.answers if answer.outcome == "stopped" and answer.times]
    assert len(restarted) == 3 or wrong == "slow"


def test_a_server_that_always_fails_ends_the_experiment(tmp_path):
    record, lost = run(tmp_path, misbehaving.Behaviour(wrong="error"))
    assert "every stream failed 3 times in a row" in str(lost)
    assert not record.complete
    assert any("ended early" in note for note in record.baseline.notes)


@pytest.mark.parametrize("api", ["text", "chat"])
def test_servers_with_nothing_but_openais_words(tmp_path, api):
    behaviour = misbehaving.Behaviour(extended=False)
    record, lost = run(tmp_path, behaviour, api=api)
    assert lost is None
    assert not problems(record)
    assert all(abs(each.prompt_tokens - 1000) < 5 for each in record.injected.injections)
    assert all("ignore_eos" not in body for _, body in behaviour.seen[1:])


def test_an_interrupted_experiment_leaves_a_record(tmp_path):
    path = tmp_path / "record.jsonl"
    header = Header(server=ServerInfo(url="http://x"), model_name="tiny", plan=PLAN, date="2026-01-01", command="")

    async def go(address):
        with Recorder(path, header) as recorder:
            experiment = Experiment(Client(parse_url(address)), Speech("tiny", "tokens", Prompts()), recorder, PLAN)
            task = asyncio.create_task(experiment.run())
            await asyncio.sleep(1.8)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with misbehaving.serving(misbehaving.Behaviour()) as address:
        asyncio.run(go(address))
    record = read_record(path)
    assert record.baseline.complete
    assert not record.injected.complete
    assert record.injected.notes == ("interrupted",)
    assert all(answer.outcome == "stopped" for answer in record.injected.answers)
