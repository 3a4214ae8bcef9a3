"""Records of live experiments: what is written is read again, and whatever ends a run leaves what came before."""

import json

import pytest

from costmodel.hardware.errors import InputError
from costmodel.validation.interference.reading import read_record
from costmodel.validation.interference.records import Header, Plan, Recorder, Server

HEADER = Header(
    server=Server(url="http://localhost:1", engine="vllm", version="0.32.0", flags={"max_num_batched_tokens": 2048}),
    model_name="tiny",
    plan=Plan(
        streams=2,
        context_tokens=16,
        output_tokens=100,
        prompt_tokens=1024,
        every_s=2.0,
        first_s=1.0,
        duration_s=4.0,
        baseline_s=4.0,
    ),
    date="2026-01-01T00:00:00+00:00",
    command="costmodel interfere",
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "record.jsonl"
    with Recorder(path, HEADER) as recorder:
        recorder.add(run="baseline", time=0.0)
        recorder.add(send=0, stream=0, time=0.1)
        recorder.add(token=0, time=0.2)
        recorder.add(token=0, time=0.3, count=2)
        recorder.add(end=0, time=0.4, outcome="stopped")
        recorder.add(done="baseline", time=0.5)
        recorder.add(run="injected", time=1.0)
        recorder.add(send=1, stream=0, time=1.0)
        recorder.add(send=2, time=1.1)
        recorder.add(token=1, time=1.2)
        recorder.add(token=2, time=1.5)
        recorder.add(end=2, time=1.5, outcome="whole", prompt_tokens=1024, cached_tokens=0)
        recorder.add(lag={"p50_s": 0.0, "p99_s": 0.001, "max_s": 0.002, "count": 9}, time=1.6)
        recorder.add(note="the server went away", time=1.7)
    return path


def test_what_is_written_is_read_again(path):
    record = read_record(path)
    assert record.plan == HEADER.plan
    assert record.server == HEADER.server
    assert not record.complete
    baseline, injected = record.baseline, record.injected
    assert baseline.complete
    assert not injected.complete
    assert baseline.answers[0].times == (0.2, 0.3, 0.3)
    assert baseline.gaps == pytest.approx([0.1, 0.0])
    assert baseline.answers[0].outcome == "stopped"
    (injection,) = injected.injections
    assert (injection.sent, injection.first, injection.prompt_tokens, injection.cached_tokens) == (1.1, 1.5, 1024, 0)
    assert injected.answers[0].outcome is None
    assert injected.stream_times() == {0: [(1.2,)]}
    assert injected.lag.max_s == 0.002
    assert injected.notes == ("the server went away",)
    assert injected.end == 1.6


def test_a_record_cut_at_any_byte_is_read(path):
    content = path.read_bytes()
    whole = content.index(b"\n") + 1
    for size in [*range(0, whole, 50), *range(whole - 1, len(content), 3)]:
        path.write_bytes(content[:size])
        if size < whole:
            with pytest.raises(InputError, match="no whole line"):
                read_record(path)
        else:
            record = read_record(path)
            assert bool(record.notes) == (content[size - 1 : size] != b"\n")


def test_an_existing_file_is_kept(path):
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists; use --force"):
        Recorder(path, HEADER)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "3",
        "nonsense",
        '{"token": 99, "time": 1}',
        '{"token": 0, "time": "soon"}',
        '{"token": 0, "time": NaN}',
        '{"run": "third", "time": 2}',
        '{"run": "baseline", "time": 2}',
        '{"unknown": 1, "time": 2}',
        '{"lag": {}, "time": 2}',
        '{"end": 0, "outcome": "weird", "time": 2}',
        '{"end": 0, "outcome": "whole", "prompt_tokens": "many", "time": 2}',
        '{"token": 1, "time": 2, "count": 99999999999999}',
        '{"token": 1, "time": 2, "count": -1}',
        '{"metrics": 3, "time": 2}',
        '{"late": [], "time": 2}',
    ],
)
def test_a_broken_line_is_named(path, line):
    number = len(path.read_text().splitlines()) + 1
    with path.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=f"line {number}"):
        read_record(path)


def test_other_files_are_refused(tmp_path):
    for name, content in (("a", b""), ("b", b"\xff\xfe\n"), ("c", json.dumps({"schema": "other/1"}).encode() + b"\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_record(path)
    with pytest.raises(InputError, match="no such file"):
        read_record(tmp_path / "missing")
