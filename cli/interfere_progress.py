"""How far a live experiment is, in one line of a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from costmodel.cli.simulate_running import CLEAR
from costmodel.cli.text import count, plural

if TYPE_CHECKING:
    from costmodel.validation.interference.experiment import Progress


class Line:
    """The last line of a terminal; nothing where stderr is none."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._dirty = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._shows:
            click.echo(CLEAR + text, err=True, nl=False)
            self._dirty = True

    def clear(self) -> None:
        """Take the line away."""
        if self._dirty:
            click.echo(CLEAR, err=True, nl=False)
            self._dirty = False

    def progress(self, progress: Progress) -> None:
        """Show how far the experiment is."""
        if progress.what == "warm-up":
            self.show(f"warm-up: {progress.time:.0f} of {progress.duration:.0f} prompts")
        elif progress.what == "streams":
            self.show(f"{progress.time:.0f} of {progress.duration:.0f} streams have a token")
        else:
            text = (
                f"{progress.what}: {progress.time:,.0f} of {progress.duration:,.0f} s, {count(progress.tokens)} tokens"
            )
            injected = f", {plural(progress.injections, 'prompt')} answered" if progress.what == "injected" else ""
            self.show(text + injected)
