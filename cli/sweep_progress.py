"""The progress of a sweep of simulations: a line on a terminal, with the time that is left."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

from costmodel.cli.simulate_running import CLEAR

EVERY_S = 0.2


class ProgressLine:
    """Called with simulations done and in all; shows them where stderr is a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._first: tuple[float, int] | None = None
        self._last = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shows and self._last:
            click.echo(CLEAR, err=True, nl=False)

    def __call__(self, done: int, total: int) -> None:
        """Show how far the sweep is."""
        now = time.monotonic()
        self._first = self._first or (now, done)
        if self._shows and (now - self._last > EVERY_S or done == total):
            self._last = now
            click.echo(
                CLEAR + progress_text(done, total, now - self._first[0], done - self._first[1]), err=True, nl=False
            )


def progress_text(done: int, total: int, seconds: float, fresh: int) -> str:
    """Return the line: how many are done, and how long the rest takes at the rate of those that were simulated now."""
    text = f"{done:,} of {total:,} simulations"
    if not 0 < done < total or fresh <= 0:
        return text
    left = round(seconds / fresh * (total - done))
    shown = f"{left // 3600} h {left % 3600 // 60} min" if left >= 3600 else f"{left // 60} min {left % 60} s"
    return f"{text}, about {shown if left >= 60 else f'{left} s'} left"
