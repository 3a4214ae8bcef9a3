"""The figures of ``costmodel predict --plot``: computes what each needs and hands it to :mod:`costmodel.cli.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.building import build_parameters
from costmodel.calibrations import choose_calibration
from costmodel.cli.figures import draw_breakdown, draw_heights, draw_roofline, draw_timeline, save_figure
from costmodel.cli.text import plural
from costmodel.deployment import Deployment, deploy
from costmodel.documents import Prediction
from costmodel.encoder import make_images, with_encoder, with_states
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.errors import InputError
from costmodel.rungs import Load, longest_step, make_load, mixed_step_times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (8192, 4096, 2048, 1024, 512)
"""Token budgets of the figure of heights, beside one step."""
PROMPTS = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
"""Prompt lengths of the figure of heights [tokens]."""


def draw(
    figure: str, predictions: Sequence[Prediction], options: Sequence[dict[str, Any]], path: Path, force: bool
) -> None:
    """Draw one kind of figure for the predictions, and save it.

    Args:
        figure: ``timeline``, ``heights``, ``breakdown`` or ``roofline``; all but ``breakdown`` take a single prediction.
        predictions: documents.
        options: the arguments of :func:`costmodel.predict` that gave each.
        path, force: where to save, and whether to overwrite.

    Raises:
        InputError: several predictions for a figure that shows one, or a file that cannot be written.
    """
    if figure == "breakdown":
        save_figure(draw_breakdown(predictions), path, force)
        return
    if len(predictions) > 1:
        raise InputError(
            f"--figure {figure} shows one configuration, not {len(predictions)}; --figure breakdown takes several"
        )
    made = _one(figure, predictions[0], options[0])
    save_figure(made, path, force)


def _one(figure: str, prediction: Prediction, options: dict[str, Any]) -> Figure:
    names = ("model", "gpu", "tp", "pp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora")
    deployment = deploy(**{name: options[name] for name in names}, encoder=True)
    images = make_images(deployment, options["images"], options["image_size"])
    deployment = with_states(deployment, images)
    if figure == "roofline":
        return draw_roofline(prediction, deployment.hardware.peaks, deployment.hardware.bandwidth)
    calibration = choose_calibration(
        options["calibration"], deployment, options["engine"], options["assume_efficiency"]
    )
    rates = CalibratedRates(calibration) if calibration else None
    workload = ("prompt", "prompts", "streams", "context", "chunk", "every", "cached_prefix")
    load = make_load(deployment, **{name: options[name] for name in workload}, images=images)
    parameters = with_encoder(build_parameters(deployment, rates), deployment, images, rates)
    if figure == "timeline":
        return draw_timeline(prediction, mixed_step_times(parameters, load))
    return _heights(prediction, deployment, parameters, load)


def _heights(prediction: Prediction, deployment: Deployment, parameters: Parameters, load: Load) -> Figure:
    """Draw heights for one step and for token budgets that leave room beside the streams, down to the asked one."""
    limit = deployment.architecture.max_positions or PROMPTS[-1]
    shortest = max(load.cached, 0 if load.images is None else load.images.tokens)
    fitting = {length for length in PROMPTS if shortest < length <= max(limit, load.prompt)}
    prompts = sorted(fitting | {load.prompt})
    budgets = [budget for budget in BUDGETS if budget > load.streams]
    if load.budget is not None:  # the title compares one step with the lowest curve: the budget that was asked for
        budgets = [budget for budget in budgets if budget > load.budget] + [load.budget]
    curves = []
    for budget in (None, *budgets):
        loads = [replace(load, prompt=length, budget=budget) for length in prompts]
        label = "one step" if budget is None else str(budget)
        curves.append((label, [longest_step(parameters, changed)[1] for changed in loads]))
    from costmodel.cli.figures.style import rung_name, short_gpu

    parts = (prediction.model.name, short_gpu(prediction), rung_name(prediction), plural(load.streams, "stream"))
    subtitle = " · ".join(parts)
    return draw_heights(prompts, curves, (load.prompt, prediction.spike.height_s), subtitle=subtitle)
