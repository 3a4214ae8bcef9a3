"""The type of a calibration: fitted efficiencies and overheads of one GPU and engine. Datasheet numbers are never stored here.

A calibration is a versioned map from operator to form and parameters. A kernel or link that it does not name stays at datasheet rates;
elementwise kernels and overheads are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from costmodel.hardware.errors import nearest, shown, suggestion, unknown_name
from costmodel.hardware.profile import Frozen, Number, read_toml

FORMS: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "smooth_roofline": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
    },
    "gemm_split": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
        "ramp_inputs": (0.0, 0.0, 1e5),
        "wave_s": (0.0, 0.0, 1e-2),
    },
    "gemm_quant": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
        "quantise_efficiency": (1.0, 0.0, 1.0),
        "depth_s": (0.0, 0.0, 1e-6),
    },
    "gemm_tiles": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
        "slowdown": (0.0, 0.0, 10.0),
        "few_rows": (16.0, 1.0, 4096.0),
        "tile_rows": (128.0, 4.0, 4096.0),
    },
    "experts_grouped": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "padding_rows": (0.0, 0.0, 4096.0),
        "passes": (0.0, 0.0, 1e3),
        "expert_s": (0.0, 0.0, 1e-3),
    },
    "gemm_quant_tiled": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "quantise_efficiency": (1.0, 0.0, 1.0),
        "depth_s": (0.0, 0.0, 1e-6),
        "tile_rows": (256.0, 4.0, 4096.0),
    },
    "prefill_tile": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
        "tile_rows": (0.0, 0.0, 4096.0),
        "shared_passes": (0.0, 0.0, 1e4),
        "kv_passes": (0.0, 0.0, 1e4),
    },
    "mixed_tiles": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "tile_s": (0.0, 0.0, 1.0),
        "empty_tile_s": (0.0, 0.0, 1.0),
        "block_rows": (64.0, 1.0, 4096.0),
    },
    "decode_split": {
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "padding_tokens": (0.0, 0.0, 1e5),
        "saturation_s": (0.0, 0.0, 1.0),
        "saturation_tokens": (1.0, 1.0, 1e6),
        "sharpness": (1.0, 1.0, math.inf),
        "wave_s": (0.0, 0.0, 1e-2),
    },
    "decode_blocks": {
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "padding_tokens": (0.0, 0.0, 1e5),
        "extra_launch_s": (0.0, 0.0, 1.0),
        "key_s": (0.0, 0.0, 1e-3),
    },
    "elementwise": {
        "passes": (0.0, 0.0, 1e3),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "cached_bytes": (0.0, 0.0, 1e9),
    },
    "link": {
        "latency_s": (0.0, 0.0, 1.0),
        "latency_per_log2_s": (0.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "imbalance": (1.0, 1.0, 1e3),
    },
    "link_switch": {
        "latency_s": (0.0, 0.0, 1.0),
        "latency_per_log2_s": (0.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "two_shot_s": (0.0, 0.0, 1.0),
        "one_shot_efficiency": (1.0, 0.0, 1.0),
        "large_s": (0.0, 0.0, 1.0),
        "large_bytes": (2.0**23, 1.0, 1e12),
    },
    "link_ring": {
        "latency_s": (0.0, 0.0, 1e-3),
        "latency_per_hop_s": (0.0, 0.0, 1e-3),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "sharing": (0.0, 0.0, 100.0),
        "sharing_power": (1.0, 0.0, 3.0),
        "small_sharing": (0.0, 0.0, 100.0),
        "protocol_s": (0.0, 0.0, 1e-3),
    },
    "overhead": {
        "per_layer_s": (0.0, 0.0, 1.0),
        "per_step_s": (0.0, 0.0, 10.0),
        "per_moe_layer_s": (0.0, 0.0, 1.0),
        "per_normed_layer_s": (0.0, 0.0, 1.0),
        "per_sequence_s": (0.0, 0.0, 1.0),
        "graph_multiple": (1.0, 1.0, 1024.0),
    },
    "overlap": {"hidden": (0.0, 0.0, 1.0)},
    "request": {"per_request_s": (0.0, 0.0, 60.0), "steps_waited": (0.0, 0.0, 10.0)},
    "arrival": {"per_request_s": (0.0, 0.0, 60.0), "per_prompt_token_s": (0.0, 0.0, 1e-2), "steps": (0.0, 0.0, 100.0)},
}
"""Named forms and, for each of their parameters, the default and the bounds [low, high] it must keep.

``smooth_roofline``: launch_s + smooth_max(FLOPs/(compute_efficiency·F), bytes/(bandwidth_efficiency·W), sharpness) per kernel.
``gemm_split``: the same with compute slowed by 1 + ramp_inputs/k (prologue and epilogue of a tile) and launch_s·(1 + k/(k + m)), the
reduction of a deep matrix that is split over its k inputs; m outputs. wave_s: compute time c becomes c·(1 + wave_s/(c + wave_s)), twice as
much where a product does not fill the GPU once, at most wave_s on top where its last wave of tiles is partly empty.
``gemm_tiles``: the plain form with whole tiles of rows in compute, N rounded up to T/4, T/2 or multiples of T = tile_rows, and memory time
1 + slowdown times as long beyond few_rows rows, where a kernel of larger tiles takes over. Both numbers of rows are set, not fitted: where
cuBLAS changes its kernels on Ada.
``gemm_quant``: launch_s + 3·N·k/(quantise_efficiency·W) (activations read in 16 bits and written in 8 before the product) +
smooth_max(smooth_max(compute, memory), depth_s·k): a kernel that does not split k takes its time for the depth alone.
``experts_grouped``: launch_s + passes·2·(k + m)/W per routed row + max(compute with padding_rows more rows for every expert touched,
memory + expert_s for every expert touched), never below the roofline; experts are touched as an uneven router does.
``gemm_quant_tiled``: the same with plain maxima and whole tiles of rows, N rounded up to T/4, T/2 or multiples of T = tile_rows (set, not
fitted: CUTLASS on Hopper pairs tiles of 128 rows, and its matrix instruction takes 64); depth_s·k is the time of a whole tile.
``prefill_tile``: launch_s + smooth_max(compute + bytes/(bandwidth_efficiency·W), the longest tile: tile_rows queries over all their keys on
one multiprocessor). Bytes are Q and O, K and V, and for new tokens shared_passes times the geometric mean of the two and kv_passes times
the latter, all of smooth_max(n, tile_rows/2, 4) tokens per chunk: a tile works on half its rows at least. One half and four are set, not
fitted.
``mixed_tiles``: prefill and decode attention of a step with prefill in one kernel; tiles of block_rows queries on the multiprocessors,
tile_s for each of a decoding sequence and empty_tile_s for those it leaves empty (``costmodel.equations.mixed_attention``).
``decode_split``: launch_s + saturation_s·c/(c + saturation_tokens) + the K and V bytes of smooth_max(c, padding_tokens, sharpness) tokens
per sequence, c the mean context; sharpness 1 adds the two. Bytes take wave_s at least, the time of one wave of blocks.
``decode_blocks``: FlashAttention-2. launch_s + extra_launch_s for each further kernel + max(K and V bytes of max(c, padding_tokens) tokens
per sequence, block). Where query heads share KV heads, queries of several sequences and KV heads are rearranged by one more kernel, and
contexts beyond one block of 2¹⁴/d_h keys (set, not fitted: the kernel's) are split and joined by another. Where they do not, the context
is never split, and one multiprocessor takes key_s for every key after the first block. In a sliding window every query head reads K and V
by itself, one multiprocessor takes key_s for every key, and there is one kernel.
``elementwise``: launch_s per layer + passes·x/(bandwidth_efficiency·W)·x/(x + cached_bytes) per layer with x = N·d·b_a; passes is κ of
the nomenclature, and cached_bytes what the cache saves: half of the traffic at that x.
``link``: latency_s + latency_per_log2_s·log2(t) + bytes/(bandwidth_efficiency·B_link), times imbalance for the bytes.
``link_switch``: latency_s + latency_per_log2_s·log2(t) + the faster of one shot, (t − 1)·message/(efficiency·B_link), and two shots,
2·(t − 1)/t·message/(efficiency·B_link) + two_shot_s. One shot runs at one_shot_efficiency where that is given. Messages from large_bytes on
(set, not fitted: where the engine takes another library) take large_s more.
``link_ring``: GPUs joined by PCIe. latency_s + latency_per_hop_s·2·(t − 1), the hops of a ring, + 2·(t − 1)/t·message/(efficiency·B_link),
times 1 + sharing·t^sharing_power where more than two GPUs share the bridges of the host; two talk to each other directly. Of more than
two, small messages take a protocol with sharing + small_sharing in its place, large ones another that takes protocol_s more (NCCL's LL and
Simple), whichever is faster.
``overhead``: L·per_layer_s + L_moe·per_moe_layer_s + L_norm·per_normed_layer_s (norms of queries and keys) + per_step_s + D·per_sequence_s;
graph_multiple pads the batch of a decode step (CUDA graphs are captured in steps).
``overlap``: the share of every kernel's launch_s and latency_s that disappears behind the kernel before it: tables time kernels one by one.
``request``: per_request_s of a request outside its steps, and steps_waited, the steps under way that a prompt waits for.
``arrival``: per_request_s + per_prompt_token_s·n + steps decode steps between a request being sent and the engine having it; the same as
``request``, but for a simulation, which knows by itself which steps a prompt waits for.
"""

OPERATORS: Final = {
    "gemm": "smooth_roofline",
    "lm_head": "smooth_roofline",
    "experts": "smooth_roofline",
    "prefill_attention": "smooth_roofline",
    "decode_attention": "smooth_roofline",
    **dict.fromkeys(
        (f"{phase}_{kind}" for phase in ("prefill", "decode") for kind in ("gdn", "kda", "mamba2")), "smooth_roofline"
    ),
    **dict.fromkeys(("indexer", "attn_res"), "smooth_roofline"),
    **dict.fromkeys(("lora_shrink", "lora_expand"), "smooth_roofline"),
    "elementwise": "elementwise",
    "all_reduce": "link",
    "dispatch": "link",
    "pipeline": "link",
    "overhead.graph": "overhead",
    "overhead.eager": "overhead",
    "launches": "overlap",
    "request": "request",
    "arrival": "arrival",
}
"""Operators a calibration may name and their plain form. The first five may carry a suffix: the format that
weights are stored in goes before the compute dtype, and that before none (``gemm.fp8-block``, ``gemm.fp8``, ``gemm``).

Attention may carry ``kv-fp8`` in its place (an 8-bit KV cache), and then its kind of heads: ``decode_attention.bf16.d64.w128`` (dimension
64, window 128) goes before ``decode_attention.bf16.d64``, and that before ``decode_attention.bf16``. Latent attention is ``.mla``.
"""

OTHER_FORMS: Final = {
    "gemm": ("gemm_split", "gemm_tiles", "gemm_quant", "gemm_quant_tiled"),
    "lm_head": ("gemm_split", "gemm_tiles", "gemm_quant", "gemm_quant_tiled"),
    "experts": ("gemm_split", "gemm_quant", "gemm_quant_tiled", "experts_grouped"),
    "prefill_attention": ("prefill_tile", "mixed_tiles"),
    "decode_attention": ("decode_split", "decode_blocks"),
    "all_reduce": ("link_switch", "link_ring"),
}
"""Forms that an operator may take beside its plain one, closer to what its kernels do."""

TWINS: Final = {"fp16": "bf16", "bf16": "fp16"}
"""Dtypes that run at one rate: a calibration of one serves the other."""

ENGINES: Final = ("vllm", "sglang", "trtllm")
"""Engines whose kernels and overheads are told apart."""
MEASURED: Final = (*ENGINES, "torch")
"""Engines that a calibration may be of: those, and a model step in PyTorch alone, which a probe times where there is no engine."""

DTYPE_SUFFIXED: Final = ("gemm", "lm_head", "experts", "prefill_attention", "decode_attention")


class FittedParameter(Frozen):
    """One fitted number. Seconds, or a ratio; the name says which."""

    value: Number
    standard_error: Annotated[Number, Field(ge=0)] | None = None
    lower: Number | None = None
    """Bounds that the fit kept it in."""
    upper: Number | None = None


class Residuals(Frozen):
    """Held-out relative residuals, measured/predicted − 1: the central interval of ``level``."""

    level: Annotated[Number, Field(gt=0, lt=1)]
    low: Annotated[Number, Field(gt=-1)]
    high: Number

    @model_validator(mode="after")
    def _ordered(self) -> Residuals:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Regime(Frozen):
    """Residuals of the held-out rows whose size, the first of the operator's ranges, is at most ``up_to`` and above the regime before."""

    up_to: Annotated[Number, Field(gt=0)]
    residuals: Residuals


class FittedOperator(Frozen):
    """Form and parameters of one operator, and what they were fitted on."""

    form: str
    parameters: dict[str, FittedParameter]
    residuals: Residuals | None = None
    regimes: tuple[Regime, ...] = ()
    """The same by size, where there are rows enough: small work errs otherwise than large."""
    ranges: dict[Literal["tokens", "kv_tokens", "flops", "bytes"], tuple[Number, Number]] = Field(default_factory=dict)
    """Smallest and largest value of each variable in the data; outside them a prediction is an extrapolation."""

    def residuals_at(self, value: Callable[[str], float]) -> Residuals | None:
        """Return the residuals of the regime that ``value`` (of a range's variable, by its name) falls into, else those of all rows."""
        if self.regimes and self.ranges:
            size = value(next(iter(self.ranges)))
            return next(
                (regime.residuals for regime in self.regimes if size <= regime.up_to), self.regimes[-1].residuals
            )
        return self.residuals

    def number(self, name: str) -> float:
        """Return parameter ``name``, or the form's default where the calibration leaves it out."""
        fitted = self.parameters.get(name)
        return FORMS[self.form][name][0] if fitted is None else fitted.value

    @model_validator(mode="after")
    def _fits_its_form(self) -> FittedOperator:
        if self.form not in FORMS:
            raise ValueError(_unknown("form", self.form, FORMS))
        for name, parameter in self.parameters.items():
            if name not in FORMS[self.form]:
                raise ValueError(
                    f"form {self.form} has no parameter {shown(name)}; {_offer(name, FORMS[self.form])}"
                    f"it has {', '.join(FORMS[self.form])}"
                )
            _, low, high = FORMS[self.form][name]
            exclusive = name.endswith("efficiency")
            if not low <= parameter.value <= high or (exclusive and parameter.value == low):
                bracket = "(" if exclusive else "["
                raise ValueError(f"{name} = {parameter.value:g} is outside {bracket}{low:g}, {high:g}]")
        if self.form == "overhead" and self.number("graph_multiple") % 1:
            raise ValueError("graph_multiple must be a whole number")
        for variable, (low, high) in self.ranges.items():
            if low > high:
                raise ValueError(f"range of {variable} is empty: {low:g} to {high:g}")
        return self


class Provenance(Frozen):
    """How the calibration came about, so that anyone can make it again."""

    data: str = Field(min_length=3)
    rows: Annotated[int, Field(ge=1, strict=True)]
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    command: str = Field(min_length=3)
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file of measurements, by its name."""


class Calibration(Frozen):
    """Fitted factors of one GPU part and one engine."""

    schema_: Literal["costmodel.calibration/1"] = Field(alias="schema")
    name: str = Field(min_length=2)
    gpu: str
    """Canonical name of the GPU profile that the factors multiply."""
    engine: str
    provenance: Provenance
    operators: dict[str, FittedOperator] = Field(min_length=1)
    end_to_end: dict[Literal["ttft", "tpot"], Residuals] = Field(default_factory=dict)
    """Of mean TTFT and TPOT in a closed loop, on rows that were held out."""
    whole_step: Residuals | None = None
    """Of whole steps that were held out, where those were measured and not single kernels."""
    notes: tuple[str, ...] = ()
    assumed_from: str | None = None
    """Part whose efficiencies these are, if none were measured on ``gpu`` itself."""

    @model_validator(mode="after")
    def _names_can_be_used(self) -> Calibration:
        for what, name in (("name", self.name), ("gpu", self.gpu), ("engine", self.engine)):
            if not name.isprintable():
                raise ValueError(f"{what} {shown(name)} has characters that cannot be printed")
        if self.engine not in MEASURED:
            raise ValueError(str(unknown_name("engine", self.engine, MEASURED, "known: " + ", ".join(MEASURED))))
        return self

    @model_validator(mode="after")
    def _operators_are_known(self) -> Calibration:
        for key, operator in self.operators.items():
            base, _, suffix = key.partition(".")
            known = key if key in OPERATORS else base if suffix and base in DTYPE_SUFFIXED else None
            if known is None:
                raise ValueError(_unknown("operator", key, OPERATORS))
            if not key.isprintable():
                raise ValueError(f"operator {shown(key)} has characters that cannot be printed")
            forms = (OPERATORS[known], *OTHER_FORMS.get(known, ()))
            if operator.form not in forms:
                raise ValueError(f"operator {key!r} takes form {' or '.join(map(repr, forms))}, not {operator.form!r}")
        return self

    def find(self, operator: str, dtype: str | None = None, stored: str = "") -> tuple[str, FittedOperator] | None:
        """Return (key, fit) of an operator: the entry for the stored format, for the compute ``dtype``, the general one; or None.

        fp16 and bf16 go through the same units at the same rate, so either stands for the other.
        """
        for key in (
            f"{operator}.{stored}",
            f"{operator}.{dtype}",
            f"{operator}.{TWINS.get(dtype or '', dtype)}",
            operator,
        ):
            if key in self.operators:
                return key, self.operators[key]
        return None


def _offer(name: str, known: Iterable[str]) -> str:
    """Return the question that offers what is nearest to a name, "" if nothing is near."""
    close = nearest(name, known)
    return f"{suggestion(close)} " if close else ""


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return what to say of an unknown form or operator: the nearest, and all of them."""
    return f"{what} {shown(name)} is unknown; {_offer(name, known)}known {what}s: {', '.join(known)}"


def read_calibration(path: Path) -> Calibration:
    """Read a calibration from a TOML file.

    Raises:
        InputError: the file is missing, unreadable, not TOML, or breaks the schema (first fault named).
    """
    return read_toml(path, Calibration, what="calibration")
