"""Measured closed loops as arrays: what each row's steps take by the kernels, and how they respond to every overhead of the engine.

A step's time is linear in the engine's overheads, but that a step with prefill takes the larger of the eager and the graph ones; so one
evaluation of the step equations per overhead gives its exact derivative. Steps are evaluated at a few numbers of running requests per row
and interpolated between them, which is what makes a fit take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from costmodel.building import build_parameters
from costmodel.deployment import Deployment, deploy
from costmodel.equations.closed_loop import (
    Clients,
    Loop,
    running_requests,
    solve_loop,
    time_per_output_token,
    time_to_first_token,
)
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.spike import mixed_steps, step_count
from costmodel.validation.datasets.end_to_end import EndToEndRow
from costmodel.validation.datasets.servers import Server, server_of

Array = NDArray[np.float64]

STEP_OVERHEADS: dict[tuple[str, str], float] = {
    ("launches", "hidden"): 1.0,
    ("elementwise", "passes"): 100.0,
    ("overhead.graph", "per_step_s"): 0.05,
    ("overhead.graph", "per_layer_s"): 1e-3,
    ("overhead.graph", "per_normed_layer_s"): 1e-3,
    ("overhead.graph", "per_sequence_s"): 1e-3,
    ("overhead.eager", "per_step_s"): 0.2,
    ("overhead.eager", "per_layer_s"): 1e-2,
}
"""Overheads of steps that may be fitted, by operator and parameter, and their upper bounds."""

REQUEST_OVERHEADS: dict[tuple[str, str], float] = {("request", "per_request_s"): 2.0, ("request", "steps_waited"): 4.0}
"""Overheads of a request, and their upper bounds."""

BURST_SHARE = ("protocol", "burst_share")
"""θ of the runs that do not say how many prompts they sent; ½ if every client sends one prompt. It is no part of an engine."""

ARRIVAL_OVERHEADS: dict[tuple[str, str], float] = {
    ("arrival", "per_request_s"): 60.0,
    ("arrival", "per_prompt_token_s"): 1e-2,
    ("arrival", "steps"): 100.0,
}
"""What simulations take for the way of a request to the engine (``simulated_loops``), and upper bounds."""

OVERHEADS = STEP_OVERHEADS | REQUEST_OVERHEADS | ARRIVAL_OVERHEADS | {BURST_SHARE: 0.5}

FORM_OF = {
    "launches": "overlap",
    "elementwise": "elementwise",
    "overhead.graph": "overhead",
    "overhead.eager": "overhead",
    "request": "request",
    "arrival": "arrival",
}

OF_GRAPH, OF_EAGER = (
    np.array([operator == kind for operator, _ in STEP_OVERHEADS]) for kind in ("overhead.graph", "overhead.eager")
)
"""Which of :data:`STEP_OVERHEADS` are whose; a step with prefill has the larger sum."""

GRID = np.linspace(0.1, 1.0, 7)
"""Running requests at which steps are evaluated, as shares of the clients."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Rows of one fit as arrays of equal length n.

    Attributes:
        rows: what was measured.
        clients: by which the equations are solved.
        decode, mixed: seconds at datasheet-free overheads, shape (n, grid): the kernels alone.
        burst: seconds of a step of the first burst, shape (n,).
        decode_slopes, mixed_slopes: seconds per unit of each overhead, shape (overheads, n, grid), in the order of
            :data:`STEP_OVERHEADS`; of ``mixed_slopes`` only the eager or only the graph ones are in a step.
        burst_slopes: the same, shape (overheads, n).
    """

    rows: tuple[EndToEndRow, ...]
    clients: Clients
    decode: Array
    mixed: Array
    burst: Array
    decode_slopes: Array
    mixed_slopes: Array
    burst_slopes: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ttft(self) -> Array:
        """Measured mean TTFT [s]."""
        return np.array([row.ttft_s for row in self.rows])

    @property
    def tpot(self) -> Array:
        """Measured mean TPOT [s]."""
        return np.array([row.tpot_s for row in self.rows])

    def select(self, mask: NDArray[np.bool_]) -> Loops:
        """Return the rows where ``mask`` is true."""
        clients = Clients(*(np.asarray(getattr(self.clients, name))[mask] for name in Clients.__slots__))
        return Loops(
            tuple(row for row, kept in zip(self.rows, mask, strict=True) if kept),
            clients,
            self.decode[mask],
            self.mixed[mask],
            self.burst[mask],
            self.decode_slopes[:, mask],
            self.mixed_slopes[:, mask],
            self.burst_slopes[:, mask],
        )


def deployment_of(row: EndToEndRow) -> Deployment:
    """Return the deployment that a row was measured on.

    Raises:
        InputError: the model or the number format is not supported on this part.
    """
    server = server_of(row)
    return deploy(
        row.architecture,
        row.gpu,
        tp=row.tp,
        ep=server.expert_parallel,
        dtype=row.weight_dtype,
        kv_dtype=server.kv_dtype,
    )


def tabulate(rows: Sequence[EndToEndRow], calibration_of: Callable[[EndToEndRow], Calibration]) -> Loops:
    """Evaluate the steps of every row.

    Args:
        rows: what was measured.
        calibration_of: fitted kernels for a row; its engine overheads, if any, are ignored.
    """
    built: dict[Any, list[Parameters]] = {}
    tables = []
    for row in rows:
        calibration = calibration_of(row)
        key = (*row.deployment, server_of(row), id(calibration))
        if key not in built:
            deployment = deployment_of(row)
            built[key] = [_with_overhead(deployment, calibration, chosen) for chosen in (None, *STEP_OVERHEADS)]
        tables.append(_row_table(row, server_of(row), built[key]))
    decode, mixed, burst = (np.stack(part, axis=1) for part in zip(*tables, strict=True))
    return Loops(
        tuple(rows),
        _clients(rows),
        decode[0],
        mixed[0],
        burst[0],
        decode[1:] - decode[:1],
        mixed[1:] - mixed[:1],
        burst[1:] - burst[:1],
    )


def _with_overhead(deployment: Deployment, calibration: Calibration, chosen: tuple[str, str] | None) -> Parameters:
    """Return the parameters with one overhead at 1 and all others at 0."""
    kernels = {key: value for key, value in calibration.operators.items() if key not in FORM_OF}
    units = {key: {"form": FORM_OF[key], "parameters": {}} for key in FORM_OF}
    whole = Calibration.model_validate(
        calibration.model_dump(by_alias=True) | {"operators": {**kernels, **units}}  # kernels stay as they are
    )

    def number(key: str, name: str) -> float:
        if key in FORM_OF:
            if name.endswith("efficiency") or name == "graph_multiple":
                return FORMS[FORM_OF[key]][name][0]
            return 1.0 if (key, name) == chosen else 0.0
        return whole.operators[key].number(name)

    return build_parameters(deployment, CalibratedRates(whole, number))


def _row_table(row: EndToEndRow, server: Server, parameters: Sequence[Parameters]) -> tuple[Array, Array, Array]:
    running = np.maximum(row.concurrency * GRID, 1.0)
    context = server.input_tokens + server.output_tokens / 2
    windows = parameters[0].windows
    prompts = burst_prompts(row, server)
    decode = make_work(decodes=[Decodes(running, context)], windows=windows)
    others = np.maximum(running - 1, 0.0)
    steps = [
        make_work(chunks, [Decodes(others, context)], windows)
        if row.concurrency > 1
        else make_work(chunks, (), windows)
        for chunks in mixed_steps(round(server.input_tokens), 1, _room(row, server))
    ]
    burst = make_work([Chunk(server.input_tokens)] * prompts, windows=windows)

    def seconds(each: Parameters) -> tuple[Array, Array, Array]:
        decoding = np.broadcast_to(step_times(each, decode).total, GRID.shape)
        carried = sum(np.broadcast_to(step_times(each, step).total, GRID.shape) for step in steps)
        return decoding, np.asarray(carried), np.asarray(float(step_times(each, burst).total))

    decoding, carried, first = zip(*(seconds(each) for each in parameters), strict=True)
    return np.stack(decoding), np.stack(carried), np.stack(first)


def burst_prompts(row: EndToEndRow, server: Server) -> int:
    """Return how many prompts of the first burst one step takes."""
    return int(max(1, min(row.concurrency, server.token_budget // server.input_tokens)))


def _room(row: EndToEndRow, server: Server) -> int:
    """Return the tokens that a prompt may take of a step beside all clients."""
    return max(server.token_budget - row.concurrency, 1)


def _clients(rows: Sequence[EndToEndRow]) -> Clients:
    servers = [server_of(row) for row in rows]
    return Clients(
        count=np.array([float(row.concurrency) for row in rows]),
        output_tokens=np.array([server.output_tokens for server in servers]),
        burst_share=np.array([1 / (2 * server.prompts_per_client) for server in servers]),
        burst_prompts=np.array([float(burst_prompts(row, server)) for row, server in zip(rows, servers, strict=True)]),
        wait_steps=np.array([float(server.wait_steps) for server in servers]),
        queued=np.array([float(server.queued) for server in servers]),
        prompt_steps=np.array(
            [
                float(step_count(round(server.input_tokens), 1, _room(row, server)))
                for row, server in zip(rows, servers, strict=True)
            ]
        ),
    )


class Predictor:
    """TPOT and TTFT of rows for given overheads, and their exact derivatives by the implicit function theorem."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self._partials = _partials()
        self._unstated = np.array([row.protocol == "other" for row in loops.rows])

    def predict(self, overheads: Mapping[tuple[str, str], float]) -> Loop:
        """Return TTFT, TPOT and the running requests."""
        decode, mixed, burst = self._tables(overheads)
        return solve_loop(
            self._clients(overheads),
            lambda running: self._between(decode, running)[0],
            lambda running: self._between(mixed, running)[0],
            burst,
            overheads.get(("request", "per_request_s"), 0.0),
            overheads.get(("request", "steps_waited"), 0.0),
        )

    def slopes(
        self, overheads: Mapping[tuple[str, str], float], loop: Loop, names: Sequence[tuple[str, str]]
    ) -> tuple[Array, Array]:
        """Return ∂TTFT/∂overhead and ∂TPOT/∂overhead at a solution, shape (rows, overheads)."""
        decode, mixed, burst = self._tables(overheads)
        running, size = loop.running, len(self.loops)
        d, d_x = self._between(decode, running)
        m, m_x = self._between(mixed, running)
        waited = overheads.get(("request", "steps_waited"), 0.0)
        known = {"running": running, "decode": d, "mixed": m, "burst": burst, "tpot": loop.tpot, "waited": waited}
        partial = self._partials(self._clients(overheads), known | {"ttft": loop.ttft})
        tpot_x = partial["tpot", "running"] + partial["tpot", "decode"] * d_x + partial["tpot", "mixed"] * m_x
        ttft_x = (
            partial["ttft", "running"]
            + partial["ttft", "decode"] * d_x
            + partial["ttft", "mixed"] * m_x
            + partial["ttft", "tpot"] * tpot_x
        )
        closing = 1 - partial["running", "ttft"] * ttft_x - partial["running", "tpot"] * tpot_x
        ttft_slopes, tpot_slopes = np.empty((size, len(names))), np.empty((size, len(names)))
        order = list(STEP_OVERHEADS)
        values = _values(overheads)
        in_mixed, in_burst = (_counted(values, each) for each in (self.loops.mixed_slopes, self.loops.burst_slopes))
        for column, name in enumerate(names):
            if name in STEP_OVERHEADS:
                index = order.index(name)
                d_t = self._between(self.loops.decode_slopes[index], running)[0]
                m_t = self._between(in_mixed[index] * self.loops.mixed_slopes[index], running)[0]
                tpot_t = partial["tpot", "decode"] * d_t + partial["tpot", "mixed"] * m_t
                ttft_t = (
                    partial["ttft", "decode"] * d_t
                    + partial["ttft", "mixed"] * m_t
                    + partial["ttft", "burst"] * in_burst[index] * self.loops.burst_slopes[index]
                    + partial["ttft", "tpot"] * tpot_t
                )
            elif name == BURST_SHARE:
                tpot_t = partial["tpot", "burst_share"] * self._unstated
                ttft_t = partial["ttft", "burst_share"] * self._unstated + partial["ttft", "tpot"] * tpot_t
            else:
                tpot_t = np.zeros(size)
                ttft_t = partial["ttft", "waited"] if name == ("request", "steps_waited") else np.ones(size)
            running_t = (partial["running", "ttft"] * ttft_t + partial["running", "tpot"] * tpot_t) / closing
            ttft_slopes[:, column] = ttft_t + ttft_x * running_t
            tpot_slopes[:, column] = tpot_t + tpot_x * running_t
        return ttft_slopes, tpot_slopes

    def _clients(self, overheads: Mapping[tuple[str, str], float]) -> Clients:
        """Return the clients, with the burst share of runs that do not state it where it is given."""
        if BURST_SHARE not in overheads:
            return self.loops.clients
        share = np.where(self._unstated, overheads[BURST_SHARE], self.loops.clients.burst_share)
        return replace(self.loops.clients, burst_share=share)

    def _tables(self, overheads: Mapping[tuple[str, str], float]) -> tuple[Array, Array, Array]:
        loops, values = self.loops, _values(overheads)
        decode = loops.decode + np.tensordot(values, loops.decode_slopes, 1)
        mixed, burst = (
            kernels + np.tensordot(values, _counted(values, slopes) * slopes, 1)
            for kernels, slopes in ((loops.mixed, loops.mixed_slopes), (loops.burst, loops.burst_slopes))
        )
        return decode, mixed, burst

    def _between(self, table: Array, running: Array) -> tuple[Array, Array]:
        """Return the table's value at ``running`` and its slope by it."""
        count = self.loops.clients.count
        width = (GRID[1] - GRID[0]) * count
        place = np.clip((running - GRID[0] * count) / width, 0.0, len(GRID) - 1 - 1e-9)
        left = place.astype(np.int64)
        rows = np.arange(len(table))
        step = table[rows, left + 1] - table[rows, left]
        return table[rows, left] + (place - left) * step, step / width


def _values(overheads: Mapping[tuple[str, str], float]) -> Array:
    """Return the overheads of steps in the order of :data:`STEP_OVERHEADS`, 0 where not given."""
    return np.array([overheads.get(name, 0.0) for name in STEP_OVERHEADS])


def _counted(values: Array, slopes: Array) -> Array:
    """Return 1 for overheads that are in a step with prefill, 0 for those of the smaller sum; of the same shape as ``slopes``."""
    graph, eager = (np.tensordot(values[of], slopes[of], 1) for of in (OF_GRAPH, OF_EAGER))
    counted = np.ones(slopes.shape)
    counted[OF_GRAPH], counted[OF_EAGER] = graph > eager, graph <= eager
    return counted


@cache
def _partials() -> Callable[[Clients, Mapping[str, Any]], dict[tuple[str, str], Array]]:
    """Compile the partial derivatives of the closed loop's three equations, read off the equations themselves."""
    names = ("running", "decode", "mixed", "burst", "tpot", "ttft", "waited")
    symbols = {name: sympy.Symbol(name, positive=True) for name in names}
    fields = {name: sympy.Symbol(name + "_", positive=True) for name in Clients.__slots__}
    clients = Clients(**fields)
    running, decode, mixed, burst, tpot, ttft, waited = (symbols[name] for name in names)
    made = {
        "tpot": time_per_output_token(clients, running, decode, mixed),
        "ttft": time_to_first_token(clients, running, decode, mixed, burst, tpot, waited),
        "running": running_requests(clients, ttft, tpot),
    }
    by_names = symbols | {"burst_share": fields["burst_share"]}
    wanted = [(of, by) for of in made for by in by_names if made[of].has(by_names[by])]
    numpy = {
        "Max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
        "Min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
        "Heaviside": lambda x, at_zero=0.5: np.heaviside(x, at_zero),
    }
    arguments = [*symbols.values(), *fields.values()]
    compiled = sympy.lambdify(
        arguments, [sympy.diff(made[of], by_names[by]) for of, by in wanted], modules=[numpy, "numpy"], cse=True
    )

    def evaluate(given: Clients, values: Mapping[str, Any]) -> dict[tuple[str, str], Array]:
        found = compiled(*(values[name] for name in names), *(getattr(given, name) for name in Clients.__slots__))
        size = np.shape(given.count)
        return {
            key: np.broadcast_to(np.asarray(each, dtype=np.float64), size)
            for key, each in zip(wanted, found, strict=True)
        }

    return evaluate
