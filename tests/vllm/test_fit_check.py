"""Measure → fit → check on the real engine: a fit to whole prompts and to decodes predicts steps with both, and other lengths.

One thread computes everything, so times are CPU time of the process, and each is the median of its repeats; what is judged are medians of
errors, as single kinds of steps are off by more.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from costmodel.validation.measurements.files import read_measurement
from tests.cli.runner import document, run
from tests.vllm.conftest import Followed

pytestmark = pytest.mark.vllm

LIMIT = 0.10
"""Of the median error."""


@pytest.fixture(scope="module")
def apart(followed: Followed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the measurement, in which chunks after a context are held out like mixed steps, and a fit to what is left."""
    folder = tmp_path_factory.mktemp("apart")
    lines = []
    for line in (followed.folder / "mine.jsonl").read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        lines.append(json.dumps(content | {"held_out": True} if content.get("purpose") == "chunk" else content) + "\n")
    (folder / "steps.jsonl").write_text("".join(lines), encoding="utf-8")
    fit = ["fit", folder / "steps.jsonl", "--gpu", followed.folder / "cpu.toml", "-o", folder / "fit.toml"]
    done = run(list(map(str, fit)))
    assert done.exit_code == 0, done.output
    return folder


def checking(followed: Followed, measured: Path, calibration: Path, *more: str) -> list[str]:
    fitted = [str(measured), "--gpu", str(followed.folder / "cpu.toml"), "--calibration", str(calibration)]
    return ["check", *fitted, "--held-out", *more]


def median_errors(check: dict[str, Any]) -> dict[str, float]:
    """Return the median error of mixed steps, of decodes and whole prompts of other lengths, and of chunks after a context."""
    groups: dict[str, list[float]] = {"mixed": [], "lengths": [], "chunks": []}
    for row in check["rows"]:
        assert row["held_out"]
        kind = "mixed" if row["kind"] == "mixed" else "chunks" if " after " in row["what"] else "lengths"
        groups[kind].append(abs(row["error"]))
    assert min(len(groups["mixed"]), len(groups["lengths"])) >= 3, groups  # a busy machine has time for few
    found = {name: statistics.median(errors) for name, errors in groups.items() if errors}
    print(*(f"{name}: {found[name]:.1%} of {len(groups[name])}" for name in found), sep=", ")
    return found


def test_only_whole_prompts_and_decodes_are_fitted(apart: Path) -> None:
    fitted = [step for step in read_measurement(apart / "steps.jsonl").steps if not step.held_out]
    assert {step.purpose for step in fitted} == {"decode", "prefill"}
    assert all(not step.chunks or (len(step.chunks), step.chunks[0][1], step.decodes) == (1, 0, ()) for step in fitted)
    assert len(fitted) >= 15


def test_mixed_steps_and_other_lengths_are_predicted(followed: Followed, apart: Path) -> None:
    errors = median_errors(document(checking(followed, apart / "steps.jsonl", apart / "fit.toml", "--json")))
    assert errors["mixed"] <= LIMIT, errors
    assert errors["lengths"] <= LIMIT, errors


def test_so_they_are_by_the_fit_of_the_page(followed: Followed) -> None:
    """That one has seen chunks on a context as well; never mixed steps."""
    steps = read_measurement(followed.folder / "mine.jsonl").steps
    assert all(step.held_out for step in steps if step.purpose == "mixed")
    folder = followed.folder
    errors = median_errors(document(checking(followed, folder / "mine.jsonl", folder / "mine.toml", "--json")))
    assert errors["mixed"] <= LIMIT, errors
    assert errors["lengths"] <= LIMIT, errors


def test_datasheet_rates_alone_would_not_do(followed: Followed) -> None:
    """The limit means something: without the fit steps are predicted too short by far more."""
    arguments = checking(followed, followed.folder / "mine.jsonl", Path("none"), "--json")
    assert median_errors(document(arguments))["mixed"] > 2 * LIMIT


def test_the_gate_opens_and_closes(followed: Followed, apart: Path) -> None:
    open_, shut, single = (
        run(checking(followed, apart / "steps.jsonl", apart / "fit.toml", *limit.split()))
        for limit in ("--max-median-error 10%", "--max-median-error 0.01%", "--max-error 0.01%")
    )
    assert open_.exit_code == 0, open_.output
    assert shut.exit_code == 1
    assert "the median error is" in shut.stderr
    assert single.exit_code == 1
    assert "are off by more than" in single.stderr
