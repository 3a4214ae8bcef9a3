"""What the layers of a model look at, and which experts its tokens choose: wording that fits models of every kind."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.architecture.types import Attention
from costmodel.equations.work import LocalChunks, attended_pairs, widest
from costmodel.explaining import compressed
from costmodel.explaining.scene import Scene
from costmodel.explaining.words import count, plural


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
            every, chosen = float(feed_forward.experts), float(feed_forward.experts_per_token)
            served = scene.deployment.replicas * tokens
            touched = every * (1 - (1 - chosen / every) ** served)
            found = Experts(every, chosen, touched, served * chosen / touched)
    return found


class Sight(NamedTuple):
    """Layers that look at the same."""

    layers: int
    what: str
    """``all``, ``window``, ``chunks``, ``chosen`` or ``state``."""
    tokens: int
    """Of the window, the local chunk or the choice; where it is all keys and they are compressed, that make one; 0 for the others."""


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
    if attention.window is None or attention.compression:
        return "all", attention.compression
    return "window", int(widest(attention.window))


def compression(scene: Scene, sight: Sight) -> int:
    """Return how many tokens make one of the keys that these layers look at beside the last ones; 0 where keys are of tokens."""
    kinds = (kind.attention for kind in scene.architecture.kinds if kind.attention.compression)
    return next((each.compression for each in kinds if _sight(each) == sight[1:]), 0)


LOOKING = {
    "all": "all before it",
    "window": "the last {0:,} only",
    "chunks": "those of its chunk of {0:,} only",
    "chosen": "the {0:,} that an indexer chooses (which compares it with all before it)",
    "state": "a state of fixed size",
}


def dense(scene: Scene) -> bool:
    """Return whether every layer that mixes tokens looks at all of them."""
    return all(sight.what == "all" and not sight.tokens for sight in sights(scene))


def looking(scene: Scene) -> str:
    """Return what a token looks at: ``every token looks at all before it``, or by layers."""
    found = sights(scene)
    whole = sum(sight.layers for sight in found)
    parts = [
        (compressed.LOOKING if ratio else LOOKING)[sight.what].format(sight.tokens, ratio)
        for sight in found
        for ratio in [compression(scene, sight)]
    ]
    if len(found) == 1:
        return f"every token looks at {parts[0]}"
    said = [f"in {sight.layers} at {part}" for sight, part in zip(found, parts, strict=True)]
    return f"of {plural(whole, 'layer')} that mix tokens every token looks {', '.join(said[:-1])} and {said[-1]}"


def growth(scene: Scene) -> str:
    """Return what attention of a prompt grows with."""
    if dense(scene):
        return "∝ n²"
    found = sights(scene)
    if any(sight.what == "chosen" for sight in found):
        return "∝ n², small, in the indexer, and ∝ n"
    layers = sum(sight.layers for sight in found if sight.what != "state")
    whole = sum(sight.layers for sight in found if sight.what == "all")
    return (
        "∝ n"
        if whole == 0
        else f"∝ n² in {whole} of {plural(sum(sight.layers for sight in found), 'layer')}"
        + (", ∝ n in others" if layers > whole else "")
    )


PAIRS = {
    "all": "n(n + 1)/2 where a token looks at all",
    "window": "n·w − w(w − 1)/2 in a window of w < n",
    "chunks": "≈ n·(w + 1)/2 in chunks of w < n",
    "chosen": "n·w − w(w − 1)/2 where w < n are chosen",
    "state": "0 in recurrent layers",
}


def pairs_formula(scene: Scene) -> str:
    """Return the formula of the (query, key) pairs of a prompt, A(n), for the layers that there are."""
    found = sights(scene)
    pairs = [(compressed.PAIRS if compression(scene, sight) else PAIRS)[sight.what] for sight in found]
    said = "A(n) = " + ", ".join(dict.fromkeys(pairs))
    chosen = next((sight for sight in found if sight.what == "chosen"), None)
    if chosen is None:
        return said
    return said + f"; the indexer 2·h_i·d_i·{'Σ ⌊t/m⌋' if compression(scene, chosen) else 'n(n + 1)/2'} per layer"


def scores_said(scene: Scene, tokens: int) -> str:
    """Return how many scores a prompt has per head: the same in every layer, or by layers."""
    layers: dict[float, int] = {}
    for index in scene.architecture.pattern:
        attention = scene.architecture.kinds[index].attention
        if attention.kind != "none":
            pairs = float(attended_pairs(tokens, 0, attention.reach))
            layers[pairs] = layers.get(pairs, 0) + 1
    if len(layers) == 1:
        return f"{count(next(iter(layers)))} per head and layer"
    return "per head " + " and ".join(f"{count(pairs)} in each of {number} layers" for pairs, number in layers.items())
