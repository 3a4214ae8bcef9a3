"""Results of benchmark clients, request by request.

``vllm bench serve --save-result --save-detailed`` (vllm/benchmarks/serve.py, 0.32): one JSON object; lists ``start_times`` [s, the
    client's monotonic clock], ``input_lens``, ``output_lens`` (0 for a request that failed), ``ttfts`` [s], and ``itls``, for each
    request the gaps between its chunks [s].
``python -m sglang.bench_serving --output-details`` (python/sglang/bench_serving.py): a line of JSON per run with the same lists, but no
    start times; all requests are sent at once (``request_rate`` infinite) unless ``max_concurrency`` holds them back.
AIPerf's ``profile_export.jsonl`` (docs/tutorials/working-with-profile-exports.md): a line per request; ``metadata.request_start_ns``, and
    under ``metrics`` values with units: ``input_sequence_length``, ``output_sequence_length``, ``time_to_first_token`` and, as a list,
    ``inter_chunk_latency``; ``inter_token_latency`` is the mean of the request.
GuideLLM's ``benchmarks.json`` (src/guidellm/schemas/request_stats.py): for each benchmark ``requests.successful``, with
    ``request_start_time`` [s], ``prompt_tokens``, ``output_tokens``, ``time_to_first_token_ms`` and ``inter_token_latency_ms``, which is
    (last − first)/(tokens − 1) of the request: a TPOT. Single gaps are not kept.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from costmodel.hardware.errors import InputError, shown

UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
"""Units of times in AIPerf's files [s]."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request that was answered.

    Attributes:
        sent: on any clock [s].
        prompt, output: tokens.
        ttft: [s].
        gaps: between chunks [s]; None where the client does not keep them.
        tpot: (last − first)/(tokens − 1) [s]; None of a single token.
    """

    sent: float
    prompt: int
    output: int
    ttft: float
    gaps: tuple[float, ...] | None
    tpot: float | None


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run of a benchmark client.

    Attributes:
        client: its name.
        requests: that were answered, in the order in which they were sent.
        model: as the client called it; None where it does not say.
        name: of the run, where a file has several.
        notes: what has to be said.
    """

    client: str
    requests: tuple[Served, ...]
    model: str | None = None
    name: str = ""
    notes: tuple[str, ...] = ()


def vllm_bench(found: Mapping[str, Any]) -> ServedRun:
    """Read a result of ``vllm bench serve``.

    Raises:
        InputError: a list is missing or has another length, or a value is wrong.
    """
    starts, *rest = _lists(found, ("start_times", *DETAILS), "vllm bench serve --save-result --save-detailed")
    requests, notes = _detailed(starts, rest)
    if found.get("max_concurrency") is not None:
        notes.append(
            f"max_concurrency {shown(found['max_concurrency'])} held requests back: they follow the pace of the server measured"
        )
    model = found.get("model_id")
    return ServedRun("vllm bench serve", requests, model if isinstance(model, str) else None, notes=tuple(notes))


def sglang_bench(found: Mapping[str, Any], name: str = "") -> ServedRun:
    """Read a run of SGLang's ``bench_serving``; when requests were sent is found from their durations.

    Raises:
        InputError: as :func:`vllm_bench`; or requests that came at random times, which the file does not keep.
    """
    lists = _lists(found, DETAILS, "python -m sglang.bench_serving --output-details")
    rate, most = _number(found.get("request_rate")), _number(found.get("max_concurrency"))
    if rate is not None and math.isfinite(rate):
        raise InputError(
            f"SGLang's bench_serving came at {rate:g} requests/s at random times, which its file does not keep; "
            "run it with --request-rate inf (and --max-concurrency), or use `vllm bench serve`, which keeps them"
        )
    answers = [_answer(number, 0.0, *values) for number, values in enumerate(zip(*lists, strict=True), 1)]
    durations = [each.ttft + math.fsum(each.gaps or ()) if each is not None else 0.0 for each in answers]
    places = int(most) if most is not None and 1 <= most < len(durations) else len(durations)
    requests, notes = _detailed(list(_starts(durations, places)), lists)
    notes.append(
        "start times are not in the file: each request began when one of the others ended, the first all at once"
    )
    return ServedRun("SGLang bench_serving", requests, name=name, notes=tuple(notes))


def aiperf(records: Iterable[tuple[int, Mapping[str, Any]]]) -> ServedRun:
    """Read AIPerf's records, with the numbers of their lines.

    Raises:
        InputError: a record lacks something, or a value is wrong.
    """
    requests, failed, without = [], 0, 0
    for number, record in records:
        metrics = record.get("metrics")
        if record.get("error") or not isinstance(metrics, dict) or "output_sequence_length" not in metrics:
            failed += 1
            continue
        try:
            sent = float(record["metadata"]["request_start_ns"]) * 1e-9
            prompt = round(float(metrics["input_sequence_length"]["value"]))
            output = round(float(metrics["output_sequence_length"]["value"]))
            ttft = _seconds(metrics["time_to_first_token"])[0]
            gaps = tuple(_seconds(metrics["inter_chunk_latency"])) if "inter_chunk_latency" in metrics else None
            mean = _seconds(metrics["inter_token_latency"])[0] if "inter_token_latency" in metrics else None
            requests.append(_checked(Served(sent, prompt, output, ttft, gaps, mean)))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(
                f"line {number}: is no record of AIPerf's profile_export.jsonl ({shown(str(error))})"
            ) from None
        without += gaps is None and output > 1
    notes = _left_out(failed)
    if without:
        notes.append(f"{without:,} answers have no inter_chunk_latency (not streamed?): their gaps are not compared")
    return ServedRun("AIPerf", _in_order(requests), notes=tuple(notes))


def guidellm(found: Mapping[str, Any]) -> list[ServedRun]:
    """Read GuideLLM's benchmarks.

    Raises:
        InputError: a benchmark lacks its requests, or a value is wrong.
    """
    runs = []
    for index, benchmark in enumerate(found["benchmarks"], 1):
        try:
            listed = benchmark["requests"]
            answered, failed = listed["successful"], len(listed.get("errored") or ())
            requests = [
                _checked(
                    Served(
                        sent=float(each["request_start_time"]),
                        prompt=int(each["prompt_tokens"]),
                        output=int(each["output_tokens"]),
                        ttft=float(each["time_to_first_token_ms"]) / 1e3,
                        gaps=None,
                        tpot=None
                        if each["inter_token_latency_ms"] is None
                        else float(each["inter_token_latency_ms"]) / 1e3,
                    )
                )
                for each in answered
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"benchmark {index} of GuideLLM has no whole list of requests ({shown(str(error))}); write benchmarks.json with all of them"
            ) from None
        notes = [
            "GuideLLM keeps no single gaps; its inter-token latency is the mean of a request, and is compared as TPOT",
            *_left_out(failed),
        ]
        name = f"benchmark {index}" if len(found["benchmarks"]) > 1 else ""
        runs.append(ServedRun("GuideLLM", _in_order(requests), name=name, notes=tuple(notes)))
    return runs


DETAILS: Final = ("input_lens", "output_lens", "ttfts", "itls")
"""Lists that the clients of vLLM and SGLang share."""


def _lists(found: Mapping[str, Any], names: Sequence[str], command: str) -> list[list[Any]]:
    lists = []
    for name in names:
        values = found.get(name)
        if not isinstance(values, list):
            raise InputError(f"has no list {name}; write it with `{command}`")
        lists.append(values)
    if len({len(values) for values in lists}) > 1:
        sizes = ", ".join(f"{len(values)} {name}" for name, values in zip(names, lists, strict=True))
        raise InputError(f"lists of different lengths ({sizes}); is the file whole?")
    return lists


def _detailed(starts: Sequence[Any], lists: Sequence[list[Any]]) -> tuple[tuple[Served, ...], list[str]]:
    """Return the requests that were answered, and notes about the others."""
    requests, failed, bundled = [], 0, 0
    for number, values in enumerate(zip(starts, *lists, strict=True), 1):
        answer = _answer(number, *values)
        if answer is None:
            failed += 1
            continue
        requests.append(answer)
        bundled += len(answer.gaps or ()) < answer.output - 1
    notes = _left_out(failed)
    if bundled:
        notes.append(
            f"{bundled:,} answers came with several tokens at once: a measured gap is then one of several tokens"
        )
    return _in_order(requests), notes


def _answer(number: int, start: Any, prompt: Any, output: Any, ttft: Any, itl: Any) -> Served | None:
    """Return a request by what the lists have of it; None of one that failed.

    Raises:
        InputError: a value is no number.
    """
    if not output:
        return None
    try:
        gaps = tuple(float(gap) for gap in itl)
        tpot = math.fsum(gaps) / (int(output) - 1) if int(output) > 1 and gaps else None
        return _checked(Served(float(start), int(prompt), int(output), float(ttft), gaps, tpot))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"request {number}: its times and lengths are no numbers") from None


def _checked(request: Served) -> Served:
    """Return a request whose times are finite and whose lengths are not negative.

    Raises:
        ValueError: they are not.
    """
    times = (request.sent, request.ttft, *(request.gaps or ()), request.tpot or 0.0)
    if not all(map(math.isfinite, times)):
        raise ValueError("a time is not finite")
    if min(request.prompt, request.output) < 0:
        raise ValueError("a length is negative")
    return request


def _left_out(failed: int) -> list[str]:
    return (
        [f"{failed:,} {'request that failed is' if failed == 1 else 'requests that failed are'} left out"]
        if failed
        else []
    )


def _in_order(requests: Iterable[Served]) -> tuple[Served, ...]:
    return tuple(sorted(requests, key=lambda each: each.sent))


def _starts(durations: Sequence[float], places: int) -> Iterator[float]:
    """Yield when each request was sent, if so many at a time are under way and each begins when a place is free [s]."""
    ends = [0.0] * min(places, len(durations))
    for duration in durations:
        start = heapq.heappop(ends)
        yield start
        heapq.heappush(ends, start + duration)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _seconds(metric: Mapping[str, Any]) -> list[float]:
    """Return the value or values of a metric of AIPerf [s]."""
    factor = UNITS[str(metric["unit"])]
    values = metric["value"] if isinstance(metric["value"], list) else [metric["value"]]
    return [float(value) * factor for value in values]
