"""``costmodel interfere`` end to end: the real command line, which serves a small random model with the real vLLM on a CPU.

The machine may be shared, so medians are compared, and the engine has one thread. A server takes most of a minute to start, so the small
token budget and the end of a random process share one; `tests/vllm/kill_tries.py` makes as many tries as one likes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from costmodel.validation.interference.reading import read_record
from tests.cli.runner import SCRIPT, run
from tests.vllm.kill_tries import VICTIMS, attempt, await_end, descendants, draw, roles

pytestmark = pytest.mark.vllm

LOAD = "--random-weights --streams 3 --context 32 --prompt 2048 --every 4 --first 2"
FLAGS = "-- --dtype float32 --enforce-eager --max-model-len 4096"
ENGINE = "--dtype fp32 --enforce-eager --max-num-batched-tokens 2048 --max-model-len 4096"
INJECTIONS = 3
"""Prompts of the second experiment before something is killed."""


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose steps are long enough to be told from what else goes on, on a machine that is shared."""
    folder = tmp_path_factory.mktemp("models") / "small"
    folder.mkdir()
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    wider = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps(config | wider), encoding="utf-8")
    return folder


class Fitted(NamedTuple):
    """Files of this machine: its profile, and the calibration of the model on it."""

    profile: Path
    calibration: Path


@pytest.fixture(scope="module")
def fitted(model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """What a user makes before: a profile, a short measurement, a fit."""
    folder = tmp_path_factory.mktemp("fitted")
    for arguments in (
        "gpus probe --device cpu --seconds 6 -o cpu.toml",
        f"measure --random-weights {model} --gpu cpu.toml {ENGINE} --minutes 0.5 --out mine.jsonl",
        "fit mine.jsonl --gpu cpu.toml -o mine.toml",
    ):
        done = subprocess.run(
            [SCRIPT, *arguments.split()],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"
    return Fitted(folder / "cpu.toml", folder / "mine.toml")


def start(model: Path, environment: dict[str, str], record: Path, more: str) -> subprocess.Popen[str]:
    arguments = f"interfere --serve {model} {LOAD} --record {record} {more} {FLAGS}"
    return subprocess.Popen(
        [SCRIPT, *arguments.split()], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_every_injection_makes_one_spike_as_high_as_predicted(
    model: Path, environment: dict[str, str], fitted: Fitted, tmp_path: Path
) -> None:
    prediction = f"--gpu {fitted.profile} --calibration {fitted.calibration}"
    for again in range(2):  # a busy machine may leave the client, or the server, without a core for seconds
        record = tmp_path / f"{again}.jsonl"
        client = start(model, environment, record, f"--duration 18 --baseline 5 {prediction} --json")
        out, error = client.communicate(timeout=400)
        if client.returncode != 0 and "the client itself was late" in error and not again:
            continue
        assert client.returncode == 0, error
        document = json.loads(out)
        assert document["complete"]
        if document["one_to_one"] and len(document["injections"]) == 4:
            break
    assert document["server"]["engine"] == "vllm"
    assert document["server"]["flags"]["max_num_batched_tokens"] == 2051
    assert len(document["injections"]) == 4
    assert [each["spike"] is not None for each in document["injections"]] == [True] * 4, document["spikes"]
    assert all(each["prompt_tokens"] == 2048 for each in document["injections"])
    assert document["one_to_one"], document["spikes"]
    assert document["one_step"]["verdict"] == "yes", document["one_step"]
    assert document["spike_ratio"] > 5
    [spike] = [row for row in document["predicted"] if row["what"] == "spike"]
    assert spike["measured_s"] == document["spike_s"]
    assert abs(spike["error"]) < 0.3, document["predicted"]
    assert read_record(record).complete


def _await_injections(client: subprocess.Popen[str], record: Path) -> None:
    """Wait until some injected prompts were answered."""
    until = time.monotonic() + 200
    while not record.exists() or record.read_bytes().count(b'"output_tokens":1,') < INJECTIONS:
        assert client.poll() is None, client.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_small_budget_makes_lower_stalls_and_whatever_is_killed_nothing_is_left(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "r.jsonl"
    temporary = Path(tempfile.mkdtemp(prefix="cm-"))  # short, as sockets are in it
    client = start(model, environment | {"TMPDIR": str(temporary)}, record, "--chunk 512 --duration 600 --baseline 3")
    try:
        _await_injections(client, record)
        time.sleep(random.uniform(0.0, 3.0))
        processes = descendants(client.pid)
        found = roles(processes) | {"client": client.pid}
        assert set(found) == set(VICTIMS)
        victim, number = random.choice(VICTIMS), signal.SIGKILL
        if victim in ("client", "keeper"):  # vLLM itself finishes its answers when it is asked to end, and ends then
            number = random.choice((signal.SIGKILL, signal.SIGTERM))
        os.kill(found[victim], number)
        error = client.communicate(timeout=120)[1]
    finally:
        if client.poll() is None:
            client.kill()
            client.communicate()
    told = f"{number.name} to the {victim}: {error}"
    assert await_end(processes - {client.pid}, temporary) == {}, told
    expected = 1 if victim != "client" else -signal.SIGKILL if number == signal.SIGKILL else 130
    assert client.returncode == expected, told
    assert victim == "client" or "the experiment ended early" in error, told
    temporary.rmdir()  # fails unless it is empty
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
    assert not read_record(record).complete

    document = json.loads(run(["interfere", "--from", str(record), "--json"]).stdout)
    assert document["baseline"]["complete"]
    assert len(document["injections"]) >= INJECTIONS
    assert document["one_step"]["verdict"] == "no", document["one_step"]
    assert document["one_step"]["flag"].startswith("--max-num-batched-tokens")
    assert 3 <= document["one_step"]["steps"] <= 6
    for spike in document["spikes"]:
        if spike["cause"] == "injection":
            assert spike["height_s"] < 0.7 * spike["duration_s"]


def test_a_command_that_ends_while_its_engine_starts_leaves_nothing(
    tiny_model: Path, environment: dict[str, str]
) -> None:
    dice = random.Random()
    one = draw(dice, dice.choice(("interfere", "measure")), phase="starting")
    attempt(one, tiny_model, environment)


def test_a_server_that_cannot_start_says_why(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    client = subprocess.Popen(
        [
            SCRIPT,
            *f"interfere --serve {tiny_model} --random-weights --prompt 1024 --record {record} -- --no-such-flag".split(),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, error = client.communicate(timeout=200)
    assert client.returncode == 2
    assert out == ""
    assert len(error.splitlines()) == 1
    assert error.startswith("error: the server ended before it was ready")
    assert "no-such-flag" in error
    assert not record.exists()
