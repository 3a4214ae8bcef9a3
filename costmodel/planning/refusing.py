"""The answer where no number of servers will do, and what could be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodel.planning.answering import nearest_limit, verified
from costmodel.planning.documents import FleetPlan, FleetRun, Nearest
from costmodel.planning.searching import sentence, worst
from costmodel.planning.traffic import Asked
from costmodel.simulation.options import ServerOptions

Ask = Callable[[dict[str, Any], ServerOptions], FleetPlan]
REASONS = {"max_model_len": "max_model_len", "KV cache": "kv_memory"}
"""Words of the reason why a request is refused → limit; others are about the token budget."""


def refusal(made: Asked, alone: FleetRun | None, full: FleetRun) -> dict[str, Any]:
    """Return the answer where no number of servers will do.

    Args:
        made: the question.
        alone: what requests see that have a server for themselves, if that was looked at.
        full: what comes of as many servers as are looked at.
    """
    slo = made.traffic.slo
    if alone is not None and alone.missed:
        last, binding = alone, worst(alone, slo)
        text = f"no number of servers will do: even for requests that have one for themselves, {sentence(binding, alone, slo)}"
        what = "one request per server"
    else:
        last = full
        binding, what = worst(last, slo), f"with {last.servers:,} servers"
        text = f"not even {last.servers:,} servers, {last.servers * made.per_server:,} GPUs, are enough: {sentence(binding, last, slo)}"
    if binding == "refused":
        binding = _limit(last)
        return {"feasible": False, "binding": binding, "binds": text, "nearest": _that_are_taken(made, binding)}
    missed = dict.fromkeys((*last.missed, *full.missed))  # both are asked when the question is asked again
    by_itself = len(missed) == 1
    if not by_itself:
        what += ", together with the others"
    near = []
    for name in missed:
        values = [getattr(run, f"{name}_s", None) for run in (last, full) if name in run.missed]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            near.append(nearest_limit(name, max(known), what).model_copy(update={"enough": by_itself}))
    return {"feasible": False, "binding": binding, "binds": text, "nearest": tuple(near)}


def _limit(run: FleetRun) -> str:
    """Return the limit for which most requests are refused."""
    refused = run.refused or {}
    why = max(refused, key=lambda reason: refused[reason])
    return next((limit for words, limit in REASONS.items() if words in why), "token_budget")


def _that_are_taken(made: Asked, binding: str) -> tuple[Nearest, ...]:
    """Return what would let a server take the longest request: more GPUs or a longer ``max_model_len``, and a shorter prompt."""
    near: list[Nearest] = []
    tokens = max(request.prompt + request.output for request in made.traffic.requests)
    deployment = made.server.deployment
    if binding == "kv_memory" and (more := made.more_gpus(tokens)) is not None:
        near.append(more)
    if binding == "kv_memory" and made.traffic.options.get("kv_tokens") is not None:
        size = made.server.settings.block_tokens
        held = -(-tokens // size) * size
        near.append(Nearest(change="--kv-tokens", value=held, text=f"--kv-tokens {held}"))
    if binding == "max_model_len" and (
        deployment is None or tokens <= (deployment.architecture.max_positions or tokens)
    ):
        near.append(Nearest(change="--max-model-len", value=tokens, text=f"--max-model-len {tokens}"))
    longest = made.server.settings.ends_at - made.traffic.output
    if made.traffic.rate is not None and longest >= 1:
        near.append(Nearest(change="--prompt", value=longest, text=f"prompts of up to {int(longest):,} tokens"))
    return tuple(near)


def tried(plan: Ask, asked: dict[str, Any], server: ServerOptions) -> FleetPlan:
    """Return an answer; where memory or a flag binds, the nearest values are tried, and say whether they are enough.

    Args:
        plan: answers, given the arguments and the flags of a server.
        asked: the arguments.
        server: the flags.
    """
    found = plan(asked, server)
    if found.binding not in (*REASONS.values(), "token_budget"):
        return found

    def again(name: str, value: Any) -> FleetPlan:
        if name in asked:
            return plan({**asked, name: value}, server)
        changed: Any = {**server, name: value}
        return plan(asked, changed)

    return verified(found, again)
