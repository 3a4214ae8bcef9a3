"""The result of a sweep."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.hardware.errors import InputError
from costmodel.sweeping.columns import Column, Rows
from costmodel.sweeping.rows import Kind

if TYPE_CHECKING:
    import pandas

MOST_IN_DOCUMENT = 200_000
"""Rows of a JSON document; more belong into a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """The answer of :func:`costmodel.sweep`: one row per configuration, models first, the last axis varying fastest.

    Attributes:
        kind: ``steps``, or what was simulated: ``load`` or ``interference``.
        columns: by name (:class:`~costmodel.sweeping.rows.StepRow`, :class:`~costmodel.sweeping.rows.SimulatedRow`), as arrays.
        interrupted: Ctrl-C ended it; there are the rows that were done by then.
        notes: what was chosen for the user, and what holds for all rows.
        currency: of the prices, where the table says.
    """

    kind: Kind
    columns: Mapping[str, Column]
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    currency: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> Rows:
        """The rows as frozen :class:`~costmodel.sweeping.rows.StepRow` or :class:`~costmodel.sweeping.rows.SimulatedRow`."""
        return Rows(self.kind, self.columns)

    @property
    def answered(self) -> np.ndarray:
        """Which rows have an answer, or a part of one."""
        name = "decode_step_s" if self.kind == "steps" else "output_tokens_per_s"
        return ~self.columns[name].missing

    def numbers(self, name: str) -> np.ndarray:
        """Return a column of numbers as float64, NaN where there is none.

        Raises:
            InputError: no such column, or one of texts.
        """
        column = self.columns.get(name)
        if column is None or column.type == "text":
            known = ", ".join(each for each, item in self.columns.items() if item.type != "text")
            raise InputError(f"no column {name!r} of numbers; there are {known}")
        return column.values

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a pandas DataFrame: texts as categories, whole numbers and truths of the types that may be missing.

        Raises:
            InputError: pandas is not installed.
        """
        if importlib.util.find_spec("pandas") is None:
            raise InputError("to_pandas needs pandas (pip install pandas); `rows` and `columns` need nothing")
        import pandas as pd

        made: dict[str, Any] = {}
        for name, column in self.columns.items():
            if column.type == "text":
                codes = np.where(column.missing, -1, column.values).astype(np.int64)
                made[name] = pd.Categorical.from_codes(codes, categories=list(column.texts))
            elif column.type == "number":
                made[name] = column.values
            else:
                filled = np.where(column.missing, 0, column.values)
                whole = column.type == "whole"
                array = pd.arrays.IntegerArray if whole else pd.arrays.BooleanArray
                made[name] = array(filled.astype(np.int64 if whole else np.bool_), column.missing)
        return pd.DataFrame(made)

    def document(self) -> dict[str, Any]:
        """Return the document ``costmodel.sweep/1``.

        Raises:
            InputError: more than :data:`MOST_IN_DOCUMENT` rows.
        """
        check_document(len(self))
        values = {name: column.python() for name, column in self.columns.items()}
        rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
        return {
            "schema": "costmodel.sweep/1",
            "kind": self.kind,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
            "currency": self.currency,
            "rows": rows,
        }


def check_document(rows: int) -> None:
    """Raise :class:`InputError` for more than :data:`MOST_IN_DOCUMENT` rows."""
    if rows > MOST_IN_DOCUMENT:
        raise InputError(
            f"{rows:,} rows are more than a JSON document should have ({MOST_IN_DOCUMENT:,}); write a table (--out)"
        )
