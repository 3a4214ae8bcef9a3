"""The journal of a sweep of simulations: every result is in a file at once, so that whatever ends the sweep, it can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import costmodel
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import read_text, shown_path
from costmodel.lines import MOST_BYTES, Lines, line_of
from costmodel.sweeping.configurations import Configuration, key_of
from costmodel.sweeping.rows import may_be

SCHEMA = "costmodel.sweep_journal/1"
HEADER = {"schema": SCHEMA, "costmodel": costmodel.__version__}


class Journal:
    """Rows by configuration, in a file of JSON lines; one of our own that has got none is removed in the end, as if it had not been.

    Args:
        path: of the file.
        resume: go on with what is there, if there is anything.

    Raises:
        InputError: the file is there and is not to be gone on with, is no journal, or of another release, or another sweep is writing it.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        there = resume and path.exists() and self._read()
        self._empty = not there
        try:
            self._lines = Lines(path, goes_on=bool(there))
        except FileExistsError:
            if not path.is_file():
                what = "a folder" if path.is_dir() else "not a regular file"
                raise InputError(f"journal {shown_path(path)} is {what}; name a file that is new") from None
            raise InputError(
                f"journal {shown_path(path)} is there from an earlier sweep; --resume goes on with it, or remove it"
            ) from None
        if not there:
            self._lines.add(HEADER)

    def add(self, configuration: Configuration, row: dict[str, Any]) -> None:
        """Add a result."""
        self._lines.add({"configuration": configuration, "row": row})
        self._empty = False

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
        if self._empty:
            self.path.unlink(missing_ok=True)

    def _read(self) -> bool:
        """Read the rows that are there; tell whether the file has anything."""
        where = f"journal {shown_path(self.path)}"
        text = read_text(self.path, "journal", MOST_BYTES)
        whole, ended, _ = text.rpartition("\n")
        if not ended and line_of(HEADER).decode().startswith(text):  # it got no further
            self.path.unlink()
            return False
        try:
            header, *lines = [json.loads(line) for line in whole.split("\n")]
            known = header.get("schema") == SCHEMA
            known = known and all(may_be(line["configuration"]["kind"], line["row"]) for line in lines)
            self.rows = {key_of(line["configuration"]): dict(line["row"]) for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            known = False
        if not known:
            raise InputError(f"{where}: is not a journal of a sweep")
        if header.get("costmodel") != costmodel.__version__:
            raise InputError(
                f"{where}: is by costmodel {header.get('costmodel')}, this is {costmodel.__version__}, which may give other results"
            )
        return True
