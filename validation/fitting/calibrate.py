"""From fits to a calibration, and to its file."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Sequence

import tomli_w

from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.catalog import resolve_gpu
from costmodel.validation.fitting.holdout import LEVEL
from costmodel.validation.fitting.kernels import OperatorFit

DIGITS = 5
"""Significant digits kept of a fitted number: more than any of them is known to."""


def kernel_calibration(gpu: str, engine: str, fits: Sequence[OperatorFit], command: str) -> Calibration:
    """Return the calibration of one part and engine from fits to its kernel tables.

    Args:
        gpu: name of the part.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        fits: of its operators.
        command: what anyone can run to make it again.
    """
    name = resolve_gpu(gpu).name
    operators = {
        fit.operator: {
            "form": fit.form,
            "parameters": {
                parameter: {
                    "value": _rounded(value),
                    "standard_error": _error(fit, parameter),
                    "lower": FORMS[fit.form][parameter][1],
                    **_upper(FORMS[fit.form][parameter][2]),
                }
                for parameter, value in fit.result.values.items()
            },
            "residuals": {"level": LEVEL, "low": _rounded(fit.errors.low), "high": _rounded(fit.errors.high)},
            "ranges": fit.ranges,
        }
        for fit in fits
    }
    measured = ", ".join(sorted({f"{fit.engine or engine} {fit.version}" for fit in fits}))
    return Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": f"{name} {engine}, kernels",
            "gpu": name,
            "engine": engine,
            "provenance": {
                "data": f"kernel tables of aiconfigurator-core, measured with {measured}",
                "rows": sum(fit.rows_kept for fit in fits),
                "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                "command": command,
                "versions": {
                    name: importlib.metadata.version(name) for name in ("aiconfigurator-core", "llm-costmodel")
                },
            },
            "operators": operators,
            "notes": [
                "kernels only: elementwise kernels and the engine's overheads are not in it, so steps come out too short",
                "mixed steps are the sum of separately measured kernels; nobody has measured them together here",
            ],
        }
    )


def to_toml(calibration: Calibration) -> str:
    """Return the file of a calibration; :func:`costmodel.hardware.calibration.read_calibration` reads it back."""
    return tomli_w.dumps(
        calibration.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        | {"schema": calibration.schema_}
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _error(fit: OperatorFit, parameter: str) -> float | None:
    error = fit.result.standard_errors.get(parameter)
    return None if error is None else _rounded(error)


def _upper(bound: float) -> dict[str, float]:
    return {"upper": bound} if bound != float("inf") else {}
