"""Measured steps of an engine → a calibration of that machine and model.

A whole step shows no single kernel, so few parameters are fitted: what the layers' matrices reach in arithmetic and in bandwidth, what
prefill attention and decode attention reach, and what the engine takes per step and per sequence. Which of them the measured steps can
tell apart is found out, not assumed (:mod:`~costmodel.validation.fitting.choosing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from costmodel.architecture.families import architecture_from_config
from costmodel.building import roofline_parameters
from costmodel.deployment import Deployment, deploy_architecture
from costmodel.equations.step import step_operators
from costmodel.equations.work import Reach
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError
from costmodel.validation.fitting.choosing import AT_PEAK, BELOW, Chosen, candidates, choose
from costmodel.validation.fitting.holdout import FEWEST, SHARE, Errors, errors_of
from costmodel.validation.fitting.least_squares import LOSS_SCALE, Compiled, Evaluator
from costmodel.validation.fitting.step_model import Key, label, step_data, step_model, step_work
from costmodel.validation.measurements.types import Measurement, Step

Kind = Literal["decode", "prefill", "mixed"]
KINDS: Final[tuple[Kind, ...]] = ("decode", "prefill", "mixed")
"""Decodes alone, prompts or parts of them alone, and both in one step."""

MOST_STEPS: Final = 4000
"""Kinds of steps that are fitted at most: more, as of a server's log, change nothing and only take time."""
FEW_BELOW: Final = 0.05
"""Share of the steps up to which those that are faster than the roofline are left out as outliers."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured step beside its prediction."""

    step: Step
    predicted: float
    floor: float
    """At datasheet rates [s]."""
    fitted: bool

    @property
    def kind(self) -> Kind:
        """Of the step."""
        return kind_of(self.step)


@dataclass(frozen=True, slots=True)
class StepFit:
    """What a fit to measured steps found.

    Attributes:
        deployment: model and part.
        chosen: parameters, the surest first.
        rows: every step of the measurement, but those left out of the fit.
        fitted, held_out: errors by kind of step, and of ``all``; held out are steps that no fit has seen.
        whole_step: errors whose quantiles are the intervals of a prediction.
        ranges: smallest and largest number of tokens of a step, and of KV tokens of each kind of attention.
        notes: what has to be said.
    """

    deployment: Deployment
    chosen: tuple[Chosen, ...]
    rows: tuple[Row, ...]
    fitted: dict[str, Errors]
    held_out: dict[str, Errors]
    whole_step: Errors
    ranges: dict[str, dict[str, tuple[float, float]]]
    notes: tuple[str, ...]

    @property
    def values(self) -> dict[Key, float]:
        """Number of every parameter."""
        return {each.key: each.value for each in self.chosen}


def kind_of(step: Step) -> Kind:
    """Return the kind of a step."""
    if not step.chunks:
        return "decode"
    return "mixed" if step.decodes else "prefill"


def measured_deployment(measurement: Measurement, gpu: str | None = None) -> Deployment:
    """Return the deployment that was measured.

    Args:
        measurement: of it.
        gpu: name of the part, or the path of its profile; None for the one that the measurement names.

    Raises:
        InputError: the measurement names no part, and none is given; or one cannot be deployed so.
    """
    machine, model = measurement.machine, measurement.model
    part = gpu or machine.profile
    if part is None:
        raise InputError(
            f"the measurement is of {machine.device}, for which there is no profile; give one with --gpu PROFILE.toml "
            "(`costmodel gpus probe` makes it)"
        )
    if gpu is None:
        try:
            load_gpu(part)
        except InputError as error:
            raise InputError(f"{error}; a profile of one's own is given with --gpu FILE") from None
    architecture = architecture_from_config(model.config, model.name)
    return deploy_architecture(architecture, part, tp=machine.count, dtype=model.dtype, kv_dtype=model.kv_dtype)


def fit_steps(measurement: Measurement, gpu: str | None = None, seed: int = 0) -> StepFit:
    """Fit the steps of a measurement.

    Steps that the measurement holds out are not fitted, and say how good the fit is. Where it holds out none, those with prompts beside
    decodes and a share of the others, by chance, are held out.

    Args:
        measurement: what was measured.
        gpu: name of the part, or the path of its profile; None for the one that the measurement names.
        seed: of that chance.

    Raises:
        InputError: no part, too few steps, or steps that are faster than the part's datasheet allows.
    """
    deployment = measured_deployment(measurement, gpu)
    asked = candidates(deployment)
    whole = Evaluator(step_model(deployment, [each.key for each in asked]))
    too_fast, notes = _too_fast(measurement, deployment, whole)
    training, test = split(measurement.steps, seed)
    if too_fast:  # outliers are fitted to by nothing, but they are errors like others
        before = len(training)
        training = [step for step in training if id(step) not in too_fast]
        left = before - len(training)
        notes = [f"{notes[0]}: {left} left out of the fit, {len(too_fast) - left} held out and in the errors"]
    if len(training) < len(FEWEST_FITTED_WORDS):
        raise InputError(
            f"{len(training)} kinds of steps are too few to fit; {', '.join(FEWEST_FITTED_WORDS)} at least"
        )
    windows = roofline_parameters(deployment).windows
    used = training
    if len(training) > MOST_STEPS:
        order = np.random.default_rng(seed).choice(len(training), MOST_STEPS, replace=False)
        used = [training[index] for index in sorted(order.tolist())]
        notes.append(f"{MOST_STEPS:,} of {len(training):,} kinds of steps are fitted, chosen by chance")
    seconds = np.array([step.seconds for step in used])
    chosen, evaluator, values = choose(whole, asked, step_data(used, windows), seconds, _loss_scale(used))
    rows = [*_rows(evaluator, values, training, windows, True), *_rows(evaluator, values, test, windows, False)]
    held_out = _errors(row for row in rows if not row.fitted)
    known = [row for row in rows if not row.fitted]
    if len(known) < FEWEST:
        notes.append(
            f"{len(known)} kinds of steps are held out, too few for intervals; those come from the fitted steps as well"
        )
        known = rows
    return StepFit(
        deployment=deployment,
        chosen=chosen,
        rows=tuple(rows),
        fitted=_errors(row for row in rows if row.fitted),
        held_out=held_out,
        whole_step=_error(known),
        ranges=_ranges(used, windows),
        notes=(*notes, *_said(measurement, chosen)),
    )


FEWEST_FITTED_WORDS: Final = (
    "a short prompt",
    "a long prompt",
    "few decodes",
    "many decodes",
    "decodes at long context",
)
"""Steps without which nothing can be fitted: as many at least."""


def split(steps: Sequence[Step], seed: int = 0) -> tuple[list[Step], list[Step]]:
    """Return the steps that are fitted and those that are held out."""
    if any(step.held_out for step in steps):
        return [step for step in steps if not step.held_out], [step for step in steps if step.held_out]
    mixed = np.array([kind_of(step) == "mixed" for step in steps], dtype=bool)
    others = np.flatnonzero(~mixed)
    chance = np.random.default_rng(seed)
    # A server's log may hold little but mixed steps; then those are fitted as well.
    groups = [others] if len(others) >= 2 * FEWEST else [np.arange(len(steps))]
    out = set() if len(others) < 2 * FEWEST else set(np.flatnonzero(mixed).tolist())
    for group in groups:
        out |= set(chance.permutation(group)[: round(SHARE * len(group))].tolist())
    return [step for index, step in enumerate(steps) if index not in out], [steps[index] for index in sorted(out)]


def _too_fast(measurement: Measurement, deployment: Deployment, evaluator: Evaluator) -> tuple[set[int], list[str]]:
    """Return the ids of the steps that take less than the roofline, and a note where there are some.

    Raises:
        InputError: that are too many.
    """
    steps = list(measurement.steps)
    if not steps:
        raise InputError("the measurement has no steps; did it end before the first?")
    windows = roofline_parameters(deployment).windows
    data = step_data(steps, windows)
    floors = evaluator.floor(data)
    ratios = np.array([step.seconds for step in steps]) / floors
    below = np.flatnonzero(ratios < 1 - BELOW)
    if not len(below):
        return set(), []
    worst = int(np.argmin(ratios))
    what = f"{len(below)} of {len(steps)} measured steps are faster than the roofline of {deployment.profile.name}"
    if len(below) > FEW_BELOW * len(steps):
        name, least = _too_low(deployment, steps[worst], float(ratios[worst]))
        raise InputError(
            f"{what} ({describe(steps[worst])} took {steps[worst].seconds * 1e3:.3g} ms, the floor is {floors[worst] * 1e3:.3g} ms): "
            f"its {name} is too low; set it to {least:.2g} or more, or probe again while nothing else runs"
        )
    return {id(steps[index]) for index in below.tolist()}, [what]


def _too_low(deployment: Deployment, step: Step, ratio: float) -> tuple[str, float]:
    """Return which number of the profile makes a step's floor too high by 1/ratio, and what it is at least."""
    parameters = roofline_parameters(deployment)
    seconds = {"memory": 0.0, "compute": 0.0}
    for operator in step_operators(parameters, step_work(step, parameters.windows)):
        seconds["compute" if operator.bound == "compute" else "memory"] += float(operator.seconds)
    dtype = deployment.activation_dtype
    name, value = max(
        (seconds["memory"], ("memory_bandwidth", deployment.profile.memory_bandwidth.value)),
        (seconds["compute"], (f"peak_flops.{dtype}", deployment.profile.peak_flops[dtype].value)),  # type: ignore[index]
    )[1]
    digits = 10.0 ** (math.floor(math.log10(value / ratio)) - 1)
    return name, math.ceil(value / ratio / digits) * digits


def describe(step: Step) -> str:
    """Return a step in words: ``prefill 1,024``, ``mixed 512 beside 8 decodes at 261``."""
    chunks = " + ".join(f"{new:,}" + (f" after {cached:,}" if cached else "") for new, cached in step.chunks[:3])
    if len(step.chunks) > 3:
        chunks += f" + {len(step.chunks) - 3} more"
    if not step.decodes:
        return f"prefill {chunks}"
    mean = sum(step.decodes) / len(step.decodes)
    decodes = f"{len(step.decodes):,} × {mean:,.0f}"
    return f"mixed {chunks} beside {decodes}" if step.chunks else f"decode {decodes}"


def _loss_scale(steps: Sequence[Step]) -> float:
    """Return the relative residual that is like noise: that of kernels' tables, or that of these repeats if it is more."""
    return max(LOSS_SCALE, float(np.median([step.spread / step.seconds for step in steps])))


def _rows(
    evaluator: Compiled, values: Mapping[str, float], steps: Sequence[Step], windows: Sequence[Reach], fitted: bool
) -> Iterator[Row]:
    if not steps:
        return
    data = step_data(steps, windows)
    predicted, floors = evaluator.seconds(values, data), evaluator.floor(data)
    for step, seconds, floor in zip(steps, predicted.tolist(), floors.tolist(), strict=True):
        yield Row(step, seconds, floor, fitted)


def _errors(rows: Iterator[Row]) -> dict[str, Errors]:
    """Return errors by kind of step, and of all; kinds without steps are left out."""
    listed = list(rows)
    groups: dict[str, list[Row]] = {kind: [row for row in listed if row.kind == kind] for kind in KINDS}
    return {kind: _error(group) for kind, group in {**groups, "all": listed}.items() if group}


def _error(rows: Sequence[Row]) -> Errors:
    return errors_of(np.array([row.predicted for row in rows]), np.array([row.step.seconds for row in rows]))


def _ranges(steps: Sequence[Step], windows: Sequence[Reach]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return what was fitted on, by operator and variable."""
    data = step_data(steps, windows)
    kinds = range(len(dict.fromkeys(windows)))
    read = {
        "gemm": ("tokens", [data["tokens"]]),
        "prefill_attention": ("kv_tokens", [data[f"prefill_kv_{index}"] for index in kinds]),
        "decode_attention": ("kv_tokens", [data[f"decode_kv_{index}"] for index in kinds]),
    }
    found = {}
    for operator, (variable, columns) in read.items():
        sizes = np.max(columns, axis=0)
        sizes = sizes[sizes > 0]
        if len(sizes):
            found[operator] = {variable: (float(sizes.min()), float(sizes.max()))}
    return found


def _said(measurement: Measurement, chosen: Sequence[Chosen]) -> Iterator[str]:
    """Yield what has to be said of a measurement and its fit."""
    if measurement.clock == "cpu":
        yield "times are CPU time of the engine's process, which is its time on the clock only while one thread computes everything"
    if not measurement.complete:
        yield "the measurement did not run to its end"
    if measurement.machine.throttled:
        yield f"the part was throttled while it was measured ({', '.join(measurement.machine.throttled)}): it can be faster"
    for each in chosen:
        if each.reason == AT_PEAK:
            yield f"{label(each.key)} is at the profile's peak, which may be too low: probe again while nothing else runs, or correct it"
