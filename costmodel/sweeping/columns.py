"""Columns of a sweep as arrays: a million rows cost no million objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from costmodel.sweeping.rows import ROWS, Kind, Row, Type, types_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column.

    Attributes:
        type: of its values.
        values: numbers, NaN where there is none; of texts their places in ``texts``, of truths 0 and 1.
        texts: that occur.
    """

    type: Type
    values: Floats
    texts: tuple[str, ...] = ()

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Where there is no value."""
        return np.isnan(self.values)

    def python(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return values as Python has them, None where there is none."""
        part = self.values[start:stop]
        missing = np.isnan(part)
        made: list[Any]
        if self.type == "text":
            made = [*self.texts, None]
            return [made[place] for place in np.where(missing, len(self.texts), part).astype(np.intp).tolist()]
        if self.type == "number":
            made = part.tolist()
        else:
            made = np.where(missing, 0, part).astype(np.int64 if self.type == "whole" else np.bool_).tolist()
        for place in np.flatnonzero(missing).tolist():
            made[place] = None
        return made


def column_of(type_: Type, values: Iterable[Any]) -> Column:
    """Return a column of Python values."""
    given = list(values)
    if type_ == "text":
        places = {text: place for place, text in enumerate(dict.fromkeys(text for text in given if text is not None))}
        given = [None if text is None else places[text] for text in given]
        return Column("text", np.array(given, dtype=np.float64), tuple(places))
    return Column(type_, np.array(given, dtype=np.float64))


def columns_of(kind: Kind, rows: Sequence[Row]) -> dict[str, Column]:
    """Return the columns of rows."""
    return {name: column_of(type_, (getattr(row, name) for row in rows)) for name, type_ in types_of(kind).items()}


def joined(type_: Type, pieces: Sequence[Column]) -> Column:
    """Return one column of several."""
    if len(pieces) == 1:
        return pieces[0]
    if type_ != "text":
        return Column(type_, np.concatenate([piece.values for piece in pieces]) if pieces else np.empty(0))
    texts = tuple(dict.fromkeys(text for piece in pieces for text in piece.texts))
    places = {text: place for place, text in enumerate(texts)}
    moved = []
    for piece in pieces:
        known = np.array([places[text] for text in piece.texts] + [np.nan])
        moved.append(known[np.where(piece.missing, len(piece.texts), piece.values).astype(np.intp)])
    return Column("text", np.concatenate(moved) if moved else np.empty(0), texts)


class Rows(Sequence[Row]):
    """The rows of columns; each is made when it is asked for."""

    def __init__(self, kind: Kind, columns: Mapping[str, Column]) -> None:
        self._kind, self._columns = kind, columns
        self._count = len(next(iter(columns.values())).values)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return next(self._made(place, place + 1))

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, self._count, 4096):
            yield from self._made(start, start + 4096)

    def _made(self, start: int, stop: int) -> Iterator[Row]:
        names, make = list(self._columns), ROWS[self._kind]
        for values in zip(*(column.python(start, stop) for column in self._columns.values()), strict=True):
            yield make(**dict(zip(names, values, strict=True)))
