"""The configurations that every figure is drawn for."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from costmodel.building import build_parameters
from costmodel.certainty import find_calibration
from costmodel.cli.figures import draw_breakdown, draw_heights, draw_roofline, draw_timeline
from costmodel.deployment import Deployment, deploy
from costmodel.documents import Prediction
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.calibration import Calibration
from costmodel.prediction import predict
from costmodel.rungs import Load, mixed_step_times

PROMPTS = [500, 1000, 2000, 4000, 8000, 16000, 32000]
BUDGETS = [8192, 4096, 2048, 1024, 512]


def fitted(form: str, **parameters: float) -> dict[str, Any]:
    return {
        "form": form,
        "parameters": {name: {"value": value} for name, value in parameters.items()},
        "residuals": {"level": 0.8, "low": -0.1, "high": 0.1},
    }


CALIBRATION = Calibration.model_validate(
    {
        "schema": "costmodel.calibration/1",
        "name": "h100-example",
        "gpu": "h100-sxm",
        "engine": "vllm",
        "provenance": {"data": "invented", "rows": 1, "date": "2025-01-01", "command": "none at all"},
        "operators": {
            "gemm": fitted("smooth_roofline", compute_efficiency=0.72, bandwidth_efficiency=0.85, launch_s=3e-6),
            "prefill_attention": fitted("smooth_roofline", compute_efficiency=0.5),
            "decode_attention": fitted("smooth_roofline", bandwidth_efficiency=0.7),
            "elementwise": fitted("elementwise", passes=12.0, bandwidth_efficiency=0.7),
            "overhead.graph": fitted("overhead", per_layer_s=1e-5, per_step_s=4e-4),
            "overhead.eager": fitted("overhead", per_layer_s=3e-5, per_step_s=2e-3),
        },
    }
)

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "chunked": {"chunk": 512},
    "long": {"prompt": 100_000, "chunk": 2048},
    "gpt-oss": {"model": "gpt-oss-120b"},
    "deepseek": {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8},
    "70b": {"model": "Llama-3.1-70B", "gpu": "a100", "tp": 4},
    "tiny": {"prompt": 1},
    "several": {"prompts": 3, "prompt": 500, "streams": 1},
    "dense": {"prompt": 128_000},
    "calibrated": {"calibration": CALIBRATION},
    "shipped": {"calibration": None},
}
"""Without a calibration, on the roofline rung, unless they say otherwise."""


def options_of(name: str) -> dict[str, Any]:
    """Return what ``predict`` is called with."""
    return {"calibration": "none", **CONFIGS[name]}


class Case(NamedTuple):
    """A prediction and what its figures need besides."""

    prediction: Prediction
    steps: list[float]
    deployment: Deployment


@cache
def make_case(name: str) -> Case:
    options = options_of(name)
    prediction = predict(**options)
    deployment = deploy(**{key: options[key] for key in ("model", "gpu", "tp") if key in options})
    fitted = find_calibration(options["calibration"], deployment)
    rates = CalibratedRates(fitted) if fitted else None
    asked = prediction.workload
    load = Load(
        asked.prompt_tokens,
        asked.prompts,
        asked.streams,
        asked.context_tokens,
        asked.chunk_tokens,
        asked.every_s,
    )
    return Case(prediction, mixed_step_times(build_parameters(deployment, rates), load), deployment)


@cache
def heights(name: str) -> list[tuple[str, list[float]]]:
    options = {**options_of(name), "chunk": None}
    curves = [("one step", [predict(**{**options, "prompt": n}).spike.height_s for n in PROMPTS])]
    for budget in BUDGETS:
        heights = [predict(**{**options, "prompt": n, "chunk": budget}).spike.height_s for n in PROMPTS]
        curves.append((str(budget), heights))
    return curves


@cache
def draw(kind: str, name: str) -> Figure:
    """Draw one figure; they are only looked at or saved, so that tests may share them."""
    case = make_case(name)
    if kind == "timeline":
        return draw_timeline(case.prediction, case.steps)
    if kind == "breakdown":
        return draw_breakdown([case.prediction])
    if kind == "roofline":
        hardware = case.deployment.hardware
        return draw_roofline(case.prediction, hardware.peaks, hardware.bandwidth)
    load = case.prediction.workload
    mark = (load.prompt_tokens, case.prediction.spike.height_s)
    return draw_heights(PROMPTS, heights(name), mark if mark[0] in PROMPTS else None, 0.05, case.prediction.model.name)


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    """The prediction of a configuration, by name."""
    return make_case


@pytest.fixture(scope="session")
def drawn() -> Callable[[str, str], Figure]:
    """A figure by kind and configuration."""
    return draw


@pytest.fixture(scope="session")
def texts() -> Callable[[Figure], list[Text]]:
    """All texts of a figure that can be seen."""
    return lambda figure: list(_texts(figure))


def _texts(figure: Figure) -> Iterator[Text]:
    for artist in figure.findobj(Text):
        if artist.get_visible() and artist.get_text().strip():
            yield artist


@pytest.fixture(scope="session")
def collisions(texts: Callable[[Figure], list[Text]]) -> Callable[[Figure], list[str]]:
    """What is wrong with the texts of a figure: pairs that overlap, and texts that leave the page."""

    def find(figure: Figure) -> list[str]:
        figure.draw_without_rendering()
        page, shown = figure.bbox, []
        for text in texts(figure):
            box = text.get_window_extent()
            if _is_tick_outside(text):
                continue
            shown.append((text, box))
        outside = [
            f"{text.get_text()!r} leaves the page"
            for text, box in shown
            if box.x0 < page.x0 or box.y0 < page.y0 or box.x1 > page.x1 or box.y1 > page.y1
        ]
        level = [item for item in shown if item[0].get_rotation() in (0.0, 90.0)]
        return outside + [
            f"{one.get_text()!r} overlaps {other.get_text()!r}"
            for (one, a), (other, b) in combinations(level, 2)
            if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
        ]

    return find


def _is_tick_outside(text: Text) -> bool:
    """Whether a text labels a tick beyond the end of its axis, which is not drawn."""
    axes = text.axes
    if axes is None:
        return False
    for labels, limits, index in (
        (axes.get_xticklabels(), axes.get_xlim(), 0),
        (axes.get_yticklabels(), axes.get_ylim(), 1),
    ):
        if text in labels and not min(limits) <= text.get_position()[index] <= max(limits):
            return True
    return False
