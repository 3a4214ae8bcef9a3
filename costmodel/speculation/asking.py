"""What is asked of speculation, and the answer: the step of k drafts, the best k, the batch up to which it pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.building import build_parameters, roofline_parameters
from costmodel.checks import text, whole
from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.errors import InputError
from costmodel.memory import Beside
from costmodel.rungs import Load
from costmodel.speculation.acceptance import MOST_TOKENS, Acceptance, acceptance_of
from costmodel.speculation.documents import SpeculationInfo, SpeculationRow
from costmodel.speculation.drafts import NGRAM, Draft, draft_parameters, make_draft
from costmodel.speculation.host import NO_HOST, host_times
from costmodel.speculation.steps import Speculator
from costmodel.spike import chunk_room, step_count, tallest_candidates

MOST_TRIED = 16
"""Most drafted tokens among which the best number is looked for."""
ASSUMED = {
    "eagle": (0.6, "EAGLE on MT-Bench with Llama-3.1-8B, vllm-project/vllm#20780"),
    "eagle3": (0.75, "EAGLE-3 on MT-Bench with Llama-3.1-8B, vllm-project/vllm#20780"),
    "mtp": (0.85, "DeepSeek-V3's second token, arXiv:2412.19437, section 5.4.3"),
    "model": (0.7, "models of one family, arXiv:2211.17192, table 3"),
}
"""α where nobody gives one, and where it is from.

N-grams are accepted as often as an answer repeats its prompt: no number stands for that."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding, as it is asked for.

    Attributes:
        draft: ``ngram``, ``eagle``, ``eagle3``, ``mtp``, or a draft model: preset, ``config.json``, folder or Hugging Face name.
        tokens: k, drafted tokens per pass (vLLM's ``num_speculative_tokens``); None for the best.
        acceptance: α, chance that a drafted token is accepted if those before it were. Not vLLM's "Avg Draft acceptance rate".
        positions: instead, the share of the passes whose first 1, 2 … drafts were all accepted (vLLM's per-position acceptance rates).
        lengths: instead, tokens per pass as measured (vLLM's mean acceptance length), for ``tokens`` or as a mapping from k.
    """

    draft: str = "eagle"
    tokens: int | None = None
    acceptance: float | None = None
    positions: Sequence[float] | None = None
    lengths: float | Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Speculation, checked: who drafts for which target, how many are accepted.

    Attributes:
        draft: of the target.
        acceptance: of its drafts.
        tokens: k; None for the best.
    """

    draft: Draft
    acceptance: Acceptance
    tokens: int | None

    def beside(self, tokens: int) -> Beside:
        """Return what ``tokens`` drafts per pass take beside the target: K and V of those, and of the next ones if layers make them."""
        ahead = tokens if self.draft.method == NGRAM else 2 * tokens
        return replace(self.draft.beside, tokens=ahead, drafts=tokens)


def planned(speculation: Speculation, target: Deployment) -> Plan:
    """Check what is asked.

    Raises:
        InputError: an unknown draft, numbers out of range, or an acceptance that nobody can know.
    """
    tokens = speculation.tokens
    if tokens is not None:
        tokens = whole(tokens, "speculative-tokens", 1, MOST_TOKENS)
    draft = make_draft(text(speculation.draft, "draft-model"), target)
    given = acceptance_of(speculation.acceptance, speculation.positions, speculation.lengths, tokens)
    if given is None:
        if draft.method == NGRAM:
            raise InputError(
                "n-grams are accepted as often as an answer repeats its text, which only you know: give --acceptance (0.7 where it copies "
                "much, as in editing), or --accepted-length from vLLM's log"
            )
        rate, source = ASSUMED[draft.method]
        given = Acceptance(
            rate=rate, assumed=f"an acceptance of {rate:g} is assumed ({source}); give your own (--acceptance)"
        )
    if tokens is not None:
        given.expected(tokens)
    return Plan(draft, given, tokens)


def said(plan: Plan, engine: str, calibrated: bool) -> tuple[list[str], list[str]]:
    """Return notes and warnings of a speculation."""
    notes = [f"{plan.draft.name}: {note}" for note in plan.draft.notes]
    if calibrated and (note := host_times(engine).note):
        notes.append(note)
    return notes, list(plan.acceptance.warnings)


def speculator(deployment: Deployment, plan: Plan, rates: CalibratedRates | None, engine: str) -> Speculator:
    """Return target and draft on the calibrated rung, or without rates on the roofline."""
    target = build_parameters(deployment, rates) if rates else roofline_parameters(deployment)
    return Speculator(target, draft_parameters(plan.draft, rates), host_times(engine) if rates else NO_HOST)


def speculation_info(
    deployment: Deployment, plan: Plan, load: Load, rates: CalibratedRates | None, engine: str
) -> SpeculationInfo:
    """Return the answer for a workload.

    Args:
        deployment: the target.
        plan: speculation.
        load: streams and their context, prompts and the token budget.
        rates: of the calibrated rung; None for the roofline.
        engine: whose host.

    Raises:
        InputError: the token budget does not hold the drafts of all streams.
    """
    known = _known(plan, load)
    on_rung = speculator(deployment, plan, rates, engine)
    plain = on_rung.plain_s(load.streams, load.context)
    rows = tuple(_row(on_rung, plan, load, plain, tokens) for tokens in known)
    best = min(rows, key=lambda row: row.tpot_s)
    tokens = plan.tokens or best.tokens
    chosen = next((row for row in rows if row.tokens == tokens), None) or _row(on_rung, plan, load, plain, tokens)
    time = on_rung.pass_time(load.streams, load.context, tokens)
    tried = max(default_max_num_seqs(deployment), load.streams)
    if load.budget is not None:
        tried = min(tried, load.budget // (tokens + 1))
    spike = _spike(on_rung, load, tokens)
    floor = on_rung if rates is None else speculator(deployment, plan, None, engine)
    return SpeculationInfo(
        method=plan.draft.method,  # type: ignore[arg-type]
        draft=plan.draft.name,
        tokens=tokens,
        acceptance=plan.acceptance.rate,
        accepted_length=chosen.accepted_length,
        acceptance_assumed=bool(plan.acceptance.assumed),
        plain_step_s=plain,
        verify_s=time.verify_s,
        draft_s=time.draft_s,
        host_s=time.host_s,
        pass_s=time.total_s,
        tpot_s=chosen.tpot_s,
        speedup=chosen.speedup,
        textbook_speedup=_textbook_speedup(on_rung, load, chosen, plain),
        floor_tpot_s=floor.pass_time(load.streams, load.context, tokens).total_s / chosen.accepted_length,
        best_tokens=best.tokens if best.speedup > 1 else 0,
        best_tpot_s=min(best.tpot_s, plain),
        break_even_streams=break_even(on_rung, load.context, tokens, chosen.accepted_length, tried),
        tried_streams=tried,
        spike_s=spike[0] if spike else None,
        spike_chunks=spike[1] if spike else None,
        draft_weights_bytes=plan.draft.weights_bytes,
        draft_kv_bytes_per_token=plan.draft.kv_bytes_per_token,
        by_tokens=rows,
    )


def _known(plan: Plan, load: Load) -> list[int]:
    """Return the numbers of drafts whose acceptance is known, up to :data:`MOST_TRIED`, with D·(k + 1) tokens within the token budget."""
    known = plan.acceptance.known(MOST_TRIED) or plan.acceptance.known(MOST_TOKENS)
    if load.budget is None:
        return known
    asked, most = plan.tokens or min(known), load.budget // load.streams - 1
    if asked > most:
        fewer = f", or --speculative-tokens {most}" if most and plan.tokens else ""
        raise InputError(
            f"a token budget of {load.budget} does not hold the drafts of {load.streams} streams ({asked + 1} tokens of each); use a "
            f"chunk of at least {load.streams * (asked + 1)}{fewer}"
        )
    return [tokens for tokens in known if tokens <= most]


def break_even(on_rung: Speculator, context: int, tokens: int, length: float, most: int) -> int | None:
    """Return the streams beyond which ``tokens`` drafts that give ``length`` tokens per pass no longer beat plain decoding.

    None where they still do at ``most`` and at every smaller number that was tried, 0 where they do at none of them. Powers of two and what
    lies half-way between them are tried, then the gap in which speculation ceases to pay is halved.
    """

    def pays(streams: int) -> bool:
        return on_rung.pass_time(streams, context, tokens).total_s < length * on_rung.plain_s(streams, context)

    return last_that_pays(pays, most)


def last_that_pays(pays: Callable[[int], bool], most: int) -> int | None:
    """Return the streams beyond which speculation no longer pays, as :func:`break_even` does, by any rule of what pays."""
    powers = [1 << bits for bits in range(most.bit_length())]
    low = 0
    for streams in sorted({most, *powers, *(min(3 * power // 2, most) for power in powers)}):
        if pays(streams):
            low = streams
        elif low:
            return _last_between(pays, low, streams)
    return None if low else 0


def _last_between(pays: Callable[[int], bool], low: int, high: int) -> int:
    """Return n with pays(n) and not pays(n + 1), from ``low``, at which it pays, to ``high``, at which it does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def _row(on_rung: Speculator, plan: Plan, load: Load, plain: float, tokens: int) -> SpeculationRow:
    length = plan.acceptance.expected(tokens)
    seconds = on_rung.pass_time(load.streams, load.context, tokens).total_s
    return SpeculationRow(
        tokens=tokens,
        accepted_length=length,
        pass_s=seconds,
        tpot_s=seconds / length,
        speedup=plain * length / seconds,
    )


def _textbook_speedup(on_rung: Speculator, load: Load, row: SpeculationRow, plain: float) -> float:
    """Return E(k)/(k·c + 1), c being one draft pass over one plain step."""
    one = on_rung.pass_time(load.streams, load.context, 1).draft_s
    return row.accepted_length / (row.tokens * one / plain + 1)


def _spike(on_rung: Speculator, load: Load, tokens: int) -> tuple[float, int] | None:
    """Return the longest step with prefill, and how many steps there are; None where speculating streams fill the token budget."""
    taken = load.streams * (tokens + 1)
    if load.budget is not None and load.budget <= taken:
        return None
    room = chunk_room(load.budget, taken)
    windows = on_rung.target.windows + (on_rung.draft.first.windows if on_rung.draft else ())
    steps = tallest_candidates(load.prompt, load.prompts, room, load.cached, windows)
    heights = [on_rung.pass_time(load.streams, load.context, tokens, chunks).total_s for chunks in steps]
    return max(heights), step_count(load.prompt - load.cached, load.prompts, room)


def as_speculation(**given: Any) -> Speculation | None:
    """Return the speculation that options ask for, None where none is.

    Args:
        given: attributes of :class:`Speculation`; None for those that were not given.

    Raises:
        InputError: something is said of a draft that there is not.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if not named:
        return None
    if "draft" not in named:
        raise InputError(
            "speculative decoding needs a draft: --draft-model eagle, eagle3, mtp, ngram, or the name of a model"
        )
    return replace(Speculation(), **named)
