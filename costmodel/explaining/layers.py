"""What the layers of a model look at, and which experts its tokens choose: wording that fits models of every kind."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.architecture.types import Attention
from costmodel.equations.work import LocalChunks
from costmodel.explaining.scene import Scene
from costmodel.explaining.words import plural


class Experts(NamedTuple):
    """The routed experts of one layer in a step, if a router chooses evenly."""

    all: float
    """E."""
    per_token: float
    """k."""
    touched: float
    """E·(1 − (1 − k/E)^B): experts that some token of the step chose."""
    rows: float
    """B·k over those touched: tokens that the reading of one expert serves."""


def experts_of(scene: Scene, tokens: float) -> Experts | None:
    """Return the experts that a step of ``tokens`` touches in the last kind of layer that has some; None for a dense model."""
    found = None
    for kind in scene.architecture.kinds:
        feed_forward = kind.feed_forward
        if feed_forward.kind == "moe":
            count, chosen = float(feed_forward.experts), float(feed_forward.experts_per_token)
            served = scene.deployment.replicas * tokens
            touched = count * (1 - (1 - chosen / count) ** served)
            found = Experts(count, chosen, touched, served * chosen / touched)
    return found


class Sight(NamedTuple):
    """Layers that look at the same."""

    layers: int
    what: str
    """``all``, ``window``, ``chunks``, ``chosen`` or ``state``."""
    tokens: int
    """Of the window, the local chunk or the choice; 0 for the others."""


def sights(scene: Scene) -> list[Sight]:
    """Return how many layers of the model look at what; those that mix no tokens are left out."""
    counts: dict[tuple[str, int], int] = {}
    for index in scene.architecture.pattern:
        kind = scene.architecture.kinds[index]
        if kind.attention.kind != "none":
            key = _sight(kind.attention)
        elif kind.state is not None:
            key = ("state", 0)
        else:
            continue
        counts[key] = counts.get(key, 0) + 1
    order = ("all", "window", "chunks", "chosen", "state")
    found = [Sight(layers, what, tokens) for (what, tokens), layers in counts.items()]
    return sorted(found, key=lambda sight: order.index(sight.what))


def _sight(attention: Attention) -> tuple[str, int]:
    if isinstance(attention.reach, LocalChunks):
        return "chunks", int(attention.reach.size)
    if attention.top_k:
        return "chosen", int(attention.top_k)
    return ("all", 0) if attention.window is None else ("window", int(attention.reach or 0))


LOOKING = {
    "all": "all before it",
    "window": "the last {0:,} only",
    "chunks": "those of its chunk of {0:,} only",
    "chosen": "the {0:,} that an indexer chooses (which compares it with all before it)",
    "state": "a state of fixed size",
}


def dense(scene: Scene) -> bool:
    """Return whether every layer that mixes tokens looks at all of them."""
    return all(sight.what == "all" for sight in sights(scene))


def looking(scene: Scene) -> str:
    """Return what a token looks at: ``every token looks at all before it``, or by layers."""
    found = sights(scene)
    whole = sum(sight.layers for sight in found)
    parts = [LOOKING[sight.what].format(sight.tokens) for sight in found]
    if len(found) == 1:
        return f"every token looks at {parts[0]}"
    said = [f"in {sight.layers} at {part}" for sight, part in zip(found, parts, strict=True)]
    return f"of {plural(whole, 'layer')} that mix tokens every token looks {', '.join(said[:-1])} and {said[-1]}"
