"""Which 1 % change helps most: elasticities from the exact derivative of the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy

from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.functions import HELPERS


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How a time follows one of its symbols: 1 % more of it changes the time by ``value`` %."""

    symbol: Any
    value: float


def elasticities(formula: Formula) -> list[Elasticity]:
    """Return x/T·∂T/∂x for every symbol of a formula, the strongest first.

    Where an operator sits exactly on the corner of its roofline, the two one-sided derivatives are averaged.
    """
    arguments = formula.arguments
    numbers = [float(formula.values[item]) for item in arguments]
    # The number of chunks before the longest one does not change with a small change of anything.
    expression = formula.expression.replace(sympy.floor, lambda inner: sympy.Float(math.floor(_number(inner, formula))))
    total = formula.evaluate()
    found = []
    for item, number in zip(arguments, numbers, strict=True):
        derivative = sympy.lambdify(arguments, sympy.diff(expression, item), modules=[HELPERS, "math"])
        found.append(Elasticity(item, float(derivative(*numbers)) * number / total))
    return sorted(found, key=lambda elasticity: (-abs(elasticity.value), str(elasticity.symbol)))


def _number(expression: Any, formula: Formula) -> float:
    return float(expression.xreplace({item: sympy.Float(value) for item, value in formula.values.items()}))
