"""``solve`` inverts ``predict`` exactly: the largest n with T(n) ≤ limit < T(n + 1), on every rung."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel import solving
from costmodel.hardware.calibration import OPERATORS
from tests.strategies import calibration_of, examples

FITTED = calibration_of(
    {name: {"form": form, "parameters": {}} for name, form in OPERATORS.items()}
    | {
        "gemm": {
            "form": "smooth_roofline",
            "parameters": {
                "compute_efficiency": {"value": 0.8},
                "bandwidth_efficiency": {"value": 0.9},
                "launch_s": {"value": 4e-6},
                "sharpness": {"value": 3.0},
            },
        },
        "overhead.graph": {
            "form": "overhead",
            "parameters": {"per_step_s": {"value": 3e-4}, "graph_multiple": {"value": 8}},
        },
        "overhead.eager": {"form": "overhead", "parameters": {"per_step_s": {"value": 1e-3}}},
    }
)
MODELS = ("Llama-3.1-8B", "Llama-3.2-1B", "gemma-3-12b-it", "gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V2-Lite")
QUESTIONS = (
    ("prompt", "spike_s"),
    ("prompt", "ratio"),
    ("streams", "decode_s"),
    ("streams", "spike_s"),
    ("context", "decode_s"),
    ("context", "spike_s"),
)
RUNGS = ("textbook", "roofline", "calibrated")
FIELDS = {"spike_s": "spike_s", "decode_s": "decode_step_s", "ratio": "spike_ratio"}
LEAST = {"prompt": 1, "streams": 1, "context": 0}
MOST = {"prompt": 100_000_000, "streams": 1_000_000, "context": 100_000_000}


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """A workload on one or several GPUs."""
    streams = draw(st.integers(1, 300))
    return {
        "model": draw(st.sampled_from(MODELS)),
        "gpu": "h100",
        "tp": draw(st.sampled_from([1, 2])),
        "prompt": draw(st.integers(1, 20_000)),
        "streams": streams,
        "context": draw(st.integers(0, 20_000)),
        "chunk": draw(st.none() | st.integers(streams + 8, 9000)),
        "prompts": draw(st.sampled_from([1, 1, 2, 3])),
        "calibration": FITTED,
    }


def quantity(configuration: dict[str, Any], rung: str, name: str) -> float:
    """Return the time or the ratio that a limit is put on, as ``predict`` gives it."""
    found: float = getattr(costmodel.predict(**configuration).rungs.get(rung), FIELDS[name])  # type: ignore[arg-type]
    return found


def check(question: tuple[str, str], rung: str, configuration: dict[str, Any], limit: float) -> costmodel.Solution:
    """Solve, and hold the answer against ``predict`` with the numbers that it returns."""
    unknown, name = question
    answer = costmodel.solve(unknown, rung=rung, **{name: limit}, **configuration)  # type: ignore[arg-type]

    def at(value: int) -> float:
        return quantity({**configuration, unknown: value}, rung, name)

    assert (answer.unknown, answer.quantity, answer.limit, answer.rung) == (unknown, name, limit, rung)
    if answer.status == "none":
        assert answer.value is None
        assert answer.at_next == at(LEAST[unknown]) > limit
    elif answer.status == "unbounded":
        budget = configuration.get("chunk")
        assert answer.value == (budget - 1 if unknown == "streams" and budget else MOST[unknown])
        assert answer.at_value is not None
        assert answer.at_value <= limit
    else:
        assert answer.value is not None
        assert answer.at_value == at(answer.value) <= limit
        assert answer.at_next == at(answer.value + 1) > limit
    return answer


def possible(question: tuple[str, str], configuration: dict[str, Any]) -> bool:
    """Under a budget the spike falls with more streams, so that question is refused."""
    return not (question == ("streams", "spike_s") and configuration["chunk"] is not None)


@given(
    st.sampled_from(QUESTIONS), st.sampled_from(RUNGS), configurations(), st.sampled_from([0.3, 0.999, 1.0, 1.001, 4.0])
)
@examples(150)
def test_solve_inverts_predict(
    question: tuple[str, str], rung: str, configuration: dict[str, Any], factor: float
) -> None:
    """The limit is near what the configuration itself takes; at factor 1 it is exactly that."""
    if configuration["prompts"] > 1:
        configuration["chunk"] = None
    if possible(question, configuration):
        check(question, rung, configuration, factor * quantity(configuration, rung, question[1]))


@given(st.sampled_from(RUNGS), configurations(), st.integers(1, 5000))
@examples(60)
def test_a_limit_that_is_met_exactly_is_kept(rung: str, configuration: dict[str, Any], prompt: int) -> None:
    """With T(n) as the limit the answer is n itself."""
    configuration |= {"prompt": prompt, "prompts": 1}
    limit = quantity(configuration, rung, "spike_s")
    answer = check(("prompt", "spike_s"), rung, configuration, limit)
    assert answer.value is not None
    assert answer.value >= prompt
    if rung == "textbook" and configuration["chunk"] is None:
        assert answer.value == prompt


@given(configurations(), st.floats(1e-6, 1e4), st.sampled_from(["spike_s", "ratio"]))
@examples(100)
def test_the_closed_form_is_the_bisection(configuration: dict[str, Any], limit: float, name: str) -> None:
    configuration["chunk"] = None
    arguments: dict[str, Any] = {"rung": "textbook", name: limit, **configuration}
    closed = costmodel.solve("prompt", **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "_closed_form", lambda *_: None)
        assert costmodel.solve("prompt", **arguments) == closed


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("prompts", [2, 3])
def test_several_prompts_under_a_budget(rung: str, prompts: int) -> None:
    """``--prompts 2 --chunk 512`` has an answer as every single prompt has."""
    configuration = {
        "gpu": "h100",
        "prompts": prompts,
        "chunk": 512,
        "streams": 32,
        "context": 500,
        "calibration": FITTED,
    }
    limit = 1.2 * quantity({**configuration, "prompt": 8000}, rung, "spike_s")
    check(("prompt", "spike_s"), rung, configuration, limit)


@pytest.mark.parametrize("chunk", [None, 2048])
@pytest.mark.parametrize("rung", RUNGS)
def test_the_answer_is_the_largest(rung: str, chunk: int | None) -> None:
    """Against a search through every prompt."""
    configuration = {"model": "Llama-3.2-1B", "gpu": "h100", "chunk": chunk, "calibration": FITTED}
    limit = quantity({**configuration, "prompt": 700}, rung, "spike_s")
    answer = check(("prompt", "spike_s"), rung, configuration, limit)
    kept = [n for n in range(1, 1500) if quantity({**configuration, "prompt": n}, rung, "spike_s") <= limit]
    assert kept == list(range(1, kept[-1] + 1))
    assert answer.value == kept[-1]


def test_nothing_is_short_enough_and_everything_is() -> None:
    assert costmodel.solve("prompt", spike_s=1e-6).status == "none"
    assert costmodel.solve("prompt", spike_s=1e12).status == "unbounded"
    assert costmodel.solve("context", decode_s=1e12).value == MOST["context"]
    assert costmodel.solve("streams", decode_s=1e-9).at_next == costmodel.predict(streams=1).best.decode_step_s


def test_headline_rung_is_the_default() -> None:
    assert costmodel.solve(spike_s=0.05).rung == "calibrated"
    assert costmodel.solve(spike_s=0.05, gpu="mi300x").rung == "roofline"
    assert costmodel.solve(spike_s=0.05, calibration="none").rung == "roofline"
    assert costmodel.solve(spike_s=0.05, calibration=FITTED).rung == "calibrated"
