"""``solve``: the inverse of ``predict`` in one unknown, the largest integer n with T(n) ≤ limit < T(n + 1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from costmodel.building import build_parameters, build_textbook
from costmodel.certainty import find_calibration, no_calibration
from costmodel.checks import MAX_TOKENS, choice, parameter_count, positive
from costmodel.deployment import deploy
from costmodel.documents import RUNG_NAMES, RungName
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.textbook import Textbook, textbook_decode
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import Frozen
from costmodel.rungs import Load, longest_step, make_load, textbook_spike, total_seconds

Unknown = Literal["prompt", "streams", "context"]
UNKNOWNS: tuple[Unknown, ...] = ("prompt", "streams", "context")
LEAST: dict[Unknown, int] = {"prompt": 1, "streams": 1, "context": 0}
MOST: dict[Unknown, int] = {"prompt": MAX_TOKENS, "streams": 1_000_000, "context": MAX_TOKENS}

Quantity = Literal["spike_s", "decode_s", "ratio"]
Measure = Callable[[int], float]


class Solution(Frozen):
    """``costmodel.solution/1``: the answer of :func:`costmodel.solve`."""

    schema_: Literal["costmodel.solution/1"] = Field(default="costmodel.solution/1", alias="schema")
    unknown: Unknown
    quantity: Quantity
    limit: float
    """Seconds, or decode steps for ``ratio``."""
    rung: RungName
    status: Literal["found", "none", "unbounded"]
    """``none``: even the smallest value is over the limit. ``unbounded``: even the largest that ``predict`` takes is not."""
    value: int | None
    """Largest integer whose quantity is at or under the limit."""
    at_value: float | None
    """The quantity there."""
    at_next: float | None
    """The quantity at value + 1, over the limit (for ``none``: at the smallest value)."""


def solve(
    unknown: Unknown = "prompt",
    *,
    spike_s: float | None = None,
    decode_s: float | None = None,
    ratio: float | None = None,
    rung: RungName | None = None,
    prompt: int = 8000,
    gpu: str = "h100",
    model: str = "Llama-3.1-8B",
    streams: int = 32,
    context: int = 500,
    chunk: int | str | None = None,
    prompts: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    params: float | None = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
) -> Solution:
    """Return the largest prompt, number of streams or context that keeps a time under a limit.

    Exactly inverts :func:`costmodel.predict`: with T the quantity as ``predict`` gives it on that rung, the answer n has
    T(n) ≤ limit < T(n + 1). T never falls with n, except that several prompts under a token budget may share steps differently from one
    length to the next: there the answer is a crossing of the limit, not necessarily the last.
    Closed form for the prompt on the textbook rung, integer bisection elsewhere.

    Args:
        unknown: ``prompt``, ``streams`` (fewer than a token budget, if there is one) or ``context``; its own argument is ignored.
        spike_s, decode_s, ratio: exactly one limit: on the spike's height [s], on the decode step [s], or on the spike in decode steps.
        rung: ``textbook``, ``roofline`` or ``calibrated``; None for the headline rung.
        prompt, gpu, model, streams, context, chunk, prompts, dtype, kv_dtype, compute_dtype, lora, tp, pp, ep, params, engine,
            calibration: as in :func:`costmodel.predict`.

    Returns:
        The frozen document ``costmodel.solution/1``.

    Raises:
        InputError: unknown names, not exactly one limit, or a limit that is not a positive number.
    """
    choice(unknown, UNKNOWNS, "quantity to solve for")
    if rung is not None:
        choice(rung, RUNG_NAMES, "rung")
    limits: dict[Quantity, float | None] = {"spike_s": spike_s, "decode_s": decode_s, "ratio": ratio}
    given = [(name, value) for name, value in limits.items() if value is not None]
    if len(given) != 1:
        raise InputError("solve needs exactly one limit: a spike height, a decode step, or a ratio of the two")
    quantity, limit = given[0][0], positive(given[0][1], given[0][0])
    if quantity == "decode_s" and unknown == "prompt":
        raise InputError(
            "the decode step does not depend on the prompt; solve for streams or context, or limit the spike"
        )
    if quantity == "ratio" and unknown != "prompt":
        raise InputError(f"the ratio does not grow with the {unknown}; solve for the prompt, or limit the spike")
    if unknown == "streams" and chunk is not None and quantity == "spike_s":
        raise InputError(
            "under a token budget more streams leave less room for the prompt, so the spike does not grow with them"
        )
    formats: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype}
    deployment = deploy(model, gpu, tp=tp, pp=pp, ep=ep, **formats, lora=lora)
    known: dict[str, Any] = {"prompt": prompt, "streams": streams, "context": context} | {unknown: LEAST[unknown]}
    load = make_load(deployment, prompts=prompts, chunk=chunk, **known)
    most = MOST[unknown]
    if unknown == "streams" and load.budget is not None:
        most = load.budget - 1  # more leave no room for a prompt, which predict refuses
    fitted = find_calibration(calibration, deployment, engine)
    chosen: RungName = rung or ("calibrated" if fitted else "roofline")
    start = None
    if chosen == "textbook":
        textbook = build_textbook(deployment, None if params is None else parameter_count(params))
        measure = _textbook_measure(textbook, load, unknown, quantity)
        if unknown == "prompt" and load.budget is None:
            start = _closed_form(textbook, load, quantity, limit)
    elif chosen == "roofline" or fitted is not None:
        parameters = build_parameters(
            deployment, CalibratedRates(fitted) if chosen == "calibrated" and fitted else None
        )
        measure = _measure(parameters, load, unknown, quantity)
    else:
        raise InputError(no_calibration(deployment, engine))
    found = largest(measure, limit, LEAST[unknown], most, start)
    values: dict[str, Any] = {"status": "none", "value": None, "at_value": None, "at_next": measure(LEAST[unknown])}
    if found is not None:
        values = {
            "status": "unbounded" if found == most else "found",
            "value": found,
            "at_value": measure(found),
            "at_next": None if found == most else measure(found + 1),
        }
    return Solution(unknown=unknown, quantity=quantity, limit=limit, rung=chosen, **values)


def largest(measure: Measure, limit: float, least: int, most: int, start: int | None = None) -> int | None:
    """Return the largest n in [least, most] with measure(n) ≤ limit < measure(n + 1); None if measure(least) > limit.

    Args:
        measure: never falls with n.
        limit: same unit.
        least, most: range; ``most`` is returned if it is still within the limit.
        start: a guess close to the answer, which then takes a few evaluations instead of a bisection.
    """
    if measure(least) > limit:
        return None
    if start is not None:
        guess = min(max(start, least), most)
        for _ in range(64):
            if measure(guess) > limit:
                guess -= 1
            elif guess < most and measure(guess + 1) <= limit:
                guess += 1
            else:
                return guess
    if measure(most) <= limit:
        return most
    low, high = least, most  # measure(low) ≤ limit < measure(high)
    while high - low > 1:
        middle = (low + high) // 2
        if measure(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def _measure(parameters: Parameters, load: Load, unknown: Unknown, quantity: Quantity) -> Measure:
    """Return the quantity as a function of the unknown, computed as ``predict`` does."""

    def decode(changed: Load) -> float:
        return total_seconds(step_operators(parameters, changed.decode_work(parameters.windows)))

    return _chosen(load, unknown, quantity, decode, lambda changed: longest_step(parameters, changed)[1])


def _textbook_measure(textbook: Textbook, load: Load, unknown: Unknown, quantity: Quantity) -> Measure:
    decode = float(textbook_decode(textbook))
    return _chosen(load, unknown, quantity, lambda _: decode, lambda changed: textbook_spike(textbook, changed)[1])


def _chosen(
    load: Load, unknown: Unknown, quantity: Quantity, decode: Callable[[Load], float], spike: Callable[[Load], float]
) -> Measure:
    def value(number: int) -> float:
        number_of: dict[str, Any] = {unknown: number}
        changed = replace(load, **number_of)
        if quantity == "decode_s":
            return decode(changed)
        height = spike(changed)
        return height / decode(changed) if quantity == "ratio" else height

    return value


def _closed_form(textbook: Textbook, load: Load, quantity: Quantity, limit: float) -> int | None:
    """Solve a·n² + b·n = limit for the prompt on the textbook rung; None where windows make it no quadratic."""
    if any(window is not None for window, _ in textbook.attention):
        return None
    seconds = limit * textbook_decode(textbook) if quantity == "ratio" else limit
    rate = textbook.peak * textbook.gpus / load.prompts
    a = sum(2 * width for _, width in textbook.attention) / rate
    b = 2 * textbook.active_parameters / rate
    root = 2 * seconds / (b + math.sqrt(b * b + 4 * a * seconds))
    return int(min(root, MAX_TOKENS))
