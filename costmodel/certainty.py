"""How sure a calibrated prediction is: intervals from held-out residuals, and warnings where it leaves what was fitted."""

from __future__ import annotations

from costmodel.documents import Intervals, Rung
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.rungs import Load, mixed_seconds, total_seconds
from costmodel.spike import longest, mixed_work


def calibration_warnings(rates: CalibratedRates | None, rungs: dict[str, Rung]) -> list[str]:
    """Return what the calibrated rung does not rest on data for."""
    if rates is None:
        return ["no calibration in use: the roofline rung is a floor, measured steps take longer"]
    found = []
    if rates.missing:
        found.append("not in the calibration, taken at datasheet rates: " + ", ".join(rates.missing))
    return found


def intervals(calibration: Calibration, rungs: dict[str, Parameters], load: Load) -> Intervals | None:
    """Return prediction intervals: every operator's residual interval, added up as if all erred the same way (never too narrow)."""
    levels = [item.residuals.level for item in calibration.operators.values() if item.residuals]
    if not levels:
        return None
    windows = rungs["calibrated"].windows
    chunks, _ = longest(load.candidates(), lambda chunks: mixed_seconds(rungs["calibrated"], load, chunks))
    works = {
        "decode_step_s": make_work(decodes=[Decodes(load.streams, load.context)], windows=windows),
        "prefill_s": make_work([Chunk(load.prompt)] * load.prompts, windows=windows),
        "spike_s": mixed_work(chunks, load.streams, load.context, windows),
    }
    bounds = {}
    for name, work in works.items():
        floor, low, high = total_seconds(step_operators(rungs["roofline"], work)), 0.0, 0.0
        for operator in step_operators(rungs["calibrated"], work):
            fitted = calibration.operators.get(operator.calibrated_by)
            residuals = fitted.residuals if fitted else None
            low += operator.seconds * (1 + (residuals.low if residuals else 0.0))
            high += operator.seconds * (1 + (residuals.high if residuals else 0.0))
        bounds[name] = (max(low, floor), max(high, floor))
    return Intervals(level=min(levels), **bounds)
