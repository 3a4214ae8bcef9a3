"""What to change where a model does not fit: the nearest value of each flag after which it does."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from costmodel.architecture.formats import ELEMENT_BITS
from costmodel.deployment import Deployment, divides, most_gpus
from costmodel.dtypes import main_format
from costmodel.engine import GIB
from costmodel.memory.capacity import Capacity
from costmodel.memory.documents import MemoryAdvice, MemoryPlan
from costmodel.memory.engines import EngineSettings

Again = Callable[..., MemoryPlan | None]
"""Plans again with some flags changed; None where that cannot be."""
DTYPES = ("fp8", "int8", "int4")
"""Weight dtypes that are tried, largest first."""
MOST_GPUS = 1024
LEAST_LENGTH = 1024
"""Sequences that are shorter than this are no use [tokens]."""
MOST_FRACTION = 0.95
"""More of a GPU's memory than this is not advised."""


def advise(deployment: Deployment, settings: EngineSettings, made: Capacity, again: Again) -> tuple[MemoryAdvice, ...]:
    """Return changes that make it fit, one flag each, the smallest change of each first.

    Args:
        deployment, settings: that do not fit.
        made: what there is of a KV cache as it is.
        again: plans again with some flags changed.
    """
    found, longest = [], made.longest
    if settings.kv_cache_bytes is not None:
        found += _other_cache(settings.kv_cache_bytes, settings, made, again)
    if longest:
        found += _first("--max-model-len", [("max_model_len", longest)], again)
    if settings.kv_cache_bytes is None:
        found += _larger_share(settings.fraction, again)
    if settings.engine == "vllm":
        found += _first("--max-num-seqs", _halves("max_num_seqs", settings.sequences), again)
    if settings.engine != "sglang":
        found += _first(
            "--max-num-batched-tokens", _halves("max_num_batched_tokens", settings.token_budget, 256), again
        )
    found += _first("--kv-dtype", [("kv_dtype", "fp8")], again, deployment.kv_dtype != "fp8" and longest > 0)
    fewer = [name for name in DTYPES if ELEMENT_BITS[name] < ELEMENT_BITS[main_format(deployment.architecture).name]]
    found += _first("--dtype", [("dtype", name) for name in fewer], again)
    found += _fewer_adapters(deployment, again)
    architecture, ep = deployment.architecture, deployment.ep
    most = most_gpus(architecture)
    sizes = [size for size in range(deployment.tp + 1, min(most, MOST_GPUS) + 1) if divides(architecture, size, ep)]
    found += _more_gpus(sizes, again, not longest)
    stages = [size for size in (2, 4, 8, 16, 32) if deployment.pp < size <= architecture.layer_count]
    found += _first("--pp", [("pp", size) for size in stages], again, not any(each.change == "--tp" for each in found))
    return tuple(found)


def _other_cache(given: int, settings: EngineSettings, made: Capacity, again: Again) -> list[MemoryAdvice]:
    """Return a KV cache that does, in hundredths of a GiB, as advice: the largest that has room, or the smallest that is enough."""
    if excess := made.budgets[made.fullest].excess:
        hundredths = math.floor((given - excess) / GIB * 100)
    else:
        blocks = made.per_sequence + (settings.engine == "vllm")  # and the null block
        hundredths = math.ceil(blocks * max(made.block_bytes) / GIB * 100)
    plan = again(kv_cache_memory_bytes=int(hundredths / 100 * GIB)) if hundredths >= 1 else None
    if plan is None or not plan.memory.fits:
        return []
    value, concurrency = f"{hundredths / 100:g}", plan.memory.max_concurrency
    return [MemoryAdvice(change="--kv-cache-memory-gib", value=value, max_concurrency=concurrency)]


def _larger_share(fraction: float, again: Again) -> list[MemoryAdvice]:
    """Return the smallest share of a GPU's memory with which it fits, in hundredths, as advice; nothing where the largest is too small."""
    hundredths = range(math.floor(fraction * 100 + 1e-9) + 1, round(MOST_FRACTION * 100) + 1)
    plans: dict[int, MemoryPlan | None] = {}

    def fits(number: int) -> bool:
        if number not in plans:
            plans[number] = again(gpu_memory_utilization=number / 100)
        plan = plans[number]
        return plan is not None and plan.memory.fits

    if not hundredths or not fits(hundredths[-1]):
        return []
    number = hundredths[bisect.bisect_left(hundredths, True, key=fits)]
    plan = plans[number]
    assert plan is not None
    concurrency = plan.memory.max_concurrency
    return [MemoryAdvice(change="--gpu-memory-utilization", value=f"{number / 100:g}", max_concurrency=concurrency)]


def _more_gpus(sizes: list[int], again: Again, shorter: bool) -> list[MemoryAdvice]:
    """Return the smallest tensor-parallel size with which it fits; before it one that is smaller, where a shorter sequence fits."""
    found: list[MemoryAdvice] = []
    for size in sizes:
        plan = again(tp=size)
        if plan is None:
            continue
        if plan.memory.fits:
            return [*found, MemoryAdvice(change="--tp", value=str(size), max_concurrency=plan.memory.max_concurrency)]
        length = plan.memory.max_model_len
        if (
            shorter
            and not found
            and length >= LEAST_LENGTH
            and (plan := again(tp=size, max_model_len=length))
            and plan.memory.fits
        ):
            concurrency = plan.memory.max_concurrency
            found.append(
                MemoryAdvice(change="--tp", value=str(size), max_model_len=length, max_concurrency=concurrency)
            )
    return found


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
