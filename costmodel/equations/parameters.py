"""The numbers that the equations of a step need, resolved for one model on one set of GPUs.

Nothing here knows of files, names or pydantic. :func:`costmodel.deployment.build_parameters` fills these types from an
architecture, a GPU profile and perhaps a calibration. All numbers are :data:`~costmodel.equations.numerics.Value`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from costmodel.equations.numerics import Value, is_zero, minimum
from costmodel.equations.work import Reach

OperatorGroup = Literal["linear", "experts", "attention", "lm_head", "elementwise", "communication", "overhead"]


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one kernel runs: t = t0 + smooth_max(FLOPs/(e_c·F), bytes/(e_b·W), p).

    The defaults are the roofline: nothing lost, no launch cost, a sharp corner.

    Attributes:
        peak: F, dense peak at the kernel's compute dtype [FLOP/s].
        bandwidth: W [B/s].
        compute_efficiency: e_c in (0, 1].
        bandwidth_efficiency: e_b in (0, 1].
        launch: t0 per kernel [s].
        sharpness: p of the smooth maximum.
        calibrated_by: key of the calibration's operator, "" on the roofline.
        serial: time that the kernel takes however few tokens it serves, enters the smooth maximum [s].
        per_token: time added for every token, before the product [s].
        wave: time added at most because the last wave of tiles does not fill the GPU [s].
        tile_rows: T, rows of a tile, to which tokens are rounded up; 0 for no rounding.
        slowdown: share by which memory time grows beyond ``few_rows`` tokens, where another kernel takes over.
        few_rows: tokens up to which it does not.
    """

    peak: Value
    bandwidth: Value
    compute_efficiency: Value = 1
    bandwidth_efficiency: Value = 1
    launch: Value = 0
    sharpness: Value = math.inf
    calibrated_by: str = ""
    serial: Value = 0
    per_token: Value = 0
    wave: Value = 0
    tile_rows: Value = 0
    slowdown: Value = 0
    few_rows: Value = 0


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """What the tiled form of prefill attention needs beside its :class:`Rate`.

    Attributes:
        io_bytes_per_token: queries and outputs, 2·h·(d_qk + d_v)/2·b_a per layer and query, times layers [B].
        shared_passes: ω, passes over the geometric mean of a new token's bytes of Q and O and of its K and V: what tiles of grouped
            heads exchange beyond reading and writing each once.
        tile_flops: FLOPs per key of the longest tile as if every multiprocessor worked at it: 4·T·d_h·SM, times layers [FLOP].
        least_rows: T/2, tokens of a chunk whose bytes move at least.
        kv_passes: passes over K and V of new tokens beyond reading them once, as of keys outside a window that its tiles see.
    """

    io_bytes_per_token: Value
    shared_passes: Value
    tile_flops: Value
    least_rows: Value = 0
    kv_passes: Value = 0


@dataclass(frozen=True, slots=True)
class DecodeSplit:
    """What the split form of decode attention needs beside its :class:`Rate`.

    Attributes:
        padding_tokens: r, KV tokens per sequence that take time at least.
        saturation: t1, extra time of a kernel at long context [s].
        saturation_tokens: c1, context at which half of it is reached.
        sharpness: p of the smooth maximum of padding and context; 1 adds them.
        wave: time that the bytes of one layer take at least [s].
    """

    padding_tokens: Value
    saturation: Value
    saturation_tokens: Value
    sharpness: Value = 1
    wave: Value = 0


@dataclass(frozen=True, slots=True)
class DecodeBlocks:
    """What the form of FlashAttention-2's decode attention needs beside its :class:`Rate`.

    Attributes:
        padding_tokens: r, KV tokens per sequence that take time at least.
        block_tokens: keys of one block, beyond which a context is split.
        splits: kernels that join a split context, and their time [s]; 0 where heads are not shared and nothing is split.
        copies: the same of the kernel that rearranges the queries of several sequences; 0 where there is nothing to rearrange.
        per_key: time of one more key on one multiprocessor, where a context is not split [s].
        reads: how often K and V are read: h/h_kv in a window, where query heads are not served together.
    """

    padding_tokens: Value
    block_tokens: Value
    splits: Value
    copies: Value
    per_key: Value
    reads: Value = 1


@dataclass(frozen=True, slots=True)
class MixedTiles:
    """What the mixed form of attention needs beside its :class:`Rate`: how a step's tiles fall on the multiprocessors.

    Attributes:
        block_rows: T, query rows of a tile.
        heads_per_unit: h/SM, query heads per multiprocessor.
        key_flops: FLOPs of one key of a tile as if every multiprocessor worked at it: 4·T·d_h·SM, times layers [FLOP].
        tile: t_t, time of a decoding sequence's tile beside its keys, times layers [s].
        empty_tile: t_e, time of a tile without rows, times layers [s].
    """

    block_rows: Value
    heads_per_unit: Value
    key_flops: Value
    tile: Value
    empty_tile: Value


@dataclass(frozen=True, slots=True)
class Gemm:
    """A weight matrix that every token (or every row of lm_head) of the step passes, in ``count`` layers.

    Attributes:
        name: operator name.
        group: what it belongs to.
        flops_per_token: 2·k·m·count on this GPU [FLOP].
        weight_bytes: k·m·b_w·count, read once per step [B].
        io_bytes_per_token: (k·b_in + m·b_a)·count, inputs and outputs [B].
        count: kernels of this shape in a step.
        rate: how fast it runs.
        per_row: True if it serves R rows (lm_head) instead of N tokens.
        adapters: places for LoRA adapters; ``weight_bytes`` are then those of one, and those that the sequences
            of a step use are read, min(adapters, sequences). 0: no adapter.
    """

    name: str
    group: OperatorGroup
    flops_per_token: Value
    weight_bytes: Value
    io_bytes_per_token: Value
    count: Value
    rate: Rate
    per_row: bool = False
    adapters: Value = 0

    def times_read(self, sequences: Value) -> Value:
        """Return how many times ``weight_bytes`` are read: once, or for every adapter that so many sequences use."""
        return 1 if is_zero(self.adapters) else minimum(self.adapters, sequences)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """What the grouped form of routed experts needs beside its :class:`Rate`.

    Attributes:
        padding_rows: τ, rows multiplied in vain for every expert touched: its last tile is partly empty.
        expert_s: time on top of the bytes of every expert touched [s].
    """

    padding_rows: Value
    expert_s: Value


@dataclass(frozen=True, slots=True)
class ExpertGemm:
    """The same matrix of every routed expert. Each token passes k of E, and only the experts that some token chose are read.

    Attributes:
        name: operator name.
        flops_per_token: 2·k·m·count·(experts per token that fall on this GPU) [FLOP].
        weight_bytes: all experts of this GPU [B]; the fraction 1 − (1 − k/E)^(r·N) of it is read.
        io_bytes_per_token: activations [B].
        idle_probability: 1 − k/E, the chance that one token does not choose a given expert.
        replicas: r, attention replicas whose tokens share these experts (expert parallelism wider than TP).
        count: kernels of this shape in a step.
        rate: how fast it runs.
        visits_per_token: experts per token that fall on this GPU.
        copies: experts on this GPU.
        imbalance: rows of the busiest GPU over the mean, ≥ 1; the grouped form waits for it.
        grouped: the fitted form that needs more than a rate; None for the plain form.
        adapters: places for LoRA adapters, as :class:`Gemm` has them: a of them, each with the experts that N/a tokens choose.
    """

    name: str
    flops_per_token: Value
    weight_bytes: Value
    io_bytes_per_token: Value
    idle_probability: Value
    replicas: Value
    count: Value
    rate: Rate
    visits_per_token: Value = 1
    copies: Value = 1
    imbalance: Value = 1
    grouped: GroupedExperts | None = None
    adapters: Value = 0

    def touched(self, tokens: Value, sequences: Value) -> Value:
        """Return the share of ``weight_bytes`` that is read; of several adapters, which share the tokens, the sum of their shares."""
        served = self.replicas * tokens
        if is_zero(self.adapters):
            return 1 - self.idle_probability**served
        active = minimum(self.adapters, self.replicas * sequences)
        return active * (1 - self.idle_probability ** (served / active))


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """The attention of all layers with one window: FLOPs per (query, key) pair in prefill and per KV token in decode.

    An indexer, which gives every key a score for every query, is one of these too.

    Attributes:
        window: which of the sums of :class:`~costmodel.equations.work.Work` it uses.
        suffix: added to the operator's name when a model has several kinds, e.g. ``.window_128``.
        flops_per_pair: 4·h·d_h·L_w/t, or 2·h·(d_qk + d_v)·L_w/t [FLOP].
        flops_per_kv_token: the same for one decoding query; with the latent absorbed for MLA [FLOP].
        kv_bytes_per_token: 2·max(h_kv/t, 1)·d_h·b_kv·L_w [B].
        count: L_w, layers.
        prefill_rate, decode_rate: how fast the two kernels run.
        prefill_tile, decode_split: the fitted forms that need more than a rate; None for the plain form.
    """

    window: Reach
    suffix: str
    flops_per_pair: Value
    flops_per_kv_token: Value
    kv_bytes_per_token: Value
    count: Value
    prefill_rate: Rate
    decode_rate: Rate
    prefill_tile: PrefillTile | None = None
    decode_split: DecodeSplit | DecodeBlocks | None = None
    mixed_tiles: MixedTiles | None = None
    """How prefill and decode share one kernel in steps that have prefill; None where they run one after the other."""
    name: str = "attention"
    """What it is called after ``prefill_`` and ``decode_``."""


@dataclass(frozen=True, slots=True)
class StateKernel:
    """The recurrent layers of one kind: a sequence's state is read and written once per step, however long the sequence is.

    Attributes:
        name: what they are called after ``prefill_`` and ``decode_``.
        decode_flops: of one token that updates the states of all layers [FLOP].
        prefill_flops: of one token in the chunked scan [FLOP].
        state_bytes: that a sequence's states and the inputs of its convolutions take, read and written: 2·(states + inputs) [B].
        io_bytes_per_token: inputs of the mixer, its gate and its outputs [B].
        weight_bytes: of the convolutions, read once per step [B].
        count: layers.
        prefill_rate, decode_rate: how fast the two kernels run.
    """

    name: str
    decode_flops: Value
    prefill_flops: Value
    state_bytes: Value
    io_bytes_per_token: Value
    weight_bytes: Value
    count: Value
    prefill_rate: Rate
    decode_rate: Rate


@dataclass(frozen=True, slots=True)
class Transfer:
    """Communication of one kind: seconds = count·(α + bytes_per_token·N/(e·B_link)).

    Attributes:
        name: operator name.
        count: messages per step.
        bytes_per_token: bytes one GPU sends per token and message; the factor of the algorithm is in it [B].
        latency: α per message [s].
        bandwidth: B_link per direction [B/s].
        efficiency: e in (0, 1].
        imbalance: how much longer the busiest GPU takes, or bridges that several share, ≥ 1.
        calibrated_by: key of the calibration's operator, "" on the roofline.
        one_shot_bytes: bytes per token and message of the way that small messages take, where every GPU sends all it has to every other at
            once, or a protocol that is slower and starts sooner; 0 if that is not tried.
        two_shot: time that the other way takes on top [s].
        large: time on top of messages that need at least ``large_tokens`` tokens [s].
        large_tokens: tokens that make such a message.
    """

    name: str
    count: Value
    bytes_per_token: Value
    latency: Value
    bandwidth: Value
    efficiency: Value = 1
    imbalance: Value = 1
    calibrated_by: str = ""
    one_shot_bytes: Value = 0
    two_shot: Value = 0
    large: Value = 0
    large_tokens: Value = 0


@dataclass(frozen=True, slots=True)
class Overheads:
    """Time that belongs to no kernel: L·t_layer + t_step + D·t_seq, apart for CUDA-graph decode steps and eager mixed steps [s].

    ``graph_multiple`` pads the batch of a pure decode step to a multiple of this many tokens (1: no padding).
    """

    graph: Value = 0
    """Seconds added to a step without prefill."""
    eager: Value = 0
    """Seconds added to a step with prefill, if those of a step without are not more."""
    graph_sequence: Value = 0
    eager_sequence: Value = 0
    """Seconds added for every decoding sequence."""
    graph_multiple: int = 1
    graph_key: str = ""
    eager_key: str = ""
    """Keys of the calibration's operators."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Norms, activations and residual adds: bytes_per_token·N/(e_b·W)·N/(N + cached_tokens) + launch. Calibrated rung only."""

    bytes_per_token: Value
    bandwidth: Value
    launch: Value = 0
    cached_tokens: Value = 0
    """N of which half the bytes come from the cache that the kernel before left them in."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything one step's equations need, per GPU."""

    gemms: tuple[Gemm, ...]
    experts: tuple[ExpertGemm, ...]
    attention: tuple[AttentionKernel, ...]
    transfers: tuple[Transfer, ...] = ()
    elementwise: Elementwise | None = None
    overheads: Overheads | None = None
    states: tuple[StateKernel, ...] = ()
    encoder: Parameters | None = None
    """Of the images' encoder, a step of its own before that of the decoder; None where no images are asked for."""

    @property
    def windows(self) -> tuple[Reach, ...]:
        """The distinct windows of the model's layers."""
        return tuple(kernel.window for kernel in self.attention)
