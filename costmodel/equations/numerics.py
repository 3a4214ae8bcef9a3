"""Functions that must work alike on floats, float64 arrays, SymPy expressions and recorded values. Everything else in the equations is
+ − × ÷ and powers.

Neither NumPy nor SymPy is imported for floats: whoever passes an array or a symbol has imported the library already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from costmodel.equations.recording import (
    Recorded,
    recorded_ceil,
    recorded_larger,
    recorded_smaller,
    recorded_smooth_max,
)

Value = Any
"""A float, a float64 array, a SymPy expression, or a recorded value. Equations are written once and take any of them."""

_NUMBERS = (float, int)


def is_symbolic(*values: Value) -> bool:
    """Return True if any value is a SymPy expression (and not a plain number)."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and any(isinstance(value, sympy.Basic) for value in values)


def is_zero(value: Value) -> bool:
    """Return True for the plain number zero: a term that can be left out. Arrays and symbols are never known to be."""
    return isinstance(value, _NUMBERS) and value == 0


def total(terms: Iterable[Value]) -> Value:
    """Return the sum of ``terms``, 0 if there are none; unlike ``sum``, it adds no zero to arrays and symbols."""
    added: Value = None
    for term in terms:
        added = term if added is None else added + term
    return 0 if added is None else added


def maximum(a: Value, b: Value) -> Value:
    """Return the larger of ``a`` and ``b``, element by element for arrays, as ``Max`` for symbols."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return a if a >= b else b
    if isinstance(a, Recorded) or isinstance(b, Recorded):
        return recorded_larger(a, b)
    if is_symbolic(a, b):
        return sys.modules["sympy"].Max(a, b)
    return sys.modules["numpy"].maximum(a, b)


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller of ``a`` and ``b``, element by element for arrays, as ``Min`` for symbols."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return a if a <= b else b
    if isinstance(a, Recorded) or isinstance(b, Recorded):
        return recorded_smaller(a, b)
    if is_symbolic(a, b):
        return sys.modules["sympy"].Min(a, b)
    return sys.modules["numpy"].minimum(a, b)


def ceil(a: Value) -> Value:
    """Return the smallest integer ≥ ``a`` (as a float for floats and arrays)."""
    if isinstance(a, _NUMBERS):
        return float(math.ceil(a))
    if isinstance(a, Recorded):
        return recorded_ceil(a)
    if is_symbolic(a):
        return sys.modules["sympy"].ceiling(a)
    return sys.modules["numpy"].ceil(a)


def floor(a: Value) -> Value:
    """Return the largest integer ≤ ``a`` (as a float for floats and arrays)."""
    return sys.modules["sympy"].floor(a) if is_symbolic(a) else -1 * ceil(-1 * a)


def log2(a: Value) -> Value:
    """Return the logarithm of ``a`` to base 2."""
    if isinstance(a, _NUMBERS):
        return math.log2(a)
    if is_symbolic(a):
        return sys.modules["sympy"].log(a, 2)
    return sys.modules["numpy"].log2(a)


def smooth_max(a: Value, b: Value, p: Value) -> Value:
    """Return the p-norm of ``a`` and ``b``, a maximum with a rounded corner: m·(1 + (s/m)^p)^(1/p).

    m and s are the larger and the smaller operand. This form neither underflows below the maximum nor gives NaN at zero,
    as (a^p + b^p)^(1/p) does. It is never below max(a, b), and equals it for p = ∞.

    Args:
        a, b: non-negative, same unit.
        p: sharpness, ≥ 1; ``math.inf`` for the plain maximum.
    """
    if isinstance(p, _NUMBERS) and p == math.inf:
        return maximum(a, b)
    if isinstance(a, Recorded) or isinstance(b, Recorded):
        return recorded_smooth_max(a, b, p)
    if is_symbolic(a, b, p):
        from costmodel.symbolic.functions import smooth_max as symbolic_smooth_max

        return symbolic_smooth_max(a, b, p)
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and isinstance(p, _NUMBERS):
        larger, smaller = (a, b) if a >= b else (b, a)
        return larger * (1.0 + (smaller / larger) ** p) ** (1.0 / p) if larger > 0.0 else 0.0 * larger
    np = sys.modules["numpy"]
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    ratio = np.divide(smaller, larger, out=np.zeros(np.shape(larger)), where=larger > 0.0)
    return larger * (1.0 + ratio**p) ** (1.0 / p)


def smooth_max_slope(a: Value, b: Value, p: Value) -> Value:
    """Return ∂ smooth_max(a, b, p) / ∂a = (a/M)^(p−1) with M = smooth_max(a, b, p); zero where both operands are zero.

    For p = ∞ this is 1 where a > b, 0 where a < b and ½ (the limit) where they are equal. Floats and arrays.
    """
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        if a <= 0.0 and b <= 0.0:
            return 0.0
        if p == math.inf:
            return 1.0 if a > b else 0.5 if a == b else 0.0
        return float((a / smooth_max(a, b, p)) ** (p - 1.0))
    np = sys.modules["numpy"]
    if isinstance(p, _NUMBERS) and p == math.inf:
        return np.where(np.maximum(a, b) > 0.0, np.heaviside(np.subtract(a, b), 0.5), 0.0)
    value = smooth_max(a, b, p)
    ratio = np.divide(a, value, out=np.zeros(np.shape(value)), where=value > 0.0)
    return np.where(value > 0.0, ratio ** (p - 1.0), 0.0)


def smooth_max_sharpness_slope(a: Value, b: Value, p: Value) -> Value:
    """Return ∂ smooth_max(a, b, p) / ∂p = M·[r^p·ln r / (p·(1 + r^p)) − ln(1 + r^p) / p²] with r = min/max. Floats and arrays."""
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and isinstance(p, _NUMBERS):
        larger, smaller = (a, b) if a >= b else (b, a)
        if smaller <= 0.0 or p == math.inf:
            return 0.0
        ratio = smaller / larger
        power = ratio**p
        bracket = power * math.log(ratio) / (p * (1.0 + power)) - math.log1p(power) / p**2
        return smooth_max(a, b, p) * bracket
    np = sys.modules["numpy"]
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    ratio = np.divide(smaller, larger, out=np.zeros(np.shape(larger)), where=larger > 0.0)
    power = ratio**p
    logarithm = np.log(ratio, out=np.zeros(np.shape(ratio)), where=ratio > 0.0)
    return smooth_max(a, b, p) * (power * logarithm / (p * (1.0 + power)) - np.log1p(power) / p**2)
