"""The words of docs/real-run.md around the numbers of real_run.py."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from real_run import (
    CHECKED,
    STEP_GOAL,
    Comparison,
    latency_table,
    measured,
    missing_kernels,
    pair_lines,
    state_table,
    step_rows,
    variants_table,
)

SOURCE = """\
How the choices were made: the overhead is one number for all steps because one run does not tell more apart, and the two means that it is
fitted to were taken because these are what is to be predicted (on simulated runs with noise, finish times or latencies give it as well).
The form of matrices (`gemm_tiles`) was chosen on the layer tables, but by someone who had seen that decode steps at the run's end, which
are requests not fitted to, jump by 1 ms between 16 and 17 sequences as the tables do. Errors of the requests not fitted to had been seen
when the two means were taken: the median finish time would put the overhead about one standard error higher, and the mean TTFT at the
edge of its goal or just beyond it (second line of the table of variants).

## The run

The run (`requests.jsonl`, `timeseries.csv`, `meta.json`) and the layer tables (`attention.csv`, `dense.csv`, `per_sequence.csv`) are from
[LLMServingSim](https://github.com/casys-kaist/LLMServingSim) (MIT). The script takes all of them from `data/rtx4090-llama-3.1-8b` in the
folder that COSTMODEL_SHARED names, or in `../shared`. From a checkout of costmodel:

```bash
git clone --depth 1 https://github.com/casys-kaist/LLMServingSim ../LLMServingSim
to=../shared/data/rtx4090-llama-3.1-8b && mkdir -p $to
cp ../LLMServingSim/bench/examples/RTX4090/Llama-3.1-8B/vllm/{requests.jsonl,timeseries.csv,meta.json} $to
cp ../LLMServingSim/profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1/{attention,dense,per_sequence}.csv $to
python benchmarks/real_run.py                           # writes this page and its figure
python benchmarks/real_run.py --data FOLDER             # another run of the same format; prints
```

Should the files have changed since: SHA-256 of those that the calibration rests on are in
[`rtx-4090-vllm.toml`](../hardware/calibrations/rtx-4090-vllm.toml). The published figures of the table-driven simulator use some 10,000
rows of layer times, count TTFT from the queue instead of the arrival, and are of all 300 requests.
"""


def text(found: Comparison, folder: Path, published: bool) -> str:
    """Return the whole page.

    Args:
        found: a run and its simulation.
        folder: of the run.
        published: put the published errors of a table-driven simulator beside it.
    """
    run = found.simulated
    notes = "".join(f"Note: {note}.\n" for note in found.server.notes)
    page = f"""# A real run, simulated

Written by `python benchmarks/real_run.py`{" (needs the run, see below)" if published else ""}.

{_about(found)}
{notes}
{latency_table(found, published)}

{run.preemptions} preemptions, {run.steps:,} steps, {run.mixed_steps:,} of them with prefill (simulated; the record has no such counts).

{_overhead(found, folder)}
{_steps(found)}
## What it depends on

The same requests with one thing set otherwise and nothing fitted anew. Under overload a request that is admitted a moment sooner lets
others wait for tens of seconds, so percentiles move by more than their cause; an error smaller than such moves means nothing.

{variants_table(found)}

{state_table(found)}

{_settings(found)}"""
    return re.sub(r"(?<=[ (|])-(?=[\d.]+ %)", "−", page)


def _about(found: Comparison) -> str:
    served, requests, calibration = found.server.served, found.requests, found.server.calibration
    span = float(requests.last_token.max() - requests.arrival.min())
    return f"""{len(requests):,} requests to {served.model.rpartition("/")[2]} on {found.server.deployment.gpus} × {served.gpu}
({served.engine}), {span:.0f} s. Calibration: {calibration.name if calibration else "none, datasheet rates"}. The overhead of a step
is fitted to the first {found.fit.requests} requests to finish; everything below is of the {int((~found.fitted).sum())} others unless it
says otherwise. Latencies count from arrival.
"""


def _overhead(found: Comparison, folder: Path) -> str:
    """Return the part about the overhead and whose it is."""
    fit, server = found.fit, found.server
    step = float(np.nanmedian(measured(found.requests)["TPOT"]))
    missing = missing_kernels(folder, found)
    least, most = max(fit.seconds - missing, 0.0), max(fit.seconds - missing + server.launches, 0.0)
    if fit.at_bound:
        return f"""## The overhead

{_ms(fit.seconds)} per step sits on a bound of the search: no overhead per step explains the first {fit.requests} requests to finish. Mean
TTFT alone asks for {_ms(fit.by_ttft)}, mean TPOT alone for {_ms(fit.by_tpot)}. The kernels' times are not those of this server.
"""
    own = f", on top of the calibration's {_ms(server.overhead)}" if server.overhead else ""
    return f"""## The overhead

{_ms(fit.seconds)} ± {_ms(fit.standard_error)} per step, net{own}, where the median time per token is {_ms(step)}. It is the one number
that is fitted to the run: to the mean TTFT and the mean TPOT of the first {fit.requests} requests to finish. The error is from leaving out
tenths of them. Mean TTFT alone asks for {_ms(fit.by_ttft)}, mean TPOT alone for {_ms(fit.by_tpot)}. One millisecond more makes the mean
TTFT {0.1 * fit.ttft_per_second:+.1f} % and the mean TPOT {0.1 * fit.tpot_per_second:+.1f} %.

*Net*, because it has three parts: the host's, kernels that the calibration leaves out ({_ms(missing)}: embedding, last norm and sampler by
the layer tables, where there are any), and, with a minus sign, launches. Kernels were timed one by one, and of the {_ms(server.launches)}
per step that their launches take by the fits, an unknown part is hidden once they run one after the other. So the host's part is between
{_ms(least)} (nothing hidden) and {_ms(most)} (everything hidden): {least / step:.1%} to {most / step:.1%} of a step.
{_at_the_end(found, missing, step)}"""


def _at_the_end(found: Comparison, missing: float, step: float) -> str:
    """Return what the run's end says of the overhead."""
    rows = step_rows(found)
    if not rows:
        return ""
    beyond = [row.measured - row.predicted + found.fit.seconds for row in rows]
    mean = float(np.average(beyond, weights=[row.seconds for row in rows]))
    hidden = max(missing - mean, 0.0)
    host = max(found.fit.seconds - missing + hidden, 0.0)
    return f"""
The run's end narrows that down. Nobody waits any more, and decode steps take {_ms(mean)} beside their kernels ({_ms(min(beyond))} to
{_ms(max(beyond))} by batch size, below). If the host is hidden altogether then, {_ms(hidden)} of the launches are, and the host's part in
the loaded server was about {_ms(host)} per step, {host / step:.1%}. This looks at requests that the fit does not see, and nothing is
predicted by it.
"""


def _steps(found: Comparison) -> str:
    """Return the part about decode steps."""
    rows, (pairs, kept) = step_rows(found), pair_lines(found)
    parts = ["## Pure decode steps\n"]
    if rows:
        lines = []
        for row in rows:
            error = 100 * (row.predicted / row.measured - 1)
            cells = [row.sequences, str(row.seconds), _ms(row.measured), _ms(row.predicted), f"{error:+.1f} %"]
            lines.append("| " + " | ".join(cells) + " |")
        table = "\n".join(lines)
        parts.append(f"""When the last prompt is through, every step gives each running request a token, so a second of *n* tokens and
*D* requests has *n*/*D* steps. Batches by the CUDA graph that runs them (multiples of 8); a step more or less in a second is 2 %.

| sequences | seconds | measured | predicted | error (aimed at ± {STEP_GOAL} %) |
|---|--:|--:|--:|--:|
{table}
""")
    if pairs:
        table = "\n".join(pairs)
        worst = f"Largest error of those that count: {max(kept, key=abs):+.1f} %.\n" if kept else ""
        parts.append(f"""The same from stamps alone: two requests that got their first tokens in one step end as many steps apart as
their answers differ in tokens, unless one of them was preempted meanwhile. Pairs whose steps are not those of the tokens that the server
gave in that time (by more than {CHECKED:.0%}) are in brackets and count for nothing: one of the two had waited.

| time | steps | sequences | measured | by tokens | predicted | error |
|---|--:|--:|--:|--:|--:|--:|
{table}

{worst}""")
    if not rows and not pairs:
        parts.append("The record has none that could be told.\n")
    return "\n".join(parts)


def _settings(found: Comparison) -> str:
    """Return the part about what was set and not fitted."""
    settings = found.server.served.settings
    delays = (found.requests.queued - found.requests.arrival) * 1e3
    return f"""## What was set, and how

From the record of the engine (`meta.json`): {settings.kv_blocks:,} blocks of {settings.block_tokens} tokens (the engine keeps one for
itself), `max_num_seqs` {settings.max_num_seqs}, `max_num_batched_tokens` {settings.token_budget:,}, `max_model_len`
{settings.max_model_len:,}, asynchronous scheduling {_yes(settings.asynchronous)}, prefix caching {_yes(settings.prefix_caching)},
chunked prefill {_yes(settings.chunked_prefill)}, whole prompts reserved {_yes(settings.reserve_full_prompt)}. From the source of vLLM:
watermark 0. From the record of the requests: lengths of prompts and answers, arrivals.

By hand: the client's and the engine's clocks differ by an unknown constant, and the request that was queued soonest after it was sent is
taken to have been queued at once (the others were queued up to {delays.max():.0f} ms later, median {np.median(delays):.0f} ms, as the
engine looks for new ones between steps). The constants of the kernels' forms are in [calibration.md](calibration.md). Not modelled: what
the first step takes to warm up, and what arrivals cost the host.
"""


def _yes(value: bool) -> str:
    return "on" if value else "off"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms".replace("-", "−")
