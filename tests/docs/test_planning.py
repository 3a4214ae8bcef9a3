"""docs/planning.md and docs/json.md say what `costmodel plan` does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.cli.plan_command import COMMANDS
from costmodel.planning import documents
from costmodel.prices import read_prices
from tests.cli.runner import run

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{index / 10},800,20\n" for index in range(40))
INVERSE = [name for name in COMMANDS if name != "memory"]


def page(repo_root: Path, name: str = "planning.md") -> str:
    return (repo_root / "docs" / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_runs(repo_root: Path, own_folder: Path) -> None:
    (own_folder / "TRACE.csv").write_text(TRACE, encoding="utf-8")
    lines = [line for block in blocks(page(repo_root), "bash") for line in block.splitlines()]
    for line in lines:
        result = run(shlex.split(line, comments=True)[1:])
        expected = (0, 1) if " memory " in line else (0,)
        assert result.exit_code in expected, f"{line}: {result.stderr}{result.stdout[:600]}"
        assert result.stdout
    for name in INVERSE:
        assert any(line.startswith(f"costmodel plan {name} ") for line in lines), name


def test_the_python_of_the_page_runs(repo_root: Path) -> None:
    for code in blocks(page(repo_root), "python"):
        space: dict[str, Any] = {"costmodel": costmodel}
        exec(code, space)


def test_the_table_of_prices_of_the_page_can_be_read(repo_root: Path, tmp_path: Path) -> None:
    [text] = blocks(page(repo_root), "toml")
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    assert read_prices(path).currency == "EUR"


@pytest.mark.parametrize(
    "name",
    [
        *("ChunkPlan", "SizePlan", "GpuPlan", "FleetPlan", "Advice", "Slo", "Nearest", "Bound", "Checked", "ChunkPoint"),
        *("GpuOption", "ClosedForm", "FleetRun"),
    ],
)  # fmt: skip
def test_every_key_is_documented(repo_root: Path, name: str) -> None:
    text = page(repo_root, "json.md")
    part = text[text.index("of the inverse questions") : text.index("## `costmodel.simulation/1`")]
    for key in getattr(documents, name).model_fields:
        assert key == "schema_" or f"`{key}`" in part, key
