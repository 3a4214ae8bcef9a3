"""The fit of the RTX 4090 folder: errors on held-out shapes, what the shipped calibration says, and the served run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.errors import InputError
from costmodel.hardware.shipped import shipped_calibration
from costmodel.prediction import predict
from costmodel.validation.datasets.rtx4090 import RequestTable, Rtx4090, checksums, rtx4090
from costmodel.validation.fitting.calibrate import layer_calibration
from costmodel.validation.fitting.rtx4090 import fit_rtx4090
from costmodel.validation.fitting.served_run import fit_decode_overhead, kernels_of, stretches
from costmodel.validation.fitting.served_steps import served_steps

SHIPPED = shipped_calibration("rtx-4090")


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    return shared_folder / "data" / "rtx4090-llama-3.1-8b"


@pytest.fixture(scope="module")
def data(folder: Path) -> Rtx4090:
    return rtx4090(folder)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_shapes(data: Rtx4090, seed: int) -> None:
    fits, parts = {}, {}
    for fit, errors in fit_rtx4090(data, seed=seed):
        fits[fit.operator] = fit
        parts.update(errors)
    assert parts["sum of a layer's GEMMs"].median <= 0.015
    served = fits["prefill_attention.bf16"].errors_served
    assert served is not None
    assert served.rows > 200
    assert served.median <= 0.05
    assert served.p90 <= 0.15
    assert parts["attention of prompts alone"].median <= 0.05
    assert fits["elementwise"].errors.median <= 0.03
    assert fits["lm_head.bf16"].errors.median <= 0.05
    # Mixed steps of any shape that the card can hold, and decode steps, which have no target of their own.
    assert fits["prefill_attention.bf16"].errors.median <= 0.06
    assert fits["decode_attention.bf16"].errors.median <= 0.10
    assert parts["whole steps with prefill, served"].median <= 0.02
    assert parts["whole steps with prefill, served"].p90 <= 0.05
    assert all(
        len(fit.result.values) <= 5 for fit in fits.values()
    )  # and constants of forms: rows of tiles, and of few
    assert all(not fit.result.undetermined for fit in fits.values())
    # Kernels timed one by one take as long as the steps of the run's end: no overhead can be told from zero there.
    assert {name for name, fit in fits.items() if fit.result.at_bound} == {"overhead.graph"}


def test_the_shipped_calibration_is_this_fit(folder: Path, data: Rtx4090) -> None:
    assert SHIPPED is not None
    fits = [fit for fit, _ in fit_rtx4090(data)]
    again = layer_calibration(fits, checksums(folder), SHIPPED.provenance.command)
    assert again.provenance.files == SHIPPED.provenance.files
    assert set(again.operators) == set(SHIPPED.operators)
    for name, operator in SHIPPED.operators.items():
        for parameter, fitted in operator.parameters.items():
            assert again.operators[name].number(parameter) == pytest.approx(fitted.value, rel=0.01, abs=1e-12)
        assert len(again.operators[name].regimes) == len(operator.regimes)
        for one, other in zip(again.operators[name].regimes, operator.regimes, strict=True):
            assert one.up_to == other.up_to
            assert (one.residuals.low, one.residuals.high) == pytest.approx(
                (other.residuals.low, other.residuals.high), abs=2e-3
            )


def test_errors_are_told_apart_by_size_of_the_rows_that_were_kept(data: Rtx4090) -> None:
    """Attention has more rows than are kept, and a range over chunks and contexts; its sizes are those of the rows themselves."""
    parts = {fit.operator: fit.by_size for fit, _ in fit_rtx4090(data)}
    assert [len(parts[name]) for name in ("gemm.bf16", "elementwise", "prefill_attention.bf16")] == [3, 3, 3]
    assert parts["lm_head.bf16"] == parts["decode_attention.bf16"] == ()  # too few rows
    kept = data.attention.chunk + data.attention.cached
    for edge, errors in parts["prefill_attention.bf16"]:
        assert edge in kept
        assert errors.rows > 400


def test_unknown_rules_are_refused(data: Rtx4090) -> None:
    with pytest.raises(InputError, match=r"unknown rule 'kv'.* known: "):
        next(fit_rtx4090(data, off=["kv"]))
    every = next(fit for fit, _ in fit_rtx4090(data, off=["beyond the KV cache"]) if fit.form == "mixed_tiles")
    assert every.excluded.keys() == {"above the token budget", "below floor"}


def test_a_prediction_uses_it() -> None:
    """Only on this part: nothing carries the form to another."""
    answer = predict(2000, "rtx-4090", streams=16, context=1000, chunk=2048)
    assert answer.calibration == "rtx-4090 vllm, layers of Llama-3.1-8B"
    rung = answer.rungs.calibrated
    assert rung is not None
    assert {"prefill_attention", "decode_attention"} <= {operator.name for operator in rung.operators}
    assert answer.rungs.roofline.spike_s < rung.spike_s < 1.5 * answer.rungs.roofline.spike_s
    assert not any("left out" in text for text in answer.warnings)
    assert answer.intervals is not None
    low, high = answer.intervals.spike_s
    assert low < rung.spike_s < high < 1.3 * rung.spike_s


# --- the served run -----------------------------------------------------------------------------------------------------


def run_of(*steps: float) -> RequestTable:
    """Return a run in which, per step time, two requests begin together and end 100 steps apart."""
    first = np.repeat(10.0 + 0.1 * np.arange(len(steps)), 2)
    lengths = np.tile([200.0, 300.0], len(steps))
    none = np.zeros(2 * len(steps))
    return RequestTable(none + 500, lengths, none, none, none, first, first + (lengths - 1) * np.repeat(steps, 2))


def test_steps_are_counted_from_requests_that_began_together() -> None:
    (one, other), excluded = stretches(run_of(0.02, 0.021))
    assert (one.steps, other.steps) == (100, 100)
    assert (one.step, other.step) == (pytest.approx(0.02), pytest.approx(0.021))
    assert excluded == {"preempted": 0, "few steps apart": 0}
    # One pair takes much longer per token than the run: it waited for memory.
    kept, excluded = stretches(run_of(0.02, 0.02, 0.03))
    assert (len(kept), excluded["preempted"]) == (2, 1)


def test_full_steps_are_put_together(data: Rtx4090) -> None:
    """Prompts of 305 and 2,357 tokens arrive first: 2,048 − 12 streams − 305 leave 1,731 of the second, and 626 for the next step."""
    steps = served_steps(data.requests, 2048)
    assert len(steps) >= 10
    assert [(chunk.tokens, chunk.cached) for chunk in steps[0].chunks] == [(305, 0), (1731, 0)]
    assert [(chunk.tokens, chunk.cached) for chunk in steps[1].chunks] == [(626, 1731), (835, 0), (574, 0)]
    for step in steps:
        assert sum(chunk.tokens for chunk in step.chunks) + len(step.contexts) == 2048
        assert 0.19 < step.seconds < 0.22
    assert served_steps(data.requests, 1024) == []  # no first token confirms another budget


def test_the_overhead_of_decode_steps_is_recovered() -> None:
    """Three pairs whose steps are the predicted kernels and 1 ms."""
    assert SHIPPED is not None
    kernels = {name: item for name, item in SHIPPED.operators.items() if item.form != "overhead"}
    rates = CalibratedRates(SHIPPED.model_copy(update={"operators": kernels}))
    parameters = build_parameters(deploy("Llama-3.1-8B", "rtx-4090"), rates)
    steps = [0.02] * 3
    for _ in range(5):  # kernels depend a little on how long the others still run
        run = run_of(*steps)
        steps = [kernels_of(stretch, run, parameters) + 1e-3 for stretch in stretches(run)[0]]
    found = fit_decode_overhead(run_of(*steps), parameters, "any")
    assert found.rows_kept == 3
    assert found.result.values["per_step_s"] == pytest.approx(1e-3, rel=0.01)
