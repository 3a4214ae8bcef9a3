"""Rows of a trace: what each format calls the arrival and the lengths, and in which unit."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from costmodel.hardware.errors import shown
from costmodel.simulation.trace_files import misread

MAX_LENGTH = 10**12
"""Nothing longer is a number of tokens."""
MAX_SECONDS = 1e11
"""Nothing later is a time in seconds: 2026 is 1.8e9 since 1970, and 1.8e12 in milliseconds."""

MAX_PRIORITY = (1 << 63) - 1
"""Most that a priority can be, up or down: what a table of results can hold."""

Line = tuple[int, str]


class Row(NamedTuple):
    """One line of a trace: a request as it was recorded.

    Attributes:
        arrival: on the clock of the trace [s].
        prompt: tokens, ≥ 0.
        output: tokens of the answer, ≥ 0.
        priority: lower goes first.
        group: what it counts as; empty for the trace's own.
        prefix: ids of the leading blocks of the prompt.
        prefix_block: tokens that one id stands for.
    """

    arrival: float
    prompt: int
    output: int
    priority: int = 0
    group: str = ""
    prefix: tuple[int, ...] = ()
    prefix_block: int = 16


class BadValueError(ValueError):
    """A value of a row is wrong; the text says how."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a table calls the three that count.

    Attributes:
        dated: arrivals are dates with times; otherwise seconds.
    """

    arrival: str
    prompt: str
    output: str
    dated: bool = False

    @property
    def names(self) -> tuple[str, str, str]:
        """The three names."""
        return self.arrival, self.prompt, self.output


CSV_FORMS: Mapping[str, Columns] = {
    "azure": Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", dated=True),
    "burstgpt": Columns("Timestamp", "Request tokens", "Response tokens"),
    "csv": Columns("arrival_s", "prompt_tokens", "output_tokens"),
}
CSV_OPTIONAL = ("priority", "group", "prefix", "prefix_block")
"""Columns that the format ``csv`` may have besides."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """JSON lines with ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``.

    Attributes:
        ticks: of the timestamps per second.
        block: tokens that one of the hash ids stands for.
    """

    ticks: int
    block: int


HASHED_FORMS: Mapping[str, Hashed] = {"mooncake": Hashed(1000, 512), "timed-trace": Hashed(1, 16)}
HASHED_KEYS = ("timestamp", "input_length", "output_length")

RECORD_KEYS: tuple[tuple[str, ...], ...] = (
    ("arrival_s", "arrival_time", "arrival", "start_time", "arrived_at"),
    ("prompt_tokens", "prompt_len", "input_tokens", "input_toks", "input_len"),
    ("output_tokens", "output_len", "output_toks", "completion_tokens", "generated_tokens"),
)
"""Names of arrival [s], prompt and answer [tokens] in JSON lines of the format ``records``."""

BENCH_KEYS = ("start_times", "input_lens", "output_lens")


def csv_rows(path: str, lines: Iterable[Line], columns: Columns, notes: list[str]) -> Iterator[Row]:
    """Yield the rows of a table with a header.

    Args:
        path: of the file, for errors.
        lines: of the file, with their numbers.
        columns: names, in whatever case.
        notes: gets a line about columns that are not read, and one about a last line without an end.

    Raises:
        InputError: a column is missing or there twice, or a row is wrong.
    """
    number, latest = 1, ""

    def texts() -> Iterator[str]:
        nonlocal number, latest
        for each in lines:
            number, latest = each
            yield latest

    reader = csv.reader(texts())
    try:
        header: list[str] = next((fields for fields in reader if any(field.strip() for field in fields)), [])
        names = [name.strip().casefold() for name in header]
        place = {name: index for index, name in enumerate(names)}
        missing = [name for name in columns.names if name.casefold() not in place]
        if missing:
            reason = f"no column {' or '.join(missing)}; the first line names the columns, {','.join(columns.names)} among them"
            raise misread(path, f"{reason}, not {shown(','.join(header))}", f"line {number}")
        optional = CSV_OPTIONAL if columns is CSV_FORMS["csv"] else ()
        if twice := [name for name in (*columns.names, *optional) if names.count(name.casefold()) > 1]:
            reason = f"column {twice[0]} is there {names.count(twice[0].casefold())} times; leave the right one"
            raise misread(path, reason, f"line {number}")
        extra: dict[str, int] = {}
        if optional:
            extra = {name: place[name] for name in optional if name in place}
            if unread := place.keys() - set(columns.names) - extra.keys():
                notes.append("columns not read: " + ", ".join(sorted(unread)))
        arrival, prompt, output = (place[name.casefold()] for name in columns.names)
        clock: Callable[[str, str], float] = Dates() if columns.dated else _text_seconds
        width = len(header)
        for fields in reader:
            if not fields or (len(fields) == 1 and not fields[0].strip()):
                continue
            try:
                if len(fields) != width:
                    raise BadValueError(f"{len(fields)} fields, where the header has {width}; is the line cut off?")
                row = Row(
                    clock(fields[arrival], columns.arrival),
                    _text_tokens(fields[prompt], columns.prompt),
                    _text_tokens(fields[output], columns.output),
                )
                if extra:
                    row = _with_extras(row, {name: fields[index].strip() for name, index in extra.items()})
            except BadValueError as error:
                raise misread(path, str(error), f"line {number}") from None
            yield row
        if latest and not latest.endswith(("\n", "\r")):
            notes.append("the last line has no line end: if the file was cut off, the last number may be, too")
    except csv.Error as error:
        raise misread(
            path, f"is not CSV ({error}); save it with commas and one request a line", f"line {number}"
        ) from None


def json_objects(path: str, lines: Iterable[Line]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file that has one a line, with the numbers of their lines; empty lines do not count.

    Raises:
        InputError: a line is something else, or has a key twice.
    """
    for number, text in lines:
        if not text.strip():
            continue
        try:
            found = json.loads(text, object_pairs_hook=_distinct)
        except BadValueError as error:
            raise misread(path, str(error), f"line {number}") from None
        except (ValueError, RecursionError):
            raise misread(path, f"not JSON (cut off?): {shown(text.strip())}", f"line {number}") from None
        if not isinstance(found, dict):
            raise misread(path, f"one JSON object a line, not {shown(found)}", f"line {number}")
        yield number, found


def hashed_rows(path: str, lines: Iterable[Line], form: Hashed) -> Iterator[Row]:
    """Yield the rows of JSON lines with timestamps, lengths and hashes of the prompt's blocks.

    Raises:
        InputError: a line is not JSON, lacks a key or holds a wrong value.
    """
    latest = MAX_SECONDS * form.ticks
    arrival, prompt, output = HASHED_KEYS
    for number, found in json_objects(path, lines):
        try:
            row = Row(
                seconds(_get(found, arrival), arrival, latest) / form.ticks,
                tokens(_get(found, prompt), prompt),
                tokens(_get(found, output), output),
                prefix=_ids(found.get("hash_ids")),
                prefix_block=form.block,
            )
        except BadValueError as error:
            raise misread(path, str(error), f"line {number}") from None
        yield row


def record_rows(path: str, lines: Iterable[Line]) -> Iterator[Row]:
    """Yield the rows of JSON lines with an arrival and two lengths under one of their usual names.

    Raises:
        InputError: a line is not JSON, lacks a key or holds a wrong value.
    """
    names: list[str] = []
    for number, found in json_objects(path, lines):
        try:
            names = names or [_named(found, known) for known in RECORD_KEYS]
            arrival, prompt, output = names
            row = Row(
                seconds(_get(found, arrival), arrival),
                tokens(_get(found, prompt), prompt),
                tokens(_get(found, output), output),
            )
        except BadValueError as error:
            raise misread(path, str(error), f"line {number}") from None
        yield row


def bench_rows(path: str, lines: Iterable[Line], notes: list[str]) -> Iterator[Row]:
    """Yield the requests of a result of ``vllm bench serve --save-result --save-detailed``.

    Args:
        path: of the file, for errors.
        lines: of the file, with their numbers.
        notes: gets a line about arrivals that the benchmark held back.

    Raises:
        InputError: it is not JSON, holds more than one result, or no arrivals.
    """
    found = _document(path, "".join(text for _number, text in lines))
    lists: list[list[Any]] = []
    for key in BENCH_KEYS:
        values = found.get(key)
        if not isinstance(values, list):
            raise misread(path, f"no list {key}; write it with `vllm bench serve --save-result --save-detailed`")
        lists.append(values)
    if len({len(values) for values in lists}) > 1:
        sizes = ", ".join(f"{len(values)} {key}" for key, values in zip(BENCH_KEYS, lists, strict=True))
        raise misread(path, f"lists of different lengths ({sizes}); is the file whole?")
    if found.get("max_concurrency") is not None:
        notes.append(
            f"max_concurrency {shown(found['max_concurrency'])} held arrivals back: they follow the pace of that server"
        )
    for number, (start, prompt, output) in enumerate(zip(*lists, strict=True), 1):
        try:
            answer = tokens(output, BENCH_KEYS[2])
            # failed requests have no answer, and may have no start either
            row = Row(seconds(start, BENCH_KEYS[0]) if answer else 0.0, tokens(prompt, BENCH_KEYS[1]), answer)
        except BadValueError as error:
            raise misread(path, str(error), f"request {number}") from None
        yield row


def seconds(value: Any, name: str, latest: float = MAX_SECONDS) -> float:
    """Return a number that is a time from 0 to ``latest``, or raise :class:`BadValueError`."""
    if type(value) in (int, float) and 0 <= value <= latest:
        return float(value)
    if type(value) not in (int, float) or math.isnan(value):
        raise BadValueError(f"{name} must be a number, not {shown(value)}")
    if value < 0:
        raise BadValueError(f"{name} must be at least 0, not {shown(value)}")
    raise BadValueError(f"{name} {shown(value)} is too late for its unit; is it in milliseconds or nanoseconds?")


def tokens(value: Any, name: str) -> int:
    """Return a number that is a whole one from 0, or raise :class:`BadValueError`."""
    number = int(value) if type(value) is float and value % 1 == 0 else value
    if type(number) is not int:
        raise BadValueError(f"{name} must be a whole number of tokens, not {shown(value)}")
    if number < 0:
        raise BadValueError(f"{name} must be at least 0, not {shown(value)}")
    if number > MAX_LENGTH:
        raise BadValueError(f"{name} must be a number of tokens up to {MAX_LENGTH:.0e}, not {shown(value)}")
    return number


class Dates:
    """Dates with times as seconds since the first of them, to a microsecond; those without a time zone are taken for UTC."""

    def __init__(self) -> None:
        self._first: datetime | None = None

    def __call__(self, text: str, name: str) -> float:
        """Return the seconds, negative before the first, or raise :class:`BadValueError`."""
        try:
            date = datetime.fromisoformat(text.strip())
            if date.tzinfo is not None:
                date = date.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            raise BadValueError(f"{name} must be a date like 2023-11-16 18:15:46.6805900, not {shown(text)}") from None
        if self._first is None:
            self._first = date
        return (date - self._first).total_seconds()


def _text_seconds(text: str, name: str) -> float:
    try:
        return seconds(float(_plain(text)), name)
    except BadValueError:
        raise
    except ValueError:
        raise BadValueError(f"{name} must be a number, not {shown(text)}") from None


def _text_tokens(text: str, name: str) -> int:
    try:
        number: int | float = int(_plain(text))
    except ValueError:
        try:
            number = float(_plain(text))
        except ValueError:
            number = math.nan
        if number % 1 != 0:
            raise BadValueError(f"{name} must be a whole number of tokens, not {shown(text)}") from None
    return tokens(number, name)


def _plain(text: str) -> str:
    """Return the text of a number, or raise ``ValueError`` where it is one to Python only: 1_0 is more likely a slip than 10."""
    if "_" in text:
        raise ValueError
    return text


def _with_extras(row: Row, texts: Mapping[str, str]) -> Row:
    """Return a row with the optional columns that are not empty."""
    priority, prefix = texts.get("priority", ""), texts.get("prefix", "")
    try:
        rank = int(_plain(priority)) if priority else 0
    except ValueError:
        raise BadValueError(f"priority must be a whole number, not {shown(priority)}") from None
    if abs(rank) > MAX_PRIORITY:
        raise BadValueError(f"priority must be within ±(2⁶³ − 1), not {shown(rank)}")
    try:
        ids = tuple(int(_plain(each)) for each in prefix.split())
    except ValueError:
        raise BadValueError(f"prefix must be whole numbers with spaces between, not {shown(prefix)}") from None
    block = texts.get("prefix_block", "")
    size = _text_tokens(block, "prefix_block") if block else row.prefix_block
    if size == 0:
        raise BadValueError("prefix_block must be at least 1 token, not 0")
    return row._replace(priority=rank, group=texts.get("group", ""), prefix=ids, prefix_block=size)


def _get(found: Mapping[str, Any], key: str) -> Any:
    try:
        return found[key]
    except KeyError:
        raise BadValueError(f"no {key}, but {shown(', '.join(found))}; is the format another?") from None


def _named(found: Mapping[str, Any], known: Collection[str]) -> str:
    for name in known:
        if name in found:
            return name
    raise BadValueError(f"none of {', '.join(known)}, but {shown(', '.join(found))}")


def _ids(found: Any) -> tuple[int, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise BadValueError(f"hash_ids must be a list of whole numbers, not {shown(found)}")
    return tuple(found)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object, or raise :class:`BadValueError` where a key is there twice: nobody knows which of the two is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadValueError(f"key {shown(twice)} is there {keys.count(twice)} times in one object; leave the right one")
    return found


def _document(path: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_distinct)
    except BadValueError as error:
        raise misread(path, str(error)) from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise misread(path, "more than one result; keep one a file (vllm bench without --append-result)") from None
        raise misread(path, f"not JSON ({error.msg}); is the file whole?", f"line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise misread(
            path, "not JSON of a benchmark; make it with `vllm bench serve --save-result --save-detailed`"
        ) from None
    if not isinstance(found, dict):
        raise misread(path, f"one JSON object with {', '.join(BENCH_KEYS)}, not {shown(found)}")
    return found
