"""What a question about a fleet is about: requests at a rate or of a trace, the server, and the closed form to begin with."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import limits_of, ms
from costmodel.planning.documents import ClosedForm, FleetRun, Nearest, Slo
from costmodel.planning.fitting_in import more_gpus
from costmodel.planning.fleets import Balancing, Traffic
from costmodel.planning.rates import closed_form
from costmodel.planning.serving import PlanOptions, check_longest, make_site
from costmodel.planning.steady import Steady
from costmodel.simulation.options import ServerOptions, check_options
from costmodel.simulation.ranges import of_load
from costmodel.simulation.server import Server
from costmodel.simulation.settings import DISAGGREGATED
from costmodel.simulation.traces import read_trace
from costmodel.simulation.workloads import gamma

LIFETIMES = 5
"""Arrivals last so many times the time of an answer: servers that are empty at first fill in one, and a queue shows in the others."""
FEWEST, MOST_REQUESTS = 2000, 30_000
"""Requests that are simulated at a rate, where it is not said how many."""


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
        lifetime: mean time of an answer, by the closed form [s].
        workload: as documents tell it.
        notes, warnings: what has to be said.
        per_server: GPUs of a server.
    """

    traffic: Traffic
    server: Server
    closed_form: ClosedForm
    lifetime: float
    workload: dict[str, str | int | float | bool | None]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    per_server: int

    def common(self, plan: str) -> dict[str, Any]:
        """Return what every answer has."""
        info = self.server.info
        return {
            "plan": plan, "model": info.model, "gpu": info.gpu, "gpus": info.gpus, "rung": info.rung,
            "calibration": info.calibration, "workload": self.workload, "limits": self.traffic.slo, "runs": (),
            "notes": self.notes, "warnings": self.warnings,
        }  # fmt: skip

    def more_gpus(self, tokens: int) -> Nearest | None:
        """Return the smallest tensor-parallel size at which one sequence of ``tokens`` fits."""
        options, settings = self.traffic.options, self.server.settings
        kept = PlanOptions(**{name: value for name, value in options.items() if name in PlanOptions.__annotations__})  # type: ignore[typeddict-item]
        return more_gpus(make_site(kept, 1), Steady(1, tokens), settings.token_budget, settings.max_num_seqs)

    def nowhere(self) -> dict[str, Any] | None:
        """Return the answer where the model does not fit into the memory of its GPUs."""
        server, given = self.server, self.traffic.options.get("max_model_len")
        stopped = given is not None and server.starts is not None
        if server.deployment is None or (server.settings.usable_blocks is not None and not stopped):
            return None
        longest = max(request.prompt + request.output for request in self.traffic.requests)
        near, info = [self.more_gpus(longest)], server.info
        text = f"the weights and activations of {info.model} leave no room for a KV cache on {info.gpu}"
        if stopped:
            text = f"vLLM does not start with --max-model-len {given}: the KV cache holds a sequence of {server.starts:,} tokens"
            starts = server.starts or 0
            if longest <= starts:
                near.append(Nearest(change="--max-model-len", value=starts, text=f"--max-model-len {starts}"))
        nearest = tuple(each for each in near if each is not None)
        return {"feasible": False, "binding": "kv_memory", "binds": text, "nearest": nearest}

    def to_start(self) -> dict[str, Any]:
        """Return what advice has beside the number of servers, and its binding: ``max_model_len``, where vLLM needs one to start."""
        return {} if self.server.starts is None else {"max_model_len": self.server.starts}

    def too_short(self, run: FleetRun, kind: str = "") -> tuple[str, ...]:
        """Return a warning if arrivals end before servers are full, or before it shows that they do not keep up; nothing otherwise.

        Args:
            run: the fleet that is the answer.
            kind: of servers that the closed form counts, in words.
        """
        requests, rate = self.traffic.requests, self.traffic.rate
        answer = self.lifetime if run.e2e_s is None else min(self.lifetime, run.e2e_s)
        span = requests[-1].arrival - requests[0].arrival if rate is None else len(requests) / rate
        if span >= LIFETIMES * answer * (1 - 1e-9):
            return ()
        text = f"requests come for {ms(span)} only, {span / answer:.2g} times as long as an answer takes: that does not fill the servers, "
        text += f"and a load that lasts may take more, by the closed form {self.closed_form.servers:,}{kind}"
        if rate is not None:
            text += f"; simulate more (--requests {math.ceil(LIFETIMES * answer * rate)})"
        return (text,)


def make_traffic(
    slo: Slo,
    options: ServerOptions,
    *,
    rate: float | None,
    trace: str | Path | None,
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
        InputError: not exactly one of rate and trace; a number that cannot be; ``max_model_len`` beyond the model's; a trace without two
            requests.
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
    check_longest(options.get("max_model_len"), server.deployment)
    found = closed_form(server, slo, mean, lengths[0], lengths[1], apart)
    lifetime = found.ttft_s + (lengths[1] - 1) * found.tpot_s
    if trace is None and requests is None:
        count = min(max(math.ceil(LIFETIMES * mean * lifetime), FEWEST), MOST_REQUESTS)
        source = list(_everything(gamma(mean, burstiness, prompt, output, requests=count, spread=spread, seed=seed)))
        traffic = Traffic(tuple(source), options, slo, balancing, seed, mean, prompt, output)
        workload["requests"] = count
    workload["balancing"] = balancing
    said = tuple(text for text in server.warnings if "no room" not in text)
    if server.starts is not None and options.get("max_model_len") is not None:
        said = tuple(text for text in said if "will not start" not in text)  # is the answer
    elif server.starts is not None and server.settings.usable_blocks is not None:
        held = server.settings.usable_blocks // server.settings.blocks_of(sum(lengths))
        said += (f"the KV cache of a server holds {held:,} requests of {lengths[0]:,} + {lengths[1]:,} tokens at once",)
    said += of_load(
        server.fitted, found.running, lengths[0] + lengths[1] / 2, longest_prompt(traffic), server.settings.token_budget
    )
    return Asked(
        traffic, server, found, lifetime, workload, (*notes, *server.notes), (*warnings, *said), server.info.gpus
    )


def longest_prompt(traffic: Traffic) -> int:
    """Return the tokens of the longest prompt."""
    return max(request.prompt for request in traffic.requests)


def _everything(source: Any) -> Any:
    while source.next_arrival() < float("inf"):
        yield source.take()
