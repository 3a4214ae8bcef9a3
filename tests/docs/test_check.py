"""docs/check.md and docs/json.md say what `costmodel fit MEASUREMENT` and `costmodel check` do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodel.validation.fitting.measured import candidates, measured_deployment
from costmodel.validation.fitting.step_model import label
from tests.cli.runner import document, run
from tests.docs.test_documents import keys, page
from tests.validation import synthetic


@pytest.fixture
def measured(own_folder: Path) -> Path:
    synthetic.write_profile(own_folder / "machine.toml")
    synthetic.write(synthetic.measure(own_folder / "machine.toml", noise=0.02), own_folder / "steps.jsonl")
    return own_folder


def test_the_page_of_documents_names_every_key_of_both(repo_root: Path, measured: Path) -> None:
    text = page(repo_root, "json.md")
    fitted = run("fit steps.jsonl --gpu machine.toml -o mine.toml")
    assert fitted.exit_code == 0
    for kind, found in {
        "check": document("check steps.jsonl --gpu machine.toml --calibration mine.toml --json"),
        "step_fit": document("fit steps.jsonl --gpu machine.toml --json"),
    }.items():
        section = text.partition(f"## `costmodel.{kind}/1`")[2].partition("\n## ")[0]
        operators = {key for key in keys(found.get("ranges", {})) if "attention" in key or key == "gemm"}
        missing = {key for key in keys(found) if key != "schema" and f"`{key}`" not in section} - operators
        assert not missing, kind


def test_the_page_has_every_parameter_that_is_fitted(repo_root: Path, measured: Path) -> None:
    measurement = synthetic.measure("machine.toml", kinds=[])
    names = [label(each.key) for each in candidates(measured_deployment(measurement, "machine.toml"))]
    assert (
        re.findall(r"^\| `((?:gemm|prefill|decode|overhead)[\w.]+)` \|", page(repo_root, "check.md"), re.MULTILINE)
        == names
    )


def test_every_command_of_the_page_has_the_options_it_shows(repo_root: Path) -> None:
    helps = {name: run(f"{name} --help").stdout for name in ("fit", "check", "predict")}
    [block] = re.findall(r"```bash\n(.*?)```", page(repo_root, "check.md"), re.DOTALL)
    for line in block.splitlines():
        words = line.split("#")[0].split()
        for word in words[2:]:
            if word.startswith("-"):
                assert word in helps[words[1]], line
