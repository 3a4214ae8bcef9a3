"""How fast sweeps are: a million step-level points, and how simulations scale to the cores of this machine.

    python benchmarks/sweep_speed.py             # a minute or two
    python benchmarks/sweep_speed.py --quick     # fewer points and simulations: shows that it works
    python benchmarks/sweep_speed.py --json      # one document: costmodel.benchmark/1

The points are all columns of `costmodel.sweep`: decode step, prefill, spike and who sees it, memory, and TTFT and TPOT of the closed loop.
Serial and parallel simulations take turns, so that both see the same load of the machine; worker processes are new each time, those
of Dask (where it is installed) once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from typing import Any

import numpy as np

import costmodel
from costmodel.sweeping.runners import cores

POINTS_S, SCALING = 2.0, 1.6
"""Goals: seconds for a million points; how many times faster simulations are on two cores."""

PLAN: dict[str, Any] = {
    "gpu": ["h100", "a100", "l40s"],
    "model": ["Llama-3.1-8B", "Qwen2.5-32B"],
    "tp": [1, 2],
    "dtype": [None, "int8"],
    "chunk": [512, 1024, 2048, 4096, 8192, 16384],
    "rate": np.linspace(0.05, 2, 12),
    "prompt": range(500, 6500, 500),
    "streams": range(8, 200, 8),
    "context": [500, 2000],
    "output": 500,
}
"""995,328 points of 24 deployments, as a planner would ask them."""
DISTINCT: dict[str, Any] = {"prompt": range(1, 1001), "streams": range(1, 1001), "output": None}
"""A million different mixed steps of one deployment; no closed loops."""
LOADS: dict[str, Any] = {
    "simulate": "load", "gpu": ["h100", "a100"], "prompt": 1000, "output": 200, "spread": 0.5, "requests": 400,
    "chunk": [512, 1024, 2048, 4096], "rate": np.linspace(1, 13, 25),
}  # fmt: skip
"""200 simulations."""


def timed(**asked: Any) -> tuple[float, costmodel.Sweep]:
    """Return the seconds of a sweep, and the sweep."""
    start = time.perf_counter()
    found = costmodel.sweep(**asked)
    return time.perf_counter() - start, found


def point_rows(quick: bool) -> list[dict[str, Any]]:
    """Time step-level sweeps."""
    rows = []
    costmodel.sweep()
    for name, asked in (("a plan: 24 deployments, closed loops", PLAN), ("one deployment, distinct steps", DISTINCT)):
        fewer = {"prompt": asked["prompt"][:2]} if quick else {}
        runs = [timed(**(asked | fewer)) for _ in range(1 if quick else 5)]
        count, median = len(runs[0][1]), statistics.median(seconds for seconds, _ in runs)
        rows.append({"what": name, "points": count, "seconds": median, "goal_s": None if quick else POINTS_S})
    return rows


def simulation_row(quick: bool, what: str, **parallel: Any) -> dict[str, Any]:
    """Time simulations one after another and in parallel, in turns; the rows must be the same.

    Args:
        quick: fewer simulations, once.
        what: name of the row.
        parallel: options of the sweep that runs in parallel.
    """
    asked = LOADS | ({"rate": [2.0, 6.0]} if quick else {})
    ratios, serial_s, parallel_s = [], [], []
    for _ in range(1 if quick else 3):
        seconds, serial = timed(**asked, workers=1)
        faster, other = timed(**asked, **parallel)
        if serial.document() != other.document():
            raise SystemExit(f"the rows of serial simulations and of {what} differ")
        serial_s.append(seconds)
        parallel_s.append(faster)
        ratios.append(seconds / faster)
    return {
        "what": what, "points": len(serial), "seconds": statistics.median(parallel_s),
        "serial_s": statistics.median(serial_s), "ratio": statistics.median(ratios),
        "goal_ratio": SCALING if cores() == 2 and not quick else None,
    }  # fmt: skip


def dask_rows(quick: bool) -> list[dict[str, Any]]:
    """Time simulations on two Dask workers of this machine; none where Dask is not installed."""
    try:
        from distributed import LocalCluster
    except ImportError:
        return []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        timed(**LOADS | {"rate": [1.0, 2.0]}, dask=cluster.scheduler_address)  # what the workers import is not timed
        return [simulation_row(quick, "simulations on 2 Dask workers", dask=cluster.scheduler_address)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few points: shows that everything works")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    given = parser.parse_args()
    rows = [
        *point_rows(given.quick),
        simulation_row(given.quick, f"simulations on {cores()} cores"),
        *dask_rows(given.quick),
    ]
    versions = {"costmodel": costmodel.__version__, "python": platform.python_version(), "numpy": np.__version__}
    if given.json:
        print(
            json.dumps(
                {"schema": "costmodel.benchmark/1", "quick": given.quick, "versions": versions, "rows": rows}, indent=2
            )
        )
        return 0
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + f", {os.cpu_count()} cores")
    for row in rows:
        text = f"{row['what']:<40}{row['points']:>10,} rows{row['seconds']:>8.2f} s"
        if "ratio" in row:
            text += f"   serial {row['serial_s']:.2f} s, {row['ratio']:.2f} × as fast"
            goal = row["goal_ratio"]
            text += f", goal ≥ {goal:g}: {'met' if row['ratio'] >= goal else 'missed'}" if goal else ""
        elif row["goal_s"]:
            text += f"   goal ≤ {row['goal_s']:g} s: {'met' if row['seconds'] <= row['goal_s'] else 'missed'}"
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
