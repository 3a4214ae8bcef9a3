"""Checks of numbers that people type. Every failure is one line that names the input, the value and the limit."""

from __future__ import annotations

import math
import operator
from typing import Any

from costmodel.hardware.errors import InputError

MAX_TOKENS = 100_000_000
"""Larger token counts are taken for a slip of the keyboard."""


def whole(value: Any, name: str, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Return ``value`` as an int.

    Raises:
        InputError: not a whole number, or outside [least, most].
    """
    try:
        number = int(value) if isinstance(value, float) and value % 1 == 0 else operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number, not {shown(value)}")
    if number < least:
        raise InputError(f"{name} must be at least {least}, not {shown(value)}")
    if number > most:
        raise InputError(f"{name} must be at most {most}, not {shown(value)}")
    return number


def positive(value: Any, name: str) -> float:
    """Return ``value`` as a finite float above zero, or raise :class:`InputError`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, not {shown(value)}") from None
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"{name} must be a finite number above zero, not {shown(value)}")
    return number


def shown(value: Any) -> str:
    """Return a value as it is shown in an error: its repr, cut to a readable length."""
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits, or an object whose repr fails
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else text[:57] + "..."
