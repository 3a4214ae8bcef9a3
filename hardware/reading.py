"""Reading the files that people name: whole, and only what is a regular file of a sane size."""

from __future__ import annotations

import stat
from pathlib import Path

from costmodel.hardware.errors import InputError

MOST_BYTES = 2**26
"""Larger files are refused, 64 MiB: no profile, calibration, configuration or table of measurements is so large."""


def read_text(path: Path, what: str, most: int = MOST_BYTES) -> str:
    """Return the text of a file, which is in UTF-8; as :func:`read_bytes`."""
    try:
        return read_bytes(path, what, most).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{what} {shown_path(path)}: cannot be read (it is not text in UTF-8)") from None


def read_bytes(path: Path, what: str, most: int = MOST_BYTES) -> bytes:
    """Return what is in a file.

    Args:
        path: of the file.
        what: kind of file, e.g. ``"calibration"``.
        most: larger ones are refused [B].

    Raises:
        InputError: it is missing, no regular file (a folder, a device, a pipe), or larger than ``most``; the one line names file and
            reason.
    """
    name = f"{what} {shown_path(path)}"
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= most:
            return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:  # also paths that cannot be: too long, or with a NUL
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{name}: cannot be read ({reason})") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{name}: is a directory, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{name}: is not a regular file")
    raise InputError(f"{name}: has {status.st_size:,} bytes; at most {most:,} are read")


def shown_path(path: Path) -> str:
    """Return a path as it is typed, quoted where it holds what cannot be printed, its middle left out where it is very long."""
    text = str(path) if str(path).isprintable() else repr(str(path))
    return text if len(text) <= 200 else f"{text[:90]}...{text[-90:]}"
