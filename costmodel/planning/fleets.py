"""Fleets of servers, simulated: requests go round among replicas, or through servers that prefill and servers that decode."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from costmodel.planning.documents import FleetRun, Slo
from costmodel.simulation import remarks
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.pools import Pools, run_pools
from costmodel.simulation.quantiles import Gaps, nearest_rank
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.running import engine_for
from costmodel.simulation.server import Server, Step, make_server
from costmodel.simulation.tally import Served, Tally
from costmodel.simulation.typical import step_of_load, step_of_trace

Balancing = Literal["round-robin", "random"]
BALANCING = ("round-robin", "random")

_CHOICE = 1 << 65  # added to the seed of who gets what, so that it is not that of lengths or arrivals


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests for a fleet, and limits on what becomes of them.

    Attributes:
        requests: in the order of their arrival.
        options: of every server.
        slo: limits, with the percentile at which they hold.
        balancing: how replicas get requests.
        seed: of ``random``.
        rate, prompt, output: of arrivals at a rate; None for a trace [requests/s, tokens].
    """

    requests: tuple[Request, ...]
    options: ServerOptions
    slo: Slo
    balancing: Balancing = "round-robin"
    seed: int = 0
    rate: float | None = None
    prompt: int = 0
    output: int = 0

    @property
    def share(self) -> float:
        """The percentile as a share."""
        return (self.slo.percentile or 100.0) / 100

    def server(self, count: int) -> Server:
        """Return one of ``count`` servers that share the requests."""
        own = self.requests[::count]
        longest = max((request.prompt for request in self.requests), default=1)
        typical: Callable[[Step], float] = partial(step_of_trace, own)
        if self.rate is not None:
            longest = self.prompt
            typical = partial(step_of_load, len(own), self.rate / count, self.prompt, self.output)
        return make_server(self.options, longest, typical=typical)

    def split(self, count: int) -> list[list[Request]]:
        """Return the requests of each of ``count`` replicas."""
        if self.balancing == "round-robin" or count == 1:
            return [list(self.requests[index::count]) for index in range(count)]
        draw = random.Random(self.seed + _CHOICE).random
        parts: list[list[Request]] = [[] for _ in range(count)]
        for request in self.requests:
            parts[int(draw() * count)].append(request)
        return parts


def run_replicas(traffic: Traffic, count: int) -> FleetRun:
    """Simulate ``count`` replicas. Percentiles are of all requests of all of them together."""
    server = traffic.server(count)
    make, tallies = engine_for(server.settings), []
    for own in traffic.split(count):
        tally = Tally()
        make(server.settings, server.clock, Listed(own), tally, delay=server.delay, until=math.inf).run()
        tallies.append(tally)
    served = [item for tally in tallies for item in tally.served]
    return _told(traffic, server, tallies, served, servers=count)


def run_apart(traffic: Traffic, pools: Pools) -> FleetRun:
    """Simulate servers that prefill and servers that decode."""
    server = traffic.server(1)
    tallies, served, interrupted = run_pools(server, Listed(traffic.requests), math.inf, None, pools, engine_for)
    if interrupted:
        raise KeyboardInterrupt
    return _told(
        traffic,
        server,
        tallies,
        served,
        servers=pools.prefill + pools.decode,
        prefill=pools.prefill,
        decode=pools.decode,
    )


def run_alone(traffic: Traffic, pools: Pools | None = None) -> FleetRun:
    """Simulate every request alone on a server, or on one of each kind: what no number of servers improves on."""
    server = traffic.server(max(len(traffic.requests), 1))
    apart = [replace(request, arrival=index * _long(server, traffic)) for index, request in enumerate(traffic.requests)]
    if pools is not None:
        single = replace(pools, prefill=1, decode=1)
        tallies, served, interrupted = run_pools(server, Listed(apart), math.inf, None, single, engine_for)
        if interrupted:
            raise KeyboardInterrupt
        return _told(traffic, server, tallies, served, servers=2 * len(apart))
    tally = Tally()
    make = engine_for(server.settings)
    make(server.settings, server.clock, Listed(apart), tally, delay=server.delay, until=math.inf).run()
    return _told(traffic, server, [tally], tally.served, servers=len(apart))


def _long(server: Server, traffic: Traffic) -> float:
    """Return a time in which every request is done alone [s]."""
    clock, budget = server.clock, server.settings.token_budget
    prompt = max(request.prompt for request in traffic.requests)
    output = max(request.output for request in traffic.requests)
    reads = [float(prompt + output)] * len(clock.windows)
    step = clock.mixed([(min(prompt, budget), prompt)], 1, reads)
    return (
        2 * (step * (prompt // budget + 2) + output * clock.decode(1, reads) + sum(server.delay) * (prompt + 1)) + 1.0
    )


def _told(
    traffic: Traffic,
    server: Server,
    tallies: Sequence[Tally],
    served: Sequence[Served],
    *,
    servers: int,
    prefill: int | None = None,
    decode: int | None = None,
) -> FleetRun:
    """Return what came of a fleet, against the limits."""
    gaps, share, slo = Gaps(tallies, server.clock), traffic.share, traffic.slo
    end = max((tally.end for tally in tallies), default=0.0)
    tokens = sum(item.tokens for item in served)
    refused = Counter(item.refused for item in served if item.refused)
    keeps_up = not remarks.overload(served, server.clock)
    reached = {
        "ttft": _at(share, [item.first - item.request.arrival if not item.refused else math.inf for item in served]),
        "tpot": _at(share, [_tpot(item) for item in served if item.refused or item.request.output > 1]),
        "itl": gaps.quantiles([share])[0] if gaps.count and (slo.itl_s or gaps.count <= MANY_GAPS) else None,
        "e2e": _at(share, [item.last - item.request.arrival if item.done else math.inf for item in served]),
    }
    missed = []
    if _at(share, [math.inf if item.refused else 0.0 for item in served]):  # of ITL there are no gaps that could tell
        missed.append("refused")
    for name, value in reached.items():
        limit = getattr(slo, f"{name}_s")
        if limit is not None and value is not None and value > limit:
            missed.append(name)
    if not keeps_up:
        missed.append("load")
    usable = server.settings.usable_blocks
    return FleetRun(
        servers=servers,
        prefill_servers=prefill,
        decode_servers=decode,
        gpus=servers * server.info.gpus,
        meets=not missed,
        missed=tuple(missed),
        output_tokens_per_s=tokens / end if end > 0 else 0.0,
        busy_share=sum(tally.busy for tally in tallies) / (end * len(tallies)) if end > 0 else 0.0,
        kv_share=None if not usable else max(tally.most[2] for tally in tallies) / usable,
        keeps_up=keeps_up,
        refused=dict(refused) or None,
        **{f"{name}_s": None if value is None or math.isinf(value) else value for name, value in reached.items()},
    )


MANY_GAPS = 4_000_000
"""Of more gaps than this the percentile is worked out only where it has a limit."""


def _tpot(item: Served) -> float:
    if not item.done:
        return math.inf
    return (item.last - item.first) / (item.tokens - 1) if item.tokens > 1 else 0.0


def _at(share: float, values: Sequence[float]) -> float | None:
    """Return a percentile, the smallest x with F(x) ≥ share; NaN counts as never."""
    if not values:
        return None
    known = [math.inf if math.isnan(value) else value for value in values]
    return float(nearest_rank(known, [share])[0])
