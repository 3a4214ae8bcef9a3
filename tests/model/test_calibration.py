"""Calibration files: a valid one loads, and every way to break it is one line that says what is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given

from costmodel.errors import InputError
from costmodel.hardware.calibration import DTYPE_SUFFIXED, FORMS, OPERATORS, OTHER_FORMS, Calibration, read_calibration
from costmodel.prediction import predict
from tests.strategies import calibrations, examples

VALID = """
schema = "costmodel.calibration/1"
name = "H100 SXM, vLLM"
gpu = "h100-sxm"
engine = "vllm"
notes = ["kernels only"]

[provenance]
data = "kernel timings"
rows = 5221
date = "2025-06-01"
command = "costmodel fit kernels.csv"
versions = { costmodel = "0.1.0" }

[operators."gemm.bf16"]
form = "smooth_roofline"
residuals = { level = 0.9, low = -0.1, high = 0.15 }
ranges = { tokens = [1, 16384], flops = [1e6, 1e15] }

[operators."gemm.bf16".parameters]
compute_efficiency = { value = 0.803, standard_error = 0.004, lower = 0.1, upper = 1.0 }
bandwidth_efficiency = { value = 0.857 }
launch_s = { value = 3.8e-6 }
sharpness = { value = 5.0 }

[operators."overhead.graph"]
form = "overhead"
parameters = { per_step_s = { value = 1e-4 }, graph_multiple = { value = 8 } }
"""


def write(folder: Path, text: str) -> Path:
    """Write a calibration file."""
    path = folder / "calibration.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_valid_file_loads(tmp_path: Path) -> None:
    calibration = read_calibration(write(tmp_path, VALID))
    assert (calibration.name, calibration.gpu, calibration.provenance.rows) == ("H100 SXM, vLLM", "h100-sxm", 5221)
    gemm = calibration.operators["gemm.bf16"]
    assert gemm.number("compute_efficiency") == 0.803
    assert gemm.parameters["compute_efficiency"].standard_error == 0.004
    assert gemm.ranges["tokens"] == (1, 16384)
    assert calibration.operators["overhead.graph"].number("graph_multiple") == 8
    # left out: the form's default
    assert calibration.operators["overhead.graph"].number("per_layer_s") == 0.0


def test_an_entry_of_a_dtype_goes_before_the_general_one(tmp_path: Path) -> None:
    general = VALID + '\n[operators.gemm]\nform = "smooth_roofline"\nparameters = {}\n'
    calibration = read_calibration(write(tmp_path, general))
    for dtype, key in (("bf16", "gemm.bf16"), ("fp8", "gemm"), (None, "gemm")):
        found = calibration.find("gemm", dtype)
        assert found is not None
        assert found[0] == key
    assert calibration.find("lm_head", "bf16") is None


def test_a_file_serves_a_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, VALID)
    prediction = predict(calibration=path)
    assert prediction.calibration == "H100 SXM, vLLM"
    assert prediction == predict(calibration=str(path)) == predict(calibration=read_calibration(path))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = write(tmp_path, VALID)
    before = predict(calibration=path).best.decode_step_s
    write(tmp_path, VALID.replace("value = 0.857", "value = 0.4"))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))
    assert predict(calibration=path).best.decode_step_s > before * 1.5


REPLACED = [
    ('"costmodel.calibration/1"', '"costmodel.calibration/2"', ("schema", "costmodel.calibration/1")),
    ('schema = "costmodel.calibration/1"\n', "", ("schema", "required")),
    ('name = "H100 SXM, vLLM"\n', "", ("name", "required")),
    ('gpu = "h100-sxm"\n', "", ("gpu", "required")),
    ('engine = "vllm"\n', "", ("engine", "required")),
    ('engine = "vllm"\n', 'engine = "vllm"\ncolour = "red"\n', ("colour", "not permitted")),
    ('engine = "vllm"\n', 'engine = "vlm"\n', ("unknown engine 'vlm'; did you mean vllm?", "sglang, trtllm")),
    ('"H100 SXM, vLLM"', '"H100\\u0007"', ("name 'H100\\x07' has characters that cannot be printed",)),
    ('gpu = "h100-sxm"', 'gpu = "h100\\n"', ("gpu 'h100\\n' has characters that cannot be printed",)),
    ('engine = "vllm"\n', 'engine = "vllm"\nnot = ["x"]\n', ("not: this key is not permitted; did you mean notes?", "keys: schema, name")),
    ("rows = 5221\n", "row = 1\nrows = 5221\n", ("provenance.row", "did you mean rows?", "keys: data, rows, date")),
    ("standard_error = 0.004", "standart_error = 0.004", ("standart_error", "did you mean standard_error?")),
    ("low = -0.1,", "lo = -0.1, low = -0.1,", ("residuals.lo: this key is not permitted; did you mean low?", "keys: level, low, high")),
    ("rows = 5221", "rows = true", ("provenance.rows", "integer")),
    ("rows = 5221\n", "rows = 5221\nmood = 1\n", ("provenance.mood", "not permitted")),
    ("rows = 5221", "rows = 0", ("provenance.rows", "greater than or equal to 1")),
    ("rows = 5221\n", "", ("provenance.rows", "required")),
    ('data = "kernel timings"\n', "", ("provenance.data", "required")),
    ('data = "kernel timings"', 'data = ""', ("provenance.data",)),
    ('command = "costmodel fit kernels.csv"\n', "", ("provenance.command", "required")),
    ("2025-06-01", "June", ("provenance.date",)),
    ('[operators."gemm.bf16"]', '[operators."gemm.bf16"]\nspeed = 1', ("operators.gemm.bf16.speed", "not permitted")),
    ('form = "smooth_roofline"', 'form = "smooth_rooflin"', ("'smooth_rooflin' is unknown; did you mean smooth_roofline?",)),
    ('form = "smooth_roofline"', 'form = "cubic"', ("form 'cubic' is unknown", "smooth_roofline")),
    ('form = "smooth_roofline"', 'form = "link"', ("compute_efficiency", "link")),
    ('form = "smooth_roofline"\n', "", ("form", "required")),
    ('"gemm.bf16"', '"matmul.bf16"', ("operator 'matmul.bf16' is unknown", "known operators: gemm")),
    ('"overhead.graph"', '"overhead.grap"', ("'overhead.grap' is unknown; did you mean overhead.graph",)),
    ('"gemm.bf16"', '"gemm.bf16\\u0000"', ("operator 'gemm.bf16\\x00' has characters",)),
    ('"overhead.graph"', '"overhead"', ("operator 'overhead' is unknown", "overhead.graph")),
    ('"overhead.graph"', '"all_reduce.bf16"', ("operator 'all_reduce.bf16' is unknown",)),
    ('"overhead.graph"', '"all_reduce"', ("takes form 'link' or 'link_switch' or 'link_ring', not 'overhead'",)),
    ("value = 0.803", "value = 0", ("compute_efficiency = 0 is outside (0, 1]",)),
    ("value = 0.803", "value = 1.01", ("compute_efficiency = 1.01 is outside (0, 1]",)),
    ("value = 0.803", "value = -0.5", ("compute_efficiency = -0.5 is outside",)),
    ("value = 0.857", "value = 1.0000001", ("bandwidth_efficiency", "outside (0, 1]")),
    ("value = 0.803", "value = nan", ("compute_efficiency", "finite number")),
    ("value = 3.8e-6", "value = inf", ("launch_s", "finite number")),
    ("value = 3.8e-6", "value = -1e-6", ("launch_s = -1e-06 is outside [0, 1]",)),
    ("value = 5.0", "value = 0.5", ("sharpness = 0.5 is outside [1, inf]",)),
    ("value = 8", "value = 0", ("graph_multiple = 0 is outside [1, 1024]",)),
    ("value = 5.0", 'value = "5.0"', ("sharpness.value", "valid number")),
    ("value = 5.0", "value = true", ("sharpness.value", "valid number")),
    ("tokens = [1, 16384]", 'tokens = ["1", 16384]', ("ranges.tokens.0", "valid number")),
    ("value = 5.0", 'value = "sharp"', ("sharpness", "number")),
    ("sharpness =", "bluntness =", ("no parameter 'bluntness'", "sharpness")),
    ("sharpness =", "sharpnes =", ("no parameter 'sharpnes'; did you mean sharpness?", "it has compute_efficiency")),
    ("standard_error = 0.004", "standard_error = -1", ("standard_error", "greater than or equal to 0")),
    ("low = -0.1, high = 0.15", "low = 0.2, high = 0.15", ("residuals", "low 0.2 is above high 0.15")),
    ("low = -0.1", "low = -1", ("residuals.low", "greater than -1")),
    ("low = -0.1", "low = nan", ("residuals.low", "finite number")),
    ("level = 0.9", "level = 1", ("residuals.level", "less than 1")),
    ("level = 0.9", "level = 90", ("residuals.level", "less than 1")),
    ("tokens = [1, 16384]", "tokens = [16384, 1]", ("range of tokens is empty",)),
    ("tokens = [1, 16384]", "words = [1, 16384]", ("ranges.words",)),
    ("tokens = [1, 16384]", "tokens = [1]", ("ranges.tokens",)),
    ('schema = "costmodel.calibration/1"', "schema = ", ("not valid TOML",)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "parts"), REPLACED)
def test_every_fault_is_one_line(old: str, new: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    assert old in VALID
    path = write(tmp_path, VALID.replace(old, new))
    with pytest.raises(InputError) as refused:
        read_calibration(path)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"calibration {path}: ")
    for part in parts:
        assert part in message


def test_a_calibration_without_operators_is_refused(tmp_path: Path) -> None:
    text = VALID[: VALID.index('[operators."gemm')] + "[operators]\n"
    with pytest.raises(InputError, match="operators"):
        read_calibration(write(tmp_path, text))


def test_a_calibration_without_provenance_is_refused(tmp_path: Path) -> None:
    start, end = VALID.index("[provenance]"), VALID.index('[operators."gemm')
    with pytest.raises(InputError, match=r"provenance: .*required"):
        read_calibration(write(tmp_path, VALID[:start] + VALID[end:]))


@pytest.mark.parametrize(
    ("kind", "part"), [("missing", "no such file"), ("folder", "is a directory"), ("binary", "cannot be read")]
)
def test_files_that_are_none(kind: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=part) as refused:
        read_calibration(path)
    assert str(path) in str(refused.value)


# --- forms and operators ------------------------------------------------------------------------------------------------


def test_every_operator_has_a_form_and_every_default_is_allowed() -> None:
    assert set(OPERATORS.values()) | {form for forms in OTHER_FORMS.values() for form in forms} == set(FORMS)
    assert set(OTHER_FORMS) <= set(OPERATORS)
    assert set(DTYPE_SUFFIXED) <= set(OPERATORS)
    for parameters in FORMS.values():
        for name, (default, low, high) in parameters.items():
            assert low <= default <= high, name


def test_defaults_lose_nothing() -> None:
    # The defaults of every plain form are the roofline: efficiencies one, no time added, a sharp corner.
    for form in OPERATORS.values():
        parameters = FORMS[form]
        for name, (default, _, _) in parameters.items():
            neutral = 1.0 if name.endswith(("efficiency", "imbalance", "multiple")) else 0.0
            assert default == (math.inf if name == "sharpness" else neutral)


@examples(50)
@given(calibrations())
def test_calibrations_survive_json(calibration: Calibration) -> None:
    assert Calibration.model_validate_json(calibration.model_dump_json(by_alias=True)) == calibration
