"""The engine's overhead per step from a recorded run: the one with which its first requests, simulated, wait and stream as they did.

One number is fitted, the time that every step takes beside its kernels as they were timed one by one. It is a net number: what the host
adds, less what is hidden of the kernels' launches once they run one after the other, so that it may be below zero, but not by more than
those launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.hardware.errors import InputError
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.datasets.tables import Mask
from costmodel.validation.fitting.least_squares import Array
from costmodel.validation.fitting.simulated_run import RunServer, simulate_run

FEWEST = 20
"""Requests that a fit needs at least."""
COARSE, FINE = 13, 21
"""Overheads at which the run is simulated, over all that is possible, and then twice around the best."""
AROUND = 0.02
"""The straight lines of the means are taken over so much of them to both sides: wider than a run's scatter, and still straight."""
BLOCKS = 10
"""Parts of the requests, each of which is left out in turn for the standard error."""


@dataclass(frozen=True, slots=True)
class OverheadFit:
    """An overhead and what is known of it. All in seconds unless said otherwise.

    Attributes:
        seconds: net time of a step beside its kernels and what the calibration has of overheads.
        standard_error: from leaving out tenths of the requests, in the order in which they finished.
        by_ttft, by_tpot: overheads that would fit the mean TTFT alone, and the mean TPOT alone.
        ttft_per_second, tpot_per_second: relative change of the two means per second of overhead [1/s].
        scatter: how far the simulated means lie from a straight line in the overhead: the run's own sensitivity, relative.
        lower, upper: bounds of the search.
        at_bound: it sits on one of them.
        requests: that were fitted to.
    """

    seconds: float
    standard_error: float
    by_ttft: float
    by_tpot: float
    ttft_per_second: float
    tpot_per_second: float
    scatter: float
    lower: float
    upper: float
    at_bound: bool
    requests: int


def first_to_finish(requests: RequestTable, count: int) -> Mask:
    """Return which requests are the first ``count`` to finish."""
    chosen = np.zeros(len(requests), bool)
    chosen[np.argsort(requests.last_token, kind="stable")[:count]] = True
    return chosen


def fit_overhead(requests: RequestTable, server: RunServer, chosen: Mask) -> OverheadFit:
    """Fit the overhead of a step to some requests of a run, all of which are simulated.

    Minimises ln²(mean TTFT) + ln²(mean TPOT), simulated over measured. The means are taken from straight lines in the overhead: one
    request that is admitted a moment sooner or later moves others by many seconds, and a single simulation has that scatter.

    Args:
        requests: of the run; of those that are not ``chosen`` only arrivals and lengths are used.
        server: what they are served by.
        chosen: requests whose times are fitted to.

    Raises:
        InputError: too few of them.
    """
    fitted = chosen & (requests.output_tokens > 1)
    if int(fitted.sum()) < FEWEST:
        raise InputError(
            f"{int(fitted.sum())} requests of two tokens or more cannot tell the overhead of a step; at least {FEWEST} can"
        )
    waits = requests.first_token - requests.arrival
    measured = np.stack([waits[fitted], requests.tpot[fitted]])

    def simulated(overhead: float) -> Array:
        run = simulate_run(requests, server, overhead)
        tpot = (run.last - run.first)[fitted] / (requests.output_tokens[fitted] - 1)
        return np.stack([(run.first - requests.arrival)[fitted], tpot])

    lower, upper = -(server.launches + server.overhead), 2 * float(np.median(requests.tpot[fitted]))
    # Dense near zero, where it is looked for: ± the square of an even grid.
    grid = np.sign(span := np.linspace(-1, 1, COARSE)) * span**2
    grid = np.unique(np.where(grid < 0, -grid * lower, grid * upper))
    distances = [float(np.sum(_logs(simulated(x), measured) ** 2)) for x in grid]
    best = int(np.argmin(distances))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    whole = np.ones(measured.shape[1], bool)
    for _ in range(2):
        near = np.linspace(low, high, FINE)
        runs = np.stack([simulated(x) for x in near])
        lines = _lines(near, runs, measured, whole)
        middle = float(np.clip(_solve(lines), low, high))
        reach = AROUND / max(float(np.abs(lines[0]).max()), AROUND / (upper - lower))
        low, high = max(middle - reach, lower), min(middle + reach, upper)
    seconds = float(np.clip(_solve(lines), lower, upper))
    order = np.argsort(np.argsort(requests.last_token[fitted], kind="stable"))
    part = order * BLOCKS // len(order)
    others = [float(np.clip(_solve(_lines(near, runs, measured, part != k)), lower, upper)) for k in range(BLOCKS)]
    error = float(np.sqrt((BLOCKS - 1) / BLOCKS * np.sum((np.array(others) - np.mean(others)) ** 2)))
    logs = np.stack([_logs(run, measured) for run in runs])
    slopes, intercepts = lines
    scatter = float(np.std(logs - (near[:, None] * slopes + intercepts)))
    by = np.where(slopes != 0, -intercepts / np.where(slopes != 0, slopes, 1), np.nan)
    edge = 1e-3 * (upper - lower)
    return OverheadFit(
        seconds, error, float(by[0]), float(by[1]), float(slopes[0]), float(slopes[1]), scatter, lower, upper,
        seconds - lower < edge or upper - seconds < edge, int(fitted.sum()),
    )  # fmt: skip


def _logs(simulated: Array, measured: Array) -> Array:
    """Return ln(simulated/measured) of the mean TTFT and of the mean TPOT."""
    return np.asarray(np.log(simulated.mean(axis=1) / measured.mean(axis=1)))


def _lines(near: Array, runs: Array, measured: Array, kept: Mask) -> tuple[Array, Array]:
    """Return slopes and intercepts of both logarithms in the overhead."""
    logs = np.stack([_logs(run[:, kept], measured[:, kept]) for run in runs])
    slopes, intercepts = np.polyfit(near, logs, 1)
    return np.asarray(slopes), np.asarray(intercepts)


def _solve(lines: tuple[Array, Array]) -> float:
    """Return where the sum of the squares of two straight lines is least."""
    slopes, intercepts = lines
    return float(-(slopes @ intercepts) / max(float(slopes @ slopes), 1e-30))
