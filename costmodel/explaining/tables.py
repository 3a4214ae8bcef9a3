"""Building the tables of explanations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costmodel.explaining.documents import Cell, Column, Table


def table(
    name: str, title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Cell]], shown: bool = True
) -> Table:
    """Return a table; ``columns`` map keys to their labels, and every row has every key."""
    return Table(
        name=name,
        title=title,
        columns=tuple(Column(key=key, label=label) for key, label in columns.items()),
        rows=tuple({key: row[key] for key in columns} for row in rows),
        shown=shown,
    )


def number(value: Cell) -> float:
    """Return a cell that holds a number."""
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"{value!r} is no number")
