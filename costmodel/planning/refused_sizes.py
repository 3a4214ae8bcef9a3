"""Where not even one sequence, or one token, will do: why, and what could be changed."""

from __future__ import annotations

from costmodel.planning.answering import ms, nearest_limit, over, too_long, up
from costmodel.planning.documents import Nearest, Slo
from costmodel.planning.fitting_in import fewer_streams, more_gpus, more_tokens, no_room, shorter_sequences
from costmodel.planning.serving import Site
from costmodel.planning.steady import Steady, longest_gap_s, mean_gap_s, ttft_s

MEASURES = {"tpot": mean_gap_s, "itl": longest_gap_s, "ttft": ttft_s}


def refused(
    site: Site, slo: Slo, load: Steady, budget: int, seats: int, binding: str, one: str
) -> tuple[str, tuple[Nearest, ...]]:
    """Return why a load will not do, and the nearest values with which the limit that binds holds.

    Args:
        site, slo: model and GPU, and limits.
        load, budget, seats: the least load that was asked about, its token budget and ``max_num_seqs``.
        binding: the limit that it does not hold.
        one: of what it has one, in words.
    """
    near: list[Nearest | None] = []
    needed = load.streams + load.prompts
    if binding == "kv_memory":
        text = f"{one} does not fit: {no_room(site, load, budget, seats)}"
        near = [
            more_gpus(site, load, budget, seats),
            fewer_streams(site, load, budget, seats) if load.streams > 1 else None,
            shorter_sequences(site, load, budget, seats),
            more_tokens(site, load, budget, seats),
        ]
    elif binding in MEASURES:
        reached, allowed = MEASURES[binding](site.clock, load, budget), getattr(slo, f"{binding}_s")
        text = f"{one} is over the limit: {binding.upper()} {over(reached, allowed)}"
        near = [nearest_limit(binding, reached, f"with {one}")]
    elif binding == "load":
        took = ttft_s(site.clock, load, budget)
        text = (
            f"prompts come faster than they are taken: one takes {ms(took)}, and the next comes after {ms(load.every)}"
        )
        near = [Nearest(change="--every", value=up(took), text=f"a prompt every {ms(up(took))}")]
    elif binding == "token_budget":
        text = f"a token budget of {budget:,} has no room for {needed:,} sequences"
        near = [Nearest(change="--chunk", value=needed, text=f"--chunk {needed}")]
    elif binding == "max_num_seqs":
        text = f"max_num_seqs {site.default_seqs:,} has no place for {needed:,} sequences"
        near = [Nearest(change="--max-num-seqs", value=needed, text=f"--max-num-seqs {needed}")]
    else:
        text, changes = too_long(site, load) or ("", [])
        near = [*changes]
    return text, tuple(each for each in near if each is not None)
