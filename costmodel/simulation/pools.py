"""Disaggregated serving: some GPUs prefill, others decode, and the KV cache of a prompt travels between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodel.architecture.counts import kv_bytes_per_token
from costmodel.checks import positive, whole
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
        if self.latency != 0:
            positive(self.latency, "KV latency")
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
    make = engine_for(server.settings)
    first: list[Tally] = []
    second: list[Tally] = []
    prefilled: list[tuple[Served, Request]] = []
    decoded: dict[int, Served] = {}
    """Second halves, by the identity of their first."""
    try:
        for index in range(pools.prefill):
            own = asked[index :: pools.prefill]  # by arrival, as the engine takes them
            tally = Tally(measured=measured, keep_steps=measured is not None)
            first.append(tally)
            halves = Listed([replace(request, output=1) for request in own])
            try:
                make(server.settings, server.clock, halves, tally, delay=server.delay, until=until).run()
            finally:
                prefilled += zip(tally.served, own, strict=False)
        passed = [pair for pair in prefilled if pair[0].done and _more(pair[1], server.settings)]
        passed.sort(key=lambda pair: pair[0].last)
        for index in range(pools.decode):
            sent = [
                (
                    item,
                    replace(
                        request,
                        arrival=item.last + transfer_seconds(server, pools, request.prompt),
                        prefilled=item.last,
                    ),
                )
                for item, request in passed[index :: pools.decode]
            ]
            sent.sort(key=lambda pair: pair[1].arrival)  # a long prompt may come after a short one that was done later
            tally = Tally(measured=measured)
            second.append(tally)
            coming = Listed([*standing[index :: pools.decode], *(request for _, request in sent)])
            try:
                make(server.settings, server.clock, coming, tally, until=until).run()
            finally:
                taken = (item for item in tally.served if not item.request.standing)
                decoded.update((id(half), later) for (half, _), later in zip(sent, taken, strict=False))
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    finished = [_joined(item, request, decoded.get(id(item)), server.settings) for item, request in prefilled]
    finished.sort(key=lambda item: item.request.arrival)
    return [*first, *second], finished, interrupted


def _more(request: Request, settings: Settings) -> bool:
    """Tell whether a request is to have more than the token that its prefill gives."""
    return request.output > 1 and (settings.max_model_len is None or request.prompt + 1 < settings.max_model_len)


def _everything(source: Source) -> list[Request]:
    found = []
    while source.next_arrival() < math.inf:
        found.append(source.take())
    return found


def _joined(first: Served, request: Request, second: Served | None, settings: Settings) -> Served:
    """Return both halves of a request as one; it may not have reached the second."""
    last = first if second is None else second
    return Served(
        request,
        scheduled=first.scheduled,
        first=first.first,
        last=last.last,
        tokens=last.tokens,
        done=last.done and (second is not None or not _more(request, settings)),
        preemptions=first.preemptions + (second.preemptions if second else 0),
        cached=first.cached,
        refused=last.refused,
    )
