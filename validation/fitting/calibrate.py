"""From fits to a calibration, and to its file."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.catalog import resolve_gpu
from costmodel.validation.datasets.rtx4090 import GPU, UPSTREAM
from costmodel.validation.fitting.closed_loops import FORM_OF, OVERHEADS
from costmodel.validation.fitting.engines import EngineFit
from costmodel.validation.fitting.holdout import LEVEL, Errors
from costmodel.validation.fitting.kernels import OperatorFit

DIGITS = 5
"""Significant digits kept of a fitted number: more than any of them is known to."""
PCIE = "all-reduces over PCIe are those of one host; where GPUs hang on PCIe otherwise, they may take a multiple or a fraction"


def kernel_calibration(gpu: str, engine: str, fits: Sequence[OperatorFit], command: str) -> Calibration:
    """Return the calibration of one part and engine from fits to its kernel tables.

    Args:
        gpu: name of the part.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        fits: of its operators.
        command: what anyone can run to make it again.
    """
    name = resolve_gpu(gpu).name
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
            "operators": _operators(fits),
            "notes": [
                "kernels only: elementwise kernels and the engine's overheads are not in it, so steps come out too short",
                "mixed steps are the sum of separately measured kernels; nobody has measured them together here",
            ],
        }
    )


def layer_calibration(fits: Sequence[OperatorFit], files: Mapping[str, str], command: str) -> Calibration:
    """Return the calibration of the RTX 4090 from fits to its layer tables and served run.

    Args:
        fits: of its operators.
        files: SHA-256 of each file by its name.
        command: what anyone can run to make it again.
    """
    return Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": f"{GPU} vllm, layers of Llama-3.1-8B",
            "gpu": GPU,
            "engine": "vllm",
            "provenance": {
                "data": f"LLMServingSim ({UPSTREAM}), measured with {fits[0].version}",
                "rows": sum(fit.rows_kept for fit in fits),
                "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                "command": command,
                "versions": {"llm-costmodel": importlib.metadata.version("llm-costmodel")},
                "files": dict(files),
            },
            "operators": _operators(fits),
            "notes": [
                "one model: shapes of Llama-3.1-8B in bf16 on one card; other models are an extrapolation of the same forms",
                "mixed steps were measured; tiles of 64 query rows are the kernel's and were set, not fitted",
                "the overhead is that of decode steps in CUDA graphs; steps with prefill, whose own cannot be told from zero, "
                "take the same",
            ],
        }
    )


def _operators(fits: Sequence[OperatorFit]) -> dict[str, Any]:
    """Return the operators of a calibration. Errors of an overhead are those of whole steps, so it has no residuals of its own."""
    return {
        fit.operator: {
            "form": fit.form,
            "parameters": {
                parameter: {
                    "value": rounded(value),
                    "standard_error": _error(fit, parameter),
                    "lower": FORMS[fit.form][parameter][1],
                    **_upper(FORMS[fit.form][parameter][2]),
                }
                for parameter, value in fit.result.values.items()
            },
            "residuals": None if fit.form == "overhead" else residuals_of(fit.errors),
            "regimes": []
            if fit.form == "overhead"
            else [{"up_to": edge, "residuals": residuals_of(errors)} for edge, errors in fit.by_size],
            "ranges": fit.ranges,
        }
        for fit in fits
    }


def engine_calibration(
    kernels: Calibration, fit: EngineFit, residuals: Mapping[str, Errors], gpus: Sequence[str], command: str
) -> Calibration:
    """Add an engine's overheads to the kernels of a part.

    Args:
        kernels: calibration of the part from its kernel tables.
        fit: overheads of the engine.
        residuals: errors of ``ttft`` and ``tpot`` on end-to-end rows that were held out.
        gpus: parts whose rows these are.
        command: what anyone can run to make it again.
    """
    others = f"on {', '.join(sorted(gpus))}"
    whose = (
        "on this part"
        if tuple(gpus) == (kernels.gpu,)
        else others
        if kernels.gpu in gpus
        else f"{others}, none on this part"
    )
    operators: dict[str, dict[str, Any]] = {}
    for (operator, name), value in fit.values.items():
        if operator in FORM_OF:
            entry = operators.setdefault(operator, {"form": FORM_OF[operator], "parameters": {}})
            entry["parameters"][name] = {
                "value": rounded(value),
                "standard_error": rounded(fit.standard_errors[operator, name]),
                "lower": 0.0,
                "upper": OVERHEADS[operator, name],
            }
    dumped = kernels.model_dump(by_alias=True)
    provenance = dumped["provenance"]
    return Calibration.model_validate(
        dumped
        | {
            "name": f"{kernels.gpu} {kernels.engine}",
            "operators": dumped["operators"] | operators,
            "end_to_end": {name: residuals_of(errors) for name, errors in residuals.items()},
            "provenance": provenance
            | {
                "data": f"{provenance['data']}; its {fit.rows} end-to-end rows with {kernels.engine} for the overheads",
                "command": command,
            },
            "notes": [
                "mixed steps are the sum of separately measured kernels and a fitted overhead; nobody has measured them one by one here",
                f"overheads are those of {kernels.engine} on every part with end-to-end rows; their errors were measured {whose}",
                *([PCIE] if dumped["operators"].get("all_reduce", {}).get("form") == "link_ring" else []),
            ],
        }
    )


def to_toml(calibration: Calibration) -> str:
    """Return the file of a calibration; :func:`costmodel.hardware.calibration.read_calibration` reads it back."""
    return tomli_w.dumps(
        calibration.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        | {"schema": calibration.schema_}
    )


def residuals_of(errors: Errors) -> dict[str, float]:
    """Return the interval of residuals as a calibration has it."""
    return {"level": LEVEL, "low": rounded(errors.low), "high": rounded(errors.high)}


def rounded(value: float) -> float:
    """Return a fitted number with :data:`DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _error(fit: OperatorFit, parameter: str) -> float | None:
    error = fit.result.standard_errors.get(parameter)
    return None if error is None else rounded(error)


def _upper(bound: float) -> dict[str, float]:
    return {"upper": bound} if bound != float("inf") else {}
