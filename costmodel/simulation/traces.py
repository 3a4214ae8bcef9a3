"""Requests that were recorded: ``read_trace`` knows the formats of public traces, benchmarks and tables (docs/traces.md)."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from costmodel.checks import choice, positive, text, whole
from costmodel.hardware.errors import InputError, shown
from costmodel.simulation.requests import Request
from costmodel.simulation.trace_files import misread, numbered_lines
from costmodel.simulation.trace_rows import (
    BENCH_KEYS,
    CSV_FORMS,
    HASHED_FORMS,
    HASHED_KEYS,
    RECORD_KEYS,
    BadValueError,
    Line,
    Row,
    bench_rows,
    csv_rows,
    hashed_rows,
    json_objects,
    record_rows,
    tokens,
)

FORMS: tuple[str, ...] = (*CSV_FORMS, *HASHED_FORMS, "records", "vllm-bench")
"""Formats that :func:`read_trace` reads."""

NO_PROMPT, NO_OUTPUT = "prompt of 0 tokens", "answer of 0 tokens"
_LINES_TO_SNIFF = 64
_TEXT_KEYS = ("prompt", "conversations", "turns", "messages")


@dataclass(frozen=True)
class Trace:
    """The requests of a file.

    Attributes:
        requests: in the order of their arrival, the first at 0.
        left_out: reason → requests that an engine would have refused, and that are left out.
        notes: what else was done to the file's content, one sentence each.
        form: format that it was read as, of :data:`FORMS`.
    """

    requests: tuple[Request, ...]
    left_out: Mapping[str, int]
    notes: tuple[str, ...]
    form: str


def read_trace(
    path: str | os.PathLike[str],
    form: str = "auto",
    limit: int | None = None,
    speed: float = 1.0,
    group: str = "request",
) -> Trace:
    """Read a trace, line by line.

    Args:
        path: of the file, plain or gzip.
        form: one of :data:`FORMS`, or ``auto`` to tell it from the content.
        limit: read no further than this many requests, those left out not counted; None for all.
        speed: arrivals are divided by it: 2 for twice the load.
        group: of requests whose trace has no group.

    Raises:
        InputError: there is no such file, it is of no known format, a line is wrong, or it holds no request. The message names the file
            and the line.
    """
    name = text(path, "trace")
    named = choice(form, ("auto", *FORMS), "format")
    most = None if limit is None else whole(limit, "limit", least=1)
    faster = positive(speed, "speed")
    notes: list[str] = []
    left_out: Counter[str] = Counter()
    with closing(numbered_lines(name)) as lines:
        filled = itertools.dropwhile(lambda each: not each[1].strip(), lines)
        head = list(itertools.islice(filled, _LINES_TO_SNIFF))
        if not head:
            raise misread(name, "is empty; one request a line is expected")
        known = _told(name, head) if named == "auto" else named
        rows = list(
            itertools.islice(_accepted(_rows(name, itertools.chain(head, lines), known, notes), left_out), most)
        )
    if not rows:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in left_out.items())
        raise misread(name, f"no request that an engine would take ({reasons or 'nothing after the header'})")
    requests = _requests(rows, faster, group, notes)
    if not math.isfinite(requests[-1].arrival):
        raise InputError(f"speed {shown(speed)} makes the trace endless; 1 keeps its pace")
    return Trace(requests, dict(left_out), tuple(notes), known)


def _rows(path: str, lines: Iterable[Line], form: str, notes: list[str]) -> Iterator[Row]:
    if form in CSV_FORMS:
        return csv_rows(path, lines, CSV_FORMS[form], notes)
    if form in HASHED_FORMS:
        return hashed_rows(path, lines, HASHED_FORMS[form])
    return record_rows(path, lines) if form == "records" else bench_rows(path, lines, notes)


def _accepted(rows: Iterable[Row], left_out: Counter[str]) -> Iterator[Row]:
    """Yield the rows that an engine would take, and count the others."""
    for row in rows:
        if row.prompt == 0:
            left_out[NO_PROMPT] += 1
        elif row.output == 0:
            left_out[NO_OUTPUT] += 1
        else:
            yield row


def _requests(rows: list[Row], speed: float, group: str, notes: list[str]) -> tuple[Request, ...]:
    """Return the rows as requests, sorted, from time 0; note what that took."""
    late = sum(after.arrival < before.arrival for before, after in itertools.pairwise(rows))
    if late:
        notes.append(f"{late:,} arrivals earlier than the one above them; sorted")
        rows.sort(key=lambda row: row.arrival)
    first = rows[0].arrival
    requests, cut = [], 0
    for row in rows:
        blocks = -(-row.prompt // row.prefix_block)
        prefix = row.prefix
        if len(prefix) > blocks:
            prefix, cut = prefix[:blocks], cut + 1
        requests.append(
            Request(
                (row.arrival - first) / speed,
                row.prompt,
                row.output,
                row.group or group,
                row.priority,
                prefix,
                row.prefix_block,
            )
        )
    if cut:
        notes.append(f"{cut:,} requests name more prefix blocks than their prompts fill; cut to the prompt")
    return tuple(requests)


def _told(path: str, head: Sequence[Line]) -> str:
    """Return the format that the first lines of a file are written in."""
    number, line = next(each for each in head if each[1].strip())
    start = line.strip()
    if start == "{":
        return "vllm-bench"  # an object over many lines: only a result is one
    if start.startswith("["):
        reason = "a JSON list, as of ShareGPT, which has texts and no arrivals; a trace has one request a line"
        raise misread(path, f"{reason}: {','.join(CSV_FORMS['csv'].names)}", f"line {number}")
    if not start.startswith("{"):
        return _told_by_header(path, number, start)
    found = next(json_objects(path, [(number, line)]))[1]
    if any(key in found for key in BENCH_KEYS) or "request_throughput" in found:
        return "vllm-bench"
    if all(key in found for key in HASHED_KEYS):
        return _told_by_hashes(path, head)
    if all(any(name in found for name in names) for names in RECORD_KEYS):
        return "records"
    if any(key in found for key in _TEXT_KEYS):
        reason = "texts without arrivals (a dataset for `vllm bench serve`), where a trace has arrivals and numbers of tokens"
        raise misread(path, f"{reason}; write a CSV with {','.join(CSV_FORMS['csv'].names)}", f"line {number}")
    raise misread(path, f"no known format with the keys {shown(', '.join(found))}; {_known()}", f"line {number}")


def _told_by_header(path: str, number: int, line: str) -> str:
    header = {name.strip().strip('"').casefold() for name in line.split(",")}
    hits = {form: sum(name.casefold() in header for name in columns.names) for form, columns in CSV_FORMS.items()}
    best = max(hits, key=lambda form: hits[form])
    if hits[best] > 1:
        return best  # what is missing is told where it is read
    raise misread(path, f"no known format with the header {shown(line)}; {_known()}", f"line {number}")


def _told_by_hashes(path: str, head: Sequence[Line]) -> str:
    """Tell milliseconds and long blocks from seconds and short ones: Mooncake and vLLM's timed_trace have the same keys."""
    votes: set[str] = set()
    fraction = False
    for _number, found in _leading_objects(path, head):
        fraction = fraction or isinstance(found.get("timestamp"), float)
        blocks = found.get("hash_ids")
        if isinstance(blocks, list):
            fits = [
                form for form, kind in HASHED_FORMS.items() if _fits(found.get("input_length"), len(blocks), kind.block)
            ]
            if len(fits) == 1:
                votes.add(fits[0])
    if len(votes) == 1:
        return votes.pop()
    if not votes and fraction:
        return "timed-trace"
    reason = "cannot tell whether timestamp is in milliseconds, with hash_ids of 512 tokens, or in seconds, with 16"
    raise misread(path, f"{reason}; say which: --format mooncake or --format timed-trace (form=… in Python)")


def _leading_objects(path: str, head: Sequence[Line]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects before the first line that is wrong; that one is reported where it is read."""
    try:
        yield from json_objects(path, head)
    except InputError:
        return


def _fits(length: Any, blocks: int, block: int) -> bool:
    try:
        return blocks == -(-tokens(length, "") // block)
    except BadValueError:
        return False


def _known() -> str:
    columns = [",".join(each.names) for each in CSV_FORMS.values()]
    return "known: CSV with " + ", or ".join(columns) + f", or JSON lines with {', '.join(HASHED_KEYS)}"
