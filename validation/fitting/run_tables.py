"""The calibration of a recorded run from the layer tables that lie beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.datasets.rtx4090 import FILES, checksums, rtx4090
from costmodel.validation.datasets.served_runs import Served
from costmodel.validation.fitting.calibrate import layer_calibration
from costmodel.validation.fitting.rtx4090 import fit_layers
from costmodel.validation.fitting.simulated_run import deployment_of

TABLES: Final = ("attention.csv", "dense.csv", "per_sequence.csv")


def calibration_beside(folder: Path | str, served: Served) -> tuple[Calibration | None, str]:
    """Return the calibration from the layer tables in a run's folder, and what has to be said of it.

    Args:
        folder: of the run.
        served: what it was served by.

    Returns:
        None where the folder has no tables, where the shipped calibration is from these very tables, or where they cannot be fitted (of a
        mixture of experts, say), which the text tells.
    """
    where = Path(folder)
    if not all((where / name).is_file() for name in FILES):
        return None, ""
    deployment = deployment_of(served)
    found, shipped = checksums(where), shipped_calibration(deployment.gpu)
    if shipped is not None and all(shipped.provenance.files.get(name) == found[name] for name in TABLES):
        return None, ""
    try:
        fits = [fit for fit, _ in fit_layers(rtx4090(where), deployment)]
    except InputError as error:
        return None, f"the layer tables beside the run are not used: {error}"
    made = layer_calibration(fits, found, "python benchmarks/real_run.py --data FOLDER")
    model = deployment.architecture.name
    provenance = made.provenance.model_copy(
        update={"data": f"layer tables beside the run, measured with {served.engine}"}
    )
    return (
        made.model_copy(
            update={
                "name": f"{deployment.gpu} vllm, layers of {model}",
                "gpu": deployment.gpu,
                "provenance": provenance,
                "notes": (f"one model: shapes of {model} on this part, in forms that were found on an RTX 4090",),
            }
        ),
        "",
    )
