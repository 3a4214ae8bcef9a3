"""The page of the real run: its tables, and other folders of the same format."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from costmodel.validation.datasets.rtx4090 import FILES, UPSTREAM

np = pytest.importorskip("numpy")


@pytest.fixture
def real_run(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("real_run")


@pytest.fixture
def recorded(shared_folder: Path) -> Path:
    return shared_folder / "data" / "rtx4090-llama-3.1-8b"


def test_another_folder_is_printed(
    real_run: Any, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without layer tables and ticks, which a folder need not have."""
    for name in ("requests.jsonl", "meta.json"):
        shutil.copy(recorded / name, tmp_path)
    assert real_run.main(["--data", str(tmp_path), "--fit-on", "60"]) == 0
    printed = capsys.readouterr().out
    assert "error, 240 others" in printed
    assert "error, 60 fitted to" in printed
    assert "published" not in printed
    assert "| TTFT p99 |" in printed
    assert "Largest error of those that count" in printed


def test_a_folder_without_a_run_gives_one_line(
    real_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_run.main(["--data", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert real_run.main(["--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_says_where_the_run_is_from(
    real_run: Any, repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = importlib.import_module("real_run_page").SOURCE
    assert (repo_root / "docs" / "real-run.md").read_text(encoding="utf-8").endswith(source)
    for name in (*FILES, "timeseries.csv"):
        assert f"`{name}`" in source
    for path in re.findall(r"(?:profiler|bench)/[^,]+", UPSTREAM):
        assert f"../LLMServingSim/{path}/" in source
    monkeypatch.setenv("COSTMODEL_SHARED", str(tmp_path / "none"))
    assert real_run.main([]) == 2
    assert "docs/real-run.md" in capsys.readouterr().err


def test_the_page_is_what_the_script_writes(real_run: Any, recorded: Path, repo_root: Path, tmp_path: Path) -> None:
    found = real_run.compare(recorded)
    page = (repo_root / "docs" / "real-run.md").read_text(encoding="utf-8")
    table = real_run.latency_table(found, published=True)
    written = [line for line in page.splitlines() if line.startswith(("| TTFT", "| TPOT", "| latency"))]
    again = [line for line in table.splitlines() if line.startswith(("| TTFT", "| TPOT", "| latency"))]
    assert [line.replace("−", "-") for line in written] == again
    importlib.import_module("real_run_figure").draw(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000
