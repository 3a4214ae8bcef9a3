"""The experiment as the equations have it, beside what was measured: the decode step of the baseline, the spike of the injections."""

from __future__ import annotations

import statistics
from typing import Any, Final, NamedTuple

from costmodel.documents import Prediction
from costmodel.hardware.errors import InputError
from costmodel.prediction import predict
from costmodel.simulation.results import Result
from costmodel.validation.interference.records import Record
from costmodel.validation.interference.summary import Compared, Interference

FORMATS: Final = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
}
"""vLLM's names of dtypes → costmodel's."""


class Compare(NamedTuple):
    """What the equations say of the experiment.

    Attributes:
        rows: predicted beside measured.
        about: GPU, model, rung and calibration.
        decode, spike: the predictions that they are from, at the mean context of the baseline and of the injected run.
        warnings: theirs.
    """

    rows: tuple[Compared, ...]
    about: str
    decode: Prediction
    spike: Prediction
    warnings: tuple[str, ...]


def compare(record: Record, summary: Interference, **options: Any) -> Compare:
    """Predict what was measured.

    Args:
        record, summary: of the experiment.
        options: of :func:`costmodel.predict`: GPU, model, number formats, calibration.

    Raises:
        InputError: the options do not fit together, or nothing was measured.
    """
    if summary.baseline is None or summary.decode_step_s is None:
        raise InputError("there is no baseline that a prediction could be held against")
    plan, flags = record.plan, record.server.flags
    options = _with_flags(options, flags)
    seen = [each.prompt_tokens for each in summary.injections if each.prompt_tokens]
    prompt = round(statistics.median(seen)) if seen else plan.prompt_tokens
    budget = flags.get("max_num_batched_tokens")
    chunk = budget if isinstance(budget, int) and budget < prompt + plan.streams else None
    common = {"prompt": prompt, "streams": plan.streams, "every": plan.every_s, "chunk": chunk, **options}
    injected = summary.injected or summary.baseline
    decode = predict(**common, context=max(round(summary.baseline.context_tokens), 1))
    spike = predict(**common, context=max(round(injected.context_tokens), 1))
    rows = [_row("decode step", decode.best.decode_step_s, summary.decode_step_s, decode, "decode_step_s")]
    if summary.spike_s is not None:
        rows.append(_row("spike", spike.spike.height_s, summary.spike_s, spike, "spike_s"))
    about = f"{decode.model.name} on {decode.gpu.count} × {decode.gpu.name}, {decode.headline} rung"
    if decode.headline == "calibrated" and decode.calibration:
        about += f" ({decode.calibration})"
    warnings = tuple(dict.fromkeys((*decode.warnings, *spike.warnings)))
    return Compare(tuple(rows), about, decode, spike, warnings)


def _with_flags(options: dict[str, Any], flags: dict[str, str | int | float | bool | None]) -> dict[str, Any]:
    """Return the options that were given, and for others what the server's flags say: dtype and tensor-parallel size."""
    found = {name: value for name, value in options.items() if value is not None}
    if (dtype := FORMATS.get(str(flags.get("dtype")))) is not None:
        found.setdefault("dtype", dtype)
    size = flags.get("tensor_parallel_size")
    if isinstance(size, int) and found.get("tp", 1) == 1:
        found["tp"] = size
    return found


def _row(what: str, predicted: float, measured: float, prediction: Prediction, key: str) -> Compared:
    interval = None
    if prediction.intervals is not None:
        low, high = getattr(prediction.intervals, key)
        interval = (low, high)
    return Compared(
        what=what,
        predicted_s=predicted,
        measured_s=measured,
        error=predicted / measured - 1,
        interval_s=interval,
        inside_interval=None if interval is None else interval[0] <= measured <= interval[1],
    )


def simulate(record: Record, summary: Interference, **options: Any) -> Result | None:
    """Simulate the injected run at its mean context with the same options; None if nothing was injected.

    Raises:
        InputError: as :func:`compare`.
    """
    from costmodel.simulation.simulating import simulate_interference

    injected, plan, flags = summary.injected, record.plan, record.server.flags
    if injected is None or injected.duration_s <= 0:
        return None
    options = _with_flags(options, flags)
    budget = flags.get("max_num_batched_tokens")
    found = simulate_interference(
        plan.prompt_tokens,
        plan.streams,
        context=max(round(injected.context_tokens), 1),
        every=plan.every_s,
        first=plan.first_s,
        duration=max(injected.duration_s, plan.first_s),
        chunk=budget if isinstance(budget, int) else None,
        **options,
    )
    return found.injected
