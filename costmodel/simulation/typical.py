"""The decode step of a load as a whole, by which the time is known that a request takes to the engine."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.simulation.requests import Request
from costmodel.simulation.server import Step


def step_of_load(most: int, rate: float | None, prompt: float, output: float, step: Step) -> float:
    """Return the decode step of a load [s]: of ``most`` requests, or of as many as come at a rate while one is answered, if fewer."""
    context = prompt + output / 2
    if rate is None:
        return step(most, context)
    running = 1.0
    for _ in range(LITTLES_ROUNDS):
        running = min(rate * output * step(running, context), most)
    return step(running, context)


LITTLES_ROUNDS = 20
"""Rounds in which Little's law finds the running requests of a rate."""


def step_of_trace(requests: Sequence[Request], step: Step) -> float:
    """Return the decode step of a trace at its mean rate and lengths [s]."""
    if not requests:
        return 0.0
    count, duration = len(requests), requests[-1].arrival - requests[0].arrival
    prompt = sum(request.prompt for request in requests) / count
    output = sum(request.output for request in requests) / count
    return step_of_load(count, count / duration if duration else None, prompt, output, step)
