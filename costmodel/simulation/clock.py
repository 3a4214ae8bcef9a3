"""How long a simulated step takes: the equations of the step, recorded once for a deployment and then called millions of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from costmodel.equations.numerics import total
from costmodel.equations.parameters import Parameters
from costmodel.equations.recording import Recorded, Recorder
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Window, Work, attended_pairs, chunk_kv, seen_tokens
from costmodel.rungs import total_seconds

MOST_CHUNKS = 12
"""Steps with more prefill chunks than this are evaluated by the equations themselves: each number of chunks is a function of its own."""


class Clock(Protocol):
    """What tells the simulation the time of a step.

    ``reads`` are the KV tokens that the decoding sequences read, Σ min(context + 1, w), for each window w in :attr:`windows`.
    """

    windows: tuple[Window, ...]

    def decode(self, decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a step of ``decodes`` ≥ 1 decoding sequences and nothing else [s]."""

    def mixed(self, chunks: Sequence[tuple[int, int]], decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a step with prefill ``chunks`` (tokens, cached before) beside decoding sequences [s]."""

    def run(
        self,
        now: float,
        decodes: int,
        reads: list[float],
        growth: Sequence[float],
        steps: int,
        until: float,
        lag: float,
    ) -> tuple[float, float, int]:
        """Run up to ``steps`` decode steps, with ``reads`` (changed in place) growing by ``growth`` from one to the next.

        Args:
            now: start of the first step [s].
            decodes, reads: as in :meth:`decode`.
            growth: of ``reads`` per step.
            steps: at most.
            until: no step is begun that is scheduled at this time or later [s].
            lag: when the first step is scheduled, for engines that schedule a step when the one before it starts [s]; NaN for engines that
                schedule it when it starts.

        Returns:
            The end of the last step, when the next one is scheduled (NaN as above), and how many steps were run.
        """

    def decode_many(self, decodes: Any, reads: Sequence[Any]) -> Any:
        """Return :meth:`decode` of arrays [s]."""


def decode_alike(clock: Clock, sequences: int, context: float) -> float:
    """Return the time of a decode step of ``sequences`` ≥ 1 sequences that each have ``context`` tokens in the cache [s]."""
    reads = [sequences * seen_tokens(context, window) for window in clock.windows]
    return clock.decode(sequences, reads)


class StepClock:
    """The clock of a deployment.

    Args:
        parameters: of its steps.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.windows: tuple[Window, ...] = tuple(dict.fromkeys(parameters.windows))
        self._prepare: Callable[[float], tuple[float, ...]]
        self._decode: Callable[..., float]
        self._prepare, self._decode, self._run, self._run_lagging = _decode_functions(parameters, self.windows)
        self._prepared: dict[int, tuple[float, ...]] = {}
        self._mixed: dict[tuple[int, bool], Callable[..., float]] = {}
        self._fewest = FEWEST_IN_CLOSED_FORM

    def decode(self, decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a step of ``decodes`` ≥ 1 decoding sequences and nothing else [s]."""
        prepared = self._prepared.get(decodes) or self._prepare_for(decodes)
        return self._decode(prepared, *reads)

    def mixed(self, chunks: Sequence[tuple[int, int]], decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a step with prefill ``chunks`` (tokens, cached before) beside decoding sequences [s]."""
        count = len(chunks)
        if count > MOST_CHUNKS:
            work = _work([Chunk(float(q), float(c)) for q, c in chunks], float(decodes), self.windows, reads)
            return float(total_seconds(step_operators(self.parameters, work)))
        key = count, decodes > 0
        made = self._mixed.get(key)
        if made is None:
            made = self._mixed[key] = _mixed_function(self.parameters, self.windows, *key)
        sizes = [size for chunk in chunks for size in chunk]
        return made(*sizes, decodes, *reads) if decodes else made(*sizes)

    def run(
        self,
        now: float,
        decodes: int,
        reads: list[float],
        growth: Sequence[float],
        steps: int,
        until: float,
        lag: float,
    ) -> tuple[float, float, int]:
        """Run up to ``steps`` decode steps; see :meth:`Clock.run`."""
        prepared = self._prepared.get(decodes) or self._prepare_for(decodes)
        lagging = not math.isnan(lag)
        if steps >= self._fewest or not any(growth):
            found = self._affine(prepared, reads, growth, steps)
            if found is not None:
                return _affine_run(now, *found, reads, growth, steps, until, lag)
            self._fewest = FEWEST_IF_CURVED
        if lagging:
            now, lag, done, *reads[:] = self._run_lagging(now, steps, until, lag, prepared, *reads, *growth)
        else:
            now, done, *reads[:] = self._run(now, steps, until, prepared, *reads, *growth)
        return now, lag, done

    def decode_many(self, decodes: Any, reads: Sequence[Any]) -> Any:
        """Return :meth:`decode` of arrays [s]."""
        return total_seconds(step_operators(self.parameters, _work([], decodes, self.windows, reads)))

    def _prepare_for(self, decodes: int) -> tuple[float, ...]:
        prepared = self._prepared[decodes] = self._prepare(float(decodes))
        return prepared

    def _affine(
        self, prepared: tuple[float, ...], reads: Sequence[float], growth: Sequence[float], steps: int
    ) -> tuple[float, float] | None:
        """Return the first of the step times and by how much each is longer than the one before, None if that is not always the same.

        Times of a step are sums of maxima (convex) or of saturating terms (concave) of the KV sums, so one that is on the line between the
        first and the last at a third and at two thirds of the way is on it everywhere.
        """
        first = self._decode(prepared, *reads)
        if not any(growth):
            return first, 0.0
        last = steps - 1
        slope = (self._decode(prepared, *(r + g * last for r, g in zip(reads, growth, strict=True))) - first) / last
        for step in (last // 3, 2 * last // 3):
            there = self._decode(prepared, *(r + g * step for r, g in zip(reads, growth, strict=True)))
            if abs(there - (first + slope * step)) > SAME * first:
                return None
        return first, slope


FEWEST_IN_CLOSED_FORM = 16
"""Fewer steps than this are sooner run one by one."""
FEWEST_IF_CURVED = 256
"""The same once step times have been seen that do not lie on a line."""
SAME = 1e-14
"""Relative difference of step times that is rounding."""


class FixedClock:
    """A clock of two numbers, as in a lesson: a decode step, and a prompt.

    Args:
        decode: time of a step without prefill [s].
        prefill: time of a step with a whole prompt of ``prompt`` tokens, whoever decodes beside it; chunks take their share of it, and a
            decode step at least [s].
        prompt: tokens of a prompt.
    """

    windows: tuple[Window, ...] = ()
    """No KV sums are kept: no step depends on them."""

    def __init__(self, decode: float, prefill: float, prompt: int) -> None:
        self._decode, self._per_token = decode, prefill / prompt

    def decode(self, decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a decode step [s]."""
        return self._decode

    def mixed(self, chunks: Sequence[tuple[int, int]], decodes: int, reads: Sequence[float]) -> float:
        """Return the time of a step with prefill [s]."""
        return max(self._decode, self._per_token * sum(tokens for tokens, _ in chunks))

    def run(
        self,
        now: float,
        decodes: int,
        reads: list[float],
        growth: Sequence[float],
        steps: int,
        until: float,
        lag: float,
    ) -> tuple[float, float, int]:
        """Run decode steps; see :meth:`Clock.run`."""
        return _affine_run(now, self._decode, 0.0, reads, growth, steps, until, lag)

    def decode_many(self, decodes: Any, reads: Sequence[Any]) -> Any:
        """Return :meth:`decode` of arrays [s]."""
        return decodes * 0 + self._decode


def _affine_run(
    now: float,
    first: float,
    slope: float,
    reads: list[float],
    growth: Sequence[float],
    steps: int,
    until: float,
    lag: float,
) -> tuple[float, float, int]:
    """Run steps of which each is ``slope`` longer than the one before, in closed form; see :meth:`Clock.run`.

    Step j starts at now + j·first + slope·j(j − 1)/2, so the number of steps that start before ``until`` is the root of a quadratic, put
    right by a step where rounding asks for it.
    """
    lagging = not math.isnan(lag)
    if (lag if lagging else now) >= until:
        return now, lag, 0

    def start(step: int) -> float:
        return now + step * first + slope * step * (step - 1) / 2

    done = steps
    if until < math.inf:
        ahead = until - now
        if ahead <= 0:
            begun = 0
        elif slope == 0:
            begun = math.ceil(ahead / first)
        else:
            b = first - slope / 2
            begun = math.ceil(2 * ahead / (b + math.sqrt(max(b * b + 2 * slope * ahead, 0.0))))
        begun = max(min(begun, steps + 1), 0)
        while begun > 0 and start(begun - 1) >= until:
            begun -= 1
        while begun <= steps and start(begun) < until:
            begun += 1
        # ``begun`` steps start before ``until``; an engine that schedules ahead has scheduled one more by then.
        done = min(steps, begun + 1 if lagging else begun)
    for index, grown in enumerate(growth):
        reads[index] += grown * done
    if lagging and done:
        lag = start(done - 1)
    return start(done), lag, done


def _work(chunks: Sequence[Chunk], decodes: Any, windows: Sequence[Window], reads: Sequence[Any]) -> Work:
    """Return the work of a step from the sums that the simulation keeps."""
    return Work(
        tokens=total([*(chunk.tokens for chunk in chunks), decodes]),
        rows=decodes + len(chunks),
        prefills=len(chunks),
        decodes=decodes,
        pairs={w: total(attended_pairs(chunk.tokens, chunk.cached, w) for chunk in chunks) for w in windows},
        prefill_kv={w: total(chunk_kv(chunk.tokens, chunk.cached, w) for chunk in chunks) for w in windows},
        decode_kv=dict(zip(windows, reads, strict=True)),
        chunks=tuple(chunks),
    )


def _mixed_function(
    parameters: Parameters, windows: Sequence[Window], count: int, decoding: bool
) -> Callable[..., float]:
    """Return a step with ``count`` chunks as a function of their sizes and, where there are decodes, of them and of what they read."""
    recorder = Recorder()
    chunks = [Chunk(recorder.argument(f"q{i}"), recorder.argument(f"c{i}")) for i in range(count)]
    names = [f"{name}{i}" for i in range(count) for name in "qc"]
    decodes: Any = 0
    reads: list[Any] = [0] * len(windows)
    if decoding:
        decodes = recorder.argument("d")
        reads = [recorder.argument(f"r{i}") for i in range(len(windows))]
        names += ["d", *(f"r{i}" for i in range(len(windows)))]
    seconds = [item.seconds for item in step_operators(parameters, _work(chunks, decodes, windows, reads))]
    lines = recorder.assignments(0, seconds)
    made: Callable[..., float] = compiled("mixed", names, [*lines, f"return {summed(seconds)}"])
    return made


def _decode_functions(parameters: Parameters, windows: Sequence[Window]) -> tuple[Any, Any, Any, Any]:
    """Return a decode step in parts: what depends on the number of sequences alone, the rest, and loops over many steps."""
    recorder = Recorder()
    decodes = recorder.argument("d")
    reads = [recorder.argument(f"r{i}", 1) for i in range(len(windows))]
    seconds = [item.seconds for item in step_operators(parameters, _work([], decodes, windows, reads))]
    early = [item for item in seconds if not (isinstance(item, Recorded) and item.stage)]
    late = [item for item in seconds if isinstance(item, Recorded) and item.stage]
    body = recorder.assignments(1, late)
    used = {word for line in body for word in line.replace("(", " ").replace(")", " ").split()}
    kept = [name for name, _, stage in recorder.lines if stage == 0 and name in used] + ["d"]
    prepared = [*recorder.assignments(0, [*early, *kept]), f"return ({summed(early)}, {', '.join(kept)})"]
    names, steps = [f"r{i}" for i in range(len(windows))], [f"g{i}" for i in range(len(windows))]
    unpack = f"constant, {', '.join(kept)} = prepared"
    step = f"constant + {summed(late)}" if late else "constant"
    grow = [f"{name} += {grown}" for name, grown in zip(names, steps, strict=True)]

    def loop(scheduled: str, before: list[str], results: list[str]) -> list[str]:
        inside = [*before, *body, f"now += {step}", *grow, "done += 1"]
        head = [unpack, "done = 0", f"while done < steps and {scheduled} < until:"]
        return [*head, *("    " + line for line in inside), f"return {', '.join([*results, *names])}"]

    return (
        compiled("prepare", ["d"], prepared),
        compiled("decode", ["prepared", *names], [unpack, *body, f"return {step}"]),
        compiled("run", ["now", "steps", "until", "prepared", *names, *steps], loop("now", [], ["now", "done"])),
        compiled(
            "run",
            ["now", "steps", "until", "lag", "prepared", *names, *steps],
            loop("lag", ["lag = now"], ["now", "lag", "done"]),
        ),
    )


def summed(values: Sequence[Any]) -> str:
    """Return the sum of recorded values and numbers as Python writes it."""
    known = sum(float(value) for value in values if not isinstance(value, Recorded))
    names = [value.text for value in values if isinstance(value, Recorded)]
    return " + ".join([*names, repr(known)] if known or not names else names)


def compiled(name: str, arguments: Sequence[str], lines: Sequence[str]) -> Any:
    """Return the function of these lines."""
    source = f"def {name}({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in lines)
    space: dict[str, Any] = {"ceil": lambda value: float(math.ceil(value))}
    exec(source, space)
    return space[name]
