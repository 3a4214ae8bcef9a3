"""The clock: many steps at once take what they take one by one, and an engine that schedules ahead stops a step later."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.work import LocalChunks
from costmodel.simulation.clock import (
    FEWEST_IF_CURVED,
    FEWEST_IN_CLOSED_FORM,
    MOST_CHUNKS,
    Clock,
    FixedClock,
    StepClock,
)
from tests.simulation.pairs import CLOCKS, clock_of
from tests.strategies import calibrations, deployments, examples

NAN = math.nan


def one_by_one(
    clock: Clock,
    now: float,
    decodes: int,
    reads: list[float],
    growth: list[float],
    steps: int,
    until: float,
    lag: float,
) -> tuple[float, float, int]:
    """Do what :meth:`Clock.run` promises, a step at a time."""
    done, lagging = 0, not math.isnan(lag)
    while done < steps and (lag if lagging else now) < until:
        if lagging:
            lag = now
        now += clock.decode(decodes, reads)
        reads[:] = [read + grown for read, grown in zip(reads, growth, strict=True)]
        done += 1
    return now, lag, done


def agree(
    clock: Clock,
    now: float,
    decodes: int,
    reads: list[float],
    growth: list[float],
    steps: int,
    until: float,
    lag: float,
) -> int:
    """Run both ways, hold the results together, and return the number of steps."""
    first, second = list(reads), list(reads)
    expected = one_by_one(clock, now, decodes, first, growth, steps, until, lag)
    found = clock.run(now, decodes, second, growth, steps, until, lag)
    assert found[2] == expected[2]
    assert found[0] == pytest.approx(expected[0], abs=1e-10, rel=1e-12)
    assert math.isnan(found[1]) == math.isnan(lag)
    if not math.isnan(lag):
        assert found[1] == pytest.approx(expected[1], abs=1e-10, rel=1e-12)
    assert second == pytest.approx(first, rel=1e-12)
    return found[2]


@st.composite
def runs(draw: st.DrawFn, clock: Clock) -> dict[str, Any]:
    """Arguments of :meth:`Clock.run`; ``until`` never where rounding would decide."""
    decodes = draw(st.integers(1, 300))
    reads, growth = [], []
    held = draw(st.integers(0, 3)) == 0
    for window in clock.windows:
        most = window.size if isinstance(window, LocalChunks) else window if isinstance(window, int) else 50_000
        context = draw(st.integers(1, most))
        reads.append(float(decodes * context))
        growth.append(0.0 if held or (window is not None and context == most) else float(draw(st.integers(1, decodes))))
    steps = draw(st.sampled_from([1, 2, 15, 16, 17, 100, 255, 256, 700]))
    now = draw(st.sampled_from([0.0, 12.5]))
    step = clock.decode(decodes, reads)
    lag = draw(st.sampled_from([NAN, now, now - 0.3 * step]))
    ahead = draw(st.sampled_from([math.inf, 0.0, 0.41, 1.73, 9.37, 123.456, 10_000.7]))
    return {
        "now": now, "decodes": decodes, "reads": reads, "growth": growth,
        "steps": steps, "until": now + ahead * step, "lag": lag,
    }  # fmt: skip


@pytest.mark.parametrize("which", CLOCKS, ids=str)
@given(data=st.data())
@examples(60, shrink=False)
def test_many_steps_are_what_single_ones_add_up_to(which: Any, data: st.DataObject) -> None:
    clock = clock_of(which)
    agree(clock, **data.draw(runs(clock)))


@given(data=st.data())
@examples(100, shrink=False)
def test_many_steps_of_any_model_part_and_calibration(data: st.DataObject) -> None:
    calibration = data.draw(st.none() | calibrations())
    rates = None if calibration is None else CalibratedRates(calibration)
    clock = StepClock(build_parameters(data.draw(deployments()), rates))
    for _ in range(3):
        agree(clock, **data.draw(runs(clock)))


@pytest.mark.parametrize("lag", [NAN, 0.0])
@pytest.mark.parametrize("steps", [1, FEWEST_IN_CLOSED_FORM - 1, FEWEST_IN_CLOSED_FORM, FEWEST_IF_CURVED, 5000])
def test_closed_form_and_loop_agree_at_the_sizes_where_they_change_over(steps: int, lag: float) -> None:
    for which in CLOCKS:
        clock = clock_of(which)
        reads = [32 * 500.0 for _ in clock.windows]
        assert (
            agree(clock, 0.0, 32, reads, [32.0 if w is None else 0.0 for w in clock.windows], steps, math.inf, lag)
            == steps
        )


def test_a_corner_of_the_roofline_is_not_cut() -> None:
    """KV bytes of one sequence become longer than its arithmetic somewhere: times lie on two lines, and the loop is taken."""
    clock = StepClock(build_parameters(deploy("Llama-3.1-8B", "h100"), None))
    slow = StepClock(build_parameters(deploy("DeepSeek-V2-Lite", "l40s"), None))
    for each in (clock, slow):
        for reads in ([1.0], [1e5], [1e7]):
            agree(each, 0.0, 1, list(reads), [1e4], 1000, math.inf, NAN)


def test_an_engine_that_schedules_ahead_begins_one_step_more() -> None:
    clock = FixedClock(1.0, 5.0, 10)
    assert clock.run(0.0, 1, [0.0], [1.0], 100, 3.5, NAN) == (4.0, pytest.approx(NAN, nan_ok=True), 4)
    # scheduled at 0, 0, 1, 2 and 3, the first while a step that ends at 0 was under way
    assert clock.run(0.0, 1, [0.0], [1.0], 100, 3.5, -0.5) == (5.0, 4.0, 5)
    assert clock.run(0.0, 1, [0.0], [1.0], 100, -0.2, -0.5) == (1.0, 0.0, 1)


@pytest.mark.parametrize("lag", [NAN, 2.0])
def test_nothing_begins_when_time_is_up(lag: float) -> None:
    for which in CLOCKS:
        clock = clock_of(which)
        reads = [100.0 for _ in clock.windows]
        found = clock.run(2.0, 1, reads, [1.0 for _ in reads], 50, 2.0, lag)
        assert (found[0], found[2]) == (2.0, 0)
        assert reads == [100.0 for _ in clock.windows]


def test_steps_of_streams_whose_context_is_held_are_all_alike() -> None:
    for which in CLOCKS:
        clock = clock_of(which)
        reads = [16_000.0 for _ in clock.windows]
        each = clock.decode(32, reads)
        end, _, done = clock.run(0.0, 32, reads, [0.0 for _ in reads], 1 << 40, 1000.0, NAN)
        assert done == math.ceil(1000.0 / each)
        assert end == pytest.approx(done * each, rel=1e-12)


def test_arrays_give_what_single_steps_give() -> None:
    for which in CLOCKS:
        clock = clock_of(which)
        decodes = np.array([1.0, 7.0, 256.0])
        reads = [np.array([10.0, 7 * 128.0, 256 * 100.0]) for _ in clock.windows]
        expected = [clock.decode(int(n), [float(read[i]) for read in reads]) for i, n in enumerate(decodes)]
        assert list(clock.decode_many(decodes, reads)) == pytest.approx(expected, rel=1e-12)


def test_more_chunks_than_are_compiled_go_on_where_the_compiled_ones_end() -> None:
    """A chunk more is some time more, on either side of the change from compiled steps to the equations."""
    clock = StepClock(build_parameters(deploy("Llama-3.1-8B", "h100"), None))
    times = [clock.mixed([(100, 50)] * n, 8, [8 * 300.0]) for n in range(MOST_CHUNKS - 2, MOST_CHUNKS + 4)]
    assert all(np.diff(times) > 0)
    assert np.diff(times, 2) == pytest.approx([0.0] * 4, abs=1e-5)
    alone = [clock.mixed([(100, 50)] * n, 0, [0.0]) for n in (MOST_CHUNKS, MOST_CHUNKS + 1)]
    assert alone[0] < alone[1] < times[3]


class TestFixedClock:
    """The clock of the lesson."""

    def test_a_whole_prompt_takes_the_time_that_was_given_whoever_decodes(self) -> None:
        clock = FixedClock(0.01, 0.1464, 8000)
        assert clock.mixed([(8000, 0)], 32, [1.0]) == pytest.approx(0.1464)
        assert clock.mixed([(8000, 0)], 0, [0.0]) == pytest.approx(0.1464)

    def test_chunks_take_their_share_and_a_decode_step_at_least(self) -> None:
        clock = FixedClock(0.01, 0.8, 8000)
        assert clock.mixed([(2000, 1000), (500, 0)], 3, [1.0]) == pytest.approx(0.25)
        assert clock.mixed([(2, 0)], 3, [1.0]) == 0.01

    def test_decode_steps_are_all_alike(self) -> None:
        clock = FixedClock(0.01, 0.8, 8000)
        assert clock.decode(1, [5.0]) == clock.decode(10_000, [1e9]) == 0.01
        assert list(clock.decode_many(np.array([1.0, 5.0]), [np.zeros(2)])) == [0.01, 0.01]
