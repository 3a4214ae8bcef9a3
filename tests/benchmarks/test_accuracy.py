"""The accuracy page: its texts and figures, without running its fits."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from costmodel.validation.datasets.end_to_end import PRESETS

np = pytest.importorskip("numpy")


class Loops:
    """What the figures ask of measured closed loops: every third row is predicted 3 times too slow in TTFT."""

    def __init__(self, count: int = 90) -> None:
        self.rows = [SimpleNamespace(engine="vllm", gpu="h200", family="Llama-3.1-8B", concurrency=8)] * count
        self.tpot = np.linspace(0.01, 0.02, count)
        self.ttft = np.linspace(0.1, 0.4, count)

    def __len__(self) -> int:
        return len(self.rows)


@pytest.fixture
def module(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of the benchmarks."""
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module


def test_models_without_a_preset_say_what_stands_for_them(module: Any) -> None:
    accuracy: ModuleType = module("accuracy")
    text = accuracy.stand_ins(["MiniMax-M2.5", "Llama-3.1-8B", "Kimi-K2.5"])
    for family, preset in PRESETS.items():
        assert f"{family} has no preset of its own: {preset} stands for it, whose " in text
    assert "Llama" not in text
    assert accuracy.stand_ins(["Llama-3.1-8B"]) == ""


def test_bars_beyond_the_panel_and_errors_of_half_a_percent_are_told(module: Any, tmp_path: Path) -> None:
    figures: ModuleType = module("accuracy_figures")
    loops = Loops()
    slow = np.where(np.arange(90) % 3 == 0, 3.0, 1.0)
    predicted = SimpleNamespace(tpot=loops.tpot * 1.055, ttft=loops.ttft * slow)
    figures.draw_errors(loops, predicted, tmp_path / "errors.svg")
    figures.draw_scatter(loops, predicted, tmp_path / "scatter.svg")
    assert "▸ +200" in (tmp_path / "errors.svg").read_text(encoding="utf-8")
    assert "TPOT within 5.5 %" in (tmp_path / "scatter.svg").read_text(encoding="utf-8")
