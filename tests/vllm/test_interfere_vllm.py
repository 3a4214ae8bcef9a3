"""``costmodel interfere`` end to end: the real command line, which serves a tiny random model with the real vLLM on a CPU."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from costmodel.validation.interference.records import read_record
from tests.cli.runner import SCRIPT

pytestmark = pytest.mark.vllm

EXPERIMENT = [
    "--random-weights",
    "--streams",
    "3",
    "--context",
    "32",
    "--prompt",
    "2048",
    "--every",
    "4",
    "--first",
    "2",
]
FLAGS = ["--", "--dtype", "float32", "--enforce-eager", "--max-model-len", "4096"]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose steps are long enough to be told from what else goes on, on a machine that is shared."""
    folder = tmp_path_factory.mktemp("models") / "small"
    folder.mkdir()
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    wider = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps(config | wider), encoding="utf-8")
    return folder


def start(model: Path, environment: dict[str, str], record: Path, *more: str) -> subprocess.Popen[str]:
    arguments = ["interfere", "--serve", str(model), *EXPERIMENT, "--record", str(record), *more, *FLAGS]
    return subprocess.Popen(
        [SCRIPT, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def descendants(pid: int) -> set[int]:
    """Return all processes below one, and it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def await_end(processes: set[int]) -> set[int]:
    """Return what is left of processes after half a minute at most."""
    until = time.monotonic() + 30
    while (left := {pid for pid in processes if _lives(pid)}) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def server_of(processes: set[int]) -> dict[str, int]:
    """Return the keeper, the server's main process and its engine, by name."""
    found = {}
    for pid in processes:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:
            continue
        for name, mark in (
            ("engine", "VLLM::EngineCore"),
            ("keeper", "backends.keeper"),
            ("server", "vllm_main serve"),
        ):
            if mark in words:
                found[name] = pid
                break
    return found


def test_every_injection_makes_one_spike(model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    client = start(model, environment, record, "--duration", "18", "--baseline", "5", "--json")
    out, error = client.communicate(timeout=400)
    assert client.returncode == 0, error
    document = json.loads(out)
    assert document["complete"]
    assert document["server"]["engine"] == "vllm"
    assert document["server"]["flags"]["max_num_batched_tokens"] == 2051
    assert len(document["injections"]) == 4
    assert [each["spike"] is not None for each in document["injections"]] == [True] * 4, document["spikes"]
    assert all(each["prompt_tokens"] == 2048 for each in document["injections"])
    assert document["one_to_one"], document["spikes"]
    assert document["one_step"]["verdict"] == "yes", document["one_step"]
    assert document["spike_ratio"] > 5
    assert read_record(record).complete


def test_a_small_budget_makes_lower_and_more_stalls(model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    client = start(model, environment, record, "--duration", "10", "--baseline", "4", "--chunk", "512", "--json")
    out, error = client.communicate(timeout=400)
    assert client.returncode == 0, error
    document = json.loads(out)
    assert document["one_step"]["verdict"] == "no", document["one_step"]
    assert document["one_step"]["flag"].startswith("--max-num-batched-tokens")
    assert 3 <= document["one_step"]["steps"] <= 6
    for spike in document["spikes"]:
        if spike["cause"] == "injection":
            assert spike["height_s"] < 0.7 * spike["duration_s"]


@pytest.mark.parametrize("victim", ["client", "server", "engine", "interrupted"])
def test_whatever_is_killed_nothing_is_left(
    model: Path, environment: dict[str, str], tmp_path: Path, victim: str
) -> None:
    record = tmp_path / "r.jsonl"
    temporary = Path(tempfile.mkdtemp(prefix="cm-"))  # short, as sockets are in it
    client = start(model, environment | {"TMPDIR": str(temporary)}, record, "--duration", "600", "--baseline", "2")
    until = time.monotonic() + 300
    while not (record.exists() and b'"begun":"injected"' in record.read_bytes()):
        assert client.poll() is None, client.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(random.uniform(0.5, 4.0))
    processes = descendants(client.pid)
    found = server_of(processes)
    assert set(found) == {"keeper", "server", "engine"}
    if victim == "client":
        client.kill()
    elif victim == "interrupted":
        client.send_signal(random.choice((signal.SIGINT, signal.SIGTERM)))
    else:
        os.kill(found[victim], signal.SIGKILL)
    error = client.communicate(timeout=120)[1]
    assert await_end(processes - {client.pid}) == set()
    assert client.returncode == {"client": -signal.SIGKILL, "interrupted": 130}.get(victim, 1), error
    if victim in ("server", "engine"):
        assert "the experiment ended early" in error
    kept = read_record(record)
    assert kept.baseline is not None
    assert kept.baseline.complete
    assert kept.injected is not None
    assert kept.injected.gaps
    assert not kept.complete
    temporary.rmdir()  # fails unless it is empty
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ends_while_the_server_starts(
    model: Path, environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    record = tmp_path / "r.jsonl"
    temporary = Path(tempfile.mkdtemp(prefix="cm-"))
    client = start(model, environment | {"TMPDIR": str(temporary)}, record)
    until = time.monotonic() + 60
    while "server" not in server_of(descendants(client.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(random.uniform(0, 10))
    processes = descendants(client.pid)
    client.send_signal(number)
    error = client.communicate(timeout=120)[1]
    assert await_end(processes - {client.pid}) == set()
    assert client.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert error == ("error: interrupted\n" if number == signal.SIGINT else "")
    temporary.rmdir()  # fails unless it is empty
    assert not record.exists()


def test_a_server_that_cannot_start_says_why(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    client = subprocess.Popen(
        [SCRIPT, *f"interfere --serve {tiny_model} --random-weights --record {record} -- --no-such-flag".split()],
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
