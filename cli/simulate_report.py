"""A simulation as text for a person: who waited, how long, how often, and what the server did meanwhile."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from costmodel.cli.simulate_words import cell, moved, server_name, spike_height, value, workload
from costmodel.cli.text import count, listed, milliseconds, percent, plural, seconds, significant, table
from costmodel.engine import VLLM_VERSION
from costmodel.simulation.results import SHARES, Percentiles, Result, ServerInfo, Simulation

WIDTH = 118
"""Longest line of a paragraph."""
MOST_SPIKES = 8
"""Injections that have a row of their own."""


def report(item: Simulation) -> str:
    """Return the report of one simulation."""
    parts = [_heading(item), _server(item.server)]
    parts += _interference(item) if item.baseline is not None else _load(item)
    return "\n\n".join(part for part in [*parts, remarks([item])] if part)


def comparison(items: Sequence[Simulation]) -> str:
    """Return one table of simulations of the same experiment with several token budgets."""
    header = [
        "token budget",
        "steps",
        "height ms",
        "ITL p50",
        "p99",
        "p99.9",
        "max",
        "stalls",
        "TTFT p50",
        "max",
        "at the spike",
    ]
    rows = []
    for item in items:
        result = item.injected or item.baseline
        if result is None:
            continue
        itl, ttft = result.itl, result.ttft
        rows.append(
            [
                count(item.server.token_budget),
                count(max((spike.steps for spike in item.spikes), default=0)),
                milliseconds(height) if (height := spike_height(item)) else "–",
                *(cell(itl, name) for name in ("p50", "p99", "p99.9", "max")),
                significant(_per_stream(item, result.stalls), 3),
                *(cell(ttft, name) for name in ("p50", "max")),
                " ".join(moved(item)[0]) or "–",
            ]
        )
    text = table(rows, header)
    legend = (
        "  steps: mixed steps per prompt; ITL and TTFT in ms; stalls: gaps over "
        f"{items[0].injected.stall_detail.factor if items[0].injected else 3:g} × the median per stream;\n"
        "  TTFT: of the injected prompts, from when they are sent; at the spike: percentiles of the ITL"
    )
    return "\n\n".join(part for part in (_heading(items[0]), text, legend, _trade(items), remarks(items)) if part)


def _trade(items: Sequence[Simulation]) -> str:
    """Say what the smallest budget does beside the largest."""
    full = [item for item in items if _itl_and_ttft(item)]
    if len(full) < 2:
        return ""
    small, large = (pick(full, key=lambda item: item.server.token_budget) for pick in (min, max))
    return _trade_of(small, large)


def _trade_of(small: Simulation, large: Simulation) -> str:
    low, high = _itl_and_ttft(small), _itl_and_ttft(large)
    if low is None or high is None or small is large:
        return ""
    (low_itl, low_ttft), (high_itl, high_ttft) = low, high
    return wrapped(
        f"A budget of {count(small.server.token_budget)} instead of {count(large.server.token_budget)}: the longest gap is "
        f"{seconds(low_itl.max_s)} instead of {seconds(high_itl.max_s)}, the median TTFT of the prompt "
        f"{seconds(low_ttft.p50_s)} instead of {seconds(high_ttft.p50_s)}."
    )


def _itl_and_ttft(item: Simulation) -> tuple[Percentiles, Percentiles] | None:
    if item.injected is None or item.injected.itl is None or item.injected.ttft is None:
        return None
    return item.injected.itl, item.injected.ttft


def remarks(items: Sequence[Simulation]) -> str:
    """Return notes and warnings, each once."""
    notes = dict.fromkeys(f"note: {text}" for item in items for text in item.notes)
    warnings = dict.fromkeys(f"warning: {text}" for item in items for text in item.warnings)
    return "\n".join([*notes, *warnings])


# --- what was simulated ---------------------------------------------------------------------------------------------------


def _heading(item: Simulation) -> str:
    server = item.server
    rung = {"fixed": "", "roofline": ", roofline rung", "calibrated": f", calibrated rung ({server.calibration})"}
    return f"{server_name(server)}{rung[server.rung]}\n{workload(item.workload)}"


def _server(server: ServerInfo) -> str:
    parts = [f"token budget {count(server.token_budget)}", f"at most {plural(server.max_num_seqs, 'sequence')}"]
    parts.append(
        "KV cache without end" if server.kv_tokens is None else f"KV cache of {plural(server.kv_tokens, 'token')}"
    )
    if server.max_model_len is not None:
        parts.append(f"sequences up to {count(server.max_model_len)}")
    if not server.chunked_prefill:
        parts.append("prompts whole")
    if server.long_prefill_token_threshold:
        parts.append(f"at most {count(server.long_prefill_token_threshold)} tokens of a prompt per step")
    if not server.prefix_caching:
        parts.append("no prefix caching")
    if server.policy != "fcfs":
        parts.append(f"policy {server.policy}")
    parts.append("asynchronous scheduling" if server.asynchronous else "synchronous scheduling")
    names = {"vllm": f"vLLM {VLLM_VERSION} V1", "disaggregated": "disaggregated"}
    pools = ""
    if server.pools is not None:
        pools = f", {server.pools.prefill_servers} × prefill and {server.pools.decode_servers} × decode, each"
    return wrapped(f"Server: {names.get(server.scheduler, server.scheduler)} scheduler{pools}: {', '.join(parts)}")


def wrapped(text: str) -> str:
    """Return a paragraph in lines of a width that can be read."""
    tied = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    return "\n".join(textwrap.wrap(tied, WIDTH, subsequent_indent="  ")).replace("\N{NO-BREAK SPACE}", " ")


# --- the long-prompt experiment -------------------------------------------------------------------------------------------


def _interference(item: Simulation) -> list[str]:
    runs = [run for run in (item.baseline, item.injected) if run is not None]
    factor = runs[0].stall_detail.factor
    rows = [
        ["gaps per stream", *(count(run.gaps_per_stream or 0) for run in runs)],
        [
            f"stalls per stream (over {factor:g} × the median)",
            *(significant(_per_stream(item, run.stalls), 3) for run in runs),
        ],
    ]
    limit = runs[0].stall_detail.limit_s
    if limit is not None:
        over = [significant(_per_stream(item, run.stall_detail.over_limit or 0), 3) for run in runs]
        rows.append([f"gaps over {seconds(limit)} per stream", *over])
    rows += [[f"ITL {name} [ms]", *(cell(run.itl, name) for run in runs)] for name in (*SHARES, "mean")]
    rows.append(["tokens/s of all streams", *(count(run.output_tokens_per_s) for run in runs)])
    text = table(rows, ["", "baseline", "injected"][: len(runs) + 1])
    return [text, _prompts(item), _sentence(item), _goodput(runs[-1], "of the injected prompts")]


def _prompts(item: Simulation) -> str:
    """Return the table of the injections."""
    if item.injected is None:
        return ""
    rows = [
        [
            f"{spike.injected_s:,.3f}",
            f"{spike.time_s:,.3f}",
            count(spike.steps),
            milliseconds(spike.height_s),
            milliseconds(spike.duration_s),
            "–" if spike.ttft_s is None else milliseconds(spike.ttft_s),
        ]
        for spike in item.spikes[:MOST_SPIKES]
    ]
    refused = "".join(
        f"\n  {plural(number, 'prompt')} refused: {reason}" for reason, number in item.injected.requests.refused.items()
    )
    if not rows:
        return "No injected prompt was scheduled" + refused
    text = table(rows, ["sent s", "first step s", "steps", "longest ms", "all ms", "TTFT ms"], left=0)
    more = len(item.spikes) - len(rows)
    if more:
        text += f"\n  … {plural(more, 'more prompt')}"
    ttft = item.injected.ttft
    of_all = f"; p50 {milliseconds(ttft.p50_s)}, max {milliseconds(ttft.max_s)} ms" if ttft else ""
    return f"The injected prompts (TTFT counts from when the prompt is sent{of_all})\n{text}{refused}"


def _sentence(item: Simulation) -> str:
    """Say what happened: which percentiles are at the spike, how high, when."""
    baseline, injected = item.baseline, item.injected
    if baseline is None or injected is None or baseline.itl is None or injected.itl is None:
        return ""
    if not item.spikes:
        return "Nothing was injected that the streams could have waited for."
    at, higher, still = moved(item)
    most, usual = injected.itl.max_s, baseline.itl.p50_s
    if not at:
        return f"The streams feel nothing: their longest gap is {seconds(most)}, {seconds(baseline.itl.max_s)} in the baseline."
    streams = item.workload["streams"]
    who = "The stream waits" if streams == 1 else f"All {streams:,} streams wait"
    parts = [f"{listed(at)} {'is' if len(at) == 1 else 'are'} at the spike"]
    if higher:
        values = ", ".join(f"{name} ({seconds(value(injected.itl, name))})" for name in higher)
        parts.append(f"{values} {'is' if len(higher) == 1 else 'are'} above the baseline")
    if still:
        parts.append(f"{listed(still)} {'does' if len(still) == 1 else 'do'} not move")
    return wrapped(
        f"{who} up to {seconds(most)} for a token, {significant(most / usual, 3)} × the usual {seconds(usual)}, {_when(item)}: "
        f"{'; '.join(parts)}."
    )


def _when(item: Simulation) -> str:
    times = list(dict.fromkeys(spike.injected_s for spike in item.spikes))
    if len(times) <= 5:
        return f"when a prompt comes (at {listed([f'{time:g}' for time in times])} s)"
    return f"every {item.workload['every_s']:g} s, when a prompt comes ({count(len(times))} times)"


def _per_stream(item: Simulation, number: int) -> float:
    streams = item.workload["streams"]
    return number / streams if isinstance(streams, int) and streams else float(number)


# --- loads and traces -----------------------------------------------------------------------------------------------------


def _load(item: Simulation) -> list[str]:
    result = item.result
    if result is None:
        return []
    names = {
        "TTFT": result.ttft,
        "ITL": result.itl,
        "TPOT": result.tpot,
        "queueing": result.queueing,
        "end to end": result.e2e,
    }
    columns = ("mean", *SHARES)
    rows = [[name, *(cell(found, column) for column in columns)] for name, found in names.items()]
    text = table(rows, ["milliseconds", *columns])
    text += "\n\n  Latencies count from when a request is sent; queueing ends when it is first scheduled."
    return [text, _counts(result), _goodput(result, "of the requests")]


def _counts(result: Result) -> str:
    asked, prompts = result.requests, max(result.prompt_tokens, 1)
    refused = count(sum(asked.refused.values()))
    rows = [
        [
            "requests",
            f"{count(asked.sent)} sent, {count(asked.done)} done, {refused} refused, {count(asked.unfinished)} unfinished",
        ],
        [
            "throughput",
            f"{count(result.output_tokens_per_s)} tokens/s, {significant(_rate(result), 3)} requests/s "
            f"in {seconds(result.duration_s)}",
        ],
        [
            "batch",
            f"up to {count(result.running_max)} running, {count(result.waiting_max)} waiting; "
            f"a step runs {percent(result.busy_share)} of the time",
        ],
        ["KV cache", _kv(result)],
        [
            "prompts",
            f"{plural(result.prompt_tokens, 'token')}, {percent(result.cached_prompt_tokens / prompts)} of them from the prefix cache",
        ],
        ["preemptions", count(result.preemptions)],
        ["stalls", _stalls(result)],
    ]
    return table(rows, left=2)


def _rate(result: Result) -> float:
    return result.requests.done / result.duration_s if result.duration_s > 0 else 0.0


def _kv(result: Result) -> str:
    if result.kv_blocks is None:
        return f"up to {count(result.kv_blocks_max)} blocks"
    return f"up to {percent(result.kv_blocks_max / max(result.kv_blocks, 1))} of {count(result.kv_blocks)} blocks"


def _stalls(result: Result) -> str:
    detail = result.stall_detail
    share = f" ({percent(detail.count / result.gaps)})" if result.gaps else ""
    text = f"{count(detail.count)} of {count(result.gaps)} gaps{share} over {detail.factor:g} × the median"
    if detail.limit_s is not None:
        text += f"; {count(detail.over_limit or 0)} over {seconds(detail.limit_s)}"
    return text


def _goodput(result: Result, of: str) -> str:
    good = result.goodput
    if good is None:
        return ""
    limits = (("TTFT", good.ttft_s), ("TPOT", good.tpot_s), ("end to end", good.e2e_s))
    within = ", ".join(f"{name} ≤ {seconds(limit)}" for name, limit in limits if limit is not None)
    return f"Goodput ({within}): {percent(good.share)} {of}, {significant(good.requests_per_s, 3)} requests/s"
