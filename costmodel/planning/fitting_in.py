"""Whether a load fits into the KV cache, and how many more GPUs it takes where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodel.deployment import divides
from costmodel.hardware.errors import InputError
from costmodel.memory.wording import of_start
from costmodel.planning.answering import counted, last_that
from costmodel.planning.documents import Nearest
from costmodel.planning.serving import PlanOptions, Room, Site, make_site, room
from costmodel.planning.steady import Steady


def needed_blocks(free: Room, load: Steady) -> int:
    """Return the KV blocks of all streams and prompts; each has room for the token that comes next."""
    return free.needed(load.streams, load.context, load.prompts, load.prompt)


def fits(site: Site, load: Steady, budget: int, seqs: int) -> bool:
    """Tell whether a load fits at a token budget and ``max_num_seqs``."""
    free = room(site, budget, seqs)
    return free.holds(site, needed_blocks(free, load))


def seats(site: Site, load: Steady, budget: int) -> int:
    """Return ``max_num_seqs``: as asked for, else vLLM's default, at least what the load takes.

    Raises:
        InputError: fewer are asked for than the load takes.
    """
    needed = load.streams + load.prompts
    given = site.options.get("max_num_seqs")
    if given is not None and site.default_seqs < needed:
        raise InputError(
            f"max-num-seqs {given} leaves no place for {needed} sequences ({counted(load.streams, 'stream')} and the prompts); "
            f"use at least {needed}"
        )
    return max(min(site.default_seqs, budget), needed)


def more_gpus(site: Site, load: Steady, budget: int, seqs: int) -> Nearest | None:
    """Return the smallest tensor-parallel size at which a load fits, else expert-parallel size; None if there is none within a node."""
    return next(larger_sizes(site, load, budget, seqs), None) or more_experts(site, load, budget, seqs)


def more_experts(site: Site, load: Steady, budget: int, seqs: int) -> Nearest | None:
    """Return the smallest larger expert-parallel size within a node at which a load fits, where experts are spread already.

    If there is none, the smallest at which it fits with a larger tensor-parallel size, which the text names.
    """
    deployment = site.deployment
    if deployment is None or deployment.ep == 1 or site.options.get("kv_tokens") is not None:
        return None
    both, most = None, int(deployment.profile.link.gpus_per_node.value)
    for size in range(deployment.ep + deployment.tp, most + 1, deployment.tp):
        if (other := _changed(site, load, {"ep": size})) is None:
            continue
        if fits(other, load, budget, seqs):
            return Nearest(change="--ep", value=size, text=f"expert-parallel size {size}")
        if both is None and (wider := next(larger_sizes(other, load, budget, seqs), None)) is not None:
            both = Nearest(change="--ep", value=size, text=f"expert-parallel size {size} and {wider.text}")
    return both


def larger_sizes(site: Site, load: Steady, budget: int, seqs: int) -> Iterator[Nearest]:
    """Yield the larger tensor-parallel sizes within a node at which a load fits, the smallest first."""
    deployment = site.deployment
    if deployment is None or site.options.get("kv_tokens") is not None:
        return
    most = int(deployment.profile.link.gpus_per_node.value)
    for size in range(deployment.tp + 1, most + 1):
        if not divides(deployment.architecture, size, deployment.ep):
            continue
        if (other := _changed(site, load, {"tp": size})) is not None and fits(other, load, budget, seqs):
            yield Nearest(change="--tp", value=size, text=f"tensor-parallel size {size}")


def _changed(site: Site, load: Steady, change: PlanOptions) -> Site | None:
    """Return a site with some options changed; None where that cannot be."""
    try:
        return make_site(
            {**site.options, **change}, max(load.prompt, 1), images=site.encoding.images if site.encoding else None
        )
    except InputError:
        return None


def no_room(site: Site, load: Steady, budget: int, seqs: int) -> str:
    """Say what does not fit."""
    free, given = room(site, budget, seqs), site.options.get("kv_tokens")
    if not free.blocks and given is None:
        return f"the weights and activations of {site.info.model} leave no room for a KV cache on {site.info.gpu}"
    needed = needed_blocks(free, load)
    asked = site.options.get("max_model_len")
    if asked is not None and not free.starts(asked):
        longest = free.too_long(site)
        return f"vLLM does not start with --max-model-len {asked}: the {free.blocks:,} KV blocks hold a sequence of {longest:,} tokens"
    return (
        f"{counted(load.streams, 'stream')} at context {load.context:,}"
        + (f" and {load.prompts} × {load.prompt:,} tokens of prompt" if load.prompts else "")
        + f" take{'' if load.streams + load.prompts > 1 else 's'} {needed:,} KV blocks; there are {free.blocks:,}"
        + ("" if given is None else f" (--kv-tokens {given})")
    )


def shorter_sequences(site: Site, load: Steady, budget: int, seqs: int) -> Nearest | None:
    """Return the largest ``max_model_len`` with which vLLM starts, if the one asked for is too long and the load's sequences are not."""
    longest = room(site, budget, seqs).too_long(site)
    if site.options.get("max_model_len") is None or longest is None or longest <= max(load.context, load.prompt):
        return None
    return Nearest(change="--max-model-len", value=longest, text=f"--max-model-len {longest}")


def more_tokens(site: Site, load: Steady, budget: int, seqs: int) -> Nearest | None:
    """Return the KV cache that a load takes, where its size is given [tokens]."""
    if site.options.get("kv_tokens") is None:
        return None
    free = room(site, budget, seqs)
    tokens = needed_blocks(free, load) * free.block_tokens
    return Nearest(change="--kv-tokens", value=tokens, text=f"--kv-tokens {tokens}")


def to_start(site: Site, budget: int, seqs: int) -> tuple[int | None, tuple[str, ...]]:
    """Return the largest ``max_model_len`` with which vLLM starts, where the model's own is too long, and a warning that says so."""
    longest = room(site, budget, seqs).too_long(site)
    if longest is None or site.most_tokens is None:
        return None, ()
    return longest, (of_start(longest, site.most_tokens),)


def fewer_streams(site: Site, load: Steady, budget: int, seqs: int) -> Nearest | None:
    """Return the most streams that fit; None if not even one does."""
    found = last_that(lambda streams: fits(site, replace(load, streams=streams), budget, seqs), 1, load.streams)
    return None if found is None else Nearest(change="--streams", value=found, text=counted(found, "stream"))
