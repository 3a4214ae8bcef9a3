"""The experiment: streams, an injector and a recorder on one event loop; first without injections, then with."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from costmodel.simulation.quantiles import nearest_rank
from costmodel.validation.interference import metrics
from costmodel.validation.interference.client import Client, encoded
from costmodel.validation.interference.exchange import RequestError
from costmodel.validation.interference.records import LATE, Lag, Plan, Recorder, RunName
from costmodel.validation.interference.streams import Speech

WARM_UP: Final = 2
"""Long prompts before everything else: the first steps of an engine are slower."""
TICK: Final = 0.01
"""Between two looks at how late the client is [s]."""
MOST_FAILURES: Final = 3
"""A stream gives up after so many failures in a row."""
PAUSE: Final = 0.25
"""Before a stream tries again [s]; longer with every failure."""
INJECTED_OUTPUT: Final = 1
"""Tokens that an injected prompt asks for."""


MOST_PREPARED: Final = 256
"""Injections that are made beforehand."""


class ServerLostError(Exception):
    """No stream gets an answer any more."""


class Progress(NamedTuple):
    """How far the experiment is.

    Attributes:
        what: ``warm-up``, ``streams`` (they are starting), ``baseline`` or ``injected``.
        time, duration: of it [s].
        tokens: of all streams in this run.
        injections: that were answered.
    """

    what: str
    time: float
    duration: float
    tokens: int
    injections: int


@dataclass
class _Run:
    """What the tasks of a run share."""

    name: RunName
    tokens: int = 0
    answered: int = 0
    started: set[int] = field(default_factory=set)
    """Streams that have a token."""
    given_up: set[int] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Experiment:
    """Runs a plan against a server and writes its record.

    Args:
        client, speech: of the server.
        recorder: takes every event.
        plan: what to run.
        watch: called a few times per second.
    """

    def __init__(
        self,
        client: Client,
        speech: Speech,
        recorder: Recorder,
        plan: Plan,
        watch: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.client, self.speech, self.recorder, self.plan, self.watch = client, speech, recorder, plan, watch
        self._origin = time.monotonic()
        self._serial = 0
        self._problem = ""

    def now(self) -> float:
        """Seconds since the record began."""
        return time.monotonic() - self._origin

    async def run(self) -> None:
        """Run all of it.

        Raises:
            ServerLostError: no stream gets an answer any more; the record says why.
            asyncio.CancelledError: Ctrl-C, SIGTERM or SIGHUP; the record ends with a note.
        """
        with _ended_by_signals():
            try:
                await self._warm_up()
                for name, duration in (("baseline", self.plan.baseline_s), ("injected", self.plan.duration_s)):
                    await self._one(name, duration)  # type: ignore[arg-type]
            except asyncio.CancelledError:
                self.recorder.add(note="interrupted", time=self.now())
                raise
            except ServerLostError as error:
                self.recorder.add(note=f"the experiment ended early: {error}", time=self.now())
                raise
            self.recorder.add(complete=True)

    async def _warm_up(self) -> None:
        for index in range(WARM_UP):
            self.watch(Progress("warm-up", index, WARM_UP, 0, 0))
            try:
                await self.client.stream(self.speech.path, self._injected_body(), lambda _, __: None, INJECTED_OUTPUT)
            except RequestError as error:
                raise ServerLostError(
                    f"a prompt of {self.plan.prompt_tokens:,} tokens was not answered: {error}"
                ) from None

    async def _one(self, name: RunName, duration: float) -> None:
        """Run the streams for so long, with or without injections."""
        run = _Run(name)
        self.recorder.add(run=name, time=self.now())
        late: list[float] = []
        planned = self._planned(duration) if name == "injected" else 0
        prepared = deque(self._injected_body() for _ in range(min(planned, MOST_PREPARED)))
        tasks = [asyncio.create_task(self._stream(run, index)) for index in range(self.plan.streams)]
        injections: list[asyncio.Task[None]] = []
        try:
            await self._start(run)
            await self._note_metrics()
            begun = self.now()
            self.recorder.add(begun=name, time=begun)
            tasks.append(asyncio.create_task(self._measure_lag(late)))
            sent = 0
            while (passed := self.now() - begun) < duration or any(not task.done() for task in injections):
                due = self.plan.first_s + sent * self.plan.every_s
                if sent < planned and due <= passed < duration:
                    body = prepared.popleft() if prepared else self._injected_body()
                    injections.append(asyncio.create_task(self._inject(run, body)))
                    sent += 1
                    continue
                self._check(run, tasks)
                self.watch(Progress(name, passed, duration, run.tokens, run.answered))
                waits = [0.25, *([due - passed] if sent < planned and passed < duration else [])]
                waits += [duration - passed] if passed < duration else []
                await asyncio.sleep(max(min(waits), 0.001))
            self.recorder.add(done=name, time=self.now())
            if sent < planned:
                text = f"{planned - sent} of {planned} prompts were not sent: the client did not get to run in time"
                self.recorder.add(note=text, time=self.now())
            await self._note_metrics()
        finally:
            await _cancel([*tasks, *injections])
            if late:
                p50, p99, most = nearest_rank(late, (0.5, 0.99, 1.0))
                lag = Lag(p50_s=p50, p99_s=p99, max_s=most, count=len(late))
                self.recorder.add(lag=lag.model_dump(), time=self.now())

    async def _measure_lag(self, late: list[float]) -> None:
        """Note how late the loop comes back from a short sleep [s]."""
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            late.append(max(time.monotonic() - due, 0.0))
            if late[-1] > LATE:
                self.recorder.add(late=round(late[-1], 6), time=self.now())

    async def _note_metrics(self) -> None:
        """Note the server's own counts, if it tells."""
        text = await metrics.page(self.client, "/metrics")
        if text is not None and (found := metrics.counts(text)):
            self.recorder.add(metrics=found, time=self.now())

    async def _start(self, run: _Run) -> None:
        """Wait until every stream has a token or has given up."""
        since = self.now()
        while len(run.started | run.given_up) < self.plan.streams:
            self.watch(Progress("streams", len(run.started), self.plan.streams, run.tokens, 0))
            run.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await run.changed.wait()
            if self.now() - since > MOST_FAILURES * (self.client.patience + PAUSE * MOST_FAILURES):
                break
        self._check(run, [])
        missing = self.plan.streams - len(run.started)
        if missing:
            text = f"{missing} of {self.plan.streams} streams got no token before the {run.name} run began"
            self.recorder.add(note=text, time=self.now())

    def _planned(self, duration: float) -> int:
        """Return how many prompts are sent in so many seconds; some are made before any token is stamped, as that takes milliseconds."""
        return math.ceil(max(duration - self.plan.first_s, 0.0) / self.plan.every_s)

    def _injected_body(self) -> bytes:
        return encoded(self.speech.body(self.plan.prompt_tokens, INJECTED_OUTPUT))

    def _check(self, run: _Run, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if len(run.given_up) == self.plan.streams:
            raise ServerLostError(f"every stream failed {MOST_FAILURES} times in a row; {self._problem}")

    async def _stream(self, run: _Run, index: int) -> None:
        """Keep one stream going: when an answer ends, the next begins."""
        failures = 0
        while failures < MOST_FAILURES:
            if failures:
                await asyncio.sleep(PAUSE * failures)
            body = encoded(self.speech.body(self.plan.context_tokens, self.plan.output_tokens))

            def hear(when: float, count: int, serial: int = self._serial) -> None:
                self._token(serial, when, count)
                run.tokens += count
                if index not in run.started:
                    run.started.add(index)
                    run.changed.set()

            before = run.tokens
            good = await self._ask(body, hear, stream=index)
            failures = 0 if good and run.tokens > before else failures + 1
        run.given_up.add(index)
        run.changed.set()
        self.recorder.add(note=f"stream {index} gave up after {MOST_FAILURES} failures in a row", time=self.now())

    async def _inject(self, run: _Run, body: bytes) -> None:
        serial = self._serial
        good = await self._ask(body, lambda when, count: self._token(serial, when, count))
        run.answered += good

    def _token(self, serial: int, when: float, count: int) -> None:
        event: dict[str, Any] = {"token": serial, "time": when - self._origin}
        if count > 1:
            event["count"] = count
        self.recorder.add(**event)

    async def _ask(self, body: bytes, hear: Callable[[float, int], None], **about: int) -> bool:
        """Ask once, and record what became of it; tell whether it ended well. The serial is the one that is next."""
        serial = self._serial
        self._serial += 1
        self.recorder.add(send=serial, **about, time=self.now())
        over: dict[str, Any] = {"outcome": "stopped"}
        good = False
        try:
            answered = await self.client.stream(
                self.speech.path, body, hear, self.plan.output_tokens if about else INJECTED_OUTPUT
            )
            over, good = {"outcome": "whole"}, True
            for key in ("prompt_tokens", "cached_tokens", "output_tokens"):
                if (value := getattr(answered, key)) is not None:
                    over[key] = value
        except RequestError as error:
            self._problem = str(error)
            over = {"outcome": "failed", "problem": self._problem}
        finally:
            self.recorder.add(end=serial, **over, time=self.now())
        return good


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the experiment as Ctrl-C does; a signal that is ignored stays so."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if (handler := signal.getsignal(number)) != signal.SIG_IGN:
                loop.add_signal_handler(number, lambda: task.cancel() if task is not None else None)
                before[number] = handler
    except (
        NotImplementedError,
        ValueError,
        RuntimeError,
        AttributeError,
    ):  # no such signals here, or not the main thread
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
