"""``--out``: the rows of a sweep as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cli.files import write_atomically

if TYPE_CHECKING:
    from costmodel.sweeping.columns import Column
    from costmodel.sweeping.results import Sweep

PART = 50_000
"""Rows that are written at a time."""


def write_sweep(path: Path, found: Sweep, force: bool) -> None:
    """Write all rows, in order.

    Raises:
        InputError: as in :func:`~costmodel.cli.files.write_atomically`.
    """
    content = _parquet(found) if path.suffix.lower() == ".parquet" else _csv(found)
    write_atomically(path, content, force)


def _csv(found: Sweep) -> Iterator[str]:
    """Yield the table, some rows at a time."""
    yield _lines([list(found.columns)])
    for start in range(0, len(found), PART):
        columns = [[_text(value) for value in column.python(start, start + PART)] for column in found.columns.values()]
        yield _lines(zip(*columns, strict=True))


def _lines(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _parquet(found: Sweep) -> bytes:
    import pyarrow.parquet

    table = pyarrow.table({name: _arrow(column) for name, column in found.columns.items()})
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


def _arrow(column: Column) -> Any:
    import numpy as np
    import pyarrow as pa

    missing = column.missing
    filled = np.where(missing, 0, column.values)
    if column.type == "number":
        return pa.array(column.values, pa.float64(), mask=missing)
    if column.type == "text":
        places = pa.array(filled.astype(np.int32), pa.int32(), mask=missing)
        return pa.DictionaryArray.from_arrays(places, pa.array(column.texts, pa.string())).cast(pa.string())
    whole = column.type == "whole"
    return pa.array(filled.astype(np.int64 if whole else np.bool_), pa.int64() if whole else pa.bool_(), mask=missing)
