"""Writing files: never over an existing one unless asked, and never half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from costmodel.hardware.errors import InputError


def check_writable(path: Path, force: bool, new_folder: bool = False) -> None:
    """Refuse a file that cannot or must not be written, before any work is done.

    Args:
        path: file to write.
        force: whether a file of that name may be replaced.
        new_folder: whether its folder may be one that :func:`write_atomically` is to make.

    Raises:
        InputError: it is a directory, it exists and ``force`` is not given, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file")
    if path.exists() and not force:
        raise InputError(f"{path} exists; use --force to overwrite it")
    folder = path.parent
    if new_folder and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: folder {folder} is not writable")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, then renamed. Makes its folder, but not that one's."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
