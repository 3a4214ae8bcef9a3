"""Plans, and running them on an engine that is only made up: order, time, repeats, interruptions, going on."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.errors import InputError
from costmodel.validation.measurements import measuring
from costmodel.validation.measurements.files import Sample, Writer, read_content, read_measurement
from costmodel.validation.measurements.measuring import (
    FEWEST,
    MOST,
    STEADY,
    EngineStopped,
    Missed,
    Progress,
    Seen,
    TimeIsUp,
    check_same,
    measure,
    unsteadiness,
)
from costmodel.validation.measurements.plan import Limits, Point, plan, spread_out
from costmodel.validation.measurements.types import Engine, Header, Machine, Model

GPU = Limits(token_budget=16384, sequences=1024, model_tokens=32768, kv_tokens=400_000, block_tokens=16)
CPU = Limits(token_budget=2048, sequences=256, model_tokens=2048, kv_tokens=60_000, block_tokens=128)
SMALL = Limits(token_budget=64, sequences=4, model_tokens=256, kv_tokens=1024, block_tokens=16)
HEADER = Header(
    source="in-process",
    engine=Engine(name="vllm", version="0.32.0", flags={"enforce_eager": True, "num_gpu_blocks": 100}),
    machine=Machine(profile=None, device="a CPU", threads=1),
    model=Model(name="tiny", config={"hidden_size": 64}, dtype="fp32", random_weights=True),
    clock="cpu",
    date="2026-11-29T12:00:00+00:00",
    command="costmodel measure tiny",
)


class Clock:
    """Time that passes only when something runs."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class MadeUp:
    """An engine whose steps take what a formula says, with noise.

    Args:
        clock: that goes on by what it runs.
        noise: relative, of a step.
        events: by the number of a call of ``run``, what happens in it instead.
    """

    def __init__(self, clock: Clock, noise: float = 0.001, events: dict[int, BaseException] | None = None) -> None:
        self.limits = CPU
        self.clock, self.noise, self.events = clock, noise, events or {}
        self.ran: list[str] = []
        self.random = random.Random(1)

    def header(self) -> Header:
        return HEADER

    def warm_up(self) -> float:
        self.clock.now += 0.2
        return 3000.0

    def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
        self.ran.append(point.label)
        if (event := self.events.get(len(self.ran))) is not None:
            raise event
        if point.label not in self.ran[:-1]:  # after that the prefix cache has it
            self.clock.now += point.set_up_tokens / 3000
        found = []
        for repeat in range(repeats):
            seconds = (0.003 + point.tokens / 3000) * (1 + self.noise * self.random.uniform(-1, 1))
            self.clock.now += seconds
            if self.clock.now > deadline:
                raise TimeIsUp
            chunks = (point.chunk,) if point.chunk else ()
            contexts = (point.context + repeat,) * point.decodes
            found.append(Sample(chunks, contexts, seconds, point.purpose, point.held_out, point.label))
        return found

    def seen(self) -> Seen | None:
        return Seen({"sm": 1980.0}, ("power cap",) if len(self.ran) == 1 else ())

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measuring.time, "monotonic", made.monotonic)
    return made


def measured(path: Path, engine: MadeUp, seconds: float = 60.0) -> Progress:
    with Writer(path, engine.header()) as writer:
        return measure(engine, writer, seconds)


@pytest.mark.parametrize("limits", [GPU, CPU, SMALL])
@pytest.mark.parametrize(("seconds", "speed"), [(180.0, 40_000.0), (60.0, 3000.0), (5.0, 1000.0)])
def test_every_point_fits_the_engine_and_comes_once(limits: Limits, seconds: float, speed: float) -> None:
    points = plan(limits, seconds, speed)
    assert points
    assert all(point.fits(limits) for point in points)
    labels = [point.label for point in points]
    assert len(set(labels)) == len(labels)
    assert all(point.held_out for point in points if point.purpose == "mixed")
    assert all(point.chunk is None or point.chunk[1] % limits.block_tokens == 0 for point in points)
    assert all(point.context % limits.block_tokens == 1 for point in points if point.decodes)


@pytest.mark.parametrize("limits", [GPU, CPU])
def test_what_is_fitted_tells_the_terms_of_a_step_apart(limits: Limits) -> None:
    import numpy as np

    fitted = [point for point in plan(limits, 180, 40_000) if not point.held_out]
    rows = []
    for point in fitted:
        new, cached = point.chunk or (0, 0)
        pairs, read = new * cached + new * (new + 1) / 2, point.decodes * point.context
        rows.append([1.0, point.tokens, pairs, read, point.decodes])
    matrix = np.array(rows)
    assert np.linalg.cond(matrix / np.linalg.norm(matrix, axis=0)) < 10
    logs = np.log([[point.decodes, point.context] for point in fitted if point.decodes])
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.5


@pytest.mark.parametrize("first", [8, 16, 30])
def test_a_beginning_of_the_plan_has_the_ends_of_every_sweep(first: int) -> None:
    points = plan(GPU, 180, 40_000)[:first]
    assert {point.purpose for point in points} == {"decode", "prefill", "chunk", "mixed"}
    lengths = [point.chunk[0] for point in points if point.purpose == "prefill" and point.chunk]
    assert (min(lengths), max(lengths)) == (16, 16384)
    assert max(point.decodes for point in points) >= (1 if first == 8 else 256)


def test_less_time_leaves_out_what_is_long(clock: Clock) -> None:
    short, long = plan(CPU, 10, 1000), plan(CPU, 600, 1000)
    assert {point.label for point in short} < {point.label for point in long}
    assert max(point.tokens for point in short) < max(point.tokens for point in long)


def test_an_engine_too_small_for_any_point_is_refused() -> None:
    with pytest.raises(InputError, match="--max-model-len"):
        plan(Limits(token_budget=8, sequences=1, model_tokens=32, kv_tokens=32, block_tokens=16), 60, 1000)


def test_values_are_walked_from_the_ends_to_the_middles() -> None:
    assert spread_out([1, 2, 3, 4, 5]) == [1, 5, 3, 2, 4]
    for length in range(8):
        assert sorted(spread_out(range(length))) == list(range(length))


def test_a_plan_that_runs_through_is_complete(tmp_path: Path, clock: Clock) -> None:
    engine = MadeUp(clock)
    progress = measured(tmp_path / "m.jsonl", engine)
    found = read_measurement(tmp_path / "m.jsonl")
    assert progress.complete
    assert found.complete
    assert len(found.steps) == len(progress.points) == progress.steady
    assert engine.ran == 3 * [point.label for point in progress.points]
    assert clock.now - progress.started < 60
    for step, point in zip(found.steps, progress.points, strict=True):
        assert step.purpose == point.purpose
        assert step.chunks == ((point.chunk,) if point.chunk else ())
        assert set(step.decodes) <= {point.context + 1}  # the median of three contexts, one after the other
        assert step.repeats == 9


def test_the_machine_is_watched_and_throttling_is_remembered(tmp_path: Path, clock: Clock) -> None:
    measured(tmp_path / "m.jsonl", MadeUp(clock))
    machine = read_measurement(tmp_path / "m.jsonl").machine
    assert machine.clocks_mhz == {"sm": 1980.0}
    assert machine.throttled == ("power cap",)
    assert machine.device == HEADER.machine.device


def test_medians_that_are_not_steady_are_repeated_until_the_time_ends(tmp_path: Path, clock: Clock) -> None:
    engine = MadeUp(clock, noise=0.2)
    progress = measured(tmp_path / "m.jsonl", engine, 600)
    assert progress.complete
    assert len(engine.ran) > 2 * len(progress.points)
    assert set(engine.ran[: len(progress.points)]) == {point.label for point in progress.points}
    repeats = {step.repeats for step in read_measurement(tmp_path / "m.jsonl").steps}
    assert max(repeats) <= MOST + 4
    assert clock.now - progress.started < 605


def test_a_machine_that_is_slow_for_a_while_spoils_no_median(tmp_path: Path, clock: Clock) -> None:
    class Slowed(MadeUp):
        """Half as fast during the first ten seconds of measuring, and so are all repeats of some points' first turns."""

        def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
            slow = 2.0 if self.clock.now - began < 10 else 1.0
            return [replace(each, seconds=slow * each.seconds) for each in super().run(point, repeats, deadline)]

    began = clock.now
    progress = measured(tmp_path / "m.jsonl", Slowed(clock), 120)
    assert progress.complete
    for step in read_measurement(tmp_path / "m.jsonl").steps:
        assert step.seconds == pytest.approx(0.003 + step.tokens / 3000, rel=0.01)


def test_time_that_ends_early_leaves_the_most_important(tmp_path: Path, clock: Clock) -> None:
    class Slower(MadeUp):
        """Ten times slower than its warm-up."""

        def run(self, point: Point, repeats: int, deadline: float) -> list[Sample]:
            self.clock.now += 9 * repeats * point.tokens / 3000
            return super().run(point, repeats, deadline)

    progress = measured(tmp_path / "m.jsonl", Slower(clock))
    found = read_measurement(tmp_path / "m.jsonl")
    assert not progress.complete
    assert not found.complete
    assert 0 < len(found.steps) == progress.measured < len(progress.points)
    assert [step.purpose for step in found.steps] == [point.purpose for point in progress.points[: len(found.steps)]]


def test_an_interruption_leaves_what_was_measured_and_going_on_completes_it(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    progress = measured(path, MadeUp(clock, events={4: KeyboardInterrupt()}))
    assert progress.interrupted
    assert [len(read_measurement(path).steps), read_measurement(path).complete] == [3, False]
    engine = MadeUp(clock)
    before = read_content(path)
    with Writer(path, None) as writer:
        again = measure(engine, writer, 60, before.samples)
    assert again.complete
    rest = [point.label for point in again.points[3:]]
    assert engine.ran[: len(rest)] == rest  # what has a median has its next turn after those that have none
    assert len(read_measurement(path).steps) == len(again.points)


def test_a_crash_of_the_engine_is_said_and_noted(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    with pytest.raises(EngineStopped, match=r"CUDA error.*--resume") as caught:
        measured(path, MadeUp(clock, events={3: RuntimeError("CUDA error: an illegal access\nmore lines")}))
    assert caught.value.exit_code == 2
    found = read_measurement(path)
    assert len(found.steps) == 2
    assert "CUDA error: an illegal access" in found.notes[0]
    assert "more lines" not in found.notes[0]


def test_a_point_that_the_engine_does_not_run_is_left_out(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    progress = measured(path, MadeUp(clock, events={2: Missed("vLLM ran nothing instead")}))
    assert progress.complete
    assert list(progress.missed) == [progress.points[1].label]
    found = read_measurement(path)
    assert len(found.steps) == len(progress.points) - 1
    assert found.notes == (f"{progress.points[1].label} is left out: vLLM ran nothing instead",)


def test_a_warm_up_that_fails_is_said(tmp_path: Path, clock: Clock) -> None:
    engine = MadeUp(clock)

    def fail() -> float:
        raise MemoryError

    engine.warm_up = fail  # type: ignore[method-assign]
    with pytest.raises(EngineStopped, match="warm-up"):
        measured(tmp_path / "m.jsonl", engine)


def test_steadiness_is_the_standard_error_of_the_median() -> None:
    assert unsteadiness([1.0] * (FEWEST - 1)) == float("inf")
    assert unsteadiness([1.0] * FEWEST) == 0
    source = random.Random(0)
    medians, estimates = [], []
    for _ in range(400):
        drawn = sorted(source.gauss(1.0, 0.05) for _ in range(25))
        medians.append(drawn[12])
        estimates.append(unsteadiness(drawn))
    mean = sum(medians) / 400
    spread = (sum((each - mean) ** 2 for each in medians) / 399) ** 0.5
    assert sum(estimates) / 400 == pytest.approx(spread, rel=0.15)
    assert STEADY < 0.05


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"clock": "wall"}, "clock was 'cpu' and is now 'wall'"),
        ({"engine": Engine(name="vllm", version="0.31.0", flags=HEADER.engine.flags)}, "engine version"),
        ({"engine": HEADER.engine.model_copy(update={"flags": {"enforce_eager": False}})}, "flag enforce_eager"),
        ({"machine": Machine(profile="h100-sxm", device="an H100")}, "device was 'a CPU'"),
        ({"model": Model(name="t", config={"hidden_size": 128}, dtype="fp32", random_weights=True)}, "hidden_size"),
    ],
)
def test_another_configuration_does_not_go_on(change: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=rf"{named}.*--out.*--force"):
        check_same(HEADER, HEADER.model_copy(update=change), "m.jsonl")


def test_dates_and_counts_of_blocks_may_differ() -> None:
    flags = HEADER.engine.flags | {"num_gpu_blocks": 99}
    engine = HEADER.engine.model_copy(update={"flags": flags})
    check_same(HEADER, HEADER.model_copy(update={"date": "2027-01-01", "command": "x", "engine": engine}), "m.jsonl")


def test_repeats_of_a_point_are_one_step_though_contexts_grow(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Writer(path, HEADER) as writer:
        for repeat, seconds in enumerate((0.01, 0.02, 0.03)):
            writer.add(Sample((), (5 + repeat, 5 + repeat), seconds, "decode", point="decode 2x5", wall_seconds=0.04))
        writer.add(Sample((), (5, 5), 0.5, "decode", point="decode 2x5 again"))
        writer.note("a")
        writer.note("a")
        writer.watched({"sm": 1.0}, None)
    found = read_measurement(path)
    one, other = found.steps
    assert (one.decodes, one.seconds, one.wall_seconds, one.repeats) == ((6, 6), 0.02, 0.04, 3)
    assert (other.decodes, other.wall_seconds, other.repeats) == ((5, 5), None, 1)
    assert found.notes == ("a",)
    assert (found.machine.clocks_mhz, found.machine.throttled) == ({"sm": 1.0}, None)


@pytest.mark.parametrize("line", ['{"watched": {"clocks": 1}}', '{"point": "x"}', "[]", '{"note": 1, "x": 2}'])
def test_lines_that_are_none_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(HEADER.model_dump_json(by_alias=True) + "\n" + line + "\n")
    with pytest.raises(InputError, match="line 2"):
        read_measurement(path)


def test_labels_tell_points_apart() -> None:
    points = [
        Point(purpose, chunk, decodes, 17 * decodes)
        for purpose, chunk, decodes in itertools.product(("mixed", "chunk"), ((1, 0), (1, 16), (2, 0)), (0, 1, 2))
    ]
    assert len({point.label for point in points}) == len(points)
