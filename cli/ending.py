"""Being asked to end: SIGTERM and the end of the terminal (SIGHUP) end a command as Ctrl-C does, so that what it has is kept and tidied."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = ("SIGTERM", "SIGHUP")
"""By name, as not every system has all."""


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt where a signal asks the process to end, while the block runs; signals that are ignored stay so (nohup)."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {}
    try:
        for name in SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    except ValueError:  # not the main thread
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
