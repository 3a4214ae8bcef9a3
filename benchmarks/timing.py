"""Medians of repeated timings, of calls inside this process and of whole commands."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command to time from a new process: name for people, and its arguments."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    """Working folder, so that nothing there is imported by accident."""

    def run(self) -> float:
        """Run it once and return the wall time [s].

        Raises:
            RuntimeError: it failed.
        """
        start = time.perf_counter()
        done = subprocess.run(
            self.arguments, capture_output=True, stdin=subprocess.DEVNULL, cwd=self.folder, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
        return seconds


@dataclass(frozen=True)
class Paired:
    """Two commands timed in turns: A B A B …, so that both see the same load of the machine."""

    first_s: float
    """Median of A [s]."""
    second_s: float
    """Median of B [s]."""
    ratio: float
    """Median over the pairs of A/B."""
    pairs: int


def paired(first: Command, second: Command, pairs: int) -> Paired:
    """Time two commands in turns, after one run of each that does not count."""
    first.run()
    second.run()
    times = [(first.run(), second.run()) for _ in range(pairs)]
    return Paired(
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(a / b for a, b in times),
        pairs,
    )


def prompt_tokens(number: int) -> int:
    """Return the prompt of call ``number``: 16,000 different ones before one recurs [tokens]."""
    return 1 + 7919 * number % 16_000


def per_call(call: Callable[[int], object], repeats: int, batch_s: float = 0.02) -> float:
    """Return the median time of one call [s].

    Args:
        call: takes the number of the call, so that every call can ask something new and no result is remembered from an earlier one.
        repeats: batches that are timed.
        batch_s: what one batch should last at least [s].
    """
    size, done = 8, 0
    while True:
        seconds = _batch(call, done, size)
        done += size
        if seconds >= batch_s:
            break
        size = max(2 * size, round(size * batch_s / max(seconds, 1e-9)))
    times = []
    for _ in range(repeats):
        times.append(_batch(call, done, size) / size)
        done += size
    return statistics.median(times)


def _batch(call: Callable[[int], object], first: int, size: int) -> float:
    start = time.perf_counter()
    for number in range(first, first + size):
        call(number)
    return time.perf_counter() - start
