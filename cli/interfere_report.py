"""A live experiment as text for a person: what was asked, who waited, how long, and what the equations had said."""

from __future__ import annotations

from collections import Counter

from costmodel.cli.simulate_words import cell
from costmodel.cli.text import count, milliseconds, percent, plural, seconds, significant, table, wrapped
from costmodel.simulation.results import SHARES, Result
from costmodel.validation.interference.documents import Interference, RunResult

OTHERS = {"client": "as the client was late", "restart": "as a stream began anew", "unknown": "of unknown cause"}
"""Causes of high gaps that no prompt made, in words."""
MOST_SPIKES = 8
"""Injections that have a row of their own."""


def report(item: Interference) -> str:
    """Return the report of one experiment."""
    parts = [_heading(item), _runs(item), _injections(item), _sentence(item), _one_step(item), _predicted(item)]
    return "\n\n".join(part for part in [*parts, _remarks(item)] if part)


def _heading(item: Interference) -> str:
    server, plan = item.server, item.workload
    engine = " ".join(filter(None, ["vLLM" if server.engine == "vllm" else server.engine, server.version])) or "server"
    where = f" on {item.machine.device}" if item.machine else ""
    flags = ", ".join(f"{name}={value}" for name, value in server.flags.items())
    asked = (
        f"{plural(plan.streams, 'stream')} from context {count(plan.context_tokens)} on; a prompt of "
        f"{plural(plan.prompt_tokens, 'token')} every {plan.every_s:g} s from {plan.first_s:g} s on"
    )
    lines = [f"{item.model_name}, {engine} at {server.url}{where}", asked]
    return "\n".join(map(wrapped, [*lines, *([f"Flags: {flags}"] if flags else [])]))


def _runs(item: Interference) -> str:
    named = [(name, run) for name, run in (("baseline", item.baseline), ("injected", item.injected)) if run is not None]
    if not named:
        return "Nothing was measured"
    runs = [run for _, run in named]
    made = item.simulated
    both: list[RunResult | Result] = [*runs, *([made] if made else [])]
    factor = runs[0].stall_detail.factor
    streams = item.workload.streams
    blank = ["–"] if made else []
    rows = [
        ["seconds", *(significant(run.duration_s, 3) for run in both)],
        ["gaps per stream", *(count(run.gaps / streams) for run in both)],
        [
            f"stalls per stream (over {factor:g} × the median)",
            *(significant(run.stalls / streams, 3) for run in both),
        ],
    ]
    rows += [[f"ITL {name} [ms]", *(cell(run.itl, name) for run in both)] for name in (*SHARES, "mean")]
    rows.append(["mean context of a stream", *(count(run.context_tokens) for run in runs), *blank])
    rows.append(["tokens/s of all streams", *(count(run.tokens_per_s) for run in runs), *blank])
    rows.append(["client late by, p99 [ms]", *(_lag(run) for run in runs), *blank])
    return table(rows, ["", *(name for name, _ in named), *(["simulated"] if made else [])])


def _lag(run: RunResult) -> str:
    return "–" if run.lag is None else milliseconds(run.lag.p99_s)


def _injections(item: Interference) -> str:
    if not item.injections:
        return ""
    rows = []
    for each in item.injections[:MOST_SPIKES]:
        spike = None if each.spike is None else item.spikes[each.spike]
        rows.append(
            [
                f"{each.sent_s:,.3f}",
                "–" if each.prompt_tokens is None else count(each.prompt_tokens),
                "–" if each.ttft_s is None else milliseconds(each.ttft_s),
                "–" if spike is None else milliseconds(spike.height_s),
                "–" if spike is None else milliseconds(spike.duration_s),
                "–" if spike is None else count(spike.steps),
                "–" if spike is None else f"{spike.streams} of {item.workload.streams}",
            ]
        )
    header = ["sent s", "tokens", "TTFT ms", "spike ms", "all ms", "steps", "felt by"]
    text = table(rows, header, left=0)
    more = len(item.injections) - len(rows)
    if more:
        text += f"\n  … {plural(more, 'more prompt')}"
    own = sum(spike.cause == "injection" for spike in item.spikes)
    answered = sum(each.ttft_s is not None for each in item.injections)
    others = Counter(spike.cause for spike in item.spikes if spike.cause != "injection")
    strange = ", ".join(f"{number} {OTHERS[cause]}" for cause, number in sorted(others.items()))
    verdict = "one to one" if item.one_to_one else "not one to one"
    verdict += f"; beside them {strange}" if strange else ""
    head = (
        f"The injected prompts: {count(len(item.injections))} sent, {count(answered)} answered, {plural(own, 'spike')}: {verdict} "
        f"(spike: the median stream's longest gap)"
    )
    return f"{wrapped(head)}\n{text}"


def _sentence(item: Interference) -> str:
    if item.spike_s is None or item.decode_step_s is None or item.spike_ratio is None:
        return ""
    return wrapped(
        f"Every stream waits {seconds(item.spike_s)} for a token (median of the spikes) when a prompt comes: "
        f"{significant(item.spike_ratio, 3)} × the usual {seconds(item.decode_step_s)}."
    )


def _one_step(item: Interference) -> str:
    step = item.one_step
    if not item.injections:
        return ""
    verdict = {"yes": "yes", "no": "no", "unknown": "cannot be told"}[step.verdict]
    flag = f"; it would with {step.flag}" if step.flag else ""
    return wrapped(f"Did a prompt go through in one step? {verdict}: {step.why}{flag}.")


def _predicted(item: Interference) -> str:
    if not item.predicted:
        return ""
    rows = []
    for row in item.predicted:
        interval, inside = "–", "–"
        if row.interval_s is not None:
            interval = "–".join(milliseconds(value) for value in row.interval_s)
            inside = "yes" if row.inside_interval else "no"
        sign = "+" if row.error >= 0 else "−"
        error = f"{sign}{percent(abs(row.error))}"
        rows.append([row.what, milliseconds(row.predicted_s), milliseconds(row.measured_s), error, interval, inside])
    header = ["milliseconds", "predicted", "measured", "error", "interval", "inside"]
    return f"{wrapped(f'Prediction: {item.prediction}')}\n{table(rows, header)}"


def _remarks(item: Interference) -> str:
    lines = [f"note: {text}" for text in item.notes] + [f"warning: {text}" for text in item.warnings]
    if item.record:
        lines.append(f"Every token is in {item.record}")
    return "\n".join(map(wrapped, lines))
