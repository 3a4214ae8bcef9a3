"""What every test of the command line needs: an empty, offline Hugging Face cache and a folder of its own to run in."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

import costmodel
from costmodel.hardware.calibration import Calibration, read_calibration
from tests.cli.samples import CALIBRATION, FILES, FOLDERS, LINKS, PIPES, Case, Made


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; names of models are looked up neither on this machine nor on the Hub."""
    for name in ("HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def calibration_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of an H100 that names every operator."""
    path = tmp_path_factory.mktemp("calibration") / "h100.toml"
    path.write_text(CALIBRATION, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def calibration(calibration_file: Path) -> Calibration:
    """The same, read."""
    return read_calibration(calibration_file)


@pytest.fixture
def mistakes(own_folder: Path) -> None:
    """The files that are wrong."""
    for name, content in FILES.items():
        (own_folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for name in PIPES:
        os.mkfifo(own_folder / name)
    for name in FOLDERS:
        (own_folder / name).mkdir()
    for name, target in LINKS.items():
        (own_folder / name).symlink_to(target)


@pytest.fixture(scope="session")
def made_formula(calibration: costmodel.Calibration) -> Made:
    """Return the formula of a case; each is made once."""

    @cache
    def make(case: Case) -> costmodel.Formula:
        deployment = costmodel.deploy(case.model, "h100", tp=case.tp, ep=case.ep)
        return costmodel.formula(deployment, case.name, case.rung, chunk=case.chunk, calibration=calibration)

    return make
