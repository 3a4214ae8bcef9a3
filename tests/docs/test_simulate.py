"""docs/simulate.md says what `costmodel simulate` does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click

from costmodel.cli.simulate_command import command
from costmodel.engine import VLLM_VERSION
from costmodel.simulation.options import OPTIONS
from costmodel.simulation.settings import DISAGGREGATED, SCHEDULERS
from tests.cli.runner import run

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,1000,50\n0.5,300,20\n"


def page(repo_root: Path) -> str:
    return (repo_root / "docs" / "simulate.md").read_text(encoding="utf-8")


def test_every_command_of_the_page_runs(repo_root: Path, own_folder: Path) -> None:
    (own_folder / "TRACE.csv").write_text(TRACE, encoding="utf-8")
    [block] = re.findall(r"^```bash\n(.*?)^```$", page(repo_root), re.MULTILINE | re.DOTALL)
    lines = block.splitlines()
    assert len(lines) >= 5
    for line in lines:
        result = run(shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, f"{line}: {result.stderr}"
        assert result.stdout
    assert (own_folder / "requests.csv").is_file()
    assert (own_folder / "load.png").is_file()


def test_the_python_of_the_page_runs_and_names_every_keyword(repo_root: Path) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", page(repo_root), re.MULTILINE | re.DOTALL)
    space: dict[str, Any] = {}
    exec(code, space)  # the document's example is what is tested
    assert space["apart"].server.gpus == 3
    assert space["budgets"][512].injected.itl.max_s < space["budgets"]["one-step"].injected.itl.max_s
    assert space["slowest"].ttft_s == space["found"].document.result.ttft.max_s
    assert space["course"][0][1:3] == (1, 0)
    assert not space["load"].warnings
    _, keywords = page(repo_root).split("Keywords of the server")
    assert set(OPTIONS) | {"limits", "pools"} == set(re.findall(r"`(\w+)`", keywords))


def test_the_page_names_options_that_there_are(repo_root: Path) -> None:
    assert isinstance(command, click.Group)
    known = {
        name
        for each in command.commands.values()
        for option in each.params
        for name in (*option.opts, *option.secondary_opts)
    }
    text = page(repo_root)
    named = set(re.findall(r"`(--[a-z0-9-]+)", text))
    assert named - known == set()
    flags = {
        "--max-num-seqs",
        "--kv-tokens",
        "--block-size",
        "--scheduling-policy",
        "--watermark",
        "--async-scheduling",
    }
    assert flags <= named
    assert f"vLLM {VLLM_VERSION}'s V1 scheduler" in text
    for name in (*SCHEDULERS, DISAGGREGATED):
        assert f"`{name}`" in text or f"--scheduler {name}`" in text
