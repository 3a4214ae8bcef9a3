"""Calibrations from the layer tables beside a recorded run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.datasets.rtx4090 import FILES
from costmodel.validation.datasets.served_runs import read_run
from costmodel.validation.fitting.run_tables import calibration_beside
from costmodel.validation.fitting.simulated_run import server_of


@pytest.fixture
def folder(shared_folder: Path, tmp_path: Path) -> Path:
    """A copy of the RTX 4090 run that may be changed."""
    for name in FILES:
        shutil.copyfile(shared_folder / "data" / "rtx4090-llama-3.1-8b" / name, tmp_path / name)
    return tmp_path


def test_the_shipped_calibration_is_taken_where_it_is_from_these_tables(folder: Path) -> None:
    assert calibration_beside(folder, read_run(folder).served) == (None, "")


def test_other_tables_are_fitted(folder: Path) -> None:
    lines = (folder / "dense.csv").read_text(encoding="utf-8").splitlines()
    slower = [f"{name},{tokens},{2 * float(time)}" for name, tokens, time in (line.split(",") for line in lines[1:])]
    (folder / "dense.csv").write_text("\n".join([lines[0], *slower]) + "\n", encoding="utf-8")
    served = read_run(folder).served
    made, note = calibration_beside(folder, served)
    shipped = shipped_calibration("rtx-4090")
    assert made is not None
    assert shipped is not None
    assert note == ""
    assert made.name == "rtx-4090 vllm, layers of Llama-3.1-8B"
    for name, share in (("gemm.bf16", 0.5), ("prefill_attention.bf16", 1.0)):
        ours, theirs = (each.operators[name].number("compute_efficiency") for each in (made, shipped))
        assert ours == pytest.approx(share * theirs, rel=0.02)
    server = server_of(served, made)
    assert server.calibration == made
    assert server.overhead == 0


def test_tables_that_cannot_be_fitted_are_told(folder: Path) -> None:
    lines = (folder / "dense.csv").read_text(encoding="utf-8").splitlines()
    (folder / "dense.csv").write_text("\n".join(line for line in lines if "gate_up" not in line), encoding="utf-8")
    made, note = calibration_beside(folder, read_run(folder).served)
    assert made is None
    assert note.startswith("the layer tables beside the run are not used: ")
    assert "no layer 'gate_up_proj'" in note
    (folder / "dense.csv").unlink()
    assert calibration_beside(folder, read_run(folder).served) == (None, "")


def test_a_share_of_the_layers(folder: Path) -> None:
    """The tables of one of two GPUs have half the rows and columns: read as such, the same times are half as efficient."""
    served = replace(read_run(folder).served, tp=2)
    made, note = calibration_beside(folder, replace(served, gpu="NVIDIA RTX 6000 Ada Generation"))
    assert note == ""
    assert made is not None
    assert made.gpu == "rtx-6000-ada"
    assert made.operators["gemm.bf16"].number("compute_efficiency") < 0.6
