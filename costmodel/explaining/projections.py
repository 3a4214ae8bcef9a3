"""Projections of attention: to queries, keys, values and the output. Those of an indexer and of recurrent layers are others' work."""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.counts import index_bytes_per_token
from costmodel.architecture.linears import Linear, attention_linears
from costmodel.architecture.types import Architecture, Attention, LayerKind
from costmodel.explaining.scene import Scene
from costmodel.explaining.words import count, plural, size


def projection_flops(scene: Scene) -> float:
    """Return the FLOPs of one token in the projections of attention (q, k, v, latents and output), on one GPU: 2·k·m each.

    An indexer, which is the same with any number of KV heads, and the layers of other kinds are left out.
    """
    architecture, deployment = scene.architecture, scene.deployment
    return float(
        sum(
            2 * linear.weights * layers
            for kind, layers in zip(architecture.kinds, deployment.layer_counts, strict=True)
            for linear in _projections(kind, architecture, deployment.tp)
        )
    )


def _projections(kind: LayerKind, architecture: Architecture, tp: int) -> list[Linear]:
    alone = replace(kind.attention, index_heads=0, index_head_dim=0, index_by_group=False)
    return attention_linears(alone, architecture.hidden, kind.formats.attention, tp)


def attention_layers(architecture: Architecture) -> int:
    """Return how many layers have attention."""
    return sum(architecture.kinds[index].attention.kind != "none" for index in architecture.pattern)


def left_out(scene: Scene) -> str:
    """Return what else projects and is not counted: ``recurrent layers``, ``its indexer``; nothing for most models."""
    kinds = scene.architecture.kinds
    found = ["its indexer"] if any(kind.attention.index_heads for kind in kinds) else []
    found += ["recurrent layers"] if any(kind.state is not None for kind in kinds) else []
    found += ["cross-attention"] if any(kind.cross is not None for kind in kinds) else []
    return " and ".join(found)


def plain_formula(architecture: Architecture, attention: Attention) -> str:
    """Return the formula of the projections of plain attention: ``2·d·(2·h + 2·h_kv)·d_h·L``, with gates and shared K and V as they are."""
    kinds = [kind.attention for kind in architecture.kinds if kind.attention.kind != "none"]
    widths = {(each.head_dim, each.value_head_dim, each.query_heads, each.kv_heads) for each in kinds}
    layers = f"L = {plural(attention_layers(architecture), 'layer')} with attention"
    gate = f"h·{count(float(attention.gate_dim))}" if attention.gate_dim else ""
    note = "" if len(architecture.pattern) == attention_layers(architecture) else f"; {layers}"
    if attention.head_dim != attention.value_head_dim:
        both = "(h + h_kv)·(d_k + d_v)"
        return (
            f"2·d·({both} + {gate})·L per token{note}; with a gate of the output"
            if gate
            else f"2·d·{both}·L per token{note}"
        )
    queries = "3·h" if attention.output_gate else "2·h"
    keys = "h_kv" if attention.keys_are_values else "2·h_kv"
    heads = f"({queries} + {keys})·d_h"
    whole = f"({heads} + {gate})" if gate else heads
    if attention.output_gate or gate:
        note += "; with a gate of the output, as wide as the queries" if not gate else "; with a gate of the output"
    if len(widths) > 1:
        return f"Σ layers 2·d·{whole} per token, each with its own heads{note}"
    return f"2·d·{whole}·L per token{note}"


def latent_formula(attention: Attention) -> str:
    """Return the formula of the projections of latent attention, MLA: queries, latent, what is made of it, and the output."""
    queries = "d·r_q + r_q·h·d_k" if attention.q_lora_rank else "d·h·d_k"
    gate = f" + d·h·{count(float(attention.gate_dim))}" if attention.gate_dim else ""
    ranks = " (r_q = q_lora_rank, r = kv_lora_rank, d_r = rope)" if attention.q_lora_rank else ""
    return f"2·({queries} + d·(r + d_r) + r·h·(d_k − d_r + d_v) + h·d_v·d{gate})·L per token{ranks}"


def index_keys(scene: Scene) -> str:
    """Return what an indexer adds to the KV bytes of a token, as a formula's summand; nothing without one."""
    layers: dict[float, int] = {}
    for index in scene.architecture.pattern:
        attention = scene.architecture.kinds[index].attention
        each = float(index_bytes_per_token(attention)) if attention.index_heads else 0.0
        if each:
            layers[each] = layers.get(each, 0) + 1
    return "".join(
        f" + {size(each)} for the indexer's key in each of {plural(n, 'layer')}" for each, n in layers.items()
    )
