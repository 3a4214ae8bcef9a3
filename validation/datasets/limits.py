"""What a part cannot beat, for the rules that ask for it: datasheet rates, last-level cache, and floors of measured kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.equations.work import Decodes, attended_pairs, decode_kv
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError
from costmodel.validation.datasets.formats import quantisation
from costmodel.validation.datasets.tables import (
    AllReduceTable,
    AttentionTable,
    Column,
    DecodeTable,
    GemmTable,
    PrefillTable,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Datasheet limits of one part.

    Attributes:
        gpu: canonical name.
        peak_flops: dense peak by compute dtype [FLOP/s].
        bandwidth: peak of device memory [B/s].
        l2: last-level cache [B].
        link: one direction of the link between GPUs [B/s].
    """

    gpu: str
    peak_flops: dict[str, float]
    bandwidth: float
    l2: float
    link: float

    def peak(self, *dtypes: str) -> float:
        """Return the highest peak of the compute dtypes that the part has [FLOP/s].

        Raises:
            InputError: it has none of them.
        """
        found = [self.peak_flops[dtype] for dtype in dtypes if dtype in self.peak_flops]
        if not found:
            raise InputError(f"{self.gpu} has no peak for {' or '.join(dtypes)}")
        return max(found)


def limits(gpu: str) -> Limits:
    """Return the limits of a part.

    Raises:
        InputError: no such part, or its last-level cache is not known.
    """
    profile, choice = load_gpu(gpu)
    if profile.l2_cache is None:
        raise InputError(f"{choice.name}: its profile states no l2_cache, by which rows are chosen")
    peaks = {str(dtype): figure.value for dtype, figure in profile.peak_flops.items()}
    link = profile.link.bandwidth_per_direction.value
    return Limits(choice.name, peaks, profile.memory_bandwidth.value, profile.l2_cache.value, link)


def weight_bytes(table: GemmTable) -> Column:
    """Return the bytes of a layer's weights, n·k at the stored size [B]."""
    return quantisation(table.dtype).weights.bytes_per_weight * table.outputs * table.inputs


def kv_bytes(table: DecodeTable) -> Column:
    """Return the bytes of K and V that a decode step reads: 2·batch·h_kv·d·min(context + 1, window) elements [B]."""
    return 2 * _kv_element(table) * table.kv_heads * table.head_dim * _kv_read(table)


def gemm_floor(table: GemmTable, part: Limits) -> Column:
    """Return max(2mnk/F, (weights + m·k activations + 2 bytes · m·n outputs)/W) [s]."""
    kind = quantisation(table.dtype)
    moved = weight_bytes(table) + table.tokens * (kind.activation_bytes * table.inputs + 2 * table.outputs)
    flops = 2 * table.tokens * table.outputs * table.inputs
    return np.maximum(flops / part.peak(kind.compute), moved / part.bandwidth)


def prefill_floor(table: PrefillTable, part: Limits) -> Column:
    """Return 4·h·d·pairs/F [s], with the F of the KV dtype if that is faster than the queries'.

    Bytes do not count: Q, K and V of a prompt were written by the layer before, so a server finds them in L2 as well.
    """
    width: Any = np.minimum(table.window, table.tokens + table.cached)
    pairs: Column = attended_pairs(table.tokens, table.cached, width)
    return 4 * table.batch * table.query_heads * table.head_dim * pairs / _attention_peak(table, part)


def decode_floor(table: DecodeTable, part: Limits) -> Column:
    """Return max(4·h·d·context/F, bytes of K, V, Q and output/W) [s]."""
    flops = 4 * table.query_heads * table.head_dim * _kv_read(table)
    moved = kv_bytes(table) + _query_bytes(table) * table.batch * table.query_heads * table.head_dim
    return np.maximum(flops / _attention_peak(table, part), moved / part.bandwidth)


def all_reduce_floor(table: AllReduceTable, part: Limits) -> Column:
    """Return bytes/link [s]: every rank sends and receives the message once at least, even if the switch adds."""
    return table.bytes / part.link


def _kv_read(table: DecodeTable) -> Column:
    """Return the KV tokens that all sequences of a row read [tokens]."""
    window: Any = table.window
    read: Column = decode_kv(Decodes(table.batch, table.context), window)
    return read


def _kv_element(table: AttentionTable) -> float:
    return quantisation(table.kv_dtype).weights.bytes_per_weight


def _query_bytes(table: AttentionTable) -> float:
    """Return the bytes of one element of Q and one of the 16-bit output [B]."""
    return quantisation(table.dtype).activation_bytes + 2


def _attention_peak(table: AttentionTable, part: Limits) -> float:
    return part.peak(quantisation(table.dtype).compute, quantisation(table.kv_dtype).compute)
