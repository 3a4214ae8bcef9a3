"""Who gets how many tokens in the next step, and whose blocks make way: vLLM's V1 scheduler, and those that it is compared with.

It can be held against vllm/v1/core/sched/scheduler.py line by line (0.32: ``schedule``, ``_update_after_schedule``, ``_preempt_request``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from costmodel.simulation.blocks import Block, BlockPool, unused_among
from costmodel.simulation.encoding import EncoderCache, Encoding
from costmodel.simulation.queues import WaitQueue
from costmodel.simulation.settings import Settings
from costmodel.simulation.states import Batch, State
from costmodel.simulation.tally import Tally


class Scheduler:
    """Running and waiting requests, and the blocks that they hold.

    Args:
        settings: flags of the engine.
        tally: counts what happens.
        watch: called with every scheduled step.
    """

    def __init__(self, settings: Settings, tally: Tally, watch: Callable[[Batch], None] | None) -> None:
        self.settings, self.tally, self.watch = settings, tally, watch
        self.pool = BlockPool(settings.usable_blocks)
        self.running: list[State] = []
        self.waiting: WaitQueue[State] = WaitQueue(settings.policy)
        self.now = 0.0
        self.longest = settings.longest
        self._after_prefill = False
        self._preempted, self._most, self._held_back = False, 0, 0
        self.encoding = settings.encoding
        self.features = EncoderCache(settings.encoding.most if settings.encoding else 0)
        self._begun = 0
        """Images that the next step is to encode."""

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
                self._continue(entries, (len(self.running) + 1) * (1 + self.settings.drafted), self.running)
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
        threshold, index = self._most or budget, 0
        while index < len(order) and budget > 0:
            state = order[index]
            index += 1
            if not state.running or (
                state.placeholders and state.computed + 2 - state.placeholders >= state.total
            ):  # the step under way gives its last token
                continue
            tokens = min(state.known + state.placeholders - state.computed + state.drafts, budget, threshold)
            if self.settings.max_model_len is not None and not state.request.standing:
                tokens = min(tokens, self.settings.max_model_len - state.computed - 1)
            if state.computed < state.pictured and tokens > 0:
                tokens = self._encodable(state, state.computed, tokens)
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
                    self._forget(victim)
                self._preempt(victim)
                if victim is state:
                    break
            if not state.running:
                break
            if needed > 0:
                self.pool.allocate(needed)
                state.held += needed
            self._hold(state, min(state.computed + tokens, state.known))
            if state.begun:
                self._encode(state)
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
        self._let_go(state)
        state.begun = []
        state.running = False
        state.computed = state.placeholders = state.drafts = 0
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
        skipped: list[State] = []
        while budget > 0 and waiting and len(self.running) < settings.max_num_seqs:
            state = waiting.first()
            if state.stale:
                skipped.append(waiting.pop())
                continue
            hits, own, cached = self._there(state)
            tokens = self._first_tokens(state, cached, budget, whole, bool(entries))
            if not tokens:
                break
            taken = unused_among(hits) + own + (settings.watermark_blocks if self.running else 0)
            needed = self._blocks(state, cached + tokens) - len(hits) - own
            most = needed
            if settings.reserve_full_prompt:
                most = max(needed, self._blocks(state, int(min(state.known, self.longest))) - len(hits) - own)
            if most + taken > pool.free:
                self._let_go(state)
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
            if state.begun:
                self._encode(state)
            entries.append((state, tokens))
            budget -= tokens
            if math.isnan(state.served.scheduled):
                state.served.scheduled, state.served.cached = self.now, cached
        waiting.put_back(skipped)

    def _first_tokens(self, state: State, cached: int, budget: int, whole: bool, others: bool) -> int:
        """Return the tokens of a waiting request that the next step can compute, beside ``others`` or not; 0 where it has to wait."""
        tokens = state.known - cached
        if whole:
            if tokens > budget and others:
                return 0
        else:
            if 0 < self._most < tokens:
                tokens = self._most
            if not self.settings.chunked_prefill and tokens > budget:
                return 0
            tokens = min(tokens, budget)
        return self._encodable(state, cached, tokens) if state.pictured else tokens

    def _there(self, state: State) -> tuple[list[Block], int, int]:
        """Return the blocks of a shared prefix and of the request itself that are still there, and the tokens that need no computing."""
        hits, own = self._find(state) if self.settings.prefix_caching else ([], 0)
        cached = (len(hits) + own) * self.settings.block_tokens
        if state.served.preemptions:
            return hits, own, cached
        if state.request.prefilled is not None:  # K and V have come with it
            return [], 0, state.known - 1
        if state.request.cached > cached and self.settings.prefix_caching:
            return [], 0, state.request.cached
        return hits, own, cached

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
        if self._begun:
            batch.images, self._begun = self._begun, 0
            for state, _ in entries:
                state.begun = []

    # --- images -----------------------------------------------------------------------------------------------------------

    def _encodable(self, state: State, computed: int, tokens: int) -> int:
        """Return the tokens of a request after ``computed`` that the next step can compute, and note the images to be encoded for them."""
        encoding, features = self.encoding, self.features
        if encoding is None:
            return tokens
        if encoding.images.crosses:  # keys and values of all images are made before the first token
            state.begun = [] if state.running else list(range(state.request.images))
            return tokens

        def known(index: int) -> bool:
            found = features.find((state.serial, index))
            if found and index not in state.images:
                state.images.append(index)
            return found

        def fits(images: int) -> bool:
            return self._begun + images <= encoding.most and features.makes_room(images)

        tokens, state.begun = encoding.images.encodable(state.request.images, computed, tokens, known, fits)
        return tokens

    def _encode(self, state: State) -> None:
        """Encode a request's images in the next step, and keep their features for it."""
        self._begun += len(state.begun)
        if self.encoding is None or self.encoding.images.crosses:
            return
        for index in state.begun:
            self.features.take((state.serial, index))
        state.images += state.begun

    def _forget(self, victim: State) -> None:
        """Encode no images of a request that was scheduled for the next step and has to make way."""
        self._begun -= len(victim.begun)
        for index in victim.begun:
            self.features.forget((victim.serial, index))

    def _let_go(self, state: State, done: float = math.inf) -> None:
        """Leave the features of the first ``done`` of a request's images to whoever needs the room."""
        for index in sorted(index for index in state.images if index < done):
            self.features.let_go((state.serial, index))
            state.images.remove(index)

    def _pass_images(self, batch: Batch, encoding: Encoding) -> None:
        """After a step: let go of the images whose tokens are all computed (``_free_encoder_inputs``)."""
        each = encoding.images.each.tokens
        for state, _, _ in batch.entries:
            if state.images:
                self._let_go(state, (state.computed - state.placeholders) // each)

    # --- blocks -----------------------------------------------------------------------------------------------------------

    def _blocks(self, state: State, tokens: int) -> int:
        """Return the blocks of a request with ``tokens`` in the cache."""
        return state.seat + -(-tokens // self.settings.block_tokens)

    def _needed(self, state: State, tokens: int) -> int:
        """Return the blocks that a running request takes for more tokens; where its context is held, the token before makes way."""
        reached = state.computed + tokens
        if state.request.held:
            reached = min(reached, state.prompt + 1 + self.settings.drafted)
        if self.settings.drafted and state.computed + tokens > state.known - 1:
            reached += int(min(self.settings.lookahead, max(self.settings.longest - reached, 0)))
        return self._blocks(state, reached) - state.held

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
