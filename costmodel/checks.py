"""Checks of numbers that people type. Every failure is one line that names the input, the value and the limit."""

from __future__ import annotations

import math
from typing import Any

from costmodel.hardware.errors import InputError

MAX_TOKENS = 100_000_000
"""Larger token counts are taken for a slip of the keyboard."""


def whole(value: Any, name: str, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Return ``value`` as an int.

    Raises:
        InputError: not a whole number, or outside [least, most].
    """
    number = value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (isinstance(value, float) and value % 1 != 0):
        try:
            number = value.__index__()  # NumPy integers
        except AttributeError:
            raise InputError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise InputError(f"{name} must be at least {least}, not {value}")
    if number > most:
        raise InputError(f"{name} must be at most {most}, not {value}")
    return int(number)


def positive(value: Any, name: str) -> float:
    """Return ``value`` as a finite float above zero, or raise :class:`InputError`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"{name} must be a finite number above zero, not {value}")
    return number
