"""Steps with prefill of a served run, put together again from the times of its requests, to hold whole predicted steps against.

The log has no steps. But the scheduler takes the budget's tokens first come first served, the time at which each request was scheduled is
known, and requests whose prompts end in a step get their first tokens at its end. With asynchronous scheduling a step is filled when the
one before it starts. So from a moment at which no prompt is half done, step after step follows, and every first token checks it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.equations.parameters import Parameters
from costmodel.equations.step import step_times
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.validation.datasets.rtx4090 import RequestTable

SAME: Final = 2e-3
"""Times closer than this are the same moment: scheduling itself takes a fraction of a millisecond [s]."""
FEWEST_STEPS: Final = 5
"""Shorter sequences of steps are left out: they are checked by too few first tokens."""


@dataclass(frozen=True, slots=True)
class ServedStep:
    """One step with prefill.

    Attributes:
        chunks: of prompts.
        contexts: of the decoding sequences [tokens].
        seconds: from the end of the step before to its own [s].
    """

    chunks: tuple[Chunk, ...]
    contexts: tuple[float, ...]
    seconds: float

    def predicted(self, parameters: Parameters) -> float:
        """Return what the equations say [s]."""
        groups = [Decodes(1.0, context) for context in self.contexts]
        return float(step_times(parameters, make_work(self.chunks, groups, parameters.windows)).total)


def served_steps(requests: RequestTable, budget: int) -> list[ServedStep]:
    """Return the longest sequence of full steps that can be put together; empty if none is long enough to be believed.

    Args:
        requests: of the run.
        budget: tokens per step.
    """
    order = np.argsort(requests.scheduled, kind="stable").tolist()
    queue = [
        _Request(*(float(column[index]) for column in (
            requests.input_tokens, requests.scheduled, requests.first_token, requests.last_token)))
        for index in order
    ]  # fmt: skip
    longest: list[ServedStep] = []
    for start in range(1, len(queue)):
        at = queue[start].scheduled
        if at - queue[start - 1].scheduled > SAME and max(item.first for item in queue[:start]) < at + SAME:
            longest = max(longest, _follow([replace(item) for item in queue], start, budget), key=len)
    return longest if len(longest) >= FEWEST_STEPS else []


@dataclass(slots=True)
class _Request:
    """A request of the run: its prompt, its times, and how much of both prompt and answer is done."""

    prompt: float
    scheduled: float
    first: float
    last: float
    done: float = 0.0
    decoded: float = 1.0


def _follow(queue: list[_Request], start: int, budget: int) -> list[ServedStep]:
    """Return the steps from the moment at which request ``start`` was scheduled, as far as first tokens confirm them."""
    for item in queue[:start]:
        item.done = item.prompt  # it has decoded a few tokens more than one, of the hundreds that it reads
    begins = [queue[start].scheduled]
    steps: list[ServedStep] = []
    while True:
        begun, filled = begins[-1], begins[-2] if len(begins) > 2 else begins[-1]
        if len(begins) == 2:  # the second step is filled as soon as more is scheduled, not when the first one begins
            filled = min(begun, *(item.scheduled for item in queue if item.scheduled > begins[0] + SAME))
        running = [item for item in queue if item.done >= item.prompt and item.last > begun]
        waiting = [item for item in queue if item.done < item.prompt and item.scheduled < filled + SAME]
        left, chunks, ending = float(budget - len(running)), [], []
        for item in waiting:
            size = min(left, item.prompt - item.done)
            if size > 0:
                chunks.append((item, Chunk(size, item.done)))
                left -= size
                ending += [item] if item.done + size >= item.prompt else []
        # A step in which no prompt ends is over when the next one but one is filled with new requests.
        ends = [item.first for item in ending] or [item.scheduled for item in queue if item.scheduled > begun + SAME]
        end = min(ends, default=begun)
        if left > 0 or [item for item in queue if abs(item.first - end) < SAME] != ending:
            return steps
        contexts = tuple(item.prompt + item.decoded for item in running)
        steps.append(ServedStep(tuple(chunk for _, chunk in chunks), contexts, end - begun))
        begins.append(end)
        for item in running:
            item.decoded += 1
        for item, chunk in chunks:
            item.done += chunk.tokens
