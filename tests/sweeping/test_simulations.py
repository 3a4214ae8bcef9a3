"""Sweeps of simulations: every row is a simulation of its own, wherever it runs, and whatever ends the sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel import certainty
from costmodel.sweeping import runners
from costmodel.sweeping.journal import Journal

HEADER = '{"schema":"costmodel.sweep_journal/1","costmodel":"' + costmodel.__version__ + '"}'
LOAD: dict[str, Any] = {
    "simulate": "load", "gpu": ["h100", "l40s"], "rate": [3.0, 9.0], "chunk": [512, 2048], "prompt": 700, "output": 60, "requests": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    """The rows of LOAD, simulated one after another in this process."""
    return costmodel.sweep(**LOAD, workers=1).document()


def test_rows_are_simulations(serial: dict[str, Any]) -> None:
    rows = iter(costmodel.sweep(**LOAD, workers=1, limits=costmodel.Limits(ttft=0.05)).rows)
    for gpu in LOAD["gpu"]:
        for chunk in LOAD["chunk"]:
            for rate in LOAD["rate"]:
                row = next(rows)
                assert isinstance(row, costmodel.SimulatedRow)
                answer = costmodel.simulate_load(
                    rate=rate,
                    requests=40,
                    prompt=700,
                    output=60,
                    gpu=gpu,
                    chunk=chunk,
                    limits=costmodel.Limits(ttft=0.05),
                )
                result = answer.result
                assert result is not None
                assert result.itl is not None
                assert result.ttft is not None
                assert result.tpot is not None
                assert result.goodput is not None
                assert row.goodput_share == result.goodput.share
                assert (row.rate_per_s, row.chunk_tokens, row.streams, row.context_tokens) == (rate, chunk, None, None)
                assert (row.itl_p50_s, row.itl_p99_s, row.itl_max_s) == (
                    result.itl.p50_s,
                    result.itl.p99_s,
                    result.itl.max_s,
                )
                assert (row.ttft_s, row.ttft_p50_s, row.ttft_p99_s) == (
                    result.ttft.mean_s,
                    result.ttft.p50_s,
                    result.ttft.p99_s,
                )
                assert (row.tpot_s, row.tpot_p99_s) == (result.tpot.mean_s, result.tpot.p99_s)
                assert row.output_tokens_per_s == result.output_tokens_per_s
                assert row.rung == answer.server.rung


def test_interference_and_closed_loops_are_simulated() -> None:
    [row] = costmodel.sweep(simulate="interference", chunk=512, rate=0.2, streams=8, workers=1).rows
    answer = costmodel.simulate_interference(streams=8, every=5.0, first=2.5, chunk=512)
    assert isinstance(row, costmodel.SimulatedRow)
    assert answer.injected is not None
    assert answer.injected.itl is not None
    assert row.itl_max_s == answer.injected.itl.max_s
    assert (row.rate_per_s, row.context_tokens, row.output_tokens) == (0.2, 500, None)
    [row] = costmodel.sweep(simulate="load", streams=3, prompt=100, output=20, workers=1).rows
    loop = costmodel.simulate_load(3, prompt=100, output=20)
    assert loop.result is not None
    assert (row.streams, row.rate_per_s, row.output_tokens_per_s) == (3, None, loop.result.output_tokens_per_s)


def test_processes_give_the_same_rows(serial: dict[str, Any]) -> None:
    said: list[tuple[int, int]] = []
    found = costmodel.sweep(**LOAD, workers=2, progress=lambda done, total: said.append((done, total)))
    assert found.document() == serial
    assert said == [(number, 8) for number in range(9)]


def test_a_worker_that_is_killed_loses_nothing(serial: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        process = popen(*args, **kwargs)
        started.append(process.pid)
        if len(started) == 1:
            os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(runners.subprocess, "Popen", start)
    assert costmodel.sweep(**LOAD, workers=2).document() == serial
    assert len(started) == 3


def test_what_cannot_be_is_a_row_with_the_reason() -> None:
    found = costmodel.sweep(
        simulate="load", model=["Llama-3.1-8B", "Llama-3.1-70B"], tp=[1, 3], rate=5, requests=2, prompt=10, output=2
    )
    problems = [row.problem for row in found.rows]
    assert problems[0] is None
    assert problems[1] is not None
    assert problems[1].startswith("tp 3 does not divide")
    assert problems[2] == "the weights leave no room for a KV cache"
    assert all(row.tpot_s is None and row.rung is None for row in found.rows if row.problem)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"simulate": "loads"}, "did you mean load"),
        ({"simulate": "load", "spread": 2}, "spread must be below 1"),
        ({"simulate": "load", "rate": 1, "requests": 0}, "requests must be at least 1"),
        ({"simulate": "load", "rate": [1, None]}, "numbers for all of rate, or none"),
        ({"simulate": "load", "rate": 1, "streams": [1, 2]}, "streams makes no difference here"),
        ({"simulate": "load", "context": [1, 2]}, "context makes no difference here"),
        ({"simulate": "load", "chunk": None}, "chunk must be a number of tokens for a load"),
        ({"simulate": "load", "output": None}, "needs the length of its answers"),
        ({"simulate": "interference", "requests": 5}, "requests is for a load"),
        ({"simulate": "load", "workers": 0}, "workers must be at least 1"),
        ({"simulate": "load", "workers": 1, "dask": "tcp://a:1"}, "leave out one of them"),
        ({"simulate": "load", "resume": True}, "resume needs the journal"),
        ({"simulate": "load", "engine": "vlm"}, "did you mean vllm"),
        ({"requests": 5}, "requests is for sweeps of simulations"),
        ({"spread": 0.5}, "spread is for sweeps of simulations"),
        ({"dtype": "bf15"}, "unknown dtype"),
        ({"gpu": []}, "gpu needs at least one value"),
        ({"gpu": ["h100", "h1000"]}, "unknown GPU 'h1000'"),
        ({"model": "Lama-3.1-8B"}, "did you mean"),
        ({"streams": 0}, "streams must be at least 1"),
        ({"chunk": "engin"}, "chunk must be a whole number"),
        ({"prompt": range(1, 100_000), "streams": range(1, 100_000)}, "are more than 100,000,000"),
        ({"calibration": 5}, "calibration must be a file or 'none'"),
    ],
)
def test_bad_input_is_told(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(costmodel.InputError, match=reason):
        costmodel.sweep(**options)


def test_a_journal_is_gone_on_with(tmp_path: Path, serial: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sweep.jsonl"

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    part = costmodel.sweep(**LOAD, workers=1, journal=path, progress=stop)
    assert part.interrupted
    assert part.document()["rows"] == serial["rows"][:3]
    with path.open("a") as file:
        file.write('{"configuration": {"half a li')
    with pytest.raises(costmodel.InputError, match="is there from an earlier sweep"):
        costmodel.sweep(**LOAD, workers=1, journal=path)
    simulated: list[Any] = []
    here = runners.run_here
    monkeypatch.setattr(runners, "run_here", lambda asked: here([simulated.append(each) or each for each in asked]))
    whole = costmodel.sweep(**LOAD, workers=1, journal=path, resume=True)
    assert len(simulated) == 5
    assert whole.document() == serial
    assert len(path.read_text().splitlines()) == 1 + 8
    again = costmodel.sweep(**{**LOAD, "rate": [9.0, 11.0]}, workers=1, journal=path, resume=True)
    assert len(simulated) == 5 + 4
    assert again.rows[0] == whole.rows[1]


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content, reason in (
        ("hello\n", "is not a journal"),
        ("[1]\n", "is not a journal"),
        ("my only notes", "is not a journal"),
        (f'{HEADER}\n{{"configuration":{{"kind":"load"}},"row":{{"tpot":1}}}}\n', "is not a journal"),
        (f'{HEADER}\n{{"configuration":{{"kind":"load"}},"row":{{"tpot_s":"fast"}}}}\n', "is not a journal"),
        (f'{HEADER}\n{{"configuration":{{"kind":"load"}},"row":{{"stalls":1.5}}}}\n', "is not a journal"),
        (f'{HEADER}\n{{"configuration":{{"kind":"lod"}},"row":{{}}}}\n', "is not a journal"),
        (f'{HEADER}\n{{"configuration":{{"kind":"load"}},"row":{{"tpot_s":Infinity}}}}\n', "is not a journal"),
        ('{"schema": "costmodel.sweep_journal/1", "costmodel": "0.0.0"}\n', "is by costmodel 0.0.0"),
    ):
        path.write_text(content)
        with pytest.raises(costmodel.InputError, match=reason):
            Journal(path, resume=True)
        assert path.read_text() == content
    for content in ("", HEADER[:20], HEADER):  # it got no further
        path.write_text(content)
        journal = Journal(path, resume=True)
        assert path.read_text() == HEADER + "\n"
        journal.close()
        assert not path.exists()


def test_files_of_a_configuration_count_by_their_content(tmp_path: Path, repo_root: Path) -> None:
    model = tmp_path / "config.json"
    config = json.loads((repo_root / "costmodel/architecture/presets/Llama-3.2-1B.json").read_text())
    asked: dict[str, Any] = {
        "simulate": "load",
        "model": str(model),
        "requests": 2,
        "rate": 1.0,
        "prompt": 50,
        "output": 5,
    }
    journal = tmp_path / "j.jsonl"
    found = []
    for layers in (16, 8):
        model.write_text(json.dumps(config | {"num_hidden_layers": layers}))
        os.utime(model, (layers, layers))
        found.append(costmodel.sweep(**asked, workers=1, journal=journal, resume=True).rows[0].tpot_s)
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] > found[1]


def test_a_calibration_that_has_changed_is_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"simulate": "load", "requests": 2, "rate": 1.0, "prompt": 50, "output": 5, "workers": 1}
    journal = tmp_path / "j.jsonl"
    before = costmodel.sweep(**asked, journal=journal).rows[0].tpot_s or 0
    shipped = certainty.shipped_calibration

    def slower(gpu: str, engine: str = "vllm") -> Any:
        found = shipped(gpu, engine)
        return found and found.model_copy(update={"notes": ("edited",)})

    monkeypatch.setattr(certainty, "shipped_calibration", slower)
    after = costmodel.sweep(**asked, journal=journal, resume=True).rows[0].tpot_s
    assert after == before
    assert len(journal.read_text().splitlines()) == 3


def test_the_budget_of_one_step_is_no_number() -> None:
    [row] = costmodel.sweep(simulate="interference", chunk=None, streams=2, prompt=100, workers=1).rows
    assert row.tpot_s is not None
    assert row.chunk_tokens is None


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_leaves_what_is_done(tmp_path: Path, workers: str) -> None:
    """As from a terminal: SIGINT to the command; then --resume."""
    out = tmp_path / "out.csv"
    program = "import sys; from costmodel.cli.entry import main; sys.argv[0] = 'costmodel'; main()"
    command = [
        *(sys.executable, "-c", program, "sweep", "--simulate", "load", "--rate", "2,3,4,5,6,7,8,9"),
        *("--requests", "1500", "--prompt", "700", "--output", "60", "--out", str(out), "--workers", workers),
    ]
    journal = tmp_path / "out.csv.journal.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if journal.exists() and journal.read_text().count("\n") >= 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "--resume goes on with it" in stderr
    assert not out.exists()
    assert "TPOT" in stdout
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert out.read_text().count("\n") == 9
    assert not journal.exists()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_of_a_terminal_while_workers_start_is_quiet() -> None:
    """A terminal signals the whole group, here in the moment in which the first worker is there."""
    program = """
import os, signal, subprocess, threading
from costmodel.sweeping import runners
from costmodel.cli.entry import main

popen, timer = subprocess.Popen, threading.Timer(float(os.environ["DELAY"]), os.killpg, (0, signal.SIGINT))

def start(*args, **kwargs):
    process = popen(*args, **kwargs)
    if timer.ident is None:
        timer.start()
    return process

runners.subprocess.Popen = start
main()
"""
    for delay in ("0", "0.05", "0.2"):
        command = [
            *(sys.executable, "-c", program, "sweep", "--simulate", "load", "--rate", "2,3", "--requests", "90000"),
            *("--workers", "2"),
        ]
        environment = {**os.environ, "DELAY": delay}
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment, start_new_session=True
        )
        assert process.returncode == 130, process.stderr
        assert process.stderr == "interrupted after 0 rows\n"


def test_workers_end_with_the_sweep() -> None:
    before = set(threading.enumerate())
    with pytest.raises(costmodel.InputError, match="cannot go on"):
        costmodel.sweep(**LOAD, workers=2, progress=_fails)
    assert set(threading.enumerate()) <= before


def _fails(done: int, total: int) -> None:
    if done == 2:
        raise costmodel.InputError("cannot go on")
