"""Answers to questions of cases: which calibration serves one, what it predicts, and why it may be far off."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from case_questions import Question
from case_steps import Step

from costmodel.building import build_parameters, roofline_parameters
from costmodel.calibrations import assumed_calibration
from costmodel.equations.parameters import AttentionKernel, Parameters
from costmodel.equations.rate_sources import DatasheetRates, RateSource
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import make_work
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration, read_calibration
from costmodel.hardware.shipped import shipped_calibration
from costmodel.speculation.asking import Speculation, planned, speculator

Find = Callable[[str, str], Calibration | None]
"""(canonical name of a part, engine) → its calibration, None if there is none."""

FAR: Final = 0.25
"""Relative error from which a reason is given."""

FEW: Final = 512
"""Tokens up to which what a single step lacks is rather overhead than slower kernels; only the wording of a reason hangs on it."""


def finder(folder: Path | None) -> Find:
    """Return where calibrations are looked up: ``<gpu>-<engine>.toml`` in a folder first, then those that the package ships."""

    @lru_cache(maxsize=256)
    def find(gpu: str, engine: str) -> Calibration | None:
        if folder is not None and (path := folder / f"{gpu}-{engine}.toml").is_file():
            return read_calibration(path)
        return shipped_calibration(gpu, engine)

    return find


@dataclass(frozen=True)
class Answer:
    """What the model says: seconds on the best rung there is, and which one that is."""

    seconds: float
    rung: str
    calibration: str | None
    assumed: bool
    missing: tuple[str, ...]
    """Operators that the calibration does not name."""
    floor_s: float
    """The same on the roofline rung [s]."""


def answer(question: Question, find: Find) -> Answer:
    """Predict a question: the engine's calibration of this part, else vLLM's, else the nearest relative's, else the roofline."""
    floor = _total(question, roofline_parameters(question.deployment), DatasheetRates())
    calibration = _choose(question, find)
    if calibration is None:
        return Answer(floor, "roofline", None, False, (), floor)
    rates = CalibratedRates(_with_overheads(calibration, question.engine.overheads))
    parameters = build_parameters(question.deployment, rates)
    seconds = _total(question, parameters, rates)
    assumed = calibration.assumed_from is not None
    return Answer(
        seconds, "assumed" if assumed else "calibrated", calibration.name, assumed, tuple(rates.missing), floor
    )


def _choose(question: Question, find: Find) -> Calibration | None:
    gpu, engine = question.deployment.gpu, question.engine.calibration
    for name in dict.fromkeys((engine, "vllm")):
        if (found := find(gpu, name)) is not None:
            return found
    try:
        return assumed_calibration(question.deployment.profile, gpu, lambda other: find(other, "vllm"))
    except InputError:
        return None


def _with_overheads(calibration: Calibration, overheads: str) -> Calibration:
    """Return a calibration with the overheads that an engine has: as they are, none, or the eager one in every step."""
    if overheads == "engine":
        return calibration
    operators = {key: fit for key, fit in calibration.operators.items() if key not in ("overhead.graph", "elementwise")}
    if overheads == "none":
        operators.pop("overhead.eager", None)
    elif "elementwise" in calibration.operators:
        operators["elementwise"] = calibration.operators["elementwise"]
    return calibration.model_copy(update={"operators": operators})


def _total(question: Question, parameters: Parameters, rates: RateSource) -> float:
    if question.part.startswith("attention:"):
        parameters = _attention_alone(question, rates)
    if question.speculation is not None:
        return _speculated(question, question.speculation, rates)
    return sum(step.weight * _part(question, parameters, step) for step in question.steps)


def _speculated(question: Question, speculation: Speculation, rates: RateSource) -> float:
    """Return the time of a token: that of a pass over the tokens that it gives [s]."""
    fitted = rates if isinstance(rates, CalibratedRates) else None
    plan = planned(speculation, question.deployment)
    [streams] = question.steps[0].decodes
    made = speculator(question.deployment, plan, fitted, question.engine.calibration)
    tokens = plan.tokens or 1
    time = made.pass_time(round(streams.count), round(streams.context), tokens)
    return question.steps[0].weight * time.total_s / plan.acceptance.expected(tokens)


def _part(question: Question, parameters: Parameters, step: Step) -> float:
    operators = step_operators(parameters, make_work(step.chunks, step.decodes, parameters.windows))
    kind, _, name = question.part.partition(":")
    if kind == "linear":
        return _sum(operators, "linear", "experts")
    if kind == "layer" and name == "linear":
        return _sum(operators, "linear", "experts") / question.deployment.architecture.layer_count
    if kind == "layer":
        counts = {gemm.name: gemm.count for gemm in parameters.gemms}
        return sum(item.seconds / counts[item.name] for item in operators if item.name == name)
    return float(sum(item.seconds for item in operators))


def _sum(operators: list[OperatorTime[Any]], *groups: str) -> float:
    return float(sum(item.seconds for item in operators if item.group in groups))


def _attention_alone(question: Question, rates: RateSource) -> Parameters:
    """One causal attention kernel of as many KV heads as query heads, in 16 bits, and nothing besides.

    Calibrations describe the engine's whole attention call, cache write included, whose bytes come on top of the arithmetic. The bare
    kernel reads q, k and v and writes its output while it computes: the calibrated compute efficiency, launch and sharpness, and those
    bytes at the datasheet's bandwidth.
    """
    _, heads_text, dim_text = question.part.split(":")
    heads, dim, hardware = int(heads_text), int(dim_text), question.deployment.hardware
    dtype = question.deployment.activation_dtype
    fitted = rates.kernel("prefill_attention", dtype, hardware.peaks[dtype], hardware.bandwidth)
    bare = replace(fitted, bandwidth_efficiency=1)
    moved = 4 * heads * dim * question.deployment.activation_bytes
    kernel = AttentionKernel(None, "", 4 * heads * dim, 4 * heads * dim, moved, 1, bare, bare)
    return Parameters((), (), (kernel,))


def reason(case: Mapping[str, Any], question: Question, found: Answer) -> str:
    """Return why a prediction is more than 25 % off, from what the case says of itself and what the calibration lacks; else nothing."""
    error = found.seconds / question.measured_s - 1
    if abs(error) <= FAR:
        return ""
    text = " ".join(str(value) for key, value in case.items() if key != "measured").casefold()
    engine, deployment = question.engine, question.deployment
    reasons = [f"measured at {found.floor_s / question.measured_s:.0%} of the roofline"]
    if found.floor_s > question.measured_s:
        reasons.append("which is impossible: part, format or lengths of the source are not what they seem")
    if engine.caveat:
        reasons.append(engine.caveat)
    if error < 0 and engine.overheads != "none" and any(name.startswith("overhead") for name in found.missing):
        steps = sum(abs(step.weight) for step in question.steps)
        missing = (question.measured_s - found.seconds) / steps
        short = all(chunk.tokens <= FEW for step in question.steps for chunk in step.chunks)
        size = f": {missing * 1e3:,.3g} ms per step are missing" if short or steps > 1 else ""
        reasons.append(f"the calibration has no engine overhead{size}")
    if unfitted := [name for name in found.missing if not name.startswith(("overhead", "elementwise"))]:
        reasons.append(f"at datasheet rates: {', '.join(unfitted)}")
    if deployment.dtype in ("int8", "int4"):
        reasons.append(
            f"{deployment.dtype} weight-only kernels have not been measured: those of 16-bit weights stand in"
        )
    if found.assumed:
        reasons.append(f"nothing measured on this part: efficiencies {found.calibration}")
    if power := re.search(r"power.limit\w*\s*(\d+ ?w)?|\b\d{3} ?w\b", text):
        reasons.append(f"the part was {power[0].strip()}, slower than its datasheet")
    if question.part.startswith("layer:") and question.part != "layer:linear":
        reasons.append("one matrix of one shape: the library's choice of tiles")
    if "whole ms" in text and question.measured_s < 0.05:
        reasons.append(f"source rounds to whole ms: ±{0.5e-3 / question.measured_s:.0%}")
    if found.rung == "roofline":
        reasons.append("a floor: no calibration to start from")
    if str(case.get("confidence")) in ("low", "medium"):
        reasons.append(f"{case['confidence']} confidence in the source")
    reasons += question.caveats
    return "; ".join(reasons) if len(reasons) > 1 else f"{reasons[0]}, not explained"
