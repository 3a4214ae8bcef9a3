"""The plain engine: one step after another, every running request looked at in each, as vLLM's V1 scheduler does it.

It is the reference: what it does can be held against vllm/v1/core/sched/scheduler.py line by line (0.32: ``schedule``,
``_update_after_schedule``, ``update_from_output``, ``_preempt_request``, and ``step_with_batch_queue`` of engine/core.py), and
compositions of its steps equal recorded ones of the real scheduler. :mod:`~costmodel.simulation.jumping` gives the same token times sooner.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from costmodel.simulation.blocks import Block, BlockPool, Key, Run, unused_among
from costmodel.simulation.clock import Clock
from costmodel.simulation.queues import WaitQueue
from costmodel.simulation.requests import Delayed, Request, Source
from costmodel.simulation.settings import Settings
from costmodel.simulation.tally import MixedStep, Served, Tally

ENDLESS = 1 << 60
"""Output of a standing stream whose context is held, or has no limit [tokens]."""


class State:
    """A request in the engine.

    Attributes:
        known: tokens that the engine knows: the prompt and what came out.
        computed: tokens whose K and V are in the cache, or will be when the steps under way are done.
        placeholders: tokens that steps under way will give.
        in_flight: tokens in steps under way; ``stale`` of them were scheduled before a preemption.
        given: tokens that steps, those under way included, give.
        total: tokens that are known when it ends; a standing stream has one, at the beginning, that no step has given.
        held: blocks; ``full`` of them could be found again, the first of those, in ``shared``, by others too.
        left: what is free but still holds this request's tokens, after a preemption.
    """

    __slots__ = (
        "base", "computed", "end_at", "full", "given", "held", "in_flight", "in_flock", "joined", "known", "left", "output", "placeholders",
        "prefix", "prompt", "request", "running", "serial", "served", "shared", "stale", "total",
    )  # fmt: skip

    def __init__(self, request: Request, served: Served, serial: int, output: int, prefix: list[Key]) -> None:
        self.request, self.served, self.serial = request, served, serial
        self.prompt, self.output = request.prompt, output
        self.known = request.prompt
        self.total = request.prompt + output + request.standing
        self.computed = self.placeholders = self.in_flight = self.stale = self.given = self.held = self.full = 0
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

    @property
    def empty(self) -> bool:
        """Nothing was scheduled."""
        return not self.entries


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


class Engine:
    """A simulated server.

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
        self.settings, self.clock, self.tally = settings, clock, tally
        self.source = Delayed(source, *delay) if any(delay) else source
        self.until, self.watch, self.progress = until, watch, progress
        self._report_at = -math.inf
        self.pool = BlockPool(settings.usable_blocks)
        self.running: list[State] = []
        self.waiting: WaitQueue[State] = WaitQueue(settings.policy)
        self.now = self.last_end = 0.0
        self.serials = 0
        self.chains: dict[tuple[int, int], int] = {}
        self._after_prefill = False
        self._preempted, self._most, self._held_back = False, 0, 0
        self.longest = settings.longest

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
        state.held = min(self._blocks(request.prompt + request.held), self.pool.free)
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
        size, each = self.settings.block_tokens, request.prefix_block
        keys: list[Key] = []
        chain, part = -1, 0
        for index in range(min(len(request.prefix) * each, request.prompt) // size):
            # A block is that of another request if all tokens up to its end are: all ids up to the one that it ends in.
            while part <= ((index + 1) * size - 1) // each:
                chain = self.chains.setdefault((chain, request.prefix[part]), len(self.chains))
                part += 1
            keys.append((chain, index))
        return keys

    # --- one step ---------------------------------------------------------------------------------------------------------

    def start(self, batch: Batch, time: float) -> None:
        """Start a step, and know when it ends."""
        clock, chunks, decodes = self.clock, [], 0
        windows = clock.windows
        reads = [0.0] * len(windows)
        for _, tokens, cached in batch.entries:
            if tokens > 1:
                chunks.append((tokens, cached))
                continue
            decodes += 1
            for index, window in enumerate(windows):
                reads[index] += cached + 1 if window is None else min(cached + 1, window)
        batch.start = time
        duration = clock.mixed(chunks, decodes, reads) if chunks else clock.decode(decodes, reads)
        batch.end = self.last_end = time + duration
        tally = self.tally
        if batch.end <= self.until:
            tally.steps += 1
            tally.events += 1
            tally.end, tally.busy = batch.end, tally.busy + duration
            if chunks and tally.keep_steps:
                prompts = tuple((state.serial, tokens) for state, tokens, _ in batch.entries if tokens > 1)
                tally.mixed_steps.append(MixedStep(batch.end, duration, decodes, prompts))

    def schedule(self) -> Batch:
        """Decide on the next step."""
        entries: list[tuple[State, int]] = []
        budget, scheduler = self.settings.token_budget, self.settings.scheduler
        self._preempted, self._most = False, self._threshold()
        if scheduler in ("prefill-first", "separate"):
            turn_of_decodes = scheduler == "separate" and self._after_prefill and bool(self.running)
            if not turn_of_decodes:
                self._admit(entries, budget, whole=True)
            self._after_prefill = bool(entries)
            if not entries:
                self._continue(entries, len(self.running) + 1, self.running)
        else:
            order: Iterable[State] = self.running
            if scheduler == "sarathi":
                order = sorted(self.running, key=lambda state: state.known + state.placeholders - state.computed > 1)
            budget = self._continue(entries, budget, list(order) if scheduler == "sarathi" else self.running)
            if not self._preempted:
                self._admit(entries, budget, whole=False)
        batch = Batch([], [])
        self._commit(entries, batch)
        if self.watch is not None:
            self.watch(batch)
        self.tally.sample(self.now, len(self.running), len(self.waiting), self.pool.used)
        return batch

    def _threshold(self) -> int:
        settings, count = self.settings, len(self.running) + len(self.waiting)
        threshold = settings.long_prefill_token_threshold if count > 1 else 0
        if threshold and settings.long_prefill_token_threshold_adaptive:
            return max(threshold, settings.token_budget // count)
        return threshold

    def _continue(self, entries: list[tuple[State, int]], budget: int, order: list[State]) -> int:
        """Schedule running requests in turn, preempting the last where blocks run out; return the tokens that are left."""
        threshold, index = self._most, 0
        while index < len(order) and budget > 0:
            state = order[index]
            index += 1
            if not state.running:
                continue
            if state.placeholders and state.computed + 2 - state.placeholders >= state.total:
                continue  # the step under way gives its last token
            tokens = state.known + state.placeholders - state.computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
            if self.settings.max_model_len is not None and not state.request.standing:
                tokens = min(tokens, self.settings.max_model_len - state.computed - 1)
            if tokens <= 0:
                continue
            needed = self._needed(state, tokens)
            while needed > self.pool.free:
                victim = self._victim()
                if order is self.running:
                    index -= self.running.index(victim) < index - 1
                self.running.remove(victim)
                given = next((item for item in entries if item[0] is victim), None)
                if given is not None:
                    entries.remove(given)
                    budget += given[1]
                self._preempt(victim)
                if victim is state:
                    break
            if not state.running:
                break
            if needed > 0:
                self.pool.allocate(needed)
                state.held += needed
            self._hold(state, min(state.computed + tokens, state.known))
            entries.append((state, tokens))
            budget -= tokens
        return budget

    def _victim(self) -> State:
        if self.settings.policy == "priority":
            return max(self.running, key=lambda state: state.order)
        return self.running[-1]

    def _preempt(self, state: State) -> None:
        """Take a request's blocks; it starts again from what the prefix cache still holds, its output so far included."""
        self._release(state)
        state.running = False
        state.computed = state.placeholders = 0
        state.stale = state.in_flight
        state.served.preemptions += 1
        self.tally.preemptions += 1
        self._preempted = True
        self.waiting.push_first(state)

    def _admit(self, entries: list[tuple[State, int]], budget: int, whole: bool) -> None:
        """Schedule waiting requests in turn, as far as tokens, places and blocks go.

        ``whole`` prompts only, if asked for, and the first of them whatever its size.
        """
        settings, pool, waiting = self.settings, self.pool, self.waiting
        if self._held_back < settings.hold_steps and waiting and self.running:
            self._held_back += 1
            return
        self._held_back = 0
        threshold = self._most
        skipped: list[State] = []
        while budget > 0 and waiting and len(self.running) < settings.max_num_seqs:
            state = waiting.first()
            if state.stale:
                skipped.append(waiting.pop())
                continue
            hits, own = self._find(state) if settings.prefix_caching else ([], 0)
            cached = (len(hits) + own) * settings.block_tokens
            if state.request.prefilled is not None and not state.served.preemptions:
                hits, own, cached = [], 0, state.known - 1  # K and V have come with it
            tokens = state.known - cached
            if whole:
                if tokens > budget and entries:
                    break
            else:
                if 0 < threshold < tokens:
                    tokens = threshold
                if not settings.chunked_prefill and tokens > budget:
                    break
                tokens = min(tokens, budget)
            taken = unused_among(hits) + own + (settings.watermark_blocks if self.running else 0)
            needed = self._blocks(cached + tokens) - len(hits) - own
            most = needed
            if settings.reserve_full_prompt:
                most = max(needed, self._blocks(int(min(state.known, self.longest))) - len(hits) - own)
            if most + taken > pool.free:
                break
            pool.touch(hits)
            self._take_back(state, len(hits), own)
            pool.allocate(needed)
            state.shared, state.full, state.held = hits, len(hits) + own, needed + len(hits) + own
            state.computed = cached
            self._hold(state, min(cached + tokens, state.known))
            waiting.pop()
            state.running = True
            self.running.append(state)
            entries.append((state, tokens))
            budget -= tokens
            if math.isnan(state.served.scheduled):
                state.served.scheduled, state.served.cached = self.now, cached
        waiting.put_back(skipped)

    def _commit(self, entries: list[tuple[State, int]], batch: Batch) -> None:
        """Count the scheduled tokens as computed, as the next step may be scheduled before they are."""
        ahead = self.settings.asynchronous
        for state, tokens in entries:
            batch.entries.append((state, tokens, state.prompt if state.request.held else state.computed))
            state.computed += tokens
            state.in_flight += tokens
            sampled = state.computed >= state.known + state.placeholders
            batch.sampled.append(sampled)
            if sampled:
                state.given += 1
                state.placeholders += ahead

    def read(self, batch: Batch) -> None:
        """Take what a step gave: tokens, and with the last one the end of a request."""
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

    # --- blocks -----------------------------------------------------------------------------------------------------------

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_tokens)

    def _needed(self, state: State, tokens: int) -> int:
        """Return the blocks that a running request takes for more tokens; where its context is held, the token before makes way."""
        reached = state.computed + tokens
        return self._blocks(min(reached, state.prompt + 1) if state.request.held else reached) - state.held

    def _hold(self, state: State, tokens: int) -> None:
        """Let the prefix cache know the blocks that ``tokens`` fill."""
        full = tokens // self.settings.block_tokens
        if full <= state.full or not self.settings.prefix_caching or state.request.standing:
            return
        if (known := len(state.shared)) < len(state.prefix):
            state.shared.extend(map(self.pool.hold, state.prefix[known:full]))
        state.full = full

    def _find(self, state: State) -> tuple[list[Block], int]:
        """Return the blocks of a shared prefix that are still there, and how many of the request's own after them.

        The last token is computed in any case, as what comes after it is wanted.
        """
        most = (state.known - 1) // self.settings.block_tokens
        hits = self.pool.find(state.prefix[:most])
        if not state.left or len(hits) < len(state.prefix):
            return hits, 0
        state.left = [run for run in state.left if run.low < run.high]
        reached = start = len(hits)
        while reached < most:
            further = next((run.high for run in state.left if run.low == reached), None)
            if further is None:
                break
            reached = min(further, most)
        return hits, reached - start

    def _take_back(self, state: State, start: int, count: int) -> None:
        """Use the own blocks that :meth:`_find` found."""
        stop = start + count
        while start < stop:
            run = next(run for run in state.left if run.low == start)
            taken = min(run.high, stop) - start
            self.pool.take_back(run, taken)
            start += taken

    def _release(self, state: State) -> None:
        run = self.pool.release(state.shared, state.full, state.held)
        if run is not None and state.served.tokens < state.output:
            state.left.append(run)
        state.shared, state.full, state.held = [], 0, 0


QUEUE = 2
"""Steps that an engine which schedules ahead has under way."""
