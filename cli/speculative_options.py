"""The options of speculative decoding, which several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from costmodel.cli.options import Values
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.speculation.asking import Speculation

Command = TypeVar("Command", bound=Callable[..., Any])

NAMES = {
    "draft_model": "draft",
    "speculative_tokens": "tokens",
    "acceptance": "acceptance",
    "acceptance_per_position": "positions",
    "accepted_length": "lengths",
}
"""Option → attribute of :class:`costmodel.Speculation`."""


def speculative_options(command: Command) -> Command:
    """Add the options that ask for speculative decoding."""
    for option in reversed(
        (
            click.option(
                "--draft-model",
                "--speculative-model",
                "draft_model",
                default=None,
                help="Speculative decoding: who drafts: `eagle`, `eagle3`, `mtp` (heads of the model), `ngram`, or another model.",
            ),
            click.option(
                "--speculative-tokens",
                "--num-speculative-tokens",
                "speculative_tokens",
                type=Values("whole", several=False),
                default=None,
                help="Tokens drafted per pass.  [default: the best number]",
            ),
            click.option(
                "--acceptance",
                type=float,
                default=None,
                help="Chance that a drafted token is accepted if those before it were.  [default: one that is said]",
            ),
            click.option(
                "--acceptance-per-position",
                default=None,
                metavar="P1,P2,…",
                help="Instead: share of passes whose first 1, 2 … drafts were all accepted, as vLLM logs it.",
            ),
            click.option(
                "--accepted-length",
                default=None,
                metavar="L or K:L,…",
                help="Instead: mean tokens per pass, as vLLM logs it: for --speculative-tokens, or by number, e.g. 2:2.1,3:2.3.",
            ),
        )
    ):
        command = option(command)
    return command


def take_speculation(options: dict[str, Any], draft: str | None = None) -> Speculation | None:
    """Take speculative decoding out of the options of a command; None where none is asked for.

    Args:
        options: of the command.
        draft: what drafts where something else is said of it; None where that is an error.

    Raises:
        InputError: something that is no number, or said without a draft.
    """
    given = {name: options.pop(name) for name in NAMES}
    if all(value is None for value in given.values()):
        return None
    from costmodel.cli.options import single
    from costmodel.speculation.asking import as_speculation

    given["speculative_tokens"] = single("speculative-tokens", given["speculative_tokens"])
    if (written := given["acceptance_per_position"]) is not None:
        given["acceptance_per_position"] = [_number(each, "acceptance-per-position") for each in written.split(",")]
    if (written := given["accepted_length"]) is not None:
        given["accepted_length"] = _lengths(written)
    if given["draft_model"] is None:
        given["draft_model"] = draft
    return as_speculation(**{NAMES[name]: value for name, value in given.items()})


def _lengths(written: str) -> float | dict[int, float]:
    """Return ``2.3`` as a number, ``2:2.1,3:2.3`` as a mapping."""
    if ":" not in written:
        return _number(written, "accepted-length")
    found: dict[int, float] = {}
    for piece in written.split(","):
        tokens, colon, length = piece.partition(":")
        if not colon or not tokens.strip().isdecimal():
            raise InputError(f"accepted-length {piece!r} is not K:LENGTH, such as 3:2.3")
        if int(tokens) in found:
            raise InputError(f"accepted-length is given twice for {int(tokens)} drafted tokens; leave one of them out")
        found[int(tokens)] = _number(length, "accepted-length")
    return found


def _number(written: str, name: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise InputError(f"{name} must be numbers, not {written.strip()!r}") from None


INSTEAD = (
    "is not answered with speculative decoding; `costmodel predict` has the pass, TPOT, spike and best number of drafts, `plan memory` "
    "what a draft holds, `plan replicas`, `plan disaggregation` and `simulate` run with one"
)


def refuse_speculation(command: Command) -> Command:
    """Refuse the options that ask for speculative decoding, with what takes them instead."""

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise InputError(f"{parameter.opts[0]}: this {INSTEAD}")

    for name in NAMES:
        names = [f"--{name.replace('_', '-')}", *ALSO.get(name, [])]
        command = click.option(*names, name, hidden=True, expose_value=False, default=None, callback=refuse)(command)
    return command


ALSO = {"draft_model": ["--speculative-model"], "speculative_tokens": ["--num-speculative-tokens"]}
"""Option → other spellings."""
