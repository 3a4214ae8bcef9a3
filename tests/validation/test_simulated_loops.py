"""Closed loops that are simulated: the load of a row, recovery of a known way to the engine, and what a late request does."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.calibration import Calibration
from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.datasets.end_to_end import EndToEndRow, end_to_end
from costmodel.validation.datasets.end_to_end_rules import end_to_end_rules
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.datasets.servers import PROMPTS_PER_CLIENT, server_of
from costmodel.validation.fitting.engines import EngineFit
from costmodel.validation.fitting.simulated_loops import (
    AT_ONCE,
    PROMPTS,
    Arrival,
    RowSimulator,
    fit_arrival,
    fit_arrivals,
    load_of,
    states_its_load,
    with_arrival,
)

STEPS = {("overhead.graph", "per_step_s"): 1e-3, ("overhead.eager", "per_step_s"): 4e-3}
OVERHEADS = EngineFit(STEPS, dict.fromkeys(STEPS, 0.0), 0)
TRUTH = Arrival(
    {"per_request_s": 0.02, "steps": 2.0, "per_prompt_token_s": 1e-5}, {}, {"per_request_s": 0.01, "steps": 3.0}, 3.0
)
"""A way to the engine of the size that it has, and clients that send three prompts."""


def kernels(row: EndToEndRow | None = None) -> Calibration:
    found = shipped_calibration("h100-sxm", "vllm")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def measured() -> tuple[EndToEndRow, ...]:
    """Small rows of vLLM on one part, half of them with clients that are known."""
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed (extra: silicon)")
    kept, _ = apply_rules(end_to_end(), end_to_end_rules())
    rows = [row for row in kept if (row.gpu, row.engine) == ("h100-sxm", "vllm") and row.concurrency <= 16]
    known = [row for row in rows if states_its_load(row)]
    others = [row for row in rows if not states_its_load(row)]
    return (*known[:20], *others[:20])


@pytest.fixture(scope="module")
def synthetic(measured: tuple[EndToEndRow, ...]) -> tuple[EndToEndRow, ...]:
    """The same rows, with the times that our own engine takes behind our own way to it."""
    simulator = RowSimulator(kernels)
    made = [simulator.simulate(row, OVERHEADS, TRUTH) for row in measured]
    return tuple(replace(row, ttft_s=item.ttft, tpot_s=item.tpot) for row, item in zip(measured, made, strict=True))


def test_known_clients_send_what_they_are_known_to_send(measured: tuple[EndToEndRow, ...]) -> None:
    known, other = measured[0], measured[-1]
    assert states_its_load(known)
    assert not states_its_load(other)
    for row, each in ((known, PROMPTS_PER_CLIENT), (other, 3.0)):
        load, sent = load_of(row, server_of(row), 3.0), 0
        while load.next_arrival() < math.inf:
            load.ended(load.take(), 1.0 + sent)
            sent += 1
        assert sent == round(each * row.concurrency)


def test_the_way_to_the_engine_is_part_of_ttft(measured: tuple[EndToEndRow, ...]) -> None:
    simulator = RowSimulator(kernels)
    alone = replace(measured[0], concurrency=1)
    at_once, late = (simulator.simulate(alone, OVERHEADS, given) for given in (AT_ONCE, TRUTH))
    assert at_once.delay == 0
    assert late.delay > 0.02
    assert late.ttft - late.delay == pytest.approx(at_once.ttft, rel=1e-9)
    assert late.tpot == pytest.approx(at_once.tpot, rel=1e-9)


def test_a_known_way_is_recovered_where_it_changes_nothing_else(measured: tuple[EndToEndRow, ...]) -> None:
    """One client: nothing runs meanwhile, so that TTFT is exactly affine in the three numbers."""
    simulator = RowSimulator(kernels)
    rows = [replace(row, concurrency=1) for row in measured]
    made = [simulator.simulate(row, OVERHEADS, TRUTH) for row in rows]
    asked = [replace(row, ttft_s=item.ttft) for row, item in zip(rows, made, strict=True)]
    found, loss = fit_arrival(
        asked, [simulator.simulate(row, OVERHEADS, replace(AT_ONCE, prompts_per_client=3.0)) for row in asked]
    )
    for name, value in TRUTH.values.items():
        assert found.values[name] == pytest.approx(value, rel=1e-4), name
    assert found.of_runs == pytest.approx(TRUTH.of_runs, rel=1e-4)
    assert loss < 1e-9


def test_a_known_way_and_the_prompts_of_a_client_are_recovered(synthetic: tuple[EndToEndRow, ...]) -> None:
    found = fit_arrivals(synthetic, {"vllm": OVERHEADS}, RowSimulator(kernels))["vllm"]
    assert found.prompts_per_client == TRUTH.prompts_per_client
    again = [RowSimulator(kernels).simulate(row, OVERHEADS, found) for row in synthetic]
    ratio = np.array([item.ttft / row.ttft_s for item, row in zip(again, synthetic, strict=True)])
    assert np.median(np.abs(ratio - 1)) < 0.02


def test_runs_that_all_state_their_load_choose_no_number_of_prompts(synthetic: tuple[EndToEndRow, ...]) -> None:
    known = [row for row in synthetic if states_its_load(row)]
    found = fit_arrivals(known, {"vllm": OVERHEADS}, RowSimulator(kernels))["vllm"]
    assert found.prompts_per_client == PROMPTS_PER_CLIENT
    assert PROMPTS_PER_CLIENT in PROMPTS


def test_a_calibration_carries_it(synthetic: tuple[EndToEndRow, ...]) -> None:
    made = with_arrival(OVERHEADS, TRUTH)
    assert made.values["arrival", "steps"] == 2.0
    assert made.values["overhead.eager", "per_step_s"] == 4e-3
