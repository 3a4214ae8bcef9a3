"""Formulas for the layers that a model has: what a prompt computes, what a sequence keeps, and what a decode step reads.

Symbols: n tokens, L layers, h query heads, h_kv KV heads, d_h elements of a head (d_k of a key, d_v of a value), b_kv bytes of an element
in the cache; of latent attention (MLA) the rank r of the latent and d_r elements of the rotary part of K; w tokens of a window or a choice.
"""

from __future__ import annotations

from costmodel.architecture.types import Attention
from costmodel.explaining.layers import dense, pairs_formula, sights
from costmodel.explaining.scene import Scene

KEPT = {
    "all": "n where a token looks at all",
    "window": "min(n, w) in a window of w",
    "chunks": "min(n, w + 2) in chunks of w: room for a whole one, and the tokens under way",
    "chosen": "n where an indexer chooses, with its keys",
    "state": "0 in recurrent layers, which keep a state of fixed size instead",
}
"""What layers keep, by what they look at."""
READ = {
    **KEPT,
    "chunks": "those of the chunk so far in chunks",
    "chosen": "min(n, w) where w are chosen, and the indexer's keys of all n",
    "state": "0 in recurrent layers, which read and write a state of fixed size instead",
}
"""What a decode step reads."""


def _attentions(scene: Scene) -> list[Attention]:
    return [kind.attention for kind in scene.architecture.kinds if kind.attention.kind != "none"]


def pair_flops(scene: Scene, decode: bool = False) -> str:
    """Return the FLOPs of a layer's attention for one query and one key: ``4·h·d_h``; ``decode`` for a decode step.

    A decode step of latent attention works on the latent itself, and so does its prefill where every query has keys of its own.
    """
    said = []
    for attention in _attentions(scene):
        if attention.kind == "mla" and (decode or attention.top_k):
            said.append("2·h·(2·r + d_r)")
        else:
            plain = attention.kind == "gqa" and attention.head_dim == attention.value_head_dim
            said.append("4·h·d_h" if plain else "2·h·(d_k + d_v)")
    return " or ".join(dict.fromkeys(said)) or "4·h·d_h"


def passed_elements(scene: Scene) -> str:
    """Return the elements that attention of a prompt passes per token and layer: queries, keys, values and what comes out of them."""
    return {
        "4·h·d_h": "(h + h_kv)·2·d_h",
        "2·h·(d_k + d_v)": "(h + h_kv)·(d_k + d_v)",
        "2·h·(2·r + d_r)": "(h·(2·r + d_r) + r + d_r)",
    }.get(pair_flops(scene), "(h + h_kv)·(d_k + d_v)")


def token_bytes(scene: Scene) -> str:
    """Return the bytes of a token's K and V in one layer: ``2·h_kv·d_h·b_kv``; of a latent, ``(r + d_r)·b_kv``."""
    said = []
    for attention in _attentions(scene):
        plain = attention.head_dim == attention.value_head_dim
        grouped = "2·h_kv·d_h·b_kv" if plain else "h_kv·(d_k + d_v)·b_kv"
        said.append("(r + d_r)·b_kv" if attention.kind == "mla" else grouped)
    return " or ".join(dict.fromkeys(said)) or "2·h_kv·d_h·b_kv"


def prompt_formula(scene: Scene, matrices: str = "2·P·n/F") -> str:
    """Return the time of a prompt of n tokens, by the pairs of query and key that its layers compute."""
    if dense(scene):
        return f"{matrices} + {pair_flops(scene)}·L·n(n + 1)/2/F"
    return f"{matrices} + {pair_flops(scene)}·Σ layers A(n)/F; {pairs_formula(scene)}"


def rest_formula(scene: Scene) -> str:
    """Return the time of the q tokens of a prompt that follow c cached ones: those look at these, too."""
    if dense(scene):
        return f"2·P·q/F + {pair_flops(scene)}·L·(q·c + q(q + 1)/2)/F"
    pairs = pairs_formula(scene).replace("d_i·n(n + 1)/2", "d_i·(q·c + q(q + 1)/2)")
    return f"2·P·q/F + {pair_flops(scene)}·Σ layers (A(c + q) − A(c))/F; {pairs}"


def equal_formula(scene: Scene) -> str:
    """Return the length at which attention of a dense prompt has as many FLOPs as the matrices of its layers."""
    if pair_flops(scene) == "4·h·d_h":
        return "P_lin/(h·d_h·L)"
    return "2·P_lin/(h·(d_k + d_v)·L)"


def kept_formula(scene: Scene) -> str:
    """Return the bytes that a sequence of n tokens keeps."""
    if dense(scene):
        return f"n·{token_bytes(scene)}·L"
    return f"Σ layers c(n)·{token_bytes(scene)}; c(n) = {_of_layers(scene, KEPT)}"


def read_formula(scene: Scene, kept: str = "KV bytes") -> str:
    """Return the bytes that a decode step reads of a sequence of n tokens.

    Args:
        scene: model.
        kept: what the bytes that it keeps are called, where it reads all of them.
    """
    found = [sight.what for sight in sights(scene)]
    if "chosen" in found or "chunks" in found:
        read = f"Σ layers c(n)·{token_bytes(scene)}, c(n) = {_of_layers(scene, READ)}"
    else:
        read = "n·KV bytes per token" if dense(scene) else kept
    return read + (", and states, read and written" if "state" in found and "chosen" not in found else "")


def _of_layers(scene: Scene, words: dict[str, str]) -> str:
    return ", ".join(dict.fromkeys(words[sight.what] for sight in sights(scene)))
