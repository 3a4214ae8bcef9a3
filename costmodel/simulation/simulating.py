"""``simulate_load``, ``simulate_trace``: what users feel, as frozen documents."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError, shown
from costmodel.simulation import hints, remarks
from costmodel.simulation.encoding import image_numbers, images_of, said_of_images
from costmodel.simulation.options import ServerOptions, check_options
from costmodel.simulation.pools import Pools, pools_info
from costmodel.simulation.ranges import of_load
from costmodel.simulation.requests import Listed, Pictured, Request, Source
from costmodel.simulation.results import ServerInfo, Simulation, prefix_use
from costmodel.simulation.running import Limits, Run, run_source
from costmodel.simulation.server import Server, make_server
from costmodel.simulation.settings import DISAGGREGATED
from costmodel.simulation.stepping import Progress
from costmodel.simulation.traces import read_trace
from costmodel.simulation.typical import step_of_load, step_of_trace
from costmodel.simulation.workloads import MAX_TIME, closed_loop, gamma


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulation: its document, and the runs that figures and tables are made of."""

    document: Simulation
    runs: tuple[Run, ...]
    """Baseline and injected, or the one run."""


def simulate_load(
    clients: int | None = None,
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    requests: int | None = None,
    duration: float | None = None,
    prompt: int = 1024,
    output: int = 1024,
    spread: float = 0.0,
    think: float = 0.0,
    ramp: float = 0.0,
    seed: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    limits: Limits | None = None,
    pools: Pools | None = None,
    **server: Unpack[ServerOptions],
) -> Simulation:
    """Simulate a load: ``clients`` that each wait for their answer (a closed loop), or requests at a ``rate``.

    Args:
        clients: that send their next request when their last answer ends; the first ones all at once.
        rate: requests per second at random, instead of clients.
        burstiness: 1 for a Poisson process; shape of the gamma distribution of the gaps otherwise, as in ``vllm bench serve``.
        requests: in all; None for ten per client, or 1,000 at a rate.
        duration: of the arrivals at a rate, instead of a number of requests [s].
        prompt, output, spread: lengths are uniform in [(1 − spread)·L, L], images not counted [tokens].
        think, ramp: pause of a client before it asks again; time over which the clients begin [s].
        seed: of lengths and arrivals.
        images, image_size: of every prompt, before its text, as :func:`costmodel.predict` takes them; no two are alike.
        limits: of the goodput, and of stalls.
        pools: GPUs for prefill and decode apart.
        server: model, GPU and flags (:class:`~costmodel.simulation.options.ServerOptions`).

    Returns:
        The document ``costmodel.simulation/1`` with ``result``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    return run_load(
        clients, rate, burstiness, requests, duration, prompt, output, spread, think, ramp, seed, limits, pools, server,
        images=images, image_size=image_size,
    ).document  # fmt: skip


def run_load(
    clients: int | None,
    rate: float | None,
    burstiness: float,
    requests: int | None,
    duration: float | None,
    prompt: int,
    output: int,
    spread: float,
    think: float,
    ramp: float,
    seed: int,
    limits: Limits | None,
    pools: Pools | None,
    options: ServerOptions,
    *,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    keep_times: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Simulated:
    """Run :func:`simulate_load`; return all that was counted; ``progress`` as above."""
    options, limits, pools = check_all(options, limits, pools, simulate_load)
    if (clients is None) == (rate is None):
        raise InputError("give either clients (a closed loop) or a rate (requests per second)")
    prompt, output = whole(prompt, "prompt", 1), whole(output, "output", 1)
    pictures = images_of(options, images, image_size, pools)
    requests = None if requests is None else whole(requests, "requests", 1)
    source: Source
    if clients is not None:
        if pools is not None:
            raise InputError("separate pools take arrivals at a rate or from a trace, not a closed loop of clients")
        if duration is not None:
            raise InputError("a closed loop ends after a number of requests, not after a duration")
        clients = whole(clients, "clients", 1, 1_000_000)
        requests = 10 * clients if requests is None else requests
        source = closed_loop(clients, requests, prompt, output, spread, seed, think, ramp)
        most = min(clients, requests)
    else:
        if requests is None and duration is None:
            requests = DEFAULT_REQUESTS
        source = listed = gamma(
            positive(rate, "rate"),
            burstiness,
            prompt,
            output,
            requests=requests,
            duration=duration,
            spread=spread,
            seed=seed,
        )
        most = len(listed)
    if pictures is not None:
        source, prompt = Pictured(source, pictures.count, pictures.tokens), prompt + pictures.tokens
    server = make_server(options, prompt, typical=partial(step_of_load, most, rate, prompt, output), images=pictures)
    run = run_source(server, source, limits, math.inf, None, 0, pools, keep_times, progress)
    limited, refused = said_of_images(server.settings)
    document = Simulation(
        workload={
            "kind": "load", "clients": clients, "rate_per_s": rate, "burstiness": None if rate is None else _written(burstiness),
            "requests": requests, "duration_s": duration, "prompt_tokens": prompt, "output_tokens": output, "spread": spread,
            "think_s": think, "ramp_s": ramp, "seed": seed, **image_numbers(pictures),
        },
        server=server_info(server, pools),
        result=run.result,
        interrupted=run.interrupted,
        notes=(*server.notes, *limited, *hints.lockstep(clients, requests, spread, ramp)),
        warnings=(*server.warnings, *refused, *_said(run, arrivals=clients is None)),
    )  # fmt: skip
    return Simulated(document, (run,))


def _written(number: float) -> float | str:
    """Return a number as a document can hold it: JSON knows no infinity."""
    return number if number < math.inf else "inf"


DEFAULT_REQUESTS = 1000
"""Requests at a rate where neither a number nor a duration is given."""


def simulate_trace(
    path: str | Path,
    *,
    form: str = "auto",
    limit: int | None = None,
    speed: float = 1.0,
    limits: Limits | None = None,
    pools: Pools | None = None,
    **server: Unpack[ServerOptions],
) -> Simulation:
    """Simulate the requests of a trace (docs/traces.md).

    Args:
        path: of the trace.
        form: its format; ``auto`` to find out.
        limit: only so many requests, the first.
        speed: arrivals come so many times faster.
        limits: of the goodput, and of stalls.
        pools: GPUs for prefill and decode apart.
        server: model, GPU and flags (:class:`~costmodel.simulation.options.ServerOptions`).

    Returns:
        The document ``costmodel.simulation/1`` with ``result``.

    Raises:
        InputError: the trace cannot be read, or a name, number or combination that cannot be.
    """
    return run_trace(path, form, limit, speed, limits, pools, server).document


def run_trace(
    path: str | Path,
    form: str,
    limit: int | None,
    speed: float,
    limits: Limits | None,
    pools: Pools | None,
    options: ServerOptions,
    *,
    keep_times: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Simulated:
    """Run :func:`simulate_trace`; return all that was counted; ``progress`` as above."""
    options, limits, pools = check_all(options, limits, pools, simulate_trace)
    trace = read_trace(path, form, limit=limit, speed=speed)
    if trace.requests and trace.requests[-1].arrival > MAX_TIME:
        raise InputError(
            f"the trace takes {trace.requests[-1].arrival:.3g} s at speed {speed:g}, more than {MAX_TIME:g} s; "
            f"use a speed of at least {trace.requests[-1].arrival * speed / MAX_TIME:.3g}"
        )
    left_out = {reason: count for reason, count in trace.left_out.items() if count}
    warnings = [
        f"{count:,} {'request of the trace is' if count == 1 else 'requests of the trace are'} left out: {reason}"
        for reason, count in left_out.items()
    ]
    workload: dict[str, str | int | float | bool | None] = {
        "kind": "trace", "path": str(path), "form": trace.form, "requests": len(trace.requests), "speed": speed,
        "left_out": sum(left_out.values()),
    }  # fmt: skip
    return _run_listed(trace.requests, workload, (trace.notes, warnings), limits, pools, options, keep_times, progress)


def run_requests(
    requests: Sequence[Request],
    workload: dict[str, str | int | float | bool | None],
    options: ServerOptions,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> Simulated:
    """Simulate requests that come when they come, such as those of a benchmark; return all that was counted.

    Args:
        requests: in the order of their arrival, at least one.
        workload: what to call them in the document.
        options: model, GPU and flags, as of :func:`simulate_trace`.
        progress: called now and then.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    options, limits, pools = check_all(options, None, None, simulate_trace)
    return _run_listed(tuple(requests), workload, ((), ()), limits, pools, options, False, progress)


def _run_listed(
    requests: tuple[Request, ...],
    workload: dict[str, str | int | float | bool | None],
    said: tuple[Sequence[str], Sequence[str]],
    limits: Limits,
    pools: Pools | None,
    options: ServerOptions,
    keep_times: bool,
    progress: Callable[[Progress], None] | None,
) -> Simulated:
    """Run a list of requests; ``said`` are notes and warnings about it."""
    longest = max((request.prompt for request in requests), default=1)
    server = make_server(options, longest, typical=partial(step_of_trace, requests))
    run = run_source(server, Listed(requests), limits, math.inf, None, 0, pools, keep_times, progress)
    notes, warnings = said
    document = Simulation(
        workload=workload,
        server=server_info(server, pools),
        result=run.result,
        prefix_cache=prefix_use(requests, run.result, server.settings.block_tokens),
        interrupted=run.interrupted,
        notes=(*notes, *server.notes),
        warnings=(*server.warnings, *warnings, *_said(run, arrivals=True)),
    )
    return Simulated(document, (run,))


def server_info(server: Server, pools: Pools | None) -> ServerInfo:
    """Return what a document tells of the server."""
    if pools is None:
        return server.info
    gpus = server.info.gpus * (pools.prefill + pools.decode)
    return server.info.model_copy(update={"gpus": gpus, "scheduler": DISAGGREGATED, "pools": pools_info(server, pools)})


def _said(run: Run, arrivals: bool) -> list[str]:
    """Return what has to be said of the requests of a run; whether they come too fast only where ``arrivals`` do not wait for answers."""
    said = remarks.refused(run.result) + remarks.cut_short(run.result, run.server.settings)
    taken = [item.request for item in run.served if not item.refused]
    if taken:
        context = sum(request.prompt + request.output / 2 for request in taken) / len(taken)
        running, longest = max(tally.most[0] for tally in run.tallies), max(request.prompt for request in taken)
        said += of_load(run.server.fitted, running, context, longest, run.server.settings.token_budget)
    return said + remarks.overload(run.served, run.server.clock) if arrivals and not run.interrupted else said


def check_all(
    options: ServerOptions, limits: Limits | None, pools: Pools | None, function: Callable[..., Simulation]
) -> tuple[ServerOptions, Limits, Pools | None]:
    """Return options, limits and pools of one of the functions, or raise :class:`InputError` if they cannot be."""
    check_options(options, [name for name in inspect.signature(function).parameters if name != "server"])
    if limits is not None and not isinstance(limits, Limits):
        raise InputError(f"limits must be a costmodel.Limits, e.g. Limits(ttft=0.3), not {shown(limits)}")
    if pools is not None and not isinstance(pools, Pools):
        raise InputError(f"pools must be a costmodel.Pools, e.g. Pools(prefill=1, decode=2), not {shown(pools)}")
    if options.get("scheduler") == DISAGGREGATED:
        options, pools = ServerOptions(**{**options, "scheduler": "vllm"}), pools or Pools()
    return options, (limits or Limits()).checked(), pools.checked() if pools else None
