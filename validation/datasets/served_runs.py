"""A recorded run of a real vLLM server: its requests, its engine, and its state second by second.

The format is that of LLMServingSim's benchmark [1]_, one folder per run: ``requests.jsonl`` and ``meta.json``, and where they are there
``timeseries.csv`` and the layer tables that :mod:`~costmodel.validation.datasets.rtx4090` reads.

References:
    .. [1] https://github.com/casys-kaist/LLMServingSim (MIT)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.hardware.errors import InputError, shown
from costmodel.simulation.settings import POLICIES, Settings
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.datasets.tables import Column, Columns

LENGTHS, TIMES = (
    ("input_toks", "output_toks"),
    ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"),
)


@dataclass(frozen=True, slots=True)
class Ticks(Columns):
    """The server's state, once per tick.

    Attributes:
        time: of the tick, counted from about the first arrival [s].
        generated: output tokens per second since the tick before [1/s].
        prefilled: prompt tokens per second of requests that got their first token [1/s].
        running, waiting: requests.
        kv_share: share of the KV blocks in use.
    """

    time: Column
    generated: Column
    prefilled: Column
    running: Column
    waiting: Column
    kv_share: Column


@dataclass(frozen=True, slots=True)
class Served:
    """What was served by what.

    Attributes:
        model: checkpoint.
        gpu: name of the device, as the driver gives it.
        engine: name and version.
        tp, pp, ep: parallel sizes.
        dtype, kv_dtype: that were asked for; None for the checkpoint's and the activations'.
        settings: flags of the scheduler.
        notes: flags that the simulation does not know.
    """

    model: str
    gpu: str
    engine: str
    tp: int
    pp: int
    ep: int
    dtype: str | None
    kv_dtype: str | None
    settings: Settings
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One folder."""

    requests: RequestTable
    served: Served
    ticks: Ticks | None


def read_run(folder: Path | str) -> ServedRun:
    """Read a folder.

    Raises:
        InputError: a file is missing or not what it should be, or the server had more than one engine.
    """
    where = Path(folder)
    if not where.is_dir():
        raise InputError(f"{where}: no such folder; a recorded run is a folder with requests.jsonl and meta.json")
    ticks = where / "timeseries.csv"
    return ServedRun(
        _requests(where / "requests.jsonl"), _served(where / "meta.json"), _ticks(ticks) if ticks.is_file() else None
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"recorded run {path}: cannot be read ({error})") from None


def _requests(path: Path) -> RequestTable:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            values = [float(row[name]) for name in (*LENGTHS, *TIMES)]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"recorded run {path}, line {number}: not a finished request ({error}); each line needs {', '.join((*LENGTHS, *TIMES))}"
            ) from None
        if not np.all(np.isfinite(values)) or min(values[:2]) < 1:
            raise InputError(f"recorded run {path}, line {number}: lengths must be at least 1 and times finite")
        rows.append(values)
    if not rows:
        raise InputError(f"recorded run {path}: no requests")
    return RequestTable(*np.array(rows, dtype=np.float64).T)


def _ticks(path: Path) -> Ticks:
    names = ("t", "gen_throughput", "prompt_throughput", "running", "waiting", "kv_cache_pct")
    rows = list(csv.DictReader(_text(path).splitlines()))
    try:
        columns = [np.array([float(row[name]) for row in rows], dtype=np.float64) for name in names]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"recorded run {path}: missing column or not a number: {error}") from None
    time, generated, prefilled, running, waiting, percent = columns
    return Ticks(time, generated, prefilled, running, waiting, percent / 100)


def _served(path: Path) -> Served:
    try:
        meta = json.loads(_text(path))
        cache, config = meta["kv_cache"], meta["resolved_config"]
        scheduler, model, parallel = config["scheduler_config"], config["model_config"], config["parallel_config"]
        _one_engine(path, config, parallel)
        policy = str(scheduler.get("policy", "fcfs"))
        if policy not in POLICIES:
            raise InputError(f"recorded run {path}: unknown policy {shown(policy)}; known: {', '.join(POLICIES)}")
        settings = Settings(
            token_budget=int(scheduler["max_num_batched_tokens"]),
            max_num_seqs=int(scheduler["max_num_seqs"]),
            kv_blocks=int(cache["num_gpu_blocks"]),
            block_tokens=int(cache["block_size"]),
            max_model_len=int(model["max_model_len"]),
            chunked_prefill=bool(scheduler["enable_chunked_prefill"]),
            long_prefill_token_threshold=int(scheduler.get("long_prefill_token_threshold") or 0),
            prefix_caching=bool(cache["enable_prefix_caching"]),
            asynchronous=bool(scheduler["async_scheduling"]),
            policy=policy,  # type: ignore[arg-type]
            reserve_full_prompt=bool(scheduler.get("scheduler_reserve_full_isl", True)),
        )
        tp, pp = int(parallel["tensor_parallel_size"]), int(parallel.get("pipeline_parallel_size") or 1)
        return Served(
            model=str(meta["model"]),
            gpu=str(meta["hardware"]["device_name"]),
            engine=f"vLLM {meta['vllm_version']}",
            tp=tp,
            pp=pp,
            ep=tp if parallel.get("enable_expert_parallel") else 1,
            dtype=_dtype(str(model["dtype"]), model.get("quantization")),
            kv_dtype=_kv_dtype(str(cache.get("cache_dtype") or config["cache_config"]["cache_dtype"])),
            settings=settings,
            notes=tuple(_notes(config)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"recorded run {path}: missing or malformed {error}") from None


def _one_engine(path: Path, config: Mapping[str, Any], parallel: Mapping[str, Any]) -> None:
    """Refuse what is not one engine that gives one token per sequence and step."""
    if (replicas := int(parallel.get("data_parallel_size") or 1)) > 1:
        raise InputError(
            f"recorded run {path}: {replicas} engines (data_parallel_size) share the requests; one engine can be simulated"
        )
    if config.get("speculative_config"):
        raise InputError(f"recorded run {path}: speculative decoding is not simulated")


def _notes(config: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} was set and is not simulated"
        for name in ("kv_transfer_config", "ec_transfer_config", "lora_config")
        if config.get(name)
    ]


NUMBERS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}


def _dtype(dtype: str, quantization: str | None) -> str | None:
    """Return what the weights are in where they are not quantised; None leaves it to the checkpoint."""
    return None if quantization else NUMBERS.get(dtype.removeprefix("torch."))


def _kv_dtype(dtype: str) -> str | None:
    return "fp8" if dtype.startswith("fp8") else NUMBERS.get(dtype)
