"""What changed from release to release of vLLM in how it divides a GPU's memory. Each number with the release and source it is from.

The rule itself is the same in all of them (vllm/v1/worker/gpu_worker.py, ``determine_available_memory``)::

    KV cache = ceil(total · utilisation) − weights − activation peak − non-torch − CUDA graphs (where they are inside)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from costmodel.checks import text
from costmodel.engine import GIB, VLLM_VERSION
from costmodel.hardware.errors import InputError, shown

OLDEST = (0, 4)
"""Earliest release whose rule is described."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class VllmRules:
    """How one release of vLLM divides memory.

    Attributes:
        version: as text, ``0.32``.
        utilisation: default ``gpu_memory_utilization``. 0.9 to 0.20 (0.19.0 logs it), 0.92 in 0.32; the change came with the CUDA-graph
            estimate in 0.21, whose logs show 0.92.
        graphs_inside: whether CUDA graphs are estimated and taken from the budget: since 0.21 ("default since v0.21.0" in its log).
        sorted_sampler: whether top-k and top-p sort the vocabulary; since 0.17 a Triton kernel does without (pull request 33538).
        kept_workspace: whether the workspace of the experts outlives a layer, so that it is still there when tokens are sampled.
        compiled: whether the layers run through torch.compile (the V1 engine).
        non_torch: memory outside PyTorch on a single GPU, per GPU of a pipeline without TP, and with TP [B].
        tokens_by_concurrency: whether "GPU KV cache size" is concurrency times ``max_model_len`` (issue 40691 is about 0.19, 0.22.1 logs
            the new one) or blocks shared out evenly among the groups.
        in_flight: steps whose tokens a window has to hold; 2 with asynchronous scheduling (``VllmConfig.max_in_flight_tokens`` of 0.32).
    """

    version: str
    utilisation: float
    graphs_inside: bool
    sorted_sampler: bool
    kept_workspace: bool
    compiled: bool
    non_torch: tuple[float, float, float]
    tokens_by_concurrency: bool
    in_flight: int


def parse_version(version: object) -> tuple[int, int]:
    """Return major and minor of ``0.19``, ``v0.19.0``, ``0.19.1rc2``.

    Raises:
        InputError: not a version, or older than :data:`OLDEST`.
    """
    name = text(version, "engine-version")
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:[.+a-z].*)?", name.strip().casefold())
    if found is None:
        raise InputError(
            f"engine-version must be a release of vLLM such as {VLLM_VERSION} or 0.11.0, not {shown(version)}"
        )
    parsed = int(found[1]), int(found[2])
    if parsed < OLDEST:
        raise InputError(
            f"vLLM {name} is older than {OLDEST[0]}.{OLDEST[1]}, the earliest whose memory is described here"
        )
    return parsed


@lru_cache(maxsize=128)
def vllm_rules(version: str = VLLM_VERSION) -> VllmRules:
    """Return how a release of vLLM divides memory.

    Non-torch memory [GiB]: 0.13 on one H100 for 0.11 to 0.17 and 0.25 from 0.18, 0.55 with TP 2 in 0.11, 2.07 (TP 2) to 2.15 (TP 4) in 0.19
    where all-reduce fusion has its buffers, 0.07 per stage of a pipeline without TP; all llm-d planner,
    docs/empirical-vllm-memory-results.md and docs/accuracy/vllm-v0.19.0-accuracy-report.md.
    """
    release = parse_version(version)
    single, pipeline, parallel = (0.25, 0.07, 2.1) if release >= (0, 18) else (0.13, 0.07, 0.55)
    return VllmRules(
        version=f"{release[0]}.{release[1]}",
        utilisation=0.92 if release >= (0, 21) else 0.9,
        graphs_inside=release >= (0, 21),
        sorted_sampler=release < (0, 17),
        kept_workspace=release >= (0, 17),
        compiled=release >= (0, 8),
        non_torch=(single * GIB, pipeline * GIB, parallel * GIB),
        tokens_by_concurrency=release >= (0, 21),
        in_flight=2 if release >= (0, 30) else 1,
    )


UTILISATION = vllm_rules().utilisation
"""vLLM's default ``gpu_memory_utilization`` in the release whose defaults are known best."""
GEFORCE_NON_TORCH = 0.41 * GIB
"""Non-torch memory on a GeForce card without TP: mean of two RTX 3090 (0.35 GiB with vLLM 0.6.4, issue 10517; 0.47 with 0.2x)."""
