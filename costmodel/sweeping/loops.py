"""The closed form of :func:`costmodel.closed_loop` for many loops at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.certainty import request_overheads
from costmodel.equations.closed_loop import Clients, loop_at, running_requests
from costmodel.equations.parameters import Parameters
from costmodel.hardware.calibration import Calibration
from costmodel.sweeping.columns import Floats
from costmodel.sweeping.mixed import chunk_sum, prefills_together, seconds

PROMPTS_PER_CLIENT = 10.0
"""As :func:`costmodel.closed_loop` has it by default."""
ITERATIONS = 100
PRECISION = 1e-15
"""Of the running requests, relative to the clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Loops:
    """Mean times of each loop [s]."""

    ttft: Floats
    tpot: Floats


def solve_loops(
    parameters: Parameters,
    fitted: Calibration | None,
    clients: Floats,
    prompt: Floats,
    output: Floats,
    room: Floats,
) -> Loops:
    """Return TTFT and TPOT of closed loops: the root that ``closed_loop`` bisects for, found in fewer steps.

    Args:
        parameters: of the deployment.
        fitted: its calibration; None for datasheet rates.
        clients, prompt, output: C, isl, osl; flat arrays.
        room: prompt tokens per step beside the clients.
    """
    context = prompt + output / 2
    together = np.maximum(1.0, np.minimum(clients, room // prompt))
    steps = np.ceil(prompt / room)
    burst = np.empty(len(clients))
    split = steps > 1
    if split.any():
        alone = np.zeros(int(split.sum()))
        burst[split] = chunk_sum(parameters, prompt[split], room[split], alone, context[split])
    if not split.all():
        burst[~split] = prefills_together(parameters, prompt[~split], together[~split])
    request, waited = request_overheads(fitted)
    ttft, tpot = np.empty(len(clients)), np.empty(len(clients))

    def excess(running: Floats, chosen: np.ndarray) -> Floats:
        """Return C_d that the equations give less the C_d put in; remember the times."""
        who = Clients(
            clients[chosen], output[chosen], 1 / (2 * PROMPTS_PER_CLIENT), together[chosen], prompt_steps=steps[chosen]
        )
        loop = loop_at(
            who,
            running,
            lambda count: seconds(parameters, decodes=np.maximum(count, 1.0), context=context[chosen]),
            lambda count: chunk_sum(
                parameters,
                prompt[chosen],
                room[chosen],
                np.where(clients[chosen] > 1, np.maximum(count - 1, 0.0), 0.0),
                context[chosen],
            ),
            burst[chosen],
            request,
            waited,
        )
        ttft[chosen], tpot[chosen] = loop.ttft, loop.tpot
        return np.asarray(running_requests(who, loop.ttft, loop.tpot) - running)

    find_roots(excess, clients)
    return Loops(ttft, tpot)


def find_roots(excess: Callable[[Floats, np.ndarray], Floats], most: Floats) -> Floats:
    """Return where functions fall through zero between 0 and ``most``; the last call of each is at its root.

    Inverse quadratic interpolation where it is safe, halving where not (Chandrupatla, Advances in Engineering Software 28, 1997). Halved
    until the lower end leaves 0, as in :func:`~costmodel.equations.closed_loop.solve_loop`: a small token budget with short answers has
    one more root near 0, of a loop that never fills up, which the clients, who all begin together, do not come to.

    Args:
        excess: values at points, for the functions whose numbers are given.
        most: upper ends.
    """
    numbers = np.arange(len(most))
    a, b = np.array(most, dtype=np.float64), np.zeros(len(most))
    fa, fb = excess(a, numbers), excess(b, numbers)
    c, fc = b, fb
    share = np.full(len(most), 0.5)
    roots = np.empty(len(most))
    for _ in range(ITERATIONS):
        x = a + share * (b - a)
        fx = excess(x, numbers)
        same = np.sign(fx) == np.sign(fa)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        roots[numbers] = x
        least = PRECISION * most[numbers] / np.maximum(np.abs(b - a), 1e-300)
        going = (fa != 0) & (least < 0.5) & (np.abs(fa) > PRECISION * most[numbers])
        if not going.any():
            break
        numbers = numbers[going]
        a, b, c, fa, fb, fc, least = (value[going] for value in (a, b, c, fa, fb, fc, least))
        with np.errstate(divide="ignore", invalid="ignore"):
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            inverse = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        safe &= np.minimum(a, b) > 0
        share = np.clip(np.where(safe, inverse, 0.5), least, 1 - least)
    return roots
