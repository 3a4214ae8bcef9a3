"""The rates of kernels and links by a calibration (calibrated rung); those of datasheets: :mod:`~costmodel.equations.rate_sources`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.equations.numerics import Value, is_zero, log2, maximum, minimum
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
from costmodel.equations.rate_sources import CHOSEN, LATENT
from costmodel.hardware.calibration import FORMS, TWINS, Calibration, FittedOperator

FALLBACKS = {"experts": "gemm", "lm_head": "gemm"}
"""An operator that a calibration does not name runs at the rates of this one, if that is named."""

PLAIN_STORAGE = {"fp4": "nvfp4"}
"""Stored format that an entry named by its compute dtype was fitted on, where the names differ."""
PADDING_POWER = 0.65
"""How the padding of routed experts goes with the bytes of a weight, where a format borrows the rates of a wider one: of five kinds of
parts with vLLM's kernels of mxfp4 and bf16 both fitted (as shipped), the padding of mxfp4 takes 0.16 to 0.54 of the time that
bf16's takes, 0.42 in the median, and 0.42 = (4.25/16)^0.65. Decode steps with borrowed rates are off by 8 % in the median, else by 63 %.
Only mxfp4: Kimi-K2.5, whose int4 runs on other kernels, is predicted 12 % too fast with it, 8 % too slow without."""
BLOCK_ELEMENTS = 2.0**14
"""Keys times d_h of one block of FlashAttention-2's decode kernel."""


class CalibratedRates:
    """Calibrated rung: datasheet rates times fitted efficiencies, plus fitted launches and overheads.

    Args:
        calibration: fitted operators.
        number: how to read parameter ``name`` of operator ``key``; replaced by symbols in the symbolic reading.
    """

    def __init__(self, calibration: Calibration, number: Callable[[str, str], Value] | None = None) -> None:
        self.calibration = calibration
        self.number: Callable[[str, str], Value] = number or (lambda key, name: calibration.operators[key].number(name))
        self.missing: list[str] = []
        """Operators that were asked for and not found, so that they stay at datasheet rates."""
        self.borrowed: list[str] = []
        """Operators that run at the rates of weights stored in another format, or of another kind of attention."""

    def find(self, operator: str, dtype: str | None = None, stored: str = "") -> str | None:
        """Return the key of the calibration's entry for an operator, by stored format, then by dtype, then by fallback."""
        found: tuple[str, FittedOperator] | None = self.calibration.find(operator, dtype, stored)
        if found is None and operator in FALLBACKS:
            found = self.calibration.find(FALLBACKS[operator], dtype, stored)
        if found is None:
            name = f"{operator}.{dtype}" if dtype else operator
            if name not in self.missing:
                self.missing.append(name)
            return None
        fitted_on = found[0].partition(".")[2]
        if stored and fitted_on and stored not in (fitted_on, TWINS.get(fitted_on), PLAIN_STORAGE.get(fitted_on)):
            self._borrow(f"{operator} of {stored} weights at the rates of {found[0]}")
        return found[0]

    def _borrow(self, note: str) -> None:
        if note not in self.borrowed:
            self.borrowed.append(note)

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
        """Return the calibrated rate, or the datasheet's where the calibration has none.

        The forms of matrices depend on their shape: ``gemm_split`` slows compute by 1 + k0/k and launches for t0·(1 + k/(k + m));
        ``gemm_quant`` takes 3·k/(e_q·W) per token to quantise its inputs, and κ·k however few tokens there are;
        ``gemm_quant_tiled`` and ``gemm_tiles`` take whole tiles of tokens, the latter with slower memory beyond a few rows.
        """
        key = self.find(operator, dtype, stored)
        if key is None:
            return Rate(peak, bandwidth)
        fitted = self.calibration.operators[key]
        number = partial(self.number, key)
        compute = number("compute_efficiency") if "compute_efficiency" in FORMS[fitted.form] else 1
        launch = number("launch_s") * self.launches()
        serial, per_token, wave, tile_rows, slowdown, few_rows = 0, 0, 0, 0, 0, 0
        if fitted.form == "gemm_split":
            compute = compute / (1 + number("ramp_inputs") / inputs)
            launch = launch * (1 + inputs / (inputs + outputs))
            wave = number("wave_s")
        if fitted.form in ("gemm_quant", "gemm_quant_tiled"):
            serial = number("depth_s") * inputs
            per_token = 3 * inputs / (number("quantise_efficiency") * bandwidth)
        if fitted.form == "experts_grouped":
            per_token = number("passes") * 2 * (inputs + outputs) / bandwidth
        if fitted.form in ("gemm_quant_tiled", "gemm_tiles"):
            tile_rows = number("tile_rows")
        if fitted.form == "gemm_tiles":
            slowdown, few_rows = number("slowdown"), number("few_rows")
        sharpness = number("sharpness") if "sharpness" in fitted.parameters else math.inf
        efficiency = number("bandwidth_efficiency")
        tiles = (tile_rows, slowdown, few_rows)
        return Rate(peak, bandwidth, compute, efficiency, launch, sharpness, key, serial, per_token, wave, *tiles)

    def attention(self, operator: str, suffixes: Sequence[str], peak: Value, bandwidth: Value) -> Rate:
        """Return the calibrated rate by the first suffix that the calibration has, else as :meth:`kernel` for the last one."""
        either = (each for suffix in suffixes for each in (suffix, _twin(suffix)))
        known = (suffix for suffix in either if f"{operator}.{suffix}" in self.calibration.operators)
        rate = self.kernel(operator, next(known, suffixes[-1]), peak, bandwidth)
        if LATENT in suffixes[0] and rate.calibrated_by and LATENT not in rate.calibrated_by:
            self._borrow(
                f"{operator} of latent heads (MLA) at the rates of {rate.calibrated_by}, fitted to grouped heads"
            )
        if CHOSEN in suffixes[0] and rate.calibrated_by and CHOSEN not in rate.calibrated_by:
            self._borrow(
                f"{operator} over chosen keys at the rates of {rate.calibrated_by}, fitted to attention over all"
            )
        return rate

    def mixer(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the calibrated rate, or else that of grouped attention.

        Then products as in prefill attention, bytes and launch as in decode attention. Such a rate names no operator of the calibration,
        because the errors of attention say nothing of it; the borrowing is told.
        """
        operators = self.calibration.operators
        if self.calibration.find(operator, dtype) is not None:
            return self.kernel(operator, dtype, peak, bandwidth)
        products, bytes_ = (
            next((key for name in (dtype, "bf16", "fp16") if (key := f"{kind}_attention.{name}") in operators), None)
            for kind in ("prefill", "decode")
        )
        if products is None or bytes_ is None or "compute_efficiency" not in FORMS[operators[products].form]:
            self.missing += [operator] if operator not in self.missing else []
            return Rate(peak, bandwidth)
        self._borrow(f"{operator} at the efficiencies of attention ({products}, {bytes_})")
        return Rate(
            peak,
            bandwidth,
            self.number(products, "compute_efficiency"),
            self.number(bytes_, "bandwidth_efficiency"),
            self.number(bytes_, "launch_s") * self.launches(),
        )

    def grouped(self, rate: Rate, weight_bytes: float = math.inf) -> GroupedExperts | None:
        """Return the grouped form where the calibration has it: τ rows of padding and a time per expert touched.

        Weights of fewer bytes than those that it was fitted on pad less, τ·(b/b_fitted)^:data:`PADDING_POWER`: kernels choose their
        tiles so that reading takes as long as multiplying.
        """
        key = rate.calibrated_by
        if not key or self.calibration.operators[key].form != "experts_grouped":
            return None
        padding = self.number(key, "padding_rows")
        fitted_on = PLAIN_FORMATS.get(key.partition(".")[2].removesuffix("-fp8").removesuffix("-weights"))
        share = weight_bytes / fitted_on.bytes_per_weight if fitted_on else 1.0
        if share < 0.9:  # not only other scales
            padding = padding * share**PADDING_POWER
        return GroupedExperts(padding, self.number(key, "expert_s"))

    def prefill_tile(self, rate: Rate, io_bytes_per_token: Value, flops_per_key_row: Value) -> PrefillTile | None:
        """Return the tiled form where the calibration has it: ω shared passes, tiles of T rows, half a tile at least."""
        key = rate.calibrated_by
        if not key or self.calibration.operators[key].form != "prefill_tile":
            return None
        rows = self.number(key, "tile_rows")
        shared, keys = self.number(key, "shared_passes"), self.number(key, "kv_passes")
        return PrefillTile(io_bytes_per_token, shared, rows * flops_per_key_row, rows / 2, keys)

    def decode_split(
        self,
        rate: Rate,
        heads: Value = 1,
        kv_heads: Value = 1,
        head_dim: Value = 128,
        count: Value = 1,
        windowed: bool = False,
    ) -> DecodeSplit | DecodeBlocks | None:
        """Return the split form where the calibration has it, or the one by blocks.

        Heads share KV heads where h > h_kv: FlashAttention-2 then splits contexts over multiprocessors, and not otherwise. Blocks hold
        256, 128, 64 keys of dimension 64, 128, 256. In a sliding window it serves every query head by itself and splits nothing.
        """
        key = rate.calibrated_by
        form = self.calibration.operators[key].form if key else ""
        if form == "decode_split":
            names = ("padding_tokens", "saturation_s", "saturation_tokens", "sharpness", "wave_s")
            return DecodeSplit(*(self.number(key, name) for name in names))
        if form != "decode_blocks":
            return None
        if windowed:
            per_key = self.number(key, "key_s") * count
            return DecodeBlocks(self.number(key, "padding_tokens"), 0, 0, 0, per_key, heads / kv_heads)
        shared = minimum(maximum(heads - kv_heads, 0), 1)
        extra = self.number(key, "extra_launch_s") * count * shared
        return DecodeBlocks(
            padding_tokens=self.number(key, "padding_tokens"),
            block_tokens=BLOCK_ELEMENTS / head_dim,
            splits=extra,
            copies=extra * minimum(maximum(kv_heads - 1, 0), 1),
            per_key=self.number(key, "key_s") * count * (1 - shared),
        )

    def mixed_tiles(
        self, rate: Rate, heads_per_unit: Value, flops_per_key_row: Value, layers: Value
    ) -> MixedTiles | None:
        """Return the mixed form where the calibration has it: tiles of T rows, t_t and t_e for the sequences beside a chunk."""
        key = rate.calibrated_by
        if not key or self.calibration.operators[key].form != "mixed_tiles":
            return None
        rows, tile, empty = (self.number(key, name) for name in ("block_rows", "tile_s", "empty_tile_s"))
        return MixedTiles(rows, heads_per_unit, rows * flops_per_key_row, tile * layers, empty * layers)

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication with fitted efficiency and latency α = latency_s + latency_per_log2_s·log2(gpus), or that of a ring."""
        key = self.find(operator)
        if key is None:
            return Transfer(name, count, bytes_per_token, 0, bandwidth)
        if self.calibration.operators[key].form == "link_ring":
            return self._ring(key, name, count, bytes_per_token, bandwidth, gpus)
        latency = self.number(key, "latency_s") + self.number(key, "latency_per_log2_s") * log2(gpus)
        latency = latency * self.launches()
        efficiency = self.number(key, "bandwidth_efficiency")
        if self.calibration.operators[key].form == "link_switch":
            # bytes_per_token is that of a ring, 2·(t − 1)/t of the message; one shot sends (t − 1) messages.
            once = bytes_per_token * gpus / 2
            if "one_shot_efficiency" in self.calibration.operators[key].parameters:
                once = once * efficiency / self.number(key, "one_shot_efficiency")
            two_shot, large = self.number(key, "two_shot_s"), self.number(key, "large_s")
            threshold = self.number(key, "large_bytes") * 2 * (gpus - 1) / gpus / bytes_per_token
            return Transfer(
                name, count, bytes_per_token, latency, bandwidth, efficiency, 1, key, once, two_shot, large, threshold
            )
        imbalance = self.number(key, "imbalance")
        return Transfer(name, count, bytes_per_token, latency, bandwidth, efficiency, imbalance, key)

    def _ring(self, key: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int) -> Transfer:
        """Return an all-reduce around a ring whose GPUs, where there are more than two, share the bridges of their host."""
        latency = self.number(key, "latency_s") + self.number(key, "latency_per_hop_s") * 2 * (gpus - 1)
        shared = minimum(maximum(gpus - 2, 0), 1) * gpus ** self.number(key, "sharing_power")
        slower = 1 + self.number(key, "sharing") * shared
        small = self.number(key, "small_sharing")
        once = 0 if is_zero(small) else bytes_per_token * (slower + small * shared)
        latency, efficiency = latency * self.launches(), self.number(key, "bandwidth_efficiency")
        later = self.number(key, "protocol_s")
        return Transfer(name, count, bytes_per_token, latency, bandwidth, efficiency, slower, key, once, later)

    def elementwise(
        self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value
    ) -> Elementwise | None:
        """Return κ·L·N·d·b_a bytes at the fitted bandwidth, and a launch per layer."""
        key = self.find("elementwise")
        if key is None:
            return None
        moved = self.number(key, "passes") * layers * hidden * activation_bytes
        return Elementwise(
            moved,
            self.number(key, "bandwidth_efficiency") * bandwidth,
            layers * self.number(key, "launch_s"),
            self.number(key, "cached_bytes") / (hidden * activation_bytes),
        )

    def launches(self) -> Value:
        """Return the share of a kernel's launch that is left where kernels follow one another."""
        return 1 - self.number("launches", "hidden") if "launches" in self.calibration.operators else 1

    def overheads(self, layers: Value, moe_layers: Value, normed_layers: Value) -> Overheads | None:
        """Return the sum of the overheads by layer, kind of layer and step; one kind of step stands for both where only one was fitted."""
        graph, eager = self.find("overhead.graph"), self.find("overhead.eager")
        if graph is None and eager is None:
            return None
        self.missing = [name for name in self.missing if not name.startswith("overhead")]
        keys = (graph or eager or "", eager or graph or "")
        graphs, eagers = (
            layers * self.number(key, "per_layer_s")
            + moe_layers * self.number(key, "per_moe_layer_s")
            + normed_layers * self.number(key, "per_normed_layer_s")
            + self.number(key, "per_step_s")
            for key in keys
        )
        by_graph, by_eager = (self.number(key, "per_sequence_s") for key in keys)
        multiple = self.calibration.operators[graph].number("graph_multiple") if graph else 1.0
        return Overheads(graphs, eagers, by_graph, by_eager, int(multiple), *keys)


def _twin(suffix: str) -> str:
    """Return an attention suffix for the other 16-bit dtype: ``fp16.d64`` → ``bf16.d64``."""
    dtype, dot, rest = suffix.partition(".")
    return f"{TWINS.get(dtype, dtype)}{dot}{rest}"
