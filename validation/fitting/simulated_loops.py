"""Measured closed loops, simulated: every request of a row's load test on the steps of its deployment, instead of the closed form.

What lies between a request and the engine (form ``arrival``) is fitted here: a simulation knows by itself which steps a prompt waits
for, so its host is another than the closed form's: three numbers per engine. Beside them stand three numbers per engine of the runs whose
load is not known: how many prompts a client sends, and what more lies between its request and the engine.
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
from costmodel.simulation.clock import StepClock, decode_alike
from costmodel.simulation.requests import Source
from costmodel.simulation.running import engine_for
from costmodel.simulation.settings import Settings
from costmodel.simulation.tally import Tally
from costmodel.simulation.workloads import closed_loop
from costmodel.validation.datasets.end_to_end import EndToEndRow
from costmodel.validation.datasets.servers import PROMPTS_PER_CLIENT, RANDOM_SHARE, Server, server_of
from costmodel.validation.fitting.calibrate import engine_calibration
from costmodel.validation.fitting.closed_loops import deployment_of
from costmodel.validation.fitting.engines import LOSS_SCALE, EngineFit
from costmodel.validation.fitting.least_squares import uncertainty

Array = NDArray[np.float64]

SPREAD = 2 * (1 - RANDOM_SHARE)
"""Lengths of InferenceX's requests are uniform over this share of the longest. Runs that do not say how theirs vary are taken to vary
likewise: with lengths all alike the first burst comes back in every round, and their TTFT does not."""
PROMPTS = (2.0, 3.0, 5.0, PROMPTS_PER_CLIENT, 20.0)
"""Prompts per client that are tried for the runs that do not say theirs. With few of them the first burst, in which all prompts wait for
one another, weighs much."""
ROWS = {"vllm": 120, "trtllm": 120, "sglang": 24}
"""Rows of an engine, drawn at random, that its arrival is fitted to: more take long and change little. SGLang's run step by step."""
UNITS = {"per_request_s": 0.01, "steps": 1.0, "per_prompt_token_s": 1e-5}
"""Parameters of ``arrival``, each in a unit of its usual size."""
OF_RUNS = ("per_request_s", "steps")
"""Those that runs which do not say their load have on top."""


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """A simulated row.

    Attributes:
        ttft, tpot: means [s].
        delay: mean time until the engine has a request, which is part of ``ttft`` [s].
        step: a decode step of all clients [s].
        prompt_tokens: mean length [tokens].
    """

    ttft: float
    tpot: float
    delay: float
    step: float
    prompt_tokens: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """What lies between a request and the engine.

    Attributes:
        values, standard_errors: parameters of the form ``arrival``.
        of_runs: what comes on top of the values in runs that do not say their load; of those runs, not of the engine.
        prompts_per_client: in those runs.
    """

    values: dict[str, float]
    standard_errors: dict[str, float]
    of_runs: dict[str, float]
    prompts_per_client: float

    def given(self, name: str, row: EndToEndRow) -> float:
        """Return a parameter for a row."""
        return self.values.get(name, 0.0) + (0.0 if states_its_load(row) else self.of_runs.get(name, 0.0))


AT_ONCE = Arrival({}, {}, {}, PROMPTS_PER_CLIENT)
"""The engine has a request as soon as it is sent."""


class RowSimulator:
    """Simulates rows; deployments are built once.

    Args:
        calibration_of: fitted kernels for a row.
    """

    def __init__(self, calibration_of: Callable[[EndToEndRow], Calibration]) -> None:
        self._calibration_of = calibration_of
        self._clocks: dict[object, StepClock] = {}

    def simulate(self, row: EndToEndRow, fit: EngineFit, arrival: Arrival = AT_ONCE) -> SimulatedRow:
        """Simulate a row's load test.

        Args:
            row: what was measured.
            fit: overheads of the engine's steps.
            arrival: what lies between a request and the engine.
        """
        server, clients = server_of(row), row.concurrency
        clock = self._clock(row, server, fit)
        settings = _settings(row, server)
        step = decode_alike(clock, clients, server.input_tokens + server.output_tokens / 2)
        base = arrival.given("per_request_s", row) + arrival.given("steps", row) * step
        per_token = arrival.given("per_prompt_token_s", row)
        tally = Tally()
        source = load_of(row, server, arrival.prompts_per_client)
        engine_for(settings)(settings, clock, source, tally, delay=(base, per_token)).run()
        ttft = [item.first - item.request.arrival for item in tally.served]
        tpot = [(item.last - item.first) / (item.tokens - 1) for item in tally.served if item.tokens > 1]
        tokens = float(np.mean([item.request.prompt for item in tally.served]))
        mean_tpot = float(np.mean(tpot)) if tpot else float("nan")
        return SimulatedRow(float(np.mean(ttft)), mean_tpot, base + per_token * tokens, step, tokens)

    def _clock(self, row: EndToEndRow, server: Server, fit: EngineFit) -> StepClock:
        key = (*row.deployment, server.kv_dtype, server.expert_parallel, row.engine, id(fit))
        if key not in self._clocks:
            calibration = engine_calibration(self._calibration_of(row), fit, {}, (), "overheads of a fit")
            self._clocks[key] = StepClock(build_parameters(deployment_of(row), CalibratedRates(calibration)))
        return self._clocks[key]


def load_of(row: EndToEndRow, server: Server, prompts_per_client: float) -> Source:
    """Return the clients of a row: as InferenceX has them, else with so many prompts each."""
    prompts = server.prompts_per_client if states_its_load(row) else prompts_per_client
    longest = 1 - SPREAD / 2
    return closed_loop(
        row.concurrency,
        max(round(row.concurrency * prompts), 1),
        max(round(server.input_tokens / longest), 1),
        max(round(server.output_tokens / longest), 1),
        SPREAD,
        seed=1,
    )


def states_its_load(row: EndToEndRow) -> bool:
    """Tell whether it is known how many prompts the clients of a row sent."""
    return row.protocol == "InferenceX"


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


def fit_arrival(
    rows: Sequence[EndToEndRow], simulated: Sequence[SimulatedRow], prompts_per_client: float = PROMPTS_PER_CLIENT
) -> tuple[Arrival, float]:
    """Fit what lies between a request and the engine: bounded least squares on ln(simulated/measured TTFT), soft L1 loss.

    It adds to TTFT, and changes little of what runs meanwhile; so TTFT is taken to be the simulated one without it, plus
    per_request_s + per_prompt_token_s·n + steps·(a decode step), the first and the last with their numbers of the runs on top. Where all
    rows are of one kind, the runs have none.

    Args:
        rows: what was measured, of one engine.
        simulated: the same simulated.
        prompts_per_client: with which; only handed on.

    Returns:
        The fit, and its loss.
    """
    measured = np.array([row.ttft_s for row in rows])
    base = np.array([item.ttft - item.delay for item in simulated])
    unsaid = np.array([not states_its_load(row) for row in rows])
    columns = {
        "per_request_s": np.ones(len(rows)),
        "steps": np.array([item.step for item in simulated]),
        "per_prompt_token_s": np.array([item.prompt_tokens for item in simulated]),
    }
    of_runs = OF_RUNS if 0 < np.count_nonzero(unsaid) < len(rows) else ()
    names = (*UNITS, *of_runs)
    units = np.array([UNITS[name] for name in names])
    matrix = units * np.stack(
        [columns[name] for name in UNITS] + [np.where(unsaid, columns[name], 0.0) for name in of_runs], axis=1
    )

    def residuals(point: Array) -> Array:
        return np.asarray(np.log((base + matrix @ point) / measured))

    def slopes(point: Array) -> Array:
        return np.asarray(matrix / (base + matrix @ point)[:, None])

    found = least_squares(
        residuals, np.ones(len(units)), jac=slopes, bounds=(0.0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE,
        xtol=1e-12, ftol=1e-12, gtol=1e-12,
    )  # fmt: skip
    errors, _ = uncertainty(slopes(found.x), residuals(found.x))
    values, errors = (found.x * units).tolist(), (errors * units).tolist()
    own = len(UNITS)
    fit = Arrival(
        dict(zip(UNITS, values[:own], strict=True)),
        dict(zip(UNITS, errors[:own], strict=True)),
        dict(zip(of_runs, values[own:], strict=True)),
        prompts_per_client,
    )
    return fit, float(found.cost)


def fit_arrivals(
    rows: Sequence[EndToEndRow], fits: Mapping[str, EngineFit], simulator: RowSimulator, seed: int = 0
) -> dict[str, Arrival]:
    """Return the arrival of every engine, fitted to a draw of its rows; of an engine without rows, to a draw of all.

    First with requests that the engine has at once, for every number of prompts per client; then, with the best of them, once more with
    requests that come as late as was found, since prompts that come late come together.
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(rows))
    made = {}
    for engine, fit in fits.items():
        own = [rows[index] for index in order if rows[index].engine == engine]
        chosen = (own or [rows[index] for index in order])[: ROWS[engine]]

        def simulated(arrival: Arrival, asked: Sequence[EndToEndRow], fit: EngineFit = fit) -> list[SimulatedRow]:
            return [simulator.simulate(row, fits.get(row.engine, fit), arrival) for row in asked]

        stated = [row for row in chosen if states_its_load(row)]
        others = [row for row in chosen if not states_its_load(row)]
        known = simulated(AT_ONCE, stated)
        found = [
            fit_arrival(
                stated + others, known + simulated(replace(AT_ONCE, prompts_per_client=prompts), others), prompts
            )
            for prompts in (PROMPTS if others else (PROMPTS_PER_CLIENT,))
        ]
        first, _ = min(found, key=lambda pair: pair[1])
        made[engine], _ = fit_arrival(chosen, simulated(first, chosen), first.prompts_per_client)
    return made


def with_arrival(fit: EngineFit, arrival: Arrival) -> EngineFit:
    """Return a fit that carries the arrival as well, for a calibration's file."""
    values = {("arrival", name): value for name, value in arrival.values.items()}
    errors = {("arrival", name): value for name, value in arrival.standard_errors.items()}
    return replace(fit, values=fit.values | values, standard_errors=fit.standard_errors | errors)
