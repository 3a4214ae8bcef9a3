"""A real vLLM run against its simulation: writes docs/real-run.md with its tables and figure.

python benchmarks/real_run.py                          # the RTX 4090 run of the folder in COSTMODEL_SHARED or ../shared
python benchmarks/real_run.py --data FOLDER            # another recorded run; prints instead of writing
python benchmarks/real_run.py --data FOLDER --calibration FILE --fit-on 50
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from accuracy import FIGURES, TARGET, shared_folder

from costmodel.errors import InputError
from costmodel.validation.datasets.rtx4090 import RequestTable, rtx4090
from costmodel.validation.datasets.served_runs import ServedRun, read_run
from costmodel.validation.datasets.tables import Column, Mask
from costmodel.validation.fitting.run_overhead import OverheadFit, first_to_finish, fit_overhead
from costmodel.validation.fitting.run_tables import calibration_beside
from costmodel.validation.fitting.served_run import kernels_of, stretches
from costmodel.validation.fitting.served_ticks import decode_seconds, step_between, tick_offset
from costmodel.validation.fitting.simulated_run import RunServer, SimulatedRun, server_of, simulate_run

PAGE = TARGET.parent / "real-run.md"
FIGURE = FIGURES / "real-run.png"
FIT_ON = 100
"""Requests, the first to finish, that the overhead is fitted to."""
SHARES = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}
GOALS = {"TTFT": (2, 4), "TPOT": (1.5, 3)}
"""What is aimed at for the mean, and for p50, p90 and p99 [%]."""
STEP_GOAL = 5
"""The same for pure decode steps [%]."""
PUBLISHED = {("TTFT", "mean"): 0.6, ("TPOT", "mean"): 0.2, ("TPOT", "p99"): 0.9, ("latency", "mean"): 0.5}
"""Errors that LLMServingSim published for the RTX 4090 run, all 300 requests, TTFT from the queue [%]."""
CHECKED = 0.05
"""Two requests whose steps differ by more than this from what came out of the server meanwhile do not measure them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run, measured and simulated."""

    run: ServedRun
    server: RunServer
    fit: OverheadFit
    simulated: SimulatedRun
    fitted: Mask

    @property
    def requests(self) -> RequestTable:
        """Of the run."""
        return self.run.requests


def compare(folder: Path, calibration: Path | None = None, fit_on: int = FIT_ON) -> Comparison:
    """Fit the overhead to the first requests that finished, and simulate the run with it."""
    run = read_run(folder)
    beside, note = (None, "") if calibration else calibration_beside(folder, run.served)
    server = server_of(run.served, calibration or beside)
    server = replace(server, notes=(*server.notes, *([note] if note else [])))
    fitted = first_to_finish(run.requests, fit_on)
    fit = fit_overhead(run.requests, server, fitted)
    return Comparison(run, server, fit, simulate_run(run.requests, server, fit.seconds), fitted)


# --- latencies ----------------------------------------------------------------------------------------------------------


def latencies(requests: RequestTable, first: Column, last: Column) -> dict[str, Column]:
    """Return what a user feels: TTFT and latency from arrival, and TPOT (NaN for answers of one token) [s]."""
    more = np.maximum(requests.output_tokens - 1, 1)
    tpot = np.where(requests.output_tokens > 1, (last - first) / more, np.nan)
    return {"TTFT": first - requests.arrival, "TPOT": tpot, "latency": last - requests.arrival}


def measured(requests: RequestTable) -> dict[str, Column]:
    """Return the latencies that were measured [s]."""
    return latencies(requests, requests.first_token, requests.last_token)


def statistics(values: Column) -> dict[str, float]:
    """Return mean and nearest-rank percentiles."""
    known = values[~np.isnan(values)]
    return {
        name: float(known.mean() if share is None else np.quantile(known, share, method="inverted_cdf"))
        for name, share in SHARES.items()
    }


def errors(requests: RequestTable, run: SimulatedRun, chosen: Mask) -> dict[tuple[str, str], float]:
    """Return simulated/measured − 1 of every statistic [%]."""
    made, found = latencies(requests, run.first, run.last), measured(requests)
    errors = {}
    for what in found:
        ours, theirs = statistics(made[what][chosen]), statistics(found[what][chosen])
        errors.update({(what, name): 100 * (ours[name] / theirs[name] - 1) for name in SHARES})
    return errors


def latency_table(found: Comparison, published: bool) -> str:
    """Return the table of latencies."""
    requests, others = found.requests, ~found.fitted
    made, real = latencies(requests, found.simulated.first, found.simulated.last), measured(requests)
    parts = [errors(requests, found.simulated, chosen) for chosen in (others, found.fitted, others | True)]
    counts = [int(others.sum()), int(found.fitted.sum()), len(requests)]
    head = [
        "",
        "measured",
        "simulated",
        f"error, {counts[0]} others",
        "aimed at",
        f"error, {counts[1]} fitted to",
        f"error, all {counts[2]}",
    ]
    head += ["table-driven simulator, published"] if published else []
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for what in real:
        theirs, ours = statistics(real[what][others]), statistics(made[what][others])
        for name in SHARES:
            goal = GOALS.get(what, (None, None))[name != "mean"]
            cells = [_time(theirs[name]), _time(ours[name]), f"{parts[0][what, name]:+.1f} %"]
            cells += [f"± {goal:g} %" if goal else "", *(f"{part[what, name]:+.1f} %" for part in parts[1:])]
            if published:
                cells.append(f"{PUBLISHED[what, name]:+.1f} %" if (what, name) in PUBLISHED else "")
            lines.append(f"| {what} {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


# --- decode steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepRow:
    """Decode steps of one batch size. Times in seconds."""

    sequences: str
    seconds: int
    measured: float
    predicted: float


def step_rows(found: Comparison) -> list[StepRow]:
    """Return pure decode steps by the size of the CUDA graph that runs them, from what the server gave second by second."""
    if found.run.ticks is None:
        return []
    parameters = found.server.with_overhead(found.fit.seconds)
    by_size: dict[int, list[tuple[float, float]]] = {}
    for second in decode_seconds(found.requests, found.run.ticks, parameters):
        by_size.setdefault(-(-round(second.sequences) // 8) * 8, []).append((second.measured, second.predicted))
    return [
        StepRow(f"{size - 7}–{size}", len(pairs), *(float(np.mean(column)) for column in zip(*pairs, strict=True)))
        for size, pairs in sorted(by_size.items())
    ]


def pair_lines(found: Comparison) -> tuple[list[str], list[float]]:
    """Return a line per pair of requests that began in one step and ended in the run's last part, and the errors of those that count."""
    parameters, requests = found.server.with_overhead(found.fit.seconds), found.requests
    lines, kept = [], []
    start = float(requests.arrival.min())
    for item in sorted(stretches(requests)[0], key=lambda item: item.start):
        begin, end = (int((requests.last_token > time).sum()) for time in (item.start, item.end - 1e-6))
        predicted = kernels_of(item, requests, parameters)
        by_tokens = float("nan")
        if found.run.ticks is not None:
            by_tokens = step_between(requests, found.run.ticks, item.start, item.end)
        counts = not abs(item.step / by_tokens - 1) > CHECKED
        error = 100 * (predicted / item.step - 1)
        kept += [error] if counts else []
        told = f"{error:+.1f} %" if counts else f"({error:+.1f} %)"
        lines.append(
            f"| {item.start - start:.1f}–{item.end - start:.1f} s | {item.steps:.0f} | {begin} → {end} | {item.step * 1e3:.2f} ms | "
            f"{by_tokens * 1e3:.2f} ms | {predicted * 1e3:.2f} ms | {told} |"
        )
    return lines, kept


# --- the overhead ---------------------------------------------------------------------------------------------------------


def missing_kernels(folder: Path, found: Comparison) -> float:
    """Return the time of kernels that no operator of the calibration stands for, by the layer tables; 0 where there are none [s]."""
    if not all((folder / name).is_file() for name in ("dense.csv", "per_sequence.csv", "attention.csv")):
        return 0.0
    data = rtx4090(folder)
    batch = float(np.median(found.simulated.samples[1]))
    layers = [data.dense.layer(name) for name in ("embedding", "final_layernorm") if name in data.dense.names()]
    layers += [data.per_sequence.layer(name) for name in ("sampler",) if name in data.per_sequence.names()]
    return float(sum(np.interp(batch, layer.size, layer.seconds) for layer in layers))


# --- what it depends on -------------------------------------------------------------------------------------------------


def variants_table(found: Comparison) -> str:
    """Return how far the other requests are off if something is set otherwise; nothing is fitted anew."""
    server, fit = found.server, found.fit
    settings = server.served.settings
    blocks = settings.kv_blocks or 0

    def with_settings(**changes: object) -> RunServer:
        return replace(server, served=replace(server.served, settings=replace(settings, **changes)))  # type: ignore[arg-type]

    cases = {
        "as above": (server, fit.seconds),
        "overhead one standard error more": (server, fit.seconds + fit.standard_error),
        "overhead one standard error less": (server, fit.seconds - fit.standard_error),
        "overhead 1 ms more": (server, fit.seconds + 1e-3),
        f"{blocks - 28:,} KV blocks instead of {blocks:,}": (with_settings(kv_blocks=blocks - 28), fit.seconds),
        f"{blocks - 1:,} KV blocks": (with_settings(kv_blocks=blocks - 1), fit.seconds),
        "no prefix cache: all is computed again after a preemption": (with_settings(prefix_caching=False), fit.seconds),
        "steps scheduled in turn, not ahead": (with_settings(asynchronous=False), fit.seconds),
        "prompts admitted before all of them fits": (with_settings(reserve_full_prompt=False), fit.seconds),
    }
    names = [(what, name) for what in ("TTFT", "TPOT") for name in ("mean", "p50", "p90", "p99")]
    lines = ["| | preemptions | " + " | ".join(f"{what} {name}" for what, name in names) + " |"]
    lines.append("|---|--:|" + "--:|" * len(names))
    for label, (varied, overhead) in cases.items():
        run = simulate_run(found.requests, varied, overhead)
        off = errors(found.requests, run, ~found.fitted)
        lines.append(f"| {label} | {run.preemptions} | " + " | ".join(f"{off[name]:+.1f} %" for name in names) + " |")
    return "\n".join(lines)


def state_at(run: SimulatedRun, times: Column) -> tuple[Column, Column, Column]:
    """Return running and waiting requests and the share of KV blocks in use at some times of the engine's clock."""
    index = np.maximum(np.searchsorted(run.samples[0], times, side="right") - 1, 0)
    running, waiting, blocks = (column[index] for column in run.samples[1:])
    return running, waiting, blocks


def state_table(found: Comparison) -> str:
    """Return how far running, waiting and KV use are off over time; "" without ticks."""
    ticks = found.run.ticks
    if ticks is None:
        return ""
    requests = found.requests
    start = float(requests.arrival.min())
    made = state_at(found.simulated, ticks.time + start + tick_offset(requests, ticks))
    lines = ["| | measured mean | simulated mean | mean of the differences, each taken positive |", "|---|--:|--:|--:|"]
    real = (ticks.running, ticks.waiting, ticks.kv_share * 100)
    for name, theirs, ours in zip(
        ("running requests", "waiting requests", "KV blocks in use, %"), real, (*made[:2], made[2] * 100), strict=True
    ):
        lines.append(f"| {name} | {theirs.mean():.1f} | {ours.mean():.1f} | {np.abs(ours - theirs).mean():.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and write the page or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of a recorded run; prints instead of writing")
    parser.add_argument(
        "--calibration",
        type=Path,
        help="file; from tables beside the run, or that of the GPU, if left out",
    )
    parser.add_argument("--fit-on", type=int, default=FIT_ON, help="requests, the first to finish, that are fitted to")
    given = parser.parse_args(arguments)
    shared = shared_folder()
    folder = given.data or (shared / "data" / "rtx4090-llama-3.1-8b" if shared else None)
    try:
        if folder is None:
            raise InputError(
                "no recorded run: name its folder with --data, or get that of the page, whose section `The run` says how "
                "(docs/real-run.md)"
            )
        found = compare(folder, given.calibration, given.fit_on)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from real_run_page import SOURCE, text

    if given.data is not None:
        print(text(found, folder, published=False))
        return 0
    from real_run_figure import draw

    draw(found, FIGURE)
    figure = (
        f"![Running, waiting and KV use over time, and the distributions of TTFT and TPOT](figures/{FIGURE.name})\n"
    )
    page = text(found, folder, published=True)
    before, after = page.split("## The overhead", 1)
    PAGE.write_text(f"{before}{figure}\n## The overhead{after}\n{SOURCE}", encoding="utf-8")
    print(f"wrote {PAGE} and {FIGURE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
