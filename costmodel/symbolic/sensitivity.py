"""Which 1 % change helps most: elasticities from the exact derivative of the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

    A chunked spike is differentiated in the case that makes the longest step, with the number of chunks before it as it is; so are
    whole tiles and the local chunk that a query is in. Where an operator sits exactly on the corner of its roofline, the two one-sided
    derivatives are averaged.
    """
    longest = max((replace(formula, cases=(case,)) for case in formula.cases), key=Formula.evaluate)
    expression = longest.expression.replace(sympy.floor, lambda inner: sympy.Float(math.floor(_number(inner, formula))))
    expression = expression.replace(sympy.ceiling, lambda inner: sympy.Float(math.ceil(_number(inner, formula))))
    arguments = formula.arguments
    numbers = [float(formula.values[item]) for item in arguments]
    slopes = [sympy.diff(expression, item) for item in arguments]
    total, *values = sympy.lambdify(arguments, [expression, *slopes], modules=[HELPERS, "math"], cse=True)(*numbers)
    found = [
        Elasticity(item, float(slope) * number / total)
        for item, number, slope in zip(arguments, numbers, values, strict=True)
    ]
    return sorted(found, key=lambda elasticity: (-abs(elasticity.value), str(elasticity.symbol)))


def _number(expression: Any, formula: Formula) -> float:
    return float(expression.xreplace({item: sympy.Float(value) for item, value in formula.values.items()}))
