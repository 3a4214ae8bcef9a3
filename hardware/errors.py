"""The errors that costmodel raises on purpose. Each message is one line that names the input, the reason and a way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class CostModelError(Exception):
    """Base of every error that costmodel raises on purpose.

    ``exit_code`` is what the command line returns: 2 for bad input, 1 when the answer to the question is no.
    """

    exit_code = 2


class InputError(CostModelError, ValueError):
    """An input is wrong: unknown, malformed, out of range or contradictory."""


class UnsupportedError(InputError):
    """An input is well formed, but describes something the model has no equations for."""


class NoAnswerError(CostModelError):
    """The question is well posed and the answer is no (exit code 1)."""

    exit_code = 1


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` of the ``known`` names that look most like ``name``, best first (may be empty)."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.5)
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
    text = f"unknown {what} {name!r}"
    if close:
        text += "; did you mean " + " or ".join(close) + "?"
    if hint:
        text += f" ({hint})" if close else f"; {hint}"
    return InputError(text)


def shown(value: Any) -> str:
    """Return a value as it is shown in an error: its repr, cut to a readable length."""
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits, or an object whose repr fails
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else text[:57] + "..."
