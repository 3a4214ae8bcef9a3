"""Which parameters measured steps can tell apart, and what they are.

All candidates are fitted, and the one that is known least goes, as long as there is one that is not known. It then has its default, or
equals the one that it cannot be told from by nature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from costmodel.deployment import Deployment
from costmodel.equations.rate_sources import LATENT
from costmodel.hardware.calibration import FORMS
from costmodel.validation.fitting.least_squares import Array, Evaluator, FitResult, Range, fit_model, form_range
from costmodel.validation.fitting.step_model import Key, Tied, form_of, label

AT_PEAK: Final = "these steps reach the profile's peak, or more"
ADDED: Final = "with these steps times of arithmetic and of memory add up"
BELOW: Final = 0.02
"""A measured step that is so much faster than the roofline is no noise: the profile's peaks are too low."""
ALIKE: Final = 0.9
"""Correlation beyond which two parameters do the same."""
EFFICIENCIES: Final = (0.75, 0.4, 0.15)
"""Where efficiencies start: from one place a fit may end at a bound, with the corner between arithmetic and memory on the wrong side."""
TINY: Final = 1e-12
"""Added to the mean loss, whose logarithm is taken: a perfect fit has none."""
KEPT: Final = ("gemm.compute_efficiency", "overhead.graph.per_step_s")
"""The first candidates; they go only where no step shows them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parameter that may be fitted.

    Attributes:
        key: operator and name.
        otherwise: what it is where the steps do not tell: another parameter that it then equals, or a number.
        why: that is a good guess.
    """

    key: Key
    otherwise: Key | float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What became of a candidate.

    Attributes:
        key: operator and name.
        value: in the calibration.
        error: standard error; None where it was not fitted.
        how: ``fitted``, ``tied`` to another or left at its ``default``.
        reason: of the latter two, in words.
    """

    key: Key
    value: float
    error: float | None
    how: Literal["fitted", "tied", "default"]
    reason: str = ""


def candidates(deployment: Deployment) -> tuple[Candidate, ...]:
    """Return what may be fitted to steps of a deployment, the most important first."""
    latent = any(kind.attention.kind == "mla" or kind.attention.shared_kv for kind in deployment.architecture.kinds)
    suffix = f".{deployment.attention_dtype}{LATENT}" if latent else ""
    prefill, decode = f"prefill_attention{suffix}", f"decode_attention{suffix}"
    graph, eager = "overhead.graph", "overhead.eager"
    same = "as of a decode step"
    return (
        Candidate(("gemm", "compute_efficiency"), 1.0),
        Candidate((graph, "per_step_s"), 0.0),
        Candidate((prefill, "compute_efficiency"), ("gemm", "compute_efficiency"), "as of the matrices"),
        Candidate((decode, "bandwidth_efficiency"), ("gemm", "bandwidth_efficiency"), "as of the matrices"),
        Candidate((graph, "per_sequence_s"), 0.0),
        Candidate((eager, "per_step_s"), (graph, "per_step_s"), same),
        Candidate(("gemm", "bandwidth_efficiency"), 1.0),
        Candidate((eager, "per_sequence_s"), (graph, "per_sequence_s"), same),
        Candidate(("gemm", "sharpness"), FORMS["smooth_roofline"]["sharpness"][0]),
    )


def choose(
    whole: Evaluator, asked: Sequence[Candidate], data: Mapping[str, Array], seconds: Array, loss_scale: float
) -> tuple[tuple[Chosen, ...], Tied, dict[str, float]]:
    """Fit what can be told apart; return what became of each candidate, and the model with its fitted values.

    A parameter stays as long as the fit without it is worse by more than it costs, as Schwarz's criterion n·ln(Σρ/n) + k·ln n counts.
    """
    otherwise = {each.key: each.otherwise for each in asked}
    starts = [{label(each.key): _range(each.key, seconds, share) for each in asked} for share in EFFICIENCIES]

    def fitted(fixed: Mapping[Key, Key | float]) -> _Try:
        evaluator = Tied(whole, {key: _resolved(value, fixed) for key, value in fixed.items()})
        tries = []
        for ranges in starts:
            result = fit_model(evaluator, data, seconds, ranges, loss_scale)
            residual = np.log(evaluator.seconds(result.values, data) / seconds) / loss_scale
            loss = float(np.mean(np.sqrt(1 + residual**2) - 1)) + TINY
            score = len(seconds) * math.log(loss) + len(result.values) * math.log(len(seconds))
            tries.append(_Try(dict(fixed), evaluator, result, score))
        return min(tries, key=lambda each: each.score)

    fixed: dict[Key, Key | float] = {}
    reasons: dict[Key, str] = {}
    for each in reversed(asked[2:]):  # more parameters than half the steps would fit noise
        if len(asked) - len(fixed) > max(len(seconds) // 2, 2):
            fixed[each.key], reasons[each.key] = each.otherwise, "too few steps"
    best = fitted(fixed)
    while True:
        free = [each.key for each in asked if each.key not in best.fixed]
        if len(free) == 1:
            break
        if (known := _at_an_end(free, best.result)) is not None:
            key, reason, number = known
            fixed = {**best.fixed, key: otherwise[key] if number is None else number}
            best, reasons[key] = fitted(fixed), reason
            continue
        tries = {key: fitted({**best.fixed, key: otherwise[key]}) for key in free[len(KEPT) :]}
        least = min(tries, key=lambda key: tries[key].score, default=None)
        if least is None or tries[least].score > best.score:
            break
        reasons[least] = _why(least, free, best.result)
        best = tries[least]
    found = {key: best.result.values[label(key)] for key in free}
    chosen = []
    for each in asked:
        if each.key in found:
            error = best.result.standard_errors.get(label(each.key))
            chosen.append(Chosen(each.key, found[each.key], error, "fitted"))
            continue
        value, leads = best.fixed[each.key], _resolved(best.fixed[each.key], best.fixed)
        number = found[leads] if isinstance(leads, tuple) else leads
        tied = isinstance(value, tuple)
        why = f"{reasons[each.key]}: {each.why}" if tied and each.why else reasons[each.key]
        chosen.append(Chosen(each.key, number, None, "tied" if tied else "default", why))
    return tuple(chosen), best.evaluator, best.result.values


@dataclass(frozen=True, slots=True)
class _Try:
    """A fit of some of the parameters, and Schwarz's criterion of it."""

    fixed: dict[Key, Key | float]
    evaluator: Tied
    result: FitResult
    score: float


def _resolved(value: Key | float, fixed: Mapping[Key, Key | float]) -> Key | float:
    """Return what a tie leads to: a parameter that is fitted, or a number."""
    while isinstance(value, tuple) and value in fixed:
        value = fixed[value]
    return value


def _range(key: Key, seconds: Array, efficiency: float) -> Range:
    """Return where a parameter may go; efficiencies start where told, the engine's times at a size that these steps allow."""
    operator, name = key
    least = float(seconds.min())
    start = {"per_step_s": 0.5 * least, "per_sequence_s": 0.005 * least}.get(name)
    return form_range(form_of(operator), name, efficiency if name.endswith("efficiency") else start)


def _at_an_end(free: Sequence[Key], result: FitResult) -> tuple[Key, str, float | None] | None:
    """Return a parameter that no step shows or that is at a bound, why it goes, and the number it keeps (None for what it is otherwise).

    ``free`` is in the order of importance: the least important goes first. None if there is none.
    """
    for key in reversed(free):
        name = label(key)
        if name in result.undetermined:
            return key, "no step shows it", None
        if name not in result.at_bound:
            continue
        if name.endswith("_s"):
            return key, "these steps put it at zero", 0.0
        if name.endswith("sharpness"):
            return (
                (key, ADDED, 1.0) if result.values[name] < 1 + BELOW else (key, "these steps put it at its bound", None)
            )
        if result.values[name] > 1 - BELOW:
            return key, AT_PEAK, 1.0
    return None


def _why(key: Key, free: Sequence[Key], result: FitResult) -> str:
    """Return why a parameter can go: another one does what it does, or it does little."""
    place = free.index(key)
    size, other = max(
        (abs(float(result.correlations[place, index])), index) for index in range(len(free)) if index != place
    )
    if size > ALIKE:
        return f"can hardly be told from {label(free[other])}"
    return "the steps are fitted as well without it"
