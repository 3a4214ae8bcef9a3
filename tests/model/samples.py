"""A calibration that several tests of the model share. Its numbers are invented."""

from __future__ import annotations

from typing import Any

from tests.strategies import calibration_of


def form(name: str, **values: float) -> dict[str, Any]:
    """Return an operator of a calibration."""
    return {"form": name, "parameters": {key: {"value": value} for key, value in values.items()}}


CALIBRATION = calibration_of(
    {
        "gemm": {
            **form("smooth_roofline", compute_efficiency=0.8, bandwidth_efficiency=0.86, launch_s=4e-6, sharpness=6.0),
            "residuals": {"level": 0.9, "low": -0.1, "high": 0.12},
        },
        "overhead.graph": form("overhead", per_step_s=1e-4),
    }
)
