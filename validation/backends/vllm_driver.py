"""Asking a vLLM engine for one kind of step after the other, with requests alone.

Contexts are filled once and found again in the prefix cache: a prompt of whole blocks and one more token starts decoding after a step of
one token. Sequences that run at the same time never share tokens, so none reads what another has just brought into a cache of the chip.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.hardware.errors import InputError
from costmodel.validation.backends.vllm_recorder import Recorded, Recorder
from costmodel.validation.measurements.measuring import Missed, TimeIsUp
from costmodel.validation.measurements.plan import ROOM, Limits, Point

PROMPTS: Final = 1 << 20
"""Number of the stream of tokens that cached parts of prompts come from; those below are of decoding sequences."""
PATIENCE: Final = 8
"""Steps without the one that is waited for, after which it is missed."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What an engine can be told.

    Attributes:
        add: a request: its name, the tokens of its prompt, the tokens of its answer; returns the engine's own name of it.
        step: go on.
        abort: requests, by the engine's names; those that have ended do not matter.
    """

    add: Callable[[str, list[int], int], str]
    step: Callable[[], Any]
    abort: Callable[[list[str]], Any]


class Driver:
    """Runs the steps of a plan on an engine whose core is in this process.

    Args:
        core: vLLM's EngineCore.
        calls: what it can be told.
        limits: of the engine.
        vocabulary: tokens are drawn from.
        seed: of the drawing.
    """

    def __init__(self, core: Any, calls: Calls, limits: Limits, vocabulary: int, seed: int) -> None:
        self.recorder = Recorder(core.scheduler)
        self.limits = limits
        self._core, self._calls, self._vocabulary, self._seed = core, calls, vocabulary, seed
        self._names = map(str, itertools.count())
        self._random = random.Random(seed)
        self._streams: dict[int, tuple[random.Random, list[int]]] = {}
        self._filled: dict[int, int] = {}
        self._running: list[str] = []

    def warm_up(self) -> float:
        """Run prompts and decodes that are not counted, and return the tokens of a prompt per second."""
        length = min(512, self.limits.token_budget, self.limits.model_tokens - ROOM)
        if length < 1:
            raise InputError(
                f"--max-model-len {self.limits.model_tokens} is too short to measure; allow at least {2 * ROOM}"
            )
        for _ in range(2):
            self._add(self._fresh(length), 8)
            while self._busy():
                self._calls.step()
        step = self._one_prompt(self._fresh(length), float("inf"))
        self._drain()
        return length / step.wall_seconds

    def run(self, point: Point, repeats: int, deadline: float) -> list[Recorded]:
        """Run the point's step so many times after one that is not counted; what the prefix cache has lost is filled once more."""
        for attempt in range(2):
            try:
                steps = self._run(point, repeats + 1, deadline)
                self._drain()
                return steps[1:]
            except Missed:
                self._drain()
                self._filled.clear()
                if attempt:
                    raise
            except TimeIsUp:
                self._drain()
                raise
        raise AssertionError("not reached")

    def _run(self, point: Point, repeats: int, deadline: float) -> list[Recorded]:
        """Return the steps of the point, the first of them the one that is not counted.

        Raises:
            Missed: the engine ran others.
        """
        if point.chunk is not None and point.chunk[1]:
            self._fill([(PROMPTS, point.chunk[1])], deadline)
        if point.decodes:
            self._start_decodes(point, deadline)
        contexts = point.context
        found: list[Recorded] = []
        for _ in range(repeats):
            if point.chunk is None:
                step = self._next(deadline)
            else:
                new, cached = point.chunk
                step = self._one_prompt(self._stream(PROMPTS, cached) + self._fresh(new), deadline)
                contexts = step.decodes[0] if step.decodes else contexts
            expected = ((point.chunk,) if point.chunk else (), (contexts,) * point.decodes)
            if (step.chunks, step.decodes) != expected:
                raise Missed(f"vLLM ran {described(step)} instead")
            found.append(step)
            contexts += 1
        return found

    def _start_decodes(self, point: Point, deadline: float) -> None:
        """Bring the point's sequences to where each has its context in the cache and decodes."""
        self._fill([(each, point.context) for each in range(point.decodes)], deadline)
        for each in range(point.decodes):
            self._add(self._stream(each, point.context), ROOM - 1)
        step = self._next(deadline)
        if step.chunks != ((1, point.context - 1),) * point.decodes or step.decodes:
            raise Missed(f"the contexts were not in the prefix cache: vLLM ran {described(step)}")

    def _fill(self, streams: Sequence[tuple[int, int]], deadline: float) -> None:
        """Bring the beginnings of streams of tokens into the prefix cache."""
        missing = [(stream, tokens) for stream, tokens in streams if self._filled.get(stream, 0) < tokens]
        for stream, tokens in missing:
            self._add(self._stream(stream, tokens), 1)
        while self._busy():
            self._step(deadline)
        self._running.clear()
        self._filled.update(missing)

    def _one_prompt(self, tokens: list[int], deadline: float) -> Recorded:
        """Add a prompt with an answer of one token, and return the step that it is in; one that was under way may come before."""
        self._add(tokens, 1)
        for _ in range(PATIENCE):
            step = self._next(deadline)
            if step.chunks:
                return step
        raise Missed("the prompt was not scheduled")

    def _next(self, deadline: float) -> Recorded:
        """Return the next step that ends."""
        before = len(self.recorder.steps)
        for _ in range(PATIENCE):
            self._step(deadline)
            if len(self.recorder.steps) > before:
                return self.recorder.steps[before]
        raise Missed("no step ran")

    def _step(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise TimeIsUp
        self._calls.step()

    def _busy(self) -> bool:
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def _drain(self) -> None:
        """End all requests."""
        if self._running:
            self._calls.abort(list(self._running))
            self._running.clear()
        while self._busy():
            self._calls.step()
        self.recorder.steps.clear()

    def _add(self, tokens: list[int], answer: int) -> None:
        self._running.append(self._calls.add(next(self._names), tokens, answer))

    def _fresh(self, count: int) -> list[int]:
        """Return tokens that no prompt had before."""
        return self._draw(self._random, count)

    def _stream(self, number: int, count: int) -> list[int]:
        """Return the first tokens of a stream: always the same."""
        source, tokens = self._streams.setdefault(number, (random.Random(f"{self._seed} {number}"), []))
        if len(tokens) < count:
            tokens += self._draw(source, count - len(tokens))
        return tokens[:count]

    def _draw(self, source: random.Random, count: int) -> list[int]:
        return source.choices(range(min(16, self._vocabulary - 1), self._vocabulary), k=count)


def described(step: Recorded) -> str:
    """Return what a step held, in words."""
    parts = [f"{new} tokens on {cached}" for new, cached in step.chunks[:3]]
    if len(step.chunks) > 3:
        parts.append(f"{len(step.chunks) - 3} more prompts")
    if step.decodes:
        parts.append(f"{len(step.decodes)} decodes on {step.decodes[0]} to {step.decodes[-1]}")
    return ", ".join(parts) or "nothing"
