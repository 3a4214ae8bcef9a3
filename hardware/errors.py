"""The errors that costmodel raises on purpose. Each message is one line that names the input, the reason and a way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

MOST_CHARACTERS = 1000
"""Longer messages lose their middle: whatever was typed into them, they begin with what is wrong and end with the way out."""


class CostModelError(Exception):
    """Base of every error that costmodel raises on purpose; its message is one line of a readable length.

    ``exit_code`` is what the command line returns: 2 for bad input, 1 when the answer to the question is no.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class InputError(CostModelError, ValueError):
    """An input is wrong: unknown, malformed, out of range or contradictory."""


class UnsupportedError(InputError):
    """An input is well formed, but describes something the model has no equations for."""


class NoAnswerError(CostModelError):
    """The question is well posed and the answer is no (exit code 1)."""

    exit_code = 1


def one_line(message: str) -> str:
    """Return a message without line breaks, its middle left out where it is longer than :data:`MOST_CHARACTERS`."""
    text, half = " ".join(str(message).split()), MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of the ``known`` names that look most like ``name``, best first (may be empty)."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name[:200].casefold(), by_folded, n=count, cutoff=0.5)
    return [by_folded[folded] for folded in close]


def unknown_name(what: str, name: str, known: Iterable[str], hint: str = "") -> InputError:
    """Build the error for an unknown name: what it is, the nearest valid choices, and where to see them all.

    Args:
        what: kind of thing, e.g. ``"GPU"``.
        name: what the user typed.
        known: every valid name.
        hint: how to list the valid names, e.g. ``"see `costmodel gpus list`"``.
    """
    close = nearest(name, known)
    text = f"unknown {what} {shown(name, 120)}"
    if close:
        text += f"; {suggestion(close)}"
    if hint:
        text += f" ({hint})" if close else f"; {hint}"
    return InputError(text)


def suggestion(close: Iterable[str]) -> str:
    """Return the question that offers the nearest names."""
    return "did you mean " + " or ".join(close) + "?"


def shown(value: Any, most: int = 60) -> str:
    """Return a value as it is shown in an error: its repr in one line, cut to a readable length."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an int of thousands of digits, or an object whose repr fails
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else text[: most - 3] + "..."
