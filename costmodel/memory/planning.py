"""``plan_memory``: what an engine does with the memory of a GPU, for one configuration, as a frozen document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costmodel.architecture.counts import ParameterRow
from costmodel.checks import choice, positive, whole
from costmodel.deployment import Deployment, deploy
from costmodel.documents import GpuInfo
from costmodel.engine import GIB, VLLM_VERSION, part_token_budget
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES
from costmodel.memory.advice import advise
from costmodel.memory.blocks import KvGroup, stage_kv_bytes
from costmodel.memory.capacity import Capacity, capacity_of
from costmodel.memory.documents import EngineFlags, MemoryPlan, MemoryPlanInfo, StageMemory, WeightsRow
from costmodel.memory.engines import EngineSettings, default_settings
from costmodel.memory.pool import own_length
from costmodel.memory.rules import parse_version, vllm_rules
from costmodel.memory.weights import loaded_weight_rows, stage_patterns
from costmodel.memory.wording import binding, log_lines, remarks
from costmodel.prediction import lora_info, model_info

MOST_TOKENS = 10_000_000
"""Longest sequence that is asked about where the config has no limit."""


def plan_memory(
    model: str = "Llama-3.1-8B",
    gpu: str = "h100",
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    hybrid_kv_cache: bool = True,
    kv_cache_memory_bytes: int | None = None,
    draft_model: str | None = None,
    speculative_tokens: int | None = None,
) -> MemoryPlan:
    """Plan the memory of one GPU: weights, activations, KV cache, and how many sequences fit.

    Args:
        model, gpu, tp, pp, ep, dtype, kv_dtype, compute_dtype, lora: as in :func:`costmodel.predict`.
        engine: ``vllm``, ``sglang`` or ``trtllm``, each by its own rule.
        engine_version: release of vLLM, such as ``0.11.0``.
        max_num_batched_tokens: tokens per step (``chunked_prefill_size``, ``max_num_tokens``).
        max_num_seqs: sequences at once (``max_batch_size``).
        max_model_len: longest sequence; the model's by default.
        gpu_memory_utilization: share of the GPU (``mem_fraction_static``, ``free_gpu_memory_fraction``).
        block_size: tokens per KV block.
        enforce_eager: no CUDA graphs.
        hybrid_kv_cache: False where windowed layers keep every token.
        kv_cache_memory_bytes: size of the KV cache, if it is set and not worked out (``--kv-cache-memory-bytes``,
            ``VLLM_CPU_KVCACHE_SPACE`` on a CPU) [B].
        draft_model: of speculative decoding, held beside the model: ``eagle``, ``eagle3``, ``mtp``, ``ngram`` or another model.
        speculative_tokens: that are drafted per pass; recurrent layers keep a state for each.

    Returns:
        The frozen document ``costmodel.plan/1``; its ``memory.fits`` says whether the engine would start.

    Raises:
        InputError: a name, number or combination that cannot be; the message names the nearest valid choice.
    """
    placed: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "compute_dtype": compute_dtype,
        "lora": lora,
    }
    deployment = deploy(model, gpu, pooling=True, **placed)
    flags: dict[str, Any] = {
        "engine": engine, "engine_version": engine_version, "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs, "max_model_len": max_model_len, "gpu_memory_utilization": gpu_memory_utilization,
        "block_size": block_size, "enforce_eager": enforce_eager, "hybrid_kv_cache": hybrid_kv_cache,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
    }  # fmt: skip
    settings, longest = make_settings(deployment, **flags)
    settings = _with_draft(deployment, settings, draft_model, speculative_tokens)
    plan = _document(deployment, settings, longest, made := capacity_of(deployment, settings, longest))
    if plan.memory.fits:
        return plan

    def again(**changed: Any) -> MemoryPlan | None:
        """Return the plan after a change; None where it cannot be made."""
        try:
            other = deploy(
                model, gpu, pooling=True, **(placed | {key: changed[key] for key in changed if key in placed})
            )
            told, length = make_settings(other, **(flags | {key: changed[key] for key in changed if key in flags}))
        except InputError:
            return None
        told = _with_draft(other, told, draft_model, speculative_tokens)
        return _document(other, told, length, capacity_of(other, told, length))

    return plan.model_copy(update={"advice": advise(deployment, settings, made, again)})


def _with_draft(
    deployment: Deployment, settings: EngineSettings, draft_model: str | None, tokens: int | None
) -> EngineSettings:
    """Return the settings with what a draft holds beside the model."""
    if draft_model is None and tokens is None:
        return settings
    if draft_model is None:
        raise InputError("speculative-tokens are those of a draft: give --draft-model as well")
    from costmodel.speculation.acceptance import MOST_TOKENS
    from costmodel.speculation.drafts import make_draft

    drafts = 0 if tokens is None else whole(tokens, "speculative-tokens", 1, MOST_TOKENS)
    return replace(settings, beside=replace(make_draft(draft_model, deployment).beside, drafts=drafts))


def make_settings(
    deployment: Deployment,
    *,
    engine: str = "vllm",
    engine_version: str | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    hybrid_kv_cache: bool = True,
    kv_cache_memory_bytes: int | None = None,
) -> tuple[EngineSettings, int]:
    """Return the settings of an engine, checked, its defaults filled in; and the longest sequence.

    Raises:
        InputError: as in :func:`plan_memory`.
    """
    engine = choice(engine, ENGINES, "engine")
    _check_engine(deployment, engine)
    _check_flags(engine, engine_version, eager=enforce_eager, hybrid=hybrid_kv_cache)
    rules = vllm_rules(VLLM_VERSION if engine_version is None else engine_version)
    settings = default_settings(deployment, engine, rules)
    allowed = deployment.architecture.max_positions or MOST_TOKENS
    longest = own_length(deployment)
    if max_model_len is not None:
        longest = whole(max_model_len, "max-model-len", 1)
        if longest > allowed:
            raise InputError(
                f"max-model-len {longest:,} is more than the {allowed:,} that {deployment.architecture.name} allows"
            )
    if not deployment.architecture.splits_prompts:
        settings = replace(settings, token_budget=max(part_token_budget(deployment.profile), longest))
    if engine == "vllm" and parse_version(rules.version) < (0, 8):  # the engine before V1: chunks only above 32k
        settings = replace(settings, token_budget=max(2048, longest) if longest <= 32_768 else 2048, sequences=256)
    if max_num_batched_tokens is not None:
        budget = whole(max_num_batched_tokens, "max-num-batched-tokens", 1)
        _check_one_step(deployment, budget, longest)
        settings = replace(settings, token_budget=budget, sequences=min(settings.sequences, budget))
    if max_num_seqs is not None:
        sequences = whole(max_num_seqs, "max-num-seqs", 1, 1_000_000)
        if engine == "vllm" and sequences > settings.token_budget:
            raise InputError(
                f"max-num-seqs {sequences:,} is more than max-num-batched-tokens {settings.token_budget:,}: every sequence "
                f"takes a token of a step; use --max-num-seqs {settings.token_budget} or --max-num-batched-tokens {sequences}"
            )
        settings = replace(settings, sequences=sequences)
    if gpu_memory_utilization is not None:
        settings = replace(settings, fraction=positive(gpu_memory_utilization, "gpu-memory-utilization", 1.0))
    if block_size is not None:
        settings = replace(settings, block_tokens=whole(block_size, "block-size", 1, 65_536))
    if kv_cache_memory_bytes is not None:
        if engine != "vllm":
            raise InputError(f"kv-cache-memory is vLLM's; give {engine} its memory fraction")
        settings = replace(settings, kv_cache_bytes=whole(kv_cache_memory_bytes, "kv-cache-memory", 1, 10**15))
    return replace(settings, eager=bool(enforce_eager), hybrid=bool(hybrid_kv_cache)), longest


def _check_engine(deployment: Deployment, engine: str) -> None:
    if engine != "vllm" and deployment.architecture.pooling:
        raise InputError(f"how {engine} divides memory for models that pool is not known; use --engine vllm")


def _check_one_step(deployment: Deployment, budget: int, longest: int) -> None:
    """Refuse what vLLM refuses: a budget that the longest prompt does not fit in, where it cannot be split."""
    if budget < longest and not deployment.architecture.splits_prompts:
        raise InputError(
            f"max-num-batched-tokens {budget:,} is less than max-model-len {longest:,}, and {deployment.architecture.name} takes a "
            f"document in one step; use --max-num-batched-tokens {longest} or --max-model-len {budget}"
        )


def _block_tokens(settings: EngineSettings, made: Capacity, compresses: bool = False) -> int:
    """Return the tokens of a block: as they are set, unless states or compressed keys make them longer."""
    if compresses:
        return max(group.block_tokens for group in made.groups)
    if not any(group.states for group in made.groups):
        return settings.block_tokens
    return min(group.block_tokens for group in made.groups)


def _weight_rows(deployment: Deployment, stage: int, settings: EngineSettings) -> list[ParameterRow]:
    """Return the weights on a GPU of a stage, those of a draft in a row of their own."""
    rows = list(loaded_weight_rows(deployment, stage))
    if settings.beside.weights and stage == deployment.pp - 1:
        size, each = settings.beside.weights, deployment.activation_bytes
        rows.append(ParameterRow("draft", size / each, deployment.activation_dtype, size))
    return rows


def _draft_note(settings: EngineSettings, groups: Sequence[KvGroup]) -> tuple[str, ...]:
    """Say what a draft holds, and what is not known of it; nothing where there is none."""
    beside = settings.beside
    if not beside.weights:
        return ()
    held = f"weights include {beside.weights / GIB:.2f} GiB of the draft, and the KV cache {beside.kv_per_token:,.0f} B of it per token"
    if beside.drafts or not any(group.states for group in groups):
        return (held,)
    return held, "recurrent layers keep one more state for each drafted token: --speculative-tokens counts them"


def _check_flags(engine: str, version: str | None, *, eager: bool, hybrid: bool) -> None:
    """Refuse what has no say in the rule of an engine."""
    if engine == "vllm":
        return
    if version is not None:
        raise InputError(f"engine-version is known for vllm only; {engine} has one rule here: leave it out")
    if eager:
        raise InputError(f"enforce-eager is for vllm, whose budget has the CUDA graphs in it; {engine}'s has not")
    if engine == "trtllm" and not hybrid:
        raise InputError(
            "disable-hybrid-kv-cache-manager is vLLM's; by trtllm's rule here windowed layers keep every token anyway"
        )


def _document(deployment: Deployment, settings: EngineSettings, longest: int, made: Capacity) -> MemoryPlan:
    cached = bool(made.groups)
    stage, null_block = made.fullest, settings.engine == "vllm"
    budget, patterns = made.budgets[stage], stage_patterns(deployment)
    memory = MemoryPlanInfo(
        total_bytes=deployment.profile.memory_visible.value,
        usable_bytes=budget.usable,
        weights_bytes=budget.weights,
        activation_bytes=budget.activations,
        non_torch_bytes=budget.non_torch,
        cuda_graph_bytes=budget.cuda_graphs,
        kv_available_bytes=budget.available,
        kv_bytes_per_token=stage_kv_bytes(deployment, stage)
        + settings.beside.kv_per_token * (stage == deployment.pp - 1),
        kv_blocks=made.blocks,
        kv_block_tokens=_block_tokens(settings, made, deployment.architecture.compresses),
        kv_groups=len(made.groups),
        kv_tokens=made.tokens,
        kv_blocks_per_sequence=made.per_sequence,
        max_concurrency=made.concurrency,
        max_model_len=made.longest,
        fits=made.per_sequence + null_block <= made.blocks and not budget.excess if cached else budget.available >= 0,
    )
    flags = EngineFlags(
        name=settings.engine,  # type: ignore[arg-type]
        version=settings.rules.version if settings.engine == "vllm" else None,
        max_num_batched_tokens=settings.token_budget,
        max_num_seqs=settings.sequences,
        max_model_len=longest,
        memory_fraction=settings.fraction,
        block_tokens=settings.block_tokens,
        enforce_eager=settings.eager,
        hybrid_kv_cache=settings.hybrid,
        kv_cache_memory_bytes=settings.kv_cache_bytes,
    )
    notes, warnings = remarks(deployment, settings)
    return MemoryPlan(
        model=model_info(deployment),
        gpu=GpuInfo(name=deployment.profile.name, profile=deployment.gpu, count=deployment.gpus),
        tensor_parallel=deployment.tp,
        pipeline_parallel=deployment.pp,
        expert_parallel=deployment.ep,
        dtype=deployment.dtype,
        kv_dtype=deployment.kv_dtype,
        lora=lora_info(deployment),
        engine=flags,
        memory=memory,
        weights=tuple(
            WeightsRow(module=row.module, format=row.format, bytes=float(row.bytes))
            for row in _weight_rows(deployment, stage, settings)
        ),
        stages=tuple(
            StageMemory(
                layers=len(patterns[number]),
                weights_bytes=each.weights,
                activation_bytes=each.activations,
                non_torch_bytes=each.non_torch,
                cuda_graph_bytes=each.cuda_graphs,
                kv_available_bytes=each.available,
                kv_bytes_per_block=made.block_bytes[number],
                kv_blocks=made.stage_blocks[number],
            )
            for number, each in enumerate(made.budgets)
        ),
        log=log_lines(deployment, flags, memory),
        binds=binding(flags, memory),
        notes=(*deployment.notes, *_draft_note(settings, made.groups), *notes),
        warnings=warnings,
    )
