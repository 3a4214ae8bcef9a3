"""Decode steps of a run's end, second by second: tokens that came out, over requests that were running.

Once no prompt is left, every step gives each running request one token, so a second of D requests and n tokens had n/D steps. That
needs no pairs of requests, and it does not matter whether one was preempted before: its tokens count when they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.equations.parameters import Parameters
from costmodel.equations.step import step_times
from costmodel.equations.work import Decodes, make_work
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.datasets.served_runs import Ticks

INSTANTS: Final = 20
"""At so many times of a second the running requests are counted and a step is predicted."""
STEADY: Final = 0.2
"""Seconds in which more than this share of the running requests ended are left out: when they ended matters too much."""
OFFSETS: Final = np.linspace(-1, 1, 201)
"""Where ticks may lie against the first arrival [s]."""
SETTLED: Final = 1.0
"""After the last first token, until this time has passed, steps may still carry the prompt of a request that was preempted [s]."""


@dataclass(frozen=True, slots=True)
class DecodeSecond:
    """A second of decode steps.

    Attributes:
        time: its end, since the first arrival [s].
        sequences: running, on average.
        measured, predicted: time of a step [s].
    """

    time: float
    sequences: float
    measured: float
    predicted: float


def tick_offset(requests: RequestTable, ticks: Ticks) -> float:
    """Return when ticks were, against their own time counted from the first arrival [s].

    The offset is taken with which the number of running requests at the run's end is that of requests still to end.
    """
    start = float(requests.arrival.min())
    ends = np.sort(requests.last_token) - start
    late = ticks.time > float(requests.first_token.max()) - start + SETTLED
    times, running = ticks.time[late], ticks.running[late]
    wrong = [
        float(np.abs(len(ends) - np.searchsorted(ends, times + offset, side="right") - running).sum())
        for offset in OFFSETS
    ]
    return float(np.median(OFFSETS[np.array(wrong) == min(wrong)]))


def decode_seconds(requests: RequestTable, ticks: Ticks, parameters: Parameters) -> list[DecodeSecond]:
    """Return the seconds of a run's end in which nothing but decode steps ran.

    Args:
        requests, ticks: of the run.
        parameters: with overheads, by which steps are predicted.
    """
    start, offset = float(requests.arrival.min()), tick_offset(requests, ticks)
    settled = float(requests.first_token.max()) + SETTLED
    found = []
    for index in range(1, len(ticks)):
        begin, end = (start + offset + float(ticks.time[i]) for i in (index - 1, index))
        instants = np.linspace(begin, end, INSTANTS, endpoint=False)
        running = np.array([(requests.last_token > now).sum() for now in instants], dtype=np.float64)
        tokens = float(ticks.generated[index]) * (end - begin)
        if begin < settled or ticks.prefilled[index] > 0 or tokens <= 0:
            continue
        if running.max() - running.min() > STEADY * running.mean():
            continue
        measured = float(running.mean()) * (end - begin) / tokens
        predicted = np.mean([_step(requests, float(now), measured, parameters) for now in instants])
        found.append(DecodeSecond(end - start, float(running.mean()), measured, float(predicted)))
    return found


def step_between(requests: RequestTable, ticks: Ticks, start: float, end: float) -> float:
    """Return the mean time of a decode step between two times of the engine's clock, by the tokens that came out [s]; NaN without ticks.

    By it, the times of two requests can be checked: if one of them was preempted, they are not as many steps apart as tokens.
    """
    origin, offset = float(requests.arrival.min()), tick_offset(requests, ticks)
    steps = covered = 0.0
    for index in range(1, len(ticks)):
        low, high = (origin + offset + float(ticks.time[i]) for i in (index - 1, index))
        shared = min(high, end) - max(low, start)
        instants = np.linspace(low, high, INSTANTS, endpoint=False)
        running = np.mean([(requests.last_token > now).sum() for now in instants])
        if shared > 0 and running > 0:
            steps += shared * float(ticks.generated[index] / running)
            covered += shared
    return covered / steps if steps else float("nan")


def _step(requests: RequestTable, now: float, step: float, parameters: Parameters) -> float:
    """Return the predicted time of a step; contexts are counted back from every request's end [s]."""
    running = requests.select(requests.last_token > now)
    contexts = running.input_tokens + running.output_tokens - (running.last_token - now) / step
    groups = [Decodes(1.0, max(context, 0.0)) for context in contexts.tolist()]
    return float(step_times(parameters, make_work([], groups, parameters.windows)).total)
