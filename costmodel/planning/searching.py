"""The search for the fewest servers, and how a limit is missed."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.planning.answering import over
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
    """Return the limit that is missed most: requests that are refused and overload come before percentiles."""
    for name in ("refused", "load"):
        if name in run.missed:
            return name

    def ratio(name: str) -> float:
        value = getattr(run, f"{name}_s")
        return float("inf") if value is None else value / getattr(slo, f"{name}_s")

    return max(run.missed, key=ratio)


def sentence(name: str, run: FleetRun, slo: Slo) -> str:
    """Say how a limit is missed."""
    if name == "load":
        return "requests come faster than they are answered"
    if name == "refused":
        said = [
            (f"{count:,} request{'s are' if count > 1 else ' is'}", why) for why, count in (run.refused or {}).items()
        ]
        return "; ".join(f"{what} refused: {why}" for what, why in said)
    value, limit = getattr(run, f"{name}_s"), getattr(slo, f"{name}_s")
    where = f"p{slo.percentile:g} of the {name.upper() if name != 'e2e' else 'end-to-end latency'}"
    if value is None:
        return f"too many requests are never answered for the {where}"
    return f"the {where} is {over(value, limit)}"
