"""The figures of ``costmodel explain --plot``: one for each topic, and that of a request's way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from costmodel.explaining.documents import Explained, Explanations, RequestExplanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN_BY = {
    "long-context": ("explained_costs", "draw_long_context"),
    "batch-size": ("explained_costs", "draw_batch_size"),
    "quadratic": ("explained_costs", "draw_quadratic"),
    "prefix-cache": ("explained_costs", "draw_prefix_cache"),
    "decode-bound": ("explained_kernels", "draw_decode_bound"),
    "gqa": ("explained_kernels", "draw_gqa"),
    "kv-cache": ("explained_kernels", "draw_kv_cache"),
    "flash-attention": ("explained_kernels", "draw_flash_attention"),
    "speculation": ("explained_kernels", "draw_speculation"),
}
"""Topic → module of :mod:`costmodel.cli.figures` and function that draws it."""


def draw_topic(document: Explanations) -> Figure:
    """Draw the figure of a document's one topic, from what the document holds."""
    topic = document.topics[0]
    module, function = DRAWN_BY[topic.name]
    drawing = getattr(importlib.import_module(f"costmodel.cli.figures.{module}"), function)
    figure: Figure = drawing(topic, footer(document))
    return figure


def draw_way(document: RequestExplanation) -> Figure:
    """Draw a request's way."""
    from costmodel.cli.figures.way import draw_request

    return draw_request(document, footer(document))


def footer(document: Explained) -> str:
    """Return what the figure is about: model, GPU, rung, version."""
    from costmodel.cli.explain_report import load_of
    from costmodel.cli.figures.style import creator

    gpus = f"{document.gpus} × " if document.gpus > 1 else ""
    gpu = document.gpu.removeprefix("NVIDIA ").removeprefix("AMD ")
    rung = f"calibrated rung ({document.calibration})" if document.calibration else "roofline rung"
    load = ""
    if isinstance(document, Explanations):
        load = f"{load_of(document.topics[0], document)} · "
    return f"{document.model} · {gpus}{gpu} · {load}{rung} · {creator()}"
