"""The file of a measurement: JSON lines, added to one by one, so that whatever ends a run leaves what was measured before.

The first line is the header; then comes one line per repeat of a step, and at the end of a plan that ran through,
``{"complete": true, "planned_s": s}``, with the time that it was planned for [s].
Between them may stand ``{"note": text}`` and ``{"watched": {"clocks_mhz": {…}, "throttled": […]}}``, what was seen of the devices.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import read_text, shown_path
from costmodel.lines import MOST_BYTES, Lines
from costmodel.validation.measurements.types import SCHEMA, Header, Machine, Measurement, Purpose, Step


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of a step; attributes as of :class:`~costmodel.validation.measurements.types.Step`, of this repeat.

    ``point`` names what was asked for, where somebody asked: repeats of one point are of one kind, though the contexts of its decoding
    sequences grow by a token from one to the next.
    """

    chunks: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    seconds: float
    purpose: Purpose
    held_out: bool = False
    point: str = ""
    wall_seconds: float | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes it the same step as another."""
        return self.chunks, self.point or self.decodes, len(self.decodes), self.purpose, self.held_out


@dataclass(slots=True)
class Content:
    """What is in a file.

    Attributes:
        header: its first line.
        samples: all repeats, in the order of measuring.
        notes: that were added later.
        watched: attributes of the machine as they were seen last.
        complete: the plan was run to its end.
        planned_s: for how much time that was planned, where the file says [s].
        cut: the last line was never finished.
    """

    header: Header
    samples: list[Sample] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    watched: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    planned_s: float | None = None
    cut: bool = False


class Writer:
    """Adds to the file of a measurement; every line is on disk when :meth:`add` returns.

    Args:
        path: of the file.
        header: of a new file; None to add to one that is there, behind its last whole line.

    Raises:
        InputError: a new file that exists already, or the system refuses.
    """

    def __init__(self, path: Path, header: Header | None) -> None:
        self.path = path
        try:
            self._lines = Lines(path, goes_on=header is None, sync=True)
        except FileExistsError:
            raise InputError(
                f"{shown_path(path)} exists; use --resume to go on with it or --force to replace it"
            ) from None
        if header is not None:
            self._lines.add(header.model_dump(by_alias=True, mode="json"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def add(self, sample: Sample) -> None:
        """Add one repeat of a step."""
        line: dict[str, Any] = {"chunks": sample.chunks, "decodes": sample.decodes, "seconds": sample.seconds}
        line["purpose"] = sample.purpose
        if sample.held_out:
            line["held_out"] = True
        if sample.point:
            line["point"] = sample.point
        if sample.wall_seconds is not None:
            line["wall_seconds"] = sample.wall_seconds
        self._lines.add(line)

    def note(self, text: str) -> None:
        """Add a note about the whole measurement."""
        self._lines.add({"note": text})

    def watched(self, clocks_mhz: dict[str, float], throttled: tuple[str, ...] | None) -> None:
        """Say what was seen of the devices: clocks now, and all reasons of throttling so far."""
        self._lines.add({"watched": {"clocks_mhz": clocks_mhz, "throttled": throttled}})

    def complete(self, planned_s: float | None = None) -> None:
        """Say that everything that was planned for so much time has been measured [s]."""
        self._lines.add({"complete": True} | ({"planned_s": planned_s} if planned_s is not None else {}))


START = f'{{"schema":"{SCHEMA}"'.encode()
"""How a file begins that :class:`Writer` made."""
LONGEST_HEADER = 2**20
"""Bytes."""


def is_cut_header(path: Path) -> bool:
    """Tell whether a file is all that a run has left that ended before its first line did: empty, or the beginning of a header."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST_HEADER:
            return False
        found = path.read_bytes()
    except OSError:  # what reads it says why it cannot be read
        return False
    if b"\n" in found or b'"steps"' in found:  # a measurement, or the document of one
        return False
    return START.startswith(found[: len(START)])


def read_measurement(path: Path) -> Measurement:
    """Read a measurement: the repeats of each step as their median. A last line that was cut off is left out, and a note says so.

    A document of ``--json`` is read as well.

    Raises:
        InputError: the file cannot be read, is no measurement, or a line in it is none.
    """
    text = _text(path)
    name = shown_path(path)
    if (document := _document(text)) is not None:
        try:
            return Measurement.model_validate(document)
        except ValidationError as error:
            raise InputError(f"{name}: {_first(error)}") from None
    content = _parse(text, name)
    header = content.header
    notes = tuple(dict.fromkeys(header.notes + content.notes))  # a note that a later run repeats is one
    if content.cut:
        notes += ("the last line was cut off and is left out",)
    machine = header.machine.model_copy(update=content.watched) if content.watched else header.machine
    fields = header.model_dump(by_alias=True) | {"notes": notes, "machine": machine}
    return Measurement(**fields, steps=tuple(summarise(content.samples)), complete=content.complete)


def read_samples(path: Path) -> list[Sample]:
    """Return every repeat in the file of a measurement, in the order of measuring.

    Raises:
        InputError: as :func:`read_measurement`.
    """
    return read_content(path).samples


def read_content(path: Path) -> Content:
    """Return what is in the file of a measurement, line by line.

    Raises:
        InputError: as :func:`read_measurement`.
    """
    return _parse(_text(path), shown_path(path))


def summarise(samples: list[Sample]) -> Iterator[Step]:
    """Yield each kind of step once, in the order of its first repeat, with median and median absolute deviation of its repeats."""
    kinds: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        kinds.setdefault(sample.kind, []).append(sample)
    for repeats in kinds.values():
        median = statistics.median(each.seconds for each in repeats)
        walls = [each.wall_seconds for each in repeats if each.wall_seconds is not None]
        yield Step(
            chunks=repeats[0].chunks,
            decodes=tuple(map(statistics.median_low, zip(*(each.decodes for each in repeats), strict=True))),
            seconds=median,
            spread=statistics.median(abs(each.seconds - median) for each in repeats),
            wall_seconds=statistics.median(walls) if walls else None,
            repeats=len(repeats),
            purpose=repeats[0].purpose,
            held_out=repeats[0].held_out,
        )


def _text(path: Path) -> str:
    return read_text(path, "measurement", MOST_BYTES)


def _document(text: str) -> Any:
    """Return the one document that the text is, None if it is lines."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "steps" in found else None


def _parse(text: str, name: str) -> Content:
    lines = text.split("\n")
    cut = bool(lines.pop())  # behind the last line's end there is nothing, or a line that was never finished
    if not lines:
        raise InputError(f"{name}: is empty or has no whole line; a measurement begins with a line of schema {SCHEMA}")
    try:
        content = Content(Header.model_validate_json(lines[0]), cut=cut)
    except ValidationError as error:
        raise InputError(f"{name}, line 1: is no header of a measurement ({_first(error)})") from None
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            _take(json.loads(line), content)
        except (ValueError, RecursionError) as error:
            reason = _first(error) if isinstance(error, ValidationError) else f"is no JSON: {shown(line)}"
            raise InputError(f"{name}, line {number}: {reason}") from None
    return content


def _take(line: Any, content: Content) -> None:
    """Add what a line says."""
    if isinstance(line, dict) and line.get("complete") is True:
        planned = line.get("planned_s")
        content.complete = True
        content.planned_s = float(planned) if isinstance(planned, int | float) else None
    elif isinstance(line, dict) and line.keys() == {"note"}:
        content.notes += (str(line["note"]),)
    elif isinstance(line, dict) and line.keys() == {"watched"}:
        seen = content.header.machine.model_dump() | (line["watched"] if isinstance(line["watched"], dict) else {})
        machine = Machine.model_validate(seen)
        content.watched = {"clocks_mhz": machine.clocks_mhz, "throttled": machine.throttled}
    else:
        point = line.pop("point", "") if isinstance(line, dict) else ""
        step = Step.model_validate(line)
        content.complete = False  # of a larger plan than the one that was complete
        content.samples.append(
            Sample(step.chunks, step.decodes, step.seconds, step.purpose, step.held_out, str(point), step.wall_seconds)
        )


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])
