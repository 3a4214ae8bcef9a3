"""Requests made to measure: the long-prompt experiment, clients in a closed loop, and arrivals at random.

Lengths are uniform whole numbers from ⌊(1 − spread)·L⌋ to L, drawn with :class:`random.Random`, prompt before answer, in the order in which
requests are sent: the n-th request of a seed has the same lengths in every workload. Gaps have a generator of their own. Only ``random()``
and ``gammavariate()`` are used, which give the same numbers in Python 3.11 to 3.13.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from costmodel.checks import positive, whole
from costmodel.hardware.errors import InputError, shown
from costmodel.simulation.requests import ClosedLoop, Listed, Request

MAX_REQUESTS = 10_000_000
"""More requests are taken for a slip of the keyboard."""

MAX_TIME = 1e9
"""Longer simulated times likewise: thirty years. Steps of microseconds can still be told apart there [s]."""
MAX_RATE = 1e9
"""Higher rates likewise [requests/s]."""

LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1e9
_GAPS = 1 << 64  # added to the seed of the gaps, so that they are not the numbers that the lengths are made of


def interference(
    streams: int,
    context: int,
    prompt: int,
    every: float,
    first: float,
    duration: float,
    prompts: int = 1,
    grow: bool = False,
    injected_output: int = 1,
) -> tuple[list[Request], list[Request]]:
    """Return the long-prompt experiment: streams that are there all the time, and the prompts that disturb them.

    Args:
        streams: answers that stream from the beginning to the end, group ``stream``.
        context: tokens in the cache of each of them at time 0.
        prompt: tokens of an injected prompt.
        every: time from one injection to the next [s].
        first: time of the first injection [s].
        duration: of the run; nothing is injected then or later [s].
        prompts: that are injected at once, each a request of group ``injected``.
        grow: the context of a stream grows by a token per step; otherwise it is held.
        injected_output: tokens of the answer to an injected prompt.

    Returns:
        The streams, and the injected requests in the order of their arrival.

    Raises:
        InputError: a number is out of range, the first injection is not before the end, or there are too many.
    """
    count = whole(streams, "streams", least=1, most=MAX_REQUESTS)
    standing = Request(0.0, whole(context, "context", least=1), 1, "stream", standing=True, held=not grow)
    tokens, answer = whole(prompt, "prompt", least=1), whole(injected_output, "injected_output", least=1)
    at_once = whole(prompts, "prompts", least=1, most=MAX_REQUESTS)
    period, end = positive(every, "every", MAX_TIME), positive(duration, "duration", MAX_TIME)
    start = _not_negative(first, "first", MAX_TIME)
    if start >= end:
        raise InputError(f"first must be before the end of the run ({end:g} s), not {start:g} s")
    if (end - start) / period * at_once > MAX_REQUESTS:
        raise InputError(
            f"every {period:g} s for {end - start:g} s makes more than {MAX_REQUESTS:,} prompts; inject less often"
        )
    times = itertools.takewhile(lambda time: time < end, (start + period * number for number in itertools.count()))
    injected = [Request(time, tokens, answer, "injected") for time in times for _ in range(at_once)]
    return [standing] * count, injected


def closed_loop(
    clients: int,
    requests: int,
    prompt: int,
    output: int,
    spread: float = 0,
    seed: int = 0,
    think: float = 0,
    ramp: float = 0,
) -> ClosedLoop:
    """Return clients that each wait for their answer before they ask again, as ``vllm bench serve --max-concurrency`` does.

    Args:
        clients: how many.
        requests: of all of them together.
        prompt: longest prompt [tokens].
        output: longest answer [tokens].
        spread: lengths are uniform in [(1 − spread)·L, L]; 0 for exactly L. Below 1.
        seed: of the lengths.
        think: time that a client takes between an answer and its next request [s].
        ramp: over which the clients begin; 0 for all at once [s].

    Raises:
        InputError: a number is out of range.
    """
    total = whole(requests, "requests", least=1, most=MAX_REQUESTS)
    drawn = itertools.islice(lengths(prompt, output, spread, seed), total)

    def make(time: float) -> Request | None:
        pair = next(drawn, None)
        return None if pair is None else Request(time, *pair)

    count = whole(clients, "clients", least=1, most=MAX_REQUESTS)
    pause, begin = _not_negative(think, "think", MAX_TIME), _not_negative(ramp, "ramp", MAX_TIME)
    turns = -(-total // count)
    if pause * turns > MAX_TIME:
        raise InputError(
            f"{turns:,} requests of each client with {pause:g} s between them take more than {MAX_TIME:g} s; "
            f"use a think time of at most {MAX_TIME / turns:.3g} s"
        )
    return ClosedLoop(count, make, pause, begin)


def poisson(
    rate: float,
    prompt: int,
    output: int,
    *,
    requests: int | None = None,
    duration: float | None = None,
    spread: float = 0,
    seed: int = 0,
) -> Listed:
    """Return requests of many people who know nothing of each other: :func:`gamma` with a burstiness of 1."""
    return gamma(rate, 1, prompt, output, requests=requests, duration=duration, spread=spread, seed=seed)


def gamma(
    rate: float,
    burstiness: float,
    prompt: int,
    output: int,
    *,
    requests: int | None = None,
    duration: float | None = None,
    spread: float = 0,
    seed: int = 0,
) -> Listed:
    """Return requests with gaps of a gamma distribution, as ``vllm bench serve --request-rate --burstiness`` sends them.

    Burstiness is the shape of the distribution, whose mean is 1/rate: gaps have a coefficient of variation of 1/√burstiness. 1 is a
    Poisson process, less comes in bursts, infinity means equal gaps. The first request comes after the first gap. A given number of
    ``requests`` is stretched so that the last comes at requests/rate, as vLLM does; a ``duration`` is cut off and not stretched.
    Source: vllm/benchmarks/serve.py, ``get_request``.

    Args:
        rate: requests per second.
        burstiness: shape of the gaps, in [0.01, 1e9] or infinity.
        prompt: longest prompt [tokens].
        output: longest answer [tokens].
        requests: how many; or
        duration: before whose end all of them come (there may be none) [s].
        spread: lengths are uniform in [(1 − spread)·L, L]; 0 for exactly L. Below 1.
        seed: of lengths and gaps.

    Raises:
        InputError: a number is out of range, or not exactly one of requests and duration is given.
    """
    per_second, shape = positive(rate, "rate", MAX_RATE), _shape(burstiness)
    pairs = lengths(prompt, output, spread, seed)
    arrivals = itertools.accumulate(_gaps(per_second, shape, seed))
    if requests is not None and duration is None:
        count = whole(requests, "requests", least=1, most=MAX_REQUESTS)
        if count / per_second > MAX_TIME:
            raise InputError(
                f"{count:,} requests at a rate of {per_second:g}/s take more than {MAX_TIME:g} s; "
                f"use a rate of at least {count / MAX_TIME:.3g}"
            )
        times = list(itertools.islice(arrivals, count))
        if last := times[-1]:  # bursts of a few requests may have gaps below the smallest number
            times = [time / last * (count / per_second) for time in times]
    elif duration is not None and requests is None:
        end = positive(duration, "duration", MAX_TIME)
        if per_second * end > MAX_REQUESTS:
            raise InputError(
                f"{per_second:g} requests/s for {end:g} s are more than {MAX_REQUESTS:,}; take a shorter duration"
            )
        times = list(itertools.takewhile(lambda time: time < end, arrivals))
    else:
        raise InputError("give either requests or duration, " + ("not both" if requests is not None else "one of them"))
    return Listed(Request(time, *next(pairs)) for time in times)


def lengths(prompt: int, output: int, spread: float, seed: int) -> Iterator[tuple[int, int]]:
    """Return the lengths of one request after another, without end: uniform whole numbers from ⌊(1 − spread)·L⌋ to L, at least 1.

    ``vllm bench serve --random-range-ratio`` rounds the shortest down as well.

    Args:
        prompt: longest prompt [tokens].
        output: longest answer [tokens].
        spread: share of a length that may be missing, in [0, 1).
        seed: a whole number from 0.

    Raises:
        InputError: a number is out of range.
    """
    longest = whole(prompt, "prompt", least=1), whole(output, "output", least=1)
    share = _not_negative(spread, "spread")
    if share >= 1:
        raise InputError(f"spread must be below 1 (0.2 for lengths of 80 to 100 %), not {shown(spread)}")
    # (1 − 0.9)·10 is a little less than 1 in binary
    prompt_least, output_least = (max(math.floor((1 - share) * length + 1e-9), 1) for length in longest)
    draw = random.Random(_seed(seed)).random
    prompt_kinds, output_kinds = longest[0] - prompt_least + 1, longest[1] - output_least + 1
    return (
        (prompt_least + int(draw() * prompt_kinds), output_least + int(draw() * output_kinds))
        for _ in itertools.count()
    )


def _gaps(rate: float, shape: float, seed: int) -> Iterator[float]:
    """Return one gap after another, without end [s]."""
    if shape == math.inf:
        return itertools.repeat(1 / rate)
    draw = random.Random(_seed(seed) + _GAPS).gammavariate
    return (draw(shape, 1 / (rate * shape)) for _ in itertools.count())


def _shape(value: float) -> float:
    if value == math.inf:
        return math.inf
    shape = positive(value, "burstiness")
    if not LEAST_BURSTINESS <= shape <= MOST_BURSTINESS:
        raise InputError(
            f"burstiness must be from {LEAST_BURSTINESS:g} (gaps with a coefficient of variation of 10) to {MOST_BURSTINESS:g},"
            f" or inf for equal gaps, not {shown(value)}"
        )
    return shape


def _seed(value: int) -> int:
    return whole(value, "seed", most=(1 << 63) - 1)


def _not_negative(value: float, name: str, most: float = math.inf) -> float:
    try:
        number = 0.0 if value == 0 else positive(value, name)
    except InputError:
        raise InputError(f"{name} must be a finite number, 0 or above, not {shown(value)}") from None
    if number > most:
        raise InputError(f"{name} must be at most {most:g}, not {shown(value)}")
    return number
