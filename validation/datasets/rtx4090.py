"""Layer timings of Llama-3.1-8B on an RTX 4090 (vLLM 0.19, bf16) with real mixed attention steps, and one served run.

Measured for LLMServingSim [1]_; one call of each layer. The folder has ``dense.csv``, ``per_sequence.csv``, ``attention.csv``
(µs in the files), ``meta.json`` and ``requests.jsonl``.

References:
    .. [1] https://github.com/casys-kaist/LLMServingSim (MIT)
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.hardware.errors import InputError, unknown_name
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
        """Time per token after the first [s]."""
        return (self.last_token - self.first_token) / (self.output_tokens - 1)


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

    dense: LayerTable
    per_sequence: LayerTable
    attention: MixedTable
    requests: RequestTable
    settings: RunSettings


def rtx4090(folder: Path | str | None = None) -> Rtx4090:
    """Read the folder.

    Raises:
        InputError: no folder is named (the message says where to get one), or a file is missing or not what it was.
    """
    if folder is None:
        raise InputError(WHERE)
    where = Path(folder)
    if not where.is_dir():
        raise InputError(f"{where}: no such folder; {WHERE}")
    attention = _columns(
        _csv(where / "attention.csv"), "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"
    )
    chunk, cached, decodes, context, micros = attention
    return Rtx4090(
        dense=_layers(where / "dense.csv", "tokens"),
        per_sequence=_layers(where / "per_sequence.csv", "sequences"),
        attention=MixedTable(chunk, cached, decodes, context, micros * 1e-6),
        requests=_requests(where / "requests.jsonl"),
        settings=_settings(where / "meta.json"),
    )


def checksums(folder: Path | str) -> dict[str, str]:
    """Return the SHA-256 of every file that is read, by its name."""
    return {name: hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest() for name in FILES}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"RTX 4090 measurements {path}: cannot be read ({error})") from None


def _csv(path: Path) -> tuple[Path, list[dict[str, Any]]]:
    return path, list(csv.DictReader(_text(path).splitlines()))


def _columns(content: tuple[Path, Iterable[Mapping[str, Any]]], *names: str) -> list[Column]:
    """Return columns as float64; integers and floats may both stand in the files."""
    path, lines = content
    rows = list(lines)
    try:
        return [np.array([float(row[name]) for row in rows], dtype=np.float64) for name in names]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"RTX 4090 measurements {path}: missing column or not a number: {error}") from None


def _layers(path: Path, size: str) -> LayerTable:
    content = _csv(path)
    sizes, micros = _columns(content, size, "time_us")
    return LayerTable(np.array([row.get("layer", "") for row in content[1]], dtype=np.str_), sizes, micros * 1e-6)


def _requests(path: Path) -> RequestTable:
    try:
        lines = [json.loads(line) for line in _text(path).splitlines() if line.strip()]
    except ValueError as error:
        raise InputError(f"RTX 4090 measurements {path}: not JSON lines ({error})") from None
    times = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    return RequestTable(*_columns((path, lines), "input_toks", "output_toks", *times))


def _settings(path: Path) -> RunSettings:
    try:
        meta = json.loads(_text(path))
        engine, cache = meta["engine_kwargs"], meta["kv_cache"]
        scheduler = meta["resolved_config"]["scheduler_config"]
        return RunSettings(
            model=str(meta["model"]),
            vllm_version=str(meta["vllm_version"]),
            kv_blocks=int(cache["num_gpu_blocks"]),
            block_size=int(cache["block_size"]),
            memory_utilization=float(cache["gpu_memory_utilization"]),
            max_num_seqs=int(engine["max_num_seqs"]),
            max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
            max_model_len=int(engine["max_model_len"]),
            async_scheduling=bool(scheduler["async_scheduling"]),
            chunked_prefill=bool(scheduler["enable_chunked_prefill"]),
            prefix_caching=bool(cache["enable_prefix_caching"]),
            device_memory=int(meta["hardware"]["device_total_memory_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"RTX 4090 measurements {path}: missing or malformed {error}") from None
