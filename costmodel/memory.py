"""Memory of one GPU: weights, KV cache, and whether a workload fits by vLLM's start-up rule.

Rule (vllm/v1/worker/gpu_worker.py): KV cache = total·utilisation − weights − activation peak − non-torch memory − CUDA graphs.
Weights and KV bytes are exact; the other three are allowances, stated with their source below.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from costmodel.architecture.counts import kv_elements_per_token, parameter_table
from costmodel.deployment import Deployment, stage_layers
from costmodel.engine import GIB, default_max_num_seqs

UTILISATION = 0.92
"""vLLM's default ``gpu_memory_utilization`` (0.32)."""
BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default on GPUs."""
SAMPLER_BYTES = 37.7
"""Sampler peak per (sequence, vocabulary entry) [B]: 4.76 GiB at V = 128k, 5.64 at 152k, 7.38 at 201k with 1,024 sequences on an
H100 (vLLM 0.11; llm-d-planner, docs/empirical-vllm-memory-results.md): 38.6 kB · V."""
NON_TORCH_BYTES = {1: 0.13 * GIB, 2: 0.55 * GIB}
"""Memory outside PyTorch on one GPU, and with NCCL on several (same source)."""
CUDA_GRAPH_BYTES = 0.36 * GIB
"""Upper end of what vLLM ≥ 0.21 sets aside for CUDA graphs on ordinary models (vLLM issue 45178)."""


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


@lru_cache(maxsize=1024)
def stage_patterns(deployment: Deployment) -> list[tuple[int, ...]]:
    """Return, for every pipeline stage, the layer kinds it holds, in order."""
    pattern, patterns, start = deployment.architecture.pattern, [], 0
    for size in stage_layers(len(pattern), deployment.pp):
        patterns.append(pattern[start : start + size])
        start += size
    return patterns


@lru_cache(maxsize=1024)
def stage_weight_bytes(deployment: Deployment, stage: int) -> float:
    """Return the weights that one GPU of a pipeline stage holds [B].

    Matrices are divided by TP (or experts dealt by EP), embedding and lm_head by TP; norms and the vision tower are replicated.
    Embedding on the first stage, lm_head on the last; where they are tied and on different stages, each stage holds a copy.
    """
    architecture, patterns = deployment.architecture, stage_patterns(deployment)
    first, last = stage == 0, stage == len(patterns) - 1
    held = replace(
        architecture,
        pattern=patterns[stage],
        final_norm=architecture.final_norm and last,
        vision_parameters=architecture.vision_parameters if first else 0,
        extra_parameters=architecture.extra_parameters if first else 0,
    )
    elsewhere = set() if first or (last and architecture.tied_embeddings) else {"embedding"}
    elsewhere |= set() if last else {"lm_head"}
    rows = parameter_table(held, deployment.tp, deployment.ep)
    return float(sum(row.bytes for row in rows if row.module not in elsewhere))


def kv_blocks(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Return the KV blocks that one sequence takes: whole ones, so its last may be partly empty."""
    return -(-tokens // block_tokens)


def stage_kv_bytes(
    deployment: Deployment, stage: int, context: int | None = None, chunk: int = 0, hybrid: bool = True
) -> float:
    """Return KV-cache bytes on one GPU of a stage: per token, or of one sequence of ``context`` tokens in whole blocks [B].

    A windowed layer keeps min(context, window + chunk) tokens of a sequence, in whole blocks like any other; all of them where the
    engine's hybrid allocator is off.
    """
    total = 0.0
    for index, layers in Counter(stage_patterns(deployment)[stage]).items():
        attention = deployment.architecture.kinds[index].attention
        kept: float = 1
        if context is not None:
            held = context if attention.window is None or not hybrid else min(context, attention.window + chunk)
            kept = kv_blocks(held) * BLOCK_TOKENS
        total += kv_elements_per_token(attention, deployment.tp) * deployment.kv_bytes * kept * layers
    return total


def activation_parts(deployment: Deployment, token_budget: int, sequences: int) -> tuple[float, float]:
    """Return the activation peaks of the layers and of the sampler, which are not held at the same time [B].

    Layers: budget·b_a·(3·d_ff/t + 3·d), which gives 108 KiB per token for Llama-3.1-8B as measured (vLLM issue 10517: 2.07 GiB at
    20,000 tokens). Sampler: :data:`SAMPLER_BYTES`·V·sequences, at least as many as the engine runs by default.
    """
    architecture = deployment.architecture
    widths = []
    for kind in architecture.kinds:
        ff = kind.feed_forward
        routed = ff.intermediate * (ff.experts_per_token if ff.kind == "moe" else 1)
        widths.append(routed + ff.shared_intermediate)
    layers = token_budget * deployment.activation_bytes * 3 * (max(widths) / deployment.tp + architecture.hidden)
    most = max(default_max_num_seqs(deployment), sequences)
    return float(layers), float(SAMPLER_BYTES * most * architecture.vocabulary)


def memory_of(
    deployment: Deployment, streams: int, context: int, prompt: int, prompts: int, token_budget: int
) -> Memory:
    """Return the memory of the fullest GPU for ``streams`` at ``context`` beside ``prompts`` prompts of ``prompt`` tokens.

    Args:
        deployment: model and part.
        streams, context: sequences decoding and their tokens.
        prompt, prompts: tokens of a prompt, and how many of them.
        token_budget: tokens per step the engine is set to, for the activation peak.
    """
    profile = deployment.profile
    visible = profile.memory_visible.value
    usable = visible * UTILISATION
    activations = max(activation_parts(deployment, token_budget, streams))
    non_torch = NON_TORCH_BYTES[min(max(deployment.tp, deployment.ep), 2)]
    stages = []
    for stage in range(deployment.pp):
        weights = stage_weight_bytes(deployment, stage)
        available = usable - weights - activations - non_torch - CUDA_GRAPH_BYTES
        per_token = stage_kv_bytes(deployment, stage)
        needed = streams * stage_kv_bytes(deployment, stage, context + 1, token_budget)
        needed += prompts * stage_kv_bytes(deployment, stage, prompt, token_budget)
        blocks = max(available, 0.0) // (per_token * BLOCK_TOKENS)
        stages.append(
            Memory(
                weights_bytes=weights,
                activation_bytes=activations,
                non_torch_bytes=non_torch,
                cuda_graph_bytes=CUDA_GRAPH_BYTES,
                usable_bytes=usable,
                kv_available_bytes=available,
                kv_bytes_per_token=per_token,
                kv_tokens=int(blocks) * BLOCK_TOKENS,
                kv_needed_bytes=needed,
                fits=needed <= available,
            )
        )
    fullest = min(stages, key=lambda memory: memory.kv_available_bytes - memory.kv_needed_bytes)
    return replace(fullest, kv_tokens=min(memory.kv_tokens for memory in stages))
