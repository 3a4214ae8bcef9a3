"""What a question about a fleet is about: requests at a rate or of a trace, the server, and the closed form to begin with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import limits_of
from costmodel.planning.documents import ClosedForm, Slo
from costmodel.planning.fitting_in import more_gpus
from costmodel.planning.fleets import Balancing, Traffic
from costmodel.planning.rates import closed_form
from costmodel.planning.serving import PlanOptions, make_site
from costmodel.planning.steady import Steady
from costmodel.simulation.options import ServerOptions, check_options
from costmodel.simulation.server import Server
from costmodel.simulation.settings import DISAGGREGATED
from costmodel.simulation.traces import read_trace
from costmodel.simulation.workloads import gamma

PER_SERVER, FEWEST, MOST_REQUESTS = 100, 1000, 5000
"""Requests that are simulated: so many per server of the closed form, within bounds."""


def slo_of(percentile: float, **limits: float | None) -> Slo:
    """Return limits at a percentile, or raise :class:`InputError`."""
    share = positive(percentile, "percentile", 100.0)
    return limits_of(True, **limits).model_copy(update={"percentile": share})


def check_server(options: ServerOptions, function: Callable[..., Any]) -> None:
    """Refuse options of a server that there are not, or that have no meaning for a fleet."""
    check_options(options, [name for name in inspect.signature(function).parameters if name != "server"])
    if options.get("scheduler") == DISAGGREGATED:
        raise InputError("servers that prefill and servers that decode: ask plan disaggregation (plan_disaggregation)")
    if options.get("chunk") == "one-step":
        raise InputError("chunk must be a number of tokens here, or 'engine'")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a fleet, checked.

    Attributes:
        traffic: the requests, the options of a server and the limits.
        server: one that has all requests for itself.
        closed_form: what the equations say.
        workload: as documents tell it.
        notes, warnings: what has to be said.
        nowhere: the answer, where the model does not fit.
        per_server: GPUs of a server.
    """

    traffic: Traffic
    server: Server
    closed_form: ClosedForm
    workload: dict[str, str | int | float | bool | None]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    nowhere: dict[str, Any] | None
    per_server: int

    def common(self, plan: str) -> dict[str, Any]:
        """Return what every answer has."""
        info = self.server.info
        return {
            "plan": plan, "model": info.model, "gpu": info.gpu, "gpus": info.gpus, "rung": info.rung,
            "calibration": info.calibration, "workload": self.workload, "limits": self.traffic.slo, "runs": (),
            "notes": self.notes, "warnings": self.warnings,
        }  # fmt: skip


def make_traffic(
    rate: float | None,
    trace: str | Path | None,
    slo: Slo,
    options: ServerOptions,
    *,
    prompt: int,
    output: int,
    spread: float,
    burstiness: float,
    requests: int | None,
    form: str,
    limit: int | None,
    speed: float,
    seed: int,
    balancing: Balancing,
    apart: bool = False,
) -> Asked:
    """Return the requests and the closed form; the arguments are those of :func:`plan_replicas`.

    Raises:
        InputError: not exactly one of rate and trace; a number that cannot be; a trace without two requests.
    """
    if (rate is None) == (trace is None):
        raise InputError("give either a rate (requests per second) or a trace")
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if trace is not None:
        read = read_trace(trace, form, limit=limit, speed=speed)
        listed, notes = read.requests, read.notes
        if len(listed) < 2 or listed[-1].arrival <= 0:
            raise InputError("a trace of a single moment has no rate; give one with two requests at least")
        warnings = tuple(
            f"{count:,} requests of the trace are left out: {why}" for why, count in read.left_out.items() if count
        )
        mean = (len(listed) - 1) / listed[-1].arrival
        lengths = tuple(
            round(sum(getattr(each, name) for each in listed) / len(listed)) for name in ("prompt", "output")
        )
        workload: dict[str, str | int | float | bool | None] = {
            "kind": "trace", "path": str(trace), "form": read.form, "requests": len(listed), "speed": speed, "rate_per_s": mean,
        }  # fmt: skip
        traffic = Traffic(tuple(listed), options, slo, balancing, seed)
    else:
        mean, few = positive(rate, "rate"), 2 if requests is None else whole(requests, "requests", 1)
        prompt, output = whole(prompt, "prompt", 1), whole(output, "output", 1)
        source = list(_everything(gamma(mean, burstiness, prompt, output, requests=few, spread=spread, seed=seed)))
        traffic = Traffic(tuple(source), options, slo, balancing, seed, mean, prompt, output)
        lengths = tuple(max(round(length * (1 - spread / 2)), 1) for length in (prompt, output))
        workload = {
            "kind": "load", "rate_per_s": mean, "burstiness": burstiness if burstiness < float("inf") else "inf",
            "prompt_tokens": prompt, "output_tokens": output, "spread": spread, "seed": seed, "requests": requests,
        }  # fmt: skip
    server = traffic.server(1)
    found = closed_form(server, slo, mean, lengths[0], lengths[1], apart)
    if trace is None and requests is None:
        count = min(max(PER_SERVER * found.servers, FEWEST), MOST_REQUESTS)
        source = list(_everything(gamma(mean, burstiness, prompt, output, requests=count, spread=spread, seed=seed)))
        traffic = Traffic(tuple(source), options, slo, balancing, seed, mean, prompt, output)
        workload["requests"] = count
    workload["balancing"] = balancing
    said = tuple(text for text in server.warnings if "no room" not in text)
    return Asked(
        traffic, server, found, workload, (*notes, *server.notes), (*warnings, *said), _nowhere(server, options, lengths[0] + lengths[1]),
        server.info.gpus,
    )  # fmt: skip


def _everything(source: Any) -> Any:
    while source.next_arrival() < float("inf"):
        yield source.take()


def _nowhere(server: Server, options: ServerOptions, tokens: int) -> dict[str, Any] | None:
    """Return the answer where the model does not fit into the memory of its GPUs."""
    if server.deployment is None or server.settings.usable_blocks is not None:
        return None
    kept = PlanOptions(**{name: value for name, value in options.items() if name in PlanOptions.__annotations__})  # type: ignore[typeddict-item]
    site = make_site(kept, 1)
    more = more_gpus(site, Steady(1, tokens), server.settings.token_budget, server.settings.max_num_seqs)
    return {
        "feasible": False,
        "binding": "kv_memory",
        "binds": f"the weights and activations of {server.info.model} leave no room for a KV cache on {server.info.gpu}",
        "nearest": (more.model_copy(update={"enough": False, "text": f"{more.text}, with which it fits"}),)
        if more
        else (),
    }
