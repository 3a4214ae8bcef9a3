"""Files of JSON lines that grow while something runs: whatever ends it, every line that is there is whole, or it is the last."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOST_BYTES = 2**30
"""Larger files are not read back, 1 GiB: some ten million tokens of an experiment."""


class Lines:
    """Adds lines to a file; each has left the process when :meth:`add` returns.

    Args:
        path: of the file.
        goes_on: it is there, and lines are added behind its last whole one; else it must be a new one.
        sync: each line is on the disk when :meth:`add` returns, not only with the system.

    Raises:
        FileExistsError: there is a file, and ``goes_on`` is not given.
        InputError: the system refuses, or another process is writing it.
    """

    def __init__(self, path: Path, goes_on: bool = False, sync: bool = False) -> None:
        self.path, self._sync = path, sync
        self._end = 0
        self._refused: str | None = None
        self._file: BinaryIO
        try:
            self._file = path.open("r+b" if goes_on else "xb", buffering=0)
            self._lock()
            if goes_on:
                self._end = path.read_bytes().rfind(b"\n") + 1
                self._file.truncate(self._end)
                self._file.seek(self._end)
        except FileExistsError:
            raise
        except OSError as error:
            raise InputError(f"cannot write {shown_path(path)}: {error.strerror or error}") from None

    def add(self, content: dict[str, Any]) -> None:
        """Add a line.

        Raises:
            InputError: the disk is full or gone, now or in an earlier call: a file that has missed a line gets no further ones.
        """
        if self._refused is not None:
            raise InputError(self._refused)
        line = line_of(content)
        try:
            written = 0
            while written < len(line):  # a disk takes what it has room for
                written += self._file.write(line[written:])
            if self._sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            self._refused = (
                f"cannot write {shown_path(self.path)}: {error.strerror or error}; it has what came before"
                if self._end
                else f"cannot write {shown_path(self.path)}: {error.strerror or error}"
            )
            if not self._end:
                self._abandon()
            raise InputError(self._refused) from None
        self._end += len(line)

    def _lock(self) -> None:
        """Keep other processes from writing the file until it is closed, where the file system knows locks."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InputError(f"{shown_path(self.path)} is being written by another process; wait for its end") from None
        except OSError:  # no locks there
            pass

    def _abandon(self) -> None:
        """Remove a file that has not got its first line."""
        with suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(content: dict[str, Any]) -> bytes:
    """Return the line of a content."""
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
