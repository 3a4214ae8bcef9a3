"""Misunderstanding 7: FlashAttention computes the same numbers and moves fewer bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from costmodel.architecture.linears import kv_heads_per_gpu, query_heads_per_gpu
from costmodel.architecture.types import Attention
from costmodel.equations.compressed import Compressed
from costmodel.equations.work import attended_pairs, chunk_kv
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.formulas import pair_flops, passed_elements
from costmodel.explaining.layers import dense, pairs_formula, scores_said, sights
from costmodel.explaining.scene import Scene, flops_of, lengths, no_indexer, of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import at_most, count, flop, seconds, size, times

TILE = 128
"""Queries of a tile, as FlashAttention-3 takes them for d_h = 128 (Shah et al., 2024, arXiv:2407.08608)."""
DEMO_TOKENS, DEMO_TILE, DEMO_WIDTH = 512, 64, 64
SEED = 7


def naive_bytes(scene: Scene, tokens: int) -> float:
    """Return the bytes of attention over a prompt that writes its scores to memory, on one GPU [B].

    Per layer and head, with n(n + 1)/2 scores (what the causal mask hides is not counted): read Q and K, write S, read S, write
    P = softmax(S), read P and V, write O: 4·n·d_h + 4·n(n + 1)/2 elements; K and V once per KV head. Algorithm 0 of Dao et al. (2022).
    """
    total = 0.0
    for attention, layers, heads, kv_heads in _layers(scene):
        linear = tokens * (heads + kv_heads) * (attention.head_dim + attention.value_head_dim)
        total += (
            layers
            * (linear + 4 * heads * attended_pairs(tokens, 0, attention.reach))
            * scene.deployment.activation_bytes
        )
    return total


def tiled_bytes(scene: Scene, tokens: int, again: bool = False) -> float:
    """Return the bytes of the same attention in tiles [B]: Q, K, V and O once; no score leaves the chip.

    Args:
        scene: model and GPU.
        tokens: n.
        again: count K and V as read from memory by every tile of :data:`TILE` queries, as far as causality lets it see; else once, as when
            they stay in the L2 cache between tiles. Queries that choose their keys are taken to choose different ones, as far as there are
            so many: that is the most.
    """
    total = 0.0
    for attention, layers, heads, kv_heads in _layers(scene):
        widths = attention.head_dim + attention.value_head_dim
        reads = tokens * kv_heads * widths
        if again:
            starts = range(0, tokens, TILE)
            seen = sum(_tile_keys(attention, min(TILE, tokens - start), start) for start in starts)
            reads = seen * (kv_heads if attention.top_k or attention.shared_kv else heads) * widths
        total += layers * (tokens * heads * widths + reads) * scene.deployment.activation_bytes
    return total


def _tile_keys(attention: Attention, tile: int, start: int) -> float:
    """Return the keys that a tile of queries reads after ``start`` tokens: those that some query of it sees.

    Where every query chooses w of its own, Σ min(start + j, w) of them at most, and no more than there are.
    """
    if not attention.top_k:
        return float(chunk_kv(tile, start, attention.reach))
    reach = attention.reach
    if isinstance(reach, Compressed):
        own = chunk_kv(tile, start, reach.window) if reach.window else 0
        return float(own + min((start + tile) // reach.ratio, reach.pairs(tile, start)))
    return float(min(start + tile, attended_pairs(tile, start, reach)))


def _layers(scene: Scene) -> list[tuple[Attention, float, float, float]]:
    """Return (attention, layers, query heads, KV heads) of the layers with softmax attention, on one GPU.

    MLA prefills as MHA, with K and V of every head; where an indexer chooses the keys, on the latent itself, which all heads share: keys
    of kv_lora_rank + rope, whose first part are the values.
    """
    tp, found = scene.deployment.tp, []
    for kind, layers in zip(scene.architecture.kinds, scene.deployment.layer_counts, strict=True):
        if kind.attention.kind in ("gqa", "mla"):
            heads = query_heads_per_gpu(kind.attention, tp)
            kv = heads if kind.attention.kind == "mla" else kv_heads_per_gpu(kind.attention, tp)
            if kind.attention.shared_kv:  # one vector is key and value
                kv = kv / 2
            attention, rank, rope = kind.attention, kind.attention.kv_lora_rank, kind.attention.rope_head_dim
            if attention.kind == "mla" and attention.top_k:
                attention, kv = (
                    replace(attention, head_dim=rank + rope, value_head_dim=rank),
                    (rank + rope) / (2 * rank + rope),
                )
            found.append((attention, float(layers), float(heads), float(kv)))
    return found


def plain_attention(q: Any, k: Any, v: Any) -> Any:
    """Return causal attention with all scores at once: softmax(q·kᵀ/√d)·v."""
    import numpy as np

    scores = np.where(np.tri(len(q), len(k), len(k) - len(q), dtype=bool), q @ k.T / math.sqrt(q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def tiled_attention(q: Any, k: Any, v: Any, tile: int) -> Any:
    """Return the same in tiles with an online softmax: at no time more than ``tile``² scores.

    For each tile of keys, with m the largest score so far, l the sum of weights and o the weighted sum of values (per query):
    m' = max(m, max s), l' = l·e^(m − m') + Σ e^(s − m'), o' = o·e^(m − m') + e^(s − m')·v; the result is o/l.

    Source: Milakov and Gimelshein (2018), arXiv:1805.02867; Dao et al. (2022), arXiv:2205.14135, algorithm 1.
    """
    import numpy as np

    result = np.empty((len(q), v.shape[1]), q.dtype)
    scale = q.dtype.type(1 / math.sqrt(q.shape[1]))
    for start in range(0, len(q), tile):
        rows = q[start : start + tile]
        last = np.arange(start, start + len(rows)) + len(k) - len(q)
        largest = np.full((len(rows), 1), -np.inf, q.dtype)
        total = np.zeros((len(rows), 1), q.dtype)
        summed = np.zeros((len(rows), v.shape[1]), q.dtype)
        for first in range(0, int(last[-1]) + 1, tile):
            keys, values = k[first : first + tile], v[first : first + tile]
            scores = rows @ keys.T * scale
            scores = np.where(np.arange(first, first + len(keys)) <= last[:, None], scores, -np.inf)
            new = np.maximum(largest, scores.max(axis=1, keepdims=True))
            fading, weights = np.exp(largest - new), np.exp(scores - new)
            total = total * fading + weights.sum(axis=1, keepdims=True)
            summed = summed * fading + weights @ values
            largest = new
        result[start : start + tile] = summed / total
    return result


def demonstration(tokens: int = DEMO_TOKENS, tile: int = DEMO_TILE, width: int = DEMO_WIDTH) -> dict[str, Cell]:
    """Compute attention of random Q, K and V both ways, in 64 and in 32 bits, and return the largest differences.

    In 32 bits both are held against the result in 64 bits of the same inputs: tiling is exact if it is no further away than the plain way.
    """
    import numpy as np

    generator = np.random.default_rng(SEED)
    q, k, v = (generator.standard_normal((tokens, width)) for _ in range(3))
    exact = plain_attention(q, k, v)
    short = [each.astype(np.float32) for each in (q, k, v)]
    reference = plain_attention(*(each.astype(np.float64) for each in short))
    return {
        "demo_tokens": tokens,
        "demo_tile_tokens": tile,
        "difference_64_bits": float(np.abs(tiled_attention(q, k, v, tile) - exact).max()),
        "error_tiled_32_bits": float(np.abs(tiled_attention(short[0], short[1], short[2], tile) - reference).max()),
        "error_plain_32_bits": float(np.abs(plain_attention(*short) - reference).max()),
    }


def _waits(before: float, after: float, computing: float, fitted: float | None) -> str:
    """Return what attention waits for before and after, by the times of moving both ways and of multiplying at peak [s].

    Args:
        before, after: of moving the bytes, scores in memory and in tiles.
        computing: of its FLOPs at peak.
        fitted: of the kernels of the calibrated rung, which reach less than the peak; None on the roofline.
    """
    at_peak = f"{seconds(computing)} at peak"
    real = (
        "" if fitted is None else f" (in all, its kernels take {seconds(fitted)} by the calibration: they reach less)"
    )
    if computing >= before:
        return f"; multiplying takes {at_peak} and is what it waits for both ways{real}"
    if computing >= after:
        return f", so that multiplying is what it waits for, {at_peak}{real}"
    return f"; multiplying takes {at_peak} only, so that it waits for moving both ways, but not as long{real}"


def flash_attention(scene: Scene) -> Topic:
    """7. FLOPs and bytes of a prompt's attention with all scores in memory and in tiles; and both computed, to compare."""
    tokens, hardware = scene.context, scene.deployment.hardware
    exact = no_indexer(of(scene.prefill(tokens, floor=True), ["attention"]))
    flops, computing = flops_of(exact), sum(item.compute_s for item in exact)
    demo = demonstration()
    apart, tiles, plain = (
        at_most(number(demo[key])) for key in ("difference_64_bits", "error_tiled_32_bits", "error_plain_32_bits")
    )
    rows: list[dict[str, Cell]] = []
    window = scene.architecture.max_positions or tokens
    for length in lengths(512, max(min(window, 131_072), tokens), tokens):
        kernel = no_indexer(of(scene.prefill(length, floor=True), ["attention"]))
        naive, tiled, again = naive_bytes(scene, length), tiled_bytes(scene, length), tiled_bytes(scene, length, True)
        rows.append(
            {
                "prompt_tokens": length,
                "flops": flops_of(kernel),
                "computing_s": float(sum(item.compute_s for item in kernel)),
                "naive_bytes": naive,
                "naive_moving_s": naive / hardware.bandwidth,
                "tiled_bytes": tiled,
                "tiled_moving_s": tiled / hardware.bandwidth,
                "tiled_again_bytes": again,
            }
        )
    naive, tiled = naive_bytes(scene, tokens), tiled_bytes(scene, tokens)
    again = tiled_bytes(scene, tokens, True)
    layers = _layers(scene)
    one_layer = max(
        (
            heads * attended_pairs(tokens, 0, attention.reach) * scene.deployment.activation_bytes
            for attention, _, heads, _ in layers
        ),
        default=0.0,
    )
    slower = naive / hardware.bandwidth
    taken = time_of(no_indexer(of(scene.prefill(tokens), ["attention"])))
    scores = scores_said(scene, tokens)
    most = "up to " if scores.startswith("per head") else ""
    chosen = anew = most_of = ""
    if any(sight.what == "chosen" for sight in sights(scene)):
        chosen = " (The indexer, which chooses the keys, is left out: it has no softmax and no values.)"
        most_of = ", at most: each query chooses keys of its own"
        anew = (
            f" In tiles each key is counted from memory once. Queries of one tile may choose different keys: up to {size(again)}, "
            f"{times(naive / again)} less, if every tile of {TILE} reads anew all that they can choose."
        )
    return Topic(
        number=7,
        name="flash-attention",
        claim="FlashAttention is an approximation.",
        verdict=f"No, it is exact: the same {flop(flops)}, in another order, that move fewer bytes. For a prompt of {count(tokens)} "
        f"tokens, attention that writes its scores to memory moves {size(naive)} ({seconds(slower)} at full bandwidth); in tiles "
        f"{size(tiled)} ({seconds(tiled / hardware.bandwidth)}), {times(naive / tiled)} "
        f"less{_waits(slower, tiled / hardware.bandwidth, computing, taken if scene.fitted else None)}.{anew} "
        f"Computed both ways just now: the results differ by at most {apart} in 64 "
        "bits, which is rounding.",
        finding=f"FlashAttention: the same {flop(flops)}, {times(naive / tiled)} fewer bytes, and results equal to rounding "
        f"(within {apart})",
        reason=(
            "A softmax needs the largest score and the sum over all keys. Tiles of keys are taken one after another; whenever a larger "
            "score comes, what was summed so far is multiplied by e^(old − new largest). That is an identity, not an estimate, so the "
            "result is the same but for the order in which numbers are rounded.",
            f"What changes is where scores live: {scores} stay on the chip, a tile at a time, and need no memory ({most}{size(one_layer)} "
            f"per layer otherwise).{chosen} In 32 bits the tiled result is off by at most {tiles} and the plain one by at most {plain}: "
            "neither is better.",
        ),
        numbers={
            "prompt_tokens": tokens,
            "attention_flops": flops,
            "computing_s": computing,
            "naive_bytes": naive,
            "naive_moving_s": slower,
            "tiled_bytes": tiled,
            "tiled_moving_s": tiled / hardware.bandwidth,
            "tiled_again_bytes": again,
            "bytes_ratio": naive / tiled if tiled else None,
            "scores_of_a_layer_bytes": one_layer,
            "attention_s": taken,
            **demo,
        },
        labels={
            "prompt_tokens": "prompt",
            "attention_flops": "FLOPs of its attention, both ways",
            "computing_s": "time of these at peak",
            "naive_bytes": "bytes moved with scores in memory",
            "naive_moving_s": "time of these at full bandwidth",
            "tiled_bytes": "bytes moved in tiles, K and V from memory once",
            "tiled_moving_s": "time of these",
            "tiled_again_bytes": f"bytes if every tile of {TILE} queries read K and V from memory again{most_of}",
            "bytes_ratio": "with scores in memory over in tiles",
            "scores_of_a_layer_bytes": "memory for the scores of one layer, which tiles do not need",
            "attention_s": f"time of this attention, {scene.rung} rung",
            "demo_tokens": "demonstration: queries and keys, causal",
            "demo_tile_tokens": "demonstration: tile",
            "difference_64_bits": "largest difference of tiled and plain, 64 bits",
            "error_tiled_32_bits": "largest error in 32 bits, tiled",
            "error_plain_32_bits": "largest error in 32 bits, plain",
        },
        tables=(
            table(
                "prompts",
                "Attention of a prompt, all layers, on one GPU",
                {
                    "prompt_tokens": "prompt",
                    "flops": "FLOPs",
                    "computing_s": "at peak",
                    "naive_bytes": "scores in memory",
                    "naive_moving_s": "moving",
                    "tiled_bytes": "in tiles",
                    "tiled_moving_s": "moving them",
                },
                rows,
            ),
            table(
                "curves",
                "Bytes by length",
                {"prompt_tokens": "prompt", "tiled_again_bytes": "K and V again for every tile"},
                rows,
                shown=False,
            ),
        ),
        formulas=(
            f"with scores: n·{passed_elements(scene)}·b + 4·h·n(n + 1)/2·b per layer; in tiles without the n²; "
            f"FLOPs {pair_flops(scene)}·n(n + 1)/2 both ways"
            if dense(scene)
            else f"with scores: n·{passed_elements(scene)}·b + 4·h·A(n)·b per layer; in tiles without A(n); "
            f"FLOPs {pair_flops(scene)}·A(n) both ways; {pairs_formula(scene).partition(';')[0]}",
            "online softmax: m' = max(m, s), l' = l·e^(m − m') + Σ e^(s − m'), o' = o·e^(m − m') + Σ e^(s − m')·v; result o/l",
        ),
        sources=(
            "Dao et al., FlashAttention: Fast and Memory-Efficient Exact Attention, NeurIPS 2022, arXiv:2205.14135 (algorithms 0 and 1)",
            "Milakov, Gimelshein, Online normalizer calculation for softmax, 2018, arXiv:1805.02867",
        ),
    )
