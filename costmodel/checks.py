"""Checks of numbers that people type. Every failure is one line that names the input, the value and the limit."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from typing import Any

from costmodel.hardware.errors import InputError, shown, unknown_name

MAX_TOKENS = 100_000_000
"""Larger token counts are taken for a slip of the keyboard."""
MAX_PARAMETERS = 1e18
"""Larger parameter counts likewise."""
MAX_SECONDS = 1e12
"""Longer times likewise: thirty thousand years."""


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


def cached_part(value: Any, prompt: int) -> int:
    """Return the leading tokens of a prompt that the prefix cache has: fewer than the prompt, whose last token gives the logits.

    Raises:
        InputError: not a whole number, or not below ``prompt``.
    """
    cached = whole(value, "cached-prefix")
    if cached < prompt:
        return cached
    if prompt == 1:
        raise InputError(
            "a prompt of 1 token has no cached prefix: its last token is computed in any case; leave out --cached-prefix"
        )
    raise InputError(
        f"a cached prefix of {cached} tokens leaves nothing of a prompt of {prompt}: its last token is computed in any case; "
        f"use at most {prompt - 1}"
    )


def positive(value: Any, name: str, most: float = math.inf) -> float:
    """Return ``value`` as a finite float above zero and at most ``most``, or raise :class:`InputError`."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, not {shown(value)}") from None
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"{name} must be a finite number above zero, not {shown(value)}")
    if number > most:
        raise InputError(f"{name} must be at most {most:g}, not {shown(value)}")
    return number


def parameter_count(value: Any) -> float:
    """Return a parameter count: from one to :data:`MAX_PARAMETERS`, or raise :class:`InputError`."""
    number = positive(value, "params", MAX_PARAMETERS)
    if number < 1:
        raise InputError(f"params must be at least 1, not {shown(value)}")
    return number


def choice(value: Any, known: Sequence[str], name: str) -> str:
    """Return ``value`` if it is one of the known words, or raise :class:`InputError` with the nearest."""
    if isinstance(value, str) and value in known:
        return value
    raise unknown_name(name, value if isinstance(value, str) else shown(value), known, "known: " + ", ".join(known))


def text(value: Any, name: str) -> str:
    """Return a name or path as text, or raise :class:`InputError`."""
    if isinstance(value, (str, os.PathLike)):
        made = os.fspath(value)
        if isinstance(made, str):
            return made
    raise InputError(f"{name} must be a name or a path, not {shown(value)}")
