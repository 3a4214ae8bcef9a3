"""Wrong input of measure, fit, check, interfere and gpus probe: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.runner import document, printed, refusal, run
from tests.validation.synthetic import LLAMA

HEADER = {
    "schema": "costmodel.measurement/1",
    "source": "in-process",
    "engine": {"name": "vllm", "version": "1"},
    "machine": {"profile": "NVIDIA H100 SXM", "device": "H100"},
    "model": {"name": "m", "config": LLAMA, "dtype": "bf16"},
    "date": "2026-01-01",
    "command": "costmodel measure",
}
STEP = {"chunks": [], "decodes": [10, 10], "seconds": 0.01, "purpose": "decode"}
PLAN = dict.fromkeys(("streams", "context_tokens", "output_tokens", "prompt_tokens"), 1)
SECONDS = dict.fromkeys(("every_s", "first_s", "duration_s", "baseline_s"), 1.0)
RECORD = {
    "schema": "costmodel.interference_record/1",
    "server": {"url": "http://x"},
    "model_name": "m",
    "plan": PLAN | SECONDS,
    "date": "2026-01-01",
    "command": "costmodel interfere",
}


def lines(*content: object) -> str:
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in content)


MEASUREMENTS = {
    "empty": ("", "is empty or has no whole line"),
    "no line": ("{", "is empty or has no whole line"),
    "text": ("hello\n", "is no header of a measurement"),
    "a list": ("[1]\n", "is no header of a measurement"),
    "another schema": (lines(HEADER | {"schema": "costmodel.measurement/2"}), "schema"),
    "a header alone": (lines(HEADER), "no steps"),
    "deep": (lines(HEADER, "[" * 10**5), "line 2: is no JSON"),
    "huge numbers": (lines(HEADER, '{"seconds": ' + "9" * 5000 + "}"), "line 2: is no JSON"),
    "NaN": (lines(HEADER, STEP | {"seconds": float("nan")}), "seconds"),
    "no time": (lines(HEADER, STEP | {"seconds": 0}), "seconds"),
    "negative time": (lines(HEADER, STEP | {"seconds": -1}), "seconds"),
    "negative tokens": (lines(HEADER, STEP | {"decodes": [-1]}), "decodes.0"),
    "too many tokens": (lines(HEADER, STEP | {"decodes": [10**30]}), "decodes.0"),
    "nothing computed": (lines(HEADER, STEP | {"decodes": []}), "at least one token"),
    "an empty chunk": (lines(HEADER, STEP | {"chunks": [[0, 5]]}), "at least one token"),
    "another purpose": (lines(HEADER, STEP | {"purpose": "fun"}), "purpose"),
    "an unknown part": (lines(HEADER | {"machine": {"profile": "H10O", "device": "x"}}, STEP), "H10O"),
    "no part": (lines(HEADER | {"machine": {"profile": None, "device": "x"}}, STEP), "--gpu"),
    "no config": (lines(HEADER | {"model": HEADER["model"] | {"config": {}}}, STEP), "model_type is missing"),  # type: ignore[operator]
}
RECORDS = {
    "empty": ("", "is empty or has no whole line"),
    "text": ("hello\n", "is no header of a record"),
    "a plan that is none": (lines(RECORD | {"plan": PLAN | SECONDS | {"streams": -1}}), "plan.streams"),
    "no event": (lines(RECORD, {"foo": 1}), "line 2: is no event of a record"),
    "deep": (lines(RECORD, "[" * 10**5), "line 2: is no event of a record"),
    "NaN": (lines(RECORD, {"run": "baseline", "time": float("nan")}), "line 2: is no event"),
    "long after": (lines(RECORD, {"run": "baseline", "time": 1e300}), "line 2: is no event"),
    "a stranger's token": (lines(RECORD, {"token": 5, "time": 1}), "line 2: is no event"),
}


@pytest.fixture
def special(own_folder: Path) -> None:
    """What is no regular file, or too large."""
    (own_folder / "folder").mkdir()
    os.mkfifo(own_folder / "pipe")
    (own_folder / "noise").write_bytes(bytes(range(256)))
    with (own_folder / "huge").open("wb") as file:
        file.truncate(2**40)  # takes no room
    (own_folder / "steps.jsonl").write_text(lines(HEADER, STEP), encoding="utf-8")
    (own_folder / "record.jsonl").write_text(lines(RECORD), encoding="utf-8")
    for name in ("mine.toml", "mine.png"):
        (own_folder / name).write_text("mine", encoding="utf-8")


@pytest.mark.parametrize("kind", MEASUREMENTS)
@pytest.mark.parametrize("command", ["fit", "check"])
def test_broken_measurements(command: str, kind: str, own_folder: Path) -> None:
    text, said = MEASUREMENTS[kind]
    (own_folder / "broken.jsonl").write_text(text, encoding="utf-8")
    message = refusal(f"{command} broken.jsonl")
    if command == "fit" or text.startswith('{"schema": "costmodel.measurement'):
        assert said in message
    assert "broken.jsonl" in message or said in ("H10O", "--gpu", "no steps", "model_type is missing")
    assert os.listdir() == ["broken.jsonl"]


@pytest.mark.parametrize("kind", RECORDS)
def test_broken_records(kind: str, own_folder: Path) -> None:
    text, said = RECORDS[kind]
    (own_folder / "broken.jsonl").write_text(text, encoding="utf-8")
    assert said in refusal("interfere --from broken.jsonl")
    refusal("check broken.jsonl --gpu h100 --model Llama-3.1-8B")
    assert os.listdir() == ["broken.jsonl"]


@pytest.mark.usefixtures("special")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing", "no such file"),
        ("folder", "is a directory"),
        ("pipe", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        ("huge", "at most"),
        ("noise", "not text"),
        ("''", "is a directory"),
    ],
)
@pytest.mark.parametrize(
    "command", ["fit", "check", "interfere --from", "measure --random-weights Llama-3.2-1B --resume --out"]
)
def test_what_is_no_file_of_ours(command: str, path: str, said: str) -> None:
    if "--out" in command and path in ("missing", "''", "/dev/null", "/dev/zero"):
        return  # missing files are made; the others are tried below
    assert said in refusal(f"{command} {path}")


REFUSED = {
    "fit steps.jsonl -o mine.toml": "exists; use --force",
    "fit steps.jsonl --plot mine.png": "exists; use --force",
    "fit steps.jsonl -o pipe": "not a regular file",
    "fit steps.jsonl -o folder": "it is a folder",
    "fit steps.jsonl -o /dev/null": "not a regular file",
    "fit steps.jsonl --plot a.txt": "unknown suffix '.txt'",
    "fit steps.jsonl --dataset silicon": "leave one of the two out",
    "fit steps.jsonl --seed -1": "--seed",
    "fit steps.jsonl --gpu h10O": "h100",
    "check steps.jsonl --max-error 5": "write 5% or 0.05",
    "check steps.jsonl --max-error nan": "no share",
    "check steps.jsonl --plot mine.png": "exists; use --force",
    "check steps.jsonl --model Llama-3.1-8B": "leave out --model",
    "check steps.jsonl --tp 2": "leave out --tp",
    "check steps.jsonl --chunk 512": "leave out --chunk",
    "interfere --from record.jsonl --streams 5": "--streams is for an experiment",
    "interfere --from record.jsonl --api-key-env A": "--api-key-env is for an experiment",
    "interfere --from record.jsonl --plot a.png": "no gap to draw",
    "interfere --url http://127.0.0.1:0": "is no address",
    "interfere --url http://127.0.0.1:9 --output 0": "output",
    "interfere --url http://127.0.0.1:9 --chunk 0": "chunk",
    "interfere --url http://127.0.0.1:9 --timeout nan": "timeout",
    "interfere --url http://127.0.0.1:9 --record pipe --force": "not a regular file",
    "interfere --url http://127.0.0.1:9 --record folder --force": "it is a folder",
    "interfere --url http://127.0.0.1:9 --record /dev/null --force": "not a regular file",
    "measure --random-weights ''": "the model has no name",
    "measure https://me:sesame@x/y": "the model is an address",
    "measure --random-weights Llama-3.2-1B --minutes inf": "--minutes must be more than 0",
    "measure --random-weights Llama-3.2-1B --out pipe --force": "not a regular file",
    "measure --random-weights Llama-3.2-1B --out folder": "it is a folder",
    "measure --random-weights Llama-3.2-1B --out /dev/null": "not a regular file",
    "measure --random-weights steps.jsonl": "is not JSON",
    "measure Llama-3.2-1B --from-log pipe": "no regular file",
    "measure Llama-3.2-1B --from-log folder": "no regular file",
    "measure Llama-3.2-1B --from-log noise": "no iteration details",
    "measure Llama-3.2-1B --from-log noise --minutes 1": "--minutes is for measuring",
    "gpus probe -o mine.toml": "exists; use --force",
    "gpus probe -o folder.toml/x.toml": "does not exist",
    "gpus probe --seconds nan": "--seconds must be more than 0",
    "gpus probe --seconds inf": "--seconds must be",
    "gpus probe --device tpu": "'cuda', 'cpu'",
}


@pytest.mark.usefixtures("special")
@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals(arguments: str) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in Path().iterdir()}
    result = run(arguments)
    if "--plot a.png" in arguments:  # the report is told in any case
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        message = result.stderr
    else:
        message = refusal(arguments)
    assert REFUSED[arguments] in message
    assert "sesame" not in message
    assert {path.name: path.stat().st_mtime_ns for path in Path().iterdir()} == before
    assert Path("mine.toml").read_text(encoding="utf-8") == "mine"


def test_a_complete_measurement_is_not_begun_anew(own_folder: Path) -> None:
    """No engine is started, as none is installed here or needed: unless more minutes ask for more steps."""
    words = "measure --random-weights Llama-3.2-1B --resume --out steps.jsonl"
    file = own_folder / "steps.jsonl"
    file.write_text(lines(HEADER, STEP, {"complete": True, "planned_s": 180.0}), encoding="utf-8")
    result = run(words)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "steps.jsonl is complete: nothing is left to measure; more --minutes plan more steps\n"
    assert "complete; next: costmodel fit steps.jsonl" in result.stdout
    assert run(words + " --minutes 1 --json").exit_code == 0
    more = run(words + " --minutes 5 --gpu no-such-part")
    assert more.exit_code == 2
    assert "no-such-part" in more.stderr or "not installed" in more.stderr
    file.write_text(lines(HEADER, STEP, {"complete": True}), encoding="utf-8")  # by an earlier version
    assert run(words).exit_code == 0


def test_steps_behind_the_end_of_a_plan_are_of_a_larger_one(own_folder: Path) -> None:
    (own_folder / "steps.jsonl").write_text(lines(HEADER, STEP, {"complete": True}, STEP), encoding="utf-8")
    assert "measurement of" in printed("check steps.jsonl")
    assert document("check steps.jsonl --json")["rows"]


def test_what_was_measured_is_drawn(own_folder: Path) -> None:
    chunks = [STEP | {"chunks": [[new, 0]], "decodes": [], "purpose": "prefill"} for new in (16, 64, 256)]
    (own_folder / "steps.jsonl").write_text(lines(HEADER, STEP, *chunks, {"complete": True}), encoding="utf-8")
    words = "measure --random-weights Llama-3.2-1B --resume --out steps.jsonl --plot a.png"
    result = run(words)
    assert (result.exit_code, "wrote a.png" in result.stderr) == (0, True), result.stderr
    assert (own_folder / "a.png").stat().st_size > 20_000
    assert "a.png exists; use --force" in refusal(words)
    assert "name the same file" in refusal("measure --random-weights Llama-3.2-1B --out b.png --plot b.png")
