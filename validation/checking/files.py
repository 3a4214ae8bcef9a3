"""Which kind of file it is, and what checks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import read_text, shown_path
from costmodel.lines import MOST_BYTES
from costmodel.simulation.stepping import Progress
from costmodel.validation.checking.asking import Asked
from costmodel.validation.checking.benchmarks import ServedRun, aiperf, guidellm, sglang_bench, vllm_bench
from costmodel.validation.checking.documents import CheckedFile, Row
from costmodel.validation.checking.interference import check_experiment, experiment_of
from costmodel.validation.checking.served import check_run
from costmodel.validation.checking.steps import check_steps
from costmodel.validation.interference.reading import read_record
from costmodel.validation.interference.summary import starved, summarise
from costmodel.validation.measurements.files import read_measurement

MEASUREMENT: Final = "costmodel.measurement/"
RECORD: Final = "costmodel.interference_record/"
KINDS: Final = (
    "a measurement (`costmodel measure`), an interference record (`costmodel interfere`), JSON of `vllm bench serve --save-result "
    "--save-detailed`, SGLang's bench_serving (--output-details), AIPerf's profile_export.jsonl, or GuideLLM's benchmarks.json"
)

Checked = tuple[CheckedFile, Sequence[Row]]


def check_file(path: Path, asked: Asked, progress: Callable[[Progress], None] | None = None) -> Iterator[Checked]:
    """Yield what a file says beside predictions; a file of several runs gives several.

    Args:
        path: of the file.
        asked: what the user set.
        progress: called now and then by simulations.

    Raises:
        InputError: no file, one of no known kind, or one that cannot be checked; the message names the file.
    """
    text = read_text(path, "file", MOST_BYTES)
    try:
        yield from _checked(path, text, asked, progress)
    except InputError as error:
        name = shown_path(path)
        raise InputError(str(error) if name in str(error) else f"{name}: {error}") from None


def _checked(path: Path, text: str, asked: Asked, progress: Callable[[Progress], None] | None) -> Iterator[Checked]:
    first = _first(text)
    schema = str(first.get("schema", "")) if first else ""
    if schema.startswith(MEASUREMENT):
        yield check_steps(path, read_measurement(path), asked)
        return
    if asked.held_out:
        raise InputError("--held-out is for measurements, whose steps say so")
    if schema.startswith(RECORD):
        record = read_record(path)
        if (reason := starved(record)) is not None:
            raise InputError(f"{path.name}: {reason}")
        yield check_experiment(path, experiment_of(record, summarise(record).warnings), asked, progress)
        return
    if first is None or schema:
        what = f"its schema is {shown(schema)}" if schema else "it is no JSON"
        raise InputError(f"is no file that can be checked ({what}); known: {KINDS}")
    for run in _runs(text, first):
        yield check_run(path, run, asked, progress)


def _runs(text: str, first: dict[str, Any]) -> list[ServedRun]:
    """Return the runs of a benchmark client."""
    if isinstance(first.get("benchmarks"), list):
        return guidellm(first)
    if isinstance(first.get("metadata"), dict) and "request_start_ns" in first["metadata"]:
        return [aiperf(_lines(text))]
    if "start_times" in first or ("median_ttft_ms" in first and "model_id" in first):
        if len(list(_lines(text, most=2))) > 1:
            raise InputError("holds more than one result; keep one a file (vllm bench without --append-result)")
        return [vllm_bench(first)]
    if "itls" in first or ("median_itl_ms" in first and "backend" in first):
        found = list(_lines(text))
        return [sglang_bench(run, f"line {number}" if len(found) > 1 else "") for number, run in found]
    if "request_latency" in first and "input_config" in first:
        raise InputError("has AIPerf's summary; check its profile_export.jsonl, which has the requests")
    raise InputError(f"is no file that can be checked (its keys are {shown(', '.join(first))}); known: {KINDS}")


def _first(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a file is or begins with; None if there is none."""
    for piece in (text, next((line for line in text.splitlines() if line.strip()), "")):
        try:
            found = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None


def _lines(text: str, most: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file that has one a line, with their numbers, or the one object that it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        yield 1, found
        return
    filled = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in filled[:most]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            if number == filled[-1][0] and not text.endswith("\n"):
                return  # a line that was never finished
            raise InputError(f"line {number} is no JSON: {shown(line)}") from None
        if not isinstance(found, dict):
            raise InputError(f"line {number} is no JSON object: {shown(line)}")
        yield number, found
