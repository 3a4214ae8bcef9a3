"""The plain engine: one step after another, every running request looked at in each, as vLLM's V1 scheduler does it.

It is the reference: :mod:`~costmodel.simulation.scheduling` decides on the steps, and what is here can be held against vLLM 0.32
(``update_from_output`` of v1/core/sched/scheduler.py, ``step_with_batch_queue`` of v1/engine/core.py); compositions of its steps equal
recorded ones of the real scheduler. :mod:`~costmodel.simulation.jumping` gives the same token times sooner.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from costmodel.equations.work import seen_tokens
from costmodel.simulation.blocks import Key
from costmodel.simulation.clock import Clock
from costmodel.simulation.prefixes import block_keys
from costmodel.simulation.requests import Delayed, Request, Source
from costmodel.simulation.scheduling import Scheduler
from costmodel.simulation.settings import Settings
from costmodel.simulation.states import Batch, State
from costmodel.simulation.tally import MixedStep, Served, Tally

ENDLESS = 1 << 60
"""Output of a standing stream whose context is held, or has no limit [tokens]."""


class Progress(NamedTuple):
    """How far a simulation is."""

    time: float
    """Simulated time [s]."""
    sent: int
    """Requests that the engine has got, refused ones included."""
    ended: int
    """Those of them that are done or refused."""
    over: bool = False
    """The engine has run its last step."""


REPORT_EVERY = 0.2
"""Time on the wall between two calls of ``progress`` [s]."""


class Engine(Scheduler):
    """A simulated server: what comes, how long steps take, and what they give.

    Args:
        settings: its flags.
        clock: how long its steps take.
        source: its requests.
        tally: counts what happens.
        delay: between a request being sent and the engine having it: a time, and a time per token of its prompt [s].
        until: time after which nothing counts [s].
        watch: called with every scheduled step.
        progress: called before the first step, about every :data:`REPORT_EVERY` seconds on the wall, between two steps, and after the
            last; what it raises ends the run where it is.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        source: Source,
        tally: Tally,
        delay: tuple[float, float] = (0.0, 0.0),
        until: float = math.inf,
        watch: Callable[[Batch], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        super().__init__(settings, tally, watch)
        self.clock = clock
        self.source = Delayed(source, *delay) if any(delay) else source
        self.until, self.progress = until, progress
        self._report_at = -math.inf
        self.last_end = 0.0
        self.serials = 0
        self.chains: dict[tuple[int, int], int] = {}

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Tally:
        """Run until no request is left, or time is up."""
        if self.settings.asynchronous:
            self._run_ahead()
        else:
            self._run_in_turns()
        if self.until < math.inf:  # who came while the last steps ran
            self.now = max(self.now, self.until)
            self.receive()
            self._count_open_gaps()
        if self.progress is not None:
            self._report(self.progress, over=True)
        return self.tally

    def _count_open_gaps(self) -> None:
        """Count the gaps of streams that were preempted and still have no token under way: they are longer than what is left of them."""
        for state in [*self.waiting, *self.running]:
            waits = not state.in_flock and state.computed < state.known
            if waits and state.request.standing and state.served.preemptions and self.tally.counts(state.request):
                self.tally.open_gap(self.until - state.served.last, self.until)

    def _run_in_turns(self) -> None:
        """Schedule, run, and read a step, then the next."""
        while True:
            if self.progress is not None and monotonic() >= self._report_at:
                self._report(self.progress)
            self.receive()
            if (leapt := self.leap(None)) is not None:
                if not leapt:
                    return
                continue
            batch = self.schedule()
            if batch.empty:
                if not self._preempted and not self._wait():
                    return
                continue
            self.start(batch, self.now)
            if batch.end > self.until:
                return
            self.now = batch.end
            self.read(batch)

    def _run_ahead(self) -> None:
        """Schedule a step while the one before it runs: what comes and goes meanwhile is seen a step later."""
        queue: deque[Batch] = deque()
        while True:
            if self.progress is not None and monotonic() >= self._report_at:
                self._report(self.progress)
            self.receive()
            if (self.running or self.waiting) and (leapt := self.leap(queue)) is not None:
                if not leapt:
                    return
                continue
            if (self.running or self.waiting) and self._push(queue):
                continue
            if not queue:
                if not self._wait():
                    return
                continue
            batch = queue.popleft()
            if batch.end > self.until:
                return
            self.now = max(self.now, batch.end)
            self.read(batch)

    def _report(self, progress: Callable[[Progress], None], over: bool = False) -> None:
        """Tell how far the simulation is."""
        sent = len(self.tally.served)
        progress(Progress(self.now, sent, sent - len(self.running) - len(self.waiting), over))
        self._report_at = monotonic() + REPORT_EVERY

    def _push(self, queue: deque[Batch]) -> bool:
        """Schedule one more step; tell whether another is to be scheduled before the oldest is read."""
        batch = self.schedule()
        if batch.empty:
            if not self.running and all(earlier.empty for earlier in queue):
                return False  # who waits can only wait for another request
            batch.start = batch.end = max(self.now, self.last_end)
        else:
            self.start(batch, max(self.now, self.last_end))
        queue.append(batch)
        return len(queue) < QUEUE and not batch.empty

    def leap(self, queue: deque[Batch] | None) -> bool | None:
        """Run many steps at once, if that can be: True if it was done, False if time is up, None if the next step is to be scheduled."""
        return None

    def _wait(self) -> bool:
        """Go on to the next arrival; False if there is none, or it comes too late."""
        coming = self.source.next_arrival()
        if coming == math.inf or coming > self.until:
            return False
        self.now = max(self.now, coming)
        return True

    def receive(self) -> None:
        """Take the requests that have arrived, refuse those that can never be served."""
        source = self.source
        while source.next_arrival() <= self.now:
            request = source.take()
            if (reason := self.refusal(request)) is not None:
                self.tally.refuse(request, reason)
                source.ended(request, self.now)
                continue
            self._enter(request)

    def refusal(self, request: Request) -> str | None:
        """Return why the engine would not take a request, None if it would."""
        settings = self.settings
        if request.standing:
            return None
        if settings.max_model_len is not None and request.prompt >= settings.max_model_len:
            return "prompt longer than max_model_len allows"
        if request.prompt >= self.longest:
            return "prompt larger than the KV cache"
        whole = not settings.chunked_prefill or settings.scheduler in ("prefill-first", "separate")
        if settings.scheduler == "vllm" and whole and request.prompt > settings.token_budget:
            return "prompt larger than the token budget, and prompts are not chunked"
        return None

    def _enter(self, request: Request) -> None:
        served = Served(request)
        self.tally.served.append(served)
        state = State(request, served, self.serials, self._output(request), self._prefix(request))
        if request.images and self.encoding is not None:
            state.pictured = request.images * self.encoding.images.each.tokens
        state.seat = self.settings.seats.of(request.prompt + 1 if request.held else state.total)
        self.serials += 1
        if request.prefilled is not None:
            state.known, state.given = request.prompt + 1, 1
            served.first = served.last = request.prefilled
            served.tokens = 1
        if not request.standing:
            self.waiting.push(state)
            return
        # The stream has its context in the cache and waits for its next token; one that is held has that token's block as well.
        state.known, state.computed = request.prompt + 1, request.prompt
        state.held = min(self._blocks(state, request.prompt + request.held), self.pool.free)
        self.pool.allocate(state.held)
        served.scheduled = served.first = served.last = self.now
        state.running = True
        self.running.append(state)

    def _output(self, request: Request) -> int:
        """Return how many tokens a request gets: as many as it asks for, unless the longest sequence ends before."""
        if request.held:
            return ENDLESS
        left = self.settings.ends_at - request.prompt - request.standing
        return max(int(min(ENDLESS if request.standing else request.output, left)), 1)

    def _prefix(self, request: Request) -> list[Key]:
        """Return what the full blocks of the shared prefix hold: a number for each different beginning."""
        if not request.prefix or not self.settings.prefix_caching:
            return []
        return list(block_keys(request, self.settings.block_tokens, self.chains))

    # --- one step ---------------------------------------------------------------------------------------------------------

    def start(self, batch: Batch, time: float) -> None:
        """Start a step, and know when it ends."""
        self._time(batch, time, 0, [0.0] * len(self.clock.windows))

    def _time(self, batch: Batch, time: float, decodes: int, reads: list[float]) -> None:
        """Say when a step that starts at ``time`` ends, and count it; ``decodes`` and ``reads`` are of sequences beside its entries."""
        clock, chunks = self.clock, []
        for _, tokens, cached in batch.entries:
            if tokens > 1:
                chunks.append((tokens, cached))
                continue
            decodes += 1
            for index, window in enumerate(clock.windows):
                if window is None:
                    reads[index] += cached + 1
                elif isinstance(window, int):
                    reads[index] += min(cached + 1, window)
                else:
                    reads[index] += seen_tokens(cached, window)
        duration = clock.mixed(chunks, decodes, reads) if chunks else clock.decode(decodes, reads)
        if batch.images:
            duration += self._encoding_seconds(batch)
        batch.start, batch.end = time, time + duration
        self.last_end = batch.end
        tally = self.tally
        if batch.end <= self.until:
            tally.steps += 1
            tally.events += 1
            tally.end, tally.busy = batch.end, tally.busy + duration
            if chunks and tally.keep_steps:
                prompts = tuple((state.serial, tokens) for state, tokens, _ in batch.entries if tokens > 1)
                tally.mixed_steps.append(MixedStep(batch.end, duration, decodes, prompts))

    def _encoding_seconds(self, batch: Batch) -> float:
        """Return how much longer a step takes for the images that it encodes [s]."""
        return self.encoding.seconds(batch.images) if self.encoding is not None and batch.images else 0.0

    def read(self, batch: Batch) -> None:
        """Take what a step gave: tokens, and with the last one the end of a request."""
        if self.encoding is not None:
            self._pass_images(batch, self.encoding)
        gaps: dict[float, int] = {}
        ended: list[State] = []
        for (state, tokens, _), sampled in zip(batch.entries, batch.sampled, strict=True):
            state.in_flight -= tokens
            stale = state.stale > 0
            if stale:
                state.stale -= tokens
            if sampled:
                gap = self._deliver(state, batch.end, stale)
                if gap is not None:
                    gaps[gap] = gaps.get(gap, 0) + 1
                if state.served.tokens >= state.output:
                    ended.append(state)
        for gap, weight in gaps.items():
            self.tally.gap(gap, weight, batch.end)
        for state in ended:
            state.served.done = True
            if state.running:
                self._release(state)
                state.running = False
                self.running.remove(state)
            else:
                self.waiting.remove(state)
            self.source.ended(state.request, batch.end)

    def _deliver(self, state: State, time: float, stale: bool) -> float | None:
        """Give a request a token; return the gap since the one before, if there was one and it counts [s]."""
        served, gap = state.served, None
        if served.tokens == 0 and not state.request.standing:
            served.first = time
        elif self.tally.counts(state.request):
            gap = time - served.last
        served.last = time
        served.tokens += 1
        if state.placeholders and not stale:
            state.placeholders -= 1
        if state.request.held:
            state.computed -= not stale
            return gap
        state.known += 1
        if self.settings.asynchronous and state.running:
            self._hold(state, state.computed - state.placeholders)
        return gap


QUEUE = 2
"""Steps that an engine which schedules ahead has under way."""
