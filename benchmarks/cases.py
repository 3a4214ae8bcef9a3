"""Measured step times from public sources against predictions: one line per measured number.

    python benchmarks/cases.py                                # the file in COSTMODEL_SHARED, or ../shared
    python benchmarks/cases.py --cases FILE --calibrations FOLDER
    python benchmarks/cases.py --json

A case is turned into questions by rules that know kinds, units and the words of its keys, never its name (``case_questions.py``); a
number that no rule understands is listed with the reason. Calibrations: the engine's of that part, else vLLM's, else those of the part's
nearest relative (``assumed``), else the roofline.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from case_answers import FAR, Find, answer, finder, reason
from case_names import Refused
from case_questions import KINDS, ask
from case_reading import readings

GOAL_MEDIAN, GOAL_NEAR = 0.15, 0.70
"""Aims: median error, and share of numbers within 25 %."""


@dataclass(frozen=True)
class Row:
    """One measured number and what became of it."""

    case: str
    kind: str
    what: str
    predicted_s: float | None = None
    measured_s: float | None = None
    rung: str = ""
    calibration: str | None = None
    reason: str = ""
    """Why it is more than 25 % off, or why it is not predicted."""

    @property
    def error(self) -> float | None:
        """predicted/measured − 1; None if it is not predicted."""
        if self.predicted_s is None or self.measured_s is None:
            return None
        return self.predicted_s / self.measured_s - 1


def case_rows(cases: Iterable[Mapping[str, Any]], find: Find) -> list[Row]:
    """Return one row for every measured number of the cases that hold step times.

    Args:
        cases: content of the YAML file.
        find: where calibrations come from, e.g. ``finder(None)`` for those of the package.
    """
    rows = []
    for case in cases:
        if case["kind"] not in KINDS:
            continue
        for reading in readings(case):
            try:
                question = ask(case, reading)
            except Refused as refusal:
                rows.append(Row(case["id"], case["kind"], reading.label, reason=str(refusal)))
                continue
            found = answer(question, find)
            rows.append(
                Row(
                    case["id"],
                    case["kind"],
                    question.what,
                    found.seconds,
                    question.measured_s,
                    found.rung,
                    found.calibration,
                    reason(case, question, found),
                )
            )
    return rows


def summary(rows: list[Row]) -> dict[str, Any]:
    """Return counts and errors: of all numbers, and of cases (each by the median of its numbers)."""
    errors = [row.error for row in rows if row.error is not None]
    by_case: dict[str, list[float]] = {}
    for row in rows:
        if row.error is not None:
            by_case.setdefault(row.case, []).append(abs(row.error))
    medians = [statistics.median(each) for each in by_case.values()]
    return {
        "numbers": len(rows),
        "predicted": len(errors),
        "refused": len(rows) - len(errors),
        **_shares("", [abs(error) for error in errors]),
        "bias": statistics.median(errors) if errors else None,
        "cases_predicted": len(by_case),
        **_shares("case_", medians),
        "rungs": dict(Counter(row.rung for row in rows if row.rung)),
    }


def _shares(prefix: str, errors: list[float]) -> dict[str, float | None]:
    if not errors:
        return {f"{prefix}median_absolute_error": None, f"{prefix}within_25_percent": None}
    near = sum(error <= FAR for error in errors) / len(errors)
    return {f"{prefix}median_absolute_error": statistics.median(errors), f"{prefix}within_25_percent": near}


def table(rows: list[Row]) -> str:
    """Return the rows as text: predicted ones, then what was refused."""
    lines = [f"{'case':24}  {'what':36}  {'predicted':>10}  {'measured':>10}  {'error':>7}  rung: calibration; reason"]
    for row in rows:
        if row.error is None or row.predicted_s is None or row.measured_s is None:
            continue
        times = f"{_time(row.predicted_s):>10}  {_time(row.measured_s):>10}  {row.error:>+7.0%}"
        lines.append(f"{row.case:24}  {row.what:36}  {times}  {row.rung}: {row.calibration or '–'}" + f"; {row.reason}" * bool(row.reason))
    lines += ["", "Not predicted:"]
    lines += [f"{row.case:24}  {row.what:36}  {row.reason}" for row in rows if row.error is None]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def summary_text(found: Mapping[str, Any]) -> str:
    """Return the summary for people."""
    if not found["predicted"]:
        return f"{found['numbers']} numbers, none predicted"
    rungs = ", ".join(f"{name} {count}" for name, count in found["rungs"].items())
    return "\n".join(
        (
            f"{found['predicted']} of {found['numbers']} numbers predicted ({rungs}), {found['refused']} refused with a reason",
            f"numbers: median error {found['median_absolute_error']:.1%} (aim {GOAL_MEDIAN:.0%}), "
            f"{found['within_25_percent']:.0%} within 25 % (aim {GOAL_NEAR:.0%}), bias {found['bias']:+.1%}",
            f"cases, each by its median ({found['cases_predicted']}): median error {found['case_median_absolute_error']:.1%}, "
            f"{found['case_within_25_percent']:.0%} within 25 %",
        )
    )


def default_file() -> Path:
    """Return the file of cases in ``COSTMODEL_SHARED``, or in ``shared`` beside the checkout."""
    folder = os.environ.get("COSTMODEL_SHARED")
    return (Path(folder) if folder else Path(__file__).parents[2] / "shared") / "cases" / "measured.yaml"


def main() -> None:
    """Print the table and the summary, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=default_file(), help="YAML file of measured cases")
    parser.add_argument("--calibrations", type=Path, help="folder of <gpu>-<engine>.toml, before the shipped ones")
    parser.add_argument("--json", action="store_true", help="print one document: costmodel.cases/1")
    chosen = parser.parse_args()
    rows = case_rows(yaml.safe_load(chosen.cases.read_text(encoding="utf-8")), finder(chosen.calibrations))
    found = summary(rows)
    if chosen.json:
        listed = [{**asdict(row), "error": row.error} for row in rows]
        print(json.dumps({"schema": "costmodel.cases/1", "rows": listed, "summary": found}, indent=2))
        return
    print(table(rows))
    print()
    print(summary_text(found))


if __name__ == "__main__":
    main()
