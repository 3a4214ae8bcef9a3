"""The document of a check: one row for everything that was both predicted and measured, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from costmodel.hardware.profile import Frozen

Kind = Literal["decode", "prefill", "mixed", "spike", "itl", "ttft", "tpot"]


class Row(Frozen):
    """One thing that was predicted and measured.

    Attributes:
        what: in words.
        kind: of what sort.
        predicted_s, measured_s: [s].
        error: predicted/measured − 1.
        inside_interval: whether the measurement is within the interval of the prediction; None where there is none, or the
            interval was made of this measurement.
        interval_s: that interval.
        held_out: the measurement was set apart for checking, and no fit to this file has seen it; None where files know no such thing.
        within_limit: whether the error is allowed; None without a limit.
        file: where it is from.
    """

    what: str
    kind: Kind
    predicted_s: float
    measured_s: float
    error: float
    inside_interval: bool | None = None
    interval_s: tuple[float, float] | None = None
    held_out: bool | None = None
    within_limit: bool | None = None
    file: str = ""


class Summary(Frozen):
    """What rows say together.

    Attributes:
        count: rows.
        median_absolute_error, mean_absolute_error: of predicted/measured − 1.
        bias: median of predicted/measured − 1.
        coverage: share of the rows inside their interval, of those of which that is told; None where it is of none.
    """

    count: int
    median_absolute_error: float
    mean_absolute_error: float
    bias: float
    coverage: float | None = None


class CheckedFile(Frozen):
    """A file that was checked.

    Attributes:
        file: its name; a further run of the same name has a number behind it.
        form: what it is.
        model, gpu, engine: what was predicted.
        rung: step times are those of this rung.
        calibration: in use; None for none.
        notes: what has to be said.
    """

    file: str
    form: str
    model: str | None
    gpu: str | None
    engine: str | None
    rung: str
    calibration: str | None
    notes: tuple[str, ...] = ()


class Check(Frozen):
    """``costmodel.check/1``.

    Attributes:
        files: that were checked.
        rows: of all of them.
        summary: of all rows.
        kinds: of the rows of each kind.
        max_error, max_median_error: limits; None for none.
        failed: rows that are off by more than ``max_error``.
        passed: whether every limit is kept; None without one.
        interrupted: it was stopped before all files were checked.
    """

    schema_: Literal["costmodel.check/1"] = Field(default="costmodel.check/1", alias="schema")
    files: tuple[CheckedFile, ...]
    rows: tuple[Row, ...]
    summary: Summary
    kinds: dict[str, Summary]
    max_error: float | None = None
    max_median_error: float | None = None
    failed: int = 0
    passed: bool | None = None
    interrupted: bool = False


def make_row(
    what: str,
    kind: Kind,
    predicted: float,
    measured: float,
    interval: tuple[float, float] | None = None,
    held_out: bool | None = None,
) -> Row:
    """Return the row of a prediction and a measurement [s]."""
    inside = None if interval is None else interval[0] <= measured <= interval[1]
    return Row(
        what=what,
        kind=kind,
        predicted_s=predicted,
        measured_s=measured,
        error=predicted / measured - 1,
        inside_interval=inside,
        interval_s=interval,
        held_out=held_out,
    )


def summarise(rows: Sequence[Row]) -> Summary:
    """Return what at least one row says."""
    errors = [row.error for row in rows]
    inside = [row.inside_interval for row in rows if row.inside_interval is not None]
    return Summary(
        count=len(rows),
        median_absolute_error=statistics.median(map(abs, errors)),
        mean_absolute_error=math.fsum(map(abs, errors)) / len(errors),
        bias=statistics.median(errors),
        coverage=sum(inside) / len(inside) if inside else None,
    )


def make_check(
    files: Sequence[tuple[CheckedFile, Sequence[Row]]],
    max_error: float | None = None,
    max_median_error: float | None = None,
    *,
    interrupted: bool = False,
) -> Check:
    """Return the document of files that have at least one row together.

    Args:
        files: with their rows.
        max_error: a row whose absolute error is more has failed; None for no limit.
        max_median_error: the check has failed if the median absolute error of all rows is more.
        interrupted: whether files are missing.
    """
    rows: list[Row] = []
    named: list[CheckedFile] = []
    for file, found in files:
        again = sum(other.file == file.file for other, _ in files[: len(named)])
        named.append(file.model_copy(update={"file": f"{file.file} ({again + 1})"}) if again else file)
        for row in found:
            within = None if max_error is None else abs(row.error) <= max_error
            rows.append(row.model_copy(update={"file": named[-1].file, "within_limit": within}))
    summary = summarise(rows)
    kinds: dict[str, Summary] = {
        kind: summarise([row for row in rows if row.kind == kind]) for kind in dict.fromkeys(row.kind for row in rows)
    }
    failed = sum(row.within_limit is False for row in rows)
    verdicts = [] if max_error is None else [failed == 0]
    if max_median_error is not None:
        verdicts.append(summary.median_absolute_error <= max_median_error)
    return Check(
        files=tuple(named),
        rows=tuple(rows),
        summary=summary,
        kinds=kinds,
        max_error=max_error,
        max_median_error=max_median_error,
        failed=failed,
        passed=all(verdicts) if verdicts else None,
        interrupted=interrupted,
    )
