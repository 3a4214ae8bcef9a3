"""What to change where a model does not fit: the nearest value of each flag after which it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from costmodel.deployment import Deployment, divides
from costmodel.memory.documents import MemoryAdvice, MemoryPlan
from costmodel.memory.engines import EngineSettings

Again = Callable[..., MemoryPlan | None]
"""Plans again with some flags changed; None where that cannot be."""
DTYPES = ("fp8", "int8", "int4")
"""Weight dtypes that are tried, largest first."""
MOST_GPUS = 1024


def advise(deployment: Deployment, settings: EngineSettings, longest: int, again: Again) -> tuple[MemoryAdvice, ...]:
    """Return changes that make it fit, one flag each, the smallest change of each first.

    Args:
        deployment, settings: that do not fit.
        longest: longest sequence that fits as it is; 0 for none.
        again: plans again with some flags changed.
    """
    found = []
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
    architecture, ep = deployment.architecture, deployment.ep
    most = max(int(kind.attention.query_heads) for kind in architecture.kinds)
    sizes = [size for size in range(deployment.tp + 1, min(most, MOST_GPUS) + 1) if divides(architecture, size, ep)]
    found += _first("--tp", [("tp", size) for size in sizes], again)
    stages = [size for size in (2, 4, 8, 16, 32) if deployment.pp < size <= architecture.layer_count]
    found += _first("--pp", [("pp", size) for size in stages], again, not any(each.change == "--tp" for each in found))
    return tuple(found)


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
