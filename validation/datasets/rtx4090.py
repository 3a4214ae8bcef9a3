"""Layer timings of Llama-3.1-8B on an RTX 4090 (vLLM 0.19, bf16) with real mixed attention steps, and one served run.

Measured for LLMServingSim [1]_; one call of each layer. The folder has ``dense.csv``, ``per_sequence.csv``, ``attention.csv``
(µs in the files), ``meta.json`` and ``requests.jsonl``.

References:
    .. [1] https://github.com/casys-kaist/LLMServingSim (MIT)
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.hardware.errors import InputError, shown, unknown_name
from costmodel.hardware.reading import read_text, shown_path
from costmodel.validation.datasets.tables import Column, Columns, Words

GPU: Final = "rtx-4090"
"""Canonical name of the part."""

UPSTREAM: Final = (
    "https://github.com/casys-kaist/LLMServingSim, MIT; layer tables: profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1, "
    "served run: bench/examples/RTX4090/Llama-3.1-8B/vllm"
)
"""Where the files come from."""

FILES: Final = ("attention.csv", "dense.csv", "meta.json", "per_sequence.csv", "requests.jsonl")
"""The files that are read."""

WHERE: Final = (
    "RTX 4090 measurements: name the folder that holds dense.csv, per_sequence.csv, attention.csv, meta.json and requests.jsonl; "
    "get them from https://github.com/casys-kaist/LLMServingSim (Llama-3.1-8B on an RTX 4090)"
)


WHAT: Final = "RTX 4090 measurements"
"""What an error calls the files."""

DENSE_LAYERS: Final = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "rotary_emb", "act_fn")
SEQUENCE_LAYERS: Final = ("lm_head",)
"""Layers that dense.csv and per_sequence.csv must have; all of the first at the same numbers of tokens."""

MOST_COUNT: Final = 1e9
MOST_MICROSECONDS: Final = 1e9
MOST_CLOCK: Final = 1e12
"""Larger counts, times of one call and clocks [s] are no measurements."""


@dataclass(frozen=True, slots=True)
class LayerTable(Columns):
    """Calls of single layers.

    Attributes:
        layers: name of the layer, e.g. ``gate_up_proj``.
        size: tokens in the step, or sequences for ``lm_head`` and ``sampler``.
        seconds: time of one call [s].
    """

    layers: Words
    size: Column
    seconds: Column

    def names(self) -> tuple[str, ...]:
        """Return the layers that were measured."""
        return tuple(np.unique(self.layers).tolist())

    def layer(self, name: str) -> LayerTable:
        """Return the rows of one layer.

        Raises:
            InputError: it was not measured.
        """
        if name not in self.names():
            raise unknown_name("layer", name, self.names(), "measured: " + ", ".join(self.names()))
        return self.select(self.layers == name)


@dataclass(frozen=True, slots=True)
class MixedTable(Columns):
    """Attention of one layer in one step: a prefill chunk, decoding sequences, or both.

    Attributes:
        chunk: new tokens of the one prompt that is prefilled, 0 for none [tokens].
        cached: its tokens in the KV cache before [tokens].
        decodes: decoding sequences.
        context: tokens of each of them in the KV cache [tokens].
        seconds: time of one call [s].
    """

    chunk: Column
    cached: Column
    decodes: Column
    context: Column
    seconds: Column


@dataclass(frozen=True, slots=True)
class RequestTable(Columns):
    """Requests of the served run, in order of arrival.

    Arrival is the wall clock of the client; the other times are a monotonic clock of the engine, whose zero is unknown: only
    differences between them mean anything. :attr:`arrival` is given on the engine's clock by taking the quickest request to have been
    queued the moment it arrived, so it is late by that delay (all requests were queued within 0.2 s).

    Attributes:
        input_tokens, output_tokens: lengths [tokens].
        arrival_wall: when the client sent it [s since 1970].
        queued, scheduled, first_token, last_token: engine's clock [s].
    """

    input_tokens: Column
    output_tokens: Column
    arrival_wall: Column
    queued: Column
    scheduled: Column
    first_token: Column
    last_token: Column

    @property
    def arrival(self) -> Column:
        """Arrivals on the engine's clock [s]."""
        return self.arrival_wall + np.min(self.queued - self.arrival_wall)

    @property
    def ttft(self) -> Column:
        """Time from the queue to the first token [s]."""
        return self.first_token - self.queued

    @property
    def tpot(self) -> Column:
        """Time per token after the first [s]; NaN for an answer of one token."""
        after = self.output_tokens - 1
        whole = self.last_token - self.first_token
        return np.where(after > 0, whole / np.maximum(after, 1), np.nan)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How the run was served.

    Attributes:
        model: checkpoint.
        vllm_version: version of the engine.
        kv_blocks, block_size: size of the KV cache [blocks], and of a block [tokens].
        memory_utilization: share of the memory that the engine may take.
        max_num_seqs, max_num_batched_tokens, max_model_len: limits of a step and of a request.
        async_scheduling, chunked_prefill, prefix_caching: how the scheduler works.
        device_memory: as the process sees it [B].
    """

    model: str
    vllm_version: str
    kv_blocks: int
    block_size: int
    memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    async_scheduling: bool
    chunked_prefill: bool
    prefix_caching: bool
    device_memory: int


@dataclass(frozen=True, slots=True)
class Rtx4090:
    """Everything in the folder that is read."""

    folder: Path
    dense: LayerTable
    per_sequence: LayerTable
    attention: MixedTable
    requests: RequestTable
    settings: RunSettings


def rtx4090(folder: Path | str | None = None) -> Rtx4090:
    """Read the folder.

    Raises:
        InputError: no folder is named (the message says where to get one), or a file is missing or not what it was; the one line names
            the file and, where there is one, the line.
    """
    if folder is None:
        raise InputError(WHERE)
    where = Path(os.path.expanduser(folder))
    if not where.is_dir():
        raise InputError(f"{shown_path(where)}: no such folder; {WHERE}")
    return Rtx4090(
        folder=where,
        dense=_layers(where / "dense.csv", "tokens", DENSE_LAYERS),
        per_sequence=_layers(where / "per_sequence.csv", "sequences", SEQUENCE_LAYERS),
        attention=_attention(where / "attention.csv"),
        requests=_requests(where / "requests.jsonl"),
        settings=_settings(where / "meta.json"),
    )


def checksums(folder: Path | str) -> dict[str, str]:
    """Return the SHA-256 of every file that is read, by its name."""
    return {name: hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest() for name in FILES}


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a file: what stands in it, and its line."""

    file: Path
    line: int
    values: Mapping[str, Any]

    def error(self, reason: str) -> InputError:
        """Return the error for this row."""
        return InputError(f"{WHAT} {shown_path(self.file)}, line {self.line}: {reason}")

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self.values.get(name)
        if value is None:
            raise self.error(f"{name} is missing")
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(f"{name} must be a finite number, not {shown(value)}")
        return number

    def count(self, name: str, least: int = 0) -> float:
        """Return a whole number of at least ``least``."""
        number = self.number(name)
        if number % 1 or not least <= number <= MOST_COUNT:
            raise self.error(
                f"{name} must be a whole number from {least} to {MOST_COUNT:g}, not {shown(self.values[name])}"
            )
        return number

    def seconds(self) -> float:
        """Return the time of a call, which stands in microseconds [s]."""
        micros = self.number("time_us")
        if not 0 < micros <= MOST_MICROSECONDS:
            raise self.error(
                f"time_us must be above 0 and at most {MOST_MICROSECONDS:g}, not {shown(self.values['time_us'])}"
            )
        return micros * 1e-6

    def clock(self, name: str) -> float:
        """Return a time on a clock [s]."""
        number = self.number(name)
        if abs(number) > MOST_CLOCK:
            raise self.error(f"{name} must be at most {MOST_CLOCK:g}, not {shown(self.values[name])}")
        return number


def _rows(path: Path, *names: str) -> list[_Row]:
    """Return the rows of a CSV file that has these columns, at least one."""
    name = f"{WHAT} {shown_path(path)}"
    reader = csv.DictReader(io.StringIO(read_text(path, WHAT), newline=""))
    try:
        columns = reader.fieldnames or ()
        if missing := [each for each in names if each not in columns]:
            found = f"its columns are {shown(', '.join(columns), 200)}" if columns else "it is empty"
            raise InputError(f"{name}: no column {missing[0]!r}; {found}")
        rows = [_Row(path, reader.line_num, values) for values in reader]
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from None
    if not rows:
        raise InputError(f"{name}: no rows below the line of columns")
    return rows


def _columns(rows: Sequence[Sequence[float]]) -> Iterator[Column]:
    return (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))


def _layers(path: Path, size: str, wanted: Sequence[str]) -> LayerTable:
    rows = _rows(path, "layer", size, "time_us")
    layers = np.array([str(row.values["layer"]) for row in rows], dtype=np.str_)
    table = LayerTable(layers, *_columns([(row.count(size, 1), row.seconds()) for row in rows]))
    sizes: dict[str, list[float]] = {}
    for name in wanted:
        if name not in table.names():
            raise InputError(f"{WHAT} {shown_path(path)}: no layer {name!r}; it has {', '.join(table.names())}")
        sizes[name] = sorted(table.layer(name).size.tolist())
        if len(set(sizes[name])) < len(sizes[name]):
            raise InputError(f"{WHAT} {shown_path(path)}: layer {name!r} has two rows of the same {size}")
        if sizes[name] != sizes[wanted[0]]:
            raise InputError(f"{WHAT} {shown_path(path)}: layers {wanted[0]!r} and {name!r} differ in their {size}")
    return table


def _attention(path: Path) -> MixedTable:
    made = []
    for row in _rows(path, "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"):
        counts = [row.count(name) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")]
        if not counts[0] and not counts[2]:
            raise row.error("neither prefill_chunk nor n_decode is above 0")
        made.append((*counts, row.seconds()))
    return MixedTable(*_columns(made))


def _requests(path: Path) -> RequestTable:
    made, last = [], 0
    for last, text in enumerate(read_text(path, WHAT).splitlines(), start=1):
        if text.strip():
            row = _Row(path, last, _object(path, last, text))
            times = [row.clock(f"{name}_ts") for name in ("queued", "scheduled", "first_token", "last_token")]
            if times != sorted(times):
                raise row.error("queued_ts, scheduled_ts, first_token_ts and last_token_ts are not in this order")
            lengths = (row.count("input_toks", 1), row.count("output_toks", 1))
            made.append((*lengths, row.clock("arrival_time"), *times))
    if not made:
        raise InputError(f"{WHAT} {shown_path(path)}: no requests in its {last} lines")
    return RequestTable(*_columns(made))


def _object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{WHAT} {shown_path(path)}, line {line}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{WHAT} {shown_path(path)}, line {line}: a JSON {type(found).__name__}, not an object")
    return found


def _settings(path: Path) -> RunSettings:
    name = f"{WHAT} {shown_path(path)}"
    try:
        meta = json.loads(read_text(path, WHAT))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not JSON ({error})") from None

    def value(place: str, kind: type | tuple[type, ...], what: str) -> Any:
        found = meta
        for key in place.split("."):
            if not isinstance(found, dict) or key not in found:
                raise InputError(f"{name}: {place} is missing")
            found = found[key]
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise InputError(f"{name}: {place} must be {what}, not {shown(found)}")
        return found

    def whole(place: str) -> int:
        found: int = value(place, int, "a whole number")
        if not 1 <= found <= 1e15:
            raise InputError(f"{name}: {place} must be from 1 to 1e15, not {shown(found)}")
        return found

    def share(place: str) -> float:
        found = float(value(place, (int, float), "a number between 0 and 1"))
        if not 0 < found <= 1:
            raise InputError(f"{name}: {place} must be a number between 0 and 1, not {shown(found)}")
        return found

    return RunSettings(
        model=value("model", str, "text"),
        vllm_version=value("vllm_version", str, "text"),
        kv_blocks=whole("kv_cache.num_gpu_blocks"),
        block_size=whole("kv_cache.block_size"),
        memory_utilization=share("kv_cache.gpu_memory_utilization"),
        max_num_seqs=whole("engine_kwargs.max_num_seqs"),
        max_num_batched_tokens=whole("engine_kwargs.max_num_batched_tokens"),
        max_model_len=whole("engine_kwargs.max_model_len"),
        async_scheduling=value("resolved_config.scheduler_config.async_scheduling", bool, "true or false"),
        chunked_prefill=value("resolved_config.scheduler_config.enable_chunked_prefill", bool, "true or false"),
        prefix_caching=value("kv_cache.enable_prefix_caching", bool, "true or false"),
        device_memory=whole("hardware.device_total_memory_bytes"),
    )
