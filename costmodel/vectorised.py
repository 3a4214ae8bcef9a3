"""``step_times``: many steps at once by NumPy broadcasting, or a single one as plain floats."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.building import build_parameters, build_textbook, roofline_parameters
from costmodel.certainty import find_calibration, no_calibration
from costmodel.checks import MAX_TOKENS, choice
from costmodel.deployment import Deployment, deploy
from costmodel.documents import RUNG_NAMES, RungName
from costmodel.equations import step
from costmodel.equations.numerics import is_zero
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import StepTimes
from costmodel.equations.textbook import textbook_attention, textbook_decode, textbook_linear
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError

BLOCK = 16384
"""Steps evaluated at a time: intermediate arrays of this size stay in a core's cache."""


def step_times(
    gpu: str = "h100",
    model: str = "Llama-3.1-8B",
    *,
    prefill_tokens: Any = 0,
    prefill_cached: Any = 0,
    decodes: Any = 0,
    decode_context: Any = 0,
    rung: RungName | None = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
) -> StepTimes[Any]:
    """Return the seconds of every step of a batch of steps, by group.

    Each step prefills a chunk of ``prefill_tokens`` after ``prefill_cached`` cached ones (0: no chunk) beside ``decodes`` sequences
    at ``decode_context``. The four broadcast against each other, e.g. ``prompts[:, None]`` against ``streams[None, :]``.

    Args:
        gpu, model, dtype, kv_dtype, compute_dtype, lora, tp, pp, ep: as in :func:`costmodel.predict`.
        prefill_tokens: q [tokens], number or array.
        prefill_cached: tokens of the same prompt that are cached already [tokens].
        decodes: D, decoding sequences.
        decode_context: their tokens in the KV cache [tokens].
        rung: ``textbook``, ``roofline`` or ``calibrated``; None for calibrated where there is a calibration, else roofline. The
            textbook rung, as in the lesson, takes a step with prefill for its prefill alone.
        engine, calibration: as in :func:`costmodel.predict`.

    Returns:
        :class:`~costmodel.equations.step.StepTimes` of float64 arrays in the broadcast shape, or of floats if all four are numbers [s].

    Raises:
        InputError: names or combinations that cannot be, counts that are negative, not finite or all zero, shapes that do not broadcast.
    """
    formats: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype}
    deployment = deploy(model, gpu, tp=tp, pp=pp, ep=ep, **formats, lora=lora)
    fitted = find_calibration(calibration, deployment, engine)
    if rung is not None:
        choice(rung, RUNG_NAMES, "rung")
    chosen = rung or ("calibrated" if fitted else "roofline")
    if chosen == "calibrated" and fitted is None:
        raise InputError(no_calibration(deployment, engine))
    given = (prefill_tokens, prefill_cached, decodes, decode_context)
    if all(isinstance(value, (int, float)) for value in given):
        try:
            numbers = [float(value) for value in given]
        except OverflowError:
            raise InputError(f"workload counts must be at most {MAX_TOKENS}") from None
        _check(*numbers)
        return _evaluate(deployment, chosen, fitted, *numbers)
    import numpy as np

    try:
        arrays = [np.asarray(value, dtype=np.float64) for value in given]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"workload arrays do not fit together: {error}") from None
    flat = [np.broadcast_to(array, shape).reshape(-1) if array.ndim else float(array) for array in arrays]
    _check(*flat)
    size = int(np.prod(shape))
    results = [np.empty(size) for _ in StepTimes.__slots__]
    for start in range(0, size, BLOCK):
        part = slice(start, start + BLOCK)
        block = [value if isinstance(value, float) else value[part] for value in flat]
        times = _evaluate(deployment, chosen, fitted, *block)
        for name, result in zip(StepTimes.__slots__, results, strict=True):
            result[part] = getattr(times, name)
    return StepTimes(*(result.reshape(shape) for result in results))


def _evaluate(
    deployment: Deployment,
    rung: str,
    calibration: Calibration | None,
    tokens: Any,
    cached: Any,
    decodes: Any,
    context: Any,
) -> StepTimes[Any]:
    if rung == "textbook":
        return _textbook(deployment, tokens, cached, decodes)
    parameters = _parameters(deployment, rung, calibration)
    chunks = [] if is_zero(tokens) else [Chunk(tokens, cached)]
    groups = [] if is_zero(decodes) else [Decodes(decodes, context)]
    return step.step_times(parameters, make_work(chunks, groups, parameters.windows))


@lru_cache(maxsize=256)
def _calibrated_parameters(deployment: Deployment, fitted: _Identity) -> Parameters:
    return build_parameters(deployment, CalibratedRates(fitted.calibration))


class _Identity:
    """A calibration as a cache key, by identity."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration

    def __hash__(self) -> int:
        return id(self.calibration)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.calibration is self.calibration


def _parameters(deployment: Deployment, rung: str, calibration: Calibration | None) -> Parameters:
    if rung == "roofline" or calibration is None:
        return roofline_parameters(deployment)
    return _calibrated_parameters(deployment, _Identity(calibration))


def _textbook(deployment: Deployment, tokens: Any, cached: Any, decodes: Any) -> StepTimes[Any]:
    model = build_textbook(deployment)
    linear, attention = textbook_linear(model, tokens), textbook_attention(model, tokens, cached)
    decode = textbook_decode(model)
    if is_zero(tokens):
        linear, attention = decode + 0 * decodes, 0 * decodes
    elif not isinstance(tokens, float):
        linear = sys.modules["numpy"].where(tokens > 0, linear, decode)
    zero = 0 * linear
    return StepTimes(linear + attention, linear, attention, zero, zero, zero)


def _check(tokens: Any, cached: Any, decodes: Any, context: Any) -> None:
    """Refuse counts that are negative or not finite, and steps without any token."""
    for name, value in (
        ("prefill_tokens", tokens),
        ("prefill_cached", cached),
        ("decodes", decodes),
        ("decode_context", context),
    ):
        low, high = (value, value) if isinstance(value, float) else (value.min(initial=0.0), value.max(initial=0.0))
        if not (low >= 0.0 and high <= MAX_TOKENS):
            raise InputError(f"{name} must be numbers between 0 and {MAX_TOKENS}")
    total = tokens + decodes
    least = total if isinstance(total, float) else total.min(initial=1.0)
    if least < 1.0:
        raise InputError("a step needs at least one token: prefill_tokens + decodes must be 1 or more")
