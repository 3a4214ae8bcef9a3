"""``explain_request``: one request's way through a server, stage by stage, as the simulation has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.certainty import arrival_overheads
from costmodel.checks import positive, whole
from costmodel.explaining.asking import about, remarks
from costmodel.explaining.documents import RequestExplanation, ServerStep
from costmodel.explaining.keeping import kept_of
from costmodel.explaining.scene import Scene, make_scene, time_of
from costmodel.explaining.stages import Course, Tokenizer, stages_of
from costmodel.explaining.words import count
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.simulation.cache import Background
from costmodel.simulation.clock import StepClock
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.prefixes import cached_tokens
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.server import Server, make_server
from costmodel.simulation.states import Batch
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from costmodel.solving import largest

ASSUMED_RATE = 1e6
"""Tokens per second of a tokenizer where none is measured. On one core of an AMD EPYC server, a BPE of 8,000 tokens took 1.0 million per
second of English text (tokenizers 0.23), one of 131,072 tokens 2.3 to 3.3 million (tekken with tiktoken) [tokens/s]."""
MOST_VISITS = 20_000_000
"""Streams times steps that are simulated one by one."""


def explain_request(
    prompt: int = 8000,
    output: int = 200,
    *,
    model: str = "Llama-3.1-8B",
    gpu: str = "h100",
    streams: int = 32,
    context: int = 500,
    chunk: int | str | None = None,
    tp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    assume_efficiency: bool = False,
    prefix_caching: bool = True,
    cached_prefix: int = 0,
    tokens_per_s: float | None = None,
    tokenizer: str = "a tokenizer",
) -> RequestExplanation:
    """Follow one request through a server: tokenise, queue, prefill, decode, stream, free or keep its blocks.

    It comes in the middle of a decode step of ``streams`` others, whose contexts are held, and is simulated step by step with them, by
    vLLM's scheduler without scheduling ahead.

    Args:
        prompt, output: of the request [tokens].
        streams, context: sequences that decode meanwhile, and the tokens of each in the KV cache. Where fewer fit beside the request, as
            many as fit; where not one fits, all that are asked for.
        chunk: token budget per step; None or ``"engine"`` for vLLM's default, ``"one-step"`` for the prompt in one.
        prefix_caching: whether full blocks stay when it has ended.
        cached_prefix: leading tokens of its prompt that the prefix cache has.
        tokens_per_s: of a tokenizer, measured; None for what the calibration has fitted to served requests, or else an assumption.
        tokenizer: name of the tokenizer that was measured.
        model, gpu, tp, ep, dtype, kv_dtype, compute_dtype, lora, engine, calibration, assume_efficiency: as in :func:`costmodel.predict`.

    Returns:
        The frozen document ``costmodel.request/1``; FLOPs and bytes are those of one GPU.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    prompt, output = whole(prompt, "prompt", 1), whole(output, "output", 1)
    placed: dict[str, Any] = {
        "tp": tp, "ep": ep, "dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype, "lora": lora,
        "engine": engine, "calibration": calibration, "assume_efficiency": assume_efficiency,
    }  # fmt: skip
    scene = make_scene(model, gpu, context=context, streams=streams, output=output, **placed)
    _check_length(scene, prompt, output)
    if tokens_per_s is not None:
        tokens_per_s = positive(tokens_per_s, "tokens_per_s")
    cached = cached_tokens(cached_prefix, prompt, bool(prefix_caching))
    scene = replace(scene, cached=cached)
    asked = scene.streams
    scene, server = _fitting(scene, lambda fewer: _server(fewer, model, gpu, placed, chunk, prompt, prefix_caching))
    _check_visits(scene, server, prompt)
    reading = _tokenizer(scene, prompt, tokens_per_s, tokenizer)
    typical = time_of(scene.decode(scene.streams, scene.context))
    fixed, per_token, waited = arrival_overheads(scene.fitted)
    on_its_way = max(fixed + waited * typical + per_token * prompt, reading.seconds)
    course = follow(server, scene, prompt, output, on_its_way)
    told = server.starts is not None or scene.pool().budgets[0].available <= 0
    notes, warnings = remarks(scene, engine, calibration, assume_efficiency, start=not told)
    if scene.streams < asked:
        warnings += (
            f"{asked:,} streams at {scene.context:,} tokens do not fit into the KV cache beside the request: "
            f"{count(scene.streams)} do and decode here, as on a server that lets the others wait",
        )
    blocks = -(-(prompt + output - 1) // server.settings.block_tokens)
    first, last = course.first - course.sent, course.last - course.sent
    return RequestExplanation(
        **about(scene),
        prompt_tokens=prompt,
        output_tokens=output,
        cached_prefix_tokens=cached,
        streams=scene.streams,
        streams_asked=asked,
        context_tokens=scene.context,
        token_budget=server.settings.token_budget,
        block_tokens=server.settings.block_tokens,
        ttft_s=first,
        tpot_s=(last - first) / (output - 1) if output > 1 else None,
        e2e_s=last,
        kv_bytes_per_token=_written(scene),
        kv_blocks=course.steps[-1].own_kv_blocks,
        kv_blocks_of_server=server.settings.usable_blocks,
        kv_blocks_of_pool=server.pool_blocks,
        kept_blocks=kept_of(scene, prompt + output - 1).blocks if prefix_caching else 0,
        stages=stages_of(scene, course, reading, on_its_way, blocks, server.settings, prefix_caching),
        steps=course.steps,
        notes=tuple(dict.fromkeys((*notes, *server.notes))),
        warnings=tuple(dict.fromkeys((*warnings, *(text for text in server.warnings if "no calibration" not in text)))),
    )


def _check_length(scene: Scene, prompt: int, output: int) -> None:
    """Refuse what vLLM refuses: a prompt that with its answer is longer than the model takes (vllm/renderers/params.py; max_model_len)."""
    longest = scene.architecture.max_positions
    if not longest or prompt + output <= longest:
        return
    fewer = f"a prompt of at most {longest - output:,}" if output < longest else f"an output of fewer than {longest:,}"
    raise InputError(
        f"a prompt of {prompt:,} and an answer of {output:,} tokens are more than the {longest:,} that {scene.architecture.name} takes, "
        f"so that vLLM refuses the request; use {fewer} tokens"
    )


def _written(scene: Scene) -> float:
    """Return the bytes that the K and V of one token take on one GPU, all layers [B]."""
    return float(sum(kernel.kv_bytes_per_token for kernel in scene.floor.attention))


def _fitting(scene: Scene, serve: Callable[[Scene], Server]) -> tuple[Scene, Server]:
    """Return the scene with as many of its streams as fit beside the request, and its server; where not one fits, with all of them."""

    def fits(streams: float) -> bool:
        return serve(replace(scene, streams=int(streams))).pool_blocks is None

    server = serve(scene)
    if server.pool_blocks is not None or scene.pool().usable <= 0:
        return scene, server
    fit = largest(lambda streams: float(fits(streams)), 0.0, 1, scene.streams)
    if not fit:
        return scene, server
    scene = replace(scene, streams=fit)
    return scene, serve(scene)


def _check_visits(scene: Scene, server: Server, prompt: int) -> None:
    """Refuse what takes too long to simulate."""
    streams, output, new = scene.streams, scene.output, prompt - (scene.cached or 0)
    steps = output + math.ceil(new / (server.settings.token_budget - streams))
    if steps * streams > MOST_VISITS:
        raise InputError(
            f"{steps:,} steps of {streams:,} streams are more than are simulated one by one here; "
            f"use an output of at most {max(MOST_VISITS // streams - (steps - output), 1):,} tokens"
        )


def _server(
    scene: Scene,
    model: str,
    gpu: str,
    placed: dict[str, Any],
    chunk: int | str | None,
    prompt: int,
    prefix_caching: bool,
) -> Server:
    """Return the simulated server, with room for the streams and the request."""
    options: dict[str, Any] = {name: value for name, value in placed.items() if value not in (None, False)}
    options |= {"model": model, "gpu": gpu, "asynchronous": False, "prefix_caching": bool(prefix_caching)}
    options["chunk"] = "engine" if chunk is None else chunk
    options["scheduler"] = "vllm"
    streams, output, new = scene.streams, scene.output, prompt - (scene.cached or 0)
    made = make_server(
        ServerOptions(**options),  # type: ignore[typeddict-item]
        prompt,
        new + streams,
        Background(streams, scene.context, 1, prompt + output - 1),
    )
    if made.settings.token_budget <= streams:
        raise InputError(
            f"a token budget of {made.settings.token_budget} leaves no room for a prompt beside {streams} running streams "
            f"(every stream takes one token of it); use at least {streams + 1}"
        )
    return made


def _tokenizer(scene: Scene, prompt: int, rate: float | None, name: str) -> Tokenizer:
    """Return how long a prompt takes to be tokenised: as measured, as fitted, or as assumed."""
    if rate is not None:
        return Tokenizer(prompt / rate, f"measured here: {rate:,.0f} tokens/s of {name}", False)
    per_token = arrival_overheads(scene.fitted)[1]
    if per_token > 0 and scene.fitted is not None:
        said = f"{1 / per_token:,.0f} tokens/s, fitted to served requests (reading and handing over included; {scene.fitted.name})"
        return Tokenizer(prompt * per_token, said, False)
    return Tokenizer(prompt / ASSUMED_RATE, f"assumed: {ASSUMED_RATE:,.0f} tokens/s, one core", True)


@dataclass(slots=True)
class _Seen:
    """A step as it was scheduled: the batch knows later when it ran."""

    batch: Batch
    tokens: int
    own: int
    blocks: int


class _OverError(Exception):
    """The request has got its last token."""


def follow(server: Server, scene: Scene, prompt: int, output: int, on_its_way: float) -> Course:
    """Simulate a request among streams that decode, and return when its steps were, and what it held.

    Args:
        server: with room for all.
        scene: streams, and tokens of each.
        prompt, output: of the request [tokens].
        on_its_way: time between its being sent and the engine having it [s].
    """
    clock = server.clock
    assert isinstance(clock, StepClock)
    step = time_of(scene.decode(scene.streams, scene.context))
    before = math.ceil(on_its_way / step) + 1
    arrival = (before + 0.5) * step
    stream = Request(0.0, scene.context, 1, "stream", standing=True, held=True)
    cached = scene.cached or 0
    request = Request(arrival, prompt, output, "own", cached=cached)
    seen: list[_Seen] = []
    own: list[Any] = []

    def watch(batch: Batch) -> None:
        if own and own[0].served.done:
            raise _OverError
        mine = [(state, tokens) for state, tokens, _ in batch.entries if state.request is request]
        own.extend(state for state, _ in mine if not own)
        blocks = own[0].held if own else 0
        seen.append(_Seen(batch, sum(tokens for _, tokens, _ in batch.entries), mine[0][1] if mine else 0, blocks))

    engine = Engine(server.settings, clock, Listed([stream] * scene.streams + [request]), Tally(), watch=watch)
    with suppress(_OverError):
        engine.run()
    if not own or not own[0].served.done:
        refused = next((item.refused for item in engine.tally.served if item.request is request), "it never ends")
        raise InputError(f"the server does not take this request: {refused}")
    served, sent = own[0].served, arrival - on_its_way
    steps = tuple(
        ServerStep(
            start_s=each.batch.start - sent,
            duration_s=each.batch.end - each.batch.start,
            tokens=each.tokens,
            own_tokens=each.own,
            own_kv_blocks=each.blocks,
        )
        for each in seen
        if not each.batch.empty and each.batch.end > sent and each.batch.end <= served.last
    )
    chunks = [(each.own, before) for each, before in _chunks(seen, prompt, cached)]
    return Course(sent, arrival, served.scheduled, served.first, served.last, steps, tuple(chunks))


def _chunks(seen: list[_Seen], prompt: int, cached: int) -> list[tuple[_Seen, int]]:
    """Return the steps that carried a part of the prompt, and how much of it was cached before each; ``cached`` before the first."""
    found = []
    for each in seen:
        if each.own and cached < prompt:
            found.append((each, cached))
            cached += each.own
    return found
