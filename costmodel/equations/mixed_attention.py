"""Attention of a step with prefill as one kernel of tiles, the form ``mixed_tiles``: chunks and decoding sequences share the GPU.

A tile is ``T`` query rows of one head over all their keys; a multiprocessor works at one tile at a time. A decoding sequence beside a
prefill chunk takes a whole tile per query head, though one row of it is used. This is how FlashAttention 2 runs a mixed batch on
an RTX 4090, where it was measured; kernels of newer parts do it differently.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.equations.numerics import Value, maximum, minimum
from costmodel.equations.parameters import AttentionKernel, MixedTiles
from costmodel.equations.work import Work, attended_pairs, widest


class MixedSeconds(NamedTuple):
    """Seconds of the parts of one kernel, its launch left out [s].

    Attributes:
        chunks: of the prefill chunks alone.
        compute, memory: of their products, and of reading their K and V.
        added: what the decoding sequences add to the chunks.
        tiles, serving, reading: of their tiles beside the keys, of the keys, and of reading their K and V.
    """

    chunks: Value
    compute: Value
    memory: Value
    added: Value
    tiles: Value
    serving: Value
    reading: Value


def mixed_seconds(kernel: AttentionKernel, tiles: MixedTiles, work: Work) -> MixedSeconds:
    """Return the seconds of the chunks alone, and those that the decoding sequences add to them.

    With τ the time of one key of a tile, u = h·max(q/T, 1)/SM waves of tiles of a chunk whose mean query sees ā keys:

    - a chunk alone: τ·max(c + q, u·ā + q·min(u/2, 1)), the longest tile, or all tiles and what the causal triangle leaves idle;
      further chunks add their u·ā;
    - sequences add D·h/SM·(t_t + t_e·(tiles of a chunk − 1)), a tile each and the empty ones that the kernel launches for them,
      the longer of τ·h/SM·ΣC and of reading their KV bytes, and, since tiles no longer start together,
      τ·c·(u + 1/(1 + u) − max(u, 1))·min(D·h/SM, 1);
    - together they last at least as long as one sequence's tile: τ·C/D.

    In a window w, c and c + q end at w. Everything is at least the roofline of the two: e_c ≤ 1, and bytes at full bandwidth.
    """
    rate, window = kernel.prefill_rate, kernel.window
    per_key = tiles.key_flops / (rate.compute_efficiency * rate.peak)
    decode_tiles = tiles.heads_per_unit * work.decodes
    interleaved = minimum(decode_tiles, 1)
    keys: Value = 0
    idle: Value = 0
    idle_mixed: Value = 0
    most: Value = 0
    for chunk in work.chunks:
        q, c = chunk.tokens, chunk.cached
        here = minimum(q, 1)
        blocks = maximum(q / tiles.block_rows, here)
        waves = tiles.heads_per_unit * blocks
        before, growth = c * here, q
        longest = before + growth
        if (width := widest(window)) is not None:
            before, growth = minimum(c, width) * here, minimum(q, width)
            longest = minimum(c * here + q, width)
        mean = waves * attended_pairs(q, c, window) / maximum(q, 1)
        tail = maximum(longest - mean, growth * minimum(waves / 2, 1))
        scattered = before * (waves + 1 / (1 + waves) - maximum(waves, 1))
        keys = keys + mean
        idle = maximum(idle, tail)
        idle_mixed = maximum(idle_mixed, tail + interleaved * scattered)
        most = maximum(most, blocks - here)
    compute = kernel.flops_per_pair * work.pairs[window] / (rate.compute_efficiency * rate.peak)
    memory = kernel.kv_bytes_per_token * work.prefill_kv[window] / (rate.bandwidth_efficiency * rate.bandwidth)
    needed = maximum(compute, memory)
    alone = maximum(per_key * (keys + idle), needed)
    beside = maximum(per_key * (keys + idle_mixed), needed)
    read = work.decode_kv[window]
    tile_time = decode_tiles * (tiles.tile + tiles.empty_tile * most)
    reading = kernel.kv_bytes_per_token * read / (rate.bandwidth_efficiency * rate.bandwidth)
    attended = read if work.decode_pairs is None else work.decode_pairs[window]
    serving = maximum(per_key * tiles.heads_per_unit * read, kernel.flops_per_kv_token * attended / rate.peak)
    added = (beside - alone) + tile_time + maximum(serving, reading)
    added = maximum(added, per_key * read / maximum(work.decodes, 1) - alone)
    return MixedSeconds(alone, compute, memory, added, tile_time, serving, reading)
