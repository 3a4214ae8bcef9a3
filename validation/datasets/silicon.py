"""Kernel timings of the installed ``aiconfigurator-core``, one reader per operator.

Files hold milliseconds and elements; tables hold seconds and bytes. What ``isl`` and ``step`` mean was read from the collectors
(``collector/<engine>/collect_*.py`` of https://github.com/ai-dynamo/aiconfigurator) and is stated at each column.

>>> table = gemm("h100-sxm", dtype="bf16")  # doctest: +SKIP
>>> table.seconds[table.tokens == 8192]  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from costmodel.hardware.catalog import resolve_gpu
from costmodel.validation.datasets.formats import quantisation
from costmodel.validation.datasets.package import (
    Available,
    RawTable,
    available,
    package_folder,
    read,
    unmapped_systems,
    versions,
)
from costmodel.validation.datasets.tables import (
    AllReduceTable,
    Column,
    DecodeTable,
    GemmTable,
    MlaTable,
    MoeTable,
    PrefillTable,
    Words,
)

__all__ = [
    "Available",
    "all_reduce",
    "available",
    "decode_attention",
    "gemm",
    "mla_decode",
    "mla_prefill",
    "moe",
    "package_folder",
    "prefill_attention",
    "unmapped_systems",
    "versions",
]


class _Origin(TypedDict):
    gpu: str
    engine: str
    engine_version: str
    dtype: str
    source: str
    measured_by: tuple[str, ...]
    seconds: Column
    kernels: Words


def _origin(raw: RawTable, gpu: str, engine: str, dtype: str) -> _Origin:
    """Return what every table has."""
    return {
        "gpu": resolve_gpu(gpu).name,
        "engine": engine,
        "engine_version": raw.version,
        "dtype": dtype,
        "source": raw.source,
        "measured_by": raw.measured_by,
        "seconds": raw.numbers["latency"] * 1e-3,
        "kernels": raw.texts["kernel_source"],
    }


def gemm(gpu: str, engine: str = "vllm", dtype: str = "bf16", version: str | None = None) -> GemmTable:
    """Read linear layers.

    Args:
        gpu: a GPU name.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        dtype: key of :data:`~costmodel.validation.datasets.formats.QUANTISATIONS`.
        version: version of the engine; None for the newest complete table.

    Raises:
        InputError: aiconfigurator-core is not installed, or this was not measured.
    """
    texts = {"gemm_dtype": quantisation(dtype).file_name}
    raw = read(gpu, "gemm", engine, version, texts, dict.fromkeys("mnk", np.nan))
    numbers = raw.numbers
    return GemmTable(**_origin(raw, gpu, engine, dtype), tokens=numbers["m"], outputs=numbers["n"], inputs=numbers["k"])


_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")


def _attention(gpu: str, operator: str, engine: str, dtype: str, kv_dtype: str, version: str | None) -> RawTable:
    texts = {"attn_dtype": quantisation(dtype).file_name, "kv_cache_dtype": quantisation(kv_dtype).file_name}
    return read(gpu, operator, engine, version, texts, {**dict.fromkeys(_ATTENTION, np.nan), "window_size": 0.0})


class _Heads(TypedDict):
    kv_dtype: str
    batch: Column
    query_heads: Column
    kv_heads: Column
    head_dim: Column
    window: Column


def _heads(raw: RawTable, kv_dtype: str) -> _Heads:
    """Return what tables of attention have in common; for full attention the file writes window 0, or has no column."""
    numbers = raw.numbers
    return {
        "kv_dtype": kv_dtype,
        "batch": numbers["batch_size"],
        "query_heads": numbers["num_heads"],
        "kv_heads": numbers["num_key_value_heads"],
        "head_dim": numbers["head_dim"],
        "window": np.where(numbers["window_size"] > 0, numbers["window_size"], np.inf),
    }


def prefill_attention(
    gpu: str, engine: str = "vllm", dtype: str = "bf16", kv_dtype: str = "bf16", version: str | None = None
) -> PrefillTable:
    """Read attention of whole prompts; arguments as of :func:`gemm`, ``dtype`` that of the queries."""
    raw = _attention(gpu, "prefill_attention", engine, dtype, kv_dtype, version)
    return PrefillTable(
        **_origin(raw, gpu, engine, dtype),
        **_heads(raw, kv_dtype),
        tokens=raw.numbers["isl"],
        cached=raw.numbers["step"],
    )


def decode_attention(
    gpu: str, engine: str = "vllm", dtype: str = "bf16", kv_dtype: str = "bf16", version: str | None = None
) -> DecodeTable:
    """Read attention of decoding sequences; arguments as of :func:`gemm`, ``dtype`` that of the queries."""
    raw = _attention(gpu, "decode_attention", engine, dtype, kv_dtype, version)
    return DecodeTable(
        **_origin(raw, gpu, engine, dtype),
        **_heads(raw, kv_dtype),
        context=raw.numbers["step"],
    )


def all_reduce(gpu: str, engine: str = "vllm", dtype: str = "bf16", version: str | None = None) -> AllReduceTable:
    """Read all-reduces; arguments as of :func:`gemm`."""
    wanted = quantisation(dtype)
    texts = {"allreduce_dtype": wanted.file_name, "backend": None}
    raw = read(gpu, "all_reduce", engine, version, texts, dict.fromkeys(("num_gpus", "message_size"), np.nan))
    how = raw.texts["backend"]
    return AllReduceTable(
        **_origin(raw, gpu, engine, dtype),
        gpus=raw.numbers["num_gpus"],
        bytes=raw.numbers["message_size"] * wanted.activation_bytes,
        graph=(how == "") | np.char.endswith(how, "_graph"),
    )


_MOE = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")


def moe(gpu: str, engine: str = "vllm", dtype: str = "bf16", version: str | None = None) -> MoeTable:
    """Read routed experts; arguments as of :func:`gemm`."""
    texts = {"moe_dtype": quantisation(dtype).file_name, "distribution": None}
    raw = read(gpu, "moe", engine, version, texts, dict.fromkeys(_MOE, np.nan))
    numbers = raw.numbers
    skews = {name: _skew(name) for name in set(raw.texts["distribution"].tolist())}
    return MoeTable(
        **_origin(raw, gpu, engine, dtype),
        tokens=numbers["num_tokens"],
        hidden=numbers["hidden_size"],
        width=numbers["inter_size"],
        top_k=numbers["topk"],
        experts=numbers["num_experts"],
        tensor_parallel=numbers["moe_tp_size"],
        expert_parallel=numbers["moe_ep_size"],
        skew=np.array([skews[name] for name in raw.texts["distribution"].tolist()], dtype=np.float64),
    )


def _skew(distribution: str) -> float:
    return 0.0 if distribution == "balanced" else float(distribution.removeprefix("power_law_"))


def mla_prefill(
    gpu: str,
    engine: str = "vllm",
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    linear_dtype: str = "bf16",
    version: str | None = None,
) -> MlaTable:
    """Read latent attention of whole prompts; arguments as of :func:`mla_decode`."""
    return _mla("mla_prefill", gpu, engine, dtype, kv_dtype, linear_dtype, version)


def mla_decode(
    gpu: str,
    engine: str = "vllm",
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    linear_dtype: str = "bf16",
    version: str | None = None,
) -> MlaTable:
    """Read latent attention of decoding sequences.

    Args:
        gpu: a GPU name.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        dtype: format of the queries.
        kv_dtype: format of the KV cache.
        linear_dtype: format of the projections around the kernel, which are then part of the time; empty for the kernel alone
            (measured with SGLang and TensorRT-LLM only).
        version: version of the engine; None for the newest complete table.

    Raises:
        InputError: aiconfigurator-core is not installed, or this was not measured.
    """
    return _mla("mla_decode", gpu, engine, dtype, kv_dtype, linear_dtype, version)


def _mla(
    operator: str, gpu: str, engine: str, dtype: str, kv_dtype: str, linear_dtype: str, version: str | None
) -> MlaTable:
    texts = {"mla_dtype": quantisation(dtype).file_name, "kv_cache_dtype": quantisation(kv_dtype).file_name}
    if linear_dtype:
        operator, texts["gemm_type"] = f"{operator}_module", quantisation(linear_dtype).file_name
    raw = read(gpu, operator, engine, version, texts, dict.fromkeys(("batch_size", "isl", "step", "num_heads"), np.nan))
    numbers = raw.numbers
    return MlaTable(
        **_origin(raw, gpu, engine, dtype),
        kv_dtype=kv_dtype,
        linear_dtype=linear_dtype,
        batch=numbers["batch_size"],
        tokens=numbers["isl"],
        cached=numbers["step"],
        heads=numbers["num_heads"],
    )
