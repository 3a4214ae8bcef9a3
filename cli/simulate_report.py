"""A simulation as text for a person: who waited, how long, how often, and what the server did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.cli.simulate_words import cell, moved, rung_name, server_name, value, workload
from costmodel.cli.text import count, listed, milliseconds, percent, plural, seconds, significant, table, wrapped
from costmodel.engine import VLLM_VERSION
from costmodel.simulation.results import SHARES, PoolsInfo, Result, ServerInfo, Simulation

MOST_SPIKES = 8
"""Injections that have a row of their own."""


def report(item: Simulation) -> str:
    """Return the report of one simulation."""
    parts = [_heading(item), _server(item.server)]
    parts += _interference(item) if item.baseline is not None else _load(item)
    return "\n\n".join(part for part in [*parts, remarks([item])] if part)


def remarks(items: Sequence[Simulation]) -> str:
    """Return notes and warnings, each once."""
    notes = dict.fromkeys(f"note: {text}" for item in items for text in item.notes)
    warnings = dict.fromkeys(f"warning: {text}" for item in items for text in item.warnings)
    return "\n".join(map(wrapped, [*notes, *warnings]))


# --- what was simulated ---------------------------------------------------------------------------------------------------


def _heading(item: Simulation) -> str:
    server = ", ".join(filter(None, [server_name(item.server), rung_name(item.server)]))
    return f"{server}\n{wrapped(workload(item.workload))}"


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
    if (drafts := server.speculation) is not None:
        parts.append(f"{plural(drafts.tokens, 'token')} drafted per pass by {drafts.draft}")
    parts.append("asynchronous scheduling" if server.asynchronous else "synchronous scheduling")
    names = {"vllm": f"vLLM {VLLM_VERSION} V1", "disaggregated": "disaggregated"}
    pools = ""
    if server.pools is not None:
        pools = f", {server.pools.prefill_servers} × prefill and {server.pools.decode_servers} × decode, each"
        parts.append(_transfer(server.pools))
    return wrapped(f"Server: {names.get(server.scheduler, server.scheduler)} scheduler{pools}: {', '.join(parts)}")


def _transfer(pools: PoolsInfo) -> str:
    """Say how the KV cache of a prompt travels."""
    speed = pools.kv_bandwidth_bytes_per_s
    parts = [f"at {significant(speed / 1e9, 3)} GB/s"] if speed is not None else []
    parts += [f"with a latency of {seconds(pools.kv_latency_s)}"] if pools.kv_latency_s else []
    return f"KV cache sent {' '.join(parts)}" if parts else "KV cache sent in no time"


# --- the long-prompt experiment -------------------------------------------------------------------------------------------


def _interference(item: Simulation) -> list[str]:
    runs = [run for run in (item.baseline, item.injected) if run is not None]
    factor = runs[0].stall_detail.factor
    rows = [
        ["gaps per stream", *(count(run.gaps_per_stream or 0) for run in runs)],
        [
            f"stalls per stream (over {factor:g} × the median)",
            *(significant(per_stream(item, run.stalls), 3) for run in runs),
        ],
    ]
    limit = runs[0].stall_detail.limit_s
    if limit is not None:
        over = [significant(per_stream(item, run.stall_detail.over_limit or 0), 3) for run in runs]
        rows.append([f"gaps over {seconds(limit)} per stream", *over])
    rows += [[f"ITL {name} [ms]", *(cell(run.itl, name) for run in runs)] for name in (*SHARES, "mean")]
    if runs[0].speculation is not None:
        lengths = (run.speculation.accepted_length if run.speculation else 1.0 for run in runs)
        rows.append(["tokens per bundle", *(significant(length, 3) for length in lengths)])
        rows.append(["TPOT mean [ms]", *(cell(run.tpot, "mean") for run in runs)])
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
    asked = item.injected.requests
    refused = "".join(f"\n  {plural(number, 'prompt')} refused: {reason}" for reason, number in asked.refused.items())
    counts = f"{count(asked.sent)} sent, {count(asked.done)} done, {count(asked.unfinished)} unfinished"
    if not rows:
        one = item.workload["prompt_tokens"] == 1
        return (
            "A prompt of one token is one more decode: no step has prefill"
            if one
            else f"No injected prompt was scheduled ({counts})"
        ) + refused
    text = table(rows, ["sent s", "first step s", "steps", "longest ms", "all ms", "TTFT ms"], left=0)
    more = len(item.spikes) - len(rows)
    if more:
        text += f"\n  … {plural(more, 'more prompt')}"
    ttft = item.injected.ttft
    of_all = f"; p50 {milliseconds(ttft.p50_s)}, max {milliseconds(ttft.max_s)} ms" if ttft else ""
    head = f"The injected prompts: {counts} (TTFT counts from when the prompt is sent{of_all})"
    return f"{wrapped(head)}\n{text}{refused}"


def _sentence(item: Simulation) -> str:
    """Say what happened: which percentiles are at the spike, how high, when."""
    baseline, injected = item.baseline, item.injected
    if baseline is None or injected is None or baseline.itl is None or injected.itl is None:
        return ""
    if not item.spikes:
        return ""
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


def per_stream(item: Simulation, number: int) -> float:
    """Return a count per standing stream."""
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
    return [
        text + _overhead(item.server),
        _counts(result, item.server, _endless(item)),
        _goodput(result, "of the requests"),
    ]


def _overhead(server: ServerInfo) -> str:
    """Say what part of the latencies lies before the engine."""
    fixed, each = server.request_overhead_s, server.request_overhead_per_prompt_token_s
    if not fixed and not each:
        return ""
    parts = [seconds(fixed, 3), *([f"{seconds(each, 3)} per prompt token"] if each else [])]
    return (
        f"\n  TTFT, queueing and end to end include {' + '.join(parts)} before the engine has a request\n"
        "  (fitted for this load; it grows with the batch)."
    )


def _endless(item: Simulation) -> str:
    """Say what a prefix cache without end would find, where the trace says which prompts begin alike."""
    found = item.prefix_cache
    return "" if found is None else f" (one without end: {percent(found.unlimited_hit_rate)})"


def _counts(result: Result, server: ServerInfo, endless: str) -> str:
    asked, prompts = result.requests, max(result.prompt_tokens, 1)
    refused = count(sum(asked.refused.values()))
    each = " on one server" if server.pools is not None else ""
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
            f"up to {count(result.running_max)} running, {count(result.waiting_max)} waiting{each}; "
            f"a step runs {percent(result.busy_share)} of the time",
        ],
        ["KV cache", _kv(result) + each],
        [
            "prompts",
            f"{plural(result.prompt_tokens, 'token')}, {percent(result.cached_prompt_tokens / prompts)} of them from the prefix cache"
            + endless,
        ],
        ["preemptions", count(result.preemptions)],
        *([["speculation", _speculated(result)]] if result.speculation else []),
        ["stalls", _stalls(result)],
    ]
    return table(rows, left=2)


def _speculated(result: Result) -> str:
    """Say what speculation gave: tokens per pass, and that gaps are those between bundles."""
    done = result.speculation
    if done is None:
        return ""
    share = percent(done.accepted_tokens / done.drafted_tokens)
    return (
        f"{significant(done.accepted_length, 3)} tokens per pass of a request, {share} of the drafts accepted; "
        "ITL is that between two bundles"
    )


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
