"""The shipped calibrations: one file per GPU part and engine in ``calibrations/``, each made again by the command that it names."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from costmodel.hardware.calibration import ENGINES, Calibration, read_calibration

__all__ = ["CALIBRATIONS", "ENGINES", "shipped_calibration", "shipped_calibrations"]

CALIBRATIONS: Final = Path(__file__).parent / "calibrations"
"""Where they are: ``<canonical GPU name>-<engine>.toml``."""


@cache
def shipped_calibration(gpu: str, engine: str = "vllm") -> Calibration | None:
    """Return the shipped calibration of a part and engine; None where nothing was measured.

    Args:
        gpu: canonical name of the part.
        engine: one of :data:`ENGINES`.
    """
    path = CALIBRATIONS / f"{gpu}-{engine}.toml"
    return read_calibration(path) if path.is_file() else None


def shipped_calibrations() -> tuple[tuple[str, str], ...]:
    """Return (GPU, engine) of every shipped calibration, sorted."""
    pairs = (path.stem.rpartition("-") for path in CALIBRATIONS.glob("*.toml"))
    return tuple(sorted((gpu, engine) for gpu, _, engine in pairs))
