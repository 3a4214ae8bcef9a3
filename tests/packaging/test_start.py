"""What is loaded and read before the first number appears."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("numpy", "sympy", "scipy", "matplotlib", "pandas", "huggingface_hub")

SCRIPT = """
import json, os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
{body}
report = {{
    "loaded": sorted({{name.partition(".")[0] for name in sys.modules}}),
    "modules": sorted(name for name in sys.modules if name.startswith("costmodel")),
    "opened": [os.path.realpath(os.fsdecode(path)) for path in opened if isinstance(path, (str, bytes))],
}}
sys.stderr.write(json.dumps(report))
"""

RUN = """
from costmodel.cli.main import main
try:
    main({arguments!r}, prog_name="costmodel")
except SystemExit as end:
    assert end.code == 0, end.code
"""


def observe(body: str) -> tuple[str, dict[str, Any]]:
    """Run ``body`` in a new interpreter and return what it printed, and which modules and files it took."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


def data_files(report: dict[str, Any]) -> list[str]:
    """Return the profiles, calibrations, indexes and model configs that were opened, by name."""
    return sorted(Path(path).name for path in report["opened"] if path.endswith((".toml", ".json")))


DATA_FILES = ["Llama-3.1-8B.json", "h100-sxm-vllm.toml", "h100-sxm.toml", "index.json", "index.toml"]
"""One model, one profile, one calibration, and what finds them."""


def test_import_loads_nothing() -> None:
    _, report = observe("import costmodel")
    assert set(HEAVY) & set(report["loaded"]) == set()
    assert report["modules"] == ["costmodel"]
    assert data_files(report) == []


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_predict_command_loads_little(output: list[str]) -> None:
    printed, report = observe(RUN.format(arguments=["predict", "--prompt", "8000", "--gpu", "h100", *output]))
    assert "H100" in printed
    assert set(HEAVY) & set(report["loaded"]) == set()
    assert data_files(report) == DATA_FILES


def test_python_predict_loads_little() -> None:
    printed, report = observe("import costmodel; print(costmodel.predict(prompt=8000, gpu='h100').headline)")
    assert printed == "calibrated\n"
    assert set(HEAVY) & set(report["loaded"]) == set()
    assert "click" not in report["loaded"]
    assert data_files(report) == DATA_FILES


def test_one_step_as_floats_loads_no_numpy() -> None:
    _, report = observe("import costmodel; costmodel.step_times(prefill_tokens=8000, decodes=32, decode_context=500)")
    assert set(HEAVY) & set(report["loaded"]) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["predict", "--help"],
        ["formula", "--help"],
        ["simulate", "load", "--help"],
        ["check", "--help"],
    ],
)
def test_help_loads_no_library(arguments: list[str]) -> None:
    _, report = observe(RUN.format(arguments=arguments))
    assert set(HEAVY) & set(report["loaded"]) == set()
    assert data_files(report) == []
