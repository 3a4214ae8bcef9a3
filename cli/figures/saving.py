"""Saving a figure: refused before any work where it cannot be done, and never leaving half a file."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg", ".pdf")
"""What a figure can be saved as."""

PNG_DOTS_PER_INCH: Final = 200


def check_target(path: Path, force: bool) -> None:
    """Refuse a file that the figure cannot or must not be saved to; called before anything is computed.

    Args:
        path: file to write; its suffix chooses the format.
        force: whether a file of that name may be replaced.

    Raises:
        InputError: unknown suffix, missing folder, a folder or another special file of that name, a file without ``force``, or
            no permission to write.
    """
    if path.suffix.lower() not in SUFFIXES:
        what = f"unknown suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise InputError(
            f"cannot save a figure as {path.name!r}: {what}; use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    target = _resolve(path)
    if not target.parent.is_dir():
        raise InputError(f"cannot save {path}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise InputError(f"cannot save {path}: it is a folder")
    if target.exists():
        if not target.is_file():
            raise InputError(f"cannot save {path}: it is not a regular file")
        if not force:
            raise InputError(f"{path} exists; use --force to replace it")
        if not os.access(target, os.W_OK):
            raise InputError(f"cannot replace {path}: no permission to write it")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot save {path}: no permission to write in {target.parent}")


def save_figure(figure: Figure, path: Path, force: bool) -> None:
    """Save a figure as PNG (200 dpi), SVG or PDF, by suffix. The same figure gives the same bytes.

    It is written to a temporary file in the same folder, which then takes the name: a reader never sees half a figure.

    Args:
        figure: what to save.
        path: file to write.
        force: whether a file of that name may be replaced.

    Raises:
        InputError: as in :func:`check_target`, or the disk refuses.
    """
    check_target(path, force)
    target = _resolve(path)
    temporary = target.parent / f".costmodel-{secrets.token_hex(6)}.tmp"
    try:
        _write(figure, temporary, path.suffix.lower().removeprefix("."))
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot save {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _resolve(path: Path) -> Path:
    """Return the file behind ``path``, so that a symbolic link keeps pointing where it points."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot save {path}: {error}") from None


def _write(figure: Figure, path: Path, suffix: str) -> None:
    from costmodel.cli.figures.style import creator, styled

    dates: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    author = "Software" if suffix == "png" else "Creator"
    metadata = {"Title": str(figure.get_label()), author: creator(), **dates[suffix]}
    with styled(), path.open("xb") as stream:
        figure.savefig(stream, format=suffix, dpi=PNG_DOTS_PER_INCH, metadata=metadata)
