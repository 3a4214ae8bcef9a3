"""The commands of docs/measure-your-server.md on a CPU, as they stand there but for their installation."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.validation.measurements.files import read_measurement

pytestmark = pytest.mark.vllm

COMMANDS = ("gpus", "measure")
"""Commands of the page that are run here."""


def test_the_page_runs_on_a_cpu(repo_root: Path, tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    text = (repo_root / "docs" / "measure-your-server.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^<!-- measure: cpu -->\n```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "tiny").symlink_to(tiny_model)
    ran = []
    for line in block.splitlines():
        words = shlex.split(line)
        if words[0] != "costmodel" or words[1] not in COMMANDS:
            continue
        words = ["0.4" if before == "--minutes" else word for before, word in zip(["", *words], words, strict=False)]
        done = subprocess.run(
            [sys.executable, "-c", "from costmodel.cli.entry import main; main()", *words[1:]],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        ran.append(words[1])
    assert ran == list(COMMANDS)
    found = read_measurement(tmp_path / "mine.jsonl")
    assert {"decode", "prefill", "chunk", "mixed"} <= {step.purpose for step in found.steps}
    assert found.machine.profile == "cpu"
