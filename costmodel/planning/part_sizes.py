"""One part with 1, 2, 4 … GPUs: whether a load holds its limits there, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.deployment import divides
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import ms, over, too_long
from costmodel.planning.documents import GpuOption, Slo
from costmodel.planning.fitting_in import needed_blocks, no_room, seats
from costmodel.planning.serving import PlanOptions, Site, make_site, room
from costmodel.planning.steady import Steady, keeps_up, longest_gap_s, mean_gap_s, ttft_s

MEASURES = {"itl": longest_gap_s, "ttft": ttft_s, "tpot": mean_gap_s}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What every part is asked.

    Attributes:
        load, slo: streams and prompts, and their limits.
        chunk: token budget, or ``"engine"``.
        server: model and flags.
        most: GPUs at most; None for a node of the part.
    """

    load: Steady
    slo: Slo
    chunk: int | str
    server: PlanOptions
    most: int | None

    def site(self, part: str, tp: int) -> Site:
        """Return a part (name, or path of a profile) with a tensor-parallel size."""
        return make_site({**self.server, "gpu": part, "tp": tp}, self.load.prompt)

    def budget(self, site: Site) -> int:
        """Return the token budget at a site: as asked for, or the default there."""
        return site.default_budget if isinstance(self.chunk, str) else self.chunk

    def excess(self, option: GpuOption) -> tuple[bool, float]:
        """Return whether a limited measure has no value, as under overload, and the largest share of its limit that one reaches.

        The smaller the closer; a share above 1 is a limit missed.
        """
        limits = {name: limit for name in MEASURES if (limit := getattr(self.slo, f"{name}_s")) is not None}
        values: dict[str, float | None] = {name: getattr(option, f"{name}_s") for name in limits}
        shares = [value / limits[name] for name, value in values.items() if value is not None]
        return None in values.values(), max([*shares, (option.ttft_s or 0.0) / self.load.every])


def sizes(part: str, price: float | None, wanted: Wanted) -> Iterable[GpuOption]:
    """Yield a part (name, or path of a profile) with each tensor-parallel size: powers of two that divide the model and ``ep``."""
    profile, choice = load_gpu(part)
    common: dict[str, Any] = {"gpu": choice.name, "name": profile.name, "meets": False}
    try:
        first = wanted.site(part, 1)
    except InputError as error:
        yield GpuOption(**common, gpus=1, missed=("part",), why=str(error))
        return
    deployment, limit = first.deployment, wanted.most or int(profile.link.gpus_per_node.value)
    assert deployment is not None  # no fixed step times
    if first.info.gpus > limit:
        why = f"{first.info.gpus} GPUs (--ep {deployment.ep}) are more than {limit} (--max-gpus)"
        yield GpuOption(**common, gpus=first.info.gpus, missed=("max_gpus",), why=why)
        return
    size = 1
    while max(size, deployment.ep) <= limit:
        if divides(deployment.architecture, size, deployment.ep) and (deployment.ep == 1 or deployment.ep % size == 0):
            site = first if size == 1 else wanted.site(part, size)
            yield _option(site, {**common, "tensor_parallel": size}, wanted, price)
        size *= 2


def _option(site: Site, common: dict[str, Any], wanted: Wanted, price: float | None) -> GpuOption:
    """Return one part with one number of GPUs, and whether it will do."""
    load, slo = wanted.load, wanted.slo
    budget = wanted.budget(site)
    cost = None if price is None else price * site.info.gpus
    common |= {"gpus": site.info.gpus, "rung": site.info.rung, "cost_per_hour": cost}
    if (longer := too_long(site, load)) is not None:
        return GpuOption(**common, missed=("max_model_len",), why=longer[0])
    free = room(site, budget, seats(site, load, budget))  # before the budget: too few seats are so on every part
    if budget <= load.streams:
        why = (
            f"its default token budget of {budget:,} has no room for a prompt beside {load.streams:,} streams (--chunk)"
        )
        return GpuOption(**common, missed=("token_budget",), why=why)
    if not free.holds(site, needed := needed_blocks(free, load)):
        why = f"KV cache: {needed:,} blocks are needed, {free.blocks:,} free"
        if not free.blocks:
            why = "the weights leave no room for a KV cache"
        elif needed <= free.blocks:
            why = no_room(site, load, budget, seats(site, load, budget))
        return GpuOption(**common, missed=("kv_memory",), why=why)
    values = {name: measure(site.clock, load, budget) for name, measure in MEASURES.items()}
    limits = {name: limit for name in MEASURES if (limit := getattr(slo, f"{name}_s")) is not None}
    missed = [name for name, limit in limits.items() if limit < values[name] < math.inf]
    said = [f"{name.upper()} {over(values[name], limits[name])}" for name in missed]
    if not keeps_up(site.clock, load, budget):
        missed.insert(0, "load")
        said.insert(0, f"a prompt takes up to {ms(values['ttft'])}, and the next comes after {ms(load.every)}")
    if not missed:
        closest = max(limits, key=lambda name: values[name] / limits[name])
        said = [f"{closest.upper()} {ms(values[closest])} of {ms(limits[closest])}"]
    replicas = site.info.gpus // common["tensor_parallel"]  # of the attention, each with the streams
    tokens = replicas * load.streams / values["tpot"]  # none where the mean gap has no end
    common |= {f"{name}_s": value for name, value in values.items() if value < math.inf}
    return GpuOption(
        **{**common, "meets": not missed}, missed=tuple(missed), why="; ".join(said),
        cost_per_million_tokens=cost / (tokens * 3600) * 1e6 if cost is not None and tokens else None,
    )  # fmt: skip


def rank(option: GpuOption) -> tuple[float, float, float]:
    """Return what options are sorted by: cost where it is known, GPUs, TPOT."""
    return option.cost_per_hour or 0.0, option.gpus, option.tpot_s or math.inf


def closest(tried: Sequence[GpuOption], wanted: Wanted) -> GpuOption:
    """Return the option that is least over its limits, of those on which the load runs; the last one where it runs on none."""
    running = [option for option in tried if option.ttft_s is not None]
    return min(running, key=wanted.excess) if running else tried[-1]


def ranked(tried: Sequence[GpuOption], wanted: Wanted) -> list[GpuOption]:
    """Return one row per part: the fewest GPUs that will do, else those that come closest; those that will do first."""
    rows = []
    for name in dict.fromkeys(option.gpu for option in tried):
        own = [option for option in tried if option.gpu == name]
        rows.append(next((option for option in own if option.meets), closest(own, wanted)))
    return sorted(rows, key=lambda option: (not option.meets, *rank(option)))
