"""The log of a vLLM server in production, read as a measurement.

With ``--enable-logging-iteration-details`` vLLM logs a line per step: prompts and their tokens, sequences that decode, elapsed time, and
the share of the KV cache in use. It does not log contexts; they are worked out from that share and the size of the cache, which is logged
once.

*Times.* The elapsed time in the line is that of waiting for a result. Where the engine computes in the process that waits (one CPU, or a
synchronous scheduler), it is nearly nothing, whatever the step took. So where every line has a time stamp with fractions of a second
(``docker logs -t``, ``kubectl logs --timestamps``, journald), the time between two lines is taken, for steps with a sequence that decodes:
such a step began when the one before it ended. Without such stamps the elapsed times are taken, after a check against the stamps in
seconds that vLLM writes itself.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import Final

from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.source import find_model
from costmodel.dtypes import FROM_TORCH, main_format
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path
from costmodel.validation.measurements.files import Sample, summarise
from costmodel.validation.measurements.types import Engine, Machine, Measurement, Model

LINE: Final = re.compile(
    r"Iteration\((?P<index>\d+)\): (?P<prompts>\d+) context requests, (?P<new>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, (?P<answers>\d+) generation tokens, "
    r"iteration elapsed time: (?P<elapsed>[\d.]+) ms(?P<dummy> \(dummy\))?, \w+ KV cache usage: (?P<usage>[\d.]+)%"
)
ENGINE: Final = re.compile(r"Engine (\d+): $")
FRACTION: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d[.,]\d{2,9})")
SECONDS: Final = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
KV_TOKENS: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
BUDGET: Final = re.compile(r"max_num_batched_tokens=(\d+)")
CONFIG: Final = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: (?P<config>.*)")
FLAG: Final = re.compile(
    r"\b(dtype|max_seq_len|tensor_parallel_size|quantization|enforce_eager|kv_cache_dtype|enable_prefix_caching|seed)=([^,]+)"
)
MOST_BYTES: Final = 2**31
HELD_OUT_EVERY: Final = 5
"""One kind of step of so many is for checking."""
CHECKED_SECONDS: Final = 3
"""A busy stretch must be at least so long for its elapsed times to be checked [s]."""
HONEST_SHARE: Final = 0.7
"""Elapsed times that sum up to less of the time that passed are none of steps."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """A line of the log: a step.

    Attributes:
        index: vLLM's number of it.
        prompts, new: prompts in it and their tokens.
        decodes: sequences that decode.
        elapsed: as logged [s].
        usage: share of the KV cache in use, 0 to 1.
        stamp: time to a fraction of a second [s]; None where the line has none.
        clock: time in whole seconds [s]; None where the line has none.
    """

    index: int
    prompts: int
    new: int
    decodes: int
    elapsed: float
    usage: float
    stamp: float | None
    clock: float | None


@dataclass(slots=True)
class Log:
    """What a log says.

    Attributes:
        steps: of one engine, in order.
        kv_tokens: that its KV cache holds; 0 where the log does not say.
        budget: tokens of a step; 0 where the log does not say.
        version: of vLLM.
        flags: that the log names.
    """

    steps: list[Iteration]
    kv_tokens: int = 0
    budget: int = 0
    version: str = "unknown"
    flags: dict[str, str | int | float | bool | None] | None = None


def measurement_from_log(
    path: Path, model: str, gpu: str | None, dtype: str | None, kv_dtype: str | None, tensor_parallel: int, command: str
) -> Measurement:
    """Read a server's log as a measurement.

    Args:
        path: of the log.
        model: that was served: anything that ``--model`` takes.
        gpu: profile of the part, by name or file; None where there is none.
        dtype: of activations; None for what the log says, else the checkpoint's.
        kv_dtype: of the KV cache; None for what the log says.
        tensor_parallel: size, where the log does not say.
        command: that reads it.

    Raises:
        InputError: no such log, no such lines in it, or their times cannot be those of steps.
    """
    log = read_log(path)
    files = find_model(model)
    flags = log.flags or {}
    architecture = architecture_from_config(files.config, files.name, files.quant)
    activation = dtype or FROM_TORCH.get(str(flags.get("dtype")).removeprefix("torch.")) or architecture.dtype
    cache = kv_dtype or (None if flags.get("kv_cache_dtype") in (None, "auto") else str(flags["kv_cache_dtype"]))
    samples, notes = _samples(log, shown_path(path))
    choice = load_gpu(gpu)[1] if gpu is not None else None
    return Measurement(
        source="log",
        engine=Engine(name="vllm", version=log.version, flags=flags),
        machine=Machine(
            profile=choice.name if choice else None,
            device=gpu or "unknown: the log does not name it",
            count=int(flags.get("tensor_parallel_size") or tensor_parallel),
        ),
        model=Model(
            name=files.name,
            config=files.config,
            dtype=main_format(architecture).name if architecture.quantization else activation,
            kv_dtype=cache,
        ),
        clock="wall",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        notes=notes,
        steps=tuple(summarise(samples)),
    )


def read_log(path: Path) -> Log:
    """Read the lines of a log that say something about steps; of several engines, those of the one with the most.

    Raises:
        InputError: it cannot be read, or has no iteration details.
    """
    engines: dict[str, list[Iteration]] = {}
    found = Log([])
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"cannot read {shown_path(path)}: it is no regular file")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{shown_path(path)} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are read")
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (match := LINE.search(line)) is not None:
                    if match["dummy"] is None:
                        engine = ENGINE.search(line[: match.start()])
                        engines.setdefault(engine[1] if engine else "", []).append(_iteration(line, match))
                else:
                    _look_for_flags(line, found)
    except OSError as error:
        raise InputError(f"cannot read {shown_path(path)}: {error.strerror or error}") from None
    if not engines:
        raise InputError(
            f"{shown_path(path)} has no iteration details; start the server with --enable-logging-iteration-details and keep the log from "
            "its first line"
        )
    found.steps = max(engines.values(), key=len)
    return found


def _look_for_flags(line: str, log: Log) -> None:
    if (size := KV_TOKENS.search(line)) is not None:
        log.kv_tokens = int(size[1].replace(",", ""))
    if (budget := BUDGET.search(line)) is not None:
        log.budget = int(budget[1])
    if (config := CONFIG.search(line)) is not None:
        log.version = config["version"]
        flags = {name: value.strip("'\" ") for name, value in FLAG.findall(config["config"])}
        log.flags = {name: int(value) if value.isdecimal() else value for name, value in flags.items()}


def _iteration(line: str, match: re.Match[str]) -> Iteration:
    before = line[: match.start()]
    stamp = clock = None
    if (fraction := FRACTION.search(before)) is not None:
        text = f"{fraction[1]}T{fraction[2].replace(',', '.')}"[:26]
        stamp = datetime.datetime.fromisoformat(text.ljust(26, "0")).replace(tzinfo=datetime.UTC).timestamp()
    if (whole := SECONDS.search(before)) is not None:
        month, day, hour, minute, second = map(int, whole.groups())
        # a leap year, as the log has none; only differences matter
        clock = datetime.datetime(2024, month, day, hour, minute, second, tzinfo=datetime.UTC).timestamp()
    numbers = {name: int(match[name]) for name in ("index", "prompts", "new", "decodes")}
    return Iteration(
        **numbers, elapsed=float(match["elapsed"]) / 1e3, usage=float(match["usage"]) / 100, stamp=stamp, clock=clock
    )


def _samples(log: Log, name: str) -> tuple[list[Sample], tuple[str, ...]]:
    """Return a sample of every step whose time and composition can be told, and notes on how."""
    if not log.kv_tokens:
        raise InputError(f"{name} does not say the size of the KV cache; keep the log from the server's first line")
    stamped = all(step.stamp is not None for step in log.steps) and len(log.steps) > 1
    notes = [
        "contexts are worked out from the share of the KV cache in use; the log does not have them",
        f"times are {'those between two lines of the log' if stamped else 'those that vLLM logged as elapsed'}",
    ]
    if not stamped:
        notes += _check_elapsed(log.steps, name)
    left_out: Counter[str] = Counter()
    found = []
    for step, cached, before in _with_cached(log):
        seconds = step.elapsed
        if step.prompts > 1:
            left_out["several prompts whose lengths the log does not tell"] += 1
            continue
        if stamped:
            if before is None or not step.decodes or step.stamp is None or before.stamp is None:
                left_out["an engine that may have waited before"] += 1
                continue
            seconds = step.stamp - before.stamp
        if seconds <= 0 or (not step.decodes and not step.prompts):
            left_out["no time or no tokens"] += 1
            continue
        if step.prompts and cached is None:
            left_out["a prompt whose beginning the log does not tell"] += 1
            continue
        chunks = ((step.new, cached or 0),) if step.prompts else ()
        context = _context(step, cached or 0, log.kv_tokens)
        point = f"{chunks} {step.decodes} {round(20 * log10(context + 1))}"
        found.append(Sample(chunks, (context,) * step.decodes, seconds, "served", False, point))
    if not found:
        raise InputError(f"{name} has no step whose time and tokens can be told ({', '.join(left_out)})")
    if any(sample.chunks for sample in found) and (log.flags or {}).get("enable_prefix_caching") != "False":
        notes.append(
            "what a prompt found in the prefix cache (on by default in vLLM) is not in the log: its tokens count as if they were its first"
        )
    notes += [f"steps left out: {number:,}, for {reason}" for reason, number in left_out.items()]
    return _hold_some_out(found), tuple(notes)


def _with_cached(log: Log) -> Iterator[tuple[Iteration, int | None, Iteration | None]]:
    """Yield every step with the tokens that its prompt had in the cache before, and the step before it, if that one was logged.

    A prompt that fills the budget goes on in the next step. None where the log does not tell how far it was: after a step that was full
    and had several prompts, or steps that were not logged.
    """
    budget = log.budget or max(step.new + step.decodes for step in log.steps)
    held: int | None = 0
    before: Iteration | None = None
    for step in log.steps:
        follows = before is not None and step.index == before.index + 1
        if before is not None:
            held = _held(before, held, step, budget) if follows else None
        yield step, held, before if follows else None
        before = step


def _held(before: Iteration, held: int | None, step: Iteration, budget: int) -> int | None:
    """Return the tokens of a prompt that the step goes on with; 0 where it can only begin one, None where the log does not tell.

    Args:
        before: the step before.
        held: the same of that step.
        step: it.
        budget: tokens of a step.
    """
    if before.new + before.decodes < budget:  # all that waited was let in
        return 0
    if not before.prompts:
        return held
    if step.decodes - before.decodes >= before.prompts:  # all its prompts have ended, and decode now
        return 0
    return held + before.new if before.prompts == 1 and held is not None else None


def _context(step: Iteration, cached: int, kv_tokens: int) -> int:
    """Return the mean tokens in the cache of a sequence that decodes, before the step."""
    if not step.decodes:
        return 0
    held = step.usage * kv_tokens - (step.new + cached if step.prompts else 0)
    return max(round(held / step.decodes) - 1, 1)


def _hold_some_out(samples: Sequence[Sample]) -> list[Sample]:
    """Mark every fifth kind of step as for checking."""
    order = {label: place for place, label in enumerate(dict.fromkeys(sample.point for sample in samples))}
    return [
        Sample(
            each.chunks, each.decodes, each.seconds, each.purpose, order[each.point] % HELD_OUT_EVERY == 4, each.point
        )
        for each in samples
    ]


def _check_elapsed(steps: Sequence[Iteration], name: str) -> list[str]:
    """Hold the elapsed times of the longest busy stretch against the time that passed.

    Raises:
        InputError: they sum up to far less.
    """
    best = (0.0, 0.0)
    start = 0
    for place in range(1, len(steps) + 1):
        ends = place == len(steps) or steps[place].index != steps[place - 1].index + 1 or not steps[place].decodes
        if not ends:
            continue
        first, last = steps[start].clock, steps[place - 1].clock
        if first is not None and last is not None and last - first > best[0]:
            best = last - first, sum(step.elapsed for step in steps[start + 1 : place])
        start = place
    passed, summed = best
    if passed < CHECKED_SECONDS:
        return ["the elapsed times could not be checked: no busy stretch of the log is long enough"]
    share = summed / passed
    if share < HONEST_SHARE * (1 - 1 / passed):  # the stamps are cut to whole seconds
        raise InputError(
            f"{name}: the elapsed times of {passed:.0f} busy seconds sum up to {summed:.2g} s, so they are not those of steps; log with "
            "stamps of milliseconds (docker logs -t, kubectl logs --timestamps, journalctl -o short-iso-precise), or measure in-process"
        )
    return [f"the elapsed times sum up to {100 * share:.0f} % of the time that passed in the longest busy stretch"]
