"""Efficiencies for a part that nobody has measured: those of its nearest relative, on its own datasheet, and said so.

Efficiencies travel between parts of one generation because their kernels do: the same code on the same multiprocessors reaches about
the same share of the datasheet. How far they travel nobody knows, so an assumed calibration carries no residuals and gives no intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from costmodel.certainty import find_calibration
from costmodel.deployment import Deployment
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import gpu_names, load_gpu, title
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import GpuProfile
from costmodel.hardware.shipped import shipped_calibration, shipped_calibrations

GENERATIONS: Final = {
    "volta": 7.0,
    "turing": 7.5,
    "ampere": 8.0,
    "ada": 8.9,
    "hopper": 9.0,
    "blackwell": 10.0,
    "cdna2": 2.0,
    "cdna3": 3.0,
    "cdna4": 4.0,
}
"""Architectures in the order of their makers (NVIDIA: compute capability); only distances within one maker count."""

Lookup = Callable[[str], Calibration | None]
"""Canonical name of a part → its calibration, None if there is none."""


def distance(profile: GpuProfile, other: GpuProfile) -> tuple[float, float]:
    """Return how far two parts are apart: generations first, then |ln| of the ratios of bandwidth and of the 16-bit peak.

    The peak tells workstation parts with halved matrix units from their siblings: an RTX 6000 Ada is an L40S, not an RTX 4090.
    """
    generations = abs(_generation(profile) - _generation(other))
    bandwidth = abs(math.log(profile.memory_bandwidth.value / other.memory_bandwidth.value))
    return generations, bandwidth + abs(math.log(_peak(profile) / _peak(other)))


def nearest_relative(profile: GpuProfile, candidates: Iterable[str]) -> str | None:
    """Return the candidate (canonical names) of the same maker that is nearest to a part; None without any."""
    best: tuple[tuple[float, float], str] | None = None
    for name in candidates:
        other, _ = load_gpu(name)
        if other.vendor == profile.vendor and _generation(other):
            found = (distance(profile, other), name)
            best = found if best is None or found < best else best
    return best[1] if best and _generation(profile) else None


def choose_calibration(
    given: str | Path | Calibration | None,
    deployment: Deployment,
    engine: str = "vllm",
    assume_efficiency: bool = False,
) -> Calibration | None:
    """Return what :func:`~costmodel.certainty.find_calibration` finds, else, where that is asked for, an assumed calibration.

    None where there is nothing to assume either; :func:`uncalibrated` says so.

    Raises:
        InputError: the calibration given cannot be used, or one is given and another is to be assumed.
    """
    if given is not None and assume_efficiency:
        raise InputError("--calibration and --assume-efficiency do not go together; leave one of them out")
    found = find_calibration(given, deployment, engine)
    if found is None and assume_efficiency:
        relative = _relative(deployment, engine)
        fitted = shipped_calibration(relative, engine) if relative else None
        return transferred(fitted, deployment.gpu) if fitted else None
    return found


def uncalibrated(
    deployment: Deployment,
    engine: str,
    given: str | Path | Calibration | None = None,
    assume_efficiency: bool | None = None,
    *,
    loop: bool = False,
) -> str:
    """Return the warning of an answer without a calibration: what that means, why, and what to do about it.

    Args:
        deployment: what was predicted.
        engine: whose calibration was looked for.
        given: what was asked for; ``"none"`` for no calibration.
        assume_efficiency: whether a relative's efficiencies were asked for; None where they cannot be.
        loop: of a closed loop, whose mean times are made of such steps and are no floor themselves: with longer prefills fewer requests
            decode at a time.
    """
    begin = "no calibration in use: " + (
        "every step is at datasheet rates, measured ones take longer"
        if loop
        else "the roofline rung is a floor, measured steps take longer"
    )
    if given is not None:
        return f"{begin} (calibration none, as asked)"
    shipped, why = shipped_calibrations(), f"{begin}; nothing was measured on this part with {engine}"
    if engines := [of for gpu, of in shipped if gpu == deployment.gpu]:
        return f"{why}, but there is a calibration for " + ", ".join(f"{of} (--engine {of})" for of in engines)
    if siblings := [gpu for gpu in deployment.siblings if (gpu, engine) in shipped]:
        parts = ", ".join(f"{title(gpu)} (--gpu {gpu})" for gpu in siblings)
        return f"{why}; of the parts that the name may mean these have a calibration: {parts}"
    relative = _relative(deployment, engine)
    if relative is None:
        return f"{why}, nor on a relative whose efficiencies could be assumed"
    return (
        why if assume_efficiency is None else f"{why}; --assume-efficiency takes the efficiencies of {title(relative)}"
    )


def _relative(deployment: Deployment, engine: str) -> str | None:
    """Return the nearest relative that has a shipped calibration for the engine."""
    measured = (gpu for gpu, of in shipped_calibrations() if of == engine and gpu != deployment.gpu)
    return nearest_relative(deployment.profile, measured)


def assumed_calibration(profile: GpuProfile, gpu: str, lookup: Lookup | None = None) -> Calibration:
    """Return the part's own calibration, else the nearest relative's as its own: efficiencies and launch times, without residuals.

    Args:
        profile: of the part.
        gpu: its canonical name, or the path of the user's own profile.
        lookup: where calibrations come from; None for those that the package ships for vLLM.

    Raises:
        InputError: no part of this maker has a calibration.
    """
    lookup = lookup or shipped_calibration
    if (own := lookup(gpu)) is not None:
        return own
    known = {name: found for name in gpu_names() if name != gpu and (found := lookup(name)) is not None}
    relative = nearest_relative(profile, known)
    if relative is None:
        raise InputError(f"no calibration to assume for {profile.name}: no {profile.vendor} part with a calibration")
    return transferred(known[relative], gpu)


def transferred(calibration: Calibration, gpu: str) -> Calibration:
    """Return a calibration under the name of another part, its residuals dropped: they say nothing about that part."""
    operators = {
        key: fit.model_copy(update={"residuals": None, "regimes": ()}) for key, fit in calibration.operators.items()
    }
    note = (
        f"efficiencies assumed: those of {title(calibration.gpu)}, the nearest relative measured with {calibration.engine}; "
        f"nothing was measured on this part with {calibration.engine}"
    )
    return calibration.model_copy(
        update={
            "name": f"assumed from {calibration.name}",
            "gpu": gpu,
            "operators": operators,
            "end_to_end": {},
            "whole_step": None,
            "assumed_from": calibration.gpu,
            "notes": (note, *calibration.notes),
        }
    )


def _generation(profile: GpuProfile) -> float:
    return GENERATIONS.get(profile.architecture, 0.0)


def _peak(profile: GpuProfile) -> float:
    """Return the dense 16-bit peak [FLOP/s]."""
    return next(profile.peak_flops[dtype].value for dtype in profile.peak_flops if dtype in ("bf16", "fp16"))
