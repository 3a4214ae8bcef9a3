"""``simulate_interference``: what streams feel of prompts that come among them, as a frozen document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from costmodel.checks import whole
from costmodel.hardware.errors import InputError
from costmodel.simulation import hints, remarks
from costmodel.simulation.cache import Background
from costmodel.simulation.drafts import tokens_ahead
from costmodel.simulation.encoding import image_numbers, images_of, said_of_images
from costmodel.simulation.options import ServerOptions, truth
from costmodel.simulation.pools import Pools
from costmodel.simulation.prefixes import cached_tokens
from costmodel.simulation.ranges import of_load
from costmodel.simulation.requests import Listed
from costmodel.simulation.results import Simulation, make_spikes
from costmodel.simulation.running import Limits, run_source
from costmodel.simulation.server import make_server
from costmodel.simulation.settings import Settings
from costmodel.simulation.simulating import Simulated, check_all, server_info
from costmodel.simulation.stepping import Progress
from costmodel.simulation.workloads import interference


def simulate_interference(
    prompt: int = 8000,
    streams: int = 32,
    context: int = 500,
    *,
    every: float = 10.0,
    first: float = 5.0,
    duration: float = 40.0,
    prompts: int = 1,
    grow: bool = False,
    injected_output: int = 1,
    cached_prefix: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    limits: Limits | None = None,
    pools: Pools | None = None,
    **server: Unpack[ServerOptions],
) -> Simulation:
    """Simulate the long-prompt experiment: streams that decode, with and without prompts that are injected among them.

    Args:
        prompt, prompts: tokens of an injected prompt, without those of its images, and how many come at once.
        streams, context: sequences that decode from beginning to end, and tokens that each has in the KV cache.
        every, first, duration: period and time of the first injection, end of the run [s].
        grow: contexts grow by a token per step; otherwise each stream stands for chats at all stages, and its context is held.
        injected_output: tokens of the answer to an injected prompt.
        cached_prefix: tokens of an injected prompt that the prefix cache has, those of its images first.
        images, image_size: of every injected prompt, before its text, as :func:`costmodel.predict` takes them.
        limits: what counts as a stall.
        pools: GPUs for prefill and decode apart.
        server: model, GPU and flags (:class:`~costmodel.simulation.options.ServerOptions`). The token budget is that of one step for
            all, unless ``chunk`` is given; a step is scheduled when the one before it has ended, unless ``asynchronous``.

    Returns:
        The document ``costmodel.simulation/1`` with ``baseline``, ``injected`` and ``spikes``.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    return run_interference(
        prompt, streams, context, every, first, duration, prompts, grow, injected_output, limits, pools, server,
        cached_prefix=cached_prefix, images=images, image_size=image_size,
    ).document  # fmt: skip


def run_interference(
    prompt: int,
    streams: int,
    context: int,
    every: float,
    first: float,
    duration: float,
    prompts: int,
    grow: bool,
    injected_output: int,
    limits: Limits | None,
    pools: Pools | None,
    options: ServerOptions,
    *,
    cached_prefix: int = 0,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    keep_times: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Simulated:
    """Run :func:`simulate_interference`; return all that was counted.

    ``keep_times`` keeps when every gap was; ``progress`` is called now and then (:class:`~costmodel.simulation.stepping.Engine`).
    """
    options, limits, pools = check_all(options, limits, pools, simulate_interference)
    prompt, streams, context = whole(prompt, "prompt", 1), whole(streams, "streams", 1), whole(context, "context", 1)
    pictures = images_of(options, images, image_size, pools)
    prompt += pictures.tokens if pictures else 0
    prompts, injected_output = whole(prompts, "prompts", 1), whole(injected_output, "injected_output", 1)
    background, injected = interference(
        streams, context, prompt, every, first, duration, prompts, truth(grow, "grow"), injected_output
    )
    cached = cached_tokens(cached_prefix, prompt, options.get("prefix_caching", True))
    count = pictures.count if pictures else 0
    injected = [replace(request, cached=cached, images=count) for request in injected]
    options = ServerOptions(**{"asynchronous": False, **options})
    drafts, ahead = tokens_ahead(options)
    one_step = (prompt - cached) * prompts + streams * (1 + drafts)
    held = Background(streams, context + ahead, prompts, prompt + injected_output - 1)
    server = make_server(options, prompt, one_step, held, images=pictures)
    _check_room(server.settings, streams, context, grow, ahead)
    runs = []
    for prompted in ([], injected):
        run = run_source(
            server, Listed([*background, *prompted]), limits, duration, "stream", streams, pools, keep_times, progress
        )
        runs.append(run)
        if run.interrupted:
            break
    last = runs[-1]
    warned = remarks.cut_short(last.result, server.settings)
    if not last.interrupted:
        warned += remarks.of_streams(last.result, last.tallies, server.settings, streams, prompts)
    spikes = [item for tally in last.tallies for item in make_spikes(tally.mixed_steps, tally.served)]
    limited, refused = said_of_images(server.settings)
    document = Simulation(
        workload={
            "kind": "interference", "prompt_tokens": prompt, "prompts": prompts, "streams": streams, "context_tokens": context,
            "every_s": every, "first_s": first, "duration_s": duration, "grow": grow, "injected_output_tokens": injected_output,
            "cached_prefix_tokens": cached, **image_numbers(pictures),
        },
        server=server_info(server, pools),
        baseline=runs[0].result,
        injected=runs[1].result if len(runs) > 1 else None,
        spikes=tuple(sorted(spikes, key=lambda item: (item.injected_s, item.time_s))) if len(runs) > 1 else (),
        interrupted=last.interrupted,
        notes=(*server.notes, *limited),
        warnings=(
            *server.warnings, *refused, *_unfelt(options, prompt, server.settings, streams), *warned,
            *of_load(server.fitted, streams, context, prompt, server.settings.token_budget, prompts, cached),
        ),
    )  # fmt: skip
    return Simulated(document, tuple(runs))


def _unfelt(options: ServerOptions, prompt: int, settings: Settings, streams: int) -> list[str]:
    """Return what is to be said of chunks with fixed step times."""
    decode, prefill = options.get("decode_s"), options.get("prefill_s")
    if decode is None or prefill is None or settings.scheduler not in ("vllm", "sarathi"):
        return []
    return hints.unfelt_chunks(decode, prefill, prompt, settings, streams)


def _check_room(settings: Settings, streams: int, context: int, grow: bool, ahead: int) -> None:
    """Raise :class:`InputError` if the streams cannot run, or leave no place for a prompt."""
    taken = streams * (1 + settings.drafted)
    if settings.token_budget <= taken:
        each = f"{1 + settings.drafted} tokens" if settings.drafted else "one token"
        raise InputError(
            f"a token budget of {settings.token_budget} leaves no room for a prompt beside {streams} running streams "
            f"(every stream takes {each} of it); use at least {taken + 1}"
        )
    if settings.max_num_seqs <= streams:
        raise InputError(
            f"max-num-seqs {settings.max_num_seqs} leaves no place for a prompt beside {streams} running streams; "
            f"use at least {streams + 1}"
        )
    least = context + 1 + grow
    if settings.max_model_len is not None and settings.max_model_len < least:
        raise InputError(
            f"max-model-len {settings.max_model_len} is too short for streams at context {context}; use at least {least}"
        )
    if settings.ends_at < settings.longest and settings.ends_at < least:
        raise InputError(
            f"without chunked prefill, streams at context {context} need a token budget as large, to start again after a preemption; "
            f"use --chunk {least} or more"
        )
    blocks = streams * -(-(context + 1 + ahead) // settings.block_tokens)
    if settings.usable_blocks is not None and settings.usable_blocks < blocks:
        tokens = settings.usable_blocks * settings.block_tokens
        raise InputError(
            f"a KV cache of {tokens:,} tokens does not hold {streams} streams at context {context}; "
            f"use --kv-tokens {blocks * settings.block_tokens} or more"
        )
