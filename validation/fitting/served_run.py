"""The engine's overhead in a decode step, from a served run: what such a step takes beyond its kernels.

When the last prompt has been prefilled, every step gives each running request one token. Two requests whose first tokens came in the
same step are then out_j − out_i steps apart at their ends, which gives the mean time of these steps without any log of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import sympy

from costmodel.equations.parameters import Parameters
from costmodel.equations.step import step_times
from costmodel.equations.work import Decodes, make_work
from costmodel.hardware.errors import InputError
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.fitting.holdout import errors_of
from costmodel.validation.fitting.kernels import OperatorFit
from costmodel.validation.fitting.least_squares import Evaluator, fit_kernel
from costmodel.validation.fitting.models import KernelModel

FEWEST_STEPS: Final = 16
"""Pairs of requests that end closer together are left out: one step more or less would matter."""
FEWEST_STRETCHES: Final = 3
"""Each is left out in turn, and more than one must be left to fit one number."""
INSTANTS: Final = 16
"""At so many times between the two ends the kernels of a step are predicted."""
SLOW: Final = 1.1
"""Times the run's median time per token, beyond which a request of its end was preempted."""
PREEMPTED, CLOSE = "preempted", "few steps apart"
"""Why pairs are left out, as they are counted."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Decode steps between the ends of two requests.

    Attributes:
        start, end: engine's clock [s].
        steps: in between.
    """

    start: float
    end: float
    steps: float

    @property
    def step(self) -> float:
        """Mean time of a step [s]."""
        return (self.end - self.start) / self.steps


def stretches(requests: RequestTable) -> tuple[list[Stretch], dict[str, int]]:
    """Return the stretches of pure decode steps in a run, and by reason how many pairs were left out.

    A preempted request gets no tokens while it waits. In a server that empties, one that took a tenth longer per token than the run's
    median was preempted, and pairs with such a request are left out.
    """
    several = requests.output_tokens > 1
    last_prefill = requests.first_token.max()
    usual = SLOW * float(np.median(requests.tpot[several])) if np.any(several) else 0.0
    found, excluded = [], {PREEMPTED: 0, CLOSE: 0}
    for together in np.unique(requests.first_token):
        same = np.flatnonzero((requests.first_token == together) & (requests.last_token > last_prefill) & several)
        ordered = same[np.argsort(requests.last_token[same])].tolist()
        for first, second in pairwise(ordered):
            steps = float(requests.output_tokens[second] - requests.output_tokens[first])
            if max(requests.tpot[first], requests.tpot[second]) > usual:
                excluded[PREEMPTED] += 1
            elif steps < FEWEST_STEPS:
                excluded[CLOSE] += 1
            else:
                found.append(Stretch(float(requests.last_token[first]), float(requests.last_token[second]), steps))
    return found, excluded


def kernels_of(stretch: Stretch, requests: RequestTable, parameters: Parameters) -> float:
    """Return the mean time that the kernels of a step take in a stretch [s]; contexts are counted back from every request's end."""
    seconds = 0.0
    for now in np.linspace(stretch.start, stretch.end, INSTANTS, endpoint=False).tolist():
        running = requests.select(requests.last_token > now)
        contexts = running.input_tokens + running.output_tokens - (running.last_token - now) / stretch.step
        groups = [Decodes(1.0, max(context, 0.0)) for context in contexts.tolist()]
        seconds += float(step_times(parameters, make_work([], groups, parameters.windows)).total) / INSTANTS
    return seconds


def fit_decode_overhead(requests: RequestTable, parameters: Parameters, version: str) -> OperatorFit:
    """Fit ``per_step_s`` of ``overhead.graph``; its errors are those of the step's time, each stretch left out in turn.

    Args:
        requests: of the run.
        parameters: of the model on this part with calibrated kernels and no overheads.
        version: of the engine.

    Raises:
        InputError: the run has fewer than three stretches of decode steps.
    """
    found, excluded = stretches(requests)
    if len(found) < FEWEST_STRETCHES:
        raise InputError(
            f"{len(requests)} requests have {len(found)} stretches of decode steps after the last prompt; the overhead of a decode "
            f"step needs {FEWEST_STRETCHES} (pairs of requests with the same first_token_ts, {FEWEST_STEPS} or more tokens apart)"
        )
    kernels, overhead = sympy.Symbol("kernels", positive=True), sympy.Symbol("per_step_s", positive=True)
    model = KernelModel("overhead.graph", "overhead", kernels + overhead, kernels, ("per_step_s",), ("kernels",))
    evaluator = Evaluator(model)
    data = {"kernels": np.array([kernels_of(stretch, requests, parameters) for stretch in found])}
    seconds = np.array([stretch.step for stretch in found])
    predicted = np.empty(len(found))
    for index in range(len(found)):
        others = np.arange(len(found)) != index
        fit = fit_kernel(evaluator, {"kernels": data["kernels"][others]}, seconds[others])
        predicted[index] = evaluator.seconds(fit.values, {"kernels": data["kernels"][index : index + 1]})[0]
    errors = errors_of(predicted, seconds)
    final = fit_kernel(evaluator, data, seconds)
    if final.at_bound:  # the kernels alone take as long as the steps: no overhead can be told from zero
        final = replace(final, values={"per_step_s": 0.0})
    return OperatorFit(
        operator=model.operator,
        form=model.form,
        result=final,
        errors=errors,
        errors_served=None,
        errors_all=errors,
        ranges={},
        by_size=(),
        coverage=None,
        rows_kept=len(found),
        excluded=excluded,
        version=version,
    )
