"""What to change where a model does not fit: the nearest value of each flag after which it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from costmodel.deployment import Deployment, divides, most_gpus
from costmodel.engine import GIB
from costmodel.memory.capacity import Capacity
from costmodel.memory.documents import MemoryAdvice, MemoryPlan
from costmodel.memory.engines import EngineSettings

Again = Callable[..., MemoryPlan | None]
"""Plans again with some flags changed; None where that cannot be."""
DTYPES = ("fp8", "int8", "int4")
"""Weight dtypes that are tried, largest first."""
MOST_GPUS = 1024


def advise(deployment: Deployment, settings: EngineSettings, made: Capacity, again: Again) -> tuple[MemoryAdvice, ...]:
    """Return changes that make it fit, one flag each, the smallest change of each first.

    Args:
        deployment, settings: that do not fit.
        made: what there is of a KV cache as it is.
        again: plans again with some flags changed.
    """
    found, longest = [], made.longest
    if settings.kv_cache_bytes is not None:
        found += _smaller_cache(settings.kv_cache_bytes, made.budgets[made.fullest].excess, again)
    if longest:
        found += _first("--max-model-len", [("max_model_len", longest)], again)
    found += _first("--gpu-memory-utilization", [("gpu_memory_utilization", 0.95)], again, settings.fraction < 0.95)
    if settings.engine == "vllm":
        found += _first("--max-num-seqs", _halves("max_num_seqs", settings.sequences), again)
    if settings.engine != "sglang":
        found += _first(
            "--max-num-batched-tokens", _halves("max_num_batched_tokens", settings.token_budget, 256), again
        )
    found += _first("--kv-dtype", [("kv_dtype", "fp8")], again, deployment.kv_dtype != "fp8" and longest > 0)
    found += _first("--dtype", [("dtype", name) for name in DTYPES if name != deployment.dtype], again)
    found += _fewer_adapters(deployment, again)
    architecture, ep = deployment.architecture, deployment.ep
    most = most_gpus(architecture)
    sizes = [size for size in range(deployment.tp + 1, min(most, MOST_GPUS) + 1) if divides(architecture, size, ep)]
    found += _first("--tp", [("tp", size) for size in sizes], again)
    stages = [size for size in (2, 4, 8, 16, 32) if deployment.pp < size <= architecture.layer_count]
    found += _first("--pp", [("pp", size) for size in stages], again, not any(each.change == "--tp" for each in found))
    return tuple(found)


def _smaller_cache(given: int, excess: float, again: Again) -> list[MemoryAdvice]:
    """Return the largest KV cache that the GPU has room for, in hundredths of a GiB, as advice; nothing if it would not do."""
    hundredths = math.floor((given - excess) / GIB * 100)
    if not excess or hundredths < 1:
        return []
    plan = again(kv_cache_memory_bytes=int(hundredths / 100 * GIB))
    if plan is None or not plan.memory.fits:
        return []
    concurrency = plan.memory.max_concurrency
    return [MemoryAdvice(change="--kv-cache-memory-gib", value=f"{hundredths / 100:g}", max_concurrency=concurrency)]


def _fewer_adapters(deployment: Deployment, again: Again) -> list[MemoryAdvice]:
    """Return fewer places for LoRA adapters, as advice; nothing if there are none or if it would not do."""
    lora = deployment.lora
    for _, adapters in _halves("adapters", 1 if lora is None else int(lora.adapters)):
        plan = again(lora=replace(lora, adapters=adapters)) if lora is not None else None
        if plan is not None and plan.memory.fits:
            return [MemoryAdvice(change="--loras", value=str(adapters), max_concurrency=plan.memory.max_concurrency)]
    return []


def _halves(name: str, value: int, least: int = 1) -> list[tuple[str, Any]]:
    tried = []
    while value // 2 >= least:
        value //= 2
        tried.append((name, value))
    return tried


def _first(flag: str, tried: Iterable[tuple[str, Any]], again: Again, sensible: bool = True) -> list[MemoryAdvice]:
    """Return the first value after which it fits, as advice; nothing if there is none."""
    if not sensible:
        return []
    for name, value in tried:
        plan = again(**{name: value})
        if plan is not None and plan.memory.fits:
            return [MemoryAdvice(change=flag, value=str(value), max_concurrency=plan.memory.max_concurrency)]
    return []
