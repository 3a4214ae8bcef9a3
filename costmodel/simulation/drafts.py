"""From what is asked of speculation to what the simulated engine needs, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from costmodel.checks import choice, whole
from costmodel.deployment import Deployment
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.profile import Frozen
from costmodel.memory import NOTHING, Beside
from costmodel.simulation.clock import Clock
from costmodel.simulation.drafting import DRAWS, Drafting, Draw, FixedPasses, ModelPasses
from costmodel.simulation.options import ServerOptions
from costmodel.speculation.acceptance import Acceptance, acceptance_of
from costmodel.speculation.asking import Speculation, planned, said, speculator
from costmodel.speculation.drafts import NGRAM, method_of


class DraftingInfo(Frozen):
    """Speculation of a simulated server."""

    method: Literal["fixed", "ngram", "eagle", "eagle3", "mtp", "model"]
    """``fixed`` where step times are: drafting takes no time of its own."""
    draft: str
    tokens: int
    """k, drafted tokens per pass."""
    expected_length: float
    """Tokens per pass that acceptance stands for."""
    draw: Draw
    seed: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """Speculation of a server.

    Attributes:
        drafting: for the engine.
        info: for the document.
        beside: memory that the draft takes.
        notes, warnings: what has to be said.
    """

    drafting: Drafting
    info: DraftingInfo
    beside: Beside = NOTHING
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def tokens_ahead(options: ServerOptions) -> tuple[int, int]:
    """Return the drafts of a decoding sequence in a step, and the tokens that it has blocks for beyond its next one.

    Raises:
        InputError: speculation without a number of tokens.
    """
    asked = options.get("speculation")
    if asked is None:
        return 0, 0
    tokens = _tokens(asked)
    return tokens, tokens if _is_ngram(asked) else 2 * tokens


def drafted(
    options: ServerOptions, deployment: Deployment | None, rates: CalibratedRates | None, clock: Clock
) -> Drafted | None:
    """Return the speculation that options ask for; None where none is.

    Args:
        options: what the user set.
        deployment: the target; None with fixed step times.
        rates: of the calibrated rung; None for the roofline.
        clock: of the target's steps.

    Raises:
        InputError: an option is out of range, or says nothing that a simulation could run on.
    """
    asked = options.get("speculation")
    draw = cast("Draw", choice(options.get("acceptance_draw", "random"), DRAWS, "acceptance-draw"))
    seed = whole(options.get("acceptance_seed", 0), "acceptance-seed")
    if asked is None:
        return None
    tokens = _tokens(asked)

    def drafting(acceptance: Acceptance, passes: Any) -> Drafting:
        return Drafting(
            tokens, acceptance.chances(tokens), 0 if _is_ngram(asked) else tokens, draw, seed, passes=passes
        )

    def info(method: str, name: str, acceptance: Acceptance) -> DraftingInfo:
        length = acceptance.expected(tokens)
        return DraftingInfo(method=method, draft=name, tokens=tokens, expected_length=length, draw=draw, seed=seed)  # type: ignore[arg-type]

    turns = "steps are scheduled in turns: scheduling a step ahead is not simulated with speculative decoding"
    if deployment is None:
        given = acceptance_of(asked.acceptance, asked.positions, asked.lengths, tokens)
        if given is None:
            raise InputError("fixed step times say nothing of a draft: give --acceptance, or --accepted-length")
        free = "with fixed step times verifying takes a decode step, and drafting no time"
        fixed = info("fixed", str(asked.draft), given)
        return Drafted(drafting(given, FixedPasses(clock)), fixed, notes=(turns, free), warnings=given.warnings)
    plan, engine = planned(asked, deployment), options.get("engine", "vllm")
    passes = ModelPasses(speculator(deployment, plan, rates, engine), tokens)
    notes, warnings = said(plan, engine, rates is not None)
    return Drafted(
        drafting(plan.acceptance, passes),
        info(plan.draft.method, plan.draft.name, plan.acceptance),
        replace(plan.draft.beside, drafts=tokens),
        (turns, *notes),
        tuple(warnings),
    )


def _tokens(asked: Speculation) -> int:
    if not isinstance(asked, Speculation):
        raise InputError(f"speculation must be a costmodel.Speculation, not {shown(asked)}")
    if asked.tokens is None:
        raise InputError(
            "a simulation needs the number of drafted tokens: --speculative-tokens 3, or what `costmodel predict` finds best"
        )
    return whole(asked.tokens, "speculative-tokens", 1, 64)


def _is_ngram(asked: Speculation) -> bool:
    return method_of(str(asked.draft)) == NGRAM
