"""What happens while a simulation runs: its progress on a terminal, and Ctrl-C, which ends it with what has been simulated so far."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.text import count, plural

if TYPE_CHECKING:
    from costmodel.simulation.stepping import Progress

CLEAR = "\r\x1b[K"
"""Goes back to the beginning of a line of a terminal, and empties it."""


class Watch:
    """Called now and then by the simulation that it watches; a context manager, as it takes over Ctrl-C.

    The first Ctrl-C ends the simulation between two steps. The second one, or one outside of a simulation, ends the command.
    """

    def __init__(self) -> None:
        self._stop = self._running = False
        self._calls = 0
        self._before: Any = None
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._clear()

    def __call__(self, progress: Progress) -> None:
        """Show how far the simulation is; end it if that was asked for.

        Raises:
            KeyboardInterrupt: to end the simulation.
        """
        self._running = (
            not progress.over
        )  # what comes after the last step, such as percentiles, is ended by Ctrl-C at once
        if self._stop:
            raise KeyboardInterrupt
        self._calls += 1
        if self._shows and self._calls > 1:  # the first call comes before the first step
            inside = count(progress.sent - progress.ended)
            text = f"simulated {progress.time:,.1f} s: {plural(progress.ended, 'request')} done, {inside} in the server"
            click.echo(CLEAR + text, err=True, nl=False)

    def done(self) -> None:
        """Hear that the simulation is over: what is left to do is ended by Ctrl-C at once."""
        self._running = False
        self._clear()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._stop or not self._running:
            raise KeyboardInterrupt  # and no exception that libraries would catch
        self._stop = True

    def _clear(self) -> None:
        if self._shows and self._calls > 1:
            click.echo(CLEAR, err=True, nl=False)
            self._calls = 0
