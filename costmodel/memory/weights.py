"""Weights as one GPU holds them: its share of the model, and what an engine adds when it loads them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from costmodel.architecture.counts import ParameterRow, parameter_table
from costmodel.architecture.types import LayerKind
from costmodel.deployment import Deployment, stage_layers
from costmodel.memory.adapters import adapter_elements


@lru_cache(maxsize=1024)
def stage_patterns(deployment: Deployment) -> list[tuple[int, ...]]:
    """Return, for every pipeline stage, the layer kinds it holds, in order."""
    pattern, patterns, start = deployment.architecture.pattern, [], 0
    for size in stage_layers(len(pattern), deployment.pp):
        patterns.append(pattern[start : start + size])
        start += size
    return patterns


@lru_cache(maxsize=1024)
def stage_weight_rows(deployment: Deployment, stage: int) -> tuple[ParameterRow, ...]:
    """Return the weights that one GPU of a pipeline stage holds, by module and format, as they are stored.

    Matrices are divided by TP (or experts dealt by EP), embedding and lm_head by TP; norms and the vision tower are replicated.
    Embedding on the first stage, lm_head on the last; where they are tied and on different stages, each stage holds a copy.
    """
    architecture, patterns = deployment.architecture, stage_patterns(deployment)
    first, last = stage == 0, stage == len(patterns) - 1
    held = replace(
        architecture,
        pattern=patterns[stage],
        final_norm=architecture.final_norm and last,
        vision=architecture.vision if first else None,
        extra_parameters=architecture.extra_parameters if first else 0,
    )
    elsewhere = set() if first or (last and architecture.tied_embeddings) else {"embedding"}
    elsewhere |= set() if last else {"lm_head"}
    rows = parameter_table(held, deployment.tp, deployment.ep)
    return tuple(row for row in rows if row.module not in elsewhere)


@lru_cache(maxsize=1024)
def stage_weight_bytes(deployment: Deployment, stage: int) -> float:
    """Return the weights that one GPU of a pipeline stage holds, as they are stored [B]."""
    return float(sum(row.bytes for row in stage_weight_rows(deployment, stage)))


@lru_cache(maxsize=1024)
def loaded_weight_rows(deployment: Deployment, stage: int) -> tuple[ParameterRow, ...]:
    """Return the weights as an engine holds them after loading ("Model loading took … GiB").

    Three things come on top of what is stored: the table of sines and cosines of the rotary embedding, one row for every position that the
    config allows (Llama-3.1-8B: 131,072·128·2 B = 32 MiB, which makes 14.9575 GiB of weights the 14.9888 that vLLM logs; DeepSeek-V4
    has two in fp32, for layers with and without compressed keys: rotary_embedding/deepseek_scaling_rope.py), the padding of mxfp4 experts
    to the tiles of their kernels (:func:`expert_padding`), and buffers of LoRA adapters (:mod:`costmodel.memory.adapters`).
    """
    architecture, rows = deployment.architecture, []
    kinds = [architecture.kinds[index] for index in sorted(set(stage_patterns(deployment)[stage]))]
    for row in stage_weight_rows(deployment, stage):
        padded = row.module == "experts" and row.format == "mxfp4"
        factor = max((expert_padding(deployment, kind) for kind in kinds), default=1.0) if padded else 1.0
        rows.append(replace(row, bytes=row.bytes * factor))
    tables = {(_rotary_width(kind), kind.attention.compression > 0) for kind in kinds}
    if architecture.max_positions and architecture.rotary:
        entries = architecture.max_positions * sum(width for width, _ in tables)
        shared = any(kind.attention.shared_kv for kind in kinds)
        dtype, each = ("fp32", 4) if shared else (architecture.dtype, deployment.activation_bytes)
        rows.append(ParameterRow("rotary tables", entries, dtype, entries * each))
    last = len(stage_patterns(deployment)) - 1
    buffers = adapter_elements(deployment, stage_patterns(deployment)[stage], stage == 0, stage == last)
    if buffers:
        dtype = deployment.activation_dtype
        rows.append(ParameterRow("LoRA adapters", buffers, dtype, buffers * deployment.activation_bytes))
    return tuple(rows)


@lru_cache(maxsize=1024)
def loaded_weight_bytes(deployment: Deployment, stage: int) -> float:
    """Return the weights of one GPU of a pipeline stage after loading [B]: see :func:`loaded_weight_rows`."""
    return float(sum(row.bytes for row in loaded_weight_rows(deployment, stage)))


def expert_padding(deployment: Deployment, kind: LayerKind) -> float:
    """Return by what factor mxfp4 experts grow when they are laid out for their kernels.

    On Hopper, Triton's kernels want the summed dimension in multiples of 256 (gpt-oss-20b: 2,880 → 3,072; vLLM logs 13.47 GiB for 12.82
    stored). Marlin (before Hopper) and the Blackwell kernels pad the hidden width to 256 and the expert width to 128, AMD's both to 256
    (vllm/model_executor/layers/fused_moe/oracle/mxfp4.py, ``mxfp4_round_up_hidden_size_and_intermediate_size``).
    """
    ff = kind.feed_forward
    if ff.kind != "moe":
        return 1.0
    hidden, width = deployment.architecture.hidden, ff.intermediate / (1 if deployment.ep > 1 else deployment.tp)
    if deployment.profile.architecture == "hopper":
        inwards = 2 if ff.gated else 1
        return float((inwards * _up(hidden, 256) / hidden + _up(width, 256) / width) / (inwards + 1))
    tile = 256 if deployment.profile.architecture.startswith("cdna") else 128
    return float(_up(hidden, 256) * _up(width, tile) / (hidden * width))


def _up(value: float, step: int) -> float:
    return -(-value // step) * step


def _rotary_width(kind: LayerKind) -> float:
    """Return the width of a row of the rotary table: half sines, half cosines."""
    attention = kind.attention
    if attention.kind == "none":
        return 0.0
    return float(attention.rope_head_dim or attention.head_dim)
