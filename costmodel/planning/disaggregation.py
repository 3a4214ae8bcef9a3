"""``plan_disaggregation``: how many servers that prefill, and how many that decode, a rate takes for an SLO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from costmodel.planning.documents import Advice, FleetPlan, FleetRun, Slo
from costmodel.planning.fleets import Traffic, run_alone, run_apart, run_replicas
from costmodel.planning.refusing import refusal, tried
from costmodel.planning.replicas import MOST_SERVERS
from costmodel.planning.searching import Search, sentence, worst
from costmodel.planning.steady import Steady, drain_s
from costmodel.planning.traffic import Asked, check_server, make_traffic, slo_of
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.pools import Pools


def plan_disaggregation(
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
    bandwidth: float | None = None,
    latency: float = 0.0,
    seed: int = 0,
    compare: bool = True,
    progress: Callable[[FleetRun], None] | None = None,
    **server: Unpack[ServerOptions],
) -> FleetPlan:
    """Return how many servers that prefill and how many that decode hold an SLO at a percentile, each kind as few as possible.

    TTFT is the work of the servers that prefill alone, so their number is found first, then that of those that decode. Both are then
    simulated together: with p and d all limits hold, with p − 1 and d or with p and d − 1 they do not. Requests go round among the servers
    of each kind. The first token comes from the prefill; TPOT contains the way of the KV cache.

    Args:
        rate, trace, ttft, tpot, itl, e2e, percentile, prompt, output, spread, burstiness, requests, form, limit, speed, seed, progress: as
            in :func:`costmodel.plan_replicas`.
        bandwidth: that the KV cache of a prompt travels at; None for the GPUs' link [B/s].
        latency: of such a transfer [s].
        compare: find the number of servers that do both as well (``together``).
        server: model, GPU and flags of each (:class:`~costmodel.simulation.options.ServerOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    asked: dict[str, Any] = {
        "rate": rate, "trace": trace, "prompt": prompt, "output": output, "spread": spread, "burstiness": burstiness, "requests": requests,
        "form": form, "limit": limit, "speed": speed, "balancing": "round-robin", "seed": seed, "apart": True,
    }  # fmt: skip
    slo = slo_of(percentile, ttft=ttft, tpot=tpot, itl=itl, e2e=e2e)
    pools = Pools(bandwidth=bandwidth, latency=latency).checked()
    check_server(server, plan_disaggregation)
    return tried(lambda changed, flags: _plan(slo, changed, pools, compare, progress, flags), asked, server)


def _plan(
    slo: Slo,
    asked: dict[str, Any],
    pools: Pools,
    compare: bool,
    progress: Callable[[FleetRun], None] | None,
    server: ServerOptions,
) -> FleetPlan:
    """Answer :func:`plan_disaggregation`."""
    made = make_traffic(slo, server, **asked)
    common = made.common("disaggregation") | {"closed_form": made.closed_form}
    if (nowhere := made.nowhere()) is not None:
        return FleetPlan(**common, **nowhere)
    question = _Question(made, pools, progress)
    alone = run_alone(made.traffic, pools)
    if not alone.meets:
        return FleetPlan(**common, **refusal(made, alone, question.run(question.most, question.most)))
    found = question.fewest()
    common["runs"] = question.all()
    if found is None:
        return FleetPlan(**common, **refusal(made, None, question.run(question.most, question.most)))
    prefill, decode = found
    at = question.run(prefill, decode)
    below = [question.run(prefill - 1, decode)] if prefill > 1 else []
    below += [question.run(prefill, decode - 1)] if decode > 1 else []
    common["runs"] = question.all()
    common["warnings"] = (*common["warnings"], *made.too_short(at, " to decode"))
    binding = {"prefill_servers": "none", "decode_servers": "none"}
    said = [f"{prefill:,} to prefill and {decode:,} to decode hold all limits"]
    for run in below:
        kind = "prefill_servers" if run.prefill_servers != prefill else "decode_servers"
        binding[kind] = worst(run, slo)
        said.append(f"with {run.prefill_servers:,} and {run.decode_servers:,}, {sentence(binding[kind], run, slo)}")
    together = _together(made.traffic, made.closed_form.servers) if compare else None
    return FleetPlan(
        **common,
        feasible=True,
        binding=binding["prefill_servers"] if binding["decode_servers"] == "none" else binding["decode_servers"],
        binds="; ".join(said),
        advice=Advice(
            prefill_servers=prefill,
            decode_servers=decode,
            gpus=at.gpus,
            **made.to_start(),
            binding=binding | dict.fromkeys(made.to_start(), "kv_memory"),
        ),
        at=at,
        before=tuple(below),
        together=together,
    )


def _together(traffic: Traffic, start: int) -> FleetRun | None:
    """Return the fewest servers that do both, None if no number does."""
    search, most = Search(lambda count: run_replicas(traffic, count)), min(len(traffic.requests), MOST_SERVERS)
    found = search.fewest(min(start, most), most, lambda: run_alone(traffic))
    return None if found is None else search.run(found)


class _Question:
    """Searches for the fewest servers of each kind."""

    def __init__(self, made: Asked, pools: Pools, progress: Callable[[FleetRun], None] | None) -> None:
        self.made, self.pools, self.progress = made, pools, progress
        self.most = min(len(made.traffic.requests), MOST_SERVERS)
        self._runs: dict[tuple[int, int], FleetRun] = {}

    def run(self, prefill: int, decode: int) -> FleetRun:
        """Return what comes of so many servers."""
        key = prefill, decode
        if key not in self._runs:
            self._runs[key] = run_apart(self.made.traffic, replace(self.pools, prefill=prefill, decode=decode))
            if self.progress is not None:
                self.progress(self._runs[key])
        return self._runs[key]

    def all(self) -> tuple[FleetRun, ...]:
        """Return all that was simulated, by number of servers."""
        return tuple(self._runs[key] for key in sorted(self._runs))

    def fewest(self) -> tuple[int, int] | None:
        """Return as few of each kind as hold all limits; None if none do."""
        decode = self.made.closed_form.servers
        prefill = self._prefilling() or self._enough_to_prefill(1)
        while prefill is not None and prefill <= self.most:
            found = self._decoding(prefill, decode)
            if found is None:  # the end-to-end latency, of which the prefill is a part
                prefill = self._enough_to_prefill(prefill + 1)
                continue
            if not self.run(prefill, found).meets:  # the TTFT
                prefill += 1
                continue
            prefill, found = self._traded(prefill, found)
            while prefill > 1 and self.run(prefill - 1, found).meets:
                prefill -= 1
            while found > 1 and self.run(prefill, found - 1).meets:
                found -= 1
            return prefill, found
        return None

    def _enough_to_prefill(self, start: int) -> int | None:
        """Return the fewest servers that prefill, from ``start`` on, with which all limits hold if enough decode; None if none do."""
        if start > self.most:
            return None
        search = Search(lambda count: self.run(count, self.most))
        found = search.fewest(start, self.most, lambda: self.run(self.most, self.most))
        return None if found is None else max(found, start)

    def _traded(self, prefill: int, decode: int) -> tuple[int, int]:
        """Return fewer servers in all, where one more that prefills saves several that decode: the end-to-end latency has both."""
        while self.made.traffic.slo.e2e_s is not None and decode > 2 and prefill < self.most:
            other = self._decoding(prefill + 1, decode)
            if other is None or other + 1 >= decode or not self.run(prefill + 1, other).meets:
                break
            prefill, decode = prefill + 1, other
        return prefill, decode

    def _prefilling(self) -> int | None:
        """Return the fewest servers that prefill in time, simulated without the others."""
        traffic = self.made.traffic
        asked = tuple(replace(request, output=1) for request in traffic.requests)
        slo = traffic.slo.model_copy(update={"tpot_s": None, "itl_s": None, "e2e_s": None})
        only = replace(traffic, requests=asked, slo=slo)
        server = self.made.server
        prompt = round(sum(request.prompt for request in asked) / len(asked))
        seconds = drain_s(server.clock, Steady(0, 1, prompt, 1), server.settings.token_budget)
        span = asked[-1].arrival - asked[0].arrival
        start = max(round(len(asked) * seconds / span + 0.5), 1) if span > 0 else 1
        search = Search(lambda count: run_replicas(only, count))
        return search.fewest(min(start, self.most), self.most, lambda: run_alone(only))

    def _decoding(self, prefill: int, start: int) -> int | None:
        """Return the fewest servers that decode in time beside so many that prefill, the TTFT not looked at."""
        search = Search(lambda decode: self.run(prefill, decode))
        return search.fewest(
            min(start, self.most),
            self.most,
            lambda: self.run(prefill, self.most),
            lambda run: not set(run.missed) - {"ttft"},
        )
