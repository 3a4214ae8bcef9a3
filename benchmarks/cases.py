"""Measured step times from public sources against predictions: one line per measured number.

    python benchmarks/cases.py                                # the file in COSTMODEL_SHARED, or ../shared
    python benchmarks/cases.py --cases FILE --calibrations FOLDER
    python benchmarks/cases.py --json

A case is turned into questions by rules that know kinds, units and the words of its keys, never its name (``case_questions.py``); a
number that no rule understands is listed with the reason. Calibrations: the engine's of that part, else vLLM's, else those of the part's
nearest relative (``assumed``), else the roofline. The file of cases is not part of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from case_answers import FAR, Find, answer, finder, reason
from case_names import RefusedError
from case_questions import KINDS, ask
from case_reading import readings

from costmodel.errors import InputError

GOAL_MEDIAN, GOAL_NEAR = 0.15, 0.70
"""Aims: median error, and share of numbers within 25 %."""


@dataclass(frozen=True)
class Row:
    """One measured number and what became of it."""

    case: str
    kind: str
    what: str
    part: str = ""
    """``step``, or the part of one that was measured: ``linear``, ``layer:NAME``, ``attention:…``."""
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
        name, kind = str(case.get("id")), str(case.get("kind"))
        if kind not in KINDS:
            continue
        for reading in readings(case):
            try:
                question = ask(case, reading)
            except RefusedError as refusal:
                rows.append(Row(name, kind, reading.label, reason=str(refusal)))
                continue
            found = answer(question, find)
            rows.append(
                Row(
                    name,
                    kind,
                    question.what,
                    question.part,
                    found.seconds,
                    question.measured_s,
                    found.rung,
                    found.calibration,
                    reason(case, question, found),
                )
            )
    return rows


def summary(rows: list[Row]) -> dict[str, Any]:
    """Return counts and errors: of all numbers, of those that are no single matrix of a profiled layer, and of cases by their medians."""
    known = [(row, row.error) for row in rows if row.error is not None]
    by_case: dict[str, list[float]] = {}
    for row, error in known:
        by_case.setdefault(row.case, []).append(abs(error))
    steps = [abs(error) for row, error in known if not row.part.startswith("layer:") or row.part == "layer:linear"]
    return {
        "numbers": len(rows),
        "predicted": len(known),
        "refused": len(rows) - len(known),
        "all": _errors([abs(error) for _, error in known]),
        "without_single_matrices": _errors(steps),
        "cases": _errors([statistics.median(each) for each in by_case.values()]),
        "bias": statistics.median(error for _, error in known) if known else None,
        "rungs": dict(Counter(row.rung for row, _ in known)),
    }


def _errors(errors: list[float]) -> dict[str, float | int | None]:
    near = sum(error <= FAR for error in errors) / len(errors) if errors else None
    median = statistics.median(errors) if errors else None
    return {"count": len(errors), "median_absolute_error": median, "within_25_percent": near}


def table(rows: list[Row]) -> str:
    """Return the rows as text: predicted ones with the reason of a miss below, then what was refused."""
    lines = [f"{'case':24}  {'what':36}  {'predicted':>12}  {'measured':>12}  {'error':>6}  rung: calibration"]
    for row in rows:
        if row.error is None or row.predicted_s is None or row.measured_s is None:
            continue
        times = f"{_time(row.predicted_s):>12}  {_time(row.measured_s):>12}  {row.error:>+6.0%}"
        lines.append(f"{row.case:24}  {row.what:36}  {times}  {row.rung}: {row.calibration or '–'}")
        lines += [f"{'':24}    {row.reason}"] if row.reason else []
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
    lines = [
        f"{found['predicted']} of {found['numbers']} numbers predicted ({rungs}), {found['refused']} refused with a reason"
    ]
    names = {
        "all": "all numbers",
        "without_single_matrices": "without single matrices of a layer",
        "cases": "cases, each by its median",
    }
    for key, name in names.items():
        errors = found[key]
        lines.append(
            f"{name} ({errors['count']}): median error {errors['median_absolute_error']:.1%} (aim {GOAL_MEDIAN:.0%}), "
            f"{errors['within_25_percent']:.0%} within 25 % (aim {GOAL_NEAR:.0%})"
        )
    return "\n".join((*lines, f"bias {found['bias']:+.1%}"))


def default_file() -> Path:
    """Return the file of cases in ``COSTMODEL_SHARED``, or in ``shared`` beside the checkout."""
    folder = os.environ.get("COSTMODEL_SHARED")
    return (Path(folder) if folder else Path(__file__).parents[2] / "shared") / "cases" / "measured.yaml"


def read_cases(file: Path) -> list[Mapping[str, Any]]:
    """Read the YAML file of cases.

    Raises:
        InputError: it is not there, cannot be read, or is no list of cases.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"no file of cases at {file}; name it with --cases FILE, or the folder that has cases/measured.yaml in COSTMODEL_SHARED"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cases {file}: cannot be read ({' '.join(str(error).split())})") from None
    if not (isinstance(content, list) and all(isinstance(case, Mapping) for case in content)):
        raise InputError(f"cases {file}: not a list of cases")
    return content


def main() -> None:
    """Print the table and the summary, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=default_file(), help="YAML file of measured cases")
    parser.add_argument("--calibrations", type=Path, help="folder of <gpu>-<engine>.toml, before the shipped ones")
    parser.add_argument("--json", action="store_true", help="print one document: costmodel.cases/1")
    chosen = parser.parse_args()
    try:
        rows = case_rows(read_cases(chosen.cases), finder(chosen.calibrations))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
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
