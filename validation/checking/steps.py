"""Measured steps beside their predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import read_bytes
from costmodel.lines import MOST_BYTES
from costmodel.validation.checking.asking import Asked, make_predictor
from costmodel.validation.checking.documents import CheckedFile, Row, make_row
from costmodel.validation.fitting.measured import describe, kind_of, measured_deployment
from costmodel.validation.fitting.step_model import step_work
from costmodel.validation.measurements.types import Measurement

OWN = ("calibration", "rung", "engine", "assume_efficiency")
"""Options that choose the prediction of a step; all others are of a simulated server."""


def check_steps(path: Path, measurement: Measurement, asked: Asked) -> tuple[CheckedFile, Sequence[Row]]:
    """Return every kind of step of a measurement beside its prediction.

    Whether steps are inside their intervals is not told where those come from the same steps.

    Args:
        path: of the measurement.
        measurement: what is in it.
        asked: what the user set; their GPU goes before that of the file.

    Raises:
        InputError: no steps, a model of the user's, no profile of the part, or a calibration that cannot be used.
    """
    steps = [step for step in measurement.steps if step.held_out or not asked.held_out]
    if not steps:
        raise InputError(
            "no steps are held out"
            if measurement.steps
            else "the measurement has no steps; did it end before the first?"
        )
    if asked.model is not None:
        raise InputError("a measurement says which model it is of; leave out --model")
    others = [name for name in asked.options if name not in OWN]
    if others:
        raise InputError(f"a measurement says how its engine ran; leave out --{others[0].replace('_', '-')}")
    deployment = measured_deployment(measurement, asked.gpu)
    predictor = make_predictor(deployment, asked, measurement.engine.name)
    windows = predictor.parameters.windows
    rows = []
    for step in steps:
        predicted, interval = predictor.step(step_work(step, windows))
        rows.append(make_row(describe(step), kind_of(step), predicted, step.seconds, interval, step.held_out))
    notes = list(measurement.notes)
    calibration, known = predictor.calibration, any(row.interval_s is not None for row in rows)
    if calibration is not None and known and _made_of(calibration, path):
        rows = [row.model_copy(update={"inside_interval": None}) for row in rows]
        notes.append(
            f"the calibration was made of {path.name}, and its intervals of the steps held out there, so those say nothing about the "
            "intervals, and none is counted as inside; check a measurement of its own (another --out) for that"
        )
    if predictor.calibration is None:
        notes.append("no calibration in use: steps at datasheet rates, a floor; measured ones take longer")
    if measurement.clock == "cpu":
        notes.append("measured times are CPU time of the engine's process")
    file = CheckedFile(
        file=path.name,
        form=f"measurement of {len(steps)} kinds of steps",
        model=deployment.architecture.name,
        gpu=deployment.profile.name,
        engine=f"{measurement.engine.name} {measurement.engine.version}",
        rung=predictor.rung,
        calibration=predictor.calibration.name if predictor.calibration else None,
        notes=tuple(notes),
    )
    return file, rows


def _made_of(calibration: Calibration, path: Path) -> bool:
    """Tell whether a calibration was fitted to a file: by what is in it, or by its name, as a measurement may have gone on since."""
    files = calibration.provenance.files
    return (
        path.name in files or hashlib.sha256(read_bytes(path, "measurement", MOST_BYTES)).hexdigest() in files.values()
    )
