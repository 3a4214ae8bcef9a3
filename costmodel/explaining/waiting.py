"""What the kernels of a step wait for: one definition for every explanation."""

from __future__ import annotations

from costmodel.explaining.scene import Operators

BOUNDS = ("memory", "compute", "link", "latency")


def waited(operators: Operators) -> dict[str, float]:
    """Return the time of a step by what its kernels wait for [s]; the values add up to the step.

    A kernel of t seconds, f of them fixed, waits for the slower of its arithmetic c and its bytes m for min(t − f, max(c, m)): c and m
    with the efficiencies and the padding of its rung. What goes over a link waits for the ``link``. The rest is ``latency``: launches,
    overheads, and what a kernel takes beyond both.
    """
    found = dict.fromkeys(BOUNDS, 0.0)
    for item in operators:
        slower = "compute" if item.compute_s > item.memory_s else "memory"
        busy = min(item.seconds - item.fixed_s, max(item.compute_s, item.memory_s))
        found["link" if item.group == "communication" else slower] += busy
        found["latency"] += item.seconds - busy
    return found


def bound_of(operators: Operators) -> str:
    """Return what a step waits for most of its time: ``compute``, ``memory``, ``link`` or ``latency``."""
    found = waited(operators)
    return max(found, key=lambda name: found[name])
