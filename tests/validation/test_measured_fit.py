"""Fits to whole steps find the calibration that made them, say what they cannot tell, and never predict below the floor."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel import predict
from costmodel.building import build_parameters, roofline_parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.errors import InputError
from costmodel.hardware.calibration import read_calibration
from costmodel.validation.fitting.calibrate import to_toml
from costmodel.validation.fitting.choosing import candidates
from costmodel.validation.fitting.least_squares import Evaluator
from costmodel.validation.fitting.measured import describe, fit_steps, measured_deployment, split
from costmodel.validation.fitting.step_calibration import step_calibration
from costmodel.validation.fitting.step_model import Key, Tied, step_data, step_model, step_work
from costmodel.validation.measurements.types import Measurement, Step
from tests.validation import synthetic


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return synthetic.write_profile(tmp_path / "machine.toml")


def truth(key: Key) -> float:
    return synthetic.TRUTH[key[0]].get(key[1], float("inf"))


def test_a_fit_finds_the_calibration_that_made_the_steps(profile: Path) -> None:
    fit = fit_steps(synthetic.measure(profile), str(profile))
    for each in fit.chosen:
        assert each.value == pytest.approx(truth(each.key), rel=2e-3), each
    assert fit.held_out["all"].median < 1e-3
    assert fit.held_out["mixed"].rows == 5


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_finds_it_through_noise(profile: Path, seed: int) -> None:
    fit = fit_steps(synthetic.measure(profile, noise=0.02, seed=seed), str(profile))
    assert fit.held_out["all"].median < 0.03
    assert fit.held_out["mixed"].median < 0.06
    values = fit.values
    for key in (
        ("gemm", "compute_efficiency"),
        ("overhead.graph", "per_step_s"),
        ("decode_attention", "bandwidth_efficiency"),
    ):
        assert values[key] == pytest.approx(truth(key), rel=0.25), key
    for each in fit.chosen:
        if each.error is not None:
            assert abs(each.value - truth(each.key)) < 6 * each.error, each


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_arithmetic_and_memory_that_add_up_are_no_plain_maximum(profile: Path, noise: float) -> None:
    added = {**synthetic.TRUTH, "gemm": {**synthetic.TRUTH["gemm"], "sharpness": 1.0}}
    fit = fit_steps(synthetic.measure(profile, added, noise=noise), str(profile))
    assert fit.values["gemm", "sharpness"] < 1.001 + 50 * noise
    assert fit.held_out["all"].median < 1e-3 + 1.5 * noise


def test_a_mixture_of_experts_is_fitted_as_well(profile: Path) -> None:
    measurement = synthetic.measure(profile, config=synthetic.MIXTRAL)
    fit = fit_steps(measurement, str(profile))
    assert fit.held_out["all"].median < 2e-3


def test_what_no_step_shows_is_tied_or_left_and_said(profile: Path) -> None:
    short = [kind for kind in synthetic.plan() if kind.purpose == "decode"]
    fit = fit_steps(synthetic.measure(profile, kinds=short), str(profile))
    how = {each.key: each for each in fit.chosen}
    assert how["prefill_attention", "compute_efficiency"].how == "tied"
    assert "no step shows it" in how["prefill_attention", "compute_efficiency"].reason
    assert how["overhead.eager", "per_step_s"].value == how["overhead.graph", "per_step_s"].value
    assert how["prefill_attention", "compute_efficiency"].error is None
    assert fit.held_out["all"].median < 1e-3


def test_few_steps_allow_few_parameters(profile: Path) -> None:
    kinds = [kind for kind in synthetic.plan() if not kind.held_out][::4]
    fit = fit_steps(synthetic.measure(profile, kinds=kinds), str(profile))
    assert sum(each.how == "fitted" for each in fit.chosen) <= len(kinds) // 2
    assert any("too few for intervals" in note for note in fit.notes)


def test_too_few_steps_are_refused_in_words(profile: Path) -> None:
    with pytest.raises(InputError, match="3 kinds of steps are too few to fit; a short prompt, a long prompt"):
        fit_steps(synthetic.measure(profile, kinds=list(synthetic.plan())[:8:2]), str(profile))
    with pytest.raises(InputError, match="has no steps"):
        fit_steps(synthetic.measure(profile, kinds=[]), str(profile))


def test_peaks_that_are_too_low_are_named_with_the_factor(tmp_path: Path, profile: Path) -> None:
    low = synthetic.write_profile(tmp_path / "low.toml", peak=100e9)
    with pytest.raises(InputError) as refused:
        fit_steps(synthetic.measure(profile), str(low))
    message = str(refused.value)
    assert "faster than the roofline of test machine" in message
    assert "its peak_flops.fp32 is too low; set it to 1.3e+11 or more, or probe again" in message
    assert "\n" not in message


def test_a_few_steps_below_the_floor_are_left_out(profile: Path) -> None:
    measurement = synthetic.measure(profile)
    wrong = measurement.steps[0].model_copy(update={"seconds": 1e-6})
    fit = fit_steps(measurement.model_copy(update={"steps": (wrong, *measurement.steps[1:])}), str(profile))
    assert len(fit.rows) == len(measurement.steps) - 1
    assert any(f"1 of {len(measurement.steps)} measured steps are faster" in note for note in fit.notes)
    assert any("1 left out of the fit, 0 held out" in note for note in fit.notes)


def test_a_step_below_the_floor_that_is_held_out_is_an_error(profile: Path) -> None:
    measurement = synthetic.measure(profile)
    place = next(index for index, step in enumerate(measurement.steps) if step.held_out)
    wrong = measurement.steps[place].model_copy(update={"seconds": 1e-6})
    steps = (*measurement.steps[:place], wrong, *measurement.steps[place + 1 :])
    fit = fit_steps(measurement.model_copy(update={"steps": steps}), str(profile))
    assert len(fit.rows) == len(steps)
    assert fit.held_out["all"].mean > 10
    assert any("0 left out of the fit, 1 held out and in the errors" in note for note in fit.notes)


def test_predictions_stay_above_the_floor_where_the_machine_reaches_it(profile: Path) -> None:
    fast: dict[str, dict[str, float]] = {key: dict(values) for key, values in synthetic.TRUTH.items()}
    fast["gemm"] = {"compute_efficiency": 1.0, "bandwidth_efficiency": 1.0}
    fast["prefill_attention"] = {"compute_efficiency": 1.0}
    fit = fit_steps(synthetic.measure(profile, truth=fast, noise=0.01), str(profile))
    assert all(row.predicted >= row.floor * (1 - 1e-9) for row in fit.rows)
    assert all(0 < each.value <= 1 for each in fit.chosen if each.key[1].endswith("efficiency"))


def test_a_part_without_a_profile_needs_one(profile: Path) -> None:
    with pytest.raises(InputError, match=r"no profile; give one with --gpu PROFILE.toml"):
        fit_steps(synthetic.measure(profile))


def test_a_shipped_part_is_found_by_the_name_that_the_measurement_has() -> None:
    gpu = {**synthetic.TRUTH, "overhead.graph": {"per_step_s": 6e-4, "per_sequence_s": 3e-6}}
    gpu |= {"overhead.eager": {"per_step_s": 3e-3, "per_sequence_s": 3e-6}}
    config = synthetic.LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16"}
    found = synthetic.measure("h100", truth=gpu, config=config, dtype="bf16", noise=0.01)
    machine = found.machine.model_copy(update={"profile": "h100-sxm"})
    fit = fit_steps(found.model_copy(update={"machine": machine}))
    assert fit.deployment.gpu == "h100-sxm"
    assert fit.held_out["all"].median < 0.02
    assert step_calibration(found, fit, {}, "test it").gpu == "h100-sxm"


def test_steps_are_held_out_by_chance_where_the_measurement_does_not_say(profile: Path) -> None:
    kinds = [replace(kind, held_out=False) for kind in synthetic.plan()]
    steps = synthetic.measure(profile, kinds=kinds).steps
    training, test = split(steps)
    assert not any(step.chunks and step.decodes for step in training)
    assert 0.25 < len(test) / len(steps) < 0.5
    assert split(steps) == (training, test)
    assert split(steps, 1) != (training, test)
    mixed = [step for step in steps if step.chunks and step.decodes] * 4
    assert split(mixed)[0], "a log of mixed steps alone is fitted to some of them"


def test_the_calibration_is_taken_by_predictions_with_intervals(profile: Path, tmp_path: Path) -> None:
    measurement = synthetic.measure(profile, noise=0.02)
    fit = fit_steps(measurement, str(profile))
    made = step_calibration(measurement, fit, {"m.jsonl": "0" * 64}, "costmodel fit m.jsonl")
    (tmp_path / "fit.toml").write_text(to_toml(made))
    assert read_calibration(tmp_path / "fit.toml") == made
    (tmp_path / "config.json").write_text(__import__("json").dumps(synthetic.LLAMA))
    answer = predict(
        prompt=1024, streams=8, context=256, model=str(tmp_path / "config.json"), gpu=str(profile), dtype="fp32",
        calibration=tmp_path / "fit.toml",
    )  # fmt: skip
    assert answer.headline == "calibrated"
    assert answer.intervals is not None
    low, high = answer.intervals.spike_s
    assert low < answer.spike.height_s < high
    assert high / low < 1.3
    assert not [text for text in answer.warnings if "not in the calibration" in text]
    step = next(step for step in measurement.steps if len(step.decodes) == 8 and not step.chunks)
    deployment = measured_deployment(measurement, str(profile))
    parameters = build_parameters(deployment, CalibratedRates(made))
    row = next(row for row in fit.rows if row.step == step)
    again = float(step_times(parameters, step_work(step, parameters.windows)).total)
    assert again == pytest.approx(row.predicted, rel=1e-4)
    assert tomllib.loads(to_toml(made))["whole_step"]["level"] == 0.8


def test_the_symbols_of_a_step_give_what_the_step_gives(profile: Path) -> None:
    measurement = synthetic.measure(profile)
    deployment = measured_deployment(measurement, str(profile))
    keys = [each.key for each in candidates(deployment)]
    whole = Evaluator(step_model(deployment, keys))
    fixed: dict[Key, Any] = {
        ("gemm", "sharpness"): float("inf"),
        ("overhead.eager", "per_sequence_s"): ("overhead.graph", "per_sequence_s"),
    }
    model = Tied(whole, fixed)
    values = {f"{key[0]}.{key[1]}": truth(key) for key in keys if key not in fixed}
    windows = roofline_parameters(deployment).windows
    data = step_data(measurement.steps, windows)
    seconds = np.array([step.seconds for step in measurement.steps])
    assert model.seconds(values, data) == pytest.approx(seconds, rel=1e-9)
    assert np.all(model.floor(data) <= seconds)
    slopes = model.jacobian(values, data)
    for place, name in enumerate(model.model.parameters):
        nudge = values[name] * 1e-6
        up, down = ({**values, name: values[name] + sign * nudge} for sign in (1, -1))
        numeric = (model.seconds(up, data) - model.seconds(down, data)) / (2 * nudge)
        assert slopes[:, place] == pytest.approx(numeric, rel=1e-4, abs=1e-9), name


def test_steps_are_told_in_words() -> None:
    def step(chunks: tuple[tuple[int, int], ...], decodes: tuple[int, ...]) -> str:
        return describe(Step(chunks=chunks, decodes=decodes, seconds=1.0))

    assert step((), (100, 200)) == "decode 2 × 150"
    assert step(((1024, 512),), ()) == "prefill 1,024 after 512"
    assert step(((10, 0), (20, 0), (30, 0), (40, 0), (50, 0)), (7,)) == "mixed 10 + 20 + 30 + 2 more beside 1 × 7"


def test_notes_say_what_makes_a_measurement_special(profile: Path) -> None:
    found: Measurement = synthetic.measure(profile)
    machine = found.machine.model_copy(update={"throttled": ("power cap",)})
    found = found.model_copy(update={"clock": "cpu", "complete": False, "machine": machine})
    notes = " ".join(fit_steps(found, str(profile)).notes)
    assert "CPU time" in notes
    assert "did not run to its end" in notes
    assert "throttled while it was measured (power cap)" in notes
