"""What an engine does unless told otherwise. vLLM 0.32; sources: vllm/engine/arg_utils.py, ``get_batch_defaults``."""

from __future__ import annotations

from costmodel.deployment import Deployment
from costmodel.hardware.profile import GpuProfile

GIB = 2**30
VLLM_VERSION = "0.32"
"""Release whose defaults these are; others differ (before it, all parts of 70 GiB and more had the middle row)."""
VLLM_SERVER_BUDGETS = ((160 * GIB, 16384), (70 * GIB, 8192), (0, 2048))
"""Default ``max_num_batched_tokens`` of ``vllm serve``: (device memory from, tokens); an A100 counts as the last row."""
VLLM_MAX_NUM_SEQS = ((70 * GIB, 1024), (0, 256))
"""Default ``max_num_seqs`` likewise."""


def default_token_budget(deployment: Deployment) -> int:
    """Return the ``max_num_batched_tokens`` that ``vllm serve`` takes by default on this GPU [tokens].

    Where a prompt cannot go in several steps, at least the longest sequence (``_set_default_max_num_seqs_and_batched_tokens_args``).
    """
    budget = part_token_budget(deployment.profile)
    architecture = deployment.architecture
    return budget if architecture.splits_prompts else max(budget, architecture.max_positions)


def part_token_budget(profile: GpuProfile) -> int:
    """Return :func:`default_token_budget` of a part [tokens]: it does not depend on the model."""
    return _by_memory(profile, VLLM_SERVER_BUDGETS)


def default_max_num_seqs(deployment: Deployment) -> int:
    """Return the ``max_num_seqs`` that ``vllm serve`` takes by default on this GPU [sequences]."""
    return _by_memory(deployment.profile, VLLM_MAX_NUM_SEQS)


def other_defaults(engine: str) -> tuple[str, ...]:
    """Return what to say of defaults where another engine than vLLM is asked for; nothing for vLLM."""
    if engine == "vllm":
        return ()
    return (
        f"only vLLM's defaults are known: token budget, sequences at once and what memory holds are those of vLLM {VLLM_VERSION}, "
        f"not of {engine}",
    )


def _by_memory(profile: GpuProfile, table: tuple[tuple[int, int], ...]) -> int:
    memory = profile.memory_visible.value
    if "a100" in profile.name.casefold():
        return table[-1][1]
    return next(value for least, value in table if memory >= least)
