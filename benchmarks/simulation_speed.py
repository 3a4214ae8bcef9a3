"""How fast the simulator is: requests per second of a real trace, jumping and step by step, and the memory that it takes.

python benchmarks/simulation_speed.py             # half a minute; the Azure conversation trace from COSTMODEL_SHARED or ../shared
python benchmarks/simulation_speed.py --quick     # one run each, the first tenth of the trace
python benchmarks/simulation_speed.py --json      # one document: costmodel.benchmark/1

Where the trace is not there, a Poisson load of as many requests at its mean rate and lengths stands in, and the output says so. The
trace is served by Llama-3.1-8B on one H100 at the shipped calibration.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.simulation.jumping import JumpingEngine
from costmodel.simulation.quantiles import Gaps
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.server import Server, make_server
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from costmodel.simulation.traces import read_trace
from costmodel.simulation.workloads import poisson

TRACE = Path("data") / "traces" / "AzureLLMInferenceTrace_conv.csv"
STAND_IN = {"requests": 19_366, "rate": 5.5, "prompt": 1155, "output": 211}
PLAIN_SHARE = 0.1
"""Share of the trace that is simulated step by step, which takes long."""
GOALS = {"jumping": 25_000, "jumping, prefix caching, asynchronous": 10_000}
"""Simulated requests per second that are aimed at."""


def requests_of(shared: Path) -> tuple[list[Request], str]:
    """Return the requests, and what they are."""
    if (path := shared / TRACE).is_file():
        return list(read_trace(path).requests), "Azure conversation trace, 2023"
    source = poisson(
        STAND_IN["rate"], int(STAND_IN["prompt"]), int(STAND_IN["output"]), requests=int(STAND_IN["requests"])
    )
    return [source.take() for _ in range(len(source))], "Poisson load in place of the Azure conversation trace"


def timed(engine: type[Engine], server: Server, settings: Settings, requests: Sequence[Request]) -> tuple[float, Tally]:
    """Return the seconds of one run, and what it counted; reading percentiles off it included."""
    gc.collect()
    start = time.perf_counter()
    tally = Tally()
    engine(settings, server.clock, Listed(requests), tally, delay=server.delay).run()
    Gaps([tally], server.clock).quantiles([0.5, 0.9, 0.99, 0.999, 1.0])
    return time.perf_counter() - start, tally


def memory_of_run(server: Server, settings: Settings, requests: Sequence[Request]) -> int:
    """Return the most memory that a run takes beyond its requests [B]."""
    gc.collect()
    tracemalloc.start()
    tally = Tally()
    JumpingEngine(settings, server.clock, Listed(requests), tally, delay=server.delay).run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(requests: Sequence[Request], repeats: int) -> list[dict[str, float | int | str | None]]:
    """Return one row per engine and settings; runs that are compared take turns."""
    server = make_server({}, 1)
    both = replace(server.settings, prefix_caching=True, asynchronous=True)
    bare = replace(server.settings, prefix_caching=False, asynchronous=False)
    few = requests[: max(int(len(requests) * PLAIN_SHARE), 1)]
    kinds: dict[str, tuple[type[Engine], Settings, Sequence[Request]]] = {
        "jumping": (JumpingEngine, bare, requests),
        "jumping, prefix caching, asynchronous": (JumpingEngine, both, requests),
        "step by step": (Engine, bare, few),
        "step by step, prefix caching, asynchronous": (Engine, both, few),
    }
    for engine, settings, asked in kinds.values():
        timed(engine, server, settings, asked[:200])
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    tallies = {}
    for _ in range(repeats):
        for name, (engine, settings, asked) in kinds.items():
            took, tallies[name] = timed(engine, server, settings, asked)
            seconds[name].append(took)
    rows: list[dict[str, float | int | str | None]] = []
    for name, (_, _, asked) in kinds.items():
        median = statistics.median(seconds[name])
        tally = tallies[name]
        rows.append(
            {
                "what": name,
                "requests": len(asked),
                "seconds": median,
                "requests_per_s": len(asked) / median,
                "goal_per_s": GOALS.get(name),
                "steps": tally.steps,
                "steps_per_s": tally.steps / median,
                "events": tally.events,
                "simulated_s": tally.end,
            }
        )
    peak = memory_of_run(server, both, requests)
    rows.append({"what": "memory of a run", "requests": len(requests), "bytes_per_request": peak / len(requests)})
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    shared = Path(os.environ.get("COSTMODEL_SHARED") or Path(__file__).parents[2] / "shared")
    requests, what = requests_of(shared)
    if given.quick:
        requests = requests[: len(requests) // 10]
    rows = measure(requests, 1 if given.quick else 5)
    if given.json:
        print(json.dumps({"schema": "costmodel.benchmark/1", "load": what, "rows": rows}, indent=2))
        return
    print(f"{what}: {len(requests):,} requests, Llama-3.1-8B on one H100, calibrated\n")
    for row in rows:
        if "bytes_per_request" in row:
            print(f"{row['what']:<44}{row['bytes_per_request']:>10,.0f} B per request, requests themselves left out")
            continue
        goal = f"  goal {row['goal_per_s']:,}" if row["goal_per_s"] else ""
        print(
            f"{row['what']:<44}{row['requests_per_s']:>10,.0f} requests/s{row['steps_per_s']:>12,.0f} steps/s"
            f"{row['seconds']:>8.2f} s{goal}"
        )


if __name__ == "__main__":
    main()
