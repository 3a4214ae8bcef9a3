"""What is needed to fit one operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from costmodel.validation.datasets.rules import Rule
from costmodel.validation.fitting.least_squares import Array
from costmodel.validation.fitting.models import KernelModel


@dataclass(frozen=True, slots=True)
class Task:
    """The table, its rules, the model for it, its columns by the model's names, and which of its rows are like a server's."""

    model: Callable[[Any], KernelModel]
    read: Callable[[], Any]
    rules: tuple[Rule[Any], ...]
    data: Callable[[Any], dict[str, Array]]
    groups: tuple[str, ...]
    ranges: Callable[[Any], dict[str, Array]]
    served: Callable[[Any], Any] | None = None
    kinds: Callable[[Any], Array] | None = None
    """Kinds of rows that err each in its own way: no interval is narrower than that of one of them."""


def same(model: KernelModel, _table: Any) -> KernelModel:
    """Return the model whatever was measured."""
    return model
