"""A record of the long-prompt experiment beside its simulation: decode step, spikes, and percentiles of the gaps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.building import roofline_parameters
from costmodel.deployment import deploy
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES
from costmodel.simulation.interfering import run_interference
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.results import Simulation
from costmodel.simulation.stepping import Progress
from costmodel.validation.checking.asking import Asked, make_predictor, model_folder
from costmodel.validation.checking.documents import CheckedFile, Row, make_row
from costmodel.validation.checking.served import compare
from costmodel.validation.interference.flags import simulation_options
from costmodel.validation.interference.summary import context_at_start, mean_context
from costmodel.validation.measurements.types import Model


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a record of the experiment says, whoever made it.

    Attributes:
        streams: chats answered at once.
        context, injected_context: mean tokens in their KV cache, in the baseline and in the run with injections.
        begun: tokens in it when the runs began, from which it grows; None where streams began new answers, so that the mean is held.
        prompt: tokens of an injected prompt.
        every, first, duration: of the injections, from the beginning of the run to its end [s].
        baseline_duration: of the run without [s].
        baseline, injected: every gap between two tokens in the run, as (end, length), by stream [s].
        injections: (sent, first token) of every injected prompt that got one [s].
        model: what was served, where that is known.
        gpu: canonical name of the part, where it is known.
        engine: of the server.
        flags: of the server, by vLLM's names.
        notes: of the record.
    """

    streams: int
    context: int
    injected_context: int
    begun: int | None
    prompt: int
    every: float
    first: float
    duration: float
    baseline_duration: float
    baseline: tuple[tuple[tuple[float, float], ...], ...]
    injected: tuple[tuple[tuple[float, float], ...], ...]
    injections: tuple[tuple[float, float], ...]
    model: Model | None
    gpu: str | None
    engine: str
    flags: dict[str, Any]
    notes: tuple[str, ...] = ()


def experiment_of(record: Any, warnings: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a record as :mod:`costmodel.validation.interference.records` reads it, with what was warned of there.

    Raises:
        InputError: it has no run with injections that were answered.
    """
    plan, injected = record.plan, record.injected
    answered = [each for each in injected.injections if each.first is not None] if injected else []
    if not answered:
        raise InputError("the record has no injected prompt that was answered; there is no spike to compare")
    duration = min(injected.end - injected.start, plan.duration_s)
    if duration <= plan.first_s:
        raise InputError(
            f"the record ends {duration:.3g} s after its second run began, before the first prompt; nothing can be compared"
        )
    calm = record.baseline or injected
    grows = not any(run.start < answer.sent <= run.end for run in (calm, injected) for answer in run.answers)
    prompts = [each.prompt_tokens for each in answered if each.prompt_tokens]
    return Experiment(
        streams=plan.streams,
        context=max(round(mean_context(calm, plan)), 1),
        injected_context=max(round(mean_context(injected, plan)), 1),
        begun=max(round(context_at_start(injected, plan)), 1) if grows else None,
        prompt=round(statistics.median(prompts)) if prompts else plan.prompt_tokens,
        every=plan.every_s,
        first=plan.first_s,
        duration=duration,
        baseline_duration=calm.end - calm.start,
        baseline=_gaps(record.baseline) if record.baseline else (),
        injected=_gaps(injected),
        injections=tuple((each.sent, each.first) for each in answered),
        model=record.model,
        gpu=record.machine.profile if record.machine else None,
        engine=record.server.engine or "vllm",
        flags=dict(record.server.flags),
        notes=(
            *record.notes,
            *warnings,
            *(() if record.complete else ("the record ends before what was planned",)),
        ),
    )


def _gaps(run: Any) -> tuple[tuple[tuple[float, float], ...], ...]:
    found: dict[int, list[tuple[float, float]]] = {}
    for answer in run.answers:
        inside = [(end, gap) for end, gap in answer.gaps if end - gap >= run.start and end <= run.end]
        found.setdefault(answer.stream, []).extend(inside)
    return tuple(tuple(gaps) for gaps in found.values())


def check_experiment(
    path: Path, experiment: Experiment, asked: Asked, progress: Callable[[Progress], None] | None = None
) -> tuple[CheckedFile, Sequence[Row]]:
    """Simulate an experiment, and return decode step, spikes and percentiles beside those that were measured.

    Args:
        path: of the record.
        experiment: what is in it.
        asked: model, GPU and flags of the server where the record does not have them, or has others.
        progress: called now and then.

    Raises:
        InputError: no model or GPU, or a simulation that cannot be.
    """
    with ExitStack() as stack:
        known: dict[str, Any] = {"gpu": experiment.gpu}
        if asked.model is None and experiment.model is not None:
            known |= {"model": stack.enter_context(model_folder(experiment.model)), "dtype": experiment.model.dtype}
            known |= {"kv_dtype": experiment.model.kv_dtype}
        known |= simulation_options(experiment.flags)
        if experiment.engine in ENGINES:
            known["engine"] = experiment.engine
        options = asked.server(**known)
        for name, what in (("gpu", "GPU"), ("model", "model")):
            if name not in options:
                raise InputError(f"the record does not say which {what} served; give it with --{name}")
        deployment = deploy(
            options["model"],
            options["gpu"],
            tp=options.get("tp", 1),
            dtype=options.get("dtype"),
            kv_dtype=options.get("kv_dtype"),
        )
        predictor = make_predictor(deployment, asked, experiment.engine)
        first, duration = experiment.first, experiment.duration
        documents = [_simulate(experiment, first, duration, options, progress)]
        if experiment.begun is not None and abs(experiment.baseline_duration / duration - 1) > SAME:
            # contexts do not grow as far in a baseline that is shorter
            calm = experiment.baseline_duration
            documents.insert(0, _simulate(experiment, min(first, calm / 2), calm, options, progress))
    document, baseline = documents[-1], documents[0].baseline
    windows = roofline_parameters(deployment).windows
    streams, beside = (
        [Decodes(experiment.streams, context)] for context in (experiment.context, experiment.injected_context)
    )
    budget = document.server.token_budget
    chunk = min(experiment.prompt, budget - experiment.streams)
    cached = (experiment.prompt - 1) // chunk * chunk
    last = [Chunk(chunk, max(cached - chunk, 0))] if cached else [Chunk(chunk)]
    decode, spike = make_work([], streams, windows), make_work(last, beside, windows)
    seconds, interval = predictor.step(spike)
    around = None if interval is None else (interval[0] / seconds, interval[1] / seconds)
    rows = list(_rows(experiment, predictor.step(decode), around, document.spikes))
    for result, gaps, name in (
        (baseline, experiment.baseline, "baseline"),
        (document.injected, experiment.injected, "injected"),
    ):
        if result is not None:
            measured = sorted(length for stream in gaps for _, length in stream)
            rows += compare(f"{name} ITL", "itl", result.itl, measured)
    file = CheckedFile(
        file=path.name,
        form=f"interference record, {experiment.streams} streams, {len(experiment.injections)} prompts of {experiment.prompt:,} tokens",
        model=experiment.model.name if experiment.model and asked.model is None else document.server.model,
        gpu=document.server.gpu,
        engine=experiment.engine,
        rung=document.server.rung,
        calibration=document.server.calibration,
        notes=(*experiment.notes, *document.warnings),
    )
    return file, rows


SAME = 0.05
"""Runs whose lengths differ by less are as long as one another."""


def _simulate(
    experiment: Experiment,
    first: float,
    duration: float,
    options: ServerOptions,
    progress: Callable[[Progress], None] | None,
) -> Simulation:
    """Simulate both runs, so long, with the first prompt then."""
    grow = experiment.begun is not None
    context = experiment.injected_context if experiment.begun is None else experiment.begun
    found = run_interference(
        experiment.prompt, experiment.streams, context, experiment.every, first, duration, 1, grow, 1, None, None, options,
        progress=progress,
    )  # fmt: skip
    if found.document.interrupted:
        raise KeyboardInterrupt
    return found.document


def _rows(
    experiment: Experiment,
    decode: tuple[float, tuple[float, float] | None],
    around: tuple[float, float] | None,
    spikes: Sequence[Any],
) -> Iterator[Row]:
    """Yield the decode step and every spike; ``around`` is the interval of a spike, relative to its height."""
    steady = [length for stream in experiment.baseline for _, length in stream if length > 0]
    if steady:
        what = f"decode step of {experiment.streams} streams"
        yield make_row(what, "decode", decode[0], statistics.median(steady), decode[1])
    if not spikes:
        return
    height = statistics.median(each.height_s for each in spikes)
    interval = None if around is None else (around[0] * height, around[1] * height)
    for number, (sent, first) in enumerate(experiment.injections, 1):
        heights = []
        for stream in experiment.injected:
            # The gap that the prompt's last step ends, and with chunks those before it, lie between its being sent and its first token.
            during = [length for end, length in stream if end >= sent and end - length <= first]
            if during:
                heights.append(max(during))
        if heights:
            yield make_row(f"spike {number}", "spike", height, statistics.median(heights), interval)
