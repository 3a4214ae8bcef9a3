"""The installed ``aiconfigurator-core`` [1]_: where its tables are, of which parts and engines, and how a table is read.

Its files lie at ``systems/data/<system>/<family>/<engine>/<version>/<table>.parquet``. A folder's version is not always the one
that was measured (some tables were copied from an older engine), so every table read here also says what its rows say.

References:
    .. [1] https://pypi.org/project/aiconfigurator-core/ and https://github.com/ai-dynamo/aiconfigurator (Apache-2.0).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.hardware.catalog import resolve_gpu
from costmodel.hardware.errors import InputError, unknown_name

INSTALL: Final = "needs aiconfigurator-core: pip install 'llm-costmodel[silicon]'"

SYSTEMS: Final = {
    "a100_pcie": "a100-80gb-pcie",
    "a100_sxm": "a100-80gb-sxm",
    "a30": "a30",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_pcie": "h100-pcie",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "l4": "l4",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
"""System of the package → canonical name of the GPU profile (the part is the one that the ``device`` column names)."""

OPERATORS: Final = {
    "gemm": ("gemm", "gemm_perf"),
    "prefill_attention": ("attention", "context_attention_perf"),
    "decode_attention": ("attention", "generation_attention_perf"),
    "all_reduce": ("comm", "custom_allreduce_perf"),
    "moe": ("moe", "moe_perf"),
    "mla_prefill": ("mla", "context_mla_perf"),
    "mla_decode": ("mla", "generation_mla_perf"),
    "mla_prefill_module": ("mla", "mla_context_module_perf"),
    "mla_decode_module": ("mla", "mla_generation_module_perf"),
}
"""Operator → family folder and table of the package."""

ENGINES: Final = ("vllm", "sglang", "trtllm")

_STAGES = {"dev": 0, "rc": 1, "": 2, "post": 3}


@dataclass(frozen=True, slots=True)
class Available:
    """One operator that was measured on one part: the engine's versions, oldest first."""

    gpu: str
    operator: str
    engine: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawTable:
    """The wanted rows of one file: numbers as float64, the kernel of each row, and who measured them."""

    numbers: Mapping[str, NDArray[np.float64]]
    texts: Mapping[str, NDArray[np.str_]]
    version: str
    source: str
    measured_by: tuple[str, ...]


def package_folder() -> Path:
    """Return the folder of the installed package, without importing it.

    Raises:
        InputError: it is not installed.
    """
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise InputError(f"measured silicon {INSTALL}")
    return Path(found.submodule_search_locations[0])


def unmapped_systems() -> tuple[str, ...]:
    """Return the systems that have measurements but no GPU profile here (Intel's B60): they cannot be read."""
    folder = package_folder() / "systems" / "data"
    found = (path.name for path in folder.iterdir() if path.is_dir() and next(path.rglob("*.parquet"), None))
    return tuple(sorted(set(found) - SYSTEMS.keys()))


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Return the order of versions: ``1.3.0rc20 < 1.3.0 < 1.3.0.post1``; other marks sort as a development version."""
    match = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.?(rc|post|dev)(\d+))?(.*)", version)
    if match is None:
        return (), 0, 0
    release, stage, number, rest = match.groups()
    parts = tuple(int(part) for part in release.split("."))
    return parts, _STAGES["dev" if rest else stage or ""], int(number or 0)


def available() -> tuple[Available, ...]:
    """Return every operator that can be read, by GPU, operator and engine."""
    return tuple(
        Available(gpu, operator, engine, names)
        for system, gpu in SYSTEMS.items()
        for operator in OPERATORS
        for engine in ENGINES
        if (names := _folders(system, operator, engine))
    )


def _folders(system: str, operator: str, engine: str) -> tuple[str, ...]:
    """Return the versions that there is a table of, oldest first."""
    family, table = OPERATORS[operator]
    folder = package_folder() / "systems" / "data" / system / family / engine
    return tuple(sorted((path.parent.name for path in folder.glob(f"*/{table}.parquet")), key=version_key))


def versions(gpu: str, operator: str, engine: str = "vllm") -> tuple[str, ...]:
    """Return the versions of ``engine`` that ``operator`` was measured with on ``gpu``, oldest first.

    Raises:
        InputError: no such GPU, operator or engine, or it was not measured; the message says what was.
    """
    name = resolve_gpu(gpu).name
    if operator not in OPERATORS:
        raise unknown_name("operator", operator, OPERATORS, "known: " + ", ".join(OPERATORS))
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES, "known: " + ", ".join(ENGINES))
    system = _system(name)
    if system is not None and (names := _folders(system, operator, engine)):
        return names
    rows = [row for row in available() if row.operator == operator]
    engines = [row.engine for row in rows if row.gpu == name]
    gpus = sorted({row.gpu for row in rows})
    hint = f"measured with {', '.join(engines)}" if engines else f"measured GPUs: {', '.join(gpus)}"
    raise InputError(f"{operator} was not measured on {name} with {engine}; {hint}")


def _system(gpu: str) -> str | None:
    return next((system for system, profile in SYSTEMS.items() if profile == gpu), None)


def read(
    gpu: str,
    operator: str,
    engine: str,
    version: str | None,
    texts: Mapping[str, str | None],
    numbers: Mapping[str, float],
) -> RawTable:
    """Read the rows of one table that match.

    Args:
        gpu: a GPU name.
        operator: key of :data:`OPERATORS`.
        engine: one of :data:`ENGINES`.
        version: version of the engine; None for the newest complete one: that with at least half as many matching rows as
            the fullest (a newer one may hold only the shapes of one new model).
        texts: text columns, with the value that rows must have, or None for any.
        numbers: numeric columns, with the value that stands for a column that the table lacks.

    Raises:
        InputError: nothing matches.
    """
    measured = versions(gpu, operator, engine)
    if version is not None and version not in measured:
        raise InputError(
            f"{operator} on {gpu} was not measured with {engine} {version}, but with {', '.join(measured)}"
        )
    tables = {
        each: _read_file(gpu, operator, engine, each, texts, numbers) for each in ([version] if version else measured)
    }
    fullest = max(_rows(table) for table in tables.values())
    if not fullest:
        raise _nothing(gpu, operator, engine, measured, texts)
    return next(table for table in reversed(tables.values()) if 2 * _rows(table) >= fullest)


def _rows(table: RawTable) -> int:
    return len(table.numbers["latency"])


def _file(gpu: str, operator: str, engine: str, version: str) -> Path:
    system = _system(resolve_gpu(gpu).name)
    family, table = OPERATORS[operator]
    return Path("systems", "data", str(system), family, engine, version, f"{table}.parquet")


def _read_file(
    gpu: str, operator: str, engine: str, version: str, texts: Mapping[str, str | None], numbers: Mapping[str, float]
) -> RawTable:
    """Read the matching rows of one file; rows of another engine (tables copied across) do not match."""
    source = _file(gpu, operator, engine, version)
    content = _parquet(package_folder() / source)
    wanted = {**dict.fromkeys(("framework", "version", "kernel_source")), **texts}
    words = {name: _text(content, name) for name in wanted}
    keep = np.char.lower(words["framework"]) == engine
    for name, value in wanted.items():
        if value is not None:
            keep &= words[name] == value
    values = {}
    for name, default in {"latency": np.nan, **numbers}.items():
        column = content.column(name).to_numpy() if name in content.column_names else np.full(len(keep), default)
        values[name] = np.asarray(column, dtype=np.float64)[keep]
    words = {name: column[keep] for name, column in words.items()}
    who = sorted(set(zip(words["framework"].tolist(), words["version"].tolist(), strict=True)))
    return RawTable(values, words, version, source.as_posix(), tuple(f"{name} {which}" for name, which in who))


def _parquet(path: Path) -> Any:
    """Read a Parquet file as an Arrow table (pyarrow comes with aiconfigurator-core)."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"reading Parquet {INSTALL}") from None
    try:
        return pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise InputError(f"measured table {path.name}: cannot be read ({error})") from None


def _text(content: Any, name: str) -> NDArray[np.str_]:
    """Return a text column; empty text where the table has no such column."""
    if name not in content.column_names:
        return np.full(content.num_rows, "", dtype=np.str_)
    encoded = content.column(name).combine_chunks().dictionary_encode()
    words: NDArray[np.str_] = np.array(encoded.dictionary.to_pylist(), dtype=np.str_)
    chosen: NDArray[np.str_] = words[encoded.indices.to_numpy()]
    return chosen


def _nothing(
    gpu: str, operator: str, engine: str, measured: tuple[str, ...], texts: Mapping[str, str | None]
) -> InputError:
    """Build the error for a dtype that was not measured; it names those that were."""
    asked = {name: value for name, value in texts.items() if value is not None}
    content = _parquet(package_folder() / _file(gpu, operator, engine, measured[-1]))
    there = (f"{name} {', '.join(sorted(set(_text(content, name).tolist())))}" for name in asked)
    wanted = ", ".join(f"{name} {value}" for name, value in asked.items())
    return InputError(f"{operator} on {gpu} with {engine} has no rows of {wanted}; newest table has {'; '.join(there)}")
