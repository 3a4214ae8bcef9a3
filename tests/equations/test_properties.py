"""What must hold for every model, part, load and calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.building import build_parameters
from costmodel.deployment import Deployment, Hardware
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, StepTimes, step_operators, step_times
from costmodel.equations.work import Chunk, Decodes, Work, make_work
from costmodel.hardware.calibration import Calibration
from tests.strategies import NOTHING_LOST, calibrations, chunks, counts, decodes, deployments, examples

MAYBE_CALIBRATED = st.none() | calibrations()
LOADS = st.tuples(st.lists(chunks(), max_size=2), st.lists(decodes(), max_size=2)).filter(any)
Load = tuple[list[Chunk], list[Decodes]]
ROUNDING = 1e-12
"""Sums in another order differ by this much at most."""


def parameters_of(deployment: Deployment, calibration: Calibration | None) -> Parameters:
    """Return the parameters of the roofline rung, or of the calibrated one."""
    return build_parameters(deployment, CalibratedRates(calibration) if calibration else None)


def seconds(parameters: Parameters, load: Load) -> float:
    """Return the time of a step [s]."""
    return float(step_times(parameters, make_work(*load, parameters.windows)).total)


def flops_and_bytes(operator: OperatorTime[float]) -> tuple[str, float, float]:
    """Return what does not depend on rates."""
    return operator.name, operator.flops, operator.bytes


def kernels(operators: list[OperatorTime[float]]) -> tuple[list[OperatorTime[float]], list[OperatorTime[float]]]:
    """Return the operators that the roofline has too, and those that only a calibration adds."""
    added = [operator for operator in operators if operator.group in ("elementwise", "overhead")]
    return [operator for operator in operators if operator not in added], added


# --- two of the three readings (the symbolic one: tests/symbolic) -------------------------------------------------------


@examples(60)
@given(deployments(), MAYBE_CALIBRATED, st.lists(st.tuples(chunks(), decodes()), min_size=1, max_size=6))
def test_arrays_read_like_floats(
    deployment: Deployment, calibration: Calibration | None, steps: list[tuple[Chunk, Decodes]]
) -> None:
    parameters = parameters_of(deployment, calibration)
    columns = [
        np.array([getattr(group[index], name) for group in steps])
        for index, name in ((0, "tokens"), (0, "cached"), (1, "count"), (1, "context"))
    ]
    q, c, count, context = columns
    for array, scalars in (
        (([Chunk(q, c)], [Decodes(count, context)]), [([chunk], [group]) for chunk, group in steps]),
        (([Chunk(q, c)], []), [([chunk], []) for chunk, _ in steps]),
        (([], [Decodes(count, context)]), [([], [group]) for _, group in steps]),
        (
            ([Chunk(q, 0.0)], [Decodes(32.0, context)]),
            [([Chunk(chunk.tokens, 0.0)], [Decodes(32.0, group.context)]) for chunk, group in steps],
        ),
    ):
        times = step_times(parameters, make_work(*array, parameters.windows))
        expected = [step_times(parameters, make_work(*load, parameters.windows)) for load in scalars]
        for field in fields(StepTimes):
            values = np.broadcast_to(getattr(times, field.name), np.shape(times.total))
            assert values == pytest.approx([getattr(one, field.name) for one in expected], rel=ROUNDING)


# --- the floor ---------------------------------------------------------------------------------------------------------


@examples(100)
@given(deployments(), calibrations(), LOADS)
def test_no_calibration_goes_below_the_floor(deployment: Deployment, calibration: Calibration, load: Load) -> None:
    floor, fitted = build_parameters(deployment), parameters_of(deployment, calibration)
    work = make_work(*load, floor.windows)
    kept, added = kernels(step_operators(fitted, work))
    for at_datasheet, operator in zip(step_operators(floor, work), kept, strict=True):
        assert operator.name == at_datasheet.name
        assert operator.seconds >= at_datasheet.seconds * (1 - ROUNDING)
    assert all(operator.seconds >= 0 for operator in added)


@examples(100)
@given(deployments(), MAYBE_CALIBRATED, LOADS)
def test_every_kernel_respects_peak_and_bandwidth(
    deployment: Deployment, calibration: Calibration | None, load: Load
) -> None:
    # Seconds ≥ max(FLOPs/F, bytes/W); a link's seconds ≥ bytes/B_link.
    parameters = parameters_of(deployment, calibration)
    peak, hardware = max(deployment.hardware.peaks.values()), deployment.hardware
    for operator in step_operators(parameters, make_work(*load, parameters.windows)):
        bandwidth = hardware.link_bandwidth if operator.group == "communication" else hardware.bandwidth
        floor = max(operator.flops / peak, operator.bytes / bandwidth)
        assert operator.seconds >= floor * (1 - ROUNDING)
        assert operator.seconds >= operator.fixed_s


@examples(60)
@given(deployments(), LOADS)
def test_a_calibration_at_its_defaults_is_the_roofline(deployment: Deployment, load: Load) -> None:
    roofline, neutral = build_parameters(deployment), parameters_of(deployment, NOTHING_LOST)
    work = make_work(*load, roofline.windows)
    plain, fitted = step_operators(roofline, work), step_operators(neutral, work)
    kept, _ = kernels(fitted)
    assert [flops_and_bytes(operator) for operator in kept] == [flops_and_bytes(operator) for operator in plain]
    assert [operator.seconds for operator in kept] == [operator.seconds for operator in plain]
    assert step_times(neutral, work) == step_times(roofline, work)


# --- monotonicity ------------------------------------------------------------------------------------------------------


@examples(100)
@given(deployments(), MAYBE_CALIBRATED, counts(20_000), counts(50_000, 0), decodes(), counts(5_000, 0))
def test_more_work_never_takes_less_time(
    deployment: Deployment,
    calibration: Calibration | None,
    prompt: float,
    cached: float,
    group: Decodes,
    more: float,
) -> None:
    parameters = parameters_of(deployment, calibration)
    mixed = seconds(parameters, ([Chunk(prompt, cached)], [group]))
    decode = seconds(parameters, ([], [group]))
    for base, load in (
        (mixed, ([Chunk(prompt + more, cached)], [group])),
        (mixed, ([Chunk(prompt, cached + more)], [group])),
        (mixed, ([Chunk(prompt, cached)], [Decodes(group.count, group.context + more)])),
        (mixed, ([Chunk(prompt, cached)], [Decodes(group.count + more, group.context)])),
        (mixed, ([Chunk(prompt, cached), Chunk(more + 1, 0.0)], [group])),
        (decode, ([], [Decodes(group.count, group.context + more)])),
        (decode, ([], [Decodes(group.count + more, group.context)])),
        (decode, ([], [group, Decodes(more, group.context)])),
    ):
        assert seconds(parameters, load) >= base * (1 - ROUNDING)


Change = Callable[[Deployment, float], Deployment]


def _with_hardware(deployment: Deployment, **changed: Any) -> Deployment:
    return replace(deployment, hardware=replace(deployment.hardware, **changed))


def _peaks(hardware: Hardware, dtype: str | None, factor: float) -> dict[str, float]:
    return {name: value * (factor if dtype in (None, name) else 1) for name, value in hardware.peaks.items()}


SLOWER: dict[str, Change] = {
    "layers": lambda item, factor: replace(
        item, layer_counts=tuple(count + round(factor) for count in item.layer_counts)
    ),
    "bytes per weight": lambda item, factor: replace(
        item, format_bytes={fmt: size * factor for fmt, size in item.format_bytes.items()}
    ),
    "bytes per weight of one format": lambda item, factor: replace(
        item, format_bytes={**item.format_bytes, next(iter(item.format_bytes)): 4.0 * factor}
    ),
    "bytes per KV element": lambda item, factor: replace(item, kv_bytes=item.kv_bytes * factor),
}
FASTER: dict[str, Change] = {
    "all peaks": lambda item, factor: _with_hardware(item, peaks=_peaks(item.hardware, None, factor)),
    "one peak": lambda item, factor: _with_hardware(item, peaks=_peaks(item.hardware, "bf16", factor)),
    "bandwidth": lambda item, factor: _with_hardware(item, bandwidth=item.hardware.bandwidth * factor),
    "link": lambda item, factor: _with_hardware(item, link_bandwidth=item.hardware.link_bandwidth * factor),
}


@pytest.mark.parametrize("what", SLOWER)
@examples(25)
@given(deployments(), MAYBE_CALIBRATED, LOADS, st.floats(1.0, 10.0))
def test_a_larger_model_is_never_faster(
    what: str, deployment: Deployment, calibration: Calibration | None, load: Load, factor: float
) -> None:
    larger = SLOWER[what](deployment, factor)
    before, after = (seconds(parameters_of(item, calibration), load) for item in (deployment, larger))
    assert after >= before * (1 - ROUNDING)


@pytest.mark.parametrize("what", FASTER)
@examples(25)
@given(deployments(), MAYBE_CALIBRATED, LOADS, st.floats(1.0, 10.0))
def test_a_better_part_is_never_slower(
    what: str, deployment: Deployment, calibration: Calibration | None, load: Load, factor: float
) -> None:
    better = FASTER[what](deployment, factor)
    before, after = (seconds(parameters_of(item, calibration), load) for item in (deployment, better))
    assert after <= before * (1 + ROUNDING)


# --- chunked prefill ---------------------------------------------------------------------------------------------------


def flops_by_group(parameters: Parameters, work: Work) -> dict[str, float]:
    """Return FLOPs of a step by group, those of the cache's readers apart."""
    found: dict[str, float] = {}
    for operator in step_operators(parameters, work):
        found[operator.group] = found.get(operator.group, 0.0) + operator.flops
    return found


@examples(60)
@given(deployments(), st.integers(1, 12_000), st.integers(200, 4096), counts(10_000, 0))
def test_chunked_prefill_sums_to_the_flops_of_one_step(
    deployment: Deployment, prompt: int, room: int, cached: float
) -> None:
    # Σ over chunks of 2·P·q and of 4·h·d_h·L·A_w are those of the whole prompt, for every window and every budget.
    # lm_head differs by design: every chunk sends one row through it.
    parameters = build_parameters(deployment)
    whole = flops_by_group(parameters, make_work([Chunk(prompt, cached)], windows=parameters.windows))
    parts = [
        flops_by_group(
            parameters, make_work([Chunk(min(room, prompt - done), cached + done)], windows=parameters.windows)
        )
        for done in range(0, prompt, room)
    ]
    assert whole.keys() <= {"linear", "experts", "attention", "lm_head", "communication"}
    for group in whole.keys() & {"linear", "experts", "attention"}:
        assert sum(part[group] for part in parts) == pytest.approx(whole[group], rel=ROUNDING)
    assert sum(part["lm_head"] for part in parts) == pytest.approx(whole["lm_head"] * len(parts), rel=ROUNDING)


@examples(30)
@given(deployments(), st.integers(1, 3000), st.integers(1, 4), st.integers(1, 4000))
def test_prompts_that_share_a_budget_keep_their_flops(
    deployment: Deployment, prompt: int, prompts: int, room: int
) -> None:
    # Several prompts first come, first served: a step may finish one and begin the next.
    room = max(room, prompt * prompts // 50 + 1)
    parameters = build_parameters(deployment)
    whole = flops_by_group(parameters, make_work([Chunk(prompt)] * prompts, windows=parameters.windows))
    sums = dict.fromkeys(whole, 0.0)
    position, total = 0, prompt * prompts
    while position < total:
        left, parts = room, []
        while left and position < total:
            done = position % prompt
            taken = min(left, prompt - done)
            parts.append(Chunk(taken, done))
            left, position = left - taken, position + taken
        for group, flops in flops_by_group(parameters, make_work(parts, windows=parameters.windows)).items():
            sums[group] += flops
    for group in whole.keys() & {"linear", "experts", "attention"}:
        assert sums[group] == pytest.approx(whole[group], rel=ROUNDING)
