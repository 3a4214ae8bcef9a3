"""Keeps a server, and ends it when whoever wanted it is gone, however that came about.

    python -m costmodel.validation.backends.keeper FOLDER COMMAND…

The server runs in a session of its own. It is ended when this process's standard input ends, which the system sees to even if the
process at its other end is killed; on SIGTERM, SIGINT and SIGHUP; and what it leaves behind is ended when it ends itself. Should this
process be killed, the system kills the server with it, and the server's own processes with that one (:func:`die_with_parent`). The
server's temporary files are in FOLDER, which is removed; whoever starts this process makes it, and removes it too. Exit code: the
server's, or 0 if it was ended from here.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

PATIENCE: Final = 10.0
"""From asking the server to end until it is killed [s]."""
TICK: Final = 0.1
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def keep(folder: str, command: list[str]) -> int:
    """Run a server until somebody ends it or it ends itself; return the exit code."""
    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # what the server's main process leaves behind becomes a child of this one
    me = os.getpid()
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509  there is one thread
        )
        try:
            while server.poll() is None and not asked and not _input_ended():
                pass
        finally:
            code = server.poll()
            _end(server)
        return (code if code is not None else 0) % 256
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent dies, whose process id this is; at once, if that has happened (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _input_ended() -> bool:
    """Wait a moment for the end of standard input; tell whether it came."""
    with suppress(InterruptedError):
        ready, _, _ = select.select([0], [], [], TICK)
        return bool(ready) and not os.read(0, 4096)
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server's session: ask, wait, kill; and wait until all of it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    while _reap(server) and time.monotonic() < until:
        time.sleep(TICK)
    until = time.monotonic() + PATIENCE
    while _reap(server) and time.monotonic() < until:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, signal.SIGKILL)
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(TICK)


def _reap(server: subprocess.Popen[bytes]) -> bool:
    """Take leave of children that have ended; tell whether any is left."""
    server.poll()
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return this process's children; none where the system does not tell."""
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except (OSError, ValueError):
        return []


def _prctl(option: int, value: int) -> None:
    """Set a property of this process, where there is such a thing (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], sys.argv[2:]))
