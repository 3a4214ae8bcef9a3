"""The text of docs/interference-measured.md: tables of the live experiment and its predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from live_interference import FIGURES, KEPT, Comparison

from costmodel.cli.figures.style import format_seconds
from costmodel.cli.interfere_report import OTHERS
from costmodel.cli.simulate_words import value
from costmodel.cli.text import count, milliseconds
from costmodel.simulation.results import SHARES, Result
from costmodel.validation.checking.telling import Told
from costmodel.validation.interference.documents import RunResult

BOTH = "with the prompt in one step and with a small token budget"
ALT = {
    "percentiles": f"Percentiles of the gaps between tokens, measured and predicted, {BOTH}",
    "gaps": f"Every gap between tokens against time, {BOTH}",
}


def text(found: Comparison) -> str:
    """Return the page."""
    parts = [
        _head(found),
        _figure("percentiles"),
        _waits(found),
        _ladders(found),
        _figure("gaps"),
        _about(found),
        _again(),
    ]
    return "\n".join(parts)


def sentences(found: Comparison) -> str:
    """Return what README.md says under the figure, in one line."""
    one, small = found.runs
    record = one.record
    waits = []
    for told in found.runs:
        row = next(row for row in told.summary.predicted if row.what == "spike")
        waits.append((format_seconds(row.predicted_s), format_seconds(row.measured_s)))
    chunks, steps = small.compared.spike.spike.chunks if small.compared else 0, small.summary.one_step.steps
    device = record.machine.device if record.machine else "an unknown machine"
    return (
        f"vLLM {one.summary.server.version} with a small random model on a CPU ({device}, {found.cores} cores, one engine thread), "
        f"{record.plan.streams} streams and a prompt of {count(record.plan.prompt_tokens)} tokens every {record.plan.every_s:g} s: one "
        f"wait of {waits[0][1]} per prompt (predicted: {waits[0][0]}), or, with `--max-num-batched-tokens {_budget(small)}`, "
        f"{steps:g} waits, the longest of {waits[1][1]} (predicted: {chunks}, {waits[1][0]}); medians over prompts. "
        "Both predictions are of one calibration, "
        "fitted to steps measured "
        "before any server ran; [docs/interference-measured.md](docs/interference-measured.md) has the tables and the program that does it "
        "on your machine."
    )


def _head(found: Comparison) -> str:
    told = found.runs[0]
    record, summary, measurement = told.record, told.summary, found.measurement
    plan, config = record.plan, measurement.model.config
    threads = measurement.machine.threads
    device = f"{record.machine.device if record.machine else 'unknown'}, {found.cores} cores"
    if threads is not None:
        device += f", {threads} engine thread{'s' if threads != 1 else ''}"
    device += f"; {found.note}" if found.note else ""
    budgets = " and ".join(f"{_budget(each):,}" for each in found.runs)
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    chats = f"{plan.streams} streams from context {count(plan.context_tokens)} on"
    held = f"median error of the {found.fitted.rows} held out {100 * found.fitted.median:.1f} %"
    return f"""# The long-prompt experiment, measured and predicted

Written by `python benchmarks/live_interference.py`: one calibration, fitted to steps that `costmodel measure` ran in a process of its own,
and two live servers (`costmodel interfere --serve`), to which nothing was tuned.

| | |
|---|---|
| machine | {device} |
| engine | vLLM {summary.server.version}, {record.date[:10]} |
| model | Llama-shaped, {layers} layers, hidden size {hidden}, {measurement.model.dtype}, random weights |
| load | {chats}, a prompt of {count(plan.prompt_tokens)} tokens every {plan.every_s:g} s |
| `--max-num-batched-tokens` | {budgets} |
| calibration | {len(measurement.steps)} kinds of steps; {held} |
"""


def _figure(name: str) -> str:
    return f"![{ALT[name]}](figures/{FIGURES[name]})\n"


def _budget(told: Told) -> int:
    return int(told.record.server.flags["max_num_batched_tokens"] or 0)


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %".replace("-", "−")


def _waits(found: Comparison) -> str:
    """Return the table of what the streams feel."""
    lines = [
        "## What the streams feel",
        "",
        "| | predicted | measured | error | 80 % interval |",
        "|---|--:|--:|--:|--:|",
    ]
    for told in found.runs:
        lines += _rows(told)
    told = found.runs[0]
    lines += [
        "",
        "A decode step is held against the median gap of the baseline, a run without prompts before each of the two. The spike is the",
        "median, over prompts, of the longest gap that the median stream had. Stalls are gaps of more than "
        f"{_pair(told)[1].stall_detail.factor:g} medians of their run,",
        "whatever made them.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _rows(told: Told) -> Iterator[str]:
    summary = told.summary
    compared = told.compared
    assert compared is not None
    simulated, injected = _pair(told)
    name = f"budget {_budget(told):,}: "
    for row in summary.predicted:
        low, high = row.interval_s or (0.0, 0.0)
        interval = f"{milliseconds(low)}–{milliseconds(high)} ms" if row.interval_s else ""
        yield (
            f"| {name}{row.what} | {milliseconds(row.predicted_s)} ms | {milliseconds(row.measured_s)} ms | "
            f"{_error(row.predicted_s, row.measured_s)} | {interval} |"
        )
    own = [spike for spike in summary.spikes if spike.cause == "injection"]
    heights = (
        f"{milliseconds(min(spike.height_s for spike in own))}–{milliseconds(max(spike.height_s for spike in own))} ms"
    )
    yield f"| {name}lowest to highest spike | | {heights} | | |"
    if simulated.ttft is not None and injected.ttft is not None:
        made, seen = simulated.ttft.p50_s, injected.ttft.p50_s
        yield f"| {name}TTFT of the prompts, median | {milliseconds(made)} ms | {milliseconds(seen)} ms | {_error(made, seen)} | |"
    steps = summary.one_step.steps or 0
    yield f"| {name}high gaps per prompt and stream | {compared.spike.spike.chunks} | {steps:g} | | |"
    prompts, streams = len(summary.injections), told.record.plan.streams
    made, seen = (each.stalls / streams for each in (simulated, injected))
    yield f"| {name}stalls per stream | {made:.1f} | {seen:.1f} | {_error(made, seen)} | |"
    yield f"| {name}prompts and their spikes | | {prompts} and {len(own)} | | |"
    others = Counter(spike.cause for spike in summary.spikes if spike.cause != "injection")
    if others:
        said = ", ".join(f"{number} {OTHERS[cause]}" for cause, number in sorted(others.items()))
        yield f"| {name}high gaps of most streams beside them | 0 | {said} | | |"
    lag = f"{milliseconds(injected.lag.p99_s)} ms" if injected.lag else "unknown"
    yield f"| {name}client late by, p99; gaps of no length | | {lag}; {100 * injected.bundles / injected.gaps:.1f} % | | |"


def _ladders(found: Comparison) -> str:
    """Return the table of percentiles."""
    names = [f"budget {_budget(told):,}" for told in found.runs]
    heads = [f"{name}, {what}" for name in names for what in ("predicted", "measured", "error")]
    lines = ["## Percentiles of the gaps", "", "| ms | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    pairs = [_pair(told) for told in found.runs]
    for share in (*SHARES, "mean"):
        cells = []
        for made, seen in pairs:
            assert made.itl is not None
            assert seen.itl is not None
            predicted, measured = value(made.itl, share), value(seen.itl, share)
            cells += [milliseconds(predicted), milliseconds(measured), _error(predicted, measured)]
        lines.append(f"| {share} | " + " | ".join(cells) + " |")
    cells = []
    for told, (made, seen) in zip(found.runs, pairs, strict=True):
        streams = told.record.plan.streams
        cells += [count(made.gaps / streams), count(seen.gaps / streams), _error(made.gaps, seen.gaps)]
    lines.append("| gaps per stream | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _pair(told: Told) -> tuple[Result, RunResult]:
    """Return the run with injections, simulated and measured."""
    made, seen = told.summary.simulated, told.summary.injected
    assert made is not None
    assert seen is not None
    return made, seen


def _about(found: Comparison) -> str:
    middle = " and ".join(
        _error(made.itl.p50_s, seen.itl.p50_s) for made, seen in map(_pair, found.runs) if made.itl and seen.itl
    )
    return f"""## What is in a gap beside a step

The calibration is of steps of the engine alone; a stream's gap could be longer by what the server does between steps, and by HTTP. The
engine computes in a process of its own, and the next step begins while another process makes text of the last one's tokens and sends
them: what that takes delays a token, but the next one as well. So nothing is added to a prediction; the median gaps of the two runs are
predicted to {middle}. Single gaps are shorter or longer by as much as the delays of two tokens differ, and by what else runs on the few
cores that engine, server and client share: the table says how late the client was, and what else held up most streams.

The contexts of the streams grow during a run, and the simulation lets them grow as well; the rows of the decode step and the spike are at
the mean context.
"""


def _again() -> str:
    kept = f"[`benchmarks/{KEPT.name}`](../benchmarks/{KEPT.name})"
    return f"""## Again

`python benchmarks/live_interference.py --out FOLDER` does all of it on your machine in some six minutes, with vLLM: on a CPU, or on a GPU
with Llama-3.1-8B, 32 streams, a prompt of 8,000 tokens and a small budget of 512 (which nobody has run yet). What is kept of the run above
is in {kept}: the profile, every repeat of every step, the
calibration, and every token of both experiments (`xz -dk` gives what `costmodel interfere --from` and `costmodel check` read);
`python benchmarks/live_interference.py --redraw` makes page and figures of it. Single commands:

```bash
costmodel gpus probe --device cpu -o cpu.toml
costmodel measure --random-weights config.json --gpu cpu.toml --dtype fp32 --enforce-eager --minutes 2 --out steps.jsonl
costmodel fit steps.jsonl --gpu cpu.toml -o calibration.toml
costmodel interfere --serve MODEL_DIR --random-weights --record one-step.jsonl -- --dtype float32 --enforce-eager
costmodel interfere --serve MODEL_DIR --random-weights --chunk 256 --record 256.jsonl -- --dtype float32 --enforce-eager
costmodel interfere --from one-step.jsonl --from 256.jsonl --gpu cpu.toml --calibration calibration.toml --plot ladders.png --figure \\
    percentiles
```
"""
