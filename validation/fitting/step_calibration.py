"""From a fit of measured steps to a calibration."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.catalog import gpu_names
from costmodel.validation.fitting.calibrate import residuals_of, rounded
from costmodel.validation.fitting.measured import StepFit
from costmodel.validation.fitting.step_model import form_of
from costmodel.validation.measurements.types import Measurement


def calibration_name(measurement: Measurement, fit: StepFit) -> str:
    """Return what the calibration of a measurement is called."""
    return f"{_part(fit)} {measurement.engine.name}, steps of {measurement.model.name}"


def step_calibration(measurement: Measurement, fit: StepFit, files: Mapping[str, str], command: str) -> Calibration:
    """Return the calibration of a machine, model and engine.

    Args:
        measurement: what was fitted.
        fit: of it.
        files: SHA-256 of its file, by name.
        command: what anyone can run to make it again.
    """
    engine, machine = measurement.engine, measurement.machine
    steps = sum(row.fitted for row in fit.rows)
    return Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": calibration_name(measurement, fit),
            "gpu": _part(fit),
            "engine": engine.name,
            "provenance": {
                "data": f"{steps} kinds of steps of {measurement.model.name}, measured on {measurement.date[:10]} with {engine.name} "
                f"{engine.version} on {machine.device}",
                "rows": steps,
                "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                "command": command,
                "versions": {**engine.versions, engine.name: engine.version}
                | {"llm-costmodel": importlib.metadata.version("llm-costmodel")},
                "files": dict(files),
            },
            "operators": _operators(fit),
            "whole_step": residuals_of(fit.whole_step),
            "notes": [
                f"fitted to whole steps of {measurement.model.name}: other models are an extrapolation, and single operators a guess",
                "elementwise kernels are in the efficiencies of the matrices",
                *fit.notes,
            ],
        }
    )


def _part(fit: StepFit) -> str:
    """Return by which name a calibration is found again: the canonical one, or what the user's own profile calls itself."""
    return fit.deployment.gpu if fit.deployment.gpu in gpu_names() else fit.deployment.profile.name


def _operators(fit: StepFit) -> dict[str, Any]:
    operators: dict[str, Any] = {
        "elementwise": {"form": form_of("elementwise"), "parameters": {"passes": {"value": 0.0}}}
    }
    for each in fit.chosen:
        operator, name = each.key
        form = form_of(operator)
        default, low, high = FORMS[form][name]
        if each.how == "default" and each.value == default:
            continue
        entry = operators.setdefault(operator, {"form": form, "parameters": {}})
        entry["parameters"][name] = {
            "value": rounded(each.value),
            **({"standard_error": rounded(each.error)} if each.error is not None else {}),
            "lower": low,
            **({"upper": high} if high != float("inf") else {}),
        }
    for operator in ("gemm", "overhead.graph"):  # without an entry they would count as left out
        operators.setdefault(operator, {"form": form_of(operator), "parameters": {}})
    for operator, entry in operators.items():
        entry["ranges"] = fit.ranges.get(operator.partition(".")[0], {})
    return operators
