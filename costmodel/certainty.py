"""How sure a calibrated prediction is: intervals from held-out residuals, and warnings where it leaves what was fitted."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.checks import text
from costmodel.deployment import Deployment
from costmodel.documents import Intervals
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Chunk, Decodes, Work, make_work
from costmodel.hardware.calibration import Calibration, read_calibration
from costmodel.hardware.errors import InputError
from costmodel.rungs import Load, mixed_seconds, total_seconds
from costmodel.spike import longest, mixed_work


@lru_cache(maxsize=64)
def _read_cached(path: Path, _stamp: float) -> Calibration:
    return read_calibration(path)


def find_calibration(given: str | Path | Calibration | None, deployment: Deployment) -> Calibration | None:
    """Return the calibration to use: as given, or read from a file.

    Raises:
        InputError: the file cannot be read, or the calibration is of another part.
    """
    if given is None or isinstance(given, Calibration):
        calibration = given
    else:
        path = os.path.expanduser(text(given, "calibration"))
        stamp = 0.0
        with suppress(OSError, ValueError):
            stamp = os.stat(path).st_mtime
        calibration = _read_cached(Path(path), stamp)
    if calibration is not None and calibration.gpu not in (deployment.gpu, deployment.profile.name):
        raise InputError(
            f"calibration {calibration.name!r} is for {calibration.gpu}, but the GPU is {deployment.gpu}; "
            f"use --gpu {calibration.gpu}"
        )
    return calibration


def calibration_warnings(rates: CalibratedRates | None, rungs: dict[str, Parameters], load: Load) -> list[str]:
    """Return what the calibrated rung does not rest on data for: missing operators, and variables outside the fitted ranges."""
    if rates is None:
        return ["no calibration in use: the roofline rung is a floor, measured steps take longer"]
    found = []
    if rates.missing:
        found.append("not in the calibration, taken at datasheet rates: " + ", ".join(rates.missing))
    for step, work in _works(rungs["calibrated"], load).items():
        for operator in step_operators(rungs["calibrated"], work):
            fitted = rates.calibration.operators.get(operator.calibrated_by)
            for variable, (low, high) in (fitted.ranges if fitted else {}).items():
                value = _variable(variable, operator, work)
                if not low <= value <= high:
                    found.append(
                        f"outside the calibration: {variable} of {operator.name} in the {step} step is {value:.4g}, "
                        f"fitted on {low:.4g} to {high:.4g}"
                    )
    return list(dict.fromkeys(found))


def _variable(name: str, operator: OperatorTime[Any], work: Work) -> float:
    if name == "tokens":
        return float(work.rows if operator.group == "lm_head" else work.tokens)
    if name == "kv_tokens":
        return float(max((work.prefill_kv if operator.name.startswith("prefill") else work.decode_kv).values()))
    return float(operator.flops if name == "flops" else operator.bytes)


def _works(parameters: Parameters, load: Load) -> dict[str, Work]:
    """Return the work of the three steps that a prediction reports."""
    windows = parameters.windows
    chunks, _ = longest(load.candidates(), lambda chunks: mixed_seconds(parameters, load, chunks))
    return {
        "decode": make_work(decodes=[Decodes(load.streams, load.context)], windows=windows),
        "prefill": make_work([Chunk(load.prompt)] * load.prompts, windows=windows),
        "spike": mixed_work(chunks, load.streams, load.context, windows),
    }


def intervals(calibration: Calibration, rungs: dict[str, Parameters], load: Load) -> Intervals | None:
    """Return prediction intervals: every operator's residual interval, added up as if all erred the same way (never too narrow)."""
    levels = [item.residuals.level for item in calibration.operators.values() if item.residuals]
    if not levels:
        return None
    bounds = {}
    for name, work in _works(rungs["calibrated"], load).items():
        floor, low, high = total_seconds(step_operators(rungs["roofline"], work)), 0.0, 0.0
        point = total_seconds(step_operators(rungs["calibrated"], work))
        for operator in step_operators(rungs["calibrated"], work):
            fitted = calibration.operators.get(operator.calibrated_by)
            residuals = fitted.residuals if fitted else None
            low += operator.seconds * (1 + (residuals.low if residuals else 0.0))
            high += operator.seconds * (1 + (residuals.high if residuals else 0.0))
        bounds[f"{name}_s" if name != "decode" else "decode_step_s"] = (min(max(low, floor), point), max(high, point))
    return Intervals(level=min(levels), **bounds)
