"""The notebooks of examples/: every code cell runs, in order, and they are committed without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = ["compare_gpus.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_cells_run_in_order(repo_root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((repo_root / "examples" / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 2
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        exec(compile("".join(cell["source"]), name, "exec"), names)  # a cell of our own
    printed = capsys.readouterr().out
    assert "requests within 40 ms per token" in printed.replace("of the ", "")
    assert len(printed) < 5000


def test_every_notebook_is_tested(repo_root: Path) -> None:
    assert sorted(path.name for path in (repo_root / "examples").glob("*.ipynb")) == NOTEBOOKS
