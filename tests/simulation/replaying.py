"""Recorded workloads of vLLM's scheduler, replayed by an engine of ours whose arrivals are counted in steps, as they were recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.simulation.clock import FixedClock
from costmodel.simulation.encoding import Encoding
from costmodel.simulation.requests import Request
from costmodel.simulation.settings import Settings
from costmodel.simulation.states import Batch, State
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from costmodel.validation.backends.recordings import Recording, Scheduled

PATH = Path(__file__).parent / "recordings" / "vllm-0.32.0.jsonl.gz"


def settings_of(recording: Recording) -> Settings:
    """Return the same flags by our names."""
    flags = recording.settings
    return Settings(
        token_budget=flags.token_budget,
        max_num_seqs=flags.max_num_seqs,
        kv_blocks=flags.kv_blocks,
        block_tokens=flags.block_tokens,
        max_model_len=flags.max_model_len,
        chunked_prefill=flags.chunked_prefill,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=flags.long_prefill_token_threshold_adaptive,
        prefix_caching=flags.prefix_caching,
        asynchronous=flags.async_scheduling,
        policy=flags.policy,
        reserve_full_prompt=flags.reserve_full_prompt,
        watermark=flags.watermark,
    )


@dataclass(frozen=True, slots=True)
class Images:
    """What a recording does not hold of its requests' images: the engine's limits, how many each has, and how many every call encoded."""

    encoding: Encoding
    counts: Sequence[int]
    encoded: Sequence[int]


class Counted:
    """The requests of a recording: each comes before a certain call of ``schedule()``, whatever the clock says."""

    hears = False

    def __init__(self, recording: Recording, images: Images | None = None) -> None:
        self._images = images
        self._left = list(reversed(recording.requests))
        self._block = recording.settings.block_tokens
        self.calls = 0

    def next_arrival(self) -> float:
        """Return a time that is past if the next request is to come now."""
        return -1.0 if self._left and self._left[-1].arrival_step <= self.calls else math.inf

    def skip(self) -> bool:
        """Go on to the call before which the next request comes; False if there is none."""
        if self._left:
            self.calls = max(self.calls, self._left[-1].arrival_step)
        return bool(self._left)

    def take(self) -> Request:
        """Return the next request; its arrival is its number, which is how ties under ``priority`` are broken."""
        each = self._left.pop()
        images = self._images.counts[each.id] if self._images else 0
        return Request(
            float(each.id), each.prompt, each.output, "r", each.priority, tuple(each.prefix), self._block, images=images
        )  # fmt: skip

    def ended(self, request: Request, time: float) -> None:
        """Do nothing: it is an open loop."""


class Replay(Engine):
    """An engine that keeps what it does in the form of a recording, by the number of the call."""

    def __init__(self, recording: Recording, images: Images | None = None) -> None:
        self._counted = Counted(recording, images)
        settings = replace(settings_of(recording), encoding=images.encoding if images else None)
        super().__init__(settings, FixedClock(1, 1, 1), self._counted, Tally())
        self.encoded: dict[int, int] = {}
        self.steps: dict[int, tuple[Scheduled, ...]] = {}
        self.preempted: dict[int, tuple[int, ...]] = {}
        self.free_blocks: dict[int, int] = {}
        self.finished: dict[int, int] = {}
        self._under_way: dict[int, tuple[Batch, int]] = {}

    def schedule(self) -> Batch:
        """Schedule a step and write it down."""
        call = self._counted.calls
        self.preempted[call] = ()
        batch = super().schedule()
        self._counted.calls += 1
        self.steps[call] = tuple((state.serial, tokens, cached) for state, tokens, cached in batch.entries)
        self.free_blocks[call] = self.pool.free
        self.encoded[call] = batch.images
        self._under_way[id(batch)] = batch, call
        return batch

    def read(self, batch: Batch) -> None:
        """Read a step and write down who ends with it."""
        before = [(number, item.done) for number, item in enumerate(self.tally.served)]
        super().read(batch)
        _, call = self._under_way.pop(id(batch))
        for number, done in before:
            if not done and self.tally.served[number].done:
                self.finished[number] = call

    def _preempt(self, state: State) -> None:
        self.preempted[self._counted.calls] += (state.serial,)
        super()._preempt(state)

    def _wait(self) -> bool:
        return self._counted.skip()


def differences(recording: Recording, images: Images | None = None) -> Iterator[str]:
    """Yield what differs between a recording and its replay, the first call first."""
    replay = Replay(recording, images)
    replay.run()
    for call, expected in enumerate(recording.steps):
        facts = (
            ("scheduled (request, tokens, cached)", expected, replay.steps.get(call, ())),
            ("preempted", tuple(recording.preempted[call]), replay.preempted.get(call, ())),
            *([("images", images.encoded[call], replay.encoded.get(call, 0))] if images else []),
        )
        for what, theirs, ours in facts:
            if theirs != ours:
                yield f"call {call}, {what}: vLLM {theirs}, ours {ours}"
        ours_free = replay.free_blocks.get(call)
        if ours_free is not None and ours_free != recording.free_blocks[call]:
            yield f"call {call}, free blocks: vLLM {recording.free_blocks[call]}, ours {ours_free}"
    beyond = {call: step for call, step in replay.steps.items() if call >= len(recording.steps) and step}
    if beyond:
        yield f"ours goes on after vLLM's last call: {beyond}"
    if replay.finished != recording.finished:
        items = sorted(set(replay.finished.items()) ^ set(recording.finished.items()))
        yield f"finished (request, call): {items[:4]}"
