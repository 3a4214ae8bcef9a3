"""``costmodel predict``: its document is that of the Python API; help, version and the installed command."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.cli.main import COMMANDS, main
from tests.cli.runner import SCRIPT, document, parse, printed, run, script
from tests.cli.samples import CALIBRATION

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("--prompt 4000 --params 8e9", {"prompt": 4000, "params": 8e9}),
    ("--prompt chat --chunk engine", {"prompt": 1730, "chunk": "engine"}),
    (
        "--prompt 20000 --chunk 2048 --every 1 --prompts 2",
        {"prompt": 20_000, "chunk": 2048, "every": 1.0, "prompts": 2},
    ),
    ("--streams 7 --context 0 --gpu a100", {"streams": 7, "context": 0, "gpu": "a100"}),
    ("--gpu t4", {"gpu": "t4"}),
    ("--engine sglang", {"engine": "sglang"}),
    ("--calibration none", {"calibration": "none"}),
    ("--gpu l4 --assume-efficiency", {"gpu": "l4", "assume_efficiency": True}),
    ("--dtype fp8 --kv-dtype fp8 --compute-dtype bf16", {"dtype": "fp8", "kv_dtype": "fp8", "compute_dtype": "bf16"}),
    ("--model DeepSeek-V3 --gpu h200 --tp 8", {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8}),
    ("--model gpt-oss-20b --tp 2 --ep 4 --pp 3", {"model": "gpt-oss-20b", "tp": 2, "ep": 4, "pp": 3}),
)


def as_document(answer: costmodel.Prediction) -> Any:
    """The document of an answer as JSON has it."""
    return json.loads(json.dumps(answer.model_dump(by_alias=True)))


@pytest.mark.parametrize(("options", "arguments"), CALLS, ids=[options or "default" for options, _ in CALLS])
def test_the_document_is_that_of_the_api(options: str, arguments: dict[str, Any]) -> None:
    assert document(f"predict --json {options}") == as_document(costmodel.predict(**arguments))


def test_the_calibrated_document_is_that_of_the_api(calibration_file: Path, calibration: costmodel.Calibration) -> None:
    found = document(["predict", "--json", "--calibration", str(calibration_file)])
    assert found == as_document(costmodel.predict(calibration=calibration))
    assert found["headline"] == "calibrated"
    assert found["calibration"] == "synthetic"
    assert found["intervals"]["level"] == 0.8
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = found["intervals"][name]
        assert found["rungs"]["roofline"][name] <= low < found["rungs"]["calibrated"][name] < high
    outside = [text for text in found["warnings"] if text.startswith("outside the calibration")]
    layers = "fitted on 1 to 4,096 (qkv_proj, o_proj, gate_up_proj, down_proj)"
    assert outside == [  # one for each step and variable, not one for each operator
        f"outside the calibration: tokens = 8,000 in the prefill step, {layers}",
        f"outside the calibration: tokens = 8,032 in the spike step, {layers}",
    ]
    assert not any("not in the calibration" in text for text in found["warnings"])


def test_what_the_calibration_lacks_is_said(own_folder: Path) -> None:
    """Missing kernels run at datasheet rates; what only a calibration knows is left out. Neither leaves a certain answer."""
    lacking = re.sub(r"\[operators\.(elementwise|\"overhead\.\w+\"|prefill_attention)\]\n(?:.+\n)+", "", CALIBRATION)
    (own_folder / "lacking.toml").write_text(lacking, encoding="utf-8")
    found = document("predict --calibration lacking.toml --json")
    datasheet, left_out, *_ = found["warnings"]
    assert datasheet == "not in the calibration, taken at datasheet rates: prefill_attention.bf16"
    names = "elementwise, overhead.graph, overhead.eager"
    assert left_out == f"not in the calibration, left out, so that steps come out too short: {names}"
    assert "intervals" not in found  # prefill attention takes more than 2 % of the spike
    text = printed("predict --calibration lacking.toml")
    assert "intervals" not in text
    for warning in found["warnings"]:
        assert f"warning: {warning}" in text


def test_the_document_has_its_schema_and_no_nulls_but_the_chunk() -> None:
    found = document("predict --json")
    assert found["schema"] == "costmodel.prediction/1"
    assert found["workload"]["chunk_tokens"] is None
    assert "pipeline" not in found
    assert (found["headline"], found["calibration"]) == ("calibrated", "h100-sxm vllm")
    assert set(found["rungs"]) == {"textbook", "roofline", "calibrated"}
    plain = document("predict --calibration none --json")
    assert plain["headline"] == "roofline"
    assert not {"intervals", "calibration"} & set(plain)
    assert set(plain["rungs"]) == {"textbook", "roofline"}
    for rung in plain["rungs"]:
        assert plain["rungs"][rung] == found["rungs"][rung]


def test_several_configurations_are_every_combination_in_order() -> None:
    options = "--model Llama-3.1-8B,Llama-3.2-1B --gpu h100,a100 --prompt 4000,chat --chunk 512,engine,none"
    found = document(f"predict --json {options}")
    assert list(found) == ["schema", "predictions"]
    assert found["schema"] == "costmodel.predictions/1"
    combinations = itertools.product(
        ("Llama-3.1-8B", "Llama-3.2-1B"), ("h100", "a100"), (4000, 1730), (512, "engine", None)
    )
    expected = [
        as_document(costmodel.predict(model=model, gpu=gpu, prompt=prompt, chunk=chunk))
        for model, gpu, prompt, chunk in combinations
    ]
    assert found["predictions"] == expected


@pytest.mark.parametrize("option", ["--tp 1,2", "--dtype bf16,fp8", "--streams 1,2", "--context 0,9", "--gpu h100,l4"])
def test_options_that_take_several_values(option: str) -> None:
    assert len(document(f"predict --json {option}")["predictions"]) == 2


def test_presets_of_the_workload() -> None:
    lengths = {"chat": 1730, "summarisation": 7060, "summarization": 7060, "CHAT": 1730}
    for name, tokens in lengths.items():
        assert document(f"predict --json --prompt {name}")["workload"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    "path",
    [
        [],
        *([name] for name in COMMANDS),
        ["gpus", "list"],
        ["gpus", "show"],
        ["gpus", "check"],
        ["models", "list"],
        ["models", "show"],
        ["models", "import"],
    ],
    ids=" ".join,
)
def test_help_names_every_option(path: list[str]) -> None:
    text = printed([*path, "--help"])
    assert text == printed([*path, "-h"])
    command: Any = main
    for name in path:
        command = command.get_command(None, name)
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            for spelling in option.opts:
                assert spelling in text
            assert option.help
    for name in getattr(command, "commands", COMMANDS if not path else {}):
        assert name in text
    assert max(map(len, text.splitlines())) <= 110


def test_the_version_is_the_packages() -> None:
    assert printed("--version") == f"costmodel, version {costmodel.__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    for path in ([], ["gpus"], ["models"]):
        result = run(path)
        assert result.exit_code == 2
        assert "--help" in result.output


def test_the_installed_command_prints_the_document_and_nothing_else() -> None:
    found = script("predict --json --prompt 4000")
    assert (found.returncode, found.stderr) == (0, "")
    assert parse(found.stdout) == as_document(costmodel.predict(4000))


def test_a_reader_that_stops_gets_no_traceback() -> None:
    for command in ("gpus list", "predict --json --prompt " + ",".join(map(str, range(1, 500)))):
        with subprocess.Popen(
            [SCRIPT, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 0


def test_a_reader_that_is_gone_gets_no_traceback() -> None:
    """Everything is still in the buffer when the pipe turns out to be closed."""
    for command in ("gpus list", "predict", "--version"):
        reading, writing = os.pipe()
        os.close(reading)
        found = subprocess.run(
            [SCRIPT, *command.split()], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60
        )
        os.close(writing)
        assert found.stderr == b""
        assert found.returncode == 0


def test_a_terminal_that_knows_only_ascii_is_served() -> None:
    """Windows consoles and minimal containers have no UTF-8; the report has × and Greek letters."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for command in ("predict", "gpus list", "models list", "formula --rung textbook", "formula --json"):
        found = script(command, env=environment)
        assert (found.returncode, found.stderr) == (0, ""), found.stderr[-300:]


def test_the_working_folder_is_left_alone(own_folder: Path) -> None:
    printed("predict")
    assert list(own_folder.iterdir()) == []
