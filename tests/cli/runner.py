"""How the tests call the command line: in this process, or as a user does."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from click.testing import CliRunner, Result

from costmodel.cli.main import main

SCRIPT = Path(sys.executable).with_name("costmodel")
"""The installed command."""


def run(arguments: str | Sequence[str]) -> Result:
    """Run a command in this process; a string is split as a shell does."""
    split = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    return CliRunner().invoke(main, split, prog_name="costmodel")


def printed(arguments: str | Sequence[str]) -> str:
    """Return what a command that succeeds prints; it says nothing on stderr."""
    result = run(arguments)
    assert result.exit_code == 0, result.stderr or result.exception
    assert result.stderr == ""
    return result.stdout


def document(arguments: str | Sequence[str]) -> dict[str, Any]:
    """Return the one JSON document that a command prints: strict JSON, no key twice."""
    found = parse(printed(arguments))
    assert isinstance(found, dict)
    return found


def parse(text: str) -> Any:
    """Parse JSON as the standard has it."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct)


def refusal(arguments: str | Sequence[str]) -> str:
    """Return the one line with which a command refuses its input: exit code 2, nothing on stdout, no traceback."""
    result = run(arguments)
    assert isinstance(result.exception, SystemExit), f"traceback of {result.exception!r}"
    assert result.stdout == ""
    return check_refusal(result.exit_code, result.stderr)


def check_refusal(exit_code: int, stderr: str) -> str:
    """Check exit code and stderr of refused input, and return the message."""
    assert exit_code == 2, stderr
    assert stderr.startswith("error: ")
    assert stderr.endswith("\n")
    assert len(stderr.splitlines()) == 1
    assert "Traceback" not in stderr
    assert stderr.strip().isprintable()
    return stderr.removeprefix("error: ").strip()


def script(arguments: str | Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a process of its own."""
    split = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    return subprocess.run([SCRIPT, *split], capture_output=True, text=True, check=False, timeout=60, **options)


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys))
    return dict(pairs)
