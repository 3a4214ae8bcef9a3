"""How each engine divides a GPU: what it takes for itself, and what is left for the KV cache.

``vllm``    ceil(total · utilisation) − weights − activation peak − non-torch − CUDA graphs (since 0.21)
``sglang``  free at start · mem_fraction_static − weights − what the process took meanwhile
``trtllm``  (total − weights − peak of a profile run) · free_gpu_memory_fraction

Sources: vllm/v1/worker/gpu_worker.py; sglang python/sglang/srt/model_executor (``profile_max_num_token``: free after loading − free before
· (1 − fraction)) and server_args.py (``_handle_gpu_memory_settings``); tensorrt_llm/_torch/pyexecutor/_util.py (``_cal_max_memory``:
(total − peak) · fraction, 0.9 by default).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from costmodel.deployment import Deployment
from costmodel.engine import GIB, default_max_num_seqs, default_token_budget
from costmodel.equations.numerics import Value, maximum, minimum
from costmodel.memory.activations import common_bytes, layer_bytes, stage_activation_bytes
from costmodel.memory.rules import GEFORCE_NON_TORCH, MIB, VllmRules, vllm_rules
from costmodel.memory.weights import loaded_weight_bytes, stage_patterns

GRAPH_BYTES = 0.25 * MIB
"""CUDA-graph estimate per layer and captured graph [B]: fitted to 0.84 GiB for Llama-3.1-8B (102 graphs; H100, vLLM 0.19 logs it without
using it) and 0.79 for a model of 42 layers (86 graphs, 0.22.1), which alone give 0.26 and 0.22 MiB."""
STARTED_BYTES = (0.61 * GIB, 1.54 * GIB)
"""Taken before weights are loaded, on one GPU and with TP [B]: 78.57 and 77.64 of 79.18 GiB free (llm-d planner, vLLM on an H100)."""
TRTLLM_MAX_TOKENS, TRTLLM_MAX_BATCH, TRTLLM_BLOCK_TOKENS, TRTLLM_FRACTION = 8192, 2048, 32, 0.9
"""TensorRT-LLM's defaults (1.0): ``max_num_tokens``, ``max_batch_size``, ``tokens_per_block``, ``free_gpu_memory_fraction``."""
SGLANG_WINDOW_SHARE = 0.8
"""SGLang's ``swa_full_tokens_ratio``: windowed layers keep so many tokens for each that full layers keep."""
SGLANG_STEPS = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (90, 8192, 256, 512), (160, 8192, 256, 512))
"""SGLang's defaults by GPU memory: below so many GiB ``chunked_prefill_size`` and ``cuda_graph_max_bs`` (TP below 4, and from 4)."""
SGLANG_LARGEST = (16384, 512)


@dataclass(frozen=True, slots=True)
class Beside:
    """What each GPU of the last pipeline stage holds beside the model, such as a draft [B]."""

    weights: float = 0.0
    kv_per_token: float = 0.0
    """Cached for every token."""
    tokens: int = 0
    """Tokens that every decoding sequence has room for beyond its next one."""
    drafts: int = 0
    """Tokens that are drafted for a sequence in a pass: recurrent layers keep a state after each of them."""


NOTHING = Beside()


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is told, defaults filled in.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        rules: vLLM's release; also the shapes of the activations of the others.
        token_budget: tokens per step; an int, or a float64 array in a sweep.
        sequences: sequences at once; likewise.
        fraction: ``gpu_memory_utilization``, ``mem_fraction_static`` or ``free_gpu_memory_fraction``.
        block_tokens: tokens per KV block.
        eager: no CUDA graphs.
        kv_cache_bytes: the KV cache if it is given and not worked out [B].
        hybrid: whether windowed layers keep only their window.
        beside: what is held beside the model.
    """

    engine: str
    rules: VllmRules
    token_budget: Any
    sequences: Any
    fraction: float
    block_tokens: int
    eager: bool = False
    kv_cache_bytes: int | None = None
    hybrid: bool = True
    beside: Beside = NOTHING

    @property
    def in_flight(self) -> Value:
        """Tokens that may be on their way through the model at once, which a window has to hold beside itself."""
        return self.rules.in_flight * self.token_budget


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of one GPU of a pipeline stage [B]."""

    usable: float
    weights: float
    activations: Value
    non_torch: float
    cuda_graphs: Value
    """Those that the engine takes from its budget."""
    available: Value
    """For the KV cache; negative if not even the rest fits; 0 at most where the model keeps nothing."""
    excess: float = 0.0
    """What a KV cache of a given size takes beside the rest, beyond what the GPU has."""


def stage_budget(deployment: Deployment, stage: int, settings: EngineSettings) -> Budget:
    """Return how ``settings.engine`` divides a GPU of a pipeline stage."""
    total = deployment.profile.memory_visible.value
    weights = loaded_weight_bytes(deployment, stage)
    if stage == deployment.pp - 1:
        weights += settings.beside.weights
    kinds = tuple(deployment.architecture.kinds[index] for index in sorted(set(stage_patterns(deployment)[stage])))
    last = stage == deployment.pp - 1
    if settings.engine == "sglang":
        started = STARTED_BYTES[min(gpus_that_talk(deployment), 2) - 1]
        usable = (total - started) * settings.fraction
        reserved = (total - started) - usable
        return Budget(usable, weights, reserved, started, 0.0, usable - weights)
    if settings.engine == "trtllm":
        peak = layer_bytes(deployment, settings.token_budget, settings.rules, kinds)
        peak += common_bytes(deployment, settings.token_budget)
        non_torch = STARTED_BYTES[min(gpus_that_talk(deployment), 2) - 1]
        available = (total - weights - peak - non_torch) * settings.fraction
        return Budget(total, weights, peak, non_torch, 0.0, available)
    rules, tokens, sequences = settings.rules, settings.token_budget, settings.sequences
    usable = float(math.ceil(round(total) * settings.fraction))
    activations = stage_activation_bytes(deployment, kinds, tokens, sequences, rules, last)
    non_torch = non_torch_bytes(deployment, rules)
    graphs = 0.0 if settings.eager or not rules.graphs_inside else cuda_graph_bytes(deployment, stage, settings)
    available = usable - weights - activations - non_torch - graphs
    if not any(kind.attention.caches or kind.state is not None for kind in deployment.architecture.kinds):
        # Nothing is worked out then: no memory is measured, and what there is may be used (``has_kv_cache`` in vllm/v1/engine/core.py).
        left = total - weights - activations - non_torch - graphs
        return Budget(total, weights, activations, non_torch, graphs, min(left, 0.0))
    if settings.kv_cache_bytes is None:
        return Budget(usable, weights, activations, non_torch, graphs, available)
    given = float(settings.kv_cache_bytes)  # whatever the utilisation
    excess = max(given - (total - weights - (activations + non_torch + graphs)), 0.0)
    return Budget(usable, weights, activations, non_torch, graphs, given, excess)


def gpus_that_talk(deployment: Deployment) -> int:
    """Return the GPUs of a stage that exchange activations within a layer."""
    return max(deployment.tp, deployment.ep)


def non_torch_bytes(deployment: Deployment, rules: VllmRules) -> float:
    """Return the memory outside PyTorch on one GPU: context, libraries, NCCL [B]; see :func:`costmodel.memory.rules.vllm_rules`."""
    single, pipeline, parallel = rules.non_torch
    if deployment.profile.architecture == "cpu":
        return 0.0
    if gpus_that_talk(deployment) > 1:
        return parallel
    if deployment.pp > 1:
        return pipeline
    return GEFORCE_NON_TORCH if "geforce" in deployment.profile.name.casefold() else single


def cuda_graph_bytes(deployment: Deployment, stage: int, settings: EngineSettings) -> Value:
    """Return vLLM's estimate of its CUDA graphs on one GPU [B]: :data:`GRAPH_BYTES` per layer and graph.

    vLLM captures two graphs of every mode and takes the second for all the others (``profile_cudagraph_memory``), at least 1 MiB each.
    """
    if deployment.profile.architecture == "cpu":
        return 0.0
    layers = len(stage_patterns(deployment)[stage])
    return captured_graphs(deployment, settings) * max(float(MIB), layers * GRAPH_BYTES)


def captured_graphs(deployment: Deployment, settings: EngineSettings) -> Value:
    """Return the CUDA graphs that vLLM captures: of mixed steps, piecewise, and of decode steps, whole, which models that pool have not.

    Sizes 1, 2, 4, then every 8 to 256, every 16 to 512 (1,024 on Blackwell) or twice ``max_num_seqs``, whichever is less; all of them
    twice where there are LoRA adapters, for steps with and without.
    """
    top = 1024 if deployment.profile.architecture == "blackwell" else 512
    most = minimum(minimum(2 * settings.sequences, top), settings.token_budget)
    graphs = _graph_sizes(most)
    if not deployment.architecture.pooling:
        graphs = graphs + _graph_sizes(minimum(most, settings.sequences))
    return graphs if deployment.lora is None else 2 * graphs


def _graph_sizes(most: Value) -> Value:
    """Return how many of the sizes 1, 2, 4, 8, 16 … 248, 256, 272 … are at most ``most``."""
    small = 1 * (most >= 1) + 1 * (most >= 2) + 1 * (most >= 4)
    return small + minimum(most, 255) // 8 + maximum(most - 240, 0) // 16


def default_settings(deployment: Deployment, engine: str = "vllm", rules: VllmRules | None = None) -> EngineSettings:
    """Return what an engine does with this model and part unless told otherwise.

    vLLM's blocks are of 16 tokens, of 128 on CPUs, and where an indexer chooses blocks of keys, which are those of its kernels
    (vllm/models/minimax_m3/common/sparse_attention.py, ``get_supported_kernel_block_sizes``).
    """
    rules = rules or vllm_rules()
    if engine == "sglang":
        chunk, graph_batch = sglang_sizes(deployment)
        return EngineSettings(engine, rules, chunk, graph_batch, sglang_fraction(deployment, chunk, graph_batch), 1)
    if engine == "trtllm":
        return EngineSettings(engine, rules, TRTLLM_MAX_TOKENS, TRTLLM_MAX_BATCH, TRTLLM_FRACTION, TRTLLM_BLOCK_TOKENS)
    budget = default_token_budget(deployment)
    in_blocks = any(kind.attention.index_by_group for kind in deployment.architecture.kinds)
    block_tokens = 128 if in_blocks or deployment.profile.architecture == "cpu" else 16
    sequences = min(default_max_num_seqs(deployment), budget)
    return EngineSettings("vllm", rules, budget, sequences, rules.utilisation, block_tokens)


def sglang_sizes(deployment: Deployment) -> tuple[int, int]:
    """Return SGLang's default ``chunked_prefill_size`` and ``cuda_graph_max_bs`` for this part."""
    memory = deployment.profile.memory_visible.value / GIB
    for below, chunk, few, many in SGLANG_STEPS:
        if memory < below:
            return chunk, few if deployment.tp < 4 else many
    return SGLANG_LARGEST


def sglang_fraction(deployment: Deployment, chunk: int, graph_batch: int) -> float:
    """Return SGLang's default ``mem_fraction_static``: what is left of a GPU after a reserve, in thousandths.

    reserve [MiB] = 512 + 1.5·max(chunk, 2048) + 2·graph_batch + 128·TP·PP, at least 10 GiB on a GPU of more than 60.
    """
    memory = deployment.profile.memory_visible.value / MIB
    reserve = 512 + 1.5 * max(chunk, 2048) + 2 * graph_batch + 128 * deployment.tp * deployment.pp
    if memory > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    return round((memory - reserve) / memory, 3)
