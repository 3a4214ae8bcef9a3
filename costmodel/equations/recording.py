"""The fourth reading of the equations: values that record what is done to them, as straight-line Python for a million calls.

A simulation evaluates the same step again and again with other numbers. Called with :class:`Recorded` values, the equations leave a list
of assignments in which everything that is known (parameters, forms, number of chunks) is folded; each is recorded once, however
often it is asked for. Lines that depend on arguments of a later stage only are kept apart, so that a loop evaluates the rest once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


class Recorder:
    """The assignments so far.

    Attributes:
        lines: ``(name, expression, stage)`` in order; a name is used only after its line.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []
        self._known: dict[str, Recorded] = {}

    def argument(self, name: str, stage: int = 0) -> Recorded:
        """Return an argument of the function to be; of a later ``stage`` if it changes more often."""
        return Recorded(self, name, stage)

    def note(self, expression: str, *operands: Any) -> Recorded:
        """Return the value of an expression of these operands, recorded if it is new."""
        stage = max(item.stage for item in operands if isinstance(item, Recorded))
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = Recorded(self, f"v{len(self.lines)}", stage)
            self.lines.append((known.text, expression, stage))
        return known

    def assignments(self, stage: int, needed: Sequence[Any]) -> list[str]:
        """Return the lines of one stage that the needed values rest on, as ``name = expression``."""
        wanted = {str(item) for item in needed}
        kept: list[tuple[str, str, int]] = []
        for name, expression, level in reversed(self.lines):
            if name in wanted:
                kept.append((name, expression, level))
                wanted.update(expression.replace("(", " ").replace(")", " ").split())
        return [f"{name} = {expression}" for name, expression, level in reversed(kept) if level == stage]


class Recorded:
    """A value that is not known yet: a name in the recorded lines."""

    __slots__ = ("recorder", "stage", "text")

    def __init__(self, recorder: Recorder, text: str, stage: int) -> None:
        self.recorder, self.text, self.stage = recorder, text, stage

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._note("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __sub__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._note("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._note("-", other, self)

    def __mul__(self, other: Any) -> Any:
        if _is(other, 0):
            return 0.0
        return self if _is(other, 1) else self._note("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self * other

    def __truediv__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._note("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return 0.0 if _is(other, 0) else self._note("/", other, self)

    def __pow__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._note("**", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._note("**", other, self)

    def __neg__(self) -> Any:
        return self._note("-", 0, self)

    def _note(self, operation: str, first: Any, second: Any) -> Recorded:
        return self.recorder.note(f"{written(first)} {operation} {written(second)}", first, second)


def written(value: Any) -> str:
    """Return a value as it is written in an expression: a name, or a number in full."""
    if isinstance(value, Recorded):
        return value.text
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be recorded")
    return f"({number!r})" if number < 0 else repr(number)


def recorded_larger(first: Any, second: Any) -> Any:
    """Return the larger of two values of which one is recorded."""
    a, b = written(first), written(second)
    return _recorder(first, second).note(f"{a} if {a} >= {b} else {b}", first, second)


def recorded_smaller(first: Any, second: Any) -> Any:
    """Return the smaller of two values of which one is recorded."""
    a, b = written(first), written(second)
    return _recorder(first, second).note(f"{a} if {a} <= {b} else {b}", first, second)


def recorded_ceil(value: Recorded) -> Any:
    """Return the smallest integer ≥ a recorded value."""
    return value.recorder.note(f"ceil( {value.text} )", value)


def recorded_smooth_max(first: Any, second: Any, sharpness: Any) -> Any:
    """Return :func:`~costmodel.equations.numerics.smooth_max` of values of which one is recorded; ``sharpness`` is a number."""
    if _is(first, 0) or _is(second, 0):
        return second if _is(first, 0) else first
    recorder = _recorder(first, second)
    larger, smaller = recorded_larger(first, second), recorded_smaller(first, second)
    p, root = written(sharpness), written(1.0 / sharpness)
    m, s = larger.text, smaller.text
    return recorder.note(f"{m} * ( 1.0 + ( {s} / {m} ) ** {p} ) ** {root} if {m} > 0.0 else 0.0", larger, smaller)


def _recorder(*values: Any) -> Recorder:
    return next(value.recorder for value in values if isinstance(value, Recorded))


def _is(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and value == number
