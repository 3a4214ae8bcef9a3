"""The benchmark of speed: that its rows come out, with the shipped calibration beside the roofline."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with few steps."""
    if not FOLDER.is_dir():
        pytest.skip("no benchmarks here")
    pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("speed")
    monkeypatch.setattr(module, "STEPS", 100)
    return module


def test_every_time_is_measured_with_and_without_the_calibration(speed: ModuleType) -> None:
    rows = [*speed.warm_rows(1), *speed.array_rows(1)]
    assert all(row.value > 0 for row in rows)
    assert len([row for row in rows if "roofline" in row.what]) == 4
    assert len([row for row in rows if "calibrated" in row.what]) == 3
    assert any(row.what == speed.OUR_STEP for row in rows)  # the peer's ratios are to it
    text = speed.table(rows)
    assert all(row.what in text for row in rows)
