"""Where the rates of kernels and links come from, and the datasheet (roofline rung); :mod:`~costmodel.equations.rates` has the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from costmodel.equations.numerics import Value
from costmodel.equations.parameters import (
    DecodeBlocks,
    DecodeSplit,
    Elementwise,
    GroupedExperts,
    MixedTiles,
    Overheads,
    PrefillTile,
    Rate,
    Transfer,
)

LATENT = ".mla"
"""What the suffix of an attention kernel has for latent attention, in the place of the heads' dimension."""

CHOSEN = ".sparse"
"""Likewise of grouped attention over keys that an indexer chooses, after the heads' dimension."""


class RateSource(Protocol):
    """What turns datasheet peaks into the rates of kernels, links and overheads."""

    def kernel(
        self,
        operator: str,
        dtype: str,
        peak: Value,
        bandwidth: Value,
        inputs: Value = 0,
        outputs: Value = 0,
        stored: str = "",
    ) -> Rate:
        """Return the rate of ``operator`` at ``dtype``; ``inputs`` k and ``outputs`` m are the shape of a matrix.

        ``stored`` names the format of its weights (:func:`~costmodel.architecture.formats.format_name`), which goes before the dtype.
        """

    def grouped(self, rate: Rate, weight_bytes: float = math.inf) -> GroupedExperts | None:
        """Return the grouped form of routed experts whose weights take ``weight_bytes`` each, None for the plain form."""

    def attention(self, operator: str, suffixes: Sequence[str], peak: Value, bandwidth: Value) -> Rate:
        """Return the rate of an attention kernel by the first of ``suffixes`` that is known; the last stands for all others."""

    def mixer(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the rate of a kernel beside attention that mixes tokens: ``prefill_gdn``, ``decode_mamba2``, ``indexer`` …"""

    def prefill_tile(self, rate: Rate, io_bytes_per_token: Value, flops_per_key_row: Value) -> PrefillTile | None:
        """Return the tiled form of prefill attention, None for the plain form.

        Args:
            rate: what :meth:`kernel` gave.
            io_bytes_per_token: of queries and outputs [B].
            flops_per_key_row: FLOPs of one query row of one head and one key, times multiprocessors and layers [FLOP].
        """

    def decode_split(
        self,
        rate: Rate,
        heads: Value = 1,
        kv_heads: Value = 1,
        head_dim: Value = 128,
        count: Value = 1,
        windowed: bool = False,
    ) -> DecodeSplit | DecodeBlocks | None:
        """Return the fitted form of decode attention, None for the plain form.

        Args:
            rate: what :meth:`attention` gave.
            heads, kv_heads: on this GPU.
            head_dim: d_h.
            count: layers.
            windowed: their window is a sliding one.
        """

    def mixed_tiles(
        self, rate: Rate, heads_per_unit: Value, flops_per_key_row: Value, layers: Value
    ) -> MixedTiles | None:
        """Return the mixed form of prefill attention, None where decode attention is a kernel of its own; as :meth:`prefill_tile`."""

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication of ``count`` messages among ``gpus``."""

    def elementwise(
        self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value
    ) -> Elementwise | None:
        """Return the elementwise term, None if there is none."""

    def overheads(self, layers: Value, moe_layers: Value, normed_layers: Value) -> Overheads | None:
        """Return the engine's overheads for so many layers; None if there are none.

        Args:
            layers: L.
            moe_layers: those with routed experts.
            normed_layers: those that normalise queries and keys.
        """


class DatasheetRates:
    """Roofline rung: every kernel at the dense datasheet peak, no elementwise term, no overheads."""

    def kernel(
        self,
        operator: str,
        dtype: str,
        peak: Value,
        bandwidth: Value,
        inputs: Value = 0,
        outputs: Value = 0,
        stored: str = "",
    ) -> Rate:
        """Return the datasheet rate."""
        return Rate(peak, bandwidth)

    def grouped(self, rate: Rate, weight_bytes: float = math.inf) -> None:
        """Return None: the plain form."""

    def attention(self, operator: str, suffixes: Sequence[str], peak: Value, bandwidth: Value) -> Rate:
        """Return the datasheet rate."""
        return Rate(peak, bandwidth)

    def mixer(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the datasheet rate."""
        return Rate(peak, bandwidth)

    def prefill_tile(self, rate: Rate, io_bytes_per_token: Value, flops_per_key_row: Value) -> None:
        """Return None: the plain form."""

    def decode_split(
        self,
        rate: Rate,
        heads: Value = 1,
        kv_heads: Value = 1,
        head_dim: Value = 128,
        count: Value = 1,
        windowed: bool = False,
    ) -> None:
        """Return None: the plain form."""

    def mixed_tiles(self, rate: Rate, heads_per_unit: Value, flops_per_key_row: Value, layers: Value) -> None:
        """Return None: the plain form."""

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication at link bandwidth without latency."""
        return Transfer(name, count, bytes_per_token, 0, bandwidth)

    def elementwise(self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value) -> None:
        """Return None: not part of the floor."""

    def overheads(self, layers: Value, moe_layers: Value, normed_layers: Value) -> None:
        """Return None: not part of the floor."""
