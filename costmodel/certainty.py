"""How sure a calibrated prediction is: intervals from held-out residuals, and warnings where it leaves what was fitted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.checks import choice, text
from costmodel.deployment import Deployment
from costmodel.documents import Intervals, Rung
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Work
from costmodel.hardware.calibration import Calibration, Residuals, read_calibration
from costmodel.hardware.catalog import gpu_names, resolve_gpu, title
from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.shipped import ENGINES, shipped_calibration, shipped_calibrations
from costmodel.rungs import Load, longest_step, total_seconds


@lru_cache(maxsize=64)
def _read_cached(path: Path, _stamp: float) -> Calibration:
    return read_calibration(path)


NO_CALIBRATION = "none"
"""What to give as a calibration to have none."""


def find_calibration(
    given: str | Path | Calibration | None, deployment: Deployment, engine: str = "vllm"
) -> Calibration | None:
    """Return the calibration to use.

    Args:
        given: a calibration, a file, ``"none"`` for no calibration, or None for the one that is shipped.
        deployment: what it is for.
        engine: whose calibration is taken where none is given.

    Raises:
        InputError: the file cannot be read, or the calibration is of another part.
    """
    choice(engine, ENGINES, "engine")
    if given is None:
        return shipped_calibration(deployment.gpu, engine)
    if isinstance(given, str) and given == NO_CALIBRATION:
        return None
    if isinstance(given, Calibration):
        calibration = given
    else:
        path = os.path.expanduser(text(given, "calibration"))
        if not path.strip():
            raise InputError("calibration is empty; name a file, or 'none' for no calibration")
        stamp = 0.0
        with suppress(OSError, ValueError):
            stamp = os.stat(path).st_mtime
        calibration = _read_cached(Path(path), stamp)
    if _is_for(calibration.gpu, deployment):
        return calibration
    try:
        part = resolve_gpu(calibration.gpu).name
    except InputError as error:
        raise InputError(f"calibration {shown(calibration.name)} is not for {deployment.gpu}: {error}") from None
    if part == deployment.gpu:
        return calibration.model_copy(update={"gpu": part})
    raise InputError(
        f"calibration {shown(calibration.name)} is for {part}, but the GPU is {deployment.gpu}; use --gpu {part}"
    )


def engine_of(calibration: Calibration | None, engine: str) -> str:
    """Return the engine that an answer is for: the calibration's, where there is one, else the one asked for."""
    return calibration.engine if calibration else engine


def calibration_notes(fitted: Calibration | None, engine: str) -> tuple[str, ...]:
    """Return what the calibration says of itself, and whose it is if not the engine's that was asked for."""
    if fitted is None:
        return ()
    whose = f"fitted to {fitted.engine}, not to {engine}; so is this answer"
    said = fitted.notes if fitted.engine == engine else (whose, *fitted.notes)
    return tuple(f"calibration {fitted.name}: {note}" for note in said)


def interval_level(calibration: Calibration) -> float | None:
    """Return the share of the measurements that lie in a calibration's intervals; None where it has no residuals."""
    return min(_levels(calibration), default=None)


def request_overheads(calibration: Calibration | None) -> tuple[float, float]:
    """Return the time of a request outside its steps [s], and the steps under way that its prompt waits for; (0, 0.5) if not fitted."""
    fitted = calibration.operators.get("request") if calibration else None
    return (fitted.number("per_request_s"), fitted.number("steps_waited")) if fitted else (0.0, 0.5)


def arrival_overheads(calibration: Calibration | None) -> tuple[float, float, float]:
    """Return what lies between a request being sent and the engine having it: a time [s], a time per prompt token [s], decode steps.

    Where a calibration has none for simulations, the time of a request outside its steps stands in.
    """
    fitted = calibration.operators.get("arrival") if calibration else None
    if fitted is None:
        return request_overheads(calibration)[0], 0.0, 0.0
    return fitted.number("per_request_s"), fitted.number("per_prompt_token_s"), fitted.number("steps")


def arrivals_fitted(calibration: Calibration | None) -> bool:
    """Return whether a calibration knows what lies between a request being sent and the engine having it: served requests were fitted."""
    return calibration is not None and not calibration.operators.keys().isdisjoint(("arrival", "request"))


def no_calibration(deployment: Deployment, engine: str) -> str:
    """Return what to say where the calibrated rung is asked for and there is no calibration."""
    shipped = shipped_calibrations()
    if engines := [of for gpu, of in shipped if gpu == deployment.gpu]:
        known = "one of those shipped for this part: " + ", ".join(f"--engine {of}" for of in engines)
    else:
        known = f"a part that has one for {engine}: " + ", ".join(gpu for gpu, of in shipped if of == engine)
    return f"no calibration of {deployment.gpu} for {engine} is in use; give one (--calibration FILE) or take {known}"


def _is_for(gpu: str, deployment: Deployment) -> bool:
    """Tell whether a calibration of ``gpu`` fits: the same part, or a profile of the user's own that carries its name."""
    if gpu in (deployment.gpu, deployment.profile.name):
        return True
    return gpu in gpu_names() and title(gpu) == deployment.profile.name


def calibration_warnings(rates: CalibratedRates, rungs: dict[str, Parameters], steps: Mapping[str, Work]) -> list[str]:
    """Return what the calibrated rung does not rest on data for: missing operators, and variables outside the fitted ranges."""
    return rate_warnings(rates) + range_warnings(rates, rungs["calibrated"], steps)


def range_warnings(rates: CalibratedRates, parameters: Parameters, steps: Mapping[str, Work]) -> list[str]:
    """Return for each variable of these steps that is outside the fitted range of an operator what it is, and the range."""
    outside: dict[str, list[str]] = {}
    for step, work in steps.items():
        for operator in step_operators(parameters, work):
            fitted = rates.calibration.operators.get(operator.calibrated_by)
            for variable, (low, high) in (fitted.ranges if fitted else {}).items():
                value = _size(operator, work, parameters)(variable)
                if not low <= value <= high:
                    shown = [f"{number:,.0f}" if number < 1e9 else f"{number:.3g}" for number in (value, low, high)]
                    what = f"{variable} = {shown[0]} in the {step} step, fitted on {shown[1]} to {shown[2]}"
                    outside.setdefault(what, []).append(operator.name)
    return [f"outside the calibration: {what} ({', '.join(names)})" for what, names in outside.items()]


def rate_warnings(rates: CalibratedRates) -> list[str]:
    """Return which of a deployment's rates were not fitted as such, whatever the workload: assumed, missing, borrowed."""
    found = list(rates.calibration.notes[:1]) if rates.calibration.assumed_from else []
    left_out = [name for name in rates.missing if name.startswith(("elementwise", "overhead"))]
    datasheet = [name for name in rates.missing if name not in left_out]
    if datasheet:
        found.append("not in the calibration, taken at datasheet rates: " + ", ".join(datasheet))
    if left_out:
        found.append("not in the calibration, left out, so that steps come out too short: " + ", ".join(left_out))
    if rates.borrowed:
        found.append("not in the calibration in their format or kind: " + "; ".join(rates.borrowed))
    return found


def _size(operator: OperatorTime[Any], work: Work, parameters: Parameters) -> Callable[[str], float]:
    """Return the size of an operator's work by the name of a range's variable."""

    def size(name: str) -> float:
        if name == "tokens":
            return float(work.rows if operator.group == "lm_head" else work.tokens)
        if name == "kv_tokens":
            read = work.prefill_kv if operator.name.startswith("prefill") else work.decode_kv
            return float(max(read.values(), default=0.0))
        if name == "flops":
            return float(operator.flops)
        messages = (transfer.count for transfer in parameters.transfers if transfer.name == operator.name)
        return float(operator.bytes / next(messages, 1))

    return size


def reported_encoding(parameters: Parameters, load: Load) -> dict[str, Work]:
    """Return the encoder's work in those of the reported steps that encode images."""
    if load.images is None:
        return {}
    chunks, _ = longest_step(parameters, load)
    found = {"prefill": load.prompts_encoder_work, "spike": load.encoder_work(chunks)}
    return {name: work for name, work in found.items() if work is not None}


def reported_steps(parameters: Parameters, load: Load) -> dict[str, Work]:
    """Return the work of the three steps that a prediction reports: decode, prefill, spike."""
    windows = parameters.windows
    chunks, _ = longest_step(parameters, load)
    return {
        "decode": load.decode_work(windows),
        "prefill": load.prefill_work(windows),
        "spike": load.mixed_work(chunks, windows),
    }


COVERED = 0.9
"""Share of a step that must come from operators with known residuals before an interval is given."""


def intervals(
    calibration: Calibration,
    rungs: dict[str, Parameters],
    steps: Mapping[str, Work],
    floor: Rung,
    encoding: Mapping[str, Work] | None = None,
) -> Intervals | None:
    """Return prediction intervals of steps, none of which begins below that of ``floor``, the roofline rung.

    Its longest step may be another chunk than the calibrated one.

    Kernels of one operator err together, different operators independently: their intervals are added within an operator, and in squares
    between operators. Whole steps err by what no kernel shows, so an interval is at least as wide as that of whole steps that were held
    out, where a calibration was fitted to such, or of the mean TPOT, which is made of decode and mixed steps, on end-to-end rows.

    None where operators without known residuals take a tenth of a step or more, and there are no end-to-end rows.
    """
    levels = _levels(calibration)
    if not levels:
        return None
    bounds = {}
    for name, work in steps.items():
        key = "decode_step_s" if name == "decode" else f"{name}_s"
        images = (encoding or {}).get(name)
        found = step_interval(calibration, rungs["calibrated"], work, getattr(floor, key), images)
        if found is None:
            return None
        bounds[key] = found
    return Intervals(level=min(levels), **bounds)


def _levels(calibration: Calibration) -> list[float]:
    """Return the levels of all residuals that a step's interval may come from."""
    known = [item.residuals for item in calibration.operators.values()] + [_whole(calibration)]
    return [residuals.level for residuals in known if residuals is not None]


def _whole(calibration: Calibration) -> Residuals | None:
    """Return the residuals of whole steps, or of the mean TPOT; None where the calibration has neither."""
    return calibration.whole_step or calibration.end_to_end.get("tpot")


def step_interval(
    calibration: Calibration, parameters: Parameters, work: Work, floor_s: float, images: Work | None = None
) -> tuple[float, float] | None:
    """Return the interval of one step [s], as in :func:`intervals`.

    Args:
        calibration: whose residuals.
        parameters: of the calibrated rung.
        work: of the step.
        floor_s: its time on the roofline rung.
        images: work of the encoder in the step.
    """
    whole = _whole(calibration)
    parts = [(parameters, work)]
    if images is not None and parameters.encoder is not None:
        parts.append((parameters.encoder, images))
    operators = [(item, of, done) for of, done in parts for item in step_operators(of, done)]
    point, covered = total_seconds([item for item, *_ in operators]), 0.0
    apart: dict[str, tuple[float, float]] = {}
    for operator, of, done in operators:
        fitted = calibration.operators.get(operator.calibrated_by)
        residuals = fitted.residuals_at(_size(operator, done, of)) if fitted else None
        if residuals is not None:
            covered += operator.seconds
            low, high = apart.get(operator.calibrated_by, (0.0, 0.0))
            apart[operator.calibrated_by] = (
                low + operator.seconds * residuals.low,
                high + operator.seconds * residuals.high,
            )
    if covered < COVERED * point and whole is None:
        return None
    below = math.hypot(*(min(low, 0.0) for low, _ in apart.values()))
    above = math.hypot(*(max(high, 0.0) for _, high in apart.values()))
    if whole is not None:
        below, above = max(below, -whole.low * point), max(above, whole.high * point)
    return min(max(point - below, floor_s), point), point + above
