"""The five-minute check of a GPU (benchmarks/gpu_check.py), on a CPU and on a pretended GPU."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("COSTMODEL_REQUIRE_VLLM") != "1":
    pytest.importorskip("torch", reason="needs vLLM, which brings torch (docs/measure-your-server.md)")

from costmodel.hardware.calibration import read_calibration
from costmodel.hardware.profile import read_profile
from costmodel.validation.backends import torch_engine
from costmodel.validation.measurements.files import read_measurement

from .fake_cuda import fake_cuda

pytestmark = pytest.mark.vllm


@pytest.fixture
def gpu_check(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("gpu_check")


def test_on_a_cpu_it_measures_fits_and_compares_with_the_floor(
    gpu_check: Any, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record"
    words = ["--device", "cpu", "--model", str(tiny_model), "--out", str(record), "--minutes", "0.25", "--json"]
    assert gpu_check.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((record / "summary.json").read_text(encoding="utf-8"))
    assert found["schema"] == "costmodel.gpu_check/1"
    assert found["seconds"] < 0.25 * 60 + 5
    assert {"decode", "prefill", "chunk", "mixed"} <= {step["purpose"] for step in found["steps"]}
    assert all(step["held_out"] for step in found["steps"] if step["purpose"] == "mixed")
    assert found["below_floor"] == []
    assert found["calibrations"].keys() == {"fit"}
    [everything] = [each for each in found["errors"] if (each["purpose"], each["way"]) == ("all", "fit")]
    assert everything["median_absolute_error"] < 0.15
    assert len(read_measurement(record / "steps.jsonl").steps) == len(found["steps"])
    profile = read_profile(record / "profile.toml")
    assert read_calibration(record / "calibration.toml").gpu == profile.name
    page = (record / "report.md").read_text(encoding="utf-8")
    assert "| prompts beside decodes |" in page
    assert "no calibration is shipped for this part" in page

    assert gpu_check.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "exists; use --force" in said


def test_runs_that_are_ended_leave_what_they_measured(
    tiny_model: Path, environment: dict[str, str], tmp_path: Path, repo_root: Path
) -> None:
    """Two at once, with more time than they are given."""
    script = str(repo_root / "benchmarks" / "gpu_check.py")
    words = ["--device", "cpu", "--model", str(tiny_model), "--minutes", "1"]
    with ExitStack() as stack:
        runs = {}
        for number in (signal.SIGTERM, signal.SIGKILL):
            folder = tmp_path / number.name
            folder.mkdir()
            runs[number] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, script, *words],
                    env=environment,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(runs[number].kill)
        for number, run in runs.items():
            steps = tmp_path / number.name / "gpu-check" / "steps.jsonl"
            end = time.monotonic() + 150
            while (not steps.exists() or steps.read_bytes().count(b"\n") < 20) and time.monotonic() < end:
                time.sleep(0.1)
            run.send_signal(number)
            printed, said = run.communicate(timeout=60)
            assert len(read_measurement(steps).steps) >= 3
            assert "| rate | with | measured |" in printed  # what was said before is not lost
            if number == signal.SIGTERM:
                assert (run.returncode, said) == (130, "interrupted\n")
                assert "- interrupted" in printed
                assert json.loads((steps.parent / "summary.json").read_text(encoding="utf-8"))["complete"] is False
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_budget_that_is_too_short_is_said_in_one_line(
    gpu_check: Any, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "cpu", "--model", str(tiny_model), "--out", str(tmp_path / "short"), "--minutes", "0.05"]
    assert gpu_check.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --minutes 0.05 is too short")
    assert said.count("\n") == 1


def test_on_a_gpu_it_compares_with_the_datasheet_and_the_shipped_calibration(
    gpu_check: Any,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The way through, on a pretended H200: times are a CPU's and mean nothing."""
    from costmodel.validation.backends import torch_probe

    monkeypatch.setattr(torch_probe, "SIZES", {"cuda": (64,)})
    monkeypatch.setattr(torch_probe, "COPIED", {"cuda": 2**20})
    monkeypatch.setattr(torch_probe, "BETWEEN_DEVICES", 2**20)
    monkeypatch.setattr(torch_engine, "KV_SHARE", 0.02)
    monkeypatch.setattr(gpu_check, "FIT_MOST", 2.0)
    with fake_cuda(monkeypatch):
        words = ["--minutes", "0.2", "--out", str(tmp_path / "h200"), "--model", str(tiny_model)]
        assert gpu_check.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# NVIDIA H200\n\nPart: `h200`, NVIDIA H200 SXM 141GB.")
    assert "| 989 TFLOP/s |" in printed
    assert "4.8 TB/s" in printed
    assert "shipped: median error" in printed
    assert "shipped is h200 vllm: kernels and overheads of a serving engine" in printed
    found = json.loads((tmp_path / "h200" / "summary.json").read_text(encoding="utf-8"))
    assert found["calibrations"]["shipped"] == "h200 vllm"
    assert {"fit", "shipped", "floor"} >= found["steps"][0]["predicted_s"].keys() >= {"shipped", "floor"}


def test_the_model_suits_the_memory(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for free, name in ((139 * 2**30, "Llama-3.1-8B"), (24 * 2**30, "Llama-3.2-3B"), (8 * 2**30, "Llama-3.2-1B")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, free))
        assert gpu_check._fitting_model() == name


def test_steps_faster_than_the_floor_are_flagged(gpu_check: Any) -> None:
    from gpu_check_numbers import StepBeside
    from gpu_check_page import steps_table

    step = StepBeside(
        what="decode 1 × 33",
        purpose="decode",
        held_out=False,
        measured_s=1e-3,
        spread_s=0.0,
        predicted_s={"shipped": 2e-3, "floor": 1.1e-3},
    )
    assert step.below_floor
    assert "**below the floor**" in steps_table([step])
    assert "+100.0 %" in steps_table([step])
