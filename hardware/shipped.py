"""The calibrations that come with the package: ``calibrations/<gpu>-<engine>.toml`` beside this module."""

from __future__ import annotations

from functools import cache

from costmodel.hardware.calibration import Calibration, read_calibration
from costmodel.hardware.catalog import FOLDER


@cache
def shipped_calibration(gpu: str, engine: str = "vllm") -> Calibration | None:
    """Return the shipped calibration of a part (canonical name) and engine; None if there is none."""
    path = FOLDER / "calibrations" / f"{gpu}-{engine}.toml"
    return read_calibration(path) if path.is_file() else None
