"""What a record of the experiment says: percentiles and stalls of both runs, spikes and injections one to one, what went wrong."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from costmodel.simulation.quantiles import nearest_rank
from costmodel.simulation.results import STALL_FACTOR, Stalls, percentiles
from costmodel.validation.interference.documents import InjectionResult, Interference, OneStep, RunResult, SpikeResult
from costmodel.validation.interference.matching import Matched, match
from costmodel.validation.interference.metrics import COUNTERS
from costmodel.validation.interference.records import Answer, Injection, Plan, Record, Run

LAG_SHARE: Final = 0.1
"""A client whose p99 lateness is more than this share of the median gap is worth a warning."""
STARVED: Final = 0.25
"""A client that was late for a larger share of a run has not seen when tokens came."""
MISCOUNT: Final = 1.02
"""A server that has sent so many times the tokens that were seen puts several into one piece."""
MOST_PROBLEMS: Final = 8
"""Kinds of problems that are listed."""


def summarise(record: Record, name: str | None = None) -> Interference:
    """Return what a record says.

    Args:
        record: whole, or cut short.
        name: of its file.
    """
    baseline, injected = record.baseline, record.injected
    first = _result(baseline, record.plan) if baseline else None
    second = _result(injected, record.plan) if injected else None
    decode = usual_gap(baseline) if baseline else None
    usual = decode or (usual_gap(injected) if injected else None) or 0.0
    matched = match(injected, usual) if injected else Matched((), None, ())
    start = injected.start if injected else 0.0
    spikes = tuple(
        SpikeResult(
            time_s=spike.start - start,
            height_s=spike.height,
            duration_s=spike.end - spike.start,
            steps=spike.steps,
            streams=spike.streams,
            cause=spike.cause,
            injection=spike.injection,
        )
        for spike in matched.spikes
    )
    made = {spike.injection: index for index, spike in enumerate(spikes) if spike.injection is not None}
    asked = injected.injections if injected else ()
    injections = tuple(_injection(each, start, made.get(index)) for index, each in enumerate(asked))
    heights = [spike.height_s for spike in spikes if spike.cause == "injection"]
    height = statistics.median(heights) if heights else None
    strangers = sum(spike.cause == "unknown" for spike in spikes)
    ratio = height / decode if height is not None and decode else None
    return Interference(
        server=record.server,
        model_name=record.model_name,
        machine=record.machine,
        workload=record.plan,
        baseline=first,
        injected=second,
        spikes=spikes,
        injections=injections,
        threshold_s=matched.threshold,
        one_to_one=bool(heights) and not matched.unfelt and not strangers,
        decode_step_s=decode,
        spike_s=height,
        spike_ratio=ratio,
        one_step=_one_step(record, spikes),
        problems=_problems(record.runs),
        complete=record.complete,
        record=name,
        notes=(*record.notes, *(f"{run.name}: {note}" for run in record.runs for note in run.notes)),
        warnings=tuple(_warnings(record, first, second, matched, strangers)),
    )


def usual_gap(run: Run) -> float | None:
    """Return the median gap; where most are of no length, because tokens come together, the median of the others [s]."""
    gaps = run.gaps
    median = nearest_rank(gaps, [0.5])[0] if gaps else 0.0
    if median <= 0:
        gaps = [gap for gap in gaps if gap > 0]
        median = nearest_rank(gaps, [0.5])[0] if gaps else 0.0
    return median or None


def _result(run: Run, plan: Plan) -> RunResult:
    """Sum up one run."""
    gaps = run.gaps
    duration = max(run.end - run.start, 0.0)
    itl = percentiles(gaps)
    stalls = sum(gap > STALL_FACTOR * itl.p50_s for gap in gaps) if itl else 0
    tokens = sum(run.start <= moment <= run.end for answer in run.answers for moment in answer.times)
    return RunResult(
        duration_s=duration,
        complete=run.complete,
        gaps=len(gaps),
        gaps_per_stream=len(gaps) / plan.streams,
        stalls=stalls,
        stall_detail=Stalls(factor=STALL_FACTOR, count=stalls, limit_s=None, over_limit=None),
        itl=itl,
        tokens=tokens,
        tokens_per_s=tokens / duration if duration > 0 else 0.0,
        answers=len(run.answers),
        restarts=sum(run.start < answer.sent <= run.end for answer in run.answers),
        failures=sum(each.outcome == "failed" for each in _everything(run)),
        bundles=sum(gap == 0 for gap in gaps),
        context_tokens=mean_context(run, plan),
        ttft=percentiles([each.first - each.sent for each in run.injections if each.first is not None]),
        lag=run.lag,
    )


def mean_context(run: Run, plan: Plan) -> float:
    """Return the mean context of the streams' steps: prompt and tokens so far, at every token in the run."""
    total, count = 0.0, 0
    for answer in run.answers:
        prompt = answer.prompt_tokens or plan.context_tokens
        for index, moment in enumerate(answer.times):
            if run.start <= moment <= run.end:
                total += prompt + index
                count += 1
    return total / count if count else float(plan.context_tokens)


def context_at_start(run: Run, plan: Plan) -> float:
    """Return the mean context of the streams when the run began to count: prompt and tokens until then."""
    answers: dict[int, float] = {}
    for answer in run.answers:
        if answer.sent <= run.start:  # the last that a stream had begun
            before = bisect_right(answer.times, run.start)
            answers[answer.stream] = (answer.prompt_tokens or plan.context_tokens) + before
    return statistics.mean(answers.values()) if answers else float(plan.context_tokens)


def _injection(each: Injection, start: float, spike: int | None) -> InjectionResult:
    return InjectionResult(
        sent_s=each.sent - start,
        ttft_s=None if each.first is None else each.first - each.sent,
        prompt_tokens=each.prompt_tokens,
        cached_tokens=each.cached_tokens,
        spike=spike,
        problem=each.problem,
    )


# --- did the prompt go through in one step? -------------------------------------------------------------------------------


def _one_step(record: Record, spikes: Sequence[SpikeResult]) -> OneStep:
    """Say whether the prompts went through in one step: by the streams' gaps, and by the server's own counts where it tells."""
    own = [spike.steps for spike in spikes if spike.cause == "injection"]
    injected = record.injected
    if injected is None or not injected.injections:
        return OneStep(verdict="unknown", steps=None, why="no prompt was injected")
    if not own:
        return OneStep(verdict="unknown", steps=None, why="no spike can be told from what is usual")
    steps = statistics.median(own)
    if steps > 1 or _too_small(record.server.flags, record.plan):
        return OneStep(verdict="no", steps=steps, why=_why_not(record, steps), flag=_flag(record))
    why = "every stream has one high gap per prompt"
    budget = _budget(record.server.flags)
    if budget is None:
        why += "; the server's token budget is not known, and a small rest of a prompt in a step of its own would not be seen"
    else:
        why += f", and the token budget of {budget:,} takes {record.plan.prompt_tokens:,} + {record.plan.streams} running streams"
    return OneStep(verdict="yes", steps=steps, why=why)


def _budget(flags: dict[str, str | int | float | bool | None]) -> int | None:
    value = flags.get("max_num_batched_tokens")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _too_small(flags: dict[str, str | int | float | bool | None], plan: Plan) -> bool:
    budget = _budget(flags)
    return budget is not None and budget < plan.prompt_tokens + plan.streams


def _why_not(record: Record, steps: float) -> str:
    plan, budget = record.plan, _budget(record.server.flags)
    text = f"the median stream has {steps:g} high gaps per prompt"
    if _too_small(record.server.flags, plan):
        text += (
            f"; the token budget of {budget:,} is smaller than {plan.prompt_tokens:,} + {plan.streams} running streams"
        )
    return text


def _flag(record: Record) -> str:
    plan, flags = record.plan, record.server.flags
    threshold = flags.get("long_prefill_token_threshold")
    if isinstance(threshold, int) and not isinstance(threshold, bool) and 0 < threshold < plan.prompt_tokens:
        return "--long-prefill-token-threshold 0"
    return f"--max-num-batched-tokens {plan.prompt_tokens + plan.streams} or more"


# --- what else there is to say --------------------------------------------------------------------------------------------


def _problems(runs: Sequence[Run]) -> dict[str, int]:
    """Return what went wrong, most frequent first."""
    return dict(Counter(each.problem for run in runs for each in _everything(run) if each.problem).most_common())


def _everything(run: Run) -> list[Answer | Injection]:
    return [*run.answers, *run.injections]


def _warnings(
    record: Record, baseline: RunResult | None, injected: RunResult | None, matched: Matched, strangers: int
) -> list[str]:
    found = [text] if (text := starved(record)) is not None else []
    problems = _problems(record.runs)
    for text, number in list(problems.items())[:MOST_PROBLEMS]:
        found.append(f"{number} × {text}")
    if len(problems) > MOST_PROBLEMS:
        found.append(f"and {len(problems) - MOST_PROBLEMS} other kinds of problems")
    runs = {"baseline": baseline, "injected run": injected}
    found += _about_lag(runs)
    for name, run in runs.items():
        if run is not None and run.bundles:
            share = run.bundles / run.gaps
            found.append(
                f"{name}: {share:.1%} of the tokens came together with the one before, in one piece or one packet: gaps of zero length"
            )
        if run is not None and run.restarts:
            found.append(
                f"{name}: {run.restarts} answers were begun anew, whose prompts of {record.plan.context_tokens:,} tokens are felt like "
                "small injections; longer answers avoid that (--output)"
            )
    if (factor := _miscount(record.runs)) is not None:
        found.append(
            f"the server sends {factor:.2g} tokens in a piece and does not say so piece by piece: gaps are those between pieces"
        )
    cached = _cached(record)
    if cached:
        found.append(f"{cached}; start the server with --no-enable-prefix-caching")
    metrics = record.injected.metrics if record.injected else {}
    if metrics.get(COUNTERS[2], 0) > 0:
        found.append(
            f"the server preempted {metrics[COUNTERS[2]]:,.0f} times: its KV cache is too small for this load (--streams, --output)"
        )
    if injected is not None and injected.complete and matched.threshold is None and record.plan.prompt_tokens > 1:
        found.append("no spike can be told from what is usual: a longer prompt, or a quieter machine, is needed")
    elif matched.unfelt:
        found.append(f"{len(matched.unfelt)} injected prompts were answered without a spike")
    if strangers:
        found.append(f"{strangers} spikes belong to no injection: something else disturbed the server or the client")
    return found


def starved(record: Record) -> str | None:
    """Say that the client did not get to run for much of a run, so that its stamps say nothing of the server; None if it did."""
    for run in record.runs:
        late = sum(max(min(when, run.end) - max(when - seconds, run.start), 0.0) for when, seconds in run.late)
        duration = run.end - run.start
        if late > STARVED * duration:
            return (
                f"the client itself was late for {late:.1f} of the {duration:.1f} s of the {run.name} run: its stamps say little of the "
                "server, and nothing is compared with them; give it a core of its own (taskset), and measure again"
            )
    return None


def _about_lag(runs: Mapping[str, RunResult | None]) -> list[str]:
    """Say how late the client was, of every run in which it matters."""
    found = []
    for name, run in runs.items():
        if run is None or run.lag is None or run.itl is None or run.lag.p99_s <= LAG_SHARE * run.itl.p50_s:
            continue
        late, gap = 1e3 * run.lag.p99_s, 1e3 * run.itl.p50_s
        found.append(
            f"{name}: the client was up to {late:.1f} ms late (p99) beside a median gap of {gap:.1f} ms; give it a core of its own"
        )
    return found


def _miscount(runs: Sequence[Run]) -> float | None:
    """Return how many tokens a piece has, of a server that says so only at the end; None if it is one."""
    factors = [
        answer.output_tokens / len(answer.times)
        for run in runs
        for answer in run.answers
        if answer.output_tokens and answer.times
    ]
    if not factors or (factor := nearest_rank(factors, [0.5])[0]) < MISCOUNT:
        return None
    return factor


def _cached(record: Record) -> str:
    """Say how much of the prompts came from the prefix cache; nothing if none did."""
    injected = record.injected
    if injected is None:
        return ""
    cached = sum(each.cached_tokens or 0 for each in injected.injections)
    if cached:
        return f"{cached:,} tokens of the injected prompts came from the prefix cache"
    hits = injected.metrics.get(COUNTERS[0], 0.0)
    return f"{hits:,.0f} tokens of prompts came from the prefix cache" if hits else ""
