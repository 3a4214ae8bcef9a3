"""Whether a workload fits, by vLLM's start-up rule at its default settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.deployment import Deployment
from costmodel.memory.blocks import stage_kv_bytes
from costmodel.memory.engines import NOTHING, Beside
from costmodel.memory.pool import pool_of, workload_settings


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
    """KV cache of the workload: the blocks of every stream and every prompt."""
    kv_blocks: int
    """Blocks that sequences can have, with a pipeline in the stage that holds the fewest; the null block is not one of them."""
    kv_blocks_needed: int
    """Blocks of the workload."""
    fits: bool
    """Whether those are enough."""


def memory_of(
    deployment: Deployment,
    streams: int,
    context: int,
    prompt: int,
    prompts: int,
    token_budget: int,
    max_num_seqs: int | None = None,
    block_tokens: int | None = None,
    beside: Beside = NOTHING,
) -> Memory:
    """Return the memory of the fullest GPU for ``streams`` at ``context`` beside ``prompts`` prompts of ``prompt`` tokens.

    Args:
        deployment: model and part.
        streams, context: sequences decoding and their tokens.
        prompt, prompts: tokens of a prompt, and how many of them.
        token_budget: tokens per step the engine is set to, for the activation peak.
        max_num_seqs: sequences that the engine is set to, for the sampler's peak; by default those it takes on this GPU, at least
            as many as there are.
        block_tokens: tokens per KV block; vLLM's on this part by default.
        beside: what is held beside the model.
    """
    settings = replace(workload_settings(deployment, token_budget, streams + prompts, max_num_seqs), beside=beside)
    if block_tokens is not None:
        settings = replace(settings, block_tokens=block_tokens)
    pool = pool_of(deployment, settings)
    needed = int(pool.needed(streams, context, prompts, prompt))
    stages = [
        Memory(
            weights_bytes=budget.weights,
            activation_bytes=budget.activations,
            non_torch_bytes=budget.non_torch,
            cuda_graph_bytes=budget.cuda_graphs,
            usable_bytes=budget.usable,
            kv_available_bytes=budget.available,
            kv_bytes_per_token=stage_kv_bytes(deployment, stage) + beside.kv_per_token * (stage == deployment.pp - 1),
            kv_tokens=int(pool.tokens),
            kv_needed_bytes=float(needed * pool.block_bytes[stage]),
            kv_blocks=int(pool.usable),
            kv_blocks_needed=needed,
            fits=needed <= pool.usable,
        )
        for stage, budget in enumerate(pool.budgets)
    ]
    return min(stages, key=lambda memory: memory.kv_available_bytes - memory.kv_needed_bytes)
