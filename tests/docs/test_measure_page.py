"""docs/measure-your-server.md: few commands, with options that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from costmodel.cli.main import main


def blocks(repo_root: Path) -> dict[str, list[str]]:
    """Return the commands of each way, by its name."""
    text = (repo_root / "docs" / "measure-your-server.md").read_text(encoding="utf-8")
    found = re.findall(r"^<!-- measure: (\w+) -->\n```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {name: block.splitlines() for name, block in found}


def test_both_ways_take_ten_commands_or_fewer(repo_root: Path) -> None:
    ways = blocks(repo_root)
    assert list(ways) == ["cuda", "cpu"]
    for lines in ways.values():
        assert len(lines) <= 10
        asked = [shlex.split(line)[1] for line in lines if line.startswith("costmodel ")]
        assert [name for name in asked if name != "gpus"] == ["measure", "fit", "check", "predict"]


@pytest.mark.parametrize("way", ["cuda", "cpu"])
def test_options_of_measure_and_probe_are_there(repo_root: Path, way: str) -> None:
    for line in blocks(repo_root)[way]:
        words = shlex.split(line)
        if words[:2] != ["costmodel", "measure"] and words[:3] != ["costmodel", "gpus", "probe"]:
            continue
        command: click.Command = main
        for word in words[1:]:
            if isinstance(command, click.Group):
                found = command.get_command(click.Context(command), word)
                assert found is not None
                command = found
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known
