"""Measured closed loops, simulated: every request of a row's load test on the steps of its deployment, instead of the closed form.

What lies between a request and the engine (form ``arrival``) is fitted here: a simulation knows by itself which steps a prompt waits
for, so its host is another than the closed form's: three numbers per engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodel.building import build_parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.calibration import Calibration
from costmodel.simulation.clock import StepClock
from costmodel.simulation.jumping import JumpingEngine, can_jump
from costmodel.simulation.requests import Source
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from costmodel.simulation.workloads import closed_loop
from costmodel.validation.datasets.end_to_end import EndToEndRow
from costmodel.validation.datasets.servers import RANDOM_SHARE, Server, server_of
from costmodel.validation.fitting.calibrate import engine_calibration
from costmodel.validation.fitting.closed_loops import BURST_SHARE, deployment_of
from costmodel.validation.fitting.engines import LOSS_SCALE, EngineFit
from costmodel.validation.fitting.least_squares import uncertainty

Array = NDArray[np.float64]

SPREAD = 2 * (1 - RANDOM_SHARE)
"""Lengths of InferenceX's requests are uniform over this share of the longest. Runs that do not say how theirs vary are taken to vary
likewise: with lengths all alike the first burst comes back in every round, and their TTFT does not."""
FEWEST_PROMPTS, MOST_PROMPTS = 2.0, 20.0
"""Prompts per client are at least and at most so many where only a fitted burst share tells their number."""
ROWS = {"vllm": 120, "trtllm": 120, "sglang": 24}
"""Rows of an engine, drawn at random, that its arrival is fitted to: more take long and change little. SGLang's run step by step."""
UNITS = {"per_request_s": 0.01, "steps": 1.0, "per_prompt_token_s": 1e-5}
"""Parameters of ``arrival``, each in a unit of its usual size."""


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """Means of a simulated row [s]."""

    ttft: float
    tpot: float


class RowSimulator:
    """Simulates rows; deployments are built once.

    Args:
        calibration_of: fitted kernels for a row.
    """

    def __init__(self, calibration_of: Callable[[EndToEndRow], Calibration]) -> None:
        self._calibration_of = calibration_of
        self._clocks: dict[object, StepClock] = {}

    def simulate(self, row: EndToEndRow, fit: EngineFit, arrival: Mapping[str, float]) -> SimulatedRow:
        """Simulate a row's load test.

        Args:
            row: what was measured.
            fit: overheads of the engine's steps.
            arrival: parameters of the form ``arrival``; none for a request that the engine has as soon as it is sent.
        """
        server, clients = server_of(row), row.concurrency
        clock = self._clock(row, server, fit)
        settings = _settings(row, server)
        typical = server.input_tokens + server.output_tokens / 2
        reads = [clients * (typical + 1 if width is None else min(typical + 1.0, width)) for width in clock.windows]
        base = arrival.get("per_request_s", 0.0) + arrival.get("steps", 0.0) * clock.decode(clients, reads)
        tally = Tally()
        engine = JumpingEngine if can_jump(settings) else Engine
        source = load_of(row, server, fit.values.get(BURST_SHARE))
        engine(settings, clock, source, tally, delay=(base, arrival.get("per_prompt_token_s", 0.0))).run()
        ttft = [item.first - item.request.arrival for item in tally.served]
        tpot = [(item.last - item.first) / (item.tokens - 1) for item in tally.served if item.tokens > 1]
        return SimulatedRow(float(np.mean(ttft)), float(np.mean(tpot)) if tpot else float("nan"))

    def _clock(self, row: EndToEndRow, server: Server, fit: EngineFit) -> StepClock:
        key = (*row.deployment, server.kv_dtype, server.expert_parallel, row.engine, id(fit))
        if key not in self._clocks:
            calibration = engine_calibration(self._calibration_of(row), fit, {}, (), "overheads of a fit")
            self._clocks[key] = StepClock(build_parameters(deployment_of(row), CalibratedRates(calibration)))
        return self._clocks[key]


def load_of(row: EndToEndRow, server: Server, burst_share: float | None) -> Source:
    """Return the clients of a row: as InferenceX has them, else as many prompts as the fitted share of the first burst says."""
    prompts = server.prompts_per_client
    if row.protocol != "InferenceX" and burst_share is not None:
        prompts = min(max(0.5 / max(burst_share, 1e-9), FEWEST_PROMPTS), MOST_PROMPTS)
    longest = 1 - SPREAD / 2
    return closed_loop(
        row.concurrency,
        max(round(row.concurrency * prompts), 1),
        max(round(server.input_tokens / longest), 1),
        max(round(server.output_tokens / longest), 1),
        SPREAD,
        seed=1,
    )


def _settings(row: EndToEndRow, server: Server) -> Settings:
    """Return the engine of a row: SGLang prefills what waits before it goes on decoding; the others mix the two in a step."""
    first = row.engine == "sglang"
    return Settings(
        token_budget=server.token_budget if first else max(server.token_budget, row.concurrency + 1),
        max_num_seqs=max(row.concurrency - server.queued, 1),
        block_tokens=64,
        prefix_caching=False,
        hold_steps=server.wait_steps,
        scheduler="prefill-first" if first else "vllm",
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """What lies between a request and the engine: parameters of the form ``arrival`` and their standard errors."""

    values: dict[str, float]
    standard_errors: dict[str, float]


def fit_arrival(rows: Sequence[EndToEndRow], at_once: Sequence[SimulatedRow]) -> Arrival:
    """Fit what lies between a request and the engine: bounded least squares on ln(simulated/measured TTFT), soft L1 loss.

    It adds to TTFT, and hardly changes what runs meanwhile; so TTFT is taken to be that without it, plus
    per_request_s + per_prompt_token_s·n + steps·TPOT.

    Args:
        rows: what was measured, of one engine.
        at_once: the same simulated without any of it.
    """
    measured = np.array([row.ttft_s for row in rows])
    base = np.array([item.ttft for item in at_once])
    step = np.array([item.tpot for item in at_once])
    tokens = np.array([server_of(row).input_tokens for row in rows])
    columns = {"per_request_s": np.ones(len(rows)), "steps": step, "per_prompt_token_s": tokens}
    units = np.array(list(UNITS.values()))
    matrix = np.stack([columns[name] for name in UNITS], axis=1) * units

    def residuals(point: Array) -> Array:
        return np.asarray(np.log((base + matrix @ point) / measured))

    def slopes(point: Array) -> Array:
        return np.asarray(matrix / (base + matrix @ point)[:, None])

    found = least_squares(
        residuals, np.ones(len(units)), jac=slopes, bounds=(0.0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE, xtol=1e-12
    )
    errors, _ = uncertainty(slopes(found.x), residuals(found.x))
    return Arrival(
        dict(zip(UNITS, (found.x * units).tolist(), strict=True)),
        dict(zip(UNITS, (errors * units).tolist(), strict=True)),
    )


def fit_arrivals(
    rows: Sequence[EndToEndRow], fits: Mapping[str, EngineFit], simulator: RowSimulator, seed: int = 0
) -> dict[str, Arrival]:
    """Return the arrival of every engine, fitted to a draw of its rows; of an engine without rows, to a draw of all."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(rows))
    made = {}
    for engine, fit in fits.items():
        own = [rows[index] for index in order if rows[index].engine == engine]
        chosen = (own or [rows[index] for index in order])[: ROWS[engine]]
        at_once = [simulator.simulate(row, fits.get(row.engine, fit), {}) for row in chosen]
        kept = [index for index, item in enumerate(at_once) if not np.isnan(item.tpot)]
        made[engine] = fit_arrival([chosen[index] for index in kept], [at_once[index] for index in kept])
    return made


def with_arrival(fit: EngineFit, arrival: Arrival) -> EngineFit:
    """Return a fit that carries the arrival as well, for a calibration's file."""
    values = {("arrival", name): value for name, value in arrival.values.items()}
    errors = {("arrival", name): value for name, value in arrival.standard_errors.items()}
    return replace(fit, values=fit.values | values, standard_errors=fit.standard_errors | errors)
