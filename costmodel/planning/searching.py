"""The search for the fewest servers, and what is said where a limit is missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.planning.answering import nearest_limit, over
from costmodel.planning.documents import FleetRun, Slo


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
    alone_enough = len(last.missed) == 1
    if not alone_enough:
        what += ", together with the others"
    near = tuple(
        nearest_limit(name, value, what).model_copy(update={"enough": alone_enough})
        for name, value in values
        if value is not None
    )
    return {"feasible": False, "binding": binding, "binds": text, "nearest": near}
