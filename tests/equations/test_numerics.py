"""smooth_max and its derivatives, against high precision, finite differences, limits and the symbolic reading."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.equations.numerics import (
    ceil,
    is_symbolic,
    log2,
    maximum,
    minimum,
    smooth_max,
    smooth_max_sharpness_slope,
    smooth_max_slope,
)
from costmodel.symbolic import functions
from tests.strategies import examples

TIMES = st.floats(1e-12, 1e3)
SHARPNESS = st.floats(1.0, 60.0)
A, B, P = sympy.symbols("a b p", positive=True)


def exact_smooth_max(a: float, b: float, p: float) -> mpmath.mpf:
    """Return (a^p + b^p)^(1/p) with exponents that cannot underflow and 60 digits."""
    with mpmath.workdps(60):
        a, b, p = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(p)
        return (a**p + b**p) ** (1 / p)


def exact_slope(a: float, b: float, p: float) -> mpmath.mpf:
    """Return ∂/∂a (a^p + b^p)^(1/p) = a^(p−1)·(a^p + b^p)^(1/p − 1) with 60 digits."""
    with mpmath.workdps(60):
        a, b, p = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(p)
        return a ** (p - 1) * (a**p + b**p) ** (1 / p - 1)


def exact_sharpness_slope(a: float, b: float, p: float) -> mpmath.mpf:
    """Return ∂/∂p (a^p + b^p)^(1/p) with 60 digits."""
    with mpmath.workdps(60):
        a, b, p = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(p)
        total = a**p + b**p
        return total ** (1 / p) * (
            (a**p * mpmath.log(a) + b**p * mpmath.log(b)) / (p * total) - mpmath.log(total) / p**2
        )


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "p", "expected"),
    [
        (3.0, 4.0, 2.0, 5.0),  # Pythagoras
        (3.0, 4.0, 1.0, 7.0),  # p = 1 is the sum
        (1.0, 1.0, 4.0, 2**0.25),  # the corner: 2^(1/p)
        (3.0, 4.0, math.inf, 4.0),
        (0.0, 0.0, 3.0, 0.0),
        (0.0, 0.0, 1.0, 0.0),
        (0.0, 0.0, math.inf, 0.0),
        (0.0, 5.0, 3.0, 5.0),
        (5.0, 0.0, 3.0, 5.0),
        (1e30, 1.0, 8.0, 1e30),
        (1.0, 1e30, 8.0, 1e30),
        (1e-30, 1.0, 8.0, 1.0),
        (1e-200, 1e-200, 4.0, 1e-200 * 2**0.25),  # (a^p + b^p) underflows to 0 here
        (1e200, 1e200, 4.0, 1e200 * 2**0.25),  # and overflows here
    ],
)
def test_smooth_max_of_known_cases(a: float, b: float, p: float, expected: float) -> None:
    assert smooth_max(a, b, p) == pytest.approx(expected, rel=1e-15)
    array = smooth_max(np.array([a, a]), b, p)
    assert array == pytest.approx([expected, expected], rel=1e-15)
    assert float(functions.smooth_max(sympy.Float(a), sympy.Float(b), sympy.sympify(p))) == pytest.approx(
        expected, rel=1e-15
    )


@examples(200)
@given(TIMES, TIMES, SHARPNESS)
def test_smooth_max_is_the_p_norm(a: float, b: float, p: float) -> None:
    assert smooth_max(a, b, p) == pytest.approx(float(exact_smooth_max(a, b, p)), rel=1e-14)


@examples(200)
@given(TIMES | st.just(0.0), TIMES | st.just(0.0), SHARPNESS | st.just(math.inf))
def test_smooth_max_lies_between_max_and_its_corner(a: float, b: float, p: float) -> None:
    # max(a, b) ≤ ‖(a, b)‖_p ≤ 2^(1/p)·max(a, b): never below the floor.
    value = smooth_max(a, b, p)
    assert value >= max(a, b)
    assert value <= 2 ** (1 / p) * max(a, b) * (1 + 1e-15)
    assert value == smooth_max(b, a, p)


@examples(100)
@given(TIMES, st.floats(1.0, 30.0), st.floats(1.0, 10.0))
def test_a_sharper_corner_is_lower(a: float, p: float, factor: float) -> None:
    assert smooth_max(a, a, p * factor) <= smooth_max(a, a, p)


@examples(100)
@given(st.lists(st.tuples(TIMES | st.just(0.0), TIMES | st.just(0.0)), min_size=1, max_size=20), SHARPNESS)
def test_arrays_read_like_floats(pairs: list[tuple[float, float]], p: float) -> None:
    a, b = np.array(pairs).T
    assert smooth_max(a, b, p) == pytest.approx([smooth_max(x, y, p) for x, y in pairs], rel=1e-14)
    assert smooth_max_slope(a, b, p) == pytest.approx([smooth_max_slope(x, y, p) for x, y in pairs], rel=1e-13)
    assert smooth_max_sharpness_slope(a, b, p) == pytest.approx(
        [smooth_max_sharpness_slope(x, y, p) for x, y in pairs], rel=1e-12
    )
    # the sharpness may be an array as well, infinity in it too
    sharpness = np.where(np.arange(len(pairs)) % 2, math.inf, p)
    expected = [smooth_max(x, y, float(each)) for (x, y), each in zip(pairs, sharpness, strict=True)]
    assert smooth_max(a, b, sharpness) == pytest.approx(expected, rel=1e-14)


def test_scalars_and_arrays_broadcast() -> None:
    grid = smooth_max(np.array([[1.0], [2.0]]), np.array([3.0, 4.0, 5.0]), 2.0)
    assert grid.shape == (2, 3)
    assert grid[1, 2] == pytest.approx(math.hypot(2.0, 5.0))


# --- derivatives ------------------------------------------------------------------------------------------------------


@examples(200)
@given(TIMES, TIMES, st.floats(1.0, 40.0))
def test_slopes_agree_with_high_precision(a: float, b: float, p: float) -> None:
    # ∂M/∂a = (a/M)^(p−1); the power amplifies the rounding of a/M by p − 1.
    assert smooth_max_slope(a, b, p) == pytest.approx(float(exact_slope(a, b, p)), rel=1e-12, abs=1e-300)
    # The two terms of ∂M/∂p cancel by a factor of at most ln 2/p near the corner.
    expected = float(exact_sharpness_slope(a, b, p))
    assert smooth_max_sharpness_slope(a, b, p) == pytest.approx(expected, rel=1e-10, abs=1e-12 * max(a, b))


@examples(100)
@given(TIMES, st.floats(0.05, 20.0), st.floats(1.0, 12.0))
def test_slopes_agree_with_finite_differences(a: float, ratio: float, p: float) -> None:
    b, step = a * ratio, 1e-5 * a
    numeric = (smooth_max(a + step, b, p) - smooth_max(a - step, b, p)) / (2 * step)
    assert smooth_max_slope(a, b, p) == pytest.approx(numeric, rel=1e-5, abs=1e-8)
    step = 1e-5 * p
    numeric = (smooth_max(a, b, p + step) - smooth_max(a, b, p - step)) / (2 * step)
    assert smooth_max_sharpness_slope(a, b, p) == pytest.approx(numeric, rel=1e-5, abs=1e-8 * max(a, b))


@examples(100)
@given(TIMES, TIMES, SHARPNESS)
def test_slopes_satisfy_eulers_theorem(a: float, b: float, p: float) -> None:
    # smooth_max is homogeneous of degree one: a·∂M/∂a + b·∂M/∂b = M.
    total = a * smooth_max_slope(a, b, p) + b * smooth_max_slope(b, a, p)
    assert total == pytest.approx(smooth_max(a, b, p), rel=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "p", "expected"),
    [
        (0.0, 0.0, 3.0, 0.0),
        (0.0, 0.0, math.inf, 0.0),
        (0.0, 1.0, 3.0, 0.0),  # (0/1)²
        (1.0, 0.0, 3.0, 1.0),
        (0.0, 1.0, 1.0, 1.0),  # p = 1 is the sum, slope one everywhere
        (2.0, 2.0, 1.0, 1.0),
        (1.0, 1e30, 4.0, 1e-90),  # 1e-30³
        (1e-30, 1.0, 4.0, 1e-90),
        (1e30, 1.0, 4.0, 1.0),
        (1.0, 1.0, 2.0, 0.5**0.5),
        (2.0, 1.0, math.inf, 1.0),
        (1.0, 2.0, math.inf, 0.0),
        (1.0, 1.0, math.inf, 0.5),
    ],
)
def test_slope_of_known_cases(a: float, b: float, p: float, expected: float) -> None:
    assert smooth_max_slope(a, b, p) == pytest.approx(expected, rel=1e-13)
    assert smooth_max_slope(np.array([a]), np.array([b]), p) == pytest.approx([expected], rel=1e-13)


@pytest.mark.parametrize(("a", "b", "p"), [(0.0, 0.0, 3.0), (0.0, 1.0, 3.0), (1.0, 0.0, 3.0), (2.0, 1.0, math.inf)])
def test_sharpness_matters_only_where_both_operands_count(a: float, b: float, p: float) -> None:
    assert smooth_max_sharpness_slope(a, b, p) == 0.0


@examples(60)
@given(TIMES, TIMES, st.floats(1.0, 30.0))
def test_symbolic_derivatives_agree(a: float, b: float, p: float) -> None:
    expression = functions.smooth_max(A, B, P)
    numbers = {A: a, B: b, P: p}
    assert float(expression.subs(numbers)) == pytest.approx(smooth_max(a, b, p), rel=1e-14)
    for item, expected in (
        (A, smooth_max_slope(a, b, p)),
        (B, smooth_max_slope(b, a, p)),
        (P, smooth_max_sharpness_slope(a, b, p)),
    ):
        assert float(sympy.diff(expression, item).subs(numbers)) == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_symbolic_smooth_max_reduces_where_it_can() -> None:
    assert functions.smooth_max(A, B, sympy.oo) == sympy.Max(A, B)
    assert functions.smooth_max(A, B, sympy.Float(math.inf)) == sympy.Max(A, B)
    assert functions.smooth_max(sympy.S.Zero, B, P) == B
    assert functions.smooth_max(A, sympy.S.Zero, P) == A
    assert smooth_max(A, 2.0, P).func is functions.smooth_max
    assert sympy.diff(functions.smooth_max(2 * A, B, P), A) == 2 * functions.smooth_max_slope(2 * A, B, P)


# --- the other functions ----------------------------------------------------------------------------------------------


@examples(100)
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_maximum_minimum_and_ceil_read_three_ways(a: float, b: float) -> None:
    assert (maximum(a, b), minimum(a, b), ceil(a)) == (max(a, b), min(a, b), math.ceil(a))
    arrays = np.array([a]), np.array([b])
    assert (maximum(*arrays)[0], minimum(*arrays)[0], ceil(arrays[0])[0]) == (max(a, b), min(a, b), math.ceil(a))
    x, y = sympy.symbols("x y", real=True)
    assume(a != b)
    numbers = {x: a, y: b}
    assert maximum(x, y).subs(numbers) == max(a, b)
    assert minimum(x, y).subs(numbers) == min(a, b)
    assert ceil(x).subs(numbers) == math.ceil(a)


def test_log2_and_is_symbolic() -> None:
    assert log2(8) == 3.0
    assert log2(np.array([2.0, 8.0])) == pytest.approx([1.0, 3.0])
    assert log2(sympy.Integer(8)) == 3
    assert is_symbolic(1.0, A)
    assert not is_symbolic(1.0, np.array([1.0]))
