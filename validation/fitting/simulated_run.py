"""A recorded run simulated: the same requests on the same engine, with the step times of a calibration and of one overhead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costmodel.building import build_parameters
from costmodel.calibrations import choose_calibration
from costmodel.deployment import Deployment, deploy
from costmodel.equations.parameters import Overheads, Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.simulation.clock import StepClock
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.running import engine_for
from costmodel.simulation.tally import Tally
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.datasets.served_runs import Served
from costmodel.validation.datasets.tables import Column


@dataclass(frozen=True, slots=True)
class RunServer:
    """What a recorded run was served by, as it is simulated.

    Attributes:
        served: model, GPU and flags.
        deployment: the same, resolved.
        parameters: of its steps.
        calibration: whose; None at datasheet rates.
        notes: what has to be said.
    """

    served: Served
    deployment: Deployment
    parameters: Parameters
    calibration: Calibration | None
    notes: tuple[str, ...]

    @property
    def overhead(self) -> float:
        """What the calibration has of overheads in a step without prefill and without sequences [s]."""
        overheads = self.parameters.overheads
        return 0.0 if overheads is None else float(overheads.graph)

    @property
    def launches(self) -> float:
        """What the kernels of a step take to be launched, timed one by one [s]: so much may hide behind the kernel before."""
        parameters = self.parameters
        launches = [gemm.rate.launch * gemm.count for gemm in parameters.gemms]
        launches += [expert.rate.launch * expert.count for expert in parameters.experts]
        launches += [kernel.decode_rate.launch * kernel.count for kernel in parameters.attention]
        launches += [parameters.elementwise.launch] if parameters.elementwise else []
        return float(sum(launches))

    def with_overhead(self, seconds: float) -> Parameters:
        """Return the parameters with so much more time in every step [s]; less than zero is launches that are hidden."""
        own = self.parameters.overheads or Overheads()
        return replace(self.parameters, overheads=replace(own, graph=own.graph + seconds, eager=own.eager + seconds))


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What the simulation makes of the requests of a run, in their order.

    Attributes:
        scheduled, first, last: on the clock of the run; NaN for what did not happen [s].
        preemptions: in all.
        steps, mixed_steps: in all, and those with prefill.
        samples: state over time: time [s], running, waiting, share of the KV blocks.
    """

    scheduled: Column
    first: Column
    last: Column
    preemptions: int
    steps: int
    mixed_steps: int
    samples: tuple[Column, Column, Column, Column]


def deployment_of(served: Served) -> Deployment:
    """Return model and GPUs of a run.

    Raises:
        InputError: a model or GPU that is not known.
    """
    return deploy(
        served.model,
        served.gpu,
        tp=served.tp,
        pp=served.pp,
        ep=served.ep,
        dtype=served.dtype,
        kv_dtype=served.kv_dtype,
    )


def server_of(served: Served, calibration: str | Path | Calibration | None = None) -> RunServer:
    """Return how a run is simulated, with the calibration of its GPU, or at datasheet rates where there is none.

    Args:
        served: of the run.
        calibration: to be used; None for the one that is shipped for the GPU and vLLM.

    Raises:
        InputError: a model or GPU that is not known.
    """
    deployment = deployment_of(served)
    notes = [*served.notes, *deployment.notes]
    chosen = choose_calibration(calibration, deployment, "vllm", False)
    if chosen is None:
        notes.append(
            f"no calibration of {deployment.gpu} for vllm: kernels at datasheet rates, which the overhead cannot make up for"
        )
    rates = CalibratedRates(chosen) if chosen else None
    parameters = build_parameters(deployment, rates)
    if rates is not None:
        left_out = [name for name in rates.missing if not name.startswith("overhead")]
        notes += [f"not in the calibration, at datasheet rates or left out: {', '.join(left_out)}"] if left_out else []
        notes += rates.borrowed
    return RunServer(served, deployment, parameters, chosen, tuple(notes))


def simulate_run(requests: RequestTable, server: RunServer, overhead: float = 0.0) -> SimulatedRun:
    """Simulate the requests of a run; each answer ends where it did.

    Arrivals are on the engine's clock by the request that it had soonest, so nothing lies between a request and the engine.

    Args:
        requests: in any order.
        server: what they are served by.
        overhead: time that every step takes beside what the calibration says [s].

    Raises:
        InputError: the engine would not have taken one of them.
    """
    tally = Tally(keep_steps=True)
    order = np.argsort(requests.arrival, kind="stable")
    sent = [
        Request(float(requests.arrival[index]), int(requests.input_tokens[index]), int(requests.output_tokens[index]))
        for index in order
    ]
    settings = server.served.settings
    engine = engine_for(settings)(settings, StepClock(server.with_overhead(overhead)), Listed(sent), tally)
    engine.run()
    if tally.refused:
        raise InputError("the engine would refuse requests of this run: " + "; ".join(tally.refused))
    times = np.full((3, len(sent)), np.nan)
    for index, item in zip(order, tally.served, strict=True):
        times[:, index] = item.scheduled, item.first, item.last
    state = np.array(tally.samples, dtype=np.float64).T
    blocks = settings.usable_blocks or 1
    samples = (state[0], state[1], state[2], state[3] / blocks)
    scheduled, first, last = times
    return SimulatedRun(scheduled, first, last, tally.preemptions, tally.steps, len(tally.mixed_steps), samples)
