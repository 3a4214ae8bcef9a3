"""Disaggregated serving: some GPUs prefill, others decode, and the KV cache of a prompt travels between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from costmodel.architecture.counts import kv_bytes_per_token
from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError
from costmodel.simulation.requests import Listed, Request, Source
from costmodel.simulation.server import Server
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Served, Tally


@dataclass(frozen=True, slots=True)
class Pools:
    """How many servers prefill and how many decode.

    Attributes:
        prefill, decode: servers of each kind; requests go round among them.
        bandwidth: that the KV cache of a prompt travels at; None for the GPU's link [B/s].
        latency: of such a transfer [s].
    """

    prefill: int = 1
    decode: int = 1
    bandwidth: float | None = None
    latency: float = 0.0

    def checked(self) -> Pools:
        """Return these pools, or raise :class:`InputError` if a number is out of range."""
        whole(self.prefill, "prefill servers", 1, 100_000)
        whole(self.decode, "decode servers", 1, 100_000)
        if self.bandwidth is not None:
            positive(self.bandwidth, "KV bandwidth")
        if not 0 <= self.latency < math.inf:
            raise InputError(f"KV latency must be zero or more, not {self.latency}")
        return self


def transfer_seconds(server: Server, pools: Pools, prompt: int) -> float:
    """Return the time in which the KV cache of a prompt travels: latency + tokens·bytes/bandwidth [s].

    Every GPU of a server sends its share at the same time. Fixed step times say nothing of bytes: only the latency counts.
    """
    deployment = server.deployment
    if deployment is None:
        return pools.latency
    bandwidth = pools.bandwidth or float(deployment.hardware.link_bandwidth) * deployment.gpus
    moved = kv_bytes_per_token(deployment.architecture, deployment.kv_bytes) * prompt
    return pools.latency + float(moved) / bandwidth


def run_pools(
    server: Server,
    source: Source,
    until: float,
    measured: str | None,
    pools: Pools,
    engine_for: Callable[[Settings], Callable[..., Engine]],
) -> tuple[list[Tally], list[Served], bool]:
    """Run an open loop through both pools.

    Returns:
        What every server counted, prefill servers first; the requests, both halves of each as one; whether it was interrupted.
    """
    pools = pools.checked()
    asked = _everything(source)
    standing = [request for request in asked if request.standing]
    asked = [request for request in asked if not request.standing]
    first: list[Tally] = []
    second: list[Tally] = []
    make, interrupted = engine_for(server.settings), False
    finished: list[Served] = []
    try:
        for index in range(pools.prefill):
            tally = Tally(measured=measured, keep_steps=measured is not None)
            first.append(tally)
            own = [replace(request, output=1) for request in asked[index :: pools.prefill]]
            make(server.settings, server.clock, Listed(own), tally, delay=server.delay, until=until).run()
        order = [item for tally in first for item in tally.served]
        given = {id(request): number for number, request in enumerate(asked)}
        wanted = _wanted(asked, pools.prefill)
        pairs = list(zip(order, wanted, strict=True))
        pairs.sort(key=lambda pair: given[id(pair[1])])
        passed = [(item, request) for item, request in pairs if item.done and request.output > 1]
        passed.sort(key=lambda pair: pair[0].last)
        finished = [item for item, request in pairs if not (item.done and request.output > 1)]
        for index in range(pools.decode):
            tally = Tally(measured=measured)
            second.append(tally)
            own = [
                replace(
                    request,
                    arrival=item.last + transfer_seconds(server, pools, request.prompt),
                    prefilled=item.last,
                )
                for item, request in passed[index :: pools.decode]
            ]
            streams = standing[index :: pools.decode]
            make(server.settings, server.clock, Listed([*streams, *own]), tally, until=until).run()
            halves = passed[index :: pools.decode]
            decoded = [item for item in tally.served if not item.request.standing]
            finished += [_joined(item, request, later) for (item, request), later in zip(halves, decoded, strict=False)]
    except KeyboardInterrupt:
        interrupted = True
    finished.sort(key=lambda item: item.request.arrival)
    return [*first, *second], finished, interrupted


def _everything(source: Source) -> list[Request]:
    found = []
    while source.next_arrival() < math.inf:
        found.append(source.take())
    return found


def _wanted(asked: Sequence[Request], servers: int) -> list[Request]:
    return [request for index in range(servers) for request in asked[index::servers]]


def _joined(first: Served, request: Request, second: Served) -> Served:
    """Return both halves of a request as one."""
    return Served(
        request,
        scheduled=first.scheduled,
        first=first.first,
        last=second.last,
        tokens=second.tokens,
        done=second.done,
        preemptions=first.preemptions + second.preemptions,
        cached=first.cached,
        refused=second.refused,
    )
