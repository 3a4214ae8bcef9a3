"""Recorded equations: straight-line Python that gives what the equations give, with everything known folded and every line kept once."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_parameters
from costmodel.deployment import Deployment
from costmodel.equations.numerics import ceil, maximum, minimum, smooth_max
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.recording import Recorded, Recorder, written
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, Window, Work, make_work, seen_tokens
from costmodel.rungs import total_seconds
from costmodel.simulation.clock import StepClock
from tests.strategies import calibrations, deployments, examples

EXACT = 1e-12


def evaluated(build: Callable[..., Any], *values: float) -> Any:
    """Return what the recorded lines of a formula give."""
    recorder = Recorder()
    names = [f"x{index}" for index in range(len(values))]
    result = build(*map(recorder.argument, names))
    space: dict[str, Any] = {"ceil": lambda value: float(math.ceil(value)), **dict(zip(names, values, strict=True))}
    exec("\n".join(recorder.assignments(0, [result])), space)
    return space[str(result)] if isinstance(result, Recorded) else result


FORMULAS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: 1 + x + 2.5 + y,
    "difference": lambda x, y: 7 - x - 2 - (y - x),
    "product": lambda x, y: 3 * x * y * 0.5,
    "quotient": lambda x, y: 5 / x / y / 2,
    "power": lambda x, y: 0.5**x + y**1.5,
    "negative": lambda x, y: -x * -2.0 + (-3) * y,
    "maximum": lambda x, y: maximum(x, y) + maximum(2, x) + maximum(y, 2.0),
    "minimum": lambda x, y: minimum(x, y) + minimum(2, x) + minimum(y, 2.0),
    "ceil": lambda x, y: ceil(x / 3) * ceil(y),
    "smooth maximum": lambda x, y: smooth_max(x, y, 2.4) + smooth_max(x, 2.0, 1.0) + smooth_max(0.5, y, 30.0),
    "sharp maximum": lambda x, y: smooth_max(x, y, math.inf),
    "nested": lambda x, y: maximum(smooth_max(x * y, x + y, 4) - ceil(x), minimum(x, 1) * y) ** 2,
}


@pytest.mark.parametrize("name", FORMULAS)
@given(
    x=st.floats(1e-6, 1e6) | st.integers(1, 5).map(float),
    y=st.floats(1e-6, 1e6) | st.integers(1, 5).map(float),
)
@examples(40)
def test_formulas_give_the_same(name: str, x: float, y: float) -> None:
    assert evaluated(FORMULAS[name], x, y) == pytest.approx(FORMULAS[name](x, y), rel=EXACT, abs=1e-300)


def test_zero_and_one_vanish() -> None:
    recorder = Recorder()
    x = recorder.argument("x")
    assert x + 0 is x
    assert 0 + x is x
    assert x - 0 is x
    assert x * 1 is x
    assert 1 * x is x
    assert x / 1 is x
    assert x**1 is x
    assert x * 0 == 0.0
    assert 0 * x == 0.0
    assert 0 / x == 0.0
    assert smooth_max(x, 0, 3) is x
    assert smooth_max(0, x, 3) is x
    assert not recorder.lines


def test_a_smooth_maximum_of_zeros_is_zero() -> None:
    assert evaluated(lambda x, y: smooth_max(x, y, 2.5), 0.0, 0.0) == 0.0


def test_equal_expressions_are_recorded_once() -> None:
    recorder = Recorder()
    x, y = recorder.argument("x"), recorder.argument("y")
    assert str(x * y) == str(x * y)
    assert len(recorder.lines) == 1
    assert str(maximum(x, y)) == str(maximum(x, y))


def test_only_lines_that_are_needed_are_kept() -> None:
    recorder = Recorder()
    x = recorder.argument("x")
    _ = (x + 1) * 5
    wanted = (x + 2) * 3
    assert recorder.assignments(0, [wanted]) == ["v2 = x + 2.0", "v3 = v2 * 3.0"]


def test_what_depends_on_a_later_argument_is_kept_apart() -> None:
    recorder = Recorder()
    early, late = recorder.argument("a"), recorder.argument("b", 1)
    result = maximum(early * 2, late + early)
    assert result.stage == 1
    assert (early * 2).stage == 0
    assert recorder.assignments(0, [result]) == ["v0 = a * 2.0"]
    assert recorder.assignments(1, [result]) == ["v1 = b + a", "v2 = v0 if v0 >= v1 else v1"]


@pytest.mark.parametrize(("value", "text"), [(1, "1.0"), (-2, "(-2.0)"), (0.1, "0.1"), (1e300, "1e+300")])
def test_numbers_are_written_in_full(value: float, text: str) -> None:
    assert written(value) == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_cannot_be_recorded(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be recorded"):
        written(value)


def test_an_unknown_value_cannot_be_compared() -> None:
    """Equations may not branch on workloads; a branch would record one side of it."""
    x: Any = Recorder().argument("x")
    with pytest.raises(TypeError):
        _ = x > 1


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Chunk], list[int]]:
    """A step: up to 14 chunks, up to 700 decoding contexts, not both none."""
    sizes = st.tuples(st.integers(2, 20_000), st.integers(0, 100_000))
    chunks = [Chunk(float(q), float(c)) for q, c in draw(st.lists(sizes, max_size=14))]
    count = draw(st.sampled_from([0, 1, 2, 7, 8, 33, 700]))
    random = Random(draw(st.integers(0, 10**6)))
    return chunks, [random.randint(1, 100_000) for _ in range(count or not chunks)]


def work_of(chunks: list[Chunk], contexts: list[int], windows: tuple[Window, ...]) -> Work:
    return make_work(chunks, [Decodes(1.0, float(context)) for context in contexts], windows)


def recorded_seconds(clock: StepClock, chunks: list[Chunk], contexts: list[int]) -> float:
    reads = [sum(float(seen_tokens(context, w)) for context in contexts) for w in clock.windows]
    if not chunks:
        return clock.decode(len(contexts), reads)
    return clock.mixed([(int(chunk.tokens), int(chunk.cached)) for chunk in chunks], len(contexts), reads)


@given(st.data())
@examples(150, shrink=False)
def test_steps_of_any_model_part_and_calibration_take_what_the_equations_say(data: st.DataObject) -> None:
    deployment: Deployment = data.draw(deployments())
    calibration = data.draw(st.none() | calibrations())
    parameters = build_parameters(deployment, None if calibration is None else CalibratedRates(calibration))
    clock = StepClock(parameters)
    for _ in range(3):
        chunks, contexts = data.draw(steps())
        expected = total_seconds(step_operators(parameters, work_of(chunks, contexts, clock.windows)))
        assert recorded_seconds(clock, chunks, contexts) == pytest.approx(float(expected), rel=EXACT)
