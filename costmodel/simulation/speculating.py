"""The plain engine with speculative decoding: each decoding request has up to k drafts in a step, and gets its tokens in bundles.

As vLLM's scheduler has it (``schedule``, ``update_from_output`` and ``make_spec_decoding_stats`` of v1/core/sched/scheduler.py, 0.32):
drafts take tokens of the budget and room in blocks, are cut where the budget or the longest sequence ends, are lost in a preemption,
and those not accepted are taken back after the step. Drafts are made after every step, for all of its sequences: those of a request whose
prompt is not done yet are thrown away (``propose_draft_token_ids`` of v1/worker/gpu_model_runner.py, with its padded batch). Steps are
scheduled in turns.
"""

from __future__ import annotations

from typing import Any

from costmodel.equations.work import attended_pairs, chunk_kv, seen_tokens
from costmodel.simulation.drafting import Drafting, Draws, Rows
from costmodel.simulation.states import Batch, State
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import MixedStep


class SpeculatingEngine(Engine):
    """A simulated server that speculates; arguments as for :class:`~costmodel.simulation.stepping.Engine`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        drafting = self.settings.drafting
        if drafting is None:
            raise ValueError("an engine that speculates needs settings with drafting")
        self.drafting: Drafting = drafting
        self.draws = Draws(drafting)

    def start(self, batch: Batch, time: float) -> None:
        """Start a step, know when it and the drafts after it end, and count it."""
        passes, half = self.drafting.passes, self.drafting.tokens / 2
        windows = passes.windows
        reads, pairs, later = ([0.0] * len(windows) for _ in range(3))
        chunks, decodes, drafted = [], 0, 0
        for state, tokens, cached in batch.entries:
            extra = max(state.computed - state.known, 0)
            for index, window in enumerate(windows):
                later[index] += seen_tokens(cached + tokens - extra + half, window)
            if tokens - extra > 1:
                chunks.append((tokens, cached))
                continue
            decodes += 1
            drafted += extra
            for index, window in enumerate(windows):
                reads[index] += chunk_kv(tokens, cached, window)
                pairs[index] += attended_pairs(tokens, cached, window)
        duration = passes.seconds(chunks, Rows(decodes, drafted, reads, pairs, later)) + self._encoding_seconds(batch)
        batch.start, batch.end = time, time + duration
        self.last_end = batch.end
        tally = self.tally
        if batch.end <= self.until:
            tally.steps += 1
            tally.events += 1
            tally.end, tally.busy = batch.end, tally.busy + duration
            if chunks and tally.keep_steps:
                prompts = tuple(
                    (state.serial, tokens)
                    for state, tokens, _ in batch.entries
                    if tokens - max(state.computed - state.known, 0) > 1
                )
                tally.mixed_steps.append(MixedStep(batch.end, duration, decodes, prompts))

    def read(self, batch: Batch) -> None:
        """Take what a step gave: to each request a token and the drafts that were accepted; take back the others."""
        if self.encoding is not None:
            self._pass_images(batch, self.encoding)
        gaps: dict[float, int] = {}
        ended: list[State] = []
        for (state, tokens, _), sampled in zip(batch.entries, batch.sampled, strict=True):
            state.in_flight -= tokens
            if not sampled:
                continue
            gap = self._bundle(state, batch.end)
            if gap is not None:
                gaps[gap] = gaps.get(gap, 0) + 1
            if state.served.tokens >= state.output:
                ended.append(state)
        for gap, weight in gaps.items():
            self.tally.gap(gap, weight, batch.end)
        for state in ended:
            state.served.done = True
            self._release(state)
            state.running = False
            self.running.remove(state)
            self.source.ended(state.request, batch.end)

    def _bundle(self, state: State, time: float) -> float | None:
        """Give a request what its rows gave; return the gap since the bundle before, if there was one and it counts [s]."""
        drafted = max(state.computed - state.known, 0)
        accepted, state.credit = self.draws.accepted(drafted, state.credit)
        before = state.served.tokens
        gap = self._deliver(state, time, stale=False)
        further = min(accepted, state.output - state.served.tokens)
        state.served.tokens += further
        counts = self.tally.counts(state.request)
        if drafted and counts:
            self.tally.passes += 1
            self.tally.drafted += drafted
            self.tally.accepted += accepted
        if counts and (before or state.request.standing):
            self.tally.bundled += further
        if state.request.held:
            state.computed = state.prompt
        else:
            state.known += further
            state.computed -= drafted - accepted
            self._hold(state, min(state.computed, state.known))
        state.drafts = self.drafting.tokens
        return gap
