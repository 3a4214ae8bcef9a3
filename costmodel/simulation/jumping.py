"""The engine that jumps: the same token times as the plain one, without looking at every running request in every step.

Requests that decode do the same in every step: each gets a token, its context grows by one, and now and then it takes a block. They are
kept as a *flock*: a counter of steps, by which each member's context and end are known, sums of KV tokens, and how many members
take a block at which steps. Until a member ends, a request comes that could be admitted, blocks run out or a context leaves a
window, steps are run in one go. Steps with prefill are scheduled as by the plain engine, beside the flock; where blocks run out, the
members become plain requests for a step.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from costmodel.equations.compressed import Compressed
from costmodel.equations.work import EncoderStates, LocalChunks, seen_tokens
from costmodel.simulation.clock import Clock
from costmodel.simulation.requests import Request, Source
from costmodel.simulation.settings import Settings
from costmodel.simulation.states import Batch, State
from costmodel.simulation.stepping import Engine, Progress
from costmodel.simulation.tally import Tally
from costmodel.simulation.windows import follow


@dataclass(slots=True)
class FlockBatch(Batch):
    """A step of the flock, and of single requests beside it."""

    flock: int = 0
    """Members in the step; their tokens come ``before`` seconds after the ones before."""
    counting: int = 0
    """Members whose gaps count; 0 if they have been counted."""
    leaving: list[State] = field(default_factory=list)
    """Members that get their last token."""
    before: float = 0.0
    """End of the step before [s]."""

    @property
    def empty(self) -> bool:
        """Nothing was scheduled."""
        return not self.entries and not self.flock


def can_jump(settings: Settings) -> bool:
    """Tell whether the flock can be kept: every decoding request gets a token in every step, in any order."""
    plain = settings.scheduler != "vllm" or settings.policy != "fcfs" or settings.long_prefill_token_threshold > 0
    plain = plain or settings.drafting is not None
    return not plain and settings.token_budget >= settings.max_num_seqs


class JumpingEngine(Engine):
    """A simulated server for settings with :func:`can_jump`; arguments as for :class:`~costmodel.simulation.stepping.Engine`."""

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
        super().__init__(settings, clock, source, tally, delay, until, watch, progress)
        self.count = 0
        """Steps that the flock was scheduled for."""
        self.size = self.counting = self.held = self.held_counting = 0
        """Members with a growing context, those of them whose gaps count; the same of members whose context is held."""
        self.bases = 0
        """Σ (computed tokens − ``count``) of the growing members."""
        self.due = [0] * settings.block_tokens
        """Growing members that take a block when ``count`` mod block size is the index."""
        self.ends: list[tuple[int, int, State]] = []
        """Heap of (``count`` at the end, serial number, member)."""
        followed = (
            window for window in clock.windows if isinstance(window, int | LocalChunks | Compressed | EncoderStates)
        )
        self.windows = [follow(window) for window in followed]
        self.held_reads = [0.0] * len(clock.windows)
        self.steady: list[State] = []
        """Members whose context is held."""
        self.joining: list[State] = []
        """Requests that got a token in the step before, and decode from now on."""
        self.partial: list[State] = []
        """Running requests that are neither in the flock nor done."""
        self.blocked = False
        """The first of those who wait could not be admitted, and nothing has become free since."""
        self.under_way = FlockBatch([], [])
        """The latest step that was started."""
        self.leaving: dict[int, State] = {}
        """By serial number, those who have left the flock with a step whose tokens are not counted yet."""
        self.counted, self.counted_at = 0, 0.0
        """Value of ``count`` after the last step whose tokens were counted, and when it ended."""

    # --- the loop ---------------------------------------------------------------------------------------------------------

    def run(self) -> Tally:
        """Run until no request is left, or time is up; what the flock's members have got is written down, also after Ctrl-C."""
        try:
            return super().run()
        finally:
            for state in [*(state for _, _, state in self.ends), *self.steady, *self.leaving.values()]:
                if self.counted > state.joined:
                    state.served.tokens += self.counted - state.joined
                    state.served.last = self.counted_at

    def leap(self, queue: deque[Batch] | None) -> bool | None:
        """Run the flock until something happens; see :meth:`Engine.leap`."""
        if queue is not None and (len(queue) != 1 or not self._nothing_to_read(queue[0])):
            return None
        if self.waiting and self.settings.hold_steps:
            return None
        if not self._quiet() or (steps := self._horizon()) <= 1:
            return None
        if queue is None:
            self.now, _, done = self._jump(self.now, math.nan, steps)
            for state in self._leavers():
                self._leave(state, self.now)
            return done > 0
        self._count(queue.popleft())
        end, scheduled, done = self._jump(self.last_end, self.now, steps)
        if not done:
            return False
        self.now, weight = scheduled, self.counting + self.held_counting
        self.under_way = FlockBatch([], [], scheduled, end, self.size + self.held, weight, before=scheduled)
        self.under_way.leaving = self._leavers()  # after the weight: those who leave count in the step
        queue.append(self.under_way)
        return True

    def _quiet(self) -> bool:
        """Tell whether the next step is one of the flock and of nobody else, if no request comes."""
        if self.joining:
            self._join()
        return not self.partial and self.size + self.held > 0 and (self.blocked or not self.waiting)

    def _nothing_to_read(self, batch: Batch) -> bool:
        """Tell whether reading a step changes nothing but counts."""
        return isinstance(batch, FlockBatch) and not batch.entries and not batch.leaving and batch.end <= self.until

    def _horizon(self) -> int:
        """Return the steps of the flock until a member ends, blocks run out or a context leaves a window."""
        steps = self.ends[0][0] - self.count if self.ends else 1 << 40
        for window in self.windows:
            steps = min(steps, window.steps_left(self.count))
        size, each = self.size, self.settings.block_tokens
        free = self.pool.free
        if size * (steps // each + 1) <= free:
            return steps
        cycles = free // size
        left, done = free - cycles * size, cycles * each
        while done < steps and (needed := self.due[(self.count + done) % each]) <= left:
            left -= needed
            done += 1
        return min(done, steps)

    def _jump(self, start: float, scheduled: float, steps: int) -> tuple[float, float, int]:
        """Run up to ``steps`` steps of the flock; return their end, when the next one is scheduled, and how many were run."""
        until = self.until
        # Who comes while others wait changes nothing, unless the engine refuses it and the client asks again.
        if not self.waiting or self.source.hears:
            until = min(until, self.source.next_arrival())
        size = self.size + self.held
        reads, growth = self._reads(), self._growth()
        first = tuple(reads)
        end, lag, done = self.clock.run(start, size, reads, growth, steps, until, scheduled)
        if end > self.until:
            end, lag, done = self._cut(start, scheduled, first, growth, done)
        if not done:
            return end, lag, 0
        tally = self.tally
        tally.sample(start, len(self.running), len(self.waiting), self.pool.used)
        counted = done - self.settings.asynchronous  # the last step is read later
        if counted:
            self.counted, self.counted_at = self.count + counted, lag if self.settings.asynchronous else end
        if counted and (weight := self.counting + self.held_counting):
            tally.segments.extend((weight, size, counted, *first, *growth))
            if tally.keep_times:
                tally.starts.append(start)
        tally.steps += done
        tally.events += 1
        tally.end, tally.busy = end, tally.busy + end - start
        self._advance(done)
        self.last_end = end
        tally.sample(end, len(self.running), len(self.waiting), self.pool.used)
        return end, lag, done

    def _cut(
        self, start: float, scheduled: float, first: tuple[float, ...], growth: list[float], steps: int
    ) -> tuple[float, float, int]:
        """Return the steps that end before time is up."""
        low, high = 0, steps
        found = start, scheduled, 0
        while high - low > 1:
            middle = (low + high) // 2
            reads = list(first)
            ran = self.clock.run(start, self.size + self.held, reads, growth, middle, math.inf, scheduled)
            if ran[0] <= self.until:
                low, found = middle, ran
            else:
                high = middle
        return found

    # --- one step ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Decide on the next step."""
        if self.joining:
            self._join()
        size, pool = self.size, self.pool
        needed = self.due[self.count % self.settings.block_tokens]
        if needed > pool.free or (self.partial and not (self._in_order() and self._fits(needed))):
            return self._schedule_one_by_one()
        if needed:
            pool.allocate(needed)
        entries: list[tuple[State, int]] = []
        budget = self.settings.token_budget - size - self.held
        self._preempted = False
        if self.partial:
            budget = self._continue(entries, budget, self.partial)
        if self.waiting:
            before = len(entries)
            self._admit(entries, budget, whole=False)
            self.blocked = len(entries) == before and not self.partial and not self._tries_again()
        batch = FlockBatch([], [], 0.0, 0.0, size + self.held, self.counting + self.held_counting, [], self.last_end)
        if entries or self.partial:
            self._commit(entries, batch)
            self._note_entries(batch)
        if self.watch is not None:
            self.watch(batch)
        return batch

    def start(self, batch: Batch, time: float) -> None:
        """Start a step, and know when it ends."""
        if not isinstance(batch, FlockBatch):
            super().start(batch, time)
            self.under_way = FlockBatch([], [])
            return
        self._time(batch, time, batch.flock, self._reads())
        if batch.flock:
            self._advance(1, blocks=False)
            batch.leaving = self._leavers()
        self.under_way = batch
        self.tally.sample(time, len(self.running), len(self.waiting), self.pool.used)

    def read(self, batch: Batch) -> None:
        """Take what a step gave."""
        if isinstance(batch, FlockBatch):
            self._count(batch)
            for state in batch.leaving:
                self._leave(state, batch.end)
        if batch.entries:
            running = len(self.running)
            super().read(batch)
            # What images leave when they are done may be what the first of those who wait needs.
            self.blocked = self.blocked and len(self.running) == running and self.encoding is None

    def _count(self, batch: Batch) -> None:
        """Count the gaps of a step's members."""
        if not isinstance(batch, FlockBatch):
            return
        if batch.flock:
            self.counted, self.counted_at = self.counted + 1, batch.end
        if batch.counting:
            self.tally.gap(batch.end - batch.before, batch.counting, batch.end)

    def _note_entries(self, batch: Batch) -> None:
        """Sort out who decodes from the next step on, and who goes on with a prompt or was left out."""
        scheduled = {state.serial for state, _, _ in batch.entries}
        self.joining = []
        self.partial = [state for state in self.partial if state.running and state.serial not in scheduled]
        for (state, _, _), sampled in zip(batch.entries, batch.sampled, strict=True):
            if not sampled:
                self.partial.append(state)
            elif state.given < state.output:
                self.joining.append(state)
        if self.encoding is not None and len(self.partial) > 1:
            places = {state: place for place, state in enumerate(self.running)}
            self.partial.sort(key=places.__getitem__)

    def _fits(self, needed: int) -> bool:
        """Tell whether blocks last for the flock and for the running prompts."""
        budget = self.settings.token_budget - self.size - self.held
        for state in self.partial:
            tokens = min(state.known + state.placeholders - state.computed, budget)
            if self.encoding is None:  # a chunk that ends before an image leaves more to those after it
                budget -= tokens
            needed += max(self._blocks(state, state.computed + tokens) - state.held, 0)
        return needed <= self.pool.free

    def _tries_again(self) -> bool:
        """Tell whether an attempt to admit the first of those who wait changes something though it fails.

        Of a preempted request's own blocks fewer are there from step to step: for more and more of its images, features are put aside.
        """
        return self.encoding is not None and bool((first := self.waiting.first()).pictured and first.served.preemptions)

    def _in_order(self) -> bool:
        """Tell whether nobody in the flock would have to wait for a running prompt.

        Without images a running prompt is the last of those who run. One that ends a chunk before an image lets others overtake it, who
        then decode after it, with what it leaves of the token budget.
        """
        if self.encoding is None or self.running[-len(self.partial) :] == self.partial:
            return True
        wanted = sum(state.known + state.placeholders - state.computed for state in self.partial)
        return wanted + self.size + self.held <= self.settings.token_budget

    # --- the flock --------------------------------------------------------------------------------------------------------

    def _enter(self, request: Request) -> None:
        super()._enter(request)
        self.blocked = self.blocked and len(self.waiting) > 1
        if not request.standing:
            return
        self.last_end = max(self.last_end, self.now)
        self.joining.append(self.running[-1])

    def _join(self) -> None:
        """Let those who got a token, and are to get more, decode with the flock."""
        count, each, tally = self.count, self.settings.block_tokens, self.tally
        for state in self.joining:
            if not state.running:
                continue  # it ended meanwhile
            state.in_flock, state.joined = True, count
            if state.request.held:
                self._hold_steady(state, 1)
                continue
            computed = state.computed
            state.base, state.end_at = computed - count, count + state.output - state.given
            self.size += 1
            self.counting += tally.counts(state.request)
            self.bases += state.base
            self.due[(count - computed) % each] += 1
            heapq.heappush(self.ends, (state.end_at, state.serial, state))
            for window in self.windows:
                window.join(computed, count)
        self.joining = []

    def _hold_steady(self, state: State, sign: int) -> None:
        """Add (or take out) a member whose context does not grow."""
        self.held += sign
        self.held_counting += sign * self.tally.counts(state.request)
        tokens = state.request.prompt + 1
        for index, window in enumerate(self.clock.windows):
            self.held_reads[index] += sign * seen_tokens(tokens - 1, window)
        if sign > 0:
            self.steady.append(state)

    def _drop(self, state: State) -> None:
        """Take a member out of the flock's sums; its heap entry is the caller's."""
        self.size -= 1
        self.counting -= self.tally.counts(state.request)
        self.bases -= state.base
        self.due[-state.base % self.settings.block_tokens] -= 1
        for window in self.windows:
            window.leave(state.base + self.count, self.count)
        state.computed = state.base + self.count
        state.in_flock = False

    def _advance(self, steps: int, blocks: bool = True) -> None:
        """Let every member have ``steps`` more tokens."""
        if blocks and self.size:
            each, due = self.settings.block_tokens, self.due
            cycles, rest = divmod(steps, each)
            needed = cycles * self.size
            for step in range(self.count, self.count + rest):
                needed += due[step % each]
            if needed:
                self.pool.allocate(needed)
        self.count += steps
        for window in self.windows:
            window.advance(steps, self.count)

    def _leavers(self) -> list[State]:
        """Take those out of the flock who have been scheduled for their last token."""
        found = []
        while self.ends and self.ends[0][0] <= self.count:
            state = heapq.heappop(self.ends)[2]
            self._drop(state)
            state.given = state.output
            self.leaving[state.serial] = state
            found.append(state)
        return found

    def _leave(self, state: State, time: float) -> None:
        """Let a member end, with its last token at ``time``."""
        served = state.served
        self.leaving.pop(state.serial, None)
        served.tokens, served.last, served.done = state.output, time, True
        state.stale = 0
        if state.running:
            state.held = self._blocks(state, state.computed)
            self._hold(state, state.computed)
            self._release(state)
            state.running = False
            self.running.remove(state)
        else:
            self.waiting.remove(state)
        self.blocked = False
        self.source.ended(state.request, time)

    def _reads(self) -> list[float]:
        """Return the KV tokens that the flock reads in its next step, for every window."""
        full = float(self.bases + self.size * (self.count + 1))
        if not self.windows and not self.held:
            return [full] * len(self.clock.windows)
        windows = iter(self.windows)
        reads = [full if width is None else float(next(windows).read) for width in self.clock.windows]
        if self.held:
            reads = [read + held for read, held in zip(reads, self.held_reads, strict=True)]
        return reads

    def _growth(self) -> list[float]:
        if not self.windows:
            return [float(self.size)] * len(self.clock.windows)
        windows = iter(self.windows)
        return [float(self.size if width is None else next(windows).growing) for width in self.clock.windows]

    # --- without blocks ---------------------------------------------------------------------------------------------------

    def _schedule_one_by_one(self) -> Batch:
        """Schedule a step as the plain engine does, with every member as a request of its own: somebody has to give up blocks."""
        members = [state for _, _, state in self.ends]
        self.ends, self.counted = [], self.count  # what is not read yet is read one by one
        for state in members:
            self._drop(state)
            state.given = state.output - (state.end_at - self.count)
        for state in self.steady:
            self._hold_steady(state, -1)
            state.given += self.count - state.joined
            if state.joined < self.count:
                state.computed = state.request.prompt + self.settings.asynchronous
        members, self.steady = members + self.steady, []
        for state in members:
            state.in_flock = False
            if state.joined < self.count:
                self._as_plain(state)
            if not state.request.held:
                state.held = self._blocks(state, state.computed)
        if self.settings.asynchronous:
            for state in self.under_way.leaving:
                state.placeholders = state.in_flight = 1
                state.known = state.total - 1
                if not state.served.done:
                    state.served.tokens, state.served.last = state.output - 1, self.under_way.before
                    state.joined = self.count
                state.held = self._blocks(state, state.computed)
                self._hold(state, state.computed - 1)
            self.under_way.flock = 0
            if self.under_way.counting:
                self.under_way.counting = sum(self.tally.counts(state.request) for state in self.under_way.leaving)
        self.partial += members
        batch = super().schedule()
        self._note_entries(batch)
        self.blocked = False
        return batch

    def _as_plain(self, state: State) -> None:
        """Write down for a member what the flock knew of it; its token of a step that is not read yet becomes one of its own."""
        ahead = int(self.settings.asynchronous)
        state.placeholders = state.in_flight = ahead
        state.served.tokens = state.given - ahead
        state.served.last = self.last_end
        state.known = state.prompt + (1 if state.request.held else state.request.standing + state.served.tokens)
        self._hold(state, min(state.computed - ahead, state.known))
        if ahead:
            state.served.last = self.under_way.before
            self.under_way.entries.append((state, 1, state.computed - 1))
            self.under_way.sampled.append(True)
