"""``predict_embedding``: the steps of a model that pools, which embeds or classifies documents and decodes nothing.

A document is a prompt and nothing after it: R rows are pooled instead of sampled, and there is no lm_head. Where queries see both ways
vLLM keeps no KV cache and takes a document in one step, so that the token budget is at least the longest document (vllm/config/model.py,
``is_chunked_prefill_supported``; vllm/v1/kv_cache_interface.py, ``EncoderOnlyAttentionSpec``). Decoders that pool their last token keep
one, and may take a document in several steps. What pooling itself takes, d elements per document, is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from costmodel.building import build_parameters, build_textbook, roofline_parameters
from costmodel.calibrations import choose_calibration, uncalibrated
from costmodel.certainty import calibration_warnings, engine_of
from costmodel.checks import parameter_count, whole
from costmodel.deployment import Deployment, deploy
from costmodel.documents import GpuInfo, MemoryInfo, Operator, RungName
from costmodel.dtypes import main_format
from costmodel.embedding_documents import (
    Embedding,
    EmbeddingEngine,
    EmbeddingRung,
    EmbeddingRungs,
    EmbeddingSteps,
    EmbeddingWorkload,
)
from costmodel.engine import VLLM_VERSION, default_max_num_seqs, default_token_budget, other_defaults
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.textbook import Textbook, textbook_attention, textbook_linear
from costmodel.equations.work import Chunk, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError, shown
from costmodel.memory import memory_of
from costmodel.prediction import model_info
from costmodel.rungs import MAX_STEPS, shown_operators, total_seconds
from costmodel.spike import step_chunks, step_count

Step = tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Documents:
    """The workload, checked, and the steps that it takes.

    Attributes:
        tokens: n, of every document.
        count: documents that arrive together.
        budget: m, tokens per step.
        together: documents in a full step, at least one.
        steps: the steps of the documents, each with how often it occurs, in order of first appearance.
        full: the steps of one round of a server that has more documents than fit: one, or those of a document.
    """

    tokens: int
    count: int
    budget: int
    together: int
    steps: tuple[tuple[Step, int], ...]
    full: tuple[Step, ...]


def predict_embedding(
    prompt: int = 512,
    gpu: str = "h100",
    model: str = "bge-m3",
    *,
    documents: int = 1,
    chunk: int | str | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    tp: int = 1,
    ep: int = 1,
    params: float | None = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    assume_efficiency: bool = False,
) -> Embedding:
    """Predict how long documents take to be embedded or classified, and how many a server does per second.

    Args:
        prompt: tokens of every document.
        gpu, dtype, kv_dtype, compute_dtype, tp, ep, engine, calibration, assume_efficiency: as in :func:`costmodel.predict`.
        model: one that pools: an encoder, a classifier, or a decoder whose files say that it embeds.
        documents: that arrive together.
        chunk: token budget per step (``max_num_batched_tokens``); vLLM's default for this model and GPU by default, or ``"engine"``.
        params: P for the textbook rung; that of the layers by default.

    Returns:
        The frozen document ``costmodel.embedding/1``; all times in seconds.

    Raises:
        InputError: a model that writes text, or a name, number or combination that cannot be; with the nearest valid choice.
    """
    deployment = deploy(
        model, gpu, tp=tp, ep=ep, dtype=dtype, kv_dtype=kv_dtype, compute_dtype=compute_dtype, pooling=True
    )
    if not deployment.architecture.pooling:
        raise InputError(
            f"{deployment.architecture.name} writes text and does not pool; ask for its steps apart (predict)"
        )
    load = make_documents(deployment, prompt, documents, chunk)
    if params is not None:
        params = parameter_count(params)
    fitted = choose_calibration(calibration, deployment, engine, assume_efficiency)
    rungs = {"roofline": roofline_parameters(deployment)}
    rates = CalibratedRates(fitted) if fitted else None
    if rates is not None:
        rungs["calibrated"] = build_parameters(deployment, rates)
    headline: RungName = "calibrated" if fitted else "roofline"
    memory = memory_of(deployment, 0, 0, load.tokens - 1, load.together, load.budget)
    asked = engine_of(fitted, engine)
    warnings = [] if memory.fits else [_does_not_fit(memory.kv_blocks_needed, memory.kv_blocks)]
    if rates is not None:
        work = {"full": make_work(load.full[-1], windows=rungs["calibrated"].windows)}
        warnings += calibration_warnings(rates, rungs, work)
        if deployment.architecture.bidirectional:
            warnings.append(
                "attention that sees both ways was not measured: it is taken at the rates of causal attention"
            )
    else:
        warnings.append(uncalibrated(deployment, engine, calibration, assume_efficiency))
    made = {name: _rung(parameters, load) for name, parameters in rungs.items()}
    return Embedding(
        model=model_info(deployment),
        gpu=GpuInfo(name=deployment.profile.name, profile=deployment.gpu, count=deployment.gpus),
        workload=EmbeddingWorkload(
            prompt_tokens=load.tokens,
            documents=load.count,
            chunk_tokens=load.budget,
            dtype=deployment.dtype,
            kv_dtype=None if deployment.architecture.bidirectional else deployment.kv_dtype,
            compute_dtype=deployment.compute_dtype_of(main_format(deployment.architecture)),
            tensor_parallel=deployment.tp,
            expert_parallel=deployment.ep,
        ),
        headline=headline,
        rungs=EmbeddingRungs(textbook=_textbook(build_textbook(deployment, params), load), **made),
        steps=EmbeddingSteps(
            steps=sum(often for _, often in load.steps),
            full_step_documents=load.together,
            steps_per_document=len(load.full),
            splits_prompts=deployment.architecture.splits_prompts,
        ),
        memory=MemoryInfo(**asdict(memory)),
        engine=EmbeddingEngine(
            name=f"vLLM {VLLM_VERSION}",
            asked=asked,
            max_num_batched_tokens=default_token_budget(deployment),
            max_num_seqs=default_max_num_seqs(deployment),
        ),
        calibration=fitted.name if fitted else None,
        notes=(*deployment.notes, *other_defaults(asked)),
        warnings=tuple(warnings),
    )


def make_documents(deployment: Deployment, tokens: Any, documents: Any, chunk: Any = None) -> Documents:
    """Check a workload, and divide it into steps: first come first served, as many documents as budget and ``max_num_seqs`` allow.

    Where documents may be split, a step takes the beginning of one whose rest goes in the next, but a full step is counted with whole
    documents.

    Raises:
        InputError: not whole, out of range, longer than the model or, in one step, the budget allows.
    """
    architecture = deployment.architecture
    tokens, documents = whole(tokens, "prompt", 1), whole(documents, "documents", 1, 100_000)
    if isinstance(chunk, str) and chunk != "engine":
        raise InputError(f"chunk must be a whole number or 'engine', not {shown(chunk)}")
    limit = architecture.max_positions
    if limit and tokens > limit:
        raise InputError(
            f"prompt {tokens:,} is more than the {limit:,} tokens that {architecture.name} takes; use {limit}"
        )
    chosen = chunk is not None and not isinstance(chunk, str)
    budget = whole(chunk, "chunk", 1) if chosen else default_token_budget(deployment)
    if tokens > budget and not architecture.splits_prompts:
        raise InputError(
            f"a token budget of {budget:,} is less than the {tokens:,} tokens of a document, and {architecture.name} takes each in one "
            f"step; use at least {tokens}"
        )
    together = max(min(budget // tokens, default_max_num_seqs(deployment)), 1)
    room = min(budget, together * tokens)
    if architecture.splits_prompts:
        room = min(budget, default_max_num_seqs(deployment) * tokens)
    if (steps := step_count(tokens, documents, room)) > MAX_STEPS:
        raise InputError(
            f"{documents} × {tokens} tokens at {room} per step are more than {MAX_STEPS} steps; use a larger chunk"
        )
    counted = Counter(tuple(step_chunks(tokens, documents, room, index)) for index in range(steps))
    full = (tuple(step_chunks(tokens, 1, room, index)) for index in range(step_count(tokens, 1, room)))
    return Documents(
        tokens,
        documents,
        budget,
        together,
        tuple(counted.items()),
        tuple(full) if tokens > budget else ((Chunk(tokens),) * together,),
    )


def _rung(parameters: Parameters, load: Documents) -> EmbeddingRung:
    """Return a rung of operator counts."""
    timed = [(_operators(parameters, step), often) for step, often in load.steps]

    def seconds(*groups: str) -> float:
        return sum(often * item.seconds for step, often in timed for item in step if item.group in groups)

    full = [_operators(parameters, step) for step in load.full]
    rate = load.together / sum(total_seconds(step) for step in full)
    longest, longest_full = max((step for step, _ in timed), key=total_seconds), max(full, key=total_seconds)
    return EmbeddingRung(
        latency_s=sum(often * total_seconds(step) for step, often in timed),
        linear_s=seconds("linear", "experts"),
        attention_s=seconds("attention"),
        communication_s=seconds("communication"),
        full_step_s=total_seconds(longest_full),
        documents_per_s=rate,
        tokens_per_s=rate * load.tokens,
        operators=shown_operators(longest),
        full_step_operators=shown_operators(longest_full),
    )


def _operators(parameters: Parameters, step: Step) -> list[OperatorTime[float]]:
    return step_operators(parameters, make_work(step, windows=parameters.windows))


def _textbook(model: Textbook, load: Documents) -> EmbeddingRung:
    """Return the textbook rung: FLOPs ÷ peak, nothing else."""

    def parts(step: Step) -> tuple[float, float]:
        attention = sum(float(textbook_attention(model, chunk.tokens, chunk.cached)) for chunk in step)
        return float(textbook_linear(model, sum(chunk.tokens for chunk in step))), attention

    def operators(step: Step) -> tuple[Operator, ...]:
        peaks = (("linear", model.peak), ("attention", model.attention_peak))
        return tuple(
            Operator(name=name, flops=time * peak, bytes=0.0, time_s=time, bound="compute")
            for (name, peak), time in zip(peaks, parts(step), strict=True)
        )

    linear, attention = (load.count * part for part in parts((Chunk(load.tokens),)))
    longest = max((step for step, _ in load.steps), key=lambda step: sum(parts(step)))
    longest_full = max(load.full, key=lambda step: sum(parts(step)))
    rate = load.count / (linear + attention)
    return EmbeddingRung(
        latency_s=linear + attention,
        linear_s=linear,
        attention_s=attention,
        communication_s=0.0,
        full_step_s=sum(parts(longest_full)),
        documents_per_s=rate,
        tokens_per_s=rate * load.tokens,
        operators=operators(longest),
        full_step_operators=operators(longest_full),
    )


def _does_not_fit(needed: int, blocks: int) -> str:
    if not needed:
        return "does not fit: weights and activations are more than the memory of a GPU; see plan memory"
    return f"does not fit: the documents of a step need {needed:,} KV blocks, there are {blocks:,}; see plan memory"
