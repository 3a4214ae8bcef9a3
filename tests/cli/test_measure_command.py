"""``costmodel measure`` and ``gpus probe`` as far as they go without an engine: options, files, refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from costmodel.cli import measure_command
from costmodel.cli.measure_command import _file_name
from costmodel.validation.measurements.files import read_measurement
from costmodel.validation.measurements.types import SCHEMA, Header
from tests.cli.runner import document, printed, refusal, run
from tests.validation.test_measuring import Clock, MadeUp

START = f'{{"schema":"{SCHEMA}'

LOG = """INFO 11-30 00:55:25 [kv_cache_utils.py:2327] GPU KV cache size: 100,000 tokens, Maximum concurrency for 2,048 tokens: 48.83x
INFO 11-30 00:56:00 [loggers.py:199] Engine 000: Iteration(0): 0 context requests, 0 context tokens, 4 generation requests, 4 generation \
tokens, iteration elapsed time: 5.00 ms, GPU KV cache usage: 2.0%
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "name one model"),
        ("model --random-weights Llama-3.2-1B", "name one model"),
        ("--random-weights Llama-3.2-1B --minutes 0", "--minutes must be more than 0"),
        ("--random-weights Llama-3.2-1B --minutes nan", "--minutes must be more than 0"),
        ("--random-weights Llama-3.2-1B --resume --force", "give one of them"),
        ("--random-weights Llama-3.2-1B --tp 0", "--tp must be at least 1"),
        ("--random-weights Llama-3.2-1B --max-model-len -5", "--max-model-len must be at least 1"),
        ("--random-weights Llama-3.2-1B --gpu-memory-utilization 1.5", "must be in (0, 1]"),
        ("--random-weights Llama-3.2-1B --dtype bf32", "did you mean"),
        ("Llama-3.2-1B --backend torch", "--random-weights CONFIG"),
        ("--random-weights Llama-3.2-1B --backend torch --tp 2", "--tp is for vLLM"),
        ("--random-weights Llama-3.2-1B --out folder/m.jsonl", "the folder"),
        ("--random-weights Llama-3.2-1C", "Llama-3.2-1B"),
        ("--random-weights Llama-3.2-1B --from-log server.log", "needs the MODEL that was served"),
        ("Llama-3.2-1B --from-log none.log", "none.log"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(options: str, said: str) -> None:
    assert said in refusal(f"measure {options}")


def test_a_file_that_is_there_is_not_replaced(own_folder: Path) -> None:
    (own_folder / "measurement-Llama-3.2-1B.jsonl").write_text("mine\n", encoding="utf-8")
    said = refusal("measure --random-weights Llama-3.2-1B")
    assert "--resume goes on with it" in said
    assert "--force replaces it" in said
    assert "no header of a measurement" in refusal("measure --random-weights Llama-3.2-1B --resume")
    assert (own_folder / "measurement-Llama-3.2-1B.jsonl").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize("content", ["mine, on one line", '{"schema":"costmodel.check/1"', START + '"},"steps":[]}'])
def test_resume_discards_nothing_but_a_beginning_of_a_header(own_folder: Path, content: str) -> None:
    (own_folder / "m.jsonl").write_text(content, encoding="utf-8")
    assert "m.jsonl" in refusal("measure --random-weights Llama-3.2-1B --resume --out m.jsonl")
    assert (own_folder / "m.jsonl").read_text(encoding="utf-8") == content


class Slow(MadeUp):
    """An engine while which starts another run writes its file."""

    def header(self) -> Header:
        Path("m.jsonl").write_text("another run's\n", encoding="utf-8")
        return super().header()


@pytest.mark.parametrize("found", [None, "", START[:9], START + '","source":"in'])
def test_a_file_that_came_while_the_engine_started_is_kept(
    own_folder: Path, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "measure --random-weights Llama-3.2-1B --minutes 0.01 --out m.jsonl"
    words += "" if found is None else " --resume"
    for engine in (Slow, MadeUp):
        monkeypatch.setattr(measure_command, "_start", lambda *_, made=engine: made(Clock()))
        (own_folder / "m.jsonl").unlink(missing_ok=True)
        if found is not None:
            (own_folder / "m.jsonl").write_text(found, encoding="utf-8")
        if engine is Slow:
            assert "m.jsonl exists" in refusal(words)
            assert (own_folder / "m.jsonl").read_text(encoding="utf-8") == "another run's\n"
            continue
        assert run(words).exit_code == 0
        assert read_measurement(own_folder / "m.jsonl").steps
    monkeypatch.setattr(measure_command, "_start", lambda *_: Slow(Clock()))
    assert run(words.removesuffix(" --resume") + " --force").exit_code == 0
    assert read_measurement(own_folder / "m.jsonl").steps


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_way_to_it_is_named(own_folder: Path) -> None:
    said = refusal("measure --random-weights Llama-3.2-1B")
    assert "vLLM is not installed: pip install vllm" in said
    assert "--backend torch" in said
    assert list(own_folder.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("words", ["measure --random-weights Llama-3.2-1B --backend torch", "gpus probe"])
def test_without_torch_it_is_named(words: str) -> None:
    assert "pip install torch" in refusal(words)


def test_a_log_becomes_a_measurement(own_folder: Path) -> None:
    (own_folder / "server.log").write_text(LOG, encoding="utf-8")
    words = "measure Llama-3.2-1B --from-log server.log --gpu h100"
    text = printed(words)
    assert "next: costmodel fit measurement-Llama-3.2-1B.json" in text
    [step] = read_measurement(own_folder / "measurement-Llama-3.2-1B.json").steps
    assert (step.decodes, step.seconds) == ((499,) * 4, 0.005)
    assert "exists" in refusal(words)
    found = document(words + " --force --json")
    assert found["schema"] == "costmodel.measurement/1"
    assert found["command"] == "costmodel measure Llama-3.2-1B --from-log server.log --force --gpu h100 --json"
    assert json.loads((own_folder / "measurement-Llama-3.2-1B.json").read_text(encoding="utf-8")) == found


def test_the_probe_refuses_a_file_that_no_command_would_take(own_folder: Path) -> None:
    assert "must end in .toml" in refusal("gpus probe -o part.txt")
    assert "--seconds" in refusal("gpus probe --seconds 0")
    (own_folder / "part.toml").write_text("", encoding="utf-8")
    assert "--force" in refusal("gpus probe -o part.toml")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "measurement-Llama-3.1-8B.jsonl"),
        ("/models/tiny/config.json", "measurement-tiny.jsonl"),
        ("~/my model/", "measurement-my-model.jsonl"),
        ("config.json", "measurement-model.jsonl"),
    ],
)
def test_files_are_named_after_the_model(model: str, name: str) -> None:
    assert _file_name(model, ".jsonl") == name


def test_the_help_has_every_option() -> None:
    text = run("measure --help").stdout
    for option in ("--random-weights", "--backend", "--from-log", "--minutes", "--resume", "--kv-dtype", "--clock"):
        assert option in text
