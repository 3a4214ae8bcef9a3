"""What has to be said of a run whose numbers would mislead without it: overload, starved streams, answers cut short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from costmodel.simulation.clock import Clock, decode_alike
from costmodel.simulation.results import Result
from costmodel.simulation.settings import Settings
from costmodel.simulation.tally import Served, Tally

FEWEST_ARRIVALS = 20
"""Fewer arrivals than this, in the second half of them, say nothing of whether a server keeps up."""
KEEPS_UP = 0.95
"""Answers per arrival, in that half, below which it does not."""
DEVIATIONS = 3
"""Standard deviations of the number of arrivals by which the requests that are not answered must have grown."""
SHORT_ANSWERS = 1 / 8
"""Share of the arrivals' time that an answer may take on an empty server: if it takes longer, the load does not settle."""


def refused(result: Result) -> list[str]:
    """Say what was refused, and why."""
    return [f"{_requests(count)} refused: {reason}" for reason, count in result.requests.refused.items()]


def cut_short(result: Result, settings: Settings) -> list[str]:
    """Say that answers ended before they had the tokens that were asked for."""
    count = result.requests.cut_short
    answers = "1 answer was" if count == 1 else f"{count:,} answers were"
    return [f"{answers} cut short: {_longest(settings)}"] if count else []


def overload(served: Sequence[Served], clock: Clock) -> list[str]:
    """Say that requests come faster than they are answered, where they do, on a server whose steps ``clock`` tells the time of.

    Of the time between the first and the last arrival the second half is looked at: a server that keeps up answers as many requests
    in it as come, whatever it does at the beginning. What is missing is by how much the mean number of requests in the server grew
    from the second quarter to the last one; numbers at single moments go up and down as arrivals do. A load that ends before it has
    settled shows no more than whether its queue grows. One of a few requests is not judged.
    """
    import numpy as np

    taken = [item for item in served if not item.refused]
    if len(taken) < FEWEST_ARRIVALS:
        return []
    arrivals = np.array([item.request.arrival for item in taken])
    ends = np.array([item.last if item.done else math.inf for item in taken])
    first, last = arrivals.min(), arrivals.max()
    span = last - first
    middle = first + span / 2
    came = int((arrivals > middle).sum())
    if came < FEWEST_ARRIVALS:
        return []
    alone = _alone(taken, clock)
    quarter = span / 4
    grown = _mean_number(arrivals, ends, last - quarter, last) - _mean_number(arrivals, ends, middle - quarter, middle)
    gaps = np.diff(np.sort(arrivals))
    uneven = max(float(gaps.std() / gaps.mean()), 1.0)  # arrivals in bursts vary more than those of a Poisson process
    if grown <= max((1 - KEEPS_UP) * came, DEVIATIONS * uneven * math.sqrt(came)):
        return []
    if alone > SHORT_ANSWERS * span and not _queue_grows(taken, alone):
        return []
    seconds = span / 2
    return [
        f"requests come faster than they are answered: in the last {seconds:.3g} s of arrivals {came / seconds:.3g} a second came and "
        f"{max(came - grown, 0.0) / seconds:.3g} a second were answered; TTFT and queueing grow with the length of the run"
    ]


def _mean_number(arrivals: Any, ends: Any, start: float, end: float) -> float:
    """Return the mean number of requests in the server between two moments."""
    return float((ends.clip(start, end) - arrivals.clip(start, end)).sum()) / (end - start)


def _queue_grows(served: Sequence[Served], alone: float) -> bool:
    """Tell whether the last quarter of the requests waits longer than a request takes alone, and than twice the second quarter's wait."""
    import numpy as np

    ordered = sorted(served, key=lambda item: item.request.arrival)
    waits = np.nan_to_num([item.scheduled - item.request.arrival for item in ordered], nan=math.inf)
    quarter = len(waits) // 4
    return bool(np.median(waits[-quarter:]) > max(alone, 2 * float(np.median(waits[quarter : 2 * quarter]))))


def _alone(served: Sequence[Served], clock: Clock) -> float:
    """Return the time that a mean request takes alone on a server, its prompt in one step [s]."""
    prompt = sum(item.request.prompt for item in served) / len(served)
    output = sum(item.request.output for item in served) / len(served)
    prefill = clock.mixed([(round(prompt), 0)], 0, [0.0] * len(clock.windows))
    return prefill + output * decode_alike(clock, 1, prompt + output / 2)


def of_streams(result: Result, tallies: Sequence[Tally], settings: Settings, streams: int, prompts: int) -> list[str]:
    """Say what became of standing streams and injected prompts that did not get what the experiment is about.

    Args:
        result, tallies: of the run with injections.
        settings: of the server.
        streams: that stand.
        prompts: that are injected at once.
    """
    said = []
    starved = [gap for tally in tallies for gap in tally.open_gaps]
    if result.preemptions:
        text = f"the KV cache does not hold all streams and prompts: {_times(result.preemptions)} one was preempted"
        if starved:
            text += (
                f"; at the end {len(starved):,} of {streams:,} streams had no token for up to {max(starved):.3g} s, "
                "which counts as a gap although it had not ended"
            )
        said.append(text)
    ended = sum(item.done and item.request.standing for tally in tallies for item in tally.served)
    if ended:
        said.append(f"{ended:,} of {streams:,} streams ended before the run: {_longest(settings)}")
    asked = result.requests
    if asked.unfinished > prompts or (asked.unfinished and not asked.done):
        said.append(
            f"{asked.unfinished:,} of {asked.sent:,} injected prompts were not answered by the end: prompts come faster than the server "
            "takes them, and their TTFT grows with the length of the run"
            if asked.done
            else f"none of the {asked.sent:,} injected prompts was answered by the end; their TTFT is not known"
        )
    return said


def _longest(settings: Settings) -> str:
    """Return what limits the length of a sequence."""
    tokens = int(settings.ends_at)
    if settings.max_model_len == tokens:
        return f"no sequence is longer than max_model_len, {tokens:,} tokens"
    if settings.ends_at < settings.longest:
        return f"without chunked prefill no sequence is longer than the token budget, {tokens:,} tokens"
    return f"no sequence is longer than the KV cache, {tokens:,} tokens"


def _requests(count: int) -> str:
    return "1 request was" if count == 1 else f"{count:,} requests were"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
