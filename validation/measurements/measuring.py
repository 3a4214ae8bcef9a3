"""Running a plan on an engine inside a time budget: first every point once, in order, then again those whose median is not steady yet."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from costmodel.hardware.errors import CostModelError, InputError, shown
from costmodel.validation.hiding import hidden
from costmodel.validation.measurements.files import Sample, Writer
from costmodel.validation.measurements.plan import VISIT, Limits, Point, plan
from costmodel.validation.measurements.types import Header

STEADY = 0.01
"""A median is steady when its standard error is at most this share of it."""
FEWEST = 3
"""Repeats that a median needs."""
VISITS = 3
"""Times that every point has its turn, if there is time: what slows the machine for seconds is in all repeats of a turn, and so in their
median; of three turns it can spoil one."""
MOST = 40
"""Repeats after which a point is left as it is."""
WATCH_SECONDS = 2.0
"""How often clocks and throttling are looked at [s]; between two points, never during one."""
VARYING_FLAGS = ("num_gpu_blocks",)
"""Flags that come out a little different at every start of the same engine."""


class EngineStopped(CostModelError):  # noqa: N818  the engine's error, not ours
    """The engine failed while it was measured."""


class Missed(Exception):  # noqa: N818
    """The engine ran other steps than it was asked for; the text says which."""


class TimeIsUp(Exception):  # noqa: N818
    """The time budget ended within a point."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the driver says of the devices: clocks by name [MHz], and reasons of throttling, None where it cannot tell."""

    clocks_mhz: dict[str, float]
    throttled: tuple[str, ...] | None


class Backend(Protocol):
    """An engine that can be asked for steps."""

    limits: Limits

    def header(self) -> Header:
        """Return what is the same for all steps."""

    def warm_up(self) -> float:
        """Run until the first surprises are over, and return the prompt tokens that it computes per second."""

    def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
        """Run the point's step so many times after one that is not counted.

        Raises:
            Missed: the steps that ran were not those of the point.
            TimeIsUp: :func:`time.monotonic` went past ``deadline``.
        """

    def seen(self) -> Seen | None:
        """Look at clocks and throttling now; None where nobody can tell."""

    def close(self) -> None:
        """End the engine and its processes."""


@dataclass(slots=True)
class Progress:
    """How far a measurement is.

    Attributes:
        points: of the plan.
        seconds: by label, the repeats so far, those of earlier runs among them [s].
        missed: by label, why the engine did not run that point.
        now: label of the point that is measured.
        started, deadline: by :func:`time.monotonic` [s].
        interrupted: Ctrl-C ended it.
    """

    points: tuple[Point, ...] = ()
    seconds: dict[str, list[float]] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    now: str = ""
    started: float = 0.0
    deadline: float = math.inf
    interrupted: bool = False

    @property
    def measured(self) -> int:
        """Points with a median."""
        return sum(len(self.seconds.get(point.label, ())) >= FEWEST for point in self.points)

    @property
    def steady(self) -> int:
        """Points whose median is steady."""
        return sum(unsteadiness(self.seconds.get(point.label, ())) <= STEADY for point in self.points)

    @property
    def complete(self) -> bool:
        """Every point has a median, but those that the engine does not run."""
        return bool(self.points) and self.measured + len(self.missed) >= len(self.points)


Watch = Callable[[Progress], None]


def measure(
    backend: Backend, writer: Writer, seconds: float, before: Sequence[Sample] = (), watch: Watch | None = None
) -> Progress:
    """Warm up, plan and measure, every repeat into the file at once.

    Ctrl-C ends it early; what was measured is in the file and ``interrupted`` is true.

    Args:
        backend: the engine, which stays open.
        writer: of the file.
        seconds: of measuring, warm-up included [s].
        before: what an earlier run has in the file.
        watch: called before every point.

    Raises:
        EngineStopped: the engine failed; the file says so.
        InputError: the engine's limits leave nothing to measure.
    """
    progress = Progress(started=time.monotonic())
    progress.deadline = progress.started + seconds
    for sample in before:
        progress.seconds.setdefault(sample.point, []).append(sample.seconds)
    try:
        speed = backend.warm_up()
        progress.points = plan(backend.limits, seconds, speed)
        _rounds(backend, writer, progress, watch)
    except TimeIsUp:
        pass
    except KeyboardInterrupt:
        progress.interrupted = True
    except CostModelError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or ["no reason"]
        reason = hidden(f"{type(error).__name__}: {said[0]}")
        writer.note(f"the engine stopped at {progress.now or 'the warm-up'}: {reason}")
        raise EngineStopped(
            f"the engine stopped at {progress.now or 'the warm-up'} ({reason}); {progress.measured} of {len(progress.points)} points are "
            f"in {writer.path}, and --resume goes on"
        ) from error
    if progress.complete and not progress.interrupted:
        writer.complete(seconds)
    return progress


def _rounds(backend: Backend, writer: Writer, progress: Progress, watch: Watch | None) -> None:
    looked = -math.inf
    throttled: tuple[str, ...] | None = None
    while todo := _to_do(progress):
        for point in todo:
            progress.now = point.label
            if watch is not None:
                watch(progress)
            if time.monotonic() >= progress.deadline:
                return
            try:
                samples = backend.run(point, VISIT, progress.deadline)
            except Missed as miss:
                progress.missed[point.label] = str(miss)
                writer.note(f"{point.label} is left out: {miss}")
                continue
            for sample in samples:
                writer.add(sample)
                progress.seconds.setdefault(point.label, []).append(sample.seconds)
            if time.monotonic() >= looked + WATCH_SECONDS and (seen := backend.seen()) is not None:
                looked = time.monotonic()
                if seen.throttled is not None:
                    throttled = tuple(sorted({*(throttled or ()), *seen.throttled}))
                writer.watched(seen.clocks_mhz, throttled)


def _to_do(progress: Progress) -> list[Point]:
    """Return the points without a median in the plan's order, then those with few turns, then those not steady, the worst first."""
    open_points = [point for point in progress.points if point.label not in progress.missed]
    repeats = {point.label: progress.seconds.get(point.label, []) for point in open_points}
    for enough in (FEWEST, *(VISIT * turns for turns in range(2, VISITS + 1))):
        if few := [point for point in open_points if len(repeats[point.label]) < enough]:
            return few
    unsteady = [
        point
        for point in open_points
        if len(repeats[point.label]) < MOST and unsteadiness(repeats[point.label]) > STEADY
    ]
    return sorted(unsteady, key=lambda point: -unsteadiness(repeats[point.label]))


def unsteadiness(seconds: Sequence[float]) -> float:
    """Return the standard error of a median as a share of it: 1.253·1.483·MAD/√n ÷ median; infinite with fewer than three repeats."""
    if len(seconds) < FEWEST:
        return math.inf
    median = statistics.median(seconds)
    deviation = statistics.median(abs(each - median) for each in seconds)
    return 1.253 * 1.483 * deviation / math.sqrt(len(seconds)) / median


def check_same(old: Header, new: Header, name: str) -> None:
    """Refuse to go on with the measurement of another configuration.

    Args:
        old: of the file.
        new: of the engine that would go on.
        name: of the file.

    Raises:
        InputError: they differ; the first difference is named.
    """
    before, after = _identity(old), _identity(new)
    for key in (*before, *(key for key in after if key not in before)):
        if before.get(key) != after.get(key):
            raise InputError(
                f"{name} was measured with another configuration: {key} was {shown(before.get(key))} and is now {shown(after.get(key))}; "
                "measure into another file with --out, or replace it with --force"
            )


def _identity(header: Header) -> dict[str, object]:
    """Return, by name, what must not change within a measurement."""
    flags = {f"flag {name}": value for name, value in header.engine.flags.items() if name not in VARYING_FLAGS}
    config = {f"model config {name}": value for name, value in header.model.config.items()}
    machine = header.machine
    return {
        "source": header.source,
        "engine": header.engine.name,
        "engine version": header.engine.version,
        "device": machine.device,
        "devices": machine.count,
        "GPU profile": machine.profile,
        "threads": machine.threads,
        "clock": header.clock,
        "dtype": header.model.dtype,
        "KV-cache dtype": header.model.kv_dtype,
        "random weights": header.model.random_weights,
        **flags,
        **config,
        **{f"version of {name}": value for name, value in header.engine.versions.items()},
    }
