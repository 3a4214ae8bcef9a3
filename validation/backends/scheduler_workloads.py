"""Small random workloads that lead a scheduler into its corners, each family into another."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodel.validation.backends.recordings import Arrival, Policy, Settings

BLOCK_TOKENS: Final = (4, 8, 16, 32)
"""Block sizes to draw from [tokens]."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests for an engine, and what they are drawn for."""

    covers: str
    settings: Settings
    requests: tuple[Arrival, ...]


Family = Callable[[random.Random], tuple[Settings, tuple[Arrival, ...]]]


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Return the blocks that so many tokens fill."""
    return -(-tokens // block_tokens)


def arrivals(
    rng: random.Random,
    count: int,
    prompts: tuple[int, int],
    outputs: tuple[int, int],
    span: int,
    burst: float = 0.4,
) -> tuple[Arrival, ...]:
    """Draw requests with prompts and outputs within bounds [tokens].

    Args:
        rng: source of chance.
        count: requests.
        prompts, outputs: least and most tokens.
        span: steps over which they arrive.
        burst: chance to arrive together with the request before.
    """
    steps = sorted(rng.randint(0, span) for _ in range(count))
    for later in range(1, count):
        if rng.random() < burst:
            steps[later] = steps[later - 1]
    return tuple(
        Arrival(
            id=each, arrival_step=steps[each] - steps[0], prompt=rng.randint(*prompts), output=rng.randint(*outputs)
        )
        for each in range(count)
    )


def with_prefixes(
    rng: random.Random, requests: tuple[Arrival, ...], block_tokens: int, families: int, share: float
) -> tuple[Arrival, ...]:
    """Give leading blocks in common to some requests: those of a family agree up to a block drawn for each.

    Args:
        rng: source of chance.
        requests: without prefixes.
        block_tokens: tokens in a block.
        families: different beginnings.
        share: chance to belong to one.
    """
    given = []
    for each in requests:
        full = each.prompt // block_tokens
        if full == 0 or rng.random() > share:
            given.append(each)
            continue
        family, common = rng.randrange(families), rng.randint(1, full)
        prefix = tuple(1000 * family + block for block in range(common))
        given.append(replace(each, prefix=prefix))
    return tuple(given)


def to_blocks(
    rng: random.Random, requests: tuple[Arrival, ...], block_tokens: int, chance: float
) -> tuple[Arrival, ...]:
    """Round some prompts up to whole blocks."""
    return tuple(
        replace(each, prompt=blocks_for(each.prompt, block_tokens) * block_tokens) if rng.random() < chance else each
        for each in requests
    )


def tight_blocks(rng: random.Random, settings: Settings, requests: tuple[Arrival, ...], together: float) -> Settings:
    """Return settings with room for the longest request, and for so many average ones together.

    ``max_model_len`` becomes what fits, as the engine demands at its start.
    """
    sizes = [blocks_for(each.prompt + each.output, settings.block_tokens) for each in requests]
    usable = max(*sizes, round(together * sum(sizes) / len(sizes))) + rng.randint(0, 2)
    longest = max(each.prompt + each.output for each in requests)
    return replace(settings, kv_blocks=usable + 1, max_model_len=rng.randint(longest, usable * settings.block_tokens))


def roomy_blocks(settings: Settings, requests: tuple[Arrival, ...]) -> Settings:
    """Return settings with room for all requests at once."""
    sizes = [blocks_for(each.prompt + each.output, settings.block_tokens) for each in requests]
    longest = max(each.prompt + each.output for each in requests)
    return replace(settings, kv_blocks=sum(sizes) + 2, max_model_len=longest + 1)


def budget(rng: random.Random, seqs: int, most: int) -> int:
    """Draw a token budget, often small [tokens]."""
    return max(seqs, rng.choice((rng.randint(seqs, seqs + 8), rng.randint(seqs, most), rng.randint(16, most))))


def plain(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Chunks by the budget alone, memory enough."""
    requests = arrivals(rng, rng.randint(4, 12), (1, 160), (1, 24), 20)
    seqs = rng.randint(2, 12)
    settings = Settings(budget(rng, seqs, 110), seqs, 0, rng.choice(BLOCK_TOKENS))
    return roomy_blocks(settings, requests), requests


def thresholds(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Long prompts cut by the threshold, alone and among others."""
    requests = arrivals(rng, rng.randint(3, 10), (20, 250), (1, 16), 40, burst=0.3)
    seqs = rng.randint(2, 8)
    settings = Settings(
        budget(rng, seqs, 200) + 24,
        seqs,
        0,
        rng.choice(BLOCK_TOKENS),
        long_prefill_token_threshold=rng.choice((rng.randint(1, 16), rng.randint(8, 64))),
        long_prefill_token_threshold_adaptive=rng.random() < 0.35,
        policy=rng.choice(("fcfs", "fcfs", "priority")),
    )
    return roomy_blocks(settings, requests), with_priorities(rng, requests)


def unchunked(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Chunked prefill off: the budget must hold ``max_model_len``."""
    requests = arrivals(rng, rng.randint(4, 12), (8, 100), (1, 20), 15, burst=0.6)
    seqs = rng.randint(2, 8)
    settings = Settings(
        0,
        seqs,
        0,
        rng.choice(BLOCK_TOKENS),
        chunked_prefill=False,
        prefix_caching=rng.random() < 0.3,
        long_prefill_token_threshold=rng.choice((0, 0, rng.randint(8, 60))),
    )
    tight = rng.random() < 0.4
    settings = tight_blocks(rng, settings, requests, 2.5) if tight else roomy_blocks(settings, requests)
    settings = replace(settings, token_budget=max(settings.max_model_len + rng.randint(0, 40), seqs))
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, settings.block_tokens, 2, 0.8)
    return settings, requests


def prefixes(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Shared prefixes with memory enough, often arriving together."""
    block = rng.choice(BLOCK_TOKENS)
    drawn = arrivals(rng, rng.randint(5, 14), (block, 6 * block), (1, 20), 30, burst=0.65)
    requests = to_blocks(rng, drawn, block, 0.4)
    seqs = rng.randint(2, 8)
    tokens = rng.choice((budget(rng, seqs, 8 * block), rng.randint(6 * block, 20 * block)))
    settings = Settings(tokens, seqs, 0, block, prefix_caching=True)
    if rng.random() < 0.3:
        settings = replace(settings, long_prefill_token_threshold=rng.randint(1, 3 * block))
    return roomy_blocks(settings, requests), with_prefixes(rng, requests, block, rng.randint(1, 3), 0.9)


def identical(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """The same whole prompts again and again, of whole blocks more often than not."""
    block = rng.choice(BLOCK_TOKENS)
    drawn = arrivals(rng, rng.randint(5, 12), (block, 5 * block), (1, 18), 25, burst=0.7)
    requests = to_blocks(rng, drawn, block, 0.8)
    sizes = [rng.choice(requests).prompt for _ in range(2)]
    requests = tuple(replace(each, prompt=rng.choice(sizes)) for each in requests)
    requests = tuple(replace(each, prefix=tuple(range(each.prompt // block))) for each in requests)
    seqs = rng.randint(2, 8)
    tokens = rng.choice((budget(rng, seqs, 6 * block), rng.randint(5 * block, 20 * block)))
    settings = Settings(tokens, seqs, 0, block, prefix_caching=True)
    if rng.random() < 0.5:
        return tight_blocks(rng, settings, requests, rng.uniform(1.2, 2.5)), requests
    return roomy_blocks(settings, requests), requests


def tight(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """More requests than the KV cache holds to their ends, some in lockstep so that they want new blocks at once."""
    requests = arrivals(rng, rng.randint(5, 14), (4, 80), (6, 50), 15)
    if rng.random() < 0.4:
        requests = tuple(replace(each, arrival_step=0, prompt=requests[0].prompt) for each in requests)
    seqs = rng.randint(3, 10)
    settings = Settings(budget(rng, seqs, 160), seqs, 0, rng.choice(BLOCK_TOKENS[:3]))
    settings = replace(settings, reserve_full_prompt=rng.random() < 0.6)
    return tight_blocks(rng, settings, requests, rng.uniform(1.1, 2.5)), requests


def crowded(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Long prompts admitted by their first chunks among short requests: several preemptions in a step."""
    requests = arrivals(rng, rng.randint(6, 14), (2, 20), (8, 40), 12)
    longer = [replace(each, prompt=rng.randint(60, 160), output=rng.randint(1, 20)) for each in requests]
    requests = tuple(rng.choice((each, each, long)) for each, long in zip(requests, longer, strict=True))
    seqs = rng.randint(4, 10)
    settings = Settings(
        rng.randint(seqs + 20, 120),
        seqs,
        0,
        rng.choice(BLOCK_TOKENS[:3]),
        long_prefill_token_threshold=rng.randint(16, 64),
        prefix_caching=rng.random() < 0.4,
        policy=rng.choice(("fcfs", "priority")),
        reserve_full_prompt=False,
    )
    settings = tight_blocks(rng, settings, requests, rng.uniform(1.2, 2.4))
    settings = replace(
        settings, long_prefill_token_threshold=min(settings.long_prefill_token_threshold, settings.max_model_len)
    )
    return settings, with_priorities(rng, requests)


def tight_prefixes(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Preemption with caching: evictions, and resumption on what is left of the own blocks."""
    block = rng.choice(BLOCK_TOKENS[:3])
    requests = to_blocks(rng, arrivals(rng, rng.randint(6, 14), (block, 6 * block), (6, 50), 20), block, 0.3)
    seqs = rng.randint(3, 8)
    settings = Settings(
        budget(rng, seqs, 10 * block), seqs, 0, block, prefix_caching=True, reserve_full_prompt=rng.random() < 0.6
    )
    requests = with_prefixes(rng, requests, block, rng.randint(1, 3), rng.choice((0.3, 0.8)))
    return tight_blocks(rng, settings, requests, rng.uniform(1.1, 2.5)), requests


def with_priorities(rng: random.Random, requests: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """Give each request one of a few priorities."""
    levels = rng.randint(2, 4)
    return tuple(replace(each, priority=rng.randrange(levels)) for each in requests)


def priorities(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Priorities with little memory, with and without caching."""
    requests = arrivals(rng, rng.randint(6, 14), (4, 70), (4, 40), 25, burst=0.3)
    seqs, block = rng.randint(2, 8), rng.choice(BLOCK_TOKENS[:3])
    settings = Settings(budget(rng, seqs, 140), seqs, 0, block, policy="priority", prefix_caching=rng.random() < 0.5)
    settings = replace(settings, reserve_full_prompt=rng.random() < 0.6)
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, block, 2, 0.6)
    requests = with_priorities(rng, requests)
    return tight_blocks(rng, settings, requests, rng.uniform(1.1, 3.0)), requests


def overtaken(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """The more urgent come later, with long prompts: victims stand early among the running, some already scheduled in the step."""
    count = rng.randint(8, 14)
    requests = arrivals(rng, count, (4, 24), (10, 40), 20, burst=0.3)
    requests = tuple(replace(each, priority=(count - each.id) // rng.randint(1, 3)) for each in requests)
    requests = tuple(replace(each, prompt=rng.randint(30, 120)) if each.id > count // 2 else each for each in requests)
    seqs, block = rng.randint(6, 12), rng.choice(BLOCK_TOKENS[:2])
    settings = Settings(
        seqs + rng.randint(2, 30),
        seqs,
        0,
        block,
        policy="priority",
        prefix_caching=rng.random() < 0.4,
        reserve_full_prompt=False,
    )
    return tight_blocks(rng, settings, requests, rng.uniform(1.5, 3.0)), requests


def narrow(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Budgets barely above the sequences: prompts crawl beside the decodes."""
    requests = arrivals(rng, rng.randint(5, 12), (1, 50), (1, 25), 20)
    seqs = rng.randint(1, 6)
    settings = Settings(seqs + rng.randint(0, 3), seqs, 0, rng.choice(BLOCK_TOKENS), prefix_caching=rng.random() < 0.3)
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, settings.block_tokens, 2, 0.8)
    if rng.random() < 0.4:
        return tight_blocks(rng, settings, requests, 2.0), requests
    return roomy_blocks(settings, requests), requests


def short(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Outputs of one token, and a few longer ones; idle steps between."""
    requests = arrivals(rng, rng.randint(5, 16), (1, 60), (1, 1), 40, burst=0.5)
    requests = tuple(replace(each, output=rng.choice((1, 1, 1, 2, 3, 12))) for each in requests)
    seqs = rng.randint(1, 6)
    settings = Settings(budget(rng, seqs, 90), seqs, 0, rng.choice(BLOCK_TOKENS), prefix_caching=rng.random() < 0.4)
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, settings.block_tokens, 2, 0.8)
    return roomy_blocks(settings, requests), requests


def endings(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Short answers among long ones with little memory: preempted with their last token on its way."""
    requests = arrivals(rng, rng.randint(8, 18), (2, 30), (1, 4), 60, burst=0.3)
    requests = tuple(replace(each, output=each.output if rng.random() < 0.7 else 60) for each in requests)
    seqs = rng.randint(4, 10)
    policy: Policy = rng.choice(("fcfs", "fcfs", "priority"))
    settings = Settings(budget(rng, seqs, 100), seqs, 0, 4, policy=policy, prefix_caching=rng.random() < 0.5)
    return tight_blocks(rng, settings, requests, rng.uniform(1.1, 2.0)), with_priorities(rng, requests)


def limited(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Outputs that ``max_model_len`` ends, prompts up to one token below it."""
    requests = arrivals(rng, rng.randint(4, 10), (10, 90), (1, 60), 20)
    seqs, block = rng.randint(2, 6), rng.choice(BLOCK_TOKENS)
    settings = Settings(budget(rng, seqs, 130), seqs, 0, block, prefix_caching=rng.random() < 0.4)
    longest = rng.randint(40, 100)
    requests = tuple(replace(each, prompt=min(each.prompt, longest - 1)) for each in requests)
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, block, 2, 0.8)
    ended = [min(each.prompt + each.output, longest) for each in requests]
    usable = max(blocks_for(longest, block), round(rng.uniform(1.5, 4) * blocks_for(sum(ended), block) / len(ended)))
    return replace(settings, kv_blocks=usable + 1, max_model_len=longest), requests


def watermarks(rng: random.Random) -> tuple[Settings, tuple[Arrival, ...]]:
    """Admissions that leave blocks free, with the whole prompt counted or only its first chunk."""
    requests = arrivals(rng, rng.randint(5, 14), (4, 80), rng.choice(((1, 6), (6, 40))), 15)
    seqs, block = rng.randint(3, 10), rng.choice(BLOCK_TOKENS[:3])
    settings = Settings(
        budget(rng, seqs, 160),
        seqs,
        0,
        block,
        reserve_full_prompt=rng.random() < 0.5,
        watermark=rng.choice((0.05, 0.1, 0.2, 0.35, 0.5)),
        prefix_caching=rng.random() < 0.4,
    )
    if settings.prefix_caching:
        requests = with_prefixes(rng, requests, block, 2, 0.8)
    return tight_blocks(rng, settings, requests, rng.uniform(1.0, 3.0)), requests


FAMILIES: Final[tuple[Family, ...]] = (
    plain,
    thresholds,
    unchunked,
    prefixes,
    identical,
    tight,
    crowded,
    tight_prefixes,
    priorities,
    overtaken,
    narrow,
    short,
    endings,
    limited,
    watermarks,
)


def draw(count: int, seed: int) -> Iterator[Workload]:
    """Yield workloads of all families in turn, each family synchronous and asynchronous in turn.

    Args:
        count: workloads.
        seed: the same for the same workloads; the first ones do not depend on ``count``.
    """
    for index in range(count):
        rng = random.Random(f"{seed} {index}")
        family = FAMILIES[index % len(FAMILIES)]
        settings, requests = family(rng)
        later = bool(index // len(FAMILIES) % 2)
        yield Workload(family.__name__, replace(settings, async_scheduling=later), requests)
