"""The Python and JavaScript that ``costmodel formula`` exports give what ``predict`` gives, for every workload."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from py_mini_racer import MiniRacer

import costmodel
from costmodel.documents import RungName
from costmodel.symbolic.export import to_javascript, to_python
from tests.cli.runner import document, printed
from tests.cli.samples import MODELS, ROUNDING, Case, Made

CASES = (
    *(Case(model, rung) for model in MODELS for rung in ("textbook", "roofline", "calibrated")),
    *(Case(model, "textbook", chunk=2048) for model in MODELS),
    *(Case("Llama-3.1-8B", rung, chunk=3500) for rung in ("textbook", "roofline", "calibrated")),
    *(
        Case("Llama-3.1-8B", rung, name)
        for rung in ("textbook", "roofline", "calibrated")
        for name in ("decode", "prefill")
    ),
    Case("Llama-3.1-8B", "calibrated", chunk=512),
    Case("gpt-oss-20b", "calibrated", "decode"),
    Case("DeepSeek-V2-Lite", "roofline", "decode"),
    Case("Qwen3-30B-A3B", "calibrated", "spike", tp=2, ep=4),
    Case("Llama-3.1-8B", "calibrated", "decode", tp=4),
    Case("gemma-3-12b-it", "roofline", chunk=2048),
    Case("Llama-3.1-8B", "roofline", chunk=100_000),
)


def predicted(case: Case, calibration: costmodel.Calibration, **changed: Any) -> float:
    """Return the same time as ``predict`` gives it."""
    arguments = {"model": case.model, "chunk": case.chunk, "tp": case.tp, "ep": case.ep, "calibration": calibration}
    rung = costmodel.predict(**{**arguments, **changed}).rungs.get(case.rung)
    return {"decode": rung.decode_step_s, "prefill": rung.prefill_s, "spike": rung.spike_s}[case.name]


def python_function(code: str) -> Callable[..., float]:
    """Execute exported Python, which imports nothing but math, and return its function."""
    space: dict[str, Any] = {}
    exec(code, space)  # the export is what is tested
    [function] = [value for name, value in space.items() if name.endswith("_s")]
    imports = re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)
    assert imports == (["math"] if "math." in code.replace("import math", "") else [])
    return function  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def javascript() -> Callable[..., float]:
    """Evaluate exported JavaScript with some arguments changed."""
    racer = MiniRacer()

    def evaluate(code: str, **changed: float) -> float:
        [name] = re.findall(r"^function (\w+_s)\(", code, re.MULTILINE)
        call = f"{name}({json.dumps(changed)})" if changed else f"{name}()"
        return float(racer.eval(f"(() => {{ {code}\nreturn {call}; }})()"))

    return evaluate


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exports_give_what_predict_gives(
    case: Case, calibration: costmodel.Calibration, javascript: Callable[..., float], made_formula: Made
) -> None:
    made = made_formula(case)
    expected = predicted(case, calibration)
    python, code = to_python(made), to_javascript(made)
    function = python_function(python)
    assert made.evaluate() == pytest.approx(expected, rel=ROUNDING)
    assert function() == pytest.approx(expected, rel=ROUNDING)
    assert javascript(code) == pytest.approx(expected, rel=ROUNDING)


CHANGES: tuple[tuple[dict[str, int], dict[str, int]], ...] = (
    ({"n": 1}, {"prompt": 1}),
    ({"n": 517, "D": 1, "c": 0}, {"prompt": 517, "streams": 1, "context": 0}),
    ({"n": 30_000, "D": 200, "c": 9000}, {"prompt": 30_000, "streams": 200, "context": 9000}),
)


@pytest.mark.parametrize("case", [case for case in CASES if case.chunk is None], ids=str)
def test_exports_follow_other_workloads(
    case: Case, calibration: costmodel.Calibration, javascript: Callable[..., float], made_formula: Made
) -> None:
    made = made_formula(case)
    names = {str(item) for item in made.arguments}
    function, code = python_function(to_python(made)), to_javascript(made)
    for symbols, arguments in CHANGES:
        given = {name: value for name, value in symbols.items() if name in names}
        expected = predicted(case, calibration, **arguments)
        assert function(**given) == pytest.approx(expected, rel=ROUNDING)
        assert javascript(code, **given) == pytest.approx(expected, rel=ROUNDING)
        assert made.evaluate(**given) == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("prompt", [8000, 2016, 6047, 100])
def test_a_chunked_spike_follows_the_prompt(rung: RungName, prompt: int, calibration: costmodel.Calibration) -> None:
    deployment = costmodel.deploy()
    made = costmodel.formula(deployment, "spike", rung, prompt=prompt, chunk=2048, calibration=calibration)
    expected = predicted(Case("Llama-3.1-8B", rung, chunk=2048), calibration, prompt=prompt)
    assert made.evaluate() == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("model", MODELS)
def test_a_chunked_spike_is_right_for_every_workload(
    model: str,
    rung: RungName,
    calibration: costmodel.Calibration,
    javascript: Callable[..., float],
    made_formula: Made,
) -> None:
    """One export follows prompts below, at and above the room, and other budgets and streams."""
    case = Case(model, rung, chunk=2048)
    made = made_formula(case)
    assert len(made.cases) == 2
    function, code = python_function(to_python(made)), to_javascript(made)
    names = {str(item) for item in made.arguments}
    for prompt, budget, streams, context in WORKLOADS:
        given = {"n": prompt, "m": budget, "D": streams, "c": context}
        given = {name: value for name, value in given.items() if name in names}
        expected = predicted(case, calibration, prompt=prompt, chunk=budget, streams=streams, context=context)
        assert function(**given) == pytest.approx(expected, rel=ROUNDING)
        assert javascript(code, **given) == pytest.approx(expected, rel=ROUNDING)


WORKLOADS = (
    *((prompt, 2048, 32, 500) for prompt in (1, 100, 2015, 2016, 2017, 4031, 4032, 4033, 6047, 8000)),
    (8000, 33, 32, 500),
    (100, 512, 100, 0),
    (412, 512, 100, 3000),
    (413, 512, 100, 3000),
    (30_000, 4096, 1, 9000),
    (30_000, 16_384, 200, 9000),
    (30_000, 100_000, 200, 9000),
)
"""Prompt, token budget, streams and context: the room of the budget is what the streams leave of it."""


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b"])
def test_the_mixed_step_is_that_of_step_times(
    model: str, calibration: costmodel.Calibration, javascript: Callable[..., float]
) -> None:
    for rung in ("roofline", "calibrated"):
        made = costmodel.formula(costmodel.deploy(model), "mixed", rung, chunk=1024, calibration=calibration)
        for q, s, decoding, context in ((992, 0, 32, 500), (7, 4096, 1, 0), (2000, 100, 64, 3000)):
            step = costmodel.step_times(
                "h100", model, prefill_tokens=q, prefill_cached=s, decodes=decoding, decode_context=context,
                rung=rung, calibration=calibration,
            )  # fmt: skip
            given = {"q": q, "s": s, "D": decoding, "c": context}
            assert python_function(to_python(made))(**given) == pytest.approx(step.total, rel=ROUNDING)
            assert javascript(to_javascript(made), **given) == pytest.approx(step.total, rel=ROUNDING)


def test_the_command_prints_the_exports(javascript: Callable[..., float]) -> None:
    found = document("formula --json --prompt 4000")
    assert found["schema"] == "costmodel.formula/1"
    assert printed("formula --python --prompt 4000") == found["python"]
    assert printed("formula --js --prompt 4000") == found["javascript"]
    expected = costmodel.predict(4000).rungs.roofline.spike_s
    assert found["value_s"] == pytest.approx(expected, rel=ROUNDING)
    assert python_function(found["python"])() == pytest.approx(expected, rel=ROUNDING)
    assert javascript(found["javascript"]) == pytest.approx(expected, rel=ROUNDING)
    assert {item["name"]: item["value"] for item in found["symbols"]}["n"] == 4000
    assert [term["name"] for term in found["terms"]] == [
        item.name for item in costmodel.predict().rungs.roofline.operators
    ]


@pytest.mark.parametrize(
    "options",
    [
        "decode --gpu h200 --kv-dtype fp8",
        "spike --gpu h100 --dtype fp8-block",
        "mixed --gpu h200 --kv-dtype fp8 --model gpt-oss-120b",
        "spike --gpu b200 --model DeepSeek-V3 --tp 8",
        "prefill --gpu a100 --dtype int4",
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_exports_of_stored_formats_and_caches_are_code(
    options: str, engine: str, javascript: Callable[..., float]
) -> None:
    """Keys of a calibration have hyphens and dots: kv-fp8.d64, fp8-block."""
    found = document(f"formula {options} --rung calibrated --engine {engine} --json")
    assert python_function(found["python"])() == pytest.approx(found["value_s"], rel=ROUNDING)
    assert javascript(found["javascript"]) == pytest.approx(found["value_s"], rel=ROUNDING)


@pytest.mark.parametrize("options", ["decode --rung textbook", "spike", "spike --chunk 2048"])
def test_exports_say_what_their_arguments_are(options: str) -> None:
    symbols = {item["name"]: item for item in document(f"formula {options} --json")["symbols"]}
    name = options.partition(" ")[0]
    python = printed(f"formula {options} --python")
    assert python.startswith("import math\n\n\n" if "--chunk" in options else f"def {name}_s(")
    rung = "textbook" if "textbook" in options else "roofline"
    about = [f"{name} [s] of Llama-3.1-8B on 1 × NVIDIA H100 SXM5 80GB, {rung} rung."]
    lines = [f"{key}: {item['meaning']} [{item['unit']}]" for key, item in symbols.items()]
    function = python_function(python)
    assert inspect.cleandoc(function.__doc__ or "").splitlines() == [*about, "", *lines]
    assert list(inspect.signature(function).parameters) == list(symbols)
    comments = [line for line in printed(f"formula {options} --js").splitlines() if line.startswith("//")]
    assert comments == [f"// {line}" for line in (*about, *lines)]
