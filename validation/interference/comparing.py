"""The experiment as the equations have it, beside what was measured: the decode step of the baseline, the spike of the injections, and
the gaps of the run with injections as the simulator has them."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from costmodel.documents import Prediction
from costmodel.hardware.errors import InputError
from costmodel.prediction import predict
from costmodel.simulation.results import Result
from costmodel.validation.interference.documents import Compared, Interference
from costmodel.validation.interference.flags import simulation_options
from costmodel.validation.interference.records import Record
from costmodel.validation.interference.summary import context_at_start, starved


class Compare(NamedTuple):
    """What the equations say of the experiment.

    Attributes:
        rows: predicted beside measured.
        about: GPU, model, rung and calibration.
        decode, spike: the predictions that they are from, at the mean context of the baseline and of the injected run.
        simulated: the run with injections, as it would have been; None if there was none, or it cannot be simulated.
        warnings: theirs.
    """

    rows: tuple[Compared, ...]
    about: str
    decode: Prediction
    spike: Prediction
    simulated: Result | None
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
    if (text := starved(record)) is not None:
        raise InputError(text)
    plan, flags = record.plan, record.server.flags
    options = _with_flags(options, flags)
    prompt = prompt_of(record, summary)
    budget = flags.get("max_num_batched_tokens")
    guessed = summary.one_step.verdict == "no" and not isinstance(budget, int)
    chunk = budget if isinstance(budget, int) and budget < prompt + plan.streams else None
    common = {"prompt": prompt, "streams": plan.streams, "every": plan.every_s, "chunk": chunk, **options}
    injected = summary.injected or summary.baseline
    decode = predict(**common, context=max(round(summary.baseline.context_tokens), 1))
    spike = predict(**common, context=max(round(injected.context_tokens), 1))
    rows = [_row("decode step", decode.best.decode_step_s, summary.decode_step_s, decode, "decode_step_s")]
    if summary.spike_s is not None and not guessed:
        rows.append(_row("spike", spike.spike.height_s, summary.spike_s, spike, "spike_s"))
    about = f"{decode.model.name} on {decode.gpu.count} × {decode.gpu.name}, {decode.headline} rung"
    if decode.headline == "calibrated" and decode.calibration:
        about += f" ({decode.calibration})"
    warnings = [*decode.warnings, *spike.warnings]
    simulated = None
    if guessed:
        warnings.append(
            "prompts went through in several steps, and the server's token budget is not known: no spike is predicted; tell it with --chunk"
        )
    else:
        try:
            simulated = simulate(record, summary, **options)
        except InputError as error:
            warnings.append(f"not simulated: {error}")
    return Compare(tuple(rows), about, decode, spike, simulated, tuple(dict.fromkeys(warnings)))


def prompt_of(record: Record, summary: Interference) -> int:
    """Return how long the injected prompts were, by the server's own count where it tells [tokens]."""
    seen = [each.prompt_tokens for each in summary.injections if each.prompt_tokens]
    return round(statistics.median(seen)) if seen else record.plan.prompt_tokens


def _with_flags(options: dict[str, Any], flags: dict[str, str | int | float | bool | None]) -> dict[str, Any]:
    """Return the options that were given, and for others what the server's flags say: dtypes and tensor-parallel size."""
    found = {name: value for name, value in options.items() if value is not None}
    if (kv := simulation_options(flags).get("kv_dtype")) is not None:
        found.setdefault("kv_dtype", kv)
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
    """Simulate the run with injections on the server that its flags describe; None if nothing was injected.

    Contexts grow as they did, from those at the run's beginning on. Where streams began new answers meanwhile, the mean context is held.

    Args:
        record, summary: of the experiment.
        options: as of :func:`compare`.

    Raises:
        InputError: as :func:`compare`.
    """
    from costmodel.simulation.interfering import simulate_interference

    run, injected, plan = record.injected, summary.injected, record.plan
    if run is None or injected is None or min(injected.duration_s, plan.duration_s) <= plan.first_s:
        return None
    known = simulation_options(record.server.flags)
    grow = injected.restarts == 0
    found = simulate_interference(
        prompt_of(record, summary),
        plan.streams,
        context=max(round(context_at_start(run, plan) if grow else injected.context_tokens), 1),
        every=plan.every_s,
        first=plan.first_s,
        duration=min(injected.duration_s, plan.duration_s),
        grow=grow,
        **{**known, **_with_flags(options, record.server.flags)},
    )
    return found.injected
