"""Reading a record of the experiment, whole or cut short (:mod:`~costmodel.validation.interference.records` has its form)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import read_text, shown_path
from costmodel.lines import MOST_BYTES
from costmodel.validation.interference.records import (
    LONGEST,
    MOST_AT_ONCE,
    SCHEMA,
    Answer,
    Header,
    Injection,
    Lag,
    Outcome,
    Record,
    Run,
    RunName,
)


class _Over(BaseModel):
    """How a request ended; further keys are left out."""

    ended: float
    outcome: Outcome
    problem: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class _Asked:
    """A request while its events are read."""

    def __init__(self, stream: int | None, sent: float) -> None:
        self.stream, self.sent = stream, sent
        self.times: list[float] = []
        self.over: dict[str, Any] = {}


class _Reading:
    """A run while its events are read."""

    def __init__(self, name: RunName, start: float) -> None:
        self.name, self.start, self.end = name, start, start
        self.asked: dict[int, _Asked] = {}
        self.lag: Lag | None = None
        self.late: list[tuple[float, float]] = []
        self.complete = False
        self.over: float | None = None
        self.metrics: list[dict[str, float]] = []
        self.notes: list[str] = []

    def finished(self) -> Run:
        answers, injections = [], []
        for asked in self.asked.values():
            if asked.stream is None:
                first = asked.times[0] if asked.times else None
                injections.append(Injection(sent=asked.sent, first=first, **asked.over))
            else:
                answers.append(Answer(stream=asked.stream, sent=asked.sent, times=tuple(asked.times), **asked.over))
        return Run(
            name=self.name,
            start=self.start,
            end=self.end if self.over is None else self.over,
            answers=tuple(answers),
            injections=tuple(injections),
            lag=self.lag,
            late=tuple(self.late),
            metrics={key: value - self.metrics[0].get(key, 0.0) for key, value in self.metrics[-1].items()}
            if len(self.metrics) > 1
            else {},
            complete=self.complete,
            notes=tuple(self.notes),
        )


def read_record(path: Path) -> Record:
    """Read a record. A last line that was cut off is left out, and a note says so.

    Raises:
        InputError: the file cannot be read, is no record, or a line in it is none.
    """
    name = shown_path(path)
    lines = read_text(path, "record", MOST_BYTES).split("\n")
    cut = bool(lines.pop())  # behind the end of the last line there is nothing, or a line that was never finished
    if not lines:
        raise InputError(f"{name}: is empty or has no whole line; a record begins with a line of schema {SCHEMA}")
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError as error:
        raise InputError(f"{name}, line 1: is no header of a record ({_first(error)})") from None
    runs: list[_Reading] = []
    notes = list(header.notes)
    complete = False
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            if event == {"complete": True}:
                complete = True
            else:
                _take(event, runs, notes)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
            reason = _first(error) if isinstance(error, ValidationError) else f"is no event of a record: {shown(line)}"
            raise InputError(f"{name}, line {number}: {reason}") from None
    if cut:
        notes.append("the last line was cut off and is left out")
    fields = header.model_dump(by_alias=True) | {"notes": tuple(notes)}
    return Record(**fields, runs=tuple(run.finished() for run in runs), complete=complete)


def _take(event: dict[str, Any], runs: list[_Reading], notes: list[str]) -> None:
    """Add one event to the run it belongs to."""
    time = float(event["time"])
    if not 0 <= time <= LONGEST:  # also where it is no number
        raise ValueError
    if "run" in event:
        if event["run"] not in ("baseline", "injected") or event["run"] in (run.name for run in runs):
            raise ValueError
        runs.append(_Reading(event["run"], time))
        return
    if "note" in event:
        (runs[-1].notes if runs else notes).append(str(event["note"]))
        return
    _take_in_run(event, time, runs[-1])


def _take_in_run(event: dict[str, Any], time: float, run: _Reading) -> None:
    run.end = max(run.end, time)
    if "send" in event:
        run.asked[int(event["send"])] = _Asked(None if event.get("stream") is None else int(event["stream"]), time)
    elif "token" in event:
        count = int(event.get("count", 1))
        if not 1 <= count <= MOST_AT_ONCE:
            raise ValueError
        run.asked[int(event["token"])].times += [time] * count
    elif "end" in event:
        run.asked[int(event["end"])].over = _Over(**{**event, "ended": time}).model_dump()
    elif "lag" in event:
        run.lag = Lag.model_validate(event["lag"])
    elif "late" in event:
        run.late.append((time, float(event["late"])))
    elif "metrics" in event:
        run.metrics.append({str(key): float(value) for key, value in event["metrics"].items()})
    elif "begun" in event:
        run.start = time
    elif "done" in event:
        run.complete = True
        run.over = time
    else:
        raise ValueError


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])
