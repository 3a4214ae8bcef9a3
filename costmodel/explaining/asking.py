"""``explain``: what people get wrong about inference servers, answered with numbers of the user's own model, GPU and load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from costmodel.calibrations import uncalibrated
from costmodel.checks import whole
from costmodel.explaining.documents import Explanations, Topic
from costmodel.explaining.scene import Scene, make_scene
from costmodel.explaining.words import size
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError, shown, unknown_name
from costmodel.memory.wording import of_start
from costmodel.simulation.prefixes import cached_tokens
from costmodel.speculation.asking import Speculation

TOPICS = {
    "long-context": ("costmodel.explaining.costs", "long_context", "128k of context means 128k that work well."),
    "batch-size": ("costmodel.explaining.costs", "batch_size", "The bigger the batch, the better."),
    "quadratic": ("costmodel.explaining.squares", "quadratic", "It is expensive mainly because attention is O(n²)."),
    "decode-bound": ("costmodel.explaining.bandwidth", "decode_bound", "Decode is slow because it lacks compute."),
    "gqa": ("costmodel.explaining.heads", "gqa", "GQA reduces FLOPs."),
    "kv-cache": ("costmodel.explaining.caching", "kv_cache", "The cache stores Q and the attention scores."),
    "flash-attention": ("costmodel.explaining.flash", "flash_attention", "FlashAttention is an approximation."),
    "speculation": ("costmodel.explaining.speculation", "speculation", "Speculative decoding changes the output."),
    "prefix-cache": ("costmodel.explaining.prefixes", "prefix_cache", "The answer is cached."),
}
"""Topic → module and function that explain it, and the claim."""
USUAL_DRAFT = "eagle3"
"""What drafts where nothing is said."""


def explain(
    topics: str | Sequence[str] | None = None,
    *,
    model: str = "Llama-3.1-8B",
    gpu: str = "h100",
    context: int = 8000,
    streams: int = 32,
    output: int = 500,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    assume_efficiency: bool = False,
    cached_prefix: int | None = None,
    speculation: Speculation | None = None,
) -> Explanations:
    """Answer misunderstandings about inference servers with the numbers that decide them, for a model, GPU and load.

    >>> import costmodel
    >>> costmodel.explain("gqa").topics[0].numbers["attention_flops_ratio"]
    1.0

    Args:
        topics: one of ``long-context``, ``batch-size``, ``quadratic``, ``decode-bound``, ``gqa``, ``kv-cache``, ``flash-attention``,
            ``speculation`` and ``prefix-cache``, or several of them; None for all.
        context: tokens of each stream in the KV cache, and of a prompt [tokens].
        streams: sequences that decode together; where fewer fit into the KV cache, as many as fit.
        output: tokens of an answer.
        cached_prefix: for ``prefix-cache``: leading tokens of the prompt that were sent before; None for 90 % of it [tokens].
        speculation: for ``speculation``: what drafts, how many tokens, how many are accepted; None for an EAGLE-3 head and the best number.
        model, gpu, tp, pp, ep, dtype, kv_dtype, compute_dtype, lora, engine, calibration, assume_efficiency: as in
            :func:`costmodel.predict`.

    Returns:
        The frozen document ``costmodel.explanations/1``; FLOPs and bytes are those of one GPU.

    Raises:
        InputError: an unknown topic, or a name, number or combination that cannot be.
    """
    names = topic_names(topics)
    scene = make_scene(
        model, gpu, context=context, streams=streams, output=output, tp=tp, pp=pp, ep=ep, dtype=dtype, kv_dtype=kv_dtype,
        compute_dtype=compute_dtype, lora=lora, engine=engine, calibration=calibration, assume_efficiency=assume_efficiency,
        cached_prefix=None if cached_prefix is None else cached_tokens(cached_prefix, whole(context, "context", 1), True),
        speculation=speculation,
    )  # fmt: skip
    notes, warnings = remarks(scene, engine, calibration, assume_efficiency)
    return Explanations(
        **about(scene),
        context_tokens=scene.context,
        streams=scene.streams,
        output_tokens=scene.output,
        topics=tuple(_function(name)(scene) for name in names),
        notes=notes,
        warnings=warnings,
    )


def topic_names(topics: str | Sequence[str] | None) -> list[str]:
    """Return the topics that are asked for, each once; all for None.

    Raises:
        InputError: an unknown topic, with the nearest; none at all.
    """
    if topics is None:
        return list(TOPICS)
    given = [topics] if isinstance(topics, str) else list(topics)
    for name in given:
        if not isinstance(name, str) or name not in TOPICS:
            word = name if isinstance(name, str) else shown(name)
            raise unknown_name("topic", word, TOPICS, "topics: " + ", ".join(TOPICS))
    if not given:
        raise InputError("no topic is given; topics: " + ", ".join(TOPICS))
    return list(dict.fromkeys(given))


def about(scene: Scene) -> dict[str, Any]:
    """Return what an explanation is about, as its document has it."""
    deployment = scene.deployment
    return {
        "model": scene.architecture.name,
        "gpu": deployment.profile.name,
        "gpus": deployment.gpus,
        "rung": scene.rung,
        "calibration": scene.fitted.name if scene.fitted else None,
        "dtype": deployment.dtype,
        "kv_dtype": deployment.kv_dtype,
    }


def remarks(
    scene: Scene, engine: str, calibration: str | Path | Calibration | None, assume_efficiency: bool, start: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the notes and warnings of an explanation; with ``start`` whether vLLM starts by default."""
    deployment, longest = scene.deployment, scene.architecture.max_positions
    notes = list(deployment.notes)
    if deployment.gpus > 1:
        notes.append(f"FLOPs, bytes and KV cache are those of one of {deployment.gpus} GPUs")
    warnings = []
    if scene.fitted is None:
        warnings.append(uncalibrated(deployment, engine, calibration, assume_efficiency))
    if longest and scene.context > longest:
        warnings.append(
            f"a context of {scene.context:,} tokens is more than the {longest:,} that {scene.architecture.name} takes"
        )
    warnings += own_start(scene) if start else []
    pool = scene.pool(scene.streams)
    needed, usable = int(scene.streams * pool.stream(scene.context)), int(pool.usable)
    if needed > usable:
        warnings.append(
            f"{scene.streams:,} streams at {scene.context:,} tokens need {needed:,} KV blocks of {usable:,}: they do not fit at once, "
            + (f"{scene.most_streams(scene.context):,} do" if scene.most_streams(scene.context) else "and not one does")
        )
    return tuple(notes), tuple(warnings)


def own_start(scene: Scene) -> list[str]:
    """Return a warning where vLLM does not start with its defaults: for its weights, or for one sequence of the model's length."""
    pool = scene.pool(scene.streams)
    tight = min(pool.budgets, key=lambda budget: float(budget.available))
    if pool.groups and tight.available <= 0:
        weights, usable = float(tight.weights), float(tight.usable)
        rest = usable - weights - float(tight.available)
        more = f"the weights, {size(weights)} on each GPU, are"
        if weights <= usable:
            more = f"weights of {size(weights)} on each GPU and {size(rest)} of activations and the like are"
        return [
            f"{more} more than the {size(usable)} that vLLM may use of it: no such server starts, and times are those of a GPU with memory "
            "enough; use more GPUs (--tp); costmodel plan memory says with what it fits"
        ]
    longest, own = scene.longest_start, scene.architecture.max_positions
    return [of_start(longest, own)] if 0 < longest < own else []


def _function(name: str) -> Callable[[Scene], Topic]:
    module, function, _ = TOPICS[name]
    found: Callable[[Scene], Topic] = getattr(importlib.import_module(module), function)
    return found
