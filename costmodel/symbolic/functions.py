"""The smooth maximum as a SymPy function with its own derivative, so that fits get an exact Jacobian and exports stay short."""

from __future__ import annotations

from typing import Any

import sympy

from costmodel.equations import numerics


class smooth_max(sympy.Function):  # type: ignore[misc]  # noqa: N801  printed as it is called
    """Symbolic :func:`costmodel.equations.numerics.smooth_max`; ``Max`` for p = ∞, zero where both operands are zero."""

    nargs = 3

    @classmethod
    def eval(cls, a: Any, b: Any, p: Any) -> Any:
        """Reduce p = ∞ to ``Max``, a zero operand to the other one, and numbers to a number."""
        if p == sympy.oo:
            return sympy.Max(a, b)
        if a.is_zero:
            return b
        if b.is_zero:
            return a
        if a.is_Number and b.is_Number and p.is_Number:
            return sympy.Float(numerics.smooth_max(float(a), float(b), float(p)))
        return None

    def fdiff(self, argindex: int = 1) -> Any:
        """Return the derivative by the first, second or third argument."""
        a, b, p = self.args
        if argindex == 1:
            return smooth_max_slope(a, b, p)
        if argindex == 2:
            return smooth_max_slope(b, a, p)
        return smooth_max_sharpness_slope(a, b, p)


class smooth_max_slope(sympy.Function):  # type: ignore[misc]  # noqa: N801
    """∂ smooth_max(a, b, p) / ∂a."""

    nargs = 3

    @classmethod
    def eval(cls, a: Any, b: Any, p: Any) -> Any:
        """Evaluate for numbers."""
        return _evaluate(numerics.smooth_max_slope, a, b, p)


class smooth_max_sharpness_slope(sympy.Function):  # type: ignore[misc]  # noqa: N801
    """∂ smooth_max(a, b, p) / ∂p."""

    nargs = 3

    @classmethod
    def eval(cls, a: Any, b: Any, p: Any) -> Any:
        """Evaluate for numbers."""
        return _evaluate(numerics.smooth_max_sharpness_slope, a, b, p)


def _evaluate(function: Any, a: Any, b: Any, p: Any) -> Any:
    if a.is_Number and b.is_Number and (p.is_Number or p == sympy.oo):
        return sympy.Float(function(float(a), float(b), float(p)))
    return None


HELPERS = {
    "smooth_max": numerics.smooth_max,
    "smooth_max_slope": numerics.smooth_max_slope,
    "smooth_max_sharpness_slope": numerics.smooth_max_sharpness_slope,
    "Heaviside": lambda x, at_zero=0.5: 1.0 if x > 0 else at_zero if x == 0 else 0.0,
}
"""What :func:`sympy.lambdify` needs to evaluate formulas and their derivatives."""
