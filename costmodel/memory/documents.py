"""The memory part of ``costmodel.plan/1``. All quantities in SI units; keys never change (docs/json.md)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from costmodel.documents import GpuInfo, LoraInfo, ModelInfo
from costmodel.hardware.profile import Frozen


class EngineFlags(Frozen):
    """What the engine is told, defaults filled in."""

    name: Literal["vllm", "sglang", "trtllm"]
    version: str | None
    """Release of vLLM whose rule is applied; None for engines of which one rule is described."""
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    memory_fraction: float
    """``gpu_memory_utilization``, ``mem_fraction_static`` or ``free_gpu_memory_fraction``."""
    block_tokens: int
    enforce_eager: bool
    hybrid_kv_cache: bool
    kv_cache_memory_bytes: int | None = None
    """The KV cache where it was given and not worked out."""

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class WeightsRow(Frozen):
    """Weights of one module in one format, on the fullest GPU."""

    module: str
    format: str
    bytes: float


class StageMemory(Frozen):
    """Memory of one GPU of a pipeline stage [B]."""

    layers: int
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    kv_available_bytes: float
    kv_bytes_per_block: int
    kv_blocks: int
    """That this stage could hold; the pool has as many as the stage with fewest."""


class MemoryPlanInfo(Frozen):
    """Memory of the GPU that holds the fewest KV blocks [B], and what fits in it."""

    total_bytes: float
    """That the driver shows."""
    usable_bytes: float
    """That the engine may take."""
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    cuda_graph_bytes: float
    """Taken from the budget; 0 where CUDA graphs lie outside it."""
    kv_available_bytes: float
    """Negative where not even the rest fits."""
    kv_bytes_per_token: float
    """On one GPU, all its layers."""
    kv_blocks: int
    kv_block_tokens: int
    kv_groups: int
    """Groups of layers that draw blocks from the pool; 1 unless windows differ."""
    kv_tokens: int
    """As the engine prints it."""
    kv_blocks_per_sequence: int
    """Of the longest sequence, all groups together."""
    max_concurrency: float
    """Sequences of the longest kind that fit at once."""
    max_model_len: int
    """Longest sequence that fits, up to what the model allows."""
    fits: bool
    """Whether one sequence of the length asked for fits: otherwise the engine does not start."""


class MemoryAdvice(Frozen):
    """One change after which it fits."""

    change: str
    """The flag that changes."""
    value: str
    """Nearest value of it that fits."""
    max_model_len: int | None = None
    """Longest sequence that fits with it, where the one asked for does not; None where it does."""
    max_concurrency: float


class MemoryPlan(Frozen):
    """``costmodel.plan/1`` of ``costmodel plan memory``: the answer of :func:`costmodel.plan_memory`."""

    schema_: Literal["costmodel.plan/1"] = Field(default="costmodel.plan/1", alias="schema")
    plan: Literal["memory"] = "memory"
    model: ModelInfo
    gpu: GpuInfo
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    dtype: str
    kv_dtype: str
    lora: LoraInfo | None = None
    """None without adapters."""
    engine: EngineFlags
    memory: MemoryPlanInfo
    weights: tuple[WeightsRow, ...]
    stages: tuple[StageMemory, ...]
    log: tuple[str, ...]
    """Lines that the engine would print at start-up."""
    binds: str
    """What limits the KV cache, or keeps the engine from starting."""
    advice: tuple[MemoryAdvice, ...] = ()
    """Where it does not fit: changes after which it does."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
