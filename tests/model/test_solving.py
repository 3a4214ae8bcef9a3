"""``solve`` inverts ``predict``: the largest n with T(n) ≤ limit < T(n + 1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.errors import InputError
from costmodel.solving import Solution, largest
from tests.strategies import calibration_of, examples

CALIBRATION = calibration_of(
    {
        "gemm": {"form": "smooth_roofline", "parameters": {"compute_efficiency": {"value": 0.8}, "sharpness": {"value": 3}}},
        "overhead.graph": {"form": "overhead", "parameters": {"graph_multiple": {"value": 8}}},
    }
)  # fmt: skip


@examples(200)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(-1, 51), st.none() | st.integers(-5, 60))
def test_largest_agrees_with_looking_at_all(values: list[int], limit: int, start: int | None) -> None:
    rising = sorted(values)
    within = [index for index, value in enumerate(rising) if value <= limit]
    expected = within[-1] if within else None
    assert largest(lambda n: float(rising[n]), limit, 0, len(rising) - 1, start) == expected


def quantity(rung: Any, name: str) -> float:
    """Return what a limit is on."""
    found: float = {"spike_s": rung.spike_s, "decode_s": rung.decode_step_s, "ratio": rung.spike_ratio}[name]
    return found


@pytest.mark.parametrize(
    ("unknown", "limit"),
    [
        ("prompt", {"spike_s": 0.1}),
        ("prompt", {"ratio": 10.0}),
        ("streams", {"spike_s": 0.2}),
        ("streams", {"decode_s": 0.02}),
        ("context", {"spike_s": 0.2}),
        ("context", {"decode_s": 0.02}),
    ],
)
@pytest.mark.parametrize("rung", ["roofline", "calibrated"])
def test_solutions_invert_predictions(unknown: Any, limit: dict[str, float], rung: Any) -> None:
    solution = costmodel.solve(unknown, rung=rung, calibration=CALIBRATION, **limit)
    ((name, value),) = limit.items()
    assert solution.status == "found"
    assert solution.value is not None
    for n, seconds in ((solution.value, solution.at_value), (solution.value + 1, solution.at_next)):
        predicted = costmodel.predict(**{unknown: n}, calibration=CALIBRATION).rungs.get(rung)
        assert quantity(predicted, name) == seconds
    assert solution.at_value <= value < solution.at_next  # type: ignore[operator]


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "Mixtral-8x7B-v0.1"])
@pytest.mark.parametrize("limit", [1e-4, 0.05, 0.1464, 1.0])
def test_the_textbook_prompt_in_closed_form(model: str, limit: float) -> None:
    # 2·P·n/F + 2·n²·h·d_h·L/F = limit
    solution = costmodel.solve(spike_s=limit, rung="textbook", model=model)
    if solution.value is None:
        assert solution.status == "none"
        assert costmodel.predict(1, model=model).rungs.textbook.spike_s > limit
    else:
        heights = [
            costmodel.predict(n, model=model).rungs.textbook.spike_s for n in (solution.value, solution.value + 1)
        ]
        assert heights[0] <= limit < heights[1]


def test_the_lesson_backwards() -> None:
    # 146.39 ms on the textbook rung are 8,000 tokens.
    spike = costmodel.predict(params=8e9).rungs.textbook.spike_s
    assert costmodel.solve(spike_s=spike, rung="textbook", params=8e9).value == 8000
    assert costmodel.solve(spike_s=spike * (1 - 1e-9), rung="textbook", params=8e9).value == 7999


def test_none_and_unbounded_are_said() -> None:
    # Even one token takes a decode step of about 5 ms; the textbook's decode step does not depend on the streams.
    none = costmodel.solve(spike_s=1e-4)
    assert (none.status, none.value, none.at_value) == ("none", None, None)
    assert none.at_next == costmodel.predict(1).best.spike_s
    unbounded = costmodel.solve("streams", decode_s=1.0, rung="textbook")
    assert (unbounded.status, unbounded.at_next) == ("unbounded", None)


def test_solutions_survive_json() -> None:
    solution = costmodel.solve(spike_s=0.1)
    assert Solution.model_validate_json(solution.model_dump_json(by_alias=True)) == solution


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "exactly one limit"),
        ({"spike_s": 0.1, "ratio": 3}, "exactly one limit"),
        ({"spike_s": 0}, "spike_s must be"),
        ({"spike_s": float("nan")}, "spike_s must be"),
        ({"unknown": "promt", "spike_s": 0.1}, "did you mean prompt"),
        ({"unknown": "prompt", "decode_s": 0.1}, "does not depend on the prompt"),
        ({"unknown": "streams", "ratio": 3}, "solve for the prompt"),
        ({"unknown": "streams", "spike_s": 0.1, "chunk": 2048}, "token budget"),
        ({"spike_s": 0.1, "gpu": "mi300x", "rung": "calibrated"}, "no calibration of mi300x for vllm"),
    ],
)
def test_questions_without_sense_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        costmodel.solve(**options)


def test_under_a_budget_the_prompt_is_found_too() -> None:
    solution = costmodel.solve(spike_s=0.05, chunk=2048)
    assert solution.value is not None
    heights = [costmodel.predict(n, chunk=2048).best.spike_s for n in (solution.value, solution.value + 1)]
    assert heights[0] <= 0.05 < heights[1]
