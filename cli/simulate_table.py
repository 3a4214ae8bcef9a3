"""``--requests-file``: one row per request, as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cli.files import check_writable, write_atomically
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.simulation.tally import Served

COLUMNS = (
    *(
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "group",
        "priority",
        "scheduled_s",
        "first_token_s",
        "last_token_s",
    ),
    *("ttft_s", "tpot_s", "e2e_s", "queueing_s", "tokens", "done", "preemptions", "cached_tokens", "refused"),
)
"""Columns, in their order. Times are those of the simulation [s]; what did not happen is left empty."""


def check_table(path: Path, force: bool) -> None:
    """Refuse a table that cannot or must not be written, before any work is done.

    Raises:
        InputError: unknown suffix, Parquet without pyarrow, or as in :func:`~costmodel.cli.files.check_writable`.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        what = f"unknown suffix {path.suffix!r}" if suffix else "no suffix"
        raise InputError(f"cannot save a table as {path.name!r}: {what}; use .csv or .parquet")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(
            f"cannot save {path}: Parquet needs pyarrow (pip install 'llm-costmodel[parquet]'); .csv needs nothing"
        )
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
    rows = [row(item) for item in served]
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(["" if value is None else _text(value) for value in values] for values in rows)
        write_atomically(path, text.getvalue(), force)
        return
    import pyarrow
    import pyarrow.parquet

    kinds = {"group": pyarrow.string(), "refused": pyarrow.string(), "done": pyarrow.bool_()}
    schema = pyarrow.schema(
        [(name, kinds.get(name, pyarrow.float64() if name.endswith("_s") else pyarrow.int64())) for name in COLUMNS]
    )
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    table = pyarrow.table(dict(zip(COLUMNS, map(list, columns), strict=True)), schema=schema)
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    write_atomically(path, stream.getvalue(), force)


def row(item: Served) -> tuple[float | int | str | bool | None, ...]:
    """Return one request in the order of :data:`COLUMNS`; None for what did not happen. Latencies count from when it was sent.

    A standing stream is there from the beginning and has no end: it is never scheduled, has no first token and no length.
    """
    request = item.request
    if request.standing:
        return (
            request.arrival,
            request.prompt,
            None,
            request.group,
            request.priority,
            None,
            None,
            item.last if item.tokens else None,
            None,
            (item.last - request.arrival) / item.tokens if item.tokens else None,
            None,
            None,
            item.tokens,
            False,
            item.preemptions,
            item.cached,
            None,
        )
    tpot = (item.last - item.first) / (item.tokens - 1) if item.done and item.tokens > 1 else math.nan
    end = item.last if item.done else math.nan
    times = [item.scheduled, item.first, item.last]
    latencies = [item.first - request.arrival, tpot, end - request.arrival, item.scheduled - request.arrival]
    return (
        request.arrival,
        request.prompt,
        request.output,
        request.group,
        request.priority,
        *(None if math.isnan(value) else value for value in (*times, *latencies)),
        item.tokens,
        item.done,
        item.preemptions,
        item.cached,
        item.refused or None,
    )


def _text(value: float | int | str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
