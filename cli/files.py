"""Writing files: never over an existing one unless asked, and never half."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path


def check_writable(path: Path, force: bool, new_folder: bool = False) -> None:
    """Refuse a file that cannot or must not be written, before any work is done.

    Args:
        path: file to write.
        force: whether a file of that name may be replaced.
        new_folder: whether its folder may be one that :func:`write_atomically` is to make.

    Raises:
        InputError: its folder is missing, it is a folder or another special file, it exists and ``force`` is not given, or no
            permission to write.
    """
    try:
        _check(path, _resolve(path), force, new_folder)
    except OSError as error:  # a name that is too long for this file system
        raise InputError(f"cannot save {shown_path(path)}: {error.strerror or error}") from None


def _check(path: Path, target: Path, force: bool, new_folder: bool) -> None:
    folder = target.parent
    if new_folder and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"cannot save {path}: the folder {folder} does not exist")
    if target.is_dir():
        raise InputError(f"cannot save {path}: it is a folder")
    if target.exists():
        if not target.is_file():
            raise InputError(f"cannot save {path}: it is not a regular file")
        if not force:
            raise InputError(f"{path} exists; use --force to replace it")
        if not os.access(target, os.W_OK):
            raise InputError(f"cannot replace {path}: no permission to write it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot save {path}: no permission to write in {folder}")


def write_atomically(path: Path, content: str | bytes | Iterable[str], force: bool) -> None:
    """Write a file whole or not at all: to a temporary file beside it, which then takes the name. Makes its folder if need be.

    Args:
        path: file to write.
        content: of the file, or pieces of it that are written one after another.
        force: whether a file of that name may be replaced, also one that came up since :func:`check_writable` looked.

    Raises:
        InputError: there is such a file and ``force`` is not given, or the disk refuses.
    """
    target = _resolve(path)
    temporary = target.parent / f".costmodel-{secrets.token_hex(6)}.tmp"
    try:
        target.parent.mkdir(exist_ok=True)
        with temporary.open("xb") as stream:
            for piece in [content] if isinstance(content, str | bytes) else content:
                stream.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
        if force:
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        else:
            _take_free_name(temporary, target)
    except FileExistsError:
        raise InputError(f"{path} exists; use --force to replace it") from None
    except OSError as error:
        raise InputError(f"cannot save {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _take_free_name(temporary: Path, target: Path) -> None:
    """Give a file a name that nobody has, or raise ``FileExistsError``: a link does both at once."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: look, then move
        if target.exists():
            raise FileExistsError(target) from None
        os.replace(temporary, target)


def _resolve(path: Path) -> Path:
    """Return the file behind ``path``, so that a symbolic link keeps pointing where it points."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot save {path}: {error}") from None
