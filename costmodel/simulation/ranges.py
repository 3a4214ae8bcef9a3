"""Where the steps of a load leave what a calibration was fitted on, and how sure their times are."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.building import roofline_parameters
from costmodel.certainty import interval_level, range_warnings, step_interval
from costmodel.deployment import Deployment
from costmodel.encoder import with_encoder
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Work
from costmodel.rungs import Load, encoding_operators, longest_step, total_seconds

Shares = tuple[float, float]
"""Ends of an interval as shares of the predicted time."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The calibration that step times come from.

    Attributes:
        rates: of the deployment.
        parameters: that they gave.
        deployment: model and GPUs.
    """

    rates: CalibratedRates
    parameters: Parameters
    deployment: Deployment

    @property
    def level(self) -> float | None:
        """Share of the measurements that lie in the intervals; None where residuals are not known."""
        return interval_level(self.rates.calibration)

    def outside(self, load: Load) -> tuple[str, ...]:
        """Return a warning for each variable of the decode and the longest mixed step that is outside the fitted range."""
        return tuple(range_warnings(self.rates, self.parameters, self._steps(load)))

    def shares(self, load: Load) -> dict[str, Shares]:
        """Return the intervals of the decode and of the longest mixed step as shares of their times; none where residuals are not known."""
        if self.level is None:
            return {}
        roofline, found = with_encoder(roofline_parameters(self.deployment), self.deployment, load.images), {}
        images = {MIXED: load.encoder_work(longest_step(self.parameters, load)[0])} if load.images else {}
        for name, work in self._steps(load).items():
            floor, point = (
                total_seconds([*step_operators(each, work), *encoding_operators(each, images.get(name))])
                for each in (roofline, self.parameters)
            )
            interval = step_interval(self.rates.calibration, self.parameters, work, floor, images.get(name))
            if interval is not None:
                found[name] = interval[0] / point, interval[1] / point
        return found

    def _steps(self, load: Load) -> dict[str, Work]:
        steps = {DECODE: load.decode_work(self.parameters.windows)} if load.streams else {}
        if load.prompts and (load.budget is None or load.budget > load.streams):
            chunks, _ = longest_step(self.parameters, load)
            steps[MIXED] = load.mixed_work(chunks, self.parameters.windows)
        return steps


DECODE, MIXED = "decode", "longest mixed"
"""Steps that are looked at."""


def of_load(
    fitted: Fitted | None, streams: int, context: float, prompt: int, budget: int, prompts: int = 1, cached: int = 0
) -> tuple[str, ...]:
    """Return the warnings of :meth:`Fitted.outside` for sequences that decode and prompts among them; none without a calibration."""
    if fitted is None:
        return ()
    return fitted.outside(Load(prompt, prompts, min(streams, budget), round(context), budget, 1.0, cached))
