"""Scripts that need an engine in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 300
"""Seconds after which one hangs."""


def run_script(name: str, environment: dict[str, str], *arguments: object) -> None:
    """Run one of these tests' modules as a program."""
    done = subprocess.run(
        [sys.executable, "-m", name, *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
