"""The figures of ``costmodel plan memory --plot``: plans for several GPU counts or dtypes, stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.cli.figures import draw_memory, save_figure
from costmodel.hardware.errors import InputError
from costmodel.memory.documents import MemoryPlan
from costmodel.memory.planning import plan_memory

SIZES = (1, 2, 4, 8, 16)
"""Tensor-parallel sizes of the figure, as far as the model can be divided."""
DTYPES = ("bf16", "fp8", "int4")


def draw(figure: str, plan: MemoryPlan, asked: dict[str, Any], path: Path, force: bool) -> None:
    """Draw the memory of one GPU for several tensor-parallel sizes or weight dtypes, and save it.

    Args:
        figure: ``gpus`` or ``dtypes``.
        plan: what was asked for; its bar is always there.
        asked: the arguments of :func:`costmodel.plan_memory` that gave it.
        path, force: where to save, and whether to overwrite.
    """
    changes: list[tuple[str, dict[str, Any], bool]]
    if figure == "gpus":
        what, own = "tensor-parallel size", plan.tensor_parallel
        changes = [(f"TP {size}", {"tp": size}, size == own) for size in sorted({*SIZES, own})]
    else:
        what = "weight dtype"
        changes = [(name, {"dtype": name}, name == plan.dtype) for name in dict.fromkeys((*DTYPES, plan.dtype))]
    plans: list[tuple[str, MemoryPlan]] = []
    for label, change, asked_for in changes:
        try:
            plans.append((label, plan if asked_for else plan_memory(**(asked | change))))
        except InputError:
            continue  # the model cannot be divided so, or the part cannot compute in it
    place = next(place for place, (_, each) in enumerate(plans) if each is plan)
    save_figure(draw_memory(plans, what, place), path, force)
