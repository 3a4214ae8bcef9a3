"""Whether a workload fits, by vLLM's start-up rule at its default settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs
from costmodel.memory.blocks import BLOCK_TOKENS, stage_kv_bytes
from costmodel.memory.engines import default_settings, stage_budget


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the fullest GPU [B], and what fits in it."""

    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    usable_bytes: float
    """Visible memory times utilisation."""
    kv_available_bytes: float
    """What is left for the KV cache; negative if not even the weights fit."""
    kv_bytes_per_token: float
    kv_tokens: int
    """Tokens that fit when every layer keeps every token; with a pipeline, in the stage that holds the fewest."""
    kv_needed_bytes: float
    """KV cache of the workload: every stream and every prompt, in whole blocks."""
    fits: bool


def memory_of(
    deployment: Deployment,
    streams: int,
    context: int,
    prompt: int,
    prompts: int,
    token_budget: int,
    max_num_seqs: int | None = None,
) -> Memory:
    """Return the memory of the fullest GPU for ``streams`` at ``context`` beside ``prompts`` prompts of ``prompt`` tokens.

    Args:
        deployment: model and part.
        streams, context: sequences decoding and their tokens.
        prompt, prompts: tokens of a prompt, and how many of them.
        token_budget: tokens per step the engine is set to, for the activation peak.
        max_num_seqs: sequences that the engine is set to, for the sampler's peak; by default those it takes on this GPU, at least
            ``streams``.
    """
    rows = max(default_max_num_seqs(deployment), streams) if max_num_seqs is None else max_num_seqs
    settings = replace(
        default_settings(deployment), token_budget=token_budget, sequences=min(rows, max(token_budget, streams))
    )
    stages = []
    for stage in range(deployment.pp):
        budget = stage_budget(deployment, stage, settings)
        per_token = stage_kv_bytes(deployment, stage)
        needed = streams * stage_kv_bytes(deployment, stage, context + 1, token_budget)
        needed += prompts * stage_kv_bytes(deployment, stage, prompt, token_budget)
        blocks = max(budget.available, 0.0) // (per_token * BLOCK_TOKENS)
        stages.append(
            Memory(
                weights_bytes=budget.weights,
                activation_bytes=budget.activations,
                non_torch_bytes=budget.non_torch,
                cuda_graph_bytes=budget.cuda_graphs,
                usable_bytes=budget.usable,
                kv_available_bytes=budget.available,
                kv_bytes_per_token=per_token,
                kv_tokens=int(blocks) * BLOCK_TOKENS,
                kv_needed_bytes=needed,
                fits=needed <= budget.available,
            )
        )
    fullest = min(stages, key=lambda memory: memory.kv_available_bytes - memory.kv_needed_bytes)
    return replace(fullest, kv_tokens=min(memory.kv_tokens for memory in stages))
