"""What is said of a memory plan: the engine's own log lines, what binds, and what a reader should know."""

from __future__ import annotations

from costmodel.deployment import Deployment
from costmodel.engine import GIB, VLLM_VERSION
from costmodel.memory.documents import EngineFlags, MemoryPlanInfo
from costmodel.memory.engines import EngineSettings
from costmodel.memory.rules import parse_version


def log_lines(deployment: Deployment, flags: EngineFlags, memory: MemoryPlanInfo) -> tuple[str, ...]:
    """Return the lines that the engine prints at start-up; engines call 2³⁰ bytes GiB (vLLM, TensorRT-LLM) or GB (SGLang)."""
    if flags.name == "sglang":
        half = max(memory.kv_available_bytes, 0.0) / 2 / GIB
        return (
            f"KV Cache is allocated. #tokens: {memory.kv_tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB",
            f"max_total_num_tokens={memory.kv_tokens}, chunked_prefill_size={flags.max_num_batched_tokens}, "
            f"context_len={flags.max_model_len}",
        )
    if flags.name == "trtllm":
        peak = memory.weights_bytes + memory.activation_bytes + memory.non_torch_bytes
        return (
            f"Peak memory during memory usage profiling (torch + non-torch): {peak / GIB:.2f} GiB, "
            f"available KV cache memory when calculating max tokens: {memory.kv_available_bytes / GIB:.2f} GiB, "
            f"fraction is set {flags.memory_fraction:g}",
            f"max_tokens={memory.kv_tokens}",
        )
    device = "CPU" if deployment.profile.architecture == "cpu" else "GPU"
    lines = [f"Model loading took {memory.weights_bytes / GIB:.2f} GiB memory"]
    if not memory.kv_groups:
        return tuple(lines)
    if memory.cuda_graph_bytes:
        lines.append(f"Estimated CUDA graph memory: {memory.cuda_graph_bytes / GIB:.2f} GiB total")
    lines.append(f"Available KV cache memory: {memory.kv_available_bytes / GIB:.2f} GiB")
    if memory.kv_blocks:
        size = f"{device} KV cache size: {memory.kv_tokens:,} tokens"
        most = f"Maximum concurrency for {flags.max_model_len:,} tokens per request: {memory.max_concurrency:.2f}x"
        lines += [size, most]
    return tuple(lines)


def binding(flags: EngineFlags, memory: MemoryPlanInfo) -> str:
    """Return what keeps the engine from starting, or what the KV cache can hold."""
    if not memory.kv_groups:
        return _without_cache(flags, memory) if memory.fits else _no_room(memory)
    if memory.kv_available_bytes <= 0:
        return _no_room(memory)
    rest = memory.activation_bytes + memory.non_torch_bytes + memory.cuda_graph_bytes
    left = memory.total_bytes - memory.weights_bytes - rest
    if flags.kv_cache_memory_bytes is not None and flags.kv_cache_memory_bytes > left:
        beside = f"weights of {memory.weights_bytes / GIB:.1f} GiB and {rest / GIB:.1f} GiB of activations and the like"
        room = f"leave {left / GIB:.2f} of {memory.total_bytes / GIB:.1f} GiB" if left > 0 else "leave no room"
        return f"{beside} {room} for a KV cache of {flags.kv_cache_memory_bytes / GIB:.2f} GiB"
    if not memory.fits:
        return (
            f"one sequence of {flags.max_model_len:,} tokens takes {memory.kv_blocks_per_sequence:,} KV blocks; "
            f"there are {memory.kv_blocks:,}, enough for {memory.max_model_len:,} tokens"
        )
    if memory.max_concurrency < flags.max_num_seqs:
        return (
            f"the KV cache binds: {memory.max_concurrency:.1f} sequences of {flags.max_model_len:,} tokens fit, "
            f"{flags.max_num_seqs:,} may run (max_num_seqs)"
        )
    return (
        f"max_num_seqs binds: {flags.max_num_seqs:,} sequences may run, {memory.max_concurrency:.1f} of the longest fit"
    )


def of_start(longest: int, asked: int) -> str:
    """Say that vLLM does not start, as the KV cache does not hold one sequence of ``max_model_len``.

    Args:
        longest: with which it starts [tokens].
        asked: ``max_model_len``, or the model's where it is not given [tokens].
    """
    return f"vLLM will not start without --max-model-len {longest} or less: the KV cache does not hold one sequence of {asked:,} tokens"


def _no_room(memory: MemoryPlanInfo) -> str:
    parts = {
        "weights": memory.weights_bytes,
        "activations": memory.activation_bytes,
        "memory outside PyTorch": memory.non_torch_bytes,
        "CUDA graphs": memory.cuda_graph_bytes,
    }
    largest = sorted((size, name) for name, size in parts.items() if size)[::-1][:2]
    takes = " and ".join(f"{name} of {size / GIB:.1f} GiB" for size, name in largest)
    usable = f"the {memory.usable_bytes / GIB:.1f} GiB"
    if not memory.kv_groups:
        return f"{takes} are more than {usable} of the GPU"
    return f"{takes} leave no room for a KV cache in {usable} that the engine may use"


def _without_cache(flags: EngineFlags, memory: MemoryPlanInfo) -> str:
    return (
        f"no KV cache is kept, since every token sees both ways; documents of {flags.max_model_len:,} tokens that run at once: "
        f"{memory.max_concurrency:.0f}, by max_num_batched_tokens {flags.max_num_batched_tokens:,} and max_num_seqs {flags.max_num_seqs:,}"
    )


def remarks(deployment: Deployment, settings: EngineSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return notes and warnings about how well the numbers are known."""
    notes, warnings = [], []
    architecture = deployment.profile.architecture
    if settings.engine == "sglang":
        notes.append(
            "SGLang does not measure its activations: what mem_fraction_static leaves out is shown as activations"
        )
    if settings.engine == "vllm" and parse_version(settings.rules.version) > parse_version(VLLM_VERSION):
        warnings.append(
            f"vLLM {settings.rules.version} is later than {VLLM_VERSION}, the last whose memory is described here, and whose rule is taken"
        )
    if settings.engine == "vllm" and not settings.rules.graphs_inside and not settings.eager:
        notes.append("CUDA graphs lie outside the budget before vLLM 0.21: leave 0.5 to 2 GiB of the GPU free for them")
    if architecture == "cpu" and settings.kv_cache_bytes is None and settings.engine == "vllm":
        warnings.append(
            "on a CPU, vLLM takes the memory that its process holds from the budget, which is not known here; "
            "give the KV cache its size (--kv-cache-memory, VLLM_CPU_KVCACHE_SPACE)"
        )
    if architecture.startswith("cdna"):
        warnings.append("memory outside PyTorch and CUDA graphs were measured on NVIDIA's parts only")
    if settings.engine == "vllm" and deployment.tp * deployment.ep > 1 and settings.kv_cache_bytes is None:
        warnings.append(
            "memory outside PyTorch with TP differs by release and link (0.5 to 4 GiB): one H100 node's is taken"
        )
    if deployment.architecture.compresses:
        # 4 prompts gathered at once, max_model_len/4 keys of 512 in 16 bits each, and three tables of max_model_len/128 entries per token
        # of a step (vllm/models/deepseek_v4/nvidia/flashmla.py, sparse_mla.py).
        each = 4 * 512 * 2 / 4 + 3 * settings.token_budget * 4 / 128
        warnings.append(
            f"buffers for compressed keys of prompts are not counted: {each:,.0f} B per token of max_model_len"
        )
    if deployment.architecture.vision_parameters:
        warnings.append("images being encoded while vLLM profiles itself are not counted: 0.1 to 0.2 GiB for Gemma 3")
    return tuple(notes), tuple(warnings)
