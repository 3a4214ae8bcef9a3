"""What users felt, from what a simulation counted: percentiles, stalls, goodput, as frozen documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from costmodel.hardware.profile import Frozen
from costmodel.simulation.drafts import DraftingInfo
from costmodel.simulation.prefixes import prefix_hits
from costmodel.simulation.quantiles import Gaps, nearest_rank
from costmodel.simulation.requests import Request
from costmodel.simulation.tally import MixedStep, Served, Tally

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
"""Percentiles that are reported, as shares."""
STALL_FACTOR = 3.0
"""A gap of more than so many medians is a stall."""


class Percentiles(Frozen):
    """Weighted nearest-rank percentiles, the smallest x with F(x) ≥ q [s]."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p99_9_s: float = Field(alias="p99.9_s")
    max_s: float


class Stalls(Frozen):
    """Gaps that a reader notices."""

    factor: float
    count: int
    """Gaps of more than ``factor`` × the median gap."""
    limit_s: float | None
    over_limit: int | None
    """Gaps of more than ``limit_s``."""


class Goodput(Frozen):
    """Requests that were served within every limit that was set."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    requests: int
    share: float
    """Of the requests that were sent and whose time is over: those done, those refused."""
    requests_per_s: float


class Requests(Frozen):
    """What became of the requests."""

    sent: int
    done: int
    unfinished: int
    """Still under way or waiting at the end."""
    refused: dict[str, int]
    """By reason; the engine would not have taken them."""
    cut_short: int = 0
    """Of those done, answers that ended at the longest sequence, with fewer tokens than were asked for."""


class Speculated(Frozen):
    """What speculative decoding did, of the requests whose gaps count."""

    passes: int
    """Steps of a request in which drafts were verified."""
    drafted_tokens: int
    accepted_tokens: int
    accepted_length: float
    """Tokens per such pass: 1 + accepted/passes, vLLM's mean acceptance length."""
    bundled_tokens: int
    """Tokens that came with the one before them and end no gap: gaps are those between bundles."""


class Result(Frozen):
    """One run. Latencies count from when a request is sent."""

    gaps: int
    """Gaps between two tokens of one request (with speculative decoding, between two bundles of tokens), pooled over all requests whose
    gaps count; of a stream that was preempted and had no token until the end, the time until then."""
    gaps_per_stream: float | None = None
    stalls: int
    """Gaps of more than ``stall_detail.factor`` × the median gap."""
    stall_detail: Stalls
    itl: Percentiles | None
    """Of the gaps."""
    ttft: Percentiles | None
    tpot: Percentiles | None
    """(last token − first token)/(tokens − 1), per request of at least two tokens; of standing streams, their mean gap."""
    queueing: Percentiles | None
    """From being sent to being scheduled."""
    e2e: Percentiles | None
    requests: Requests
    speculation: Speculated | None = None
    """None without speculative decoding."""
    goodput: Goodput | None = None
    """None without a limit, or before any request is done or refused."""
    duration_s: float
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens: int
    """Of the requests that got a first token."""
    cached_prompt_tokens: int
    """Of those, found in the prefix cache."""
    preemptions: int
    steps: int
    busy_share: float
    """Share of the time in which a step ran."""
    running_max: int
    waiting_max: int
    kv_blocks: int | None
    kv_blocks_max: int


class SimulatedSpike(Frozen):
    """The steps that carried one injected prompt."""

    injected_s: float
    """When it was sent."""
    time_s: float
    """Start of the first of its steps."""
    height_s: float
    """The longest of its steps."""
    duration_s: float
    """From the start of the first to the end of the last."""
    steps: int
    prompt_tokens: int
    ttft_s: float | None


class PoolsInfo(Frozen):
    """Servers that prefill and servers that decode."""

    prefill_servers: int
    decode_servers: int
    kv_bandwidth_bytes_per_s: float | None
    """That the KV cache of a prompt travels at; None with fixed step times, which say nothing of bytes."""
    kv_latency_s: float
    gpus_per_server: int = 1


class ServerInfo(Frozen):
    """What was simulated."""

    model: str | None
    gpu: str | None
    gpus: int
    """In all: of one server, or of all servers of the pools."""
    rung: Literal["fixed", "roofline", "calibrated"]
    calibration: str | None
    token_budget: int
    max_num_seqs: int
    kv_tokens: int | None
    """Tokens of the KV cache: as they were given, or else as vLLM's log prints them, number of blocks × block size. One of these
    blocks, the null block, is never given out."""
    block_tokens: int
    max_model_len: int | None
    scheduler: str
    policy: str
    chunked_prefill: bool
    long_prefill_token_threshold: int
    prefix_caching: bool
    asynchronous: bool
    request_overhead_s: float
    """Between a request being sent and the engine having it, prompt tokens left out."""
    request_overhead_per_prompt_token_s: float = 0.0
    pools: PoolsInfo | None = None
    """With the scheduler ``disaggregated``; the other keys are those of each server."""
    speculation: DraftingInfo | None = None


class PrefixCacheUse(Frozen):
    """What the prefix cache found of the prompts of a trace that says which begin alike, and what one without end would find."""

    hit_rate: float
    """Share of the tokens of prompts that were started; 0 with the cache off."""
    unlimited_hit_rate: float
    """The same of all prompts, counted on the trace: a cache without end, prompts there as soon as they are sent."""
    unlimited_cache_tokens: int
    """That such a cache holds at the end."""


class Simulation(Frozen):
    """``costmodel.simulation/1``: ``baseline`` and ``injected`` of an interference experiment, or one ``result``."""

    schema_: Literal["costmodel.simulation/1"] = Field(default="costmodel.simulation/1", alias="schema")
    workload: dict[str, str | int | float | bool | None]
    server: ServerInfo
    baseline: Result | None = None
    injected: Result | None = None
    result: Result | None = None
    spikes: tuple[SimulatedSpike, ...] = ()
    prefix_cache: PrefixCacheUse | None = None
    """Of traces with the blocks of their prompts."""
    interrupted: bool = False
    """True if it was stopped before its end: the numbers are of what had happened until then."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Simulations(Frozen):
    """``costmodel.simulations/1``: several simulations of one call."""

    schema_: Literal["costmodel.simulations/1"] = Field(default="costmodel.simulations/1", alias="schema")
    simulations: tuple[Simulation, ...]


def prefix_use(requests: Sequence[Request], result: Result, block_tokens: int) -> PrefixCacheUse | None:
    """Return what the prefix cache found; None where no request says what it begins with."""
    if not any(request.prefix for request in requests):
        return None
    unlimited = prefix_hits(requests, block_tokens)
    started = result.prompt_tokens
    return PrefixCacheUse(
        hit_rate=result.cached_prompt_tokens / started if started else 0.0,
        unlimited_hit_rate=unlimited.hit_rate,
        unlimited_cache_tokens=unlimited.kept_tokens,
    )


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Return the percentiles of a list of seconds; None of an empty one."""
    if not len(values):
        return None
    p50, p90, p99, p999, most = nearest_rank(values, list(SHARES.values()))
    mean = math.fsum(values) / len(values)
    return Percentiles.model_validate(
        {"mean_s": mean, "p50_s": p50, "p90_s": p90, "p99_s": p99, "p99.9_s": p999, "max_s": most}
    )


def gap_percentiles(gaps: Gaps) -> Percentiles | None:
    """Return the percentiles of all gaps; None without any."""
    if not gaps.count:
        return None
    p50, p90, p99, p999, most = gaps.quantiles(list(SHARES.values()))
    return Percentiles.model_validate(
        {"mean_s": gaps.mean(), "p50_s": p50, "p90_s": p90, "p99_s": p99, "p99.9_s": p999, "max_s": most}
    )


def make_result(
    tallies: Sequence[Tally],
    gaps: Gaps,
    served: Sequence[Served],
    duration: float,
    kv_blocks: int | None,
    limits: tuple[float | None, float | None, float | None] = (None, None, None),
    stall_factor: float = STALL_FACTOR,
    stall_limit: float | None = None,
    streams: int = 0,
) -> Result:
    """Sum up a run.

    Args:
        tallies: of its engines.
        gaps: of all of them.
        served: its requests, those of one prompt in two pools joined; standing streams left out.
        duration: of the run [s].
        kv_blocks: that requests could have.
        limits: on TTFT, TPOT and end-to-end latency for the goodput; None for no limit [s].
        stall_factor, stall_limit: what counts as a stall [medians, s].
        streams: standing streams whose gaps were counted.
    """
    itl = gap_percentiles(gaps)
    started = [item for item in served if not math.isnan(item.first)]
    done = [item for item in served if item.done]
    tpot = [_tpot(item) for item in done if item.tokens > 1]
    bundled = sum(tally.bundled for tally in tallies)
    if streams and gaps.count:
        tpot = [gaps.mean() * gaps.count / (gaps.count + bundled)] * streams
    refused: dict[str, int] = {}
    for item in served:
        if item.refused:
            refused[item.refused] = refused.get(item.refused, 0) + 1
    # Every token is a request's first or ends a gap; what single requests have is known only when they end.
    tokens = gaps.count + bundled - sum(len(tally.open_gaps) for tally in tallies)
    tokens += 0 if streams else len(started)
    stalls = gaps.over(stall_factor * itl.p50_s) if itl else 0
    most = [max(counts) for counts in zip(*(tally.most for tally in tallies), strict=True)] or [0, 0, 0]
    return Result(
        gaps=gaps.count,
        gaps_per_stream=gaps.count / streams if streams else None,
        stalls=stalls,
        stall_detail=Stalls(
            factor=stall_factor,
            count=stalls,
            limit_s=stall_limit,
            over_limit=None if stall_limit is None else gaps.over(stall_limit),
        ),
        itl=itl,
        ttft=percentiles([item.first - item.request.arrival for item in started]),
        tpot=percentiles(tpot),
        queueing=percentiles(
            [item.scheduled - item.request.arrival for item in served if not math.isnan(item.scheduled)]
        ),
        e2e=percentiles([item.last - item.request.arrival for item in done]),
        requests=Requests(
            sent=len(served),
            done=len(done),
            unfinished=len(served) - len(done) - sum(refused.values()),
            refused=refused,
            cut_short=sum(item.tokens < item.request.output for item in done),
        ),
        speculation=_speculated(tallies),
        goodput=_goodput(done, sum(refused.values()), limits, duration) if any(limits) and (done or refused) else None,
        duration_s=duration,
        output_tokens=tokens,
        output_tokens_per_s=tokens / duration if duration > 0 else 0.0,
        prompt_tokens=sum(item.request.prompt for item in started),
        cached_prompt_tokens=sum(item.cached for item in started),
        preemptions=sum(tally.preemptions for tally in tallies),
        steps=sum(tally.steps for tally in tallies),
        busy_share=min(sum(tally.busy for tally in tallies) / (duration * len(tallies)), 1.0) if duration > 0 else 0.0,
        running_max=most[0],
        waiting_max=most[1],
        kv_blocks=kv_blocks,
        kv_blocks_max=most[2],
    )


def _speculated(tallies: Sequence[Tally]) -> Speculated | None:
    passes = sum(tally.passes for tally in tallies)
    if not passes:
        return None
    accepted = sum(tally.accepted for tally in tallies)
    return Speculated(
        passes=passes,
        drafted_tokens=sum(tally.drafted for tally in tallies),
        accepted_tokens=accepted,
        accepted_length=1 + accepted / passes,
        bundled_tokens=sum(tally.bundled for tally in tallies),
    )


def _tpot(item: Served) -> float:
    return (item.last - item.first) / (item.tokens - 1)


def _goodput(
    done: Sequence[Served], refused: int, limits: tuple[float | None, float | None, float | None], duration: float
) -> Goodput:
    good = 0
    for item in done:
        reached = (
            item.first - item.request.arrival,
            _tpot(item) if item.tokens > 1 else 0.0,
            item.last - item.request.arrival,
        )
        good += all(limit is None or value <= limit for value, limit in zip(reached, limits, strict=True))
    over = len(done) + refused
    ttft, tpot, e2e = limits
    return Goodput(
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=e2e,
        requests=good,
        share=good / over if over else 0.0,
        requests_per_s=good / duration if duration > 0 else 0.0,
    )


def make_spikes(steps: Sequence[MixedStep], served: Sequence[Served]) -> tuple[SimulatedSpike, ...]:
    """Return, for every injected prompt, the steps that carried it.

    Args:
        steps: all steps with prefill.
        served: all requests in the order in which the engine took them, as the indices of ``steps`` count.
    """
    found = []
    carried: dict[int, list[MixedStep]] = {}
    for step in steps:
        for serial, _ in step.chunks:
            carried.setdefault(serial, []).append(step)
    taken = [item for item in served if not item.refused]
    for serial, own in sorted(carried.items()):
        item = taken[serial]
        if item.request.standing:
            continue  # a stream that was preempted, and is computed again
        start = own[0].end - own[0].duration
        found.append(
            SimulatedSpike(
                injected_s=item.request.arrival,
                time_s=start,
                height_s=max(step.duration for step in own),
                duration_s=own[-1].end - start,
                steps=len(own),
                prompt_tokens=item.request.prompt,
                ttft_s=None if math.isnan(item.first) else item.first - item.request.arrival,
            )
        )
    return tuple(found)
