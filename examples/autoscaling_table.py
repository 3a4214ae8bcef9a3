"""A table for an autoscaler: up to which rate N replicas hold the SLO, and so the rate per replica at which to add the next one.

More replicas do not share one queue, but many requests are steadier than few: the threshold per replica is not the same for every N.
"""

from __future__ import annotations

from typing import Any

import costmodel

SERVICE: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "h100", "prompt": 1500, "output": 150, "spread": 0.5}
SLO: dict[str, Any] = {"ttft": 0.5, "tpot": 0.015, "percentile": 99}
MOST_REPLICAS, HEADROOM = 4, 0.8
"""Rows, and the share of the threshold at which to add a replica: it takes a while to start."""
STEPS = 5


def replicas(rate: float) -> int:
    """Return how many replicas a rate takes."""
    plan = costmodel.plan_replicas(rate, **SLO, **SERVICE)
    if plan.advice is None or plan.advice.replicas is None:
        raise SystemExit(f"no number of replicas holds this SLO: {plan.binds}")
    return plan.advice.replicas


def threshold(count: int, start: float) -> float:
    """Return a rate up to which ``count`` replicas are enough, by bisection [requests/s]."""
    low, high = start, 2 * start
    while replicas(high) <= count:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if replicas(middle) <= count else (low, middle)
    return low


print(
    f"{SERVICE['model']} on {SERVICE['gpu']}, p{SLO['percentile']} of TTFT ≤ {SLO['ttft']} s and of TPOT ≤ {SLO['tpot'] * 1e3:g} ms"
)
print("  replicas   enough up to   per replica   add one at")
rate = 1.0
for number in range(1, MOST_REPLICAS + 1):
    rate = threshold(number, rate)
    print(f"  {number:>8}   {rate:>8.1f} /s   {rate / number:>7.1f} /s   {HEADROOM * rate:>6.1f} /s")
