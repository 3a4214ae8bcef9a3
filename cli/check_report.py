"""What ``costmodel check`` prints and draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.cli.text import count, milliseconds, percent, plural, table, wrapped
from costmodel.validation.checking.documents import Check, CheckedFile, Row, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {
    "decode": "decodes alone",
    "prefill": "prompts alone",
    "mixed": "prompts beside decodes",
    "spike": "spikes",
    "itl": "gaps between tokens (ITL)",
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token (TPOT)",
    "all": "all",
}
"""Kinds of rows, as people read them."""
MOST_ROWS = 30
"""More rows of a file than this are told by their kinds, and the worst of them one by one."""
WORST = 5


def report(check: Check) -> str:
    """Return the report of a check."""
    parts = []
    for file in check.files:
        rows = [row for row in check.rows if row.file == file.file]
        parts += [_heading(file), *_rows_of(rows, check)]
        parts += ["\n".join(wrapped(f"note: {note}") for note in dict.fromkeys(file.notes))] if file.notes else []
    parts.append(table([_summary(kind, summary) for kind, summary in _summaries(check)], SUMMARY_HEADER))
    return "\n\n".join(parts)


SUMMARY_HEADER = ("predicted against measured", "count", "median error", "mean", "bias", "inside the interval")


def _summaries(check: Check) -> list[tuple[str, Summary]]:
    several = list(check.kinds.items()) if len(check.kinds) > 1 else []
    return [*several, ("all", check.summary)]


def _summary(kind: str, summary: Summary) -> list[str]:
    return [
        WORDS[kind],
        count(summary.count),
        percent(summary.median_absolute_error),
        percent(summary.mean_absolute_error),
        _signed(summary.bias),
        "" if summary.coverage is None else f"{100 * summary.coverage:.0f} %",
    ]


def _heading(file: CheckedFile) -> str:
    rung = f"calibration {file.calibration}" if file.calibration else f"{file.rung} rung"
    return wrapped(f"{file.file}: {file.form}; predicted: {file.model} on {file.gpu}, {rung}")


def _rows_of(rows: Sequence[Row], check: Check) -> list[str]:
    """Return the tables of a file: all rows of a short one, else the worst; and all that failed."""
    header = ["", "predicted ms", "measured ms", "error", "interval ms"]
    if len(rows) <= MOST_ROWS:
        return [table([_cells(row) for row in rows], header)]
    failed = [row for row in rows if row.within_limit is False]
    shown = failed or sorted(rows, key=lambda row: -abs(row.error))[:WORST]
    title = (
        f"Off by more than {percent(check.max_error or 0.0)}"
        if failed
        else f"The {WORST} farthest off of {plural(len(rows), 'prediction')}"
    )
    return [title, table([_cells(row) for row in shown], header)]


def _cells(row: Row) -> list[str]:
    interval = ""
    if row.interval_s is not None:
        low, high = row.interval_s
        interval = f"{milliseconds(low)}–{milliseconds(high)}" + (" ✗" if row.inside_interval is False else "")
    mark = " !" if row.within_limit is False else ""
    return [row.what, milliseconds(row.predicted_s), milliseconds(row.measured_s), _signed(row.error) + mark, interval]


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def draw(check: Check) -> Figure:
    """Return the figure of a check: predicted against measured."""
    from costmodel.cli.figures import draw_agreement
    from costmodel.cli.figures.agreement import Point

    points = [Point(WORDS[row.kind], row.measured_s, row.predicted_s) for row in check.rows]
    median, rows = check.summary.median_absolute_error, plural(len(points), "prediction")
    title = f"Half of {rows} are within {percent(median)} of the measurement, the bias is {_signed(check.summary.bias)}"
    names = dict.fromkeys(
        f"{file.model} on {file.gpu}, {file.calibration or file.rung + ' rung'}" for file in check.files
    )
    foot = " · ".join([", ".join(file.file for file in check.files[:3]), *names])
    if check.max_error is not None:
        foot += f" · band: {percent(check.max_error)}"
    return draw_agreement(points, check.max_error, title, foot)
