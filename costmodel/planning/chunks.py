"""``plan_chunk``: the largest token budget for a limit on the gaps, what it costs in TTFT, and the trade-off between the two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from costmodel.checks import whole
from costmodel.hardware.errors import InputError
from costmodel.image_documents import image_warnings
from costmodel.planning.answering import (
    counted,
    first_that,
    head,
    last_that,
    limits_of,
    ms,
    nearest_limit,
    over,
    sent,
    too_long,
    up,
    verified,
)
from costmodel.planning.confirming import interference_numbers, unserved
from costmodel.planning.documents import Advice, Checked, ChunkPlan, ChunkPoint, Nearest, Slo
from costmodel.planning.fitting_in import (
    fewer_streams,
    fits,
    more_gpus,
    more_tokens,
    needed_blocks,
    no_room,
    seats,
    shorter_sequences,
    to_start,
)
from costmodel.planning.serving import PlanOptions, Site, make_site, room
from costmodel.planning.steady import (
    Steady,
    before_engine_s,
    checked,
    decode_s,
    first_step_s,
    keeps_up,
    longest_gap_s,
    mean_gap_s,
    taken_s,
    ttft_s,
    with_images,
    with_prefix,
)
from costmodel.planning.trusting import interval_numbers, outside
from costmodel.rungs import MAX_STEPS
from costmodel.simulation.encoding import image_numbers, images_of
from costmodel.spike import step_count

MULTIPLE = 256
"""Token budgets are recommended in multiples of this."""
POINTS = 24
"""Token budgets of the trade-off, about."""


def plan_chunk(
    prompt: int = 8000,
    streams: int = 32,
    context: int = 500,
    *,
    itl: float | None = None,
    ttft: float | None = None,
    every: float = 10.0,
    prompts: int = 1,
    multiple: int = MULTIPLE,
    cached_prefix: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    confirm: bool = True,
    **server: Unpack[PlanOptions],
) -> ChunkPlan:
    """Return the largest ``max_num_batched_tokens`` for which no gap of a stream is over a limit.

    The longest gap is that of the longest mixed step: streams·1 + chunk tokens, the chunk with all of the prompt before it in the cache.
    The answer M is the largest multiple of ``multiple`` with gap(M) ≤ itl; at every larger one the gap is over the limit, unless M takes
    the whole prompt in one step. Three further limits: the KV cache, of which a larger budget leaves less (activations); prompts that
    are to be done before the next come, which takes a budget that is not too small; and, if it is given, ``ttft``.

    Args:
        prompt, prompts, every: tokens of the long prompt, without those of its images, how many come at once, and how often [s].
        streams, context: sequences that decode, and tokens of each: the longest that they reach, if they grow.
        itl: limit on every gap of a stream [s].
        ttft: limit on the TTFT of a prompt that comes at the worst moment, from when it is sent [s]; None for none.
        multiple: of which the recommended budget is one.
        cached_prefix: tokens of each prompt that the prefix cache has, those of its images first.
        images, image_size: of each prompt, before its text, as :func:`costmodel.predict` takes them.
        confirm: simulate the answer and the next multiple as well.
        server: model, GPU and flags (:class:`~costmodel.planning.serving.PlanOptions`).

    Returns:
        The frozen document ``costmodel.plan/1``; ``feasible`` is False, with ``binding`` and ``nearest``, where no budget will do.

    Raises:
        InputError: a name, number or combination that cannot be; no limit on the ITL.
    """
    if itl is None:
        raise InputError("give a limit on the gaps between tokens: itl, in seconds (--itl-ms)")
    asked: dict[str, Any] = {
        "prompt": prompt, "streams": streams, "context": context, "itl": itl, "ttft": ttft, "every": every, "prompts": prompts,
        "multiple": multiple, "cached_prefix": cached_prefix, "images": images, "image_size": image_size,
    }  # fmt: skip

    def again(name: str, value: Any) -> ChunkPlan:
        if name in asked:
            return _plan(**{**asked, name: value}, confirm=False, server=server)
        changed: Any = {**server, name: value}
        return _plan(**asked, confirm=False, server=changed)

    return verified(_plan(**asked, confirm=confirm, server=server), again)


def _plan(
    prompt: int,
    streams: int,
    context: int,
    itl: float,
    ttft: float | None,
    every: float,
    prompts: int,
    multiple: int,
    cached_prefix: int,
    images: int,
    image_size: str | Sequence[int] | None,
    confirm: bool,
    server: PlanOptions,
) -> ChunkPlan:
    """Answer :func:`plan_chunk`."""
    pictures = images_of(server, images, image_size)
    load = with_prefix(with_images(checked(streams, context, prompt, prompts, every, cached_prefix), pictures))
    slo = limits_of(True, itl=itl, ttft=ttft)
    step = whole(multiple, "multiple", 1)
    names = ("itl", "ttft", "every", "prompts", "multiple", "cached_prefix", "images", "image_size")
    site = make_site(server, load.prompt, dict.fromkeys(names), pictures)
    load = replace(load, encoding=site.encoding)
    seats(site, load, step)  # too few are an error, whatever else does not hold
    if step_count(load.new, load.prompts, step - load.streams % step) > MAX_STEPS:
        raise InputError(
            f"{load.new:,} tokens of prompt in chunks of {step} are more than {MAX_STEPS:,} steps; use a larger multiple"
        )
    asked = _Question(site, load, slo, step)
    found = asked.best()
    nowhere = found.binding in ("kv_memory", "max_model_len") and found.budget is None
    workload: dict[str, str | int | float | bool | None] = {
        "kind": "interference", "prompt_tokens": load.prompt, "prompts": load.prompts, "streams": load.streams,
        "context_tokens": load.context, "every_s": load.every, "cached_prefix_tokens": load.cached,
        **image_numbers(pictures),
    }  # fmt: skip
    common: dict[str, Any] = {
        **head(site), "workload": workload, "limits": slo, "multiple": step, "points": () if nowhere else asked.points(found.budget),
        "notes": (*site.notes, *sent(site, load)), "warnings": site.warnings,
    }  # fmt: skip
    budget = found.budget
    at = None if budget is None else asked.check(budget, confirm)
    if budget is None or not found.feasible:
        common["warnings"] += unserved(at) + (() if budget is None else outside(site, (load, budget)))
        return ChunkPlan(
            **common, feasible=False, binding=found.binding, binds=found.binds, nearest=found.nearest, at=at
        )
    following, top = (budget // step + 1) * step, asked.top
    after = None if budget >= top else asked.check(following, confirm)
    starts, warned = to_start(site, budget, seats(site, load, budget))
    far = outside(site, (load, budget), *([] if after is None else [(load, following)]))
    common["warnings"] += (*unserved(at, after), *warned, *image_warnings(pictures, budget), *far)
    return ChunkPlan(
        **common,
        feasible=True,
        binding=found.binding,
        binds=found.binds,
        advice=Advice(
            max_num_batched_tokens=budget,
            max_model_len=starts,
            binding={"max_num_batched_tokens": found.binding} | ({"max_model_len": "kv_memory"} if starts else {}),
        ),
        exact_max_num_batched_tokens=budget if after is None else last_that(asked.holds, budget, following - 1),
        at=at,
        after=after,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    budget: int | None
    feasible: bool
    binding: str
    binds: str
    nearest: tuple[Nearest, ...] = ()


@dataclass(frozen=True, slots=True)
class _Question:
    """A load, its limits, and the server; budgets are counted in multiples."""

    site: Site
    load: Steady
    slo: Slo
    step: int

    @property
    def least(self) -> int:
        """The smallest multiple that leaves room for a prompt."""
        return (self.load.streams // self.step + 1) * self.step

    @property
    def top(self) -> int:
        """The smallest multiple that takes the prompts in one step."""
        return max(-(-self.load.one_step // self.step) * self.step, self.least)

    def gap(self, budget: int) -> float:
        """Return the longest gap [s]."""
        return longest_gap_s(self.site.clock, self.load, budget)

    def ttft(self, budget: int) -> float:
        """Return the TTFT at the worst moment [s]."""
        return ttft_s(self.site, self.load, budget)

    def fits(self, budget: int) -> bool:
        """Tell whether the load fits into the KV cache."""
        return fits(self.site, self.load, budget, seats(self.site, self.load, budget))

    def calm(self, budget: int) -> bool:
        """Tell whether the longest gap is within the limit."""
        return self.slo.itl_s is not None and self.gap(budget) <= self.slo.itl_s

    def keeps_up(self, budget: int) -> bool:
        """Tell whether a prompt is done before the next."""
        return keeps_up(self.site.clock, self.load, budget)

    def holds(self, budget: int) -> bool:
        """Tell whether the limits hold that ask for a small budget."""
        return self.calm(budget) and self.fits(budget)

    def best(self) -> _Found:
        """Return the largest budget within the limits."""
        load, limit = self.load, self.slo.itl_s or 0.0
        if (longer := too_long(self.site, load)) is not None:
            return _Found(None, False, "max_model_len", longer[0], tuple(longer[1]))
        if not self.fits(load.streams + 1):
            return self._no_memory()
        room_for = self._multiple(
            last_that(lambda n: self.fits(n * self.step), self.least // self.step, self.top // self.step)
        )
        budget = None if room_for is None else self._calm_below(room_for)
        if budget is None:  # between the streams and the first multiple
            budget = last_that(self.holds, load.streams + 1, self.least - 1)
        if budget is None:
            return self._no_calm()
        if budget >= self.top:
            binding, binds = (
                "prompt",
                "the whole prompt goes through in one step within the limit: a larger budget changes nothing",
            )
        else:
            following = budget + 1 if budget < self.least else budget + self.step
            if self.calm(following) or budget == room_for:
                binding, binds = (
                    "kv_memory",
                    f"the KV cache binds: {no_room(self.site, load, following, self._seats(following))}",
                )
            else:
                if not self.calm(self.least):  # a rounder number than the next one
                    following = max(following, self.least)
                binding = "itl"
                binds = (
                    f"the limit on the gaps binds: {ms(self.gap(budget))} at {budget:,} tokens per step; at {following:,} "
                    f"{over(self.gap(following), limit)}"
                )
        if not self.keeps_up(budget):
            return self._too_slow(budget, binding)
        wanted = self.slo.ttft_s
        if wanted is not None and self.ttft(budget) > wanted:
            return self._too_late(budget, binding, wanted)
        return _Found(budget, True, binding, binds)

    def _seats(self, budget: int) -> int:
        return seats(self.site, self.load, budget)

    def _multiple(self, number: int | None) -> int | None:
        return None if number is None else number * self.step

    def _calm_below(self, most: int) -> int | None:
        """Return the largest multiple up to ``most`` within the limit on the gaps.

        The longest gap may fall where a larger budget needs one step less; the first mixed step never does. So those whose first step is
        over the limit are passed by bisection, and the rest in turn.
        """
        limit = self.slo.itl_s or 0.0
        start = last_that(
            lambda n: first_step_s(self.site.clock, self.load, n * self.step) <= limit,
            self.least // self.step,
            most // self.step,
        )
        for number in range(start or 0, self.least // self.step - 1, -1):
            if self.calm(number * self.step):
                return number * self.step
        return None

    def _first(self, holds: Callable[[int], bool], seconds: float) -> int | None:
        """Return the smallest budget for which something holds that asks for a large one.

        ``seconds`` is a time that the prompts may take at most: of as many decode steps as fit into it, each takes a chunk at least.
        """
        load = self.load
        chunk = math.ceil(load.new * load.prompts * decode_s(self.site.clock, load) / seconds)
        return first_that(holds, load.streams + max(chunk, 1), self.top)

    def _no_memory(self) -> _Found:
        load, budget = self.load, self.load.streams + 1
        near = [
            more_gpus(self.site, load, self.least, self._seats(self.least)),
            fewer_streams(self.site, load, self.least, self._seats(self.least)),
            shorter_sequences(self.site, load, self.least, self._seats(self.least)),
            more_tokens(self.site, load, self.least, self._seats(self.least)),
        ]
        text = no_room(self.site, load, budget, self._seats(budget))
        return _Found(None, False, "kv_memory", text, tuple(each for each in near if each is not None))

    def _no_calm(self) -> _Found:
        load = self.load
        limit, decode = self.slo.itl_s or 0.0, decode_s(self.site.clock, load)
        if decode > limit:
            what = f"a decode step of {counted(load.streams, 'stream')} alone takes {ms(decode)}, over the limit of {ms(limit)}"
        else:
            what = f"even the smallest chunk makes a step of {ms(self.gap(load.streams + 1))}, over the limit of {ms(limit)}"
        near, budget = [], self._first(self.keeps_up, load.every) or self.top
        if self.fits(budget):
            near.append(nearest_limit("itl", self.gap(budget), f"with {budget:,} tokens per step"))
        fewer = last_that(self._calm_with, 1, load.streams - 1)
        if fewer is not None:
            near.append(Nearest(change="--streams", value=fewer, text=counted(fewer, "stream")))
        return _Found(None, False, "itl", what, tuple(near))

    def _calm_with(self, streams: int) -> bool:
        """Tell whether the smallest chunk beside so many streams makes a step within the limit."""
        load = replace(self.load, streams=streams)
        return longest_gap_s(self.site.clock, load, streams + 1) <= (self.slo.itl_s or 0.0)

    def _too_slow(self, budget: int, binding: str) -> _Found:
        """The limits allow only budgets at which prompts come faster than they are taken."""
        load, clock = self.load, self.site.clock
        took = taken_s(clock, load, budget)
        text = (
            f"the limits contradict the load: {budget:,} tokens per step are the most ({binding}), "
            f"with which a prompt takes up to {ms(took)}, but the next comes after {ms(load.every)}"
        )
        near, enough = [], self._first(self.keeps_up, load.every)
        if enough is not None and binding == "itl" and self.fits(enough):
            near.append(nearest_limit("itl", self.gap(enough), f"with {enough:,} tokens per step"))
        near.append(Nearest(change="--every", value=up(took), text=f"a prompt every {ms(up(took))}"))
        return _Found(budget, False, "load", text, tuple(near))

    def _too_late(self, budget: int, binding: str, wanted: float) -> _Found:
        """The limits allow only budgets at which the TTFT is over its limit."""
        took = self.ttft(budget)
        text = (
            f"the limits contradict each other: {budget:,} tokens per step are the most ({binding}), "
            f"with which the TTFT is up to {ms(took)}, for {ms(wanted)} allowed"
        )
        near, enough = [], self._first(lambda n: self.ttft(n) <= wanted, wanted)
        if enough is not None and binding == "itl" and self.fits(enough):
            near.append(nearest_limit("itl", self.gap(enough), f"with {enough:,} tokens per step"))
        near.append(nearest_limit("ttft", took, "with the limit on the ITL as it is"))
        return _Found(budget, False, "ttft", text, tuple(near))

    def check(self, budget: int, confirm: bool) -> Checked:
        """Return what a budget leads to."""
        clock, load = self.site.clock, self.load
        free = room(self.site, budget, self._seats(budget))
        ttft = self.ttft(budget)
        late = self.slo.ttft_s is not None and ttft > self.slo.ttft_s
        gap, mean = self.gap(budget), mean_gap_s(clock, load, budget)
        tpot = mean if mean < math.inf else None
        return Checked(
            value=budget,
            meets=self.holds(budget) and self.keeps_up(budget) and not late,
            itl_s=gap,
            tpot_s=tpot,
            ttft_s=ttft,
            before_engine_s=before_engine_s(self.site, load),
            **interval_numbers(self.site, load, budget, {"itl": gap, "tpot": tpot, "ttft": ttft}),
            kv_blocks_needed=needed_blocks(free, load),
            kv_blocks=free.blocks,
            **(interference_numbers(self.site, load, budget) if confirm else {}),
        )

    def points(self, chosen: int | None) -> tuple[ChunkPoint, ...]:
        """Return the trade-off: budgets spread evenly on a logarithmic scale, the answer and its neighbour among them."""
        low, high = self.least // self.step, self.top // self.step
        wanted = {round(low * (high / low) ** (index / POINTS)) * self.step for index in range(POINTS + 1)}
        if chosen is not None:
            wanted |= {chosen, (chosen // self.step + 1) * self.step}
        load, found = self.load, []
        for budget in sorted(each for each in wanted if each <= self.top):
            found.append(
                ChunkPoint(
                    max_num_batched_tokens=budget,
                    itl_s=self.gap(budget),
                    ttft_s=self.ttft(budget),
                    chunks=load.step_count(budget),
                    keeps_up=self.keeps_up(budget),
                )
            )
        return tuple(found)
