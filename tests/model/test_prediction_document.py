"""The document of ``predict``: its keys and values, JSON and back; and the questions that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from costmodel.documents import Operator, Prediction, Predictions
from costmodel.errors import InputError
from costmodel.prediction import predict
from tests.model.samples import CALIBRATION
from tests.strategies import calibration_of

# --- the document -----------------------------------------------------------------------------------------------------

KEYS: dict[str, set[str]] = {
    "": {"schema", "model", "gpu", "workload", "headline", "rungs", "spike", "warnings"},
    "model": {"name", "total_parameters", "active_parameters", "kv_bytes_per_token"},
    "gpu": {"name", "count"},
    "workload": {
        "prompt_tokens", "streams", "context_tokens", "chunk_tokens", "dtype", "kv_dtype", "tensor_parallel"
    },
    "rungs": {"textbook", "roofline"},
    "rungs.roofline": {
        "decode_step_s", "prefill_s", "prefill_linear_s", "prefill_attention_s", "spike_s", "spike_ratio", "operators"
    },
    "spike": {"chunks", "height_s", "duration_s", "fraction_of_gaps", "overload", "moves"},
    "spike.moves": {"p50", "p99", "p99.9", "max"},
}  # fmt: skip
"""Keys that scripts rely on: none may be renamed, others may be added."""


def at(document: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path ("" for the document)."""
    for part in filter(None, path.split(".")):
        document = document[part]
    return document


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return the document as a script reads it."""
    found: dict[str, Any] = json.loads(prediction.model_dump_json(by_alias=True))
    return found


@pytest.mark.parametrize("path", KEYS)
def test_documented_keys_are_there(lesson: Prediction, path: str) -> None:
    assert at(as_json(lesson), path).keys() >= KEYS[path]


def test_values_of_the_document(lesson: Prediction) -> None:
    document = as_json(lesson)
    assert document["schema"] == "costmodel.prediction/1"
    assert document["model"]["total_parameters"] == 8_030_261_248
    assert document["model"]["kv_bytes_per_token"] == 131_072
    assert document["gpu"] == {"name": "NVIDIA H100 SXM5 80GB", "profile": "h100-sxm", "count": 1}
    assert document["workload"]["chunk_tokens"] is None
    assert set(document["spike"]["moves"]) == {"p50", "p99", "p99.9", "max"}
    for rung in document["rungs"].values():
        for operator in rung["operators"]:
            assert operator.keys() == {"name", "flops", "bytes", "time_s", "bound"}
            assert operator["bound"] in ("compute", "memory", "link", "latency")
    assert isinstance(document["warnings"], list)
    assert all("\n" not in text for text in document["warnings"])


def test_without_calibration_its_keys_are_absent(lesson: Prediction) -> None:
    document = as_json(lesson)
    assert document["rungs"].keys() == {"textbook", "roofline"}
    assert not document.keys() & {"calibration", "intervals", "pipeline"}
    assert any("no calibration" in text for text in document["warnings"])


def test_with_a_calibration_its_keys_are_there() -> None:
    document = as_json(predict(calibration=CALIBRATION))
    assert document["headline"] == "calibrated"
    assert document["rungs"].keys() == {"textbook", "roofline", "calibrated"}
    assert "intervals" not in document  # prefill attention has no residuals
    assert document["calibration"] == "synthetic"
    assert not any("no calibration" in text for text in document["warnings"])
    # prefill attention is not in this calibration: said, and taken at the datasheet's rate
    assert any("prefill_attention" in text for text in document["warnings"])
    residuals = {"level": 0.8, "low": -0.1, "high": 0.1}
    kernel = {"form": "smooth_roofline", "parameters": {}, "residuals": residuals}
    known = calibration_of(dict.fromkeys(("gemm", "prefill_attention", "decode_attention"), kernel))
    intervals = as_json(predict(calibration=known))["intervals"]
    assert intervals.keys() == {"level", "decode_step_s", "prefill_s", "spike_s"}


@pytest.mark.parametrize(
    "options", [{}, {"chunk": 2048}, {"calibration": CALIBRATION}, {"pp": 2, "tp": 2}, {"calibration": "none"}]
)
def test_documents_survive_json(options: dict[str, Any]) -> None:
    prediction = predict(**options)
    text = prediction.model_dump_json(by_alias=True)
    again = Prediction.model_validate_json(text)
    assert again == prediction
    assert again.model_dump_json(by_alias=True) == text
    assert json.loads(text) == json.loads(json.dumps(prediction.model_dump(by_alias=True, mode="json")))
    both = Predictions(predictions=(prediction, prediction))
    assert Predictions.model_validate_json(both.model_dump_json(by_alias=True)) == both
    assert json.loads(both.model_dump_json(by_alias=True))["schema"] == "costmodel.predictions/1"


def test_documents_are_frozen(lesson: Prediction) -> None:
    for document, name in ((lesson, "headline"), (lesson.rungs.roofline, "spike_s"), (lesson.model, "name")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(document, name, 0)
    with pytest.raises(ValidationError, match="extra"):
        Operator(name="x", flops=0.0, bytes=0.0, time_s=0.0, bound="compute", more=1)  # type: ignore[call-arg]


def test_the_same_question_has_the_same_answer(lesson: Prediction) -> None:
    assert predict(params=8e9, calibration="none") == lesson
    assert predict() == predict()


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"prompt": 0}, "prompt must be at least 1"),
        ({"prompt": -5}, "prompt must be at least 1"),
        ({"prompt": 1.5}, "prompt must be a whole number"),
        ({"prompt": float("nan")}, "prompt must be a whole number"),
        ({"prompt": float("inf")}, "prompt must be"),
        ({"prompt": "many"}, "prompt must be a whole number"),
        ({"prompt": True}, "prompt must be a whole number"),
        ({"prompt": 10**12}, "prompt must be at most"),
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"streams": 0}, "streams must be at least 1"),
        ({"context": -1}, "context must be at least 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"chunk": "small"}, "chunk"),
        ({"every": 0}, "every must be"),
        ({"every": float("nan")}, "every must be"),
        ({"every": "often"}, "every must be a number"),
        ({"params": -1.0}, "params must be"),
        ({"gpu": "h1000"}, "did you mean"),
        ({"model": "Llama-3.1-8C"}, "did you mean"),
        ({"dtype": "bf17"}, "dtype"),
        ({"kv_dtype": "fp9"}, "KV-cache dtype"),
        ({"compute_dtype": "fp4"}, "cannot compute in"),
        ({"tp": 3}, "tp 3 does not divide"),
        ({"tp": 0}, "tp must be at least 1"),
        ({"tp": [1]}, "tp must be a whole number"),
        ({"pp": 33}, "pp 33 is more than the 32 layers"),
        ({"ep": 2}, "ep 2 needs a mixture of experts"),
        ({"ep": 3, "model": "Mixtral-8x7B-v0.1"}, "ep 3 does not divide the 8 experts"),
        ({"ep": 2, "tp": 4, "model": "Mixtral-8x7B-v0.1"}, "multiple of tp 4"),
        ({"calibration": "nowhere.toml"}, "no such file"),
    ],
)
def test_impossible_questions_are_refused_in_one_line(options: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError) as refused:
        predict(**options)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_calibration_of_another_part_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        predict(gpu="a100", calibration=CALIBRATION)
    for part in ("h100-sxm", "a100-80gb-sxm", "--gpu h100-sxm"):
        assert part in str(refused.value)
