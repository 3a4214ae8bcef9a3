"""Random loads: the answers of `plan chunk`, `batch` and `replicas` hold in the simulator, and the next ones do not."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def planning(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("planning")


@pytest.mark.parametrize(("question", "count"), [("chunk", 50), ("batch", 50), ("replicas", 8)])
def test_random_loads(planning: ModuleType, question: str, count: int) -> None:
    trials = list(planning.QUESTIONS[question](count, 0))
    assert len(trials) == count
    assert [trial for trial in trials if not trial.good] == []


def test_the_program_counts(planning: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert planning.main(["--count", "2", "--seed", "5", "chunk"]) == 0
    assert "plan chunk: 2 of 2" in capsys.readouterr().out
