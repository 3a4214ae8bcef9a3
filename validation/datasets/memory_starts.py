"""What vLLM said of its memory at start-up, by other people: figures and flags, each with its source.

A start-up with a pipeline is described by its first stage. ``fitted`` names the columns from which a constant of
:mod:`costmodel.memory` was taken; no constant was taken from the others. Where the source gives an error
instead of a figure (accuracy report), the figure was worked out from it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from costmodel.deployment import Deployment, deploy
from costmodel.engine import GIB
from costmodel.memory.engines import EngineSettings, default_settings, stage_budget
from costmodel.memory.rules import vllm_rules

PLANNER = "https://github.com/llm-d-incubation/llm-d-planner/blob/main/"
VLLM = "https://github.com/vllm-project/vllm/"
SOURCES = {
    "planner": PLANNER + "docs/empirical-vllm-memory-results.md",
    "versions": PLANNER + "accuracy/accuracy_report.md",
    "accuracy": PLANNER + "docs/accuracy/vllm-v0.19.0-accuracy-report.md",
    "issue10517": VLLM + "issues/10517",
    "pull10511": VLLM + "pull/10511",
    "issue11251": VLLM + "issues/11251",
    "issue21348": VLLM + "issues/21348",
    "issue27508": VLLM + "issues/27508",
    "rtx4090": "https://github.com/casys-kaist/LLMServingSim",
}
"""Where each figure was read; the planner's rows are vLLM in containers on an H100 of 79.18 GiB, default budget and sequences."""
COLUMNS = ("weights", "activation", "non_torch", "available")


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """One start-up: what was asked, and what the engine said [B]; None where it is not known."""

    source: str
    version: str
    gpu: str
    model: str
    dtype: str | None
    tp: int
    pp: int
    utilisation: float
    tokens: int
    sequences: int
    figures: dict[str, float | None]
    fitted: tuple[str, ...]

    def deployment(self) -> Deployment:
        """Return model and part."""
        return deploy(self.model, self.gpu, tp=self.tp, pp=self.pp, dtype=self.dtype)

    def settings(self, deployment: Deployment) -> EngineSettings:
        """Return the flags of the engine."""
        settings = default_settings(deployment, "vllm", vllm_rules(self.version))
        return replace(settings, token_budget=self.tokens, sequences=self.sequences, fraction=self.utilisation)

    def predicted(self) -> dict[str, float]:
        """Return what the model says of the first stage [B]."""
        deployment = self.deployment()
        budget = stage_budget(deployment, 0, self.settings(deployment))
        return {
            "weights": budget.weights,
            "activation": budget.activations,
            "non_torch": budget.non_torch,
            "available": budget.available,
            "usable": budget.usable,
        }


@lru_cache(maxsize=1)
def measured_starts() -> tuple[MeasuredStart, ...]:
    """Return all start-ups, in the order of the file."""
    text = files("costmodel.validation.datasets").joinpath("memory_starts.csv").read_text(encoding="utf-8")
    return tuple(_start(row) for row in csv.DictReader(text.splitlines()))


def errors(column: str, held_out: bool = True) -> Iterator[tuple[MeasuredStart, float, float, float]]:
    """Yield every start-up that tells ``column``, with measured, predicted and usable bytes.

    Args:
        column: of :data:`COLUMNS`.
        held_out: leave out those from which a constant was taken.
    """
    for start in measured_starts():
        measured = start.figures[column]
        if measured is not None and not (held_out and column in start.fitted):
            predicted = start.predicted()
            yield start, measured, predicted[column], predicted["usable"]


def _start(row: dict[str, str]) -> MeasuredStart:
    figures = {name: float(row[f"{name}_gib"]) * GIB if row[f"{name}_gib"] else None for name in COLUMNS}
    return MeasuredStart(
        source=row["source"],
        version=row["version"],
        gpu=row["gpu"],
        model=row["model"],
        dtype=row["dtype"] or None,
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        utilisation=float(row["utilisation"]),
        tokens=int(row["tokens"]),
        sequences=int(row["sequences"]),
        figures=figures,
        fitted=tuple(row["fitted"].split()),
    )
