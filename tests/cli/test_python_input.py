"""The same mistakes in a script: one of the package's own errors, never one that escaped from inside, or a sound result."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from tests.strategies import examples


class Hostile:
    """An object that answers no question."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Indexed:
    """Something that counts as an integer."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


ODD_NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 33, 2**31, 2**63, 10**30, -(10**30), 10**5000),
    *(0.0, -0.0, 1.0, 0.5, 1.5, 1e-320, 1e300, -1e300, math.nan, math.inf, -math.inf),
    *(True, False, Decimal("8000"), Decimal("0.5"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")),
    *(Fraction(8000), Fraction(1, 3), 1j, 8000 + 0j),
    *(np.int8(-1), np.int32(7), np.int64(8000), np.uint8(200), np.float32(64.0), np.float64(8000.0), np.float16("inf")),
    *(np.float64("nan"), np.bool_(True), np.longdouble(3), np.datetime64("2025-01-31")),
)
ODD_TEXTS = (
    "",
    " ",
    "8000",
    "1.5",
    "nan",
    "h100",
    "engine",
    "bf16",
    "fp8",
    "H100\n",
    "\0",
    "\ud800",
    "é" * 300,
    "~",
    "/",
    "..",
    "a/b",
)
ODD_OBJECTS: tuple[Any, ...] = (
    *(
        None,
        b"h100",
        b"\xff",
        bytearray(b"8"),
        [],
        [8000],
        (8000,),
        {},
        {"prompt": 1},
        {1},
        range(3),
        object(),
        Hostile(),
    ),
    *(Indexed(8000), Indexed(-1), int, len, ..., Path(), Path("h100"), memoryview(b"1"), iter([])),
    *(np.array(8000), np.array([8000]), np.array([1, 2]), np.array([]), np.array("h100"), np.array([None])),
)
ODD = (
    st.sampled_from([*ODD_NUMBERS, *ODD_TEXTS, *ODD_OBJECTS])
    | st.text(max_size=20)
    | st.floats()
    | st.integers(-10, 5000)
)

DEPLOYMENT = ("model", "gpu", "tp", "pp", "ep", "dtype", "kv_dtype", "compute_dtype")
PREDICT = (*DEPLOYMENT, "prompt", "streams", "context", "chunk", "every", "prompts", "params", "engine", "calibration")
SOLVE = ("unknown", "spike_s", "decode_s", "ratio", "rung", *(name for name in PREDICT if name != "every"))
STEPS = (*DEPLOYMENT, "prefill_tokens", "prefill_cached", "decodes", "decode_context", "rung", "engine", "calibration")
LOOP = (
    *(name for name in DEPLOYMENT if name != "pp"),
    *("clients", "prompt", "output", "budget", "prompts_per_client", "engine", "calibration"),
)
FORMULA = ("name", "rung", "prompt", "streams", "context", "chunk", "params", "engine", "calibration")


def odd_arguments(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A few odd arguments that come together."""
    return st.dictionaries(st.sampled_from(names), ODD, min_size=1, max_size=3)


def outcome(function: Callable[[], Any]) -> Any:
    """Return the result, or None where one of the package's own errors says in one line what is wrong."""
    try:
        return function()
    except costmodel.CostModelError as error:
        text = str(error)
        assert text
        assert "\n" not in text.strip()
        assert len(text) < 1000
        return None


def assert_finite(value: Any) -> None:
    """Every number of a document is finite."""
    if isinstance(value, dict):
        for item in value.values():
            assert_finite(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            assert_finite(item)
    elif isinstance(value, float):
        assert math.isfinite(value)


def call_predict(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    answer = outcome(lambda: costmodel.predict(**arguments))
    if answer is not None:
        assert_finite(answer.model_dump(by_alias=True))
        assert answer.rungs.roofline.decode_step_s > 0
        assert answer.model_validate_json(answer.model_dump_json(by_alias=True)) == answer


def call_deploy(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    made = outcome(lambda: costmodel.deploy(**arguments))
    assert made is None or made.gpus >= 1


def call_solve(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    answer = outcome(lambda: costmodel.solve(**arguments))
    if answer is not None:
        assert_finite(answer.model_dump(by_alias=True))
        assert answer.status in ("found", "none", "unbounded")


def call_step_times(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    times = outcome(lambda: costmodel.step_times(**arguments))
    if times is not None:
        assert np.all(np.isfinite(times.total))
        assert np.all(np.greater(times.total, 0))


def call_formula(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    made = outcome(lambda: costmodel.formula(costmodel.deploy(), **arguments))
    if made is not None:
        value = made.evaluate()
        assert math.isfinite(value)
        assert value > 0


def call_closed_loop(**arguments: Any) -> None:
    """Call it, and check what it returns."""
    answer = outcome(lambda: costmodel.closed_loop(**arguments))
    if answer is not None:
        assert_finite(answer.model_dump(by_alias=True))
        assert answer.tpot_s > 0


CALLS: dict[str, tuple[Callable[..., None], tuple[str, ...], dict[str, Any]]] = {
    "predict": (call_predict, PREDICT, {}),
    "deploy": (call_deploy, DEPLOYMENT, {}),
    "solve": (call_solve, SOLVE, {"spike_s": 0.05}),
    "step_times": (call_step_times, STEPS, {"prefill_tokens": 512}),
    "formula": (call_formula, FORMULA, {"name": "spike", "rung": "textbook"}),
    "closed_loop": (call_closed_loop, LOOP, {"clients": 4}),
}
"""Function → how to call it, its arguments, and those that it needs."""


@pytest.mark.parametrize(
    ("function", "argument"), [(name, argument) for name, (_, names, _) in CALLS.items() for argument in names]
)
def test_one_odd_argument(function: str, argument: str) -> None:
    """Every odd value in the place of every argument."""
    call, _, needed = CALLS[function]
    escaped = {}
    for index, value in enumerate((*ODD_NUMBERS, *ODD_TEXTS, *ODD_OBJECTS)):
        try:
            call(**{**needed, argument: value})
        except Exception as error:
            escaped[index, type(value).__name__] = f"{type(error).__name__}: {error}"
    assert not escaped


@given(st.data(), st.sampled_from(list(CALLS)))
@examples(500)
def test_odd_arguments_together(data: st.DataObject, function: str) -> None:
    call, names, needed = CALLS[function]
    call(**{**needed, **data.draw(odd_arguments(names))})


@given(ODD)
@examples(150)
def test_names_of_parts_and_models(name: Any) -> None:
    for load in (costmodel.load_gpu, costmodel.load_model):
        outcome(lambda load=load: load(name))  # type: ignore[misc]


MISTAKES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"gpu": "h10O"}, "did you mean h100"),
    ({"model": "Llama-3.1-8C"}, "did you mean Llama-3.1-8B"),
    ({"gpu": ""}, "GPU name is empty"),
    ({"model": ""}, "model name is empty"),
    ({"prompt": 0}, "prompt must be at least 1"),
    ({"prompt": 1.5}, "prompt must be a whole number"),
    ({"prompt": "8000"}, "prompt must be a whole number"),
    ({"prompt": math.nan}, "prompt must be a whole number"),
    ({"prompt": math.inf}, "prompt must be a whole number"),
    ({"prompt": True}, "prompt must be a whole number"),
    ({"prompt": 10**5000}, "prompt must be at most"),
    ({"streams": -1}, "streams must be at least 1"),
    ({"context": None}, "context must be a whole number"),
    ({"every": math.nan}, "every must be a finite number"),
    ({"every": "soon"}, "every must be a number"),
    ({"params": 0}, "params must be a finite number above zero"),
    ({"chunk": 32}, "use at least 33"),
    ({"chunk": "engin"}, "'engine'"),
    ({"prompts": 0}, "prompts must be at least 1"),
    ({"tp": 3}, "possible: 1, 2, 4, 8, 16, 32"),
    ({"tp": 0}, "tp must be at least 1"),
    ({"tp": [2]}, "tp must be a whole number"),
    ({"dtype": "bf61"}, "did you mean bf16"),
    ({"gpu": "t4", "dtype": "bf16"}, "use fp16"),
    ({"gpu": "a100", "compute_dtype": "fp8"}, "cannot compute in 'fp8'"),
    ({"calibration": "missing.toml"}, "no such file"),
    ({"engine": "vlm"}, "did you mean vllm"),
    ({"engine": "tgi"}, "vllm, sglang, trtllm"),
)


@pytest.mark.parametrize(
    ("arguments", "fragment"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_mistakes_name_input_and_way_out(arguments: dict[str, Any], fragment: str) -> None:
    with pytest.raises(costmodel.InputError) as error:
        costmodel.predict(**arguments)
    assert fragment in str(error.value)
    assert error.value.exit_code == 2


OTHER_MISTAKES: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: costmodel.solve("promt", spike_s=0.05), "did you mean prompt"),
    (lambda: costmodel.solve("prompt"), "exactly one limit"),
    (lambda: costmodel.solve(spike_s=0.05, ratio=3), "exactly one limit"),
    (lambda: costmodel.solve(spike_s=math.nan), "spike_s must be a finite number"),
    (lambda: costmodel.solve(spike_s=0.05, rung="roofine"), "roofline"),  # type: ignore[arg-type]
    (lambda: costmodel.solve(spike_s=0.05, rung="calibrated", calibration="none"), "no calibration of h100-sxm"),
    (lambda: costmodel.step_times(decodes=1, rung="roofine"), "roofline"),  # type: ignore[arg-type]
    (lambda: costmodel.formula(costmodel.deploy(), "spik"), "known: decode, prefill, mixed, spike"),  # type: ignore[arg-type]
    (lambda: costmodel.formula(costmodel.deploy(), "spike", "roofine"), "roofline"),  # type: ignore[arg-type]
    (lambda: costmodel.solve(spike_s=0.05, engine="vlm"), "did you mean vllm"),
    (lambda: costmodel.step_times(decodes=1, engine="vlm"), "did you mean vllm"),
    (lambda: costmodel.step_times(decodes=1, rung="calibrated", calibration="none"), "no calibration of h100-sxm"),
    (lambda: costmodel.formula(costmodel.deploy(), "spike", "calibrated", engine="vlm"), "did you mean vllm"),
    (lambda: costmodel.formula(costmodel.deploy(gpu="mi300x"), "spike", "calibrated"), "no calibration of mi300x"),
    (
        lambda: costmodel.formula(costmodel.deploy(), "spike", "calibrated", calibration="none"),
        "no calibration of h100-sxm",
    ),
    (lambda: costmodel.formula(costmodel.deploy(), "spike", chunk=32), "at least 33"),
    (lambda: costmodel.formula(costmodel.deploy(), "spike", prompt=0), "prompt must be at least 1"),
    (lambda: costmodel.formula(costmodel.deploy(), "spike", "textbook", params=-1), "params must be"),
    (lambda: costmodel.formula("Llama-3.1-8B", "spike"), "deploy"),  # type: ignore[arg-type]
    (lambda: costmodel.formula(costmodel.deploy(), "spike", "calibrated", calibration="fits.toml"), "alibration"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("call", "fragment"), OTHER_MISTAKES)
def test_other_functions_name_input_and_way_out(call: Callable[[], Any], fragment: str) -> None:
    with pytest.raises(costmodel.InputError) as error:
        call()
    assert fragment in str(error.value)


@pytest.mark.parametrize("size", ["tp", "pp", "ep"])
@pytest.mark.parametrize("value", [1.5, True])
def test_what_was_asked_before_does_not_matter(size: str, value: Any) -> None:
    """True equals 1, but is no size, whether or not an answer for 1 is remembered."""
    costmodel.deploy(**{size: 1})
    with pytest.raises(costmodel.InputError):
        costmodel.deploy(**{size: value})


@pytest.mark.parametrize("prompts", ["10", Decimal(10), Fraction(10), np.int64(10)])
def test_prompts_per_client_are_a_number(prompts: Any) -> None:
    assert costmodel.closed_loop(4, prompts_per_client=prompts) == costmodel.closed_loop(4, prompts_per_client=10)


@pytest.mark.parametrize(
    "value", [np.arange(4000.0).reshape(2, -1), "line\nbreak " * 500, "x" * 9000, {"a": ["b\n" * 50] * 50}]
)
@pytest.mark.parametrize("argument", ["prompt", "gpu", "model", "chunk", "dtype", "calibration", "engine", "every"])
def test_messages_are_one_line_of_a_readable_length(argument: str, value: Any) -> None:
    with pytest.raises(costmodel.InputError) as error:
        costmodel.predict(**{argument: value})
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 1100


def test_numbers_of_numpy_are_numbers() -> None:
    plain = costmodel.predict(8000, streams=32, chunk=2048, every=10.0)
    typed = costmodel.predict(np.int32(8000), streams=np.int64(32), chunk=np.uint16(2048), every=np.float32(10))  # type: ignore[arg-type]
    assert typed == plain
    assert costmodel.predict(8000.0) == costmodel.predict(8000)  # type: ignore[arg-type]


def test_no_calibration_is_asked_for_by_name() -> None:
    """``calibration="none"`` means the roofline everywhere; what is shipped is the default."""
    assert costmodel.predict().headline == "calibrated"
    plain = costmodel.predict(calibration="none")
    assert (plain.headline, plain.calibration, plain.intervals) == ("roofline", None, None)
    assert plain.rungs.calibrated is None
    assert plain.best == costmodel.predict().rungs.roofline
    assert costmodel.solve(spike_s=0.05, calibration="none").rung == "roofline"
    roofline = costmodel.step_times(decodes=32, decode_context=500, calibration="none").total
    assert roofline == pytest.approx(plain.best.decode_step_s, rel=1e-12)
    formula = costmodel.formula(costmodel.deploy(), "decode", "roofline", calibration="none")
    assert formula.evaluate() == pytest.approx(plain.best.decode_step_s, rel=1e-12)
