"""Overheads of engines from closed loops: exact slopes, recovery of known overheads, folds, and how the servers were started."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from costmodel.clients import closed_loop
from costmodel.equations.closed_loop import Loop
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.datasets.end_to_end import EndToEndRow, end_to_end
from costmodel.validation.datasets.end_to_end_rules import end_to_end_rules
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.datasets.servers import server_of
from costmodel.validation.fitting.closed_loops import (
    BURST_SHARE,
    OVERHEADS,
    REQUEST_OVERHEADS,
    STEP_OVERHEADS,
    Loops,
    Predictor,
    tabulate,
)
from costmodel.validation.fitting.engines import (
    FREE,
    PROTOCOL,
    EngineFit,
    fit_engines,
    fit_overheads,
    folds_by,
    held_out_loops,
    predict_rows,
    random_folds,
)

PART, ENGINE = "h100-sxm", "vllm"

TRUTH: dict[tuple[str, str], float] = {
    ("launches", "hidden"): 0.4,
    ("elementwise", "passes"): 20.0,
    ("overhead.graph", "per_step_s"): 4e-4,
    ("overhead.graph", "per_layer_s"): 1.2e-5,
    ("overhead.graph", "per_normed_layer_s"): 1.5e-5,
    ("overhead.graph", "per_sequence_s"): 8e-6,
    ("overhead.eager", "per_step_s"): 4e-3,
    ("overhead.eager", "per_layer_s"): 1.5e-4,
    ("request", "per_request_s"): 0.015,
    ("request", "steps_waited"): 1.3,
    BURST_SHARE: 0.08,
}
"""Overheads of an engine of our own, of the size that they have."""


def kernels() -> Calibration:
    found = shipped_calibration(PART, ENGINE)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def measured() -> tuple[EndToEndRow, ...]:
    """The rows of one part and engine that the rules keep."""
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed (extra: silicon)")
    kept, _ = apply_rules(end_to_end(), end_to_end_rules())
    return tuple(row for row in kept if (row.gpu, row.engine) == (PART, ENGINE))


@pytest.fixture(scope="module")
def loops(measured: tuple[EndToEndRow, ...]) -> Loops:
    """Every second of these rows."""
    return tabulate(measured[::2], lambda row: kernels())


@pytest.fixture(scope="module")
def synthetic(loops: Loops) -> Loops:
    """The same rows, with the times that our own engine would take."""
    return answered_by(loops, TRUTH)


def answered_by(loops: Loops, overheads: Mapping[tuple[str, str], float]) -> Loops:
    loop = Predictor(loops).predict(overheads)
    times = zip(loops.rows, loop.ttft.tolist(), loop.tpot.tolist(), strict=True)
    return replace(loops, rows=tuple(replace(row, ttft_s=ttft, tpot_s=tpot) for row, ttft, tpot in times))


# --- the predictor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRUTH, ids=".".join)
def test_slopes_are_exact(loops: Loops, name: tuple[str, str]) -> None:
    predictor = Predictor(loops)
    loop = predictor.predict(TRUTH)
    by_ttft, by_tpot = predictor.slopes(TRUTH, loop, [name])
    step = 1e-4 * TRUTH[name]
    above, below = (predictor.predict(TRUTH | {name: TRUTH[name] + sign * step}) for sign in (1, -1))
    for slopes, high, low, value in (
        (by_ttft, above.ttft, below.ttft, loop.ttft),
        (by_tpot, above.tpot, below.tpot, loop.tpot),
    ):
        apart = np.abs(slopes[:, 0] - (high - low) / (2 * step)) * TRUTH[name] / value
        assert np.median(apart) < 1e-7
        assert np.max(apart) < 1e-5


CROWDED = TRUTH | {("overhead.graph", "per_sequence_s"): 4e-4}
"""With 400 µs per sequence a mixed step takes the graph overheads from a few tens of them on, else the eager ones."""


@pytest.mark.parametrize("name", STEP_OVERHEADS, ids=".".join)
def test_slopes_are_those_of_the_larger_overhead(loops: Loops, name: tuple[str, str]) -> None:
    predictor = Predictor(loops)
    loop = predictor.predict(CROWDED)
    slopes = predictor.slopes(CROWDED, loop, [name])
    step = 1e-5 * CROWDED[name]
    above, below = (predictor.predict(CROWDED | {name: CROWDED[name] + sign * step}) for sign in (1, -1))
    for found, high, low, value in zip(
        slopes, (above.ttft, above.tpot), (below.ttft, below.tpot), (loop.ttft, loop.tpot), strict=True
    ):
        apart = np.abs(found[:, 0] - (high - low) / (2 * step)) * CROWDED[name] / value
        assert np.median(apart) < 1e-6
        assert np.max(apart) < 1e-4
    if name[0] == "overhead.eager":  # rows of few clients feel it, rows of many do not
        by_tpot = slopes[1][:, 0]
        assert 0.1 < np.mean(by_tpot > 1e-9) < 0.9


def test_overheads_slow_down_and_hidden_launches_speed_up(loops: Loops) -> None:
    nothing = Predictor(loops).predict({})
    for name in (*STEP_OVERHEADS, *REQUEST_OVERHEADS):
        some = Predictor(loops).predict({name: TRUTH[name]})
        sign = -1 if name == ("launches", "hidden") else 1
        assert np.all(sign * (some.ttft - nothing.ttft) >= -1e-9 * nothing.ttft), name
        assert np.any(sign * (some.ttft - nothing.ttft) > 1e-6), name  # not every model has query and key norms
        if name in STEP_OVERHEADS:
            assert np.all(sign * (some.tpot - nothing.tpot) >= -1e-9 * nothing.tpot), name


def test_rows_are_predicted_as_users_see_them(measured: tuple[EndToEndRow, ...]) -> None:
    """The arrays of a fit are interpolated, those of ``closed_loop`` are not; the settings are InferenceX's."""
    rows = [row for row in measured if row.protocol == "InferenceX"][::9]
    assert len(rows) >= 10
    calibration = kernels()
    given = {
        (key, name): operator.parameters[name].value
        for key, operator in calibration.operators.items()
        for name in operator.parameters
        if (key, name) in OVERHEADS
    }
    found = Predictor(tabulate(rows, lambda row: calibration)).predict(given)
    for index, row in enumerate(rows):
        server = server_of(row)
        loop = closed_loop(
            row.concurrency,
            round(server.input_tokens),
            round(server.output_tokens),
            row.gpu,
            row.architecture,
            budget=server.token_budget,
            prompts_per_client=10,
            dtype=row.weight_dtype,
            kv_dtype=server.kv_dtype,
            tp=row.tp,
            ep=server.expert_parallel,
            calibration=calibration,
        )
        assert loop.tpot_s == pytest.approx(found.tpot[index], rel=0.01), row.name
        assert loop.ttft_s == pytest.approx(found.ttft[index], rel=0.015), row.name


def test_selected_rows_keep_their_tables(loops: Loops) -> None:
    chosen = np.arange(len(loops)) % 3 == 1
    part, whole = Predictor(loops.select(chosen)).predict(TRUTH), Predictor(loops).predict(TRUTH)
    assert part.ttft.tolist() == whole.ttft[chosen].tolist()
    assert part.tpot.tolist() == whole.tpot[chosen].tolist()


# --- fits ---------------------------------------------------------------------------------------------------------------


def test_known_overheads_are_recovered(synthetic: Loops) -> None:
    fit = fit_overheads(synthetic)
    assert fit.rows == len(synthetic)
    found = {name: fit.values[name] for name in TRUTH}
    assert found == pytest.approx(TRUTH, rel=0.02)
    loop = Predictor(synthetic).predict(fit.values)
    assert loop.tpot == pytest.approx(synthetic.tpot, rel=1e-3)
    assert loop.ttft == pytest.approx(synthetic.ttft, rel=1e-3)


def test_standard_errors_cover_noise(synthetic: Loops) -> None:
    noise = np.random.default_rng(5).normal(0, 0.02, (2, len(synthetic)))
    rows = tuple(
        replace(row, ttft_s=row.ttft_s * np.exp(first), tpot_s=row.tpot_s * np.exp(second))
        for row, first, second in zip(synthetic.rows, *noise, strict=True)
    )
    fit = fit_overheads(replace(synthetic, rows=rows))
    for name, value in TRUTH.items():
        assert abs(fit.values[name] - value) < 4 * fit.standard_errors[name] + 1e-12, name


def test_what_rows_do_not_say_stays_at_the_prior(synthetic: Loops) -> None:
    # InferenceX says how many prompts it sends, so its rows tell nothing of the θ of those that do not.
    prior = EngineFit({**TRUTH, BURST_SHARE: 0.21}, dict.fromkeys(TRUTH, 0.0), 100)
    few = synthetic.select(np.array([row.protocol == "InferenceX" for row in synthetic.rows]))
    assert len(few) > 10
    fit = fit_overheads(few, prior=prior)
    assert fit.values[BURST_SHARE] == pytest.approx(0.21, rel=1e-9)
    others = {name: value for name, value in fit.values.items() if name != BURST_SHARE}
    assert others == pytest.approx({name: TRUTH[name] for name in others}, rel=1e-6)


def test_the_more_rows_the_less_the_prior_counts(synthetic: Loops) -> None:
    prior = EngineFit({**TRUTH, ("overhead.graph", "per_step_s"): 8e-4}, dict.fromkeys(TRUTH, 0.0), 100)
    found = [
        fit_overheads(synthetic.select(np.arange(len(synthetic)) % every == 0), prior=prior)
        for every in (len(synthetic), 8, 1)
    ]
    one, some, all_rows = (fit.values["overhead.graph", "per_step_s"] for fit in found)
    assert 8e-4 > one > 7.8e-4 > some > 6e-4 > all_rows > 4.4e-4
    assert max(abs(found[0].values[name] / prior.values[name] - 1) for name in TRUTH) < 0.05


def test_too_few_rows_are_refused_without_a_prior(synthetic: Loops) -> None:
    few = synthetic.select(np.arange(len(synthetic)) < len(FREE + PROTOCOL))
    with pytest.raises(InputError, match="11 rows cannot fit 11 overheads"):
        fit_overheads(few)
    prior = EngineFit(TRUTH, dict.fromkeys(TRUTH, 0.0), 100)
    assert fit_overheads(few, prior=prior).rows == 11


def test_an_engine_without_rows_takes_what_all_have(synthetic: Loops) -> None:
    few = synthetic.select(np.arange(len(synthetic)) % 3 == 0)
    fits = fit_engines(few, ["vllm", "sglang"], FREE[2:3])
    assert fits["sglang"] == fit_overheads(few, FREE[2:3])
    assert predict_rows(few, fits).tpot.tolist() == Predictor(few).predict(fits["vllm"].values).tpot.tolist()


# --- folds --------------------------------------------------------------------------------------------------------------


def test_repetitions_share_a_fold(loops: Loops) -> None:
    twice = replace(loops, rows=tuple(replace(row, version="later", ttft_s=9.0) for row in loops.rows))
    assert random_folds(loops).tolist() == random_folds(twice).tolist()
    folds = random_folds(loops)
    assert set(folds.tolist()) == {0, 1, 2}
    by_group = {row.group: fold for row, fold in zip(loops.rows, folds.tolist(), strict=True)}
    assert [by_group[row.group] for row in loops.rows] == folds.tolist()
    assert np.bincount(folds).min() > len(loops) / 5
    assert random_folds(loops, seed=1).tolist() != folds.tolist()


def test_folds_by_what_a_row_is(loops: Loops) -> None:
    folds = folds_by(loops, lambda row: row.family)
    families = {row.family for row in loops.rows}
    assert len(families) > 1
    assert set(folds.tolist()) == set(range(len(families)))
    assert len({(row.family, fold) for row, fold in zip(loops.rows, folds.tolist(), strict=True)}) == len(families)


def test_held_out_rows_are_predicted_by_the_others(synthetic: Loops) -> None:
    few = synthetic.select(np.arange(len(synthetic)) % 3 == 0)
    folds = random_folds(few, 2)
    free = (("overhead.graph", "per_step_s"), ("request", "per_request_s"))
    found = held_out_loops(few, folds, free)
    for fold in (0, 1):
        fits = fit_engines(few.select(folds != fold), free=free)
        expected = predict_rows(few.select(folds == fold), fits)
        for name in Loop.__slots__:
            assert getattr(found, name)[folds == fold].tolist() == getattr(expected, name).tolist()
