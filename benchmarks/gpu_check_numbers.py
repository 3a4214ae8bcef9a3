"""A part that was measured with torch, beside its datasheet, its shipped calibration, and a fit to the steps themselves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import Deployment
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.profile import Frozen, GpuProfile
from costmodel.validation.backends.torch_probe import Rate
from costmodel.validation.fitting.measured import describe
from costmodel.validation.fitting.step_model import step_work
from costmodel.validation.measurements.types import Measurement, Purpose

Way = Literal["fit", "shipped", "floor"]
PURPOSES: Final[tuple[Purpose, ...]] = ("decode", "prefill", "chunk", "mixed")


class RateBeside(Frozen):
    """A measured rate beside the datasheet's.

    Attributes:
        what, detail: was measured, and with what sizes.
        measured: per second.
        datasheet: of the part's profile; None where it names none.
    """

    what: str
    detail: str
    measured: float
    datasheet: float | None

    @property
    def share(self) -> float | None:
        """Measured over datasheet."""
        return self.measured / self.datasheet if self.datasheet else None


class StepBeside(Frozen):
    """A measured kind of step beside its predictions.

    Attributes:
        what: in words.
        purpose: why it was measured.
        held_out: no fit has seen it.
        measured_s, spread_s: median of the repeats, and their median absolute deviation [s].
        predicted_s: by the fit to these steps, the shipped calibration, and the floor (datasheet rates) [s].
    """

    what: str
    purpose: Purpose
    held_out: bool
    measured_s: float
    spread_s: float
    predicted_s: dict[Way, float]

    @property
    def below_floor(self) -> bool:
        """It took less than the datasheet allows."""
        return self.measured_s < self.predicted_s["floor"]

    def error(self, way: Way) -> float:
        """Return predicted/measured − 1."""
        return self.predicted_s[way] / self.measured_s - 1


class Errors(Frozen):
    """How far one way of prediction is from the steps of one purpose.

    Attributes:
        purpose: of the steps, or ``all``.
        way: of prediction.
        count, held_out: kinds of steps, and those of them that were held out.
        median_absolute_error: of predicted/measured − 1.
        held_out_median_absolute_error: the same of the steps held out; None without any.
        bias: median of predicted/measured − 1.
        worst_error, worst: the largest, and the step that has it.
    """

    purpose: Purpose | Literal["all"]
    way: Way
    count: int
    held_out: int
    median_absolute_error: float
    held_out_median_absolute_error: float | None
    bias: float
    worst_error: float
    worst: str


def rates_beside(rates: Sequence[Rate], profile: GpuProfile | None) -> tuple[RateBeside, ...]:
    """Return measured rates beside those of a profile; None for a part without one."""
    return tuple(
        RateBeside(what=each.what, detail=each.detail, measured=each.value, datasheet=_datasheet(each, profile))
        for each in rates
    )


def _datasheet(rate: Rate, profile: GpuProfile | None) -> float | None:
    if profile is None:
        return None
    name = rate.what.rpartition(" ")[2]
    if rate.what.startswith("product in "):
        peak = {str(dtype): figure.value for dtype, figure in profile.peak_flops.items()}
        return peak.get(name)
    if rate.what == "host to device":
        return profile.link.bandwidth_per_direction.value if profile.link.kind == "pcie" else None
    return profile.memory_bandwidth.value


def steps_beside(
    measurement: Measurement, deployment: Deployment, calibrations: Mapping[Way, Calibration]
) -> tuple[StepBeside, ...]:
    """Return every kind of step of a measurement beside its predictions: the floor's, and those of each calibration.

    Args:
        measurement: of the part.
        deployment: that was measured, with the profile whose rates are the floor.
        calibrations: the fit's and the shipped one, as far as there are such.

    Raises:
        InputError: a calibration that cannot be used for this model.
    """
    floor = roofline_parameters(deployment)
    parameters: dict[Way, Parameters] = {"floor": floor}
    for way, calibration in calibrations.items():
        parameters[way] = build_parameters(deployment, CalibratedRates(calibration))
    found = []
    for step in measurement.steps:
        work = step_work(step, floor.windows)
        found.append(
            StepBeside(
                what=describe(step),
                purpose=step.purpose,
                held_out=step.held_out,
                measured_s=step.seconds,
                spread_s=step.spread,
                predicted_s={way: float(step_times(each, work).total) for way, each in parameters.items()},
            )
        )
    return tuple(found)


def errors_beside(steps: Sequence[StepBeside]) -> tuple[Errors, ...]:
    """Return how far each way of prediction is from the steps of every purpose, and from all."""
    if not steps:
        return ()
    groups: list[tuple[Purpose | Literal["all"], list[StepBeside]]] = [
        (purpose, [step for step in steps if step.purpose == purpose]) for purpose in PURPOSES
    ]
    groups.append(("all", list(steps)))
    ways: list[Way] = [way for way in ("fit", "shipped", "floor") if way in steps[0].predicted_s]
    return tuple(_errors(purpose, way, group) for purpose, group in groups if group for way in ways)


def _errors(purpose: Purpose | Literal["all"], way: Way, steps: Sequence[StepBeside]) -> Errors:
    worst = max(steps, key=lambda step: abs(step.error(way)))
    unseen = [abs(step.error(way)) for step in steps if step.held_out]
    return Errors(
        purpose=purpose,
        way=way,
        count=len(steps),
        held_out=len(unseen),
        median_absolute_error=statistics.median(abs(step.error(way)) for step in steps),
        held_out_median_absolute_error=statistics.median(unseen) if unseen else None,
        bias=statistics.median(step.error(way) for step in steps),
        worst_error=worst.error(way),
        worst=worst.what,
    )
