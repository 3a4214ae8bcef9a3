"""docs/explain.md is what `costmodel explain` says, and docs/json.md names its keys."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import costmodel
from costmodel.explaining import documents
from tests.cli.runner import run


def page(repo_root: Path, name: str = "explain.md") -> str:
    return (repo_root / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_page_is_up_to_date(repo_root: Path) -> None:
    assert runpy.run_path(str(repo_root / "docs" / "make_explain.py"))["text"]() == page(repo_root)


def test_every_command_of_the_page_runs(own_folder: Path, repo_root: Path) -> None:
    [block] = blocks(page(repo_root), "bash")
    for line in block.splitlines():
        result = run(shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, f"{line}: {result.stderr}"
        assert result.stdout
    assert {path.name for path in own_folder.iterdir()} == {"quadratic.png", "request.png"}


def test_the_python_of_the_page_runs(repo_root: Path) -> None:
    [code] = blocks(page(repo_root), "python")
    exec(code, {"costmodel": costmodel})


def test_every_key_is_documented(repo_root: Path) -> None:
    text = page(repo_root, "json.md")
    part = text[text.index("## `costmodel.explanations/1`") : text.index("## `costmodel.sweep/1`")]
    for model in ("Explanations", "Topic", "Table", "Column", "RequestExplanation", "Stage", "ServerStep"):
        for key in getattr(documents, model).model_fields:
            assert key == "schema_" or f"`{key}`" in part, key
    moved: set[Any] = {key for stage in costmodel.explain_request().stages for key in (*stage.reads, *stage.writes)}
    assert all(f"`{key}`" in part for key in moved)
