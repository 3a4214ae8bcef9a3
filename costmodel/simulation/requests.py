"""Who asks what and when: requests, and the sources that they come from."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent.

    Attributes:
        arrival: when it is sent [s].
        prompt: tokens of the prompt, ≥ 1.
        output: tokens of the answer, ≥ 1: it ends there and nowhere else.
        group: what it counts as in the results, e.g. ``stream`` or ``injected``.
        priority: lower goes first, under the policy that asks for it.
        prefix: ids of the leading blocks of the prompt; two requests share their leading tokens as long as their ids are equal.
        prefix_block: tokens that one id stands for.
        standing: a stream that is there from the beginning and never ends: ``prompt`` tokens are in its cache, and one more with every
            step, unless it is ``held``.
        held: its context does not grow: one of many chats at all stages, of which this is the mean.
        prefilled: its prompt was prefilled elsewhere: when its first token was given there; None for an ordinary request [s].
        cached: leading tokens of its prompt whose K and V are there when it is first scheduled: a prefix that others keep in the cache.
        images: that its prompt begins with, their tokens among its own.
    """

    arrival: float
    prompt: int
    output: int
    group: str = "request"
    priority: int = 0
    prefix: tuple[int, ...] = ()
    prefix_block: int = 16
    standing: bool = False
    held: bool = False
    prefilled: float | None = None
    cached: int = 0
    images: int = 0


class Source(Protocol):
    """Where requests come from, in the order of their arrival."""

    hears: bool
    """Whether what comes depends on when others end, or are refused."""

    def next_arrival(self) -> float:
        """Return when the next request is sent; infinity if none is known [s]."""

    def take(self) -> Request:
        """Return the next request and forget it."""

    def ended(self, request: Request, time: float) -> None:
        """Hear that a request got its last token at ``time`` (or was refused); the client may ask again."""


class Listed:
    """An open loop: requests that come when they come, whatever happens to the others.

    Args:
        requests: in any order; equal arrivals stay in theirs.
    """

    hears = False

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival)
        self._index = 0

    def __len__(self) -> int:
        return len(self._requests)

    def next_arrival(self) -> float:
        """Return when the next request is sent [s]."""
        return self._requests[self._index].arrival if self._index < len(self._requests) else math.inf

    def take(self) -> Request:
        """Return the next request and forget it."""
        self._index += 1
        return self._requests[self._index - 1]

    def ended(self, request: Request, time: float) -> None:
        """Do nothing: nobody waits."""


class Delayed:
    """Requests as the engine gets them: each some time after it was sent.

    Args:
        source: of the requests; their arrivals stay those of sending.
        base: time of every request on its way, standing streams excepted [s].
        per_token: time per token of its prompt, as for tokenising it [s].
    """

    def __init__(self, source: Source, base: float, per_token: float) -> None:
        self._source, self._base, self._per_token = source, base, per_token
        self.hears = source.hears
        self._counter = itertools.count()
        self._coming: list[tuple[float, int, Request]] = []

    def next_arrival(self) -> float:
        """Return when the engine gets the next request [s]."""
        source, coming = self._source, self._coming
        # Whoever is sent before the next one arrives may overtake it.
        while (sent := source.next_arrival()) < math.inf and (not coming or sent + self._base <= coming[0][0]):
            request = source.take()
            time = sent if request.standing else sent + self._base + self._per_token * request.prompt
            heapq.heappush(coming, (time, next(self._counter), request))
        return coming[0][0] if coming else math.inf

    def take(self) -> Request:
        """Return the next request and forget it."""
        return heapq.heappop(self._coming)[2]

    def ended(self, request: Request, time: float) -> None:
        """Pass on that a request got its last token."""
        self._source.ended(request, time)


class Pictured:
    """Requests of a source, each with images before its text.

    Args:
        source: of the requests.
        images: of each.
        tokens: of these images.
    """

    def __init__(self, source: Source, images: int, tokens: int) -> None:
        self._source, self._images, self._tokens = source, images, tokens
        self.hears = source.hears

    def next_arrival(self) -> float:
        """Return when the next request is sent [s]."""
        return self._source.next_arrival()

    def take(self) -> Request:
        """Return the next request and forget it."""
        request = self._source.take()
        return replace(request, prompt=request.prompt + self._tokens, images=self._images)

    def ended(self, request: Request, time: float) -> None:
        """Pass on that a request got its last token."""
        self._source.ended(request, time)


class ClosedLoop:
    """Clients that each send their next request when their last answer ends.

    Args:
        clients: how many.
        make: returns the request that is sent at a time, None when no more are to be sent.
        think: time that a client takes between an answer and its next request [s].
        ramp: over which the first requests are spread; 0 for all at once [s].
    """

    hears = True

    def __init__(
        self, clients: int, make: Callable[[float], Request | None], think: float = 0, ramp: float = 0
    ) -> None:
        self._make, self._think = make, think
        self._counter = itertools.count()
        self._waiting: list[tuple[float, int, Request]] = []
        for client in range(clients):
            self._send(ramp * client / clients)

    def next_arrival(self) -> float:
        """Return when the next request is sent [s]."""
        return self._waiting[0][0] if self._waiting else math.inf

    def take(self) -> Request:
        """Return the next request and forget it."""
        return heapq.heappop(self._waiting)[2]

    def ended(self, request: Request, time: float) -> None:
        """Send the client's next request."""
        self._send(time + self._think)

    def _send(self, time: float) -> None:
        if (request := self._make(time)) is not None:
            heapq.heappush(self._waiting, (request.arrival, next(self._counter), request))
