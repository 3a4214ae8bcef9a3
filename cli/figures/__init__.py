"""The figures of ``--plot FILE``. Importing this package does not import Matplotlib; drawing or saving a figure does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costmodel.cli.figures.saving import check_target, save_figure

if TYPE_CHECKING:
    from costmodel.cli.figures.agreement import draw_agreement, draw_residuals
    from costmodel.cli.figures.breakdown import draw_breakdown
    from costmodel.cli.figures.distribution import draw_distribution
    from costmodel.cli.figures.heights import draw_heights
    from costmodel.cli.figures.itl import draw_itl
    from costmodel.cli.figures.ladder import draw_ladder
    from costmodel.cli.figures.load import draw_load
    from costmodel.cli.figures.measured import draw_measured
    from costmodel.cli.figures.memory import draw_memory
    from costmodel.cli.figures.pareto import draw_pareto
    from costmodel.cli.figures.planning import draw_budgets, draw_costs, draw_fleets
    from costmodel.cli.figures.roofline import draw_roofline
    from costmodel.cli.figures.timeline import draw_timeline
    from costmodel.cli.figures.tokens import draw_tokens

__all__ = [
    "check_target",
    "draw_agreement",
    "draw_breakdown",
    "draw_budgets",
    "draw_costs",
    "draw_distribution",
    "draw_fleets",
    "draw_heights",
    "draw_itl",
    "draw_ladder",
    "draw_load",
    "draw_measured",
    "draw_memory",
    "draw_pareto",
    "draw_residuals",
    "draw_roofline",
    "draw_timeline",
    "draw_tokens",
    "save_figure",
]

_MODULES = {
    "draw_agreement": "agreement",
    "draw_residuals": "agreement",
    "draw_breakdown": "breakdown",
    "draw_budgets": "planning",
    "draw_costs": "planning",
    "draw_distribution": "distribution",
    "draw_fleets": "planning",
    "draw_heights": "heights",
    "draw_itl": "itl",
    "draw_ladder": "ladder",
    "draw_load": "load",
    "draw_measured": "measured",
    "draw_memory": "memory",
    "draw_pareto": "pareto",
    "draw_roofline": "roofline",
    "draw_timeline": "timeline",
    "draw_tokens": "tokens",
}


def __getattr__(name: str) -> Any:
    """Import the module of a drawing function, and Matplotlib with it, on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
