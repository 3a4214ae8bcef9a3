"""``--requests-file``: one row per request (:class:`~costmodel.simulation.detailing.RequestRow`), as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cli.files import check_writable, write_atomically
from costmodel.hardware.errors import InputError
from costmodel.simulation.detailing import RequestRow, request_row

if TYPE_CHECKING:
    from costmodel.simulation.tally import Served


def check_table(path: Path, force: bool) -> None:
    """Refuse a table that cannot or must not be written, before any work is done.

    Raises:
        InputError: unknown suffix, Parquet without pyarrow, or as in :func:`~costmodel.cli.files.check_writable`.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        what = f"unknown suffix {path.suffix!r}" if suffix else "no suffix"
        raise InputError(f"cannot save a table as {path.name!r}: {what}; use .csv or .parquet")
    if suffix == ".parquet":
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError as error:  # not there, or it does not load
            raise InputError(
                f"cannot save {path}: Parquet needs pyarrow (pip install 'llm-costmodel[parquet]'); .csv needs nothing"
                + ("" if isinstance(error, ModuleNotFoundError) else f" ({error})")
            ) from None
    check_writable(path, force)


def write_table(path: Path, served: Sequence[Served], force: bool) -> None:
    """Write the requests of a run, in the order of their arrival.

    Args:
        path: of the table.
        served: requests.
        force: whether a file of that name may be replaced.

    Raises:
        InputError: as in :func:`~costmodel.cli.files.write_atomically`.
    """
    rows = [request_row(item) for item in served]
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(RequestRow._fields)
        writer.writerows(["" if value is None else _text(value) for value in values] for values in rows)
        write_atomically(path, text.getvalue(), force)
        return
    import pyarrow
    import pyarrow.parquet

    kinds = {"group": pyarrow.string(), "refused": pyarrow.string(), "done": pyarrow.bool_()}
    schema = pyarrow.schema(
        [
            (name, kinds.get(name, pyarrow.float64() if name.endswith("_s") else pyarrow.int64()))
            for name in RequestRow._fields
        ]
    )
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(RequestRow._fields)
    table = pyarrow.table(dict(zip(RequestRow._fields, map(list, columns), strict=True)), schema=schema)
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    write_atomically(path, stream.getvalue(), force)


def _text(value: float | int | str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
