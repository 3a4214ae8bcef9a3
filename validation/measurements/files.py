"""The file of a measurement: JSON lines, added to one by one, so that whatever ends a run leaves what was measured before.

The first line is the header; then comes one line per repeat of a step, and at the end of a plan that ran through, ``{"complete": true}``.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from pydantic import ValidationError

from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import shown_path
from costmodel.validation.measurements.types import SCHEMA, Header, Measurement, Purpose, Step


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of a step; attributes as of :class:`~costmodel.validation.measurements.types.Step`, seconds those of this repeat."""

    chunks: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    seconds: float
    purpose: Purpose
    held_out: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes it the same step as another."""
        return self.chunks, self.decodes, self.purpose, self.held_out


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
        self._file: BinaryIO
        try:
            if header is None:
                whole = _whole_bytes(path)
                self._file = path.open("r+b")
                self._file.truncate(whole)
                self._file.seek(whole)
            else:
                self._file = path.open("xb")
                self._line(header.model_dump(by_alias=True, mode="json"))
        except FileExistsError:
            raise InputError(
                f"{shown_path(path)} exists; use --resume to go on with it or --force to replace it"
            ) from None
        except OSError as error:
            raise InputError(f"cannot write {shown_path(path)}: {error.strerror or error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, sample: Sample) -> None:
        """Add one repeat of a step."""
        line: dict[str, Any] = {"chunks": sample.chunks, "decodes": sample.decodes, "seconds": sample.seconds}
        line["purpose"] = sample.purpose
        if sample.held_out:
            line["held_out"] = True
        self._line(line)

    def complete(self) -> None:
        """Say that everything that was planned has been measured."""
        self._line({"complete": True})

    def _line(self, content: dict[str, Any]) -> None:
        self._file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


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
    header, samples, complete, cut = _parse(text, name)
    notes = header.notes + (("the last line was cut off and is left out",) if cut else ())
    fields = header.model_dump(by_alias=True) | {"notes": notes}
    return Measurement(**fields, steps=tuple(summarise(samples)), complete=complete)


def read_samples(path: Path) -> list[Sample]:
    """Return every repeat in the file of a measurement, in the order of measuring.

    Raises:
        InputError: as :func:`read_measurement`.
    """
    return _parse(_text(path), shown_path(path))[1]


def summarise(samples: list[Sample]) -> Iterator[Step]:
    """Yield each kind of step once, in the order of its first repeat, with median and median absolute deviation of its repeats."""
    kinds: dict[tuple[Any, ...], list[float]] = {}
    for sample in samples:
        kinds.setdefault(sample.kind, []).append(sample.seconds)
    for (chunks, decodes, purpose, held_out), seconds in kinds.items():
        median = statistics.median(seconds)
        spread = statistics.median(abs(each - median) for each in seconds)
        yield Step(
            chunks=chunks,
            decodes=decodes,
            seconds=median,
            spread=spread,
            repeats=len(seconds),
            purpose=purpose,
            held_out=held_out,
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{shown_path(path)}: is no text") from None
    except OSError as error:
        raise InputError(f"cannot read {shown_path(path)}: {error.strerror or error}") from None


def _document(text: str) -> Any:
    """Return the one document that the text is, None if it is lines."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "steps" in found else None


def _parse(text: str, name: str) -> tuple[Header, list[Sample], bool, bool]:
    lines = text.split("\n")
    cut = bool(lines.pop())  # behind the last line's end there is nothing, or a line that was never finished
    if not lines:
        raise InputError(f"{name}: is empty or has no whole line; a measurement begins with a line of schema {SCHEMA}")
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError as error:
        raise InputError(f"{name}, line 1: is no header of a measurement ({_first(error)})") from None
    samples, complete = [], False
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if content == {"complete": True}:
                complete = True
                continue
            step = Step.model_validate(content)
        except (json.JSONDecodeError, ValidationError) as error:
            reason = _first(error) if isinstance(error, ValidationError) else f"is no JSON: {shown(line)}"
            raise InputError(f"{name}, line {number}: {reason}") from None
        samples.append(Sample(step.chunks, step.decodes, step.seconds, step.purpose, step.held_out))
    return header, samples, complete, cut


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])


def _whole_bytes(path: Path) -> int:
    """Return the bytes up to the end of the last whole line."""
    content = path.read_bytes()
    return content.rfind(b"\n") + 1
