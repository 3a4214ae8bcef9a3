"""One simulated run: a source of requests against a server, and what is counted of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from costmodel.checks import positive
from costmodel.simulation.jumping import JumpingEngine, can_jump
from costmodel.simulation.pools import Pools, run_pools
from costmodel.simulation.quantiles import Gaps
from costmodel.simulation.requests import Source
from costmodel.simulation.results import STALL_FACTOR, Result, make_result
from costmodel.simulation.server import Server
from costmodel.simulation.settings import Settings
from costmodel.simulation.speculating import SpeculatingEngine
from costmodel.simulation.stepping import Engine, Progress
from costmodel.simulation.tally import Served, Tally


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run, with all that was counted."""

    server: Server
    tallies: tuple[Tally, ...]
    served: tuple[Served, ...]
    gaps: Gaps
    result: Result
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What is good and what is not [s].

    Attributes:
        ttft, tpot, e2e: limits of a request that counts as goodput; None for no limit.
        stall_factor: a gap of more than so many medians is a stall.
        stall: a gap of more than so many seconds is counted as well; None for no such count.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    stall_factor: float = STALL_FACTOR
    stall: float | None = None

    def checked(self) -> Limits:
        """Return these limits, or raise :class:`InputError` if one is no number above zero."""
        for name in ("ttft", "tpot", "e2e", "stall"):
            if (value := getattr(self, name)) is not None:
                positive(value, f"{name} limit")
        positive(self.stall_factor, "stall factor")
        return self


EngineClass = Callable[..., Engine]


def run_source(
    server: Server,
    source: Source,
    limits: Limits,
    until: float,
    measured: str | None,
    streams: int,
    pools: Pools | None,
    keep_times: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Run a source against a server. Ctrl-C ends the run where it is."""
    interrupted = False
    if pools is not None:
        tallies, served, interrupted = run_pools(
            server, source, until, measured, pools, engine_for, keep_times, progress
        )
    else:
        tally = Tally(measured=measured, keep_steps=measured is not None, keep_times=keep_times)
        engine = engine_for(server.settings)(
            server.settings, server.clock, source, tally, delay=server.delay, until=until, progress=progress
        )
        try:
            engine.run()
        except KeyboardInterrupt:
            interrupted = True
        tallies, served = [tally], tally.served
    end = max((tally.end for tally in tallies), default=0.0)
    if until < math.inf and not interrupted:
        end = until
    gaps = Gaps(tallies, server.clock)
    asked = [item for item in served if not item.request.standing]
    blocks = server.settings.usable_blocks
    result = make_result(
        tallies,
        gaps,
        asked,
        end,
        blocks,
        (limits.ttft, limits.tpot, limits.e2e),
        limits.stall_factor,
        limits.stall,
        streams,
    )
    return Run(server, tuple(tallies), tuple(served), gaps, result, interrupted)


def engine_for(settings: Settings) -> EngineClass:
    """Return the engine for these settings: the one that jumps where it can."""
    if settings.drafting is not None:
        return SpeculatingEngine
    return JumpingEngine if can_jump(settings) else Engine
