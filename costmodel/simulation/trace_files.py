"""Lines of a trace file, plain or gzip, with their numbers; and errors that name them."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Generator
from typing import IO

from costmodel.hardware.errors import InputError, nearest

GZIP = b"\x1f\x8b"
MAX_LINE = 1 << 29
"""Longest line [bytes]: the result of a benchmark is one line, of hundreds of megabytes at most; a device or a bomb has no end."""


def misread(path: str, reason: str, place: str = "") -> InputError:
    """Build the error for a trace: the file, the place in it (``line 3``), and what is wrong there."""
    return InputError(f"trace {path}{', ' if place else ''}{place}: {reason}")


def numbered_lines(path: str) -> Generator[tuple[int, str], None, None]:
    """Yield the lines of a file with their numbers from 1; gzip is known by its content.

    Raises:
        InputError: there is no such file, it cannot be read, or a line is not UTF-8 or longer than :data:`MAX_LINE`.
    """
    try:
        with open(path, "rb") as plain:
            zipped = plain.peek(len(GZIP))[: len(GZIP)] == GZIP
            stream: IO[bytes] = gzip.GzipFile(fileobj=plain) if zipped else plain  # type: ignore[assignment]
            with stream:
                for number in itertools.count(1):
                    line = stream.readline(MAX_LINE + 1)
                    if not line:
                        return
                    if len(line) > MAX_LINE:
                        reason = f"longer than {MAX_LINE >> 20:,} MiB; a trace has one request a line"
                        raise misread(path, reason, f"line {number}")
                    yield number, _decoded(path, number, line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise misread(path, f"the gzip data is damaged or cut off ({error}); fetch the file again") from None
    except FileNotFoundError:
        raise misread(path, "no such file" + _instead(path)) from None
    except IsADirectoryError:
        raise misread(path, "is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise misread(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decoded(path: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1} is not UTF-8; save the trace as UTF-8 text, plain or gzip"
        raise misread(path, reason, f"line {number}") from None


def _instead(path: str) -> str:
    """Return the names in the file's folder that look like it, as the end of a sentence."""
    folder, name = os.path.split(path)
    try:
        close = nearest(name, os.listdir(folder or "."))
    except (OSError, ValueError):
        return ""
    return "; did you mean " + " or ".join(os.path.join(folder, other) for other in close) + "?" if close else ""
