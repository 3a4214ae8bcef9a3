"""A request in the engine, and a scheduled step."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.simulation.blocks import Block, Key, Run
from costmodel.simulation.requests import Request
from costmodel.simulation.tally import Served


class State:
    """A request in the engine.

    Attributes:
        known: tokens that the engine knows: the prompt and what came out.
        computed: tokens whose K and V are in the cache, or will be when the steps under way are done.
        placeholders: tokens that steps under way will give.
        in_flight: tokens in steps under way; ``stale`` of them were scheduled before a preemption.
        given: tokens that steps, those under way included, give.
        total: tokens that are known when it ends; a standing stream has one, at the beginning, that no step has given.
        held: blocks; ``full`` of them could be found again, the first of those, in ``shared``, by others too; ``seat`` of them for windows.
        drafts: tokens that were drafted for its next step.
        credit: what its accepted drafts are short of their mean, where they are even.
        pictured: tokens at the beginning of the prompt that stand for images; ``images`` are those whose features are kept for it,
            ``begun`` those that the next step is to encode.
        left: what is free but still holds this request's tokens, after a preemption.
    """

    __slots__ = (
        "base", "begun", "computed", "credit", "drafts", "end_at", "full", "given", "held", "images", "in_flight", "in_flock",
        "joined", "known", "left", "output", "pictured", "placeholders", "prefix", "prompt", "request", "running", "seat",
        "serial", "served", "shared", "stale", "total",
    )  # fmt: skip

    def __init__(self, request: Request, served: Served, serial: int, output: int, prefix: list[Key]) -> None:
        self.request, self.served, self.serial = request, served, serial
        self.prompt, self.output = request.prompt, output
        self.known = request.prompt
        self.total = request.prompt + output + request.standing
        self.computed = self.placeholders = self.in_flight = self.stale = self.given = self.held = self.full = 0
        self.seat = self.drafts = 0
        self.credit = 0.0
        self.pictured = 0
        self.images: list[int] = []
        self.begun: list[int] = []
        self.shared: list[Block] = []
        self.prefix = prefix
        self.left: list[Run] = []
        self.running = self.in_flock = False
        self.base = self.end_at = self.joined = 0

    @property
    def order(self) -> tuple[int, float, int]:
        """Who goes first under the policy ``priority``: the lowest."""
        return self.request.priority, self.request.arrival, self.serial


@dataclass(slots=True)
class Batch:
    """A scheduled step."""

    entries: list[tuple[State, int, int]]
    """Request, new tokens, tokens cached before."""
    sampled: list[bool]
    """Whether each gives a token: not those that go on with their prompt."""
    start: float = 0.0
    end: float = 0.0
    images: int = field(default=0, kw_only=True)
    """That are encoded in it."""

    @property
    def empty(self) -> bool:
        """Nothing was scheduled."""
        return not self.entries
