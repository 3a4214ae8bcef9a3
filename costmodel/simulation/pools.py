"""Disaggregated serving: some GPUs prefill, others decode, and the KV cache of a prompt travels between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from costmodel.architecture.counts import kv_bytes_per_token, state_bytes
from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError
from costmodel.simulation.requests import Listed, Request, Source
from costmodel.simulation.results import PoolsInfo
from costmodel.simulation.server import Server
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine, Progress
from costmodel.simulation.tally import Served, Tally
from costmodel.simulation.workloads import MAX_TIME


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
            positive(self.latency, "KV latency", MAX_TIME)
        return self


def transfer_seconds(server: Server, pools: Pools, prompt: int) -> float:
    """Return the time in which the KV cache of a prompt travels: latency + (tokens·bytes + states)/bandwidth [s].

    Every GPU of a server sends its share at the same time. Fixed step times say nothing of bytes: only the latency counts.
    """
    deployment = server.deployment
    if deployment is None:
        return pools.latency
    moved = kv_bytes_per_token(deployment.architecture, deployment.kv_bytes) * prompt
    moved = moved + state_bytes(deployment.architecture, float(deployment.activation_bytes))
    return pools.latency + float(moved) / _bandwidth(server, pools)


def run_pools(
    server: Server,
    source: Source,
    until: float,
    measured: str | None,
    pools: Pools,
    engine_for: Callable[[Settings], Callable[..., Engine]],
    keep_times: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Tally], list[Served], bool]:
    """Run an open loop through both pools.

    Args:
        server: that each of them is like.
        source: its requests.
        until: time after which nothing counts [s].
        measured: group whose gaps count; None for all.
        pools: how many servers, and how the KV cache travels.
        engine_for: chooses the engine.
        keep_times, progress: as for :class:`~costmodel.simulation.tally.Tally` and :class:`~costmodel.simulation.stepping.Engine`.

    Returns:
        What every server counted, prefill servers first; the requests, both halves of each as one; whether it was interrupted.
    """
    pools = pools.checked()
    asked = _everything(source)
    standing = [request for request in asked if request.standing]
    asked = [request for request in asked if not request.standing]
    longest = max((request.prompt for request in asked), default=1)
    if (moving := transfer_seconds(server, pools, longest)) > MAX_TIME:
        raise InputError(
            f"the KV cache of a prompt of {longest:,} tokens takes {moving:.3g} s from one server to the other, "
            f"more than {MAX_TIME:g} s; give a higher bandwidth"
        )
    first: list[Tally] = []
    second: list[Tally] = []
    passed: list[tuple[float, Served, Request]] = []
    make, interrupted = engine_for(server.settings), False
    try:
        for index in range(pools.prefill):
            tally = Tally(measured=measured, keep_steps=measured is not None)
            first.append(tally)
            own = [replace(request, output=1) for request in asked[index :: pools.prefill]]
            make(
                server.settings, server.clock, Listed(own), tally, delay=server.delay, until=until, progress=progress
            ).run()
        for item, request in _prefilled(first, asked, pools.prefill):
            if item.done and _more(request, server.settings):
                passed.append((item.last + transfer_seconds(server, pools, request.prompt), item, request))
        passed.sort(key=lambda each: each[0])
        for index in range(pools.decode):
            tally = Tally(measured=measured, keep_times=keep_times)
            second.append(tally)
            own = [
                replace(request, arrival=arrival, prefilled=item.last)
                for arrival, item, request in passed[index :: pools.decode]
            ]
            streams = standing[index :: pools.decode]
            make(server.settings, server.clock, Listed([*streams, *own]), tally, until=until, progress=progress).run()
    except KeyboardInterrupt:
        interrupted = True
    decoded: dict[int, Served] = {}
    for index, tally in enumerate(second):
        halves = [item for item in tally.served if not item.request.standing]
        decoded.update(zip((id(item) for _, item, _ in passed[index :: pools.decode]), halves, strict=False))
    finished = [
        _joined(item, request, decoded.get(id(item)), server.settings)
        for item, request in _prefilled(first, asked, pools.prefill)
    ]
    finished.sort(key=lambda item: item.request.arrival)
    return [*first, *second], finished, interrupted


def _prefilled(tallies: Sequence[Tally], asked: Sequence[Request], servers: int) -> list[tuple[Served, Request]]:
    """Return what became of the requests that the prefill servers have got, and what was asked; requests go round among the servers."""
    return [
        pair for index, tally in enumerate(tallies) for pair in zip(tally.served, asked[index::servers], strict=False)
    ]


def pools_info(server: Server, pools: Pools) -> PoolsInfo:
    """Return what a document tells of the pools."""
    known = server.deployment is not None
    return PoolsInfo(
        prefill_servers=pools.prefill,
        decode_servers=pools.decode,
        kv_bandwidth_bytes_per_s=_bandwidth(server, pools) if known else None,
        kv_latency_s=pools.latency,
        gpus_per_server=server.info.gpus,
    )


def _bandwidth(server: Server, pools: Pools) -> float:
    """Return the bandwidth that a KV cache travels at, of all GPUs of a server together [B/s]."""
    deployment = server.deployment
    if pools.bandwidth is not None or deployment is None:
        return pools.bandwidth or math.inf
    return float(deployment.hardware.link_bandwidth) * deployment.gpus


def _everything(source: Source) -> list[Request]:
    found = []
    while source.next_arrival() < math.inf:
        found.append(source.take())
    return found


def _more(request: Request, settings: Settings) -> bool:
    """Tell whether a request is to have more than the token that its prefill gives."""
    return request.output > 1 and request.prompt + 1 < settings.ends_at


def _joined(first: Served, request: Request, second: Served | None, settings: Settings) -> Served:
    """Return both halves of a request as one; without a second half, it has got no further than its first token."""
    if second is None:
        return replace(first, request=request, done=first.done and not _more(request, settings))
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
