"""``plan_replicas``: how many servers a rate or a trace takes for an SLO at a percentile; by closed form, then by simulation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from costmodel.checks import choice, positive, whole
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import limits_of, nearest_limit, over
from costmodel.planning.documents import Advice, ClosedForm, FleetPlan, FleetRun, Slo
from costmodel.planning.fitting_in import more_gpus
from costmodel.planning.fleets import BALANCING, Balancing, Traffic, run_alone, run_replicas
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
FEW_EACH = 20
"""Fewer requests than this per server say little of a load that lasts."""
MOST_SERVERS = 10_000


def plan_replicas(
    rate: float | None = None,
    *,
    trace: str | Path | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    itl: float | None = None,
    e2e: float | None = None,
    percentile: float = 99.0,
    prompt: int = 1024,
    output: int = 1024,
    spread: float = 0.0,
    burstiness: float = 1.0,
    requests: int | None = None,
    form: str = "auto",
    limit: int | None = None,
    speed: float = 1.0,
    balancing: Balancing = "round-robin",
    seed: int = 0,
    around: int = 0,
    progress: Callable[[FleetRun], None] | None = None,
    **server: Unpack[ServerOptions],
) -> FleetPlan:
    """Return the fewest servers that hold an SLO at a percentile under a rate of requests, or for a recorded trace.

    A closed form on means says where to begin; then the same requests (one seed) are simulated for one number of servers after another, up
    or down, until N holds all limits and N − 1 does not. Each limit is held by itself: the percentile of TTFT, of TPOT and of end-to-end
    latency over all requests, of ITL over all gaps; requests that are refused count as never answered. Requests that come faster than they
    are answered are a miss, whatever the percentiles of a finite run say.

    The load is balanced as ``balancing`` says: ``round-robin`` gives the i-th request to server i mod N, whatever its length, as simple
    load balancers do; ``random`` draws the server. A balancer that looks at queues does better.

    Args:
        rate, burstiness, prompt, output, spread, seed: of the requests, as in :func:`costmodel.simulate_load`.
        trace, form, limit, speed: recorded requests instead, as in :func:`costmodel.simulate_trace`.
        ttft, tpot, itl, e2e: limits [s]; None for none.
        percentile: at which they hold, above 0 and at most 100.
        requests: that are simulated at a rate; None for 100 per server of the closed form, from 1,000 to 5,000.
        balancing: ``round-robin`` or ``random``.
        around: so many more numbers of servers, on both sides of the answer, are simulated for the curve.
        progress: called with every fleet that was simulated.
        server: model, GPU and flags of each (:class:`~costmodel.simulation.options.ServerOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    slo = slo_of(percentile, ttft=ttft, tpot=tpot, itl=itl, e2e=e2e)
    choice(balancing, BALANCING, "balancing")
    check_server(server, plan_replicas)
    made = make_traffic(
        rate, trace, slo, server, prompt=prompt, output=output, spread=spread, burstiness=burstiness, requests=requests,
        form=form, limit=limit, speed=speed, seed=seed, balancing=balancing,
    )  # fmt: skip
    common = made.common("replicas")
    if made.nowhere is not None:
        return FleetPlan(**common, **made.nowhere)
    traffic, form_found = made.traffic, made.closed_form
    search = Search(lambda count: run_replicas(traffic, count), progress)
    most = min(len(traffic.requests), MOST_SERVERS)
    found = search.fewest(min(form_found.servers, most), most, lambda: run_alone(traffic))
    common |= {"closed_form": form_found, "runs": search.all()}
    if found is None:
        return FleetPlan(**common, **refusal(slo, search.alone, search.all(), made.per_server))
    for count in range(max(found - 1 - around, 1), min(found + around, most) + 1):
        search.run(count)
    common["runs"] = search.all()
    if (own := len(traffic.requests) / found) < FEW_EACH:
        text = f"only {own:.3g} requests per server were simulated, too few to fill them: give more (--requests)"
        common["warnings"] = (*common["warnings"], text)
    at, below = search.run(found), search.run(found - 1) if found > 1 else None
    binding = worst(below, slo) if below else "none"
    binds = f"{found:,} replicas hold all limits" if found > 1 else "one server holds all limits"
    if below:
        binds += f"; with {found - 1:,}, {sentence(binding, below, slo)}"
    return FleetPlan(
        **common,
        feasible=True,
        binding=binding,
        binds=binds,
        advice=Advice(replicas=found, gpus=at.gpus, binding={"replicas": binding, "gpus": binding}),
        at=at,
        before=(below,) if below else (),
    )


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
        "nearest": (more,) if more else (),
    }


class Search:
    """Finds the fewest servers, simulating each number once.

    Args:
        simulate: a fleet of so many servers.
        progress: called with every one.
    """

    def __init__(self, simulate: Callable[[int], FleetRun], progress: Callable[[FleetRun], None] | None = None) -> None:
        self._simulate, self._progress = simulate, progress
        self._runs: dict[int, FleetRun] = {}
        self.alone: FleetRun | None = None

    def run(self, count: int) -> FleetRun:
        """Return what comes of so many servers."""
        if count not in self._runs:
            self._runs[count] = self._simulate(count)
            if self._progress is not None:
                self._progress(self._runs[count])
        return self._runs[count]

    def all(self) -> tuple[FleetRun, ...]:
        """Return all that was simulated, by number of servers."""
        return tuple(self._runs[count] for count in sorted(self._runs))

    def fewest(
        self,
        start: int,
        most: int,
        alone: Callable[[], FleetRun],
        meets: Callable[[FleetRun], bool] = lambda run: run.meets,
    ) -> int | None:
        """Return a number that holds the limits while one fewer does not; None if none does.

        Args:
            start: where to begin.
            most: servers at most.
            alone: what a request sees that has a server for itself; asked only where ``start`` is not enough.
            meets: whether a fleet holds the limits.
        """
        missed, held, step = 0, start, 1
        if meets(self.run(start)):
            while held > 1:
                lower = max(held - step, 1)
                if not meets(self.run(lower)):
                    missed = lower
                    break
                held, step = lower, 2 * step
        else:
            self.alone = alone()
            if not meets(self.alone):
                return None
            missed = start
            while True:
                if missed >= most:
                    return None
                held = min(missed + step, most)
                if meets(self.run(held)):
                    break
                missed, step = held, 2 * step
        while held - missed > 1:
            middle = (held + missed) // 2
            if meets(self.run(middle)):
                held = middle
            else:
                missed = middle
        return held


def worst(run: FleetRun, slo: Slo) -> str:
    """Return the limit that is missed most."""
    if "load" in run.missed:
        return "load"

    def ratio(name: str) -> float:
        value = getattr(run, f"{name}_s")
        return float("inf") if value is None else value / getattr(slo, f"{name}_s")

    return max(run.missed, key=ratio)


def sentence(name: str, run: FleetRun, slo: Slo) -> str:
    """Say how a limit is missed."""
    if name == "load":
        return "requests come faster than they are answered"
    value, limit = getattr(run, f"{name}_s"), getattr(slo, f"{name}_s")
    where = f"p{slo.percentile:g} of the {name.upper() if name != 'e2e' else 'end-to-end latency'}"
    if value is None:
        return f"too many requests are never answered for the {where}"
    return f"the {where} is {over(value, limit)}"


def refusal(slo: Slo, alone: FleetRun | None, runs: Sequence[FleetRun], gpus: int) -> dict[str, Any]:
    """Return the answer where no number of servers will do.

    Args:
        slo: the limits.
        alone: what requests see that have a server for themselves, if that was looked at.
        runs: what was simulated, by number of servers.
        gpus: of one server.
    """
    if alone is not None and alone.missed:
        last, binding = alone, worst(alone, slo)
        text = f"no number of servers will do: even for requests that have one for themselves, {sentence(binding, alone, slo)}"
        if alone.refused:
            text += f" ({'; '.join(f'{count:,} refused: {why}' for why, count in alone.refused.items())})"
        what = "one request per server"
    else:
        last = runs[-1]
        binding, what = worst(last, slo), f"with {last.servers:,} servers"
        text = f"not even {last.servers:,} servers, {last.servers * gpus:,} GPUs, are enough: {sentence(binding, last, slo)}"
    values = [(name, getattr(last, f"{name}_s")) for name in last.missed if name != "load"]
    near = tuple(nearest_limit(name, value, what) for name, value in values if value is not None)
    return {"feasible": False, "binding": binding, "binds": text, "nearest": near}
