"""The KV cache of a simulated server: how large it is, and how long a sequence may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.checks import whole
from costmodel.deployment import Deployment
from costmodel.hardware.errors import InputError
from costmodel.memory import NOTHING, Beside
from costmodel.memory.blocks import kv_blocks
from costmodel.memory.pool import own_length, pool_of, workload_settings
from costmodel.memory.wording import of_start
from costmodel.simulation import hints
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.seats import Seats, seats_of
from costmodel.simulation.settings import Settings


@dataclass(frozen=True, slots=True)
class Background:
    """What is to be in the KV cache at once.

    Attributes:
        streams, context: sequences that decode, and their tokens.
        prompts, prompt: prompts beside them, and what each has in the cache at its end [tokens].
    """

    streams: int
    context: int
    prompts: int
    prompt: int

    def blocks(self, seats: Seats, size: int) -> int:
        """Return the simulated blocks of ``size`` tokens that it takes."""
        stream = seats.of(self.context + 1) + kv_blocks(self.context + 1, size)
        return int(
            self.streams * stream + self.prompts * (seats.of(self.prompt + 1) + kv_blocks(self.prompt + 1, size))
        )


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of a server.

    Attributes:
        settings: with its size, and that of the longest sequence.
        tokens: as it was given, or else as vLLM logs it, the null block included; None for no limit.
        notes, warnings: what has to be said.
        starts: largest ``max_model_len`` with which vLLM starts, where it does not start with the one that it has; None where it does.
        pool: blocks in all, those that no request can have included; None where they are not worked out.
    """

    settings: Settings
    tokens: int | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    starts: int | None = None
    pool: int | None = None


def cache_of(
    options: ServerOptions,
    deployment: Deployment | None,
    settings: Settings,
    prompt: int,
    background: Background | None,
    beside: Beside = NOTHING,
) -> Cache:
    """Return the KV cache: as it is given, or by the rule of :mod:`costmodel.memory.pool`.

    Args:
        options: what the user set.
        deployment: model and GPUs; None with fixed step times.
        settings: without the size of the cache and of the longest sequence.
        prompt: tokens of the longest prompt.
        background: what it must hold, or else it has no limit, and a warning says so.
        beside: what is held beside the model.

    Raises:
        InputError: an option is out of range, or they contradict each other.
    """
    given, longest = options.get("kv_tokens"), options.get("max_model_len")
    if longest is not None:
        longest = whole(longest, "max-model-len", 1)
    cache = Cache(settings, None, (), ())
    if given is not None:
        blocks = whole(given, "kv-tokens", 1, 10**12) // settings.block_tokens
        cache = Cache(replace(settings, kv_blocks=blocks + 1), blocks * settings.block_tokens, (), ())
    elif deployment is not None:
        cache = _worked_out(options, deployment, settings, prompt, background, beside)
    warnings = cache.warnings
    if longest is None and deployment is not None and background is None:
        longest = deployment.architecture.max_positions or None
    if not settings.chunked_prefill and settings.scheduler == "vllm":
        most, more = _whole_prompts(settings.token_budget, options.get("max_model_len"), longest)
        if background is None:
            longest, warnings = most, (*warnings, *more)
    return replace(cache, settings=replace(cache.settings, max_model_len=longest), warnings=warnings)


def _worked_out(
    options: ServerOptions,
    deployment: Deployment,
    settings: Settings,
    prompt: int,
    background: Background | None,
    beside: Beside,
) -> Cache:
    """Return the KV cache that memory leaves; none where it is too small, and a warning."""
    load = background or Background(0, 0, 0, 0)
    asked = workload_settings(deployment, settings.token_budget, load.streams + load.prompts, settings.max_num_seqs)
    pool = pool_of(deployment, replace(asked, block_tokens=settings.block_tokens, beside=beside))
    if pool.budgets[0].available <= 0:
        said = "the weights leave no room for a KV cache: simulated as if memory had no end; use more GPUs (--tp)"
        return Cache(settings, None, (), (said,))
    needed = int(pool.needed(load.streams, load.context, load.prompts, load.prompt))
    if needed > pool.usable:
        said = (
            f"does not fit: {needed:,} KV blocks are needed, {int(pool.usable):,} are free; simulated as if they fitted"
        )
        return Cache(settings, None, (), (said,))
    longest = options.get("max_model_len") or deployment.architecture.max_positions
    starts = pool.longest(longest) if longest and options.get("engine", "vllm") == "vllm" else longest
    said = of_start(starts, longest) if starts < longest else ""
    seats = seats_of(pool)
    # A block of the layers that keep everything may hold more tokens than were asked for: as many as a state is large.
    settings = replace(
        settings, block_tokens=min(group.block_tokens for group in pool.groups if group.keeps_all or seats.spare)
    )
    aside = seats.set_aside(prompt, pool.settings.in_flight)
    blocks = max(int(pool.usable) - aside, 0) // seats.full
    blocks = max(blocks, load.blocks(seats, settings.block_tokens) if background else 0)
    settings = replace(settings, kv_blocks=blocks + 1, seats=seats)
    return Cache(
        settings,
        int(pool.tokens(options.get("max_model_len") or own_length(deployment))),
        hints.of_windows(seats, aside, bool(deployment.encoder_states)),
        (said,) if said else (),
        starts if said else None,
        int(pool.blocks),
    )


def _whole_prompts(budget: int, given: int | None, longest: int | None) -> tuple[int, list[str]]:
    """Return the longest sequence without chunks, and a warning if that is less than it would be.

    Whoever is preempted starts again in one step, the answer so far included: vLLM wants a token budget of max_model_len at least.
    """
    if given is not None and given > budget:
        raise InputError(
            f"without chunked prefill, max-model-len {given} needs a token budget as large: use --chunk {given} or more, "
            f"or --max-model-len {budget} or less"
        )
    if longest is not None and longest <= budget:
        return longest, []
    return budget, [
        f"without chunked prefill no sequence is longer than the token budget: answers end at {budget:,} tokens"
    ]
