"""Recurrent layers as kernels: FLOPs and bytes of gated delta nets, of KDA and of Mamba 2, for one token and for one sequence.

Per layer and GPU, with H heads of a state of N rows and P columns, G key heads or groups, chunks of Q tokens, a convolution over K::

    decode, per token   gdn     7·H·N·P                          decay 1, kᵀS 2, S + kδᵀ 2, qᵀS 2
                        mamba2  5·H·N·P                          S·a + (Δx)Bᵀ 3, SC 2
    prefill, per token  gdn     6·H·N·P + H·Q·(3·N + 2·P)        WS, QS, KᵀV; half of KKᵀ, T(βK), T(βV), QKᵀ, (QKᵀ)V
                        mamba2  4·H·N·P + H·Q·P + G·Q·N          BᵀX, CS; half of (CBᵀ)X, CBᵀ
    both                + 2·K·(2·G·N + H·P)                      convolution

KDA is a gated delta net whose decay is a vector: as many FLOPs, and H·N decays more to read for every token.
(Yang et al., arXiv:2412.06464, section 3.3; Dao & Gu, arXiv:2405.21060, section 6; fla/ops/gated_delta_rule/chunk.py. Within a chunk only
the causal half of a product counts; the inverse of a triangle of Q tokens, Q²/3 per token and head, is left out.) Bytes per sequence and
step: twice its state and the K − 1 last inputs of the convolution; per token: inputs of the convolution, gate and output, decays.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.architecture.counts import state_bytes_per_sequence
from costmodel.architecture.linears import state_share
from costmodel.architecture.types import LayerKind, StateMixer
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value
from costmodel.equations.parameters import StateKernel
from costmodel.equations.rate_sources import RateSource


def decode_flops(state: StateMixer) -> Value:
    """Return the FLOPs of one token of one layer that updates its sequence's state [FLOP]."""
    update = 5 if state.kind == "mamba2" else 7
    return update * state.heads * state.key_dim * state.value_dim + _convolution(state)


def prefill_flops(state: StateMixer) -> Value:
    """Return the FLOPs of one token of one layer in the chunked scan [FLOP]."""
    heads, rows, columns, chunk = state.heads, state.key_dim, state.value_dim, state.chunk
    if state.kind != "mamba2":
        scan = 6 * heads * rows * columns + heads * chunk * (3 * rows + 2 * columns)
    else:
        scan = 4 * heads * rows * columns + heads * chunk * columns + state.key_heads * chunk * rows
    return scan + _convolution(state)


def _decays(state: StateMixer) -> Value:
    """Return the decays of a token that are read as a tensor: one for each row of a state in KDA; one a head elsewhere, not counted."""
    return state.heads * state.key_dim if state.kind == "kda" else 0


def _convolution(state: StateMixer) -> Value:
    return 2 * state.conv_kernel * state.conv_width


def state_kernels(
    deployment: Deployment, rates: RateSource, kinds: Sequence[tuple[LayerKind, Value]]
) -> tuple[StateKernel, ...]:
    """Return the kernels of the recurrent layers among ``kinds``, which are layers with their counts."""
    counts: dict[StateMixer, Value] = {}
    for kind, count in kinds:
        if kind.state is not None:
            counts[kind.state] = counts[kind.state] + count if kind.state in counts else count
    hardware, activation = deployment.hardware, deployment.activation_bytes
    dtype = deployment.activation_dtype
    kernels: list[StateKernel] = []
    for state, count in counts.items():
        share = state_share(state, deployment.tp)
        name = state.kind if len(counts) == 1 else f"{state.kind}.{len(kernels) + 1}"
        prefill, decode = (
            rates.mixer(f"{phase}_{state.kind}", dtype, hardware.peaks[dtype], hardware.bandwidth)
            for phase in ("prefill", "decode")
        )
        kernels.append(
            StateKernel(
                name=name,
                decode_flops=decode_flops(share) * count,
                prefill_flops=prefill_flops(share) * count,
                state_bytes=2 * state_bytes_per_sequence(state, activation, deployment.tp) * count,
                io_bytes_per_token=(share.conv_width + 2 * share.inner + _decays(share)) * activation * count,
                weight_bytes=state.conv_kernel * share.conv_width * activation * count,
                count=count,
                prefill_rate=prefill,
                decode_rate=decode,
            )
        )
    return tuple(kernels)
