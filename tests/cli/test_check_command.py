"""``costmodel fit MEASUREMENT`` and ``costmodel check``, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import document, parse, printed, refusal, run
from tests.validation import synthetic


@pytest.fixture
def measured(own_folder: Path) -> Path:
    """A working folder with profile, model and measurement."""
    synthetic.write_profile(own_folder / "machine.toml")
    synthetic.write(synthetic.measure(own_folder / "machine.toml", noise=0.02), own_folder / "steps.json")
    (own_folder / "config.json").write_text(json.dumps(synthetic.LLAMA))
    return own_folder


def fitted(folder: Path) -> Path:
    result = run("fit steps.json --gpu machine.toml -o mine.toml")
    assert result.exit_code == 0, result.stderr
    return folder / "mine.toml"


def test_from_a_measurement_to_a_checked_calibration(measured: Path) -> None:
    result = run("fit steps.json --gpu machine.toml -o mine.toml --plot residuals.png")
    assert result.exit_code == 0, result.stderr
    assert "wrote mine.toml: test machine vllm, steps of tiny" in result.stderr
    assert (measured / "residuals.png").stat().st_size > 10_000
    text = result.stdout
    assert "prompts beside decodes" in text
    assert "gemm.compute_efficiency" in text
    assert "as of a decode step" in text
    assert "--calibration mine.toml" in text
    checked = run(
        "check steps.json --gpu machine.toml --calibration mine.toml --held-out --max-median-error 5% --plot check.svg"
    )
    assert checked.exit_code == 0, checked.stderr
    assert "inside the interval" in checked.stdout
    assert (measured / "check.svg").is_file()
    predicted = document(
        "predict --gpu machine.toml --model config.json --dtype fp32 --calibration mine.toml --prompt 1000 --streams 4 --json"
    )
    assert predicted["headline"] == "calibrated"
    assert predicted["intervals"]["level"] == 0.8
    simulated = document(
        "simulate interference --gpu machine.toml --model config.json --dtype fp32 --calibration mine.toml --prompt 1000 --streams 4 "
        "--every 1 --duration 3 --first 0.5 --json"
    )
    assert simulated["server"]["rung"] == "calibrated"


def test_documents_of_fit_and_check(measured: Path) -> None:
    found = document("fit steps.json --gpu machine.toml --json")
    assert found["schema"] == "costmodel.step_fit/1"
    assert found["held_out"]["all"]["median"] < 0.05
    assert {each["how"] for each in found["parameters"]} == {"fitted", "tied", "default"}
    fitted(measured)
    check = document("check steps.json --gpu machine.toml --calibration mine.toml --json")
    assert check["schema"] == "costmodel.check/1"
    assert set(check["summary"]) == {"count", "median_absolute_error", "mean_absolute_error", "bias", "coverage"}
    row = check["rows"][0]
    assert {"what", "predicted_s", "measured_s", "error", "inside_interval"} <= set(row)
    assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert check["summary"]["count"] == len(check["rows"])
    assert check["summary"]["coverage"] is None


def test_coverage_is_told_of_another_measurement_only(measured: Path) -> None:
    """The intervals are made of the steps that the file itself holds out, so that some 80 % of them would be inside by construction."""
    fitted(measured)
    (measured / "renamed.json").write_bytes((measured / "steps.json").read_bytes())
    synthetic.write(synthetic.measure(measured / "machine.toml", noise=0.02, seed=1), measured / "again.json")
    for name in ("steps.json", "renamed.json"):
        found = document(f"check {name} --gpu machine.toml --calibration mine.toml --held-out --json")
        assert all(row["interval_s"] and row["inside_interval"] is None for row in found["rows"])
        assert found["summary"]["coverage"] is None
        assert any("say nothing about the intervals" in note for note in found["files"][0]["notes"])
    assert "✗" not in printed("check steps.json --gpu machine.toml --calibration mine.toml --held-out")
    again = document("check again.json --gpu machine.toml --calibration mine.toml --held-out --json")
    assert again["summary"]["coverage"] > 0.5
    assert not any("say nothing" in note for note in again["files"][0]["notes"])


def test_a_limit_makes_it_a_gate(measured: Path) -> None:
    fitted(measured)
    result = run("check steps.json --gpu machine.toml --calibration mine.toml --max-error 1% --json")
    assert result.exit_code == 1
    found = parse(result.stdout)
    assert found["passed"] is False
    assert found["failed"] == sum(row["within_limit"] is False for row in found["rows"]) > 0
    assert f"{found['failed']} of {len(found['rows'])} predictions are off by more than 1.0 %" in result.stderr
    told = run("check steps.json --gpu machine.toml --calibration mine.toml --max-error 1%")
    assert told.stdout.count(" !") == found["failed"]
    assert run("check steps.json --gpu machine.toml --calibration mine.toml --max-error 0.5").exit_code == 0
    median = run("check steps.json --gpu machine.toml --calibration mine.toml --max-median-error 0.1%")
    assert (median.exit_code, "the median error is" in median.stderr) == (1, True)


def test_several_files_in_one_check(measured: Path) -> None:
    fitted(measured)
    found = document("check steps.json steps.json --gpu machine.toml --calibration mine.toml --json")
    assert [file["file"] for file in found["files"]] == ["steps.json", "steps.json (2)"]
    assert "steps.json (2):" in printed("check steps.json steps.json --gpu machine.toml --calibration mine.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit missing.json --gpu machine.toml", "missing.json"),
        ("fit steps.json", "there is no profile; give one with --gpu PROFILE.toml"),
        ("fit steps.json --gpu h100x", "unknown GPU"),
        ("fit steps.json --gpu machine.toml --dataset kernels", "--dataset is for data sets, not for a MEASUREMENT"),
        ("fit steps.json --gpu machine.toml --engine sglang", "--engine is for data sets"),
        ("fit --gpu h100 --plot a.png", "--plot is for a MEASUREMENT"),
        ("fit steps.json --gpu machine.toml --plot a.txt", "unknown suffix '.txt'"),
        ("fit steps.json --gpu machine.toml -o machine.toml", "machine.toml exists; use --force"),
        ("fit config.json --gpu machine.toml", "config.json"),
        ("check", "Missing argument"),
        ("check missing.json", "missing.json"),
        ("check config.json --gpu machine.toml", "is no file that can be checked (its keys are"),
        ("check machine.toml", "it is no JSON"),
        ("check steps.json --max-error ten", "'ten' is no share; write 10% or 0.1"),
        ("check steps.json --max-error 10", "'10' is a share of 1000 %; write 10% or 0.1"),
        ("check steps.json --max-error -1%", "'-1%' is no share"),
        ("check steps.json --gpu machine.toml --prefill-gpus 2", "--prefill-gpus is for simulations"),
        ("check steps.json --gpu machine.toml --model Llama-3.1-8B", "leave out --model"),
        ("check steps.json --gpu machine.toml --rung calibrated", "no calibration of machine"),
        ("check steps.json --gpu machine.toml --plot steps.json", "unknown suffix '.json'"),
    ],
)
def test_bad_input_is_one_line(measured: Path, arguments: str, message: str) -> None:
    assert message in refusal(arguments)


def test_peaks_that_are_too_low_are_one_line(measured: Path) -> None:
    synthetic.write_profile(measured / "low.toml", peak=50e9, bandwidth=10e9)
    assert "is too low; set it to" in refusal("fit steps.json --gpu low.toml")


def test_nothing_of_the_folder_is_in_a_calibration(measured: Path) -> None:
    result = run(
        [
            "fit",
            str(measured / "steps.json"),
            "--gpu",
            str(measured / "machine.toml"),
            "-o",
            str(measured / "mine.toml"),
        ]
    )
    assert result.exit_code == 0, result.stderr
    text = (measured / "mine.toml").read_text()
    assert str(measured) not in text
    assert 'command = "costmodel fit steps.json --gpu machine.toml --seed 0"' in text
