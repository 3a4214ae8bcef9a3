"""What the kernels of a step wait for: one definition for every explanation."""

from __future__ import annotations

from costmodel.equations.step import OperatorTime
from costmodel.explaining.scene import MATRICES, Operators, of

BOUNDS = ("memory", "compute", "link", "latency")


def waited(operators: Operators) -> dict[str, float]:
    """Return the time of a step by what its kernels wait for [s]; the values add up to the step.

    A kernel of t seconds, f of them fixed, waits for the slower of its arithmetic c and its bytes m for min(t − f, c + m): c and m with
    the efficiencies and the padding of its rung, and their sum because they overlap less than perfectly. It is max(c, m) at least: where a
    kernel takes as long as its bytes alone, what is fixed passes meanwhile. What goes over a link waits for the ``link``. The rest is
    ``latency``: launches, overheads, and what a kernel takes beyond both.
    """
    found = dict.fromkeys(BOUNDS, 0.0)
    for item in operators:
        slower = "compute" if item.compute_s > item.memory_s else "memory"
        found["link" if item.group == "communication" else slower] += _busy(item)
        found["latency"] += item.seconds - _busy(item)
    return found


def spent(operators: Operators) -> dict[str, float]:
    """Return the time of a step by what its kernels work on [s]; the values add up to the step.

    ``weights``, ``kv`` and ``others`` (states of recurrent layers, links, small kernels) are what :func:`waited` counts as waiting for
    memory, multipliers and links, by kernel; ``latency`` is the same in both.
    """
    parts = {"weights": of(operators, MATRICES), "kv": of(operators, ("attention",))}
    found = {name: sum(map(_busy, items)) for name, items in parts.items()}
    busy = sum(map(_busy, operators))
    return {**found, "others": busy - sum(found.values()), "latency": waited(operators)["latency"]}


def _busy(item: OperatorTime[float]) -> float:
    slower = max(item.compute_s, item.memory_s)
    return min(max(item.seconds - item.fixed_s, slower), item.compute_s + item.memory_s, item.seconds)


def bound_of(operators: Operators) -> str:
    """Return what a step waits for most of its time: ``compute``, ``memory``, ``link`` or ``latency``."""
    found = waited(operators)
    return max(found, key=lambda name: found[name])
