"""What predictions are made of, where a file does not say: model, part, calibration and flags of the server."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.building import build_parameters, roofline_parameters
from costmodel.certainty import find_calibration, step_interval
from costmodel.deployment import Deployment
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.equations.work import Work
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES
from costmodel.simulation.options import ServerOptions
from costmodel.validation.measurements.types import Model


@dataclass(frozen=True)
class Asked:
    """What the user set.

    Attributes:
        gpu, model: where a file does not name them, or names others; None for those that it names.
        options: all else that a simulated server takes (:class:`~costmodel.simulation.options.ServerOptions`), what was set only.
        held_out: of measured steps only those that were held out.
    """

    gpu: str | None = None
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    held_out: bool = False

    def server(self, **known: Any) -> ServerOptions:
        """Return the options of a simulated server: what a file knows, and over it what the user set."""
        named = {name: value for name, value in (("gpu", self.gpu), ("model", self.model)) if value is not None}
        found = {name: value for name, value in known.items() if value is not None}
        return ServerOptions(**{**found, **self.options, **named})  # type: ignore[typeddict-item]


@dataclass(frozen=True)
class Predictor:
    """Step times of a deployment.

    Attributes:
        deployment: model and part.
        calibration: in use; None for datasheet rates.
        parameters: of the equations.
    """

    deployment: Deployment
    calibration: Calibration | None
    parameters: Parameters

    @property
    def rung(self) -> str:
        """Rung of the step times."""
        return "calibrated" if self.calibration else "roofline"

    def step(self, work: Work) -> tuple[float, tuple[float, float] | None]:
        """Return the time of a step, and its interval where there is one [s]."""
        seconds = float(step_times(self.parameters, work).total)
        if self.calibration is None:
            return seconds, None
        floor = float(step_times(roofline_parameters(self.deployment), work).total)
        return seconds, step_interval(self.calibration, self.parameters, work, floor)


def make_predictor(deployment: Deployment, asked: Asked, engine: str) -> Predictor:
    """Return the step times of a deployment: with the calibration given, else the one that is shipped, else at datasheet rates.

    Args:
        deployment: model and part.
        asked: what the user set.
        engine: of the measurement; an unknown one has no calibration.

    Raises:
        InputError: a calibration that cannot be used, or there is none where the calibrated rung is asked for.
    """
    rung = asked.options.get("rung")
    calibration = None
    if rung != "roofline":
        name = asked.options.get("engine") or (engine if engine in ENGINES else None)
        given = asked.options.get("calibration")
        calibration = find_calibration(given, deployment, name or "vllm") if given or name else None
        if calibration is None and rung == "calibrated":
            raise InputError(
                f"no calibration of {deployment.gpu}; give one (--calibration FILE) or take --rung roofline"
            )
    rates = CalibratedRates(calibration) if calibration else None
    return Predictor(deployment, calibration, build_parameters(deployment, rates))


@contextmanager
def model_folder(model: Model) -> Iterator[str]:
    """Yield a folder with the configuration of a model that is in no file, for as long as a simulation is made of it."""
    name = re.sub(r"[^\w.-]+", "-", model.name.rstrip("/").rpartition("/")[2]).strip(".-") or "model"
    with tempfile.TemporaryDirectory(prefix="costmodel-") as folder:
        path = Path(folder) / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps(model.config), encoding="utf-8")
        yield os.fspath(path)
