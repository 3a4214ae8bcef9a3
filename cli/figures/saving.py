"""Saving a figure: refused before any work where it cannot be done, and never leaving half a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.cli.files import check_writable, write_atomically
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
        InputError: unknown suffix, or as in :func:`~costmodel.cli.files.check_writable`.
    """
    if path.suffix.lower() not in SUFFIXES:
        what = f"unknown suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise InputError(
            f"cannot save a figure as {path.name!r}: {what}; use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    check_writable(path, force)


def save_figure(figure: Figure, path: Path, force: bool) -> None:
    """Save a figure as PNG (200 dpi), SVG or PDF, by suffix. The same figure gives the same bytes.

    Args:
        figure: what to save.
        path: file to write.
        force: whether a file of that name may be replaced.

    Raises:
        InputError: as in :func:`check_target`, or the disk refuses.
    """
    check_target(path, force)
    write_atomically(path, _rendered(figure, path.suffix.lower().removeprefix(".")), force)


def _rendered(figure: Figure, suffix: str) -> bytes:
    from costmodel.cli.figures.style import creator, styled

    dates: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    author = "Software" if suffix == "png" else "Creator"
    metadata = {"Title": str(figure.get_label()), author: creator(), **dates[suffix]}
    stream = io.BytesIO()
    with styled():
        figure.savefig(stream, format=suffix, dpi=PNG_DOTS_PER_INCH, metadata=metadata)
    return stream.getvalue()
