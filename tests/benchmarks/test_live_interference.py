"""The page of the live experiment is what the program makes of the run that is kept, and that run says what the page claims."""

from __future__ import annotations

import importlib
import lzma
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")


@pytest.fixture
def program(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("live_interference")


@pytest.fixture
def found(program: Any) -> Any:
    return program.compare(program.KEPT)


def test_the_page_is_what_the_program_writes(program: Any, found: Any) -> None:
    page = program.PAGE.read_text(encoding="utf-8")
    assert importlib.import_module("live_interference_page").text(found) == page
    for name in program.FIGURES.values():
        assert f"(figures/{name})" in page
        assert (program.PAGE.parent / "figures" / name).stat().st_size > 20_000


def test_the_readme_says_what_was_measured(found: Any, repo_root: Path) -> None:
    readme = " ".join((repo_root / "README.md").read_text(encoding="utf-8").split())
    assert importlib.import_module("live_interference_page").sentences(found) in readme


def test_figures_are_drawn_again(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in program.KEPT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    assert program.main(["--out", str(tmp_path), "--redraw"]) == 0
    assert capsys.readouterr().out.startswith("# The long-prompt experiment, measured and predicted")
    for name in program.FIGURES.values():
        assert (tmp_path / "figures" / name).stat().st_size > 20_000


def test_a_small_budget_makes_lower_and_more_stalls_as_predicted(found: Any) -> None:
    """What the prediction of a spike, its number and the ladders are held to."""
    one, small = found.runs
    assert one.summary.spike_s > 3 * small.summary.spike_s
    assert one.summary.one_step.verdict == "yes"
    plan, budget = small.record.plan, small.record.server.flags["max_num_batched_tokens"]
    chunks = -(-plan.prompt_tokens // (budget - plan.streams))
    assert small.compared.spike.spike.chunks == small.summary.one_step.steps == chunks
    for told in found.runs:
        assert told.summary.one_to_one
        assert len(told.summary.injections) >= 5
        assert all(abs(row.error) < 0.15 for row in told.summary.predicted)
        simulated, injected = told.summary.simulated, told.summary.injected
        assert simulated.gaps == pytest.approx(injected.gaps, rel=0.10)
        assert simulated.itl.p50_s == pytest.approx(injected.itl.p50_s, rel=0.10)
        assert simulated.itl.p99_9_s == pytest.approx(injected.itl.p99_9_s, rel=0.20)
    assert small.summary.simulated.itl.p99_s == pytest.approx(small.summary.injected.itl.p99_s, rel=0.15)


def test_what_is_kept_names_no_folders(program: Any) -> None:
    files = [path for path in program.KEPT.rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
        assert not re.search(r"/(home|root|tmp|Users|work)/", text), path.name
    assert sum(path.stat().st_size for path in files) < 300_000


def test_a_folder_without_a_run_gives_one_line(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--out", str(tmp_path), "--redraw"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
