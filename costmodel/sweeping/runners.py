"""Where the simulations of a sweep run: here one after another, in worker processes of this machine, or on a Dask scheduler.

Each yields the place of a configuration and its row as they come. The same code runs everywhere, and numbers travel whole, so the rows are
the same, bit for bit.

Worker processes are started as ``python -c``, not by ``multiprocessing``, whose ``spawn`` would run a user's script once more in every
worker; one that is killed is started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

from costmodel.checks import whole
from costmodel.hardware.errors import CostModelError
from costmodel.sweeping.configurations import Configuration, simulate_configuration

Numbered = tuple[int, dict[str, Any]]

MOST_WORKERS = 1024
TRIES = 3
"""So many workers may be lost over one configuration."""
PROGRAM = "import sys; sys.path[:] = {path!r}; from costmodel.sweeping.worker import serve; serve()"


def cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def run_here(configurations: Sequence[Configuration]) -> Iterator[Numbered]:
    """Simulate one after another in this process."""
    for number, configuration in enumerate(configurations):
        yield number, simulate_configuration(configuration)


def run_local(configurations: Sequence[Configuration], workers: int | None = None) -> Iterator[Numbered]:
    """Simulate in so many worker processes, by default one per core.

    Raises:
        CostModelError: a simulation failed, or worker after worker was lost over it.
    """
    count = min(cores() if workers is None else whole(workers, "workers", 1, MOST_WORKERS), len(configurations))
    if count <= 1:
        yield from run_here(configurations)
        return
    pool = _Processes()
    threads = ThreadPoolExecutor(count, thread_name_prefix="costmodel-sweep")
    try:
        asked = {threads.submit(pool.ask, each): number for number, each in enumerate(configurations)}
        for future in as_completed(asked):
            yield asked[future], future.result()
    finally:
        pool.stop()
        threads.shutdown(wait=True, cancel_futures=True)


class _Processes:
    """One worker process for each thread that asks."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def ask(self, configuration: Configuration) -> dict[str, Any]:
        """Return the row of a configuration."""
        for _ in range(TRIES):
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            answer = ""
            with suppress(OSError, ValueError):  # it has ended
                process.stdin.write(json.dumps(configuration) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            if answer.endswith("\n"):
                reply = json.loads(answer)
                if "error" in reply:
                    raise CostModelError(reply["error"])
                return dict(reply["row"])
            if self._stopped:
                break
            process.kill()
            process.wait()
            self._mine.process = None
        raise CostModelError(
            f"{TRIES} worker processes were lost over one configuration, perhaps for want of memory; try fewer --workers"
        )

    def stop(self) -> None:
        """End all workers."""
        with self._lock:
            self._stopped = True
            for process in self._all:
                process.kill()
        for process in self._all:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def _process(self) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] | None = getattr(self._mine, "process", None)
        if process is None:
            with self._lock:
                if self._stopped:
                    raise CostModelError("the sweep has ended")
                process = self._mine.process = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM.format(path=sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    process_group=0,  # Ctrl-C is for the process that asks, also before a worker can say so itself
                    env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **os.environ},
                )
                self._all.append(process)
        return process
