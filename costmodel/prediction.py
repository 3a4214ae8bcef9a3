"""``predict``: the three rungs, the spike and who sees it, for one configuration, as a frozen document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    cross_bytes,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
)
from costmodel.building import build_parameters, build_textbook, roofline_parameters
from costmodel.calibrations import choose_calibration, uncalibrated
from costmodel.certainty import (
    calibration_notes,
    calibration_warnings,
    engine_of,
    intervals,
    reported_encoding,
    reported_steps,
)
from costmodel.checks import parameter_count
from costmodel.deployment import Deployment, deploy
from costmodel.documents import (
    Doubling,
    EngineInfo,
    GpuInfo,
    LoraInfo,
    MemoryInfo,
    ModelInfo,
    PipelineInfo,
    Prediction,
    Rung,
    RungName,
    Rungs,
    Spike,
    Workload,
)
from costmodel.dtypes import main_format
from costmodel.encoder import make_images, with_encoder, with_states
from costmodel.engine import GIB, VLLM_VERSION, default_max_num_seqs, default_token_budget, other_defaults
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators, step_times
from costmodel.equations.textbook import Textbook
from costmodel.equations.work import Chunk
from costmodel.hardware.calibration import Calibration
from costmodel.image_documents import image_limits, image_notes, image_warnings, images_info
from costmodel.memory import NOTHING, Memory, activation_parts, memory_of, stage_patterns
from costmodel.memory.adapters import adapter_elements
from costmodel.memory.pool import pool_of, workload_settings
from costmodel.memory.wording import of_start
from costmodel.rungs import (
    Load,
    encoding_operators,
    longest_step,
    make_load,
    mixed_step_times,
    step_rung,
    textbook_rung,
    textbook_spike,
    total_seconds,
)
from costmodel.speculation.documents import PrefixCacheInfo, SpeculationInfo
from costmodel.spike import chunk_room, step_count, visibility

if TYPE_CHECKING:
    from costmodel.speculation.asking import Plan, Speculation


def predict(
    prompt: int = 8000,
    gpu: str = "h100",
    model: str = "Llama-3.1-8B",
    *,
    streams: int = 32,
    context: int = 500,
    chunk: int | str | None = None,
    every: float = 10.0,
    prompts: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    params: float | None = None,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    assume_efficiency: bool = False,
    cached_prefix: int = 0,
    speculation: Speculation | None = None,
) -> Prediction:
    """Predict step times, the spike of a long prompt, and who sees it.

    Args:
        prompt: tokens of the long prompt, without those of its images.
        gpu: part, alias, or path of a profile.
        model: preset, ``config.json``, folder, or name in the local Hugging Face cache.
        streams: sequences that are decoding when the prompt arrives.
        context: tokens each of them has in the KV cache.
        chunk: token budget per step (``max_num_batched_tokens``); ``"engine"`` for vLLM's default on this GPU, whatever ``engine`` is;
            None for one step.
        every: seconds between such prompts.
        prompts: prompts that arrive together.
        dtype, kv_dtype, compute_dtype: number formats of weights, KV cache and products; None follows checkpoint and part.
        lora: LoRA adapters that the requests use: a :class:`costmodel.Lora`, or the path of an adapter; the textbook rung has none.
        tp, pp, ep: tensor-, pipeline- and expert-parallel sizes.
        params: P for the textbook rung, e.g. 8e9.
        images: in every prompt, before its text; they add tokens to it, and their encoding is part of its prefill.
        image_size: of each, ``"1024x768"`` or (width, height) in pixels; 1024 × 1024 if None.
        engine: ``vllm``, ``sglang`` or ``trtllm``: whose shipped calibration of this GPU is taken.
        calibration: fitted factors of this GPU instead: a file or a :class:`Calibration`; ``"none"`` for the roofline alone.
        assume_efficiency: for a part without a calibration, take the efficiencies of its nearest measured relative; the result says so
            and has no intervals. A part without such a relative stays on the roofline. Not together with ``calibration``.
        cached_prefix: tokens of each prompt whose K and V the prefix cache has: they are not computed, those after them attend to them.
        speculation: speculative decoding (:class:`costmodel.Speculation`); the rungs stay those of plain decoding, ``speculation`` in the
            answer says what it changes.

    Returns:
        The frozen document ``costmodel.prediction/1``; all times in seconds.

    Raises:
        InputError: a name, number or combination that cannot be; the message names the nearest valid choice.
    """
    formats: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype}
    deployment = deploy(model, gpu, tp=tp, pp=pp, ep=ep, **formats, lora=lora, encoder=True)
    shown = make_images(deployment, images, image_size)
    deployment = with_states(deployment, shown)
    load = make_load(deployment, prompt, prompts, streams, context, chunk, every, cached_prefix, shown)
    plan = _planned(speculation, deployment)
    if params is not None:
        params = parameter_count(params)
    fitted = choose_calibration(calibration, deployment, engine, assume_efficiency)
    rung_parameters = {"roofline": with_encoder(roofline_parameters(deployment), deployment, shown)}
    rates = CalibratedRates(fitted) if fitted else None
    if rates is not None:
        rung_parameters["calibrated"] = with_encoder(build_parameters(deployment, rates), deployment, shown, rates)
    textbook = build_textbook(deployment, params)
    rungs = {name: step_rung(each, load) for name, each in rung_parameters.items()}
    headline: RungName = "calibrated" if fitted else "roofline"
    spike = _spike(rung_parameters[headline], load, rungs[headline])
    asked = engine_of(fitted, engine)
    speculated, more_notes, more_warnings = _speculated(deployment, plan, load, rates, asked)
    memory = memory_of(
        deployment,
        load.streams,
        load.context,
        load.prompt,
        load.prompts,
        load.budget or load.one_step_budget,
        beside=plan.beside(speculated.tokens) if plan and speculated else NOTHING,
    )
    server = _engine(deployment, load, asked)
    steps = reported_steps(rung_parameters[headline], load) if fitted else {}
    encoding = reported_encoding(rung_parameters[headline], load) if fitted else {}
    warnings = _warnings(deployment, load, spike, memory)
    warnings += image_warnings(shown, load.budget)
    if asked == "vllm" and memory.fits:
        warnings += _start(deployment, load)
    if rates is not None:
        warnings += calibration_warnings(rates, rung_parameters, steps)
    else:
        warnings.append(uncalibrated(deployment, engine, calibration, assume_efficiency))
    return Prediction(
        model=model_info(deployment),
        gpu=GpuInfo(name=deployment.profile.name, profile=deployment.gpu, count=deployment.gpus),
        workload=_workload(deployment, load),
        images=images_info(shown),
        headline=headline,
        rungs=Rungs(textbook=textbook_rung(textbook, load), **rungs),
        spike=spike,
        doubling=_doubling(textbook, rung_parameters[headline], load, rungs[headline]),
        memory=MemoryInfo(**asdict(memory)),
        engine=server,
        pipeline=_pipeline(deployment, load, rates),
        calibration=fitted.name if fitted else None,
        intervals=intervals(fitted, rung_parameters, steps, rungs["roofline"], encoding) if fitted else None,
        prefix_cache=_prefix_cache(rung_parameters[headline], load, rungs[headline]),
        speculation=speculated,
        notes=(
            *deployment.notes,
            *image_notes(deployment, shown, fitted),
            *image_limits(shown, load.budget),
            *other_defaults(asked),
            *calibration_notes(fitted, engine),
            *more_notes,
        ),
        warnings=(*warnings, *more_warnings),
    )


@lru_cache(maxsize=256)
def model_info(deployment: Deployment) -> ModelInfo:
    """Return what documents say of the model, counted once per deployment."""
    architecture = deployment.architecture
    return ModelInfo(
        name=architecture.name,
        total_parameters=total_parameters(architecture),
        active_parameters=active_parameters(architecture),
        kv_bytes_per_token=int(kv_bytes_per_token(architecture, deployment.kv_bytes)),
        state_bytes_per_sequence=int(
            state_bytes(architecture, deployment.activation_bytes)
            + cross_bytes(architecture, deployment.encoder_states, deployment.kv_bytes)
        ),
        layers=architecture.layer_count,
        weights_bytes=round(checkpoint_bytes(architecture)),
        pooling=architecture.pooling or None,
    )


def _planned(speculation: Speculation | None, deployment: Deployment) -> Plan | None:
    if speculation is None:
        return None
    from costmodel.speculation.asking import planned

    return planned(speculation, deployment)


def _speculated(
    deployment: Deployment, plan: Plan | None, load: Load, rates: CalibratedRates | None, engine: str
) -> tuple[SpeculationInfo | None, list[str], list[str]]:
    """Return what speculation does, and notes and warnings of it."""
    if plan is None:
        return None, [], []
    from costmodel.speculation.asking import said, speculation_info

    info = speculation_info(deployment, plan, load, rates, engine)
    return info, *said(plan, engine, rates is not None)


def _prefix_cache(parameters: Parameters, load: Load, rung: Rung) -> PrefixCacheInfo | None:
    """Return what the prefix cache saves; None where it has nothing of the prompts."""
    if not load.cached:
        return None
    empty = replace(load, cached=0)
    whole = total_seconds(step_operators(parameters, empty.prefill_work(parameters.windows)))
    whole += total_seconds(encoding_operators(parameters, empty.prompts_encoder_work))
    return PrefixCacheInfo(
        cached_tokens=load.cached,
        computed_tokens=load.new,
        prefill_s=rung.prefill_s,
        prefill_without_cache_s=whole,
        saved_share=1 - rung.prefill_s / whole,
    )


def _spike(parameters: Parameters, load: Load, rung: Rung) -> Spike:
    room = chunk_room(load.budget, load.streams)
    duration, steps = _mixed_sum(parameters, load, room)
    seen = visibility(duration, steps, rung.decode_step_s, load.every)
    return Spike(
        chunks=steps,
        height_s=rung.spike_s,
        duration_s=duration,
        gaps_per_period=seen.gaps,
        fraction_of_gaps=seen.fraction,
        overload=seen.overload,
        moves=seen.moves,
    )


def _mixed_sum(parameters: Parameters, load: Load, room: int | None) -> tuple[float, int]:
    """Return Σ T_mixed and the number of mixed steps; many chunks of one prompt are summed as arrays."""
    if room is None or load.prompts > 1 or load.images is not None or load.new <= 256 * room:
        times = mixed_step_times(parameters, load)
        return sum(times), len(times)
    import numpy as np

    steps = step_count(load.new, 1, room)
    cached = load.cached + np.arange(steps, dtype=float) * room
    chunk = Chunk(np.minimum(room, load.prompt - cached), cached)
    return float(step_times(parameters, load.mixed_work([chunk], parameters.windows)).total.sum()), steps


def _doubling(textbook: Textbook, parameters: Parameters, load: Load, rung: Rung) -> Doubling:
    doubled = replace(load, prompt=2 * load.prompt)
    _, spike = longest_step(parameters, doubled)
    _, once = textbook_spike(textbook, load)
    _, twice = textbook_spike(textbook, doubled)
    return Doubling(
        prompt_tokens=doubled.prompt, spike_s=spike, ratio=spike / rung.spike_s, textbook_ratio=twice / once
    )


def lora_info(deployment: Deployment) -> LoraInfo | None:
    """Return what documents say of LoRA adapters; None without."""
    lora = deployment.lora
    if lora is None:
        return None
    patterns = stage_patterns(deployment)
    elements = sum(
        adapter_elements(deployment, pattern, stage == 0, stage == len(patterns) - 1)
        for stage, pattern in enumerate(patterns)
    )
    return LoraInfo(
        rank=lora.rank,
        adapters=lora.adapters,
        modules=tuple(lora.targets),
        fully_sharded=lora.fully_sharded,
        bytes_per_adapter=round(elements * deployment.activation_bytes / lora.adapters),
    )


def _workload(deployment: Deployment, load: Load) -> Workload:
    return Workload(
        prompt_tokens=load.prompt,
        cached_prefix_tokens=load.cached,
        prompts=load.prompts,
        streams=load.streams,
        context_tokens=load.context,
        chunk_tokens=load.budget,
        every_s=load.every,
        dtype=deployment.dtype,
        kv_dtype=deployment.kv_dtype,
        compute_dtype=deployment.compute_dtype_of(main_format(deployment.architecture)),
        tensor_parallel=deployment.tp,
        pipeline_parallel=deployment.pp,
        expert_parallel=deployment.ep,
        lora=lora_info(deployment),
    )


def _engine(deployment: Deployment, load: Load, asked: str) -> EngineInfo:
    budget = default_token_budget(deployment)
    room, chunks = budget - load.streams, None
    if room > 0:
        chunks = step_count(load.new, load.prompts, room)
        chunks = chunks if load.images is None else sum(1 for _ in replace(load, budget=budget).steps())
    return EngineInfo(
        name=f"vLLM {VLLM_VERSION}",
        asked=asked,
        max_num_batched_tokens=budget,
        max_num_seqs=default_max_num_seqs(deployment),
        splits_prompt=load.one_step_budget > budget,
        chunks=chunks,
        one_step_budget=load.one_step_budget,
    )


def _pipeline(deployment: Deployment, load: Load, rates: CalibratedRates | None) -> PipelineInfo | None:
    """Return the stages of a pipeline and the decode time of the slowest; None without one."""
    if deployment.pp == 1:
        return None
    seconds, patterns = [], stage_patterns(deployment)
    for index, pattern in enumerate(patterns):
        counts = tuple(pattern.count(kind) for kind in range(len(deployment.architecture.kinds)))
        parameters = build_parameters(replace(deployment, layer_counts=counts, pp=1), rates)
        if index < len(patterns) - 1:
            parameters = replace(parameters, gemms=tuple(gemm for gemm in parameters.gemms if not gemm.per_row))
        seconds.append(total_seconds(step_operators(parameters, load.decode_work(parameters.windows))))
    return PipelineInfo(layers=tuple(map(len, patterns)), slowest_stage_decode_s=max(seconds))


def _no_room(deployment: Deployment, load: Load, memory: Memory) -> str:
    """Say what leaves no room for a KV cache, the largest first, and what makes that smaller."""
    budget = load.budget or load.one_step_budget
    layers, sampler = activation_parts(deployment, budget, load.streams)
    weights = f"weights of {memory.weights_bytes / GIB:.1f} GiB"
    if sampler > layers:
        activations, way = f"a sampler of {sampler / GIB:.1f} GiB for its sequences", "use fewer streams"
    else:
        activations = f"activations of {layers / GIB:.1f} GiB for {budget:,} tokens per step"
        way = "use a smaller budget (--chunk) or more GPUs (--tp)"
    takes = f"{activations} and {weights}"
    if memory.weights_bytes >= memory.activation_bytes:
        takes = f"{weights} and {activations}" if memory.weights_bytes < memory.usable_bytes else weights
        way = "use more GPUs (--tp) or fewer bytes per weight (--dtype)"
    return (
        f"does not fit: {takes} leave no room for a KV cache in the {memory.usable_bytes / GIB:.1f} GiB of a GPU; {way}"
    )


def _start(deployment: Deployment, load: Load) -> list[str]:
    """Warn where vLLM does not start with the model's own ``max_model_len``.

    The server has the token budget asked for, else its default, or the one that takes the prompt in one step where that is more.
    """
    own = (
        deployment.architecture.max_positions
    )  # 0 where the config does not say: as in simulations, nothing is known then
    budget = load.budget or max(load.one_step_budget, default_token_budget(deployment))
    pool = pool_of(deployment, workload_settings(deployment, budget, load.streams + load.prompts))
    longest = pool.longest(own)
    return [of_start(longest, own)] if 0 < longest < own else []


def _warnings(deployment: Deployment, load: Load, spike: Spike, memory: Memory) -> list[str]:
    found = []
    if memory.kv_available_bytes <= 0:
        found.append(_no_room(deployment, load, memory))
    elif not memory.fits:
        found.append(
            f"does not fit: the workload needs {memory.kv_needed_bytes / GIB:.1f} GiB of KV cache per GPU, "
            f"{memory.kv_available_bytes / GIB:.1f} GiB are free ({memory.kv_blocks_needed:,} blocks of {memory.kv_blocks:,})"
        )
    if spike.overload:
        found.append(
            f"overload: the mixed steps of one injection take {spike.duration_s:.3g} s, but the next comes after {load.every:g} s"
        )
    limit = deployment.architecture.max_positions
    longest_sequence = max(load.prompt, load.context + 1)
    if limit and longest_sequence > limit:
        found.append(
            f"{longest_sequence:,} tokens are more than the {limit:,} that {deployment.architecture.name} allows"
        )
    return found
