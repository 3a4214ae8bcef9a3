"""``plan_batch`` and ``plan_prompt``: the largest batch, context or prompt within limits on times, the KV cache and the engine's flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack

from costmodel.checks import cached_part, choice, whole
from costmodel.hardware.errors import InputError
from costmodel.image_documents import image_warnings
from costmodel.planning.answering import head, last_that, limits_of, ms, over, sent, verified
from costmodel.planning.confirming import interference_numbers, unserved
from costmodel.planning.documents import Advice, Bound, Checked, SizePlan, Slo
from costmodel.planning.fitting_in import needed_blocks, no_room, to_start
from costmodel.planning.refused_sizes import refused
from costmodel.planning.serving import PlanOptions, Site, make_site, room
from costmodel.planning.steady import (
    MEASURES,
    Steady,
    all_cached,
    before_engine_s,
    checked,
    keeps_up,
    taken_s,
    ttft_s,
    with_images,
    with_prefix,
)
from costmodel.planning.trusting import interval_numbers, outside
from costmodel.rungs import MAX_STEPS
from costmodel.simulation.encoding import image_numbers, images_of
from costmodel.simulation.options import ONE_STEP

Unknown = Literal["streams", "context", "prompt"]
NAMES = {
    "itl": "the limit on the gaps",
    "tpot": "the limit on the TPOT",
    "ttft": "the limit on the TTFT",
    "kv_memory": "the KV cache",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "token_budget": "the token budget",
    "load": "the time until the next prompt",
}
"""Limit → what it is called in a sentence."""


def plan_batch(
    context: int = 500,
    *,
    unknown: Literal["streams", "context"] = "streams",
    streams: int = 32,
    itl: float | None = None,
    tpot: float | None = None,
    prompt: int | None = None,
    every: float = 10.0,
    chunk: int | str | None = None,
    cached_prefix: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    confirm: bool = True,
    **server: Unpack[PlanOptions],
) -> SizePlan:
    """Return the most sequences that decode at once, or the longest context of each, within limits.

    Limits: TPOT, the decode step, or with a ``prompt`` the mean gap; ITL, the longest gap; the KV cache, whole blocks of context + 1 tokens
    per sequence and the prompt's, of what activations and sampler leave at that batch; ``max_num_seqs``; the token budget, of which every
    sequence takes a token; ``max_model_len``. All hold at the answer n; at n + 1 the one that binds does not.

    Args:
        context: tokens of each sequence, the longest that it reaches; not looked at if it is asked for.
        unknown: ``streams`` or ``context``.
        streams: sequences, where the context is asked for.
        itl, tpot: limits [s]; None for none. Without either, memory and flags bind.
        prompt, every: a long prompt that comes among them, and how often; None for none [tokens, s].
        chunk: token budget; None for the prompt in one step, or without a prompt vLLM's default (``"engine"``).
        cached_prefix: tokens of the prompt that the prefix cache has, those of its images first.
        images, image_size: of the prompt, before its text, as :func:`costmodel.predict` takes them.
        confirm: simulate the answer and one more as well.
        server: model, GPU and flags (:class:`~costmodel.planning.serving.PlanOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    choice(unknown, ("streams", "context"), "unknown")
    asked: dict[str, Any] = {
        "context": context, "unknown": unknown, "streams": streams, "itl": itl, "tpot": tpot, "prompt": prompt, "every": every,
        "chunk": chunk, "cached_prefix": cached_prefix, "images": images, "image_size": image_size,
    }  # fmt: skip
    return _verified(_batch, asked, confirm, server)


def _verified(function: Callable[..., SizePlan], asked: dict[str, Any], confirm: bool, server: PlanOptions) -> SizePlan:
    def again(name: str, value: Any) -> SizePlan:
        if name in asked:
            return function(**{**asked, name: value}, confirm=False, server=server)
        return function(**asked, confirm=False, server={**server, name: value})

    return verified(function(**asked, confirm=confirm, server=server), again)


def _batch(
    context: int,
    unknown: Literal["streams", "context"],
    streams: int,
    itl: float | None,
    tpot: float | None,
    prompt: int | None,
    every: float,
    chunk: int | str | None,
    cached_prefix: int,
    images: int,
    image_size: str | Sequence[int] | None,
    confirm: bool,
    server: PlanOptions,
) -> SizePlan:
    """Answer :func:`plan_batch`."""
    pictures = images_of(server, images, image_size)
    load = with_images(checked(streams, context, 1 if prompt is None else prompt, 1, every, cached_prefix), pictures)
    if prompt is None:
        if pictures is not None:
            raise InputError("images are those of a prompt: give --prompt as well")
        if load.prefix:
            raise InputError("a cached prefix is that of a prompt: give --prompt as well")
        load = replace(load, prompt=0, prompts=0)
    else:
        with_prefix(load)
    site = make_site(server, load.prompt or 1, _NAMES_OF_BATCH, pictures)
    load = replace(load, encoding=site.encoding)
    question = _Question("batch", unknown, site, load, limits_of(False, itl=itl, tpot=tpot), chunk)
    return question.answer(confirm)


_NAMES_OF_BATCH = dict.fromkeys(
    (
        *("context", "unknown", "streams", "itl", "tpot", "prompt", "every", "chunk", "cached_prefix"),
        *("images", "image_size", "confirm"),
    )
)


def plan_prompt(
    streams: int = 32,
    context: int = 500,
    *,
    itl: float | None = None,
    ttft: float | None = None,
    every: float | None = None,
    chunk: int | str | None = None,
    cached_prefix: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    confirm: bool = True,
    **server: Unpack[PlanOptions],
) -> SizePlan:
    """Return the longest prompt that may come among decoding streams, within limits.

    Limits: ITL, the longest mixed step; TTFT at the worst moment, T_dec + Σ T_mixed and the time before the engine has the prompt; the
    KV cache; ``max_model_len`` − 1; and with ``every``, that one is done before the next comes.

    Args:
        streams, context: sequences that decode, and tokens of each.
        itl, ttft: limits [s]; None for none.
        every: time from one such prompt to the next; None for prompts that are rare [s].
        chunk: token budget; None for the prompt in one step, ``"engine"`` for vLLM's default.
        cached_prefix: tokens at its beginning that the prefix cache has; of a prompt no longer than that, the last one is computed, and a
            note says so.
        images, image_size: at its beginning, as :func:`costmodel.predict` takes them; the answer counts the tokens of the text after them.
        confirm: simulate the answer and one more as well.
        server: model, GPU and flags (:class:`~costmodel.planning.serving.PlanOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    asked: dict[str, Any] = {
        "streams": streams,
        "context": context,
        "itl": itl,
        "ttft": ttft,
        "every": every,
        "chunk": chunk,
        "cached_prefix": cached_prefix,
        "images": images,
        "image_size": image_size,
    }
    return _verified(_prompt, asked, confirm, server)


def _prompt(
    streams: int,
    context: int,
    itl: float | None,
    ttft: float | None,
    every: float | None,
    chunk: int | str | None,
    cached_prefix: int,
    images: int,
    image_size: str | Sequence[int] | None,
    confirm: bool,
    server: PlanOptions,
) -> SizePlan:
    """Answer :func:`plan_prompt`."""
    pictures = images_of(server, images, image_size)
    load = checked(streams, context, 1, 1, RARE if every is None else every, cached_prefix)
    names = ("streams", "context", "itl", "ttft", "every", "chunk", "cached_prefix", "images", "image_size", "confirm")
    site = make_site(server, 1, dict.fromkeys(names), pictures)
    load = replace(load, encoding=site.encoding)
    if site.info.rung == "fixed":
        raise InputError("prefill_s is the time of a prompt of one length; the longest prompt needs a model and a GPU")
    if load.prefix:
        cached_part(load.prefix, max(site.most_tokens - 1, 1) if site.most_tokens else MOST_TOKENS)
    return _Question("prompt", "prompt", site, load, limits_of(False, itl=itl, ttft=ttft), chunk).answer(confirm)


RARE = 1e6
"""Time between prompts that do not come often enough to matter [s]."""
MOST_STREAMS, MOST_TOKENS = 1_000_000, 10_000_000
"""As many as are looked at; tokens where the model has no limit."""
FLAGS = ("max_num_seqs", "token_budget", "max_model_len")


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked: a load of which one number is to be as large as the limits allow."""

    plan: Literal["batch", "prompt"]
    unknown: Unknown
    site: Site
    load: Steady
    slo: Slo
    chunk: int | str | None

    def at(self, number: int) -> Steady:
        """Return the load with that number."""
        if self.unknown == "prompt":
            return replace(self.load, prompt=number + self.load.image_tokens)
        if self.unknown == "context":
            return replace(self.load, context=number)
        return replace(self.load, streams=number)

    def budget(self, load: Steady) -> int:
        """Return the token budget of a load."""
        if isinstance(self.chunk, str) and self.chunk not in ONE_STEP:
            if self.chunk != "engine":
                raise InputError(f"chunk must be a whole number, 'engine' or 'one-step', not {self.chunk!r}")
            return self.site.default_budget
        if self.chunk is None or isinstance(self.chunk, str):
            return load.one_step if load.prompts else max(self.site.default_budget, load.streams)
        return whole(self.chunk, "chunk", 1)

    def seats(self, load: Steady) -> int:
        """Return ``max_num_seqs`` that a load asks for: the streams and the prompt; for the longest prompt, the engine's own at least."""
        needed = load.streams + load.prompts
        return max(needed, self.site.default_seqs) if self.unknown != "streams" else needed

    def limits(self) -> Mapping[str, Callable[[Steady], bool]]:
        """Return what must hold, by the name of the limit."""
        clock, slo = self.site.clock, self.slo
        found: dict[str, Callable[[Steady], bool]] = {}
        if (most := self._most_seqs()) is not None:
            found["max_num_seqs"] = lambda load: load.streams + load.prompts <= most
        if self.chunk is not None:
            found["token_budget"] = lambda load: self.budget(load) >= load.streams + load.prompts
        if (longest := self.site.most_tokens) is not None:
            found["max_model_len"] = lambda load: max(load.context, load.prompt) + 1 <= longest
        found["kv_memory"] = self._fits
        if self.load.prompts:  # before the times: where prompts come too fast, those have no end
            found["load"] = lambda load: keeps_up(clock, load, self.budget(load))
        for name in ("tpot", "itl", "ttft"):
            if (limit := getattr(slo, f"{name}_s")) is not None:
                found[name] = partial(self._within, name, limit)
        return found

    def _within(self, name: str, limit: float, load: Steady) -> bool:
        return MEASURES[name](self.site, load, self.budget(load)) <= limit

    def _most_seqs(self) -> int | None:
        """Return ``max_num_seqs`` as a limit: as asked for; where it is not, the answer says what to set it to."""
        return None if self.site.options.get("max_num_seqs") is None else self.site.default_seqs

    def _fits(self, load: Steady) -> bool:
        budget = self.budget(load)
        if load.prompts and budget <= load.streams:
            return True  # another limit
        free = room(self.site, budget, self.seats(load))
        return free.holds(self.site, needed_blocks(free, load))

    def answer(self, confirm: bool) -> SizePlan:
        """Return the largest number for which all limits hold, the limits taken one after another, cheapest first."""
        least, most = 1, MOST_STREAMS if self.unknown == "streams" else self.site.most_tokens or MOST_TOKENS
        limits, bounds, reached, binding = self.limits(), [], most, ""
        for name, holds in limits.items():
            found = last_that(self._with(holds), least, most)
            if found is None:
                return self._refusal(name, limits)
            bounds.append(Bound(limit=name, allows=None if found == most else found))
            if found < reached:
                reached, binding = found, name
            if name in FLAGS:  # beyond them, times and memory have no meaning
                most = found
        for name, holds in limits.items():  # one that is not monotone may fail below where another one stops
            found = last_that(self._with(holds), least, reached)
            if found is None:
                return self._refusal(name, limits)
            if found < reached:
                reached, binding = found, name
        binds = self._sentence(binding, reached)
        load = self.at(reached)
        names = {"streams": "max_num_seqs", "context": "context_tokens", "prompt": "prompt_tokens"}
        values: dict[str, Any] = {names[self.unknown]: self.seats(load) if self.unknown == "streams" else reached}
        at = self._check(reached, limits, confirm)
        after = self._check(reached + 1, limits, confirm) if binding else None
        starts, said = to_start(self.site, self.budget(load), self.seats(load))
        values |= {"max_model_len": starts} if starts else {}
        bound = {name: "kv_memory" if name == "max_model_len" else binding or "none" for name in values}
        return self._document(
            load,
            warned=(
                *unserved(at, None if binding == "max_model_len" else after),  # beyond that, none is to be served
                *said,
                *image_warnings(load.encoding.images if load.encoding else None, self.budget(load)),
                *self._outside(reached, binding),
            ),
            feasible=True,
            binding=binding or "none",
            binds=binds,
            bounds=tuple(bounds),
            advice=Advice(**values, binding=bound),
            at=at,
            after=after,
        )

    def _with(self, holds: Callable[[Steady], bool]) -> Callable[[int], bool]:
        return lambda number: holds(self.at(number))

    def _document(self, reached: Steady, warned: tuple[str, ...] = (), **rest: Any) -> SizePlan:
        """Return the answer; ``reached`` is the load at it."""
        load = self.load
        workload: dict[str, str | int | float | bool | None] = {
            "kind": "interference" if load.prompts else "decode", "streams": load.streams, "context_tokens": load.context,
            "prompt_tokens": load.prompt if load.prompts else None, "every_s": load.every if load.prompts else None,
            "chunk_tokens": self.chunk, "cached_prefix_tokens": load.prefix if load.prompts else None,
        }  # fmt: skip
        workload[{"context": "context_tokens", "prompt": "prompt_tokens"}.get(self.unknown, self.unknown)] = None
        if load.every == RARE:
            workload["every_s"] = None
        workload |= image_numbers(load.encoding.images if load.encoding else None)
        return SizePlan(
            **head(self.site), plan=self.plan, unknown=self.unknown, workload=workload, limits=self.slo,
            notes=(*self.site.notes, *sent(self.site, reached), *all_cached(reached)), warnings=(*self.site.warnings, *warned), **rest,
        )  # fmt: skip

    def _sentence(self, binding: str, number: int) -> str:
        what = {"streams": "sequences", "context": "tokens of context", "prompt": "tokens of prompt"}[self.unknown]
        what += " after its images" if self.unknown == "prompt" and self.load.encoding else ""
        if not binding:
            return f"no limit binds: {number:,} {what} are as many as are looked at"
        after = self.at(number + 1)
        budget = self.budget(after)
        if binding == "kv_memory":
            why = no_room(self.site, after, budget, self.seats(after))
        elif binding in MEASURES:
            what_of = {"tpot": "TPOT", "itl": "longest gap", "ttft": "TTFT"}[binding]
            reached = MEASURES[binding](self.site, after, budget)
            why = f"one more makes the {what_of} {over(reached, getattr(self.slo, f'{binding}_s'))}"
        elif binding == "load":
            why = f"with one more a prompt takes {ms(taken_s(self.site.clock, after, budget))}, and the next comes after {ms(after.every)}"
        elif binding == "max_num_seqs":
            why = f"{self.site.default_seqs:,} sequences may run" + (
                ", the prompt one of them" if after.prompts else ""
            )
        elif binding == "token_budget":
            why = f"every sequence takes one of {budget:,} tokens per step"
        else:
            why = f"no sequence is longer than {self.site.most_tokens:,} tokens"
        return f"{number:,} {what}: {NAMES[binding]} binds; {why}"

    def _refusal(self, binding: str, limits: Mapping[str, Callable[[Steady], bool]]) -> SizePlan:
        """Return the answer where not even one will do."""
        load = self.at(1)
        one = {"streams": "one sequence", "context": "a context of one token", "prompt": "a prompt of one token"}
        text, near = refused(self.site, self.slo, load, self.budget(load), self.seats(load), binding, one[self.unknown])
        return self._document(load, feasible=False, binding=binding, binds=text, nearest=near)

    def _outside(self, number: int, binding: str) -> tuple[str, ...]:
        loads = [self.at(number)] + ([self.at(number + 1)] if binding not in ("", "max_model_len") else [])
        return outside(self.site, *((load, self.budget(load)) for load in loads))

    def _check(self, number: int, limits: Mapping[str, Callable[[Steady], bool]], confirm: bool) -> Checked:
        """Return what a number leads to."""
        load, site = self.at(number), self.site
        budget = self.budget(load)
        free = room(self.site, budget, self.seats(load))
        blocks: dict[str, Any] = {"kv_blocks_needed": needed_blocks(free, load), "kv_blocks": free.blocks}
        if load.prompts and budget <= load.streams:
            return Checked(value=number, meets=False, **blocks)
        mean = MEASURES["tpot"](site, load, budget)
        times: dict[str, float | None] = {
            "itl": MEASURES["itl"](site, load, budget),
            "tpot": mean if mean < float("inf") else None,
            "ttft": ttft_s(site, load, budget) if load.prompts else None,
        }
        if load.prompts and load.step_count(budget) > MAX_STEPS:
            confirm = False
        return Checked(
            value=number,
            meets=all(holds(load) for holds in limits.values()),
            itl_s=times["itl"],
            tpot_s=times["tpot"],
            ttft_s=times["ttft"],
            before_engine_s=before_engine_s(site, load) if load.prompts else None,
            **interval_numbers(self.site, load, budget, times),
            **blocks,
            **(self._simulated(load, budget) if confirm else {}),
        )

    def _simulated(self, load: Steady, budget: int) -> dict[str, Any]:
        if load.every == RARE:  # as often as it takes to see a prompt or two
            load = replace(load, every=4 * taken_s(self.site.clock, load, budget))
        return interference_numbers(self.site, load, budget if load.prompts else None)
