"""Figure: what uses the memory of one GPU, one stacked bar per number of GPUs or dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from costmodel.cli.figures import style
from costmodel.memory.documents import MemoryPlan

GIB: Final = 2**30
PARTS: Final = (
    ("weights", "weights_bytes", style.BLUE, ""),
    ("activations", "activation_bytes", style.ORANGE, "//"),
    ("outside PyTorch", "non_torch_bytes", style.BLACK, ""),
    ("CUDA graphs", "cuda_graph_bytes", style.PURPLE, "xx"),
    ("KV cache", "kv_available_bytes", style.GREEN, ".."),
)
"""Name, field, colour and hatch of each part, from the bottom."""
_LEAST_SHARE: Final = 0.045
"""Parts of less than this share of the axis carry no number."""


def draw_memory(plans: Sequence[tuple[str, MemoryPlan]], what: str, asked: int) -> Figure:
    """Draw stacked bars of the fullest GPU, with the memory that it has and that the engine may use as lines.

    Args:
        plans: label and plan of each bar.
        what: what differs between bars.
        asked: place of the bar that was asked about, which the title is about.
    """
    first = plans[0][1]
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, _title(plans, asked), _footer(plans[asked][1]))
        axes = figure.subplots()
        total, usable = first.memory.total_bytes / GIB, first.memory.usable_bytes / GIB
        tallest = max(total, *(sum(_sizes(plan)) for _, plan in plans))
        for place, (_, plan) in enumerate(plans):
            bottom = 0.0
            for (_, _, color, hatch), height in zip(PARTS, _sizes(plan), strict=True):
                axes.bar(place, height, 0.62, bottom, color=color, hatch=hatch, edgecolor="white", linewidth=0.8)
                if height > _LEAST_SHARE * tallest:
                    axes.text(
                        place, bottom + height / 2, f"{height:.1f}", ha="center", va="center", size=style.SMALL_SIZE,
                        color=style.INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                    )  # fmt: skip
                bottom += height
            fits = f"{plan.memory.max_concurrency:.1f} sequences" if plan.memory.fits else "does not fit"
            level = max(bottom, total) + 0.012 * tallest  # above the line of the GPU, which would cross it
            axes.text(place, level, fits, ha="center", va="bottom", size=style.SMALL_SIZE)
        axes.axhline(total, color=style.INK, linewidth=1.4)
        axes.axhline(usable, color=style.INK, linewidth=1.4, linestyle=style.DASHED)
        for level, text, side in ((total, f"GPU {total:.1f}", "bottom"), (usable, f"engine {usable:.1f}", "top")):
            axes.annotate(
                text,
                (1.005, level),
                xycoords=("axes fraction", "data"),
                va=side,
                size=style.FOOTER_SIZE,
                color=style.INK,
            )
        axes.set_xticks(range(len(plans)), [label for label, _ in plans])
        axes.get_xticklabels()[asked].set_fontweight("bold")
        axes.set_xlim(-0.6, len(plans) - 0.4)
        axes.set_ylim(0, 1.12 * tallest)
        axes.set_ylabel("memory of one GPU [GiB]")
        axes.set_xlabel(what)
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor="white") for _, _, color, hatch in PARTS]
        style.add_legend(figure, handles, [name for name, *_ in PARTS], len(PARTS))
        style.settle(figure)
    return figure


def _sizes(plan: MemoryPlan) -> list[float]:
    """Return the parts of the fullest GPU [GiB]; nothing for a cache that has no room."""
    return [max(getattr(plan.memory, field), 0.0) / GIB for _, field, _, _ in PARTS]


def _title(plans: Sequence[tuple[str, MemoryPlan]], asked: int) -> str:
    """Return what fits with what was asked about, and beside it the most that does, or the first where it does not fit."""
    label, plan = plans[asked]
    name, length, held = plan.model.name, plan.engine.max_model_len, plan.memory.max_concurrency
    fitting = [(label, each.memory.max_concurrency) for label, each in plans if each.memory.fits]
    if not fitting:
        return f"{name}: none of these leaves room for a sequence of {length:,} tokens"
    if not plan.memory.fits:
        other, most = fitting[0]
        return (
            f"{name}: a sequence of {length:,} tokens does not fit with {label}; with {other}, {most:.1f} fit at once"
        )
    title = f"{name}: with {label}, {held:.1f} sequences of {length:,} tokens fit at once"
    other, most = max(fitting, key=lambda each: each[1])
    return title if other == label else f"{title}; with {other}, {most:.1f}"


def _footer(plan: MemoryPlan) -> str:
    engine = plan.engine
    version = f" {engine.version}" if engine.version else ""
    return (
        f"{plan.gpu.name} · {engine.name}{version} · {engine.max_num_batched_tokens:,} tokens per step · "
        f"{engine.max_num_seqs:,} sequences · fraction {engine.memory_fraction:g} · KV {plan.kv_dtype} · {style.creator()}"
    )
