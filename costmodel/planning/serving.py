"""What an inverse question is asked of: the step times of a deployment, and the KV blocks that its memory leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from costmodel.checks import whole
from costmodel.deployment import Deployment
from costmodel.encoder import ImageLoad
from costmodel.engine import default_max_num_seqs, default_token_budget, other_defaults
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError, nearest, shown, suggestion
from costmodel.memory.blocks import kv_blocks
from costmodel.memory.engines import default_settings
from costmodel.memory.pool import Pool, pool_of, workload_settings
from costmodel.simulation.clock import Clock
from costmodel.simulation.encoding import Encoding
from costmodel.simulation.options import ServerOptions, SimulatedRung, check_options
from costmodel.simulation.ranges import Fitted
from costmodel.simulation.results import ServerInfo
from costmodel.simulation.server import FIXED_BUDGET, FIXED_SEQS, make_server

ENDLESS = 10**12
"""Tokens of a KV cache that is not looked at [tokens]."""


class PlanOptions(TypedDict, total=False):
    """Model, GPU and flags of the server, as :class:`~costmodel.simulation.options.ServerOptions` has them."""

    gpu: str
    model: str
    tp: int
    ep: int
    dtype: str | None
    kv_dtype: str | None
    compute_dtype: str | None
    lora: object
    engine: str
    calibration: str | Path | Calibration | None
    assume_efficiency: bool
    rung: SimulatedRung | None
    decode_s: float | None
    prefill_s: float | None
    max_num_seqs: int | None
    kv_tokens: int | None
    block_tokens: int
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Site:
    """Where a question is answered.

    Attributes:
        clock: how long steps take.
        deployment: model and GPUs; None with fixed step times.
        options: as they were asked for.
        info: what documents tell of the server.
        notes, warnings: what has to be said.
        fitted: the calibration of the step times; None where they have none.
        encoding: of the images of a prompt; None without any.
    """

    clock: Clock
    deployment: Deployment | None
    options: PlanOptions
    info: ServerInfo
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    fitted: Fitted | None = None
    encoding: Encoding | None = None

    @property
    def default_budget(self) -> int:
        """Token budget of a server with vLLM's defaults [tokens]."""
        return FIXED_BUDGET if self.deployment is None else default_token_budget(self.deployment)

    @property
    def default_seqs(self) -> int:
        """Sequences that it runs at once: those asked for, else vLLM's default."""
        given = self.options.get("max_num_seqs")
        if given is not None:
            return whole(given, "max-num-seqs", 1, 1_000_000)
        return FIXED_SEQS if self.deployment is None else default_max_num_seqs(self.deployment)

    @property
    def most_tokens(self) -> int | None:
        """Longest sequence: ``max_model_len``, else the model's; None for no limit [tokens]."""
        given = self.options.get("max_model_len")
        if given is not None:
            return whole(given, "max-model-len", 1)
        return self.allowed_tokens

    @property
    def allowed_tokens(self) -> int | None:
        """Longest sequence that the model allows, whatever ``max_model_len`` is; None for no limit [tokens]."""
        return self.deployment.architecture.max_positions or None if self.deployment else None

    def simulated(self, **changed: Any) -> ServerOptions:
        """Return the options of a simulation of this site, those that are None left out."""
        asked: dict[str, Any] = {"scheduler": "vllm", **self.options, **changed}
        taken: ServerOptions = {name: value for name, value in asked.items() if value is not None}  # type: ignore[assignment]
        return taken


def check_longest(given: int | None, deployment: Deployment | None) -> None:
    """Refuse a ``max_model_len`` that the model does not allow, as ``plan_memory`` does.

    Raises:
        InputError: it is longer than the model's.
    """
    allowed = deployment.architecture.max_positions if deployment else 0
    if given is not None and deployment and allowed and whole(given, "max-model-len", 1) > allowed:
        name = deployment.architecture.name
        raise InputError(
            f"max-model-len {given:,} is more than the {allowed:,} that {name} allows; use at most {allowed}"
        )


def make_site(
    options: PlanOptions, prompt: int, others: Mapping[str, Any] | None = None, images: ImageLoad | None = None
) -> Site:
    """Return the site of these options.

    Args:
        options: model, GPU and flags.
        prompt: tokens of the prompt that ``prefill_s`` is the time of.
        others: further keywords of the function, to be suggested where a name looks like them.
        images: of a prompt.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    for name in options:
        if name not in PlanOptions.__annotations__:
            if name == "speculation":
                raise InputError(
                    "this is not answered with speculation; predict, plan_memory, plan_replicas, plan_disaggregation and simulations are"
                )
            if name in ServerOptions.__annotations__:
                raise InputError(f"{shown(name)} has no part in this question; leave it out")
            close = nearest(name, [*PlanOptions.__annotations__, *(others or ())])
            if close:
                raise InputError(f"no option {shown(name)}; {suggestion(close)}")
    check_options(options, list(others or ()))
    server = make_server(
        ServerOptions(**{"scheduler": "vllm", **options, "kv_tokens": ENDLESS, "max_num_seqs": 1}),  # type: ignore[typeddict-item]
        prompt,
        images=images,
    )
    check_longest(options.get("max_model_len"), server.deployment)
    notes = server.notes
    if server.deployment is not None:
        engine = options.get("engine", "vllm")
        notes += other_defaults(engine)
        if engine != "vllm":
            notes += (f"steps take the times of {engine}; who is in a step is decided as vLLM's scheduler decides it",)
    return Site(
        server.clock,
        server.deployment,
        options,
        server.info,
        notes,
        server.warnings,
        server.fitted,
        server.settings.encoding,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """KV blocks of a server with one token budget and ``max_num_seqs``.

    Attributes:
        blocks: that requests can have; None for memory without end.
        block_tokens: tokens of one.
        pool: where the blocks are worked out; None where they are given, and every layer keeps every token.
    """

    blocks: int | None
    block_tokens: int
    pool: Pool | None = None

    def needed(self, streams: int, context: int, prompts: int, prompt: int) -> int:
        """Return the blocks of streams and prompts, each with room for the token that comes next."""
        if self.pool is not None:
            return int(self.pool.needed(streams, context, prompts, prompt))
        stream, one = kv_blocks(context + 1, self.block_tokens), kv_blocks(prompt + 1, self.block_tokens)
        return int(streams * stream + prompts * one)

    def starts(self, longest: int | None) -> bool:
        """Tell whether vLLM starts with ``max_model_len`` = ``longest``; None for the model's, which is not asked for."""
        return longest is None or self.pool is None or self.pool.starts(longest)

    def holds(self, site: Site, needed: int) -> bool:
        """Tell whether vLLM starts with the ``max_model_len`` that is asked for, and has ``needed`` blocks."""
        return self.blocks is None or (needed <= self.blocks and self.starts(site.options.get("max_model_len")))

    def too_long(self, site: Site) -> int | None:
        """Return the largest ``max_model_len`` with which vLLM starts, where that of the site, or else the model's, is too long."""
        asked = site.most_tokens
        if asked is None or self.pool is None or self.pool.starts(asked):
            return None
        return self.pool.longest(asked)


def block_tokens(site: Site) -> int:
    """Return the tokens of a KV block of a site."""
    given = site.options.get("block_tokens")
    if given is not None:
        return whole(given, "block-size", 1, 65536)
    return default_settings(site.deployment).block_tokens if site.deployment else 16


def room(site: Site, budget: int, seqs: int) -> Room:
    """Return the KV blocks that are left at a token budget and ``max_num_seqs``; one of vLLM's, the null block, is never given out."""
    given, deployment, size = site.options.get("kv_tokens"), site.deployment, block_tokens(site)
    if given is not None:
        return Room(whole(given, "kv-tokens", 1, 10**12) // size, size)
    if deployment is None:
        return Room(None, size)
    settings = replace(workload_settings(deployment, budget, 1, seqs), block_tokens=size)
    pool = pool_of(deployment, settings)
    return Room(int(pool.usable), size, pool)
