"""``costmodel measure`` on the real engine: what is recorded is what was asked for, and any end leaves a file that goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from costmodel.validation.measurements.files import read_content, read_measurement
from costmodel.validation.measurements.types import Measurement, Step

pytestmark = pytest.mark.vllm

PROGRAM = "from costmodel.cli.entry import main; main()"
LIMIT = 300
"""Seconds after which a process hangs."""


def arguments(model: Path, out: Path, minutes: float, *more: str) -> list[str]:
    flags = f"--dtype fp32 --enforce-eager --max-num-batched-tokens 1024 --max-model-len 2048 --minutes {minutes}"
    return [
        sys.executable,
        "-c",
        PROGRAM,
        "measure",
        "--random-weights",
        str(model),
        "--out",
        str(out),
        *flags.split(),
        *more,
    ]


@contextmanager
def measuring(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A measurement that is running, in a session of its own, and that never outlives the test."""
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


def wait_for_lines(path: Path, process: subprocess.Popen[str], lines: int) -> None:
    """Wait until a file has so many lines."""
    end = time.monotonic() + LIMIT
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def processes_of_session(leader: int) -> list[int]:
    """Return the processes that are left in a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def measured(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """A measurement of half a minute, by the command."""
    out = tmp_path_factory.mktemp("measured") / "m.jsonl"
    done = subprocess.run(
        arguments(tiny_model, out, 0.5, "--json"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "costmodel.measurement/1"  # and nothing else, though vLLM prints
    found = read_measurement(out)
    assert Measurement.model_validate_json(done.stdout) == found
    return found


def median_of(found: Measurement, purpose: str, **holds: object) -> Step:
    steps = [each for each in found.steps if each.purpose == purpose]
    for name, value in holds.items():
        steps = [each for each in steps if getattr(each, name) == value]
    assert steps
    return steps[0]


def test_every_sweep_is_measured(measured: Measurement) -> None:
    assert measured.notes == ()
    assert {step.purpose for step in measured.steps} == {"decode", "prefill", "chunk", "mixed"}
    assert len(measured.steps) >= 15
    assert all(step.repeats >= 3 for step in measured.steps)


def test_everything_is_recorded(measured: Measurement) -> None:
    import torch
    import vllm

    assert (measured.source, measured.engine.name, measured.engine.version) == ("in-process", "vllm", vllm.__version__)
    assert measured.engine.versions["torch"] == torch.__version__
    assert measured.model.config["hidden_size"] == 256
    assert (measured.model.dtype, measured.model.random_weights) == ("fp32", True)
    assert (measured.machine.count, measured.machine.threads, measured.clock) == (1, 1, "cpu")
    flags = measured.engine.flags
    for name, value in {"enforce_eager": True, "max_num_batched_tokens": 1024, "max_model_len": 2048}.items():
        assert flags[name] == value
    assert flags["async_scheduling"] is False
    assert measured.command.startswith("costmodel measure --random-weights ")


def test_compositions_are_those_of_the_plan(measured: Measurement) -> None:
    block = int(measured.engine.flags["block_size"] or 0)
    for step in measured.steps:
        assert step.tokens <= 1024
        assert len(set(step.decodes)) <= 1
        assert len(step.chunks) == (0 if step.purpose == "decode" else 1)
        assert bool(step.decodes) == (step.purpose in ("decode", "mixed"))
        assert all(cached % block == 0 for _, cached in step.chunks)
        assert all((cached > 0) == (step.purpose == "chunk") for _, cached in step.chunks if step.purpose != "mixed")
        assert step.held_out or step.purpose != "mixed"


def test_times_go_with_what_is_computed(measured: Measurement) -> None:
    prefills = sorted((s for s in measured.steps if s.purpose == "prefill"), key=lambda s: s.tokens)
    shortest, longest = prefills[0], prefills[-1]
    assert longest.tokens > 30 * shortest.tokens
    assert longest.seconds > 3 * shortest.seconds
    decodes = sorted((s for s in measured.steps if s.purpose == "decode"), key=lambda s: sum(s.decodes))
    assert decodes[-1].seconds > 1.5 * decodes[0].seconds
    for step in measured.steps:  # CPU time of one thread is no longer than the time that passed, clocks' ticks aside
        assert step.wall_seconds is not None
        assert step.seconds < 1.2 * step.wall_seconds + 0.002


def test_ctrl_c_leaves_what_was_measured_and_resume_goes_on(
    tiny_model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "m.jsonl"
    with measuring(arguments(tiny_model, out, 5), environment) as process:
        wait_for_lines(out, process, 12)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "interrupted" in stderr
        assert "Traceback" not in stderr
        assert "partial" in stdout
        assert processes_of_session(process.pid) == []
    before = read_content(out)
    assert len(before.samples) >= 11
    assert not before.complete

    other = subprocess.run(
        [*arguments(tiny_model, out, 0.1, "--resume"), "--max-num-seqs", "8"],
        env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert other.returncode == 2
    assert "another configuration: flag max_num_seqs" in other.stderr.splitlines()[-1]
    assert read_content(out).samples == before.samples

    for _ in range(3):  # on a busy machine the time may end before the plan does
        done = subprocess.run(
            arguments(tiny_model, out, 0.3, "--resume"),
            env=environment, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if read_content(out).complete:
            break
    after = read_content(out)
    assert after.samples[: len(before.samples)] == before.samples
    assert len(after.samples) > len(before.samples)
    assert read_measurement(out).complete


def test_kill_leaves_a_file_that_is_read(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    with measuring(arguments(tiny_model, out, 5), environment) as process:
        wait_for_lines(out, process, 2)
        time.sleep(random.Random().uniform(0.0, 3.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        time.sleep(0.5)
        assert processes_of_session(process.pid) == []
    found = read_measurement(out)
    assert found.steps
    assert not found.complete
