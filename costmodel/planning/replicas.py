"""``plan_replicas``: how many servers a rate or a trace takes for an SLO at a percentile; by closed form, then by simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from costmodel.checks import choice
from costmodel.planning.documents import Advice, FleetPlan, FleetRun, Slo
from costmodel.planning.fleets import BALANCING, Balancing, run_alone, run_replicas
from costmodel.planning.refusing import refusal, tried
from costmodel.planning.searching import Search, sentence, worst
from costmodel.planning.traffic import check_server, make_traffic, slo_of
from costmodel.simulation.options import ServerOptions

MOST_SERVERS = 10_000


def plan_replicas(
    rate: float | None = None,
    *,
    trace: str | Path | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    itl: float | None = None,
    e2e: float | None = None,
    percentile: float = 99.0,
    prompt: int = 1024,
    output: int = 1024,
    spread: float = 0.0,
    burstiness: float = 1.0,
    requests: int | None = None,
    form: str = "auto",
    limit: int | None = None,
    speed: float = 1.0,
    balancing: Balancing = "round-robin",
    seed: int = 0,
    around: int = 0,
    progress: Callable[[FleetRun], None] | None = None,
    **server: Unpack[ServerOptions],
) -> FleetPlan:
    """Return the fewest servers that hold an SLO at a percentile under a rate of requests, or for a recorded trace.

    A closed form on means says where to begin; then the same requests (one seed) are simulated for one number of servers after another, up
    or down, until N holds all limits and N − 1 does not. Each limit is held by itself: the percentile of TTFT, of TPOT and of end-to-end
    latency over all requests, of ITL over all gaps; requests that are refused count as never answered. Requests that come faster than they
    are answered are a miss, whatever the percentiles of a finite run say.

    The load is balanced as ``balancing`` says: ``round-robin`` gives the i-th request to server i mod N, whatever its length, as simple
    load balancers do; ``random`` draws the server. A balancer that looks at queues does better.

    Args:
        rate, burstiness, prompt, output, spread, seed: of the requests, as in :func:`costmodel.simulate_load`.
        trace, form, limit, speed: recorded requests instead, as in :func:`costmodel.simulate_trace`.
        ttft, tpot, itl, e2e: limits [s]; None for none.
        percentile: at which they hold, above 0 and at most 100.
        requests: that are simulated at a rate; None for as many as come in five times the time of an answer, from 2,000 to 30,000.
        balancing: ``round-robin`` or ``random``.
        around: so many more numbers of servers, on both sides of the answer, are simulated for the curve.
        progress: called with every fleet that was simulated.
        server: model, GPU and flags of each (:class:`~costmodel.simulation.options.ServerOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    asked: dict[str, Any] = {
        "rate": rate, "trace": trace, "prompt": prompt, "output": output, "spread": spread,
        "burstiness": burstiness, "requests": requests, "form": form, "limit": limit, "speed": speed, "balancing": balancing, "seed": seed,
    }  # fmt: skip
    slo = slo_of(percentile, ttft=ttft, tpot=tpot, itl=itl, e2e=e2e)
    choice(balancing, BALANCING, "balancing")
    check_server(server, plan_replicas)
    return tried(lambda changed, flags: _plan(slo, changed, around, progress, flags), asked, server)


def _plan(
    slo: Slo, asked: dict[str, Any], around: int, progress: Callable[[FleetRun], None] | None, server: ServerOptions
) -> FleetPlan:
    """Answer :func:`plan_replicas`."""
    made = make_traffic(slo, server, **asked)
    common = made.common("replicas")
    if (nowhere := made.nowhere()) is not None:
        return FleetPlan(**common, **nowhere)
    traffic, form_found = made.traffic, made.closed_form
    search = Search(lambda count: run_replicas(traffic, count), progress)
    most = min(len(traffic.requests), MOST_SERVERS)
    found = search.fewest(min(form_found.servers, most), most, lambda: run_alone(traffic))
    common |= {"closed_form": form_found, "runs": search.all()}
    if found is None:
        return FleetPlan(**common, **refusal(made, search.alone, search.run(most)))
    for count in range(max(found - 1 - around, 1), min(found + around, most) + 1):
        search.run(count)
    common["runs"] = search.all()
    at, below = search.run(found), search.run(found - 1) if found > 1 else None
    common["warnings"] = (*common["warnings"], *made.too_short(at))
    binding = worst(below, slo) if below else "none"
    binds = f"{found:,} replicas hold all limits" if found > 1 else "one server holds all limits"
    if below:
        binds += f"; with {found - 1:,}, {sentence(binding, below, slo)}"
    return FleetPlan(
        **common,
        feasible=True,
        binding=binding,
        binds=binds,
        advice=Advice(
            replicas=found,
            gpus=at.gpus,
            **made.to_start(),
            binding={"replicas": binding, "gpus": binding} | dict.fromkeys(made.to_start(), "kv_memory"),
        ),
        at=at,
        before=(below,) if below else (),
    )
