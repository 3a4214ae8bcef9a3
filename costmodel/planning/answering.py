"""What the answers share: limits, wording, and the head of a document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from costmodel.checks import MAX_SECONDS, positive
from costmodel.hardware.errors import InputError
from costmodel.planning.documents import Nearest, Plan, Slo
from costmodel.planning.serving import Site
from costmodel.planning.steady import Steady

Answer = TypeVar("Answer", bound=Plan)
Holds = Callable[[int], bool]


def limits_of(required: bool, /, **given: float | None) -> Slo:
    """Return the limits that were asked for, in seconds.

    Args:
        required: whether one of them must be given.
        given: ``itl``, ``ttft``, ``tpot`` and ``e2e``; None for no limit.

    Raises:
        InputError: none is given, or one is no number above zero.
    """
    if required and all(value is None for value in given.values()):
        names = list(given)
        raise InputError(f"give a limit: {', '.join(names[:-1]) + ' or ' if names[1:] else ''}{names[-1]}, in seconds")
    return Slo(
        **{
            f"{name}_s": positive(value, f"{name} limit", MAX_SECONDS)
            for name, value in given.items()
            if value is not None
        }
    )


def head(site: Site) -> dict[str, Any]:
    """Return what every document tells of model and GPU."""
    info = site.info
    return {
        "model": info.model,
        "gpu": info.gpu,
        "gpus": info.gpus,
        "rung": info.rung,
        "calibration": info.calibration,
    }


def ms(seconds: float) -> str:
    """Return a time as people read it."""
    if seconds < 1:
        return f"{seconds * 1e3:.4g} ms"
    return f"{seconds:.4g} s"


def over(seconds: float, limit: float) -> str:
    """Say that a time is over its limit, with as many digits as it takes to tell them apart."""
    factor, unit = (1.0, "s") if limit >= 1 or seconds >= 10 else (1e3, "ms")
    for digits in range(4, 16):
        shown, allowed = f"{seconds * factor:.{digits}g}", f"{limit * factor:.{digits}g}"
        if shown != allowed:
            break
    return f"{shown} {unit}, for {allowed} {unit} allowed"


def up(seconds: float) -> float:
    """Return the next time above with four significant digits, so that a limit that is typed from what is shown can be held [s]."""
    from math import ceil, floor, log10

    place = 10.0 ** (floor(log10(seconds)) - 3)
    rounded = float(f"{ceil(seconds / place - 1e-9) * place:.4g}")
    return rounded if rounded >= seconds else float(f"{rounded + place:.4g}")


def nearest_limit(name: str, seconds: float, what: str = "") -> Nearest:
    """Return the smallest limit that can be held, as advice.

    Args:
        name: ``itl``, ``ttft``, ``tpot`` or ``e2e``.
        seconds: what is reached.
        what: with what, in words.
    """
    value = up(seconds)
    return Nearest(
        change=f"--{name}-ms",
        value=value,
        text=f"a limit of {value * 1e3:.6g} ms on the {name.upper()}{f' ({what})' if what else ''}",
    )


def too_long(site: Site, load: Steady) -> tuple[str, list[Nearest]] | None:
    """Return what is said where a stream or a prompt is longer than a sequence may be, each with its next token; None where none is.

    Args:
        site: of which ``max_model_len`` counts, or else the model's limit.
        load: streams and prompts.
    """
    most, longest = site.most_tokens, max(load.context, load.prompt) + 1
    if most is None or longest <= most:
        return None
    near = []
    if site.allowed_tokens is None or longest <= site.allowed_tokens:
        near.append(Nearest(change="--max-model-len", value=longest, text=f"--max-model-len {longest}"))
    for name, tokens in (("context", load.context), ("prompt", load.prompt)):
        if tokens >= most > 1:
            near.append(Nearest(change=f"--{name}", value=most - 1, text=f"--{name} {most - 1}"))
    which = "prompt" if load.prompt > load.context else "context"
    return f"a {which} of {longest - 1:,} tokens and the next one are more than max_model_len, {most:,}", near


ARGUMENTS = {
    "--itl-ms": "itl",
    "--ttft-ms": "ttft",
    "--tpot-ms": "tpot",
    "--every": "every",
    "--tp": "tp",
    "--streams": "streams",
    "--max-num-seqs": "max_num_seqs",
    "--max-model-len": "max_model_len",
    "--chunk": "chunk",
    "--kv-tokens": "kv_tokens",
    "--prompt": "prompt",
    "--context": "context",
    "--max-gpus": "most",
}
"""Option → argument of the functions."""
TIMES = ("itl", "ttft", "tpot", "every")


def verified(plan: Answer, ask: Callable[[str, Any], Plan]) -> Answer:
    """Return an answer whose nearest values were tried: each says whether it is enough, and what else does not hold.

    Args:
        plan: the answer.
        ask: asks again with one argument changed.
    """
    near = []
    for each in plan.nearest:
        name = ARGUMENTS[each.change]
        try:
            other = ask(name, each.value if name in TIMES else int(each.value))
        except InputError:
            continue
        if other.feasible:
            starts = other.advice and other.advice.max_model_len
            also = f", with --max-model-len {starts} or less" if starts and name != "max_model_len" else ""
            near.append(each.model_copy(update={"text": each.text + also}))
        else:
            text = f"{each.text}; not enough by itself, as then {other.binds}"
            near.append(each.model_copy(update={"enough": False, "text": text}))
    return plan.model_copy(update={"nearest": tuple(near)})


def last_that(holds: Holds, least: int, most: int) -> int | None:
    """Return an n in [least, most] that holds while n + 1 does not; ``most`` if that holds, None if ``least`` does not.

    Args:
        holds: true up to some n and false from there; if it changes more often, one of the changes is found.
        least, most: range.
    """
    if most < least or not holds(least):
        return None
    if holds(most):
        return most
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def first_that(holds: Holds, least: int, most: int) -> int | None:
    """Return the smallest n in [least, most] that holds, of what is false up to some n and true from there; None if none does."""
    last = last_that(lambda number: not holds(number), least, most)
    if last is None:
        return least if most >= least else None
    return last + 1 if last < most else None
