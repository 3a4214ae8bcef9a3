"""Attention residuals (AttnRes of Kimi K3): a mixer's input is no sum of all before it, but a weighted sum of sums of B layers.

With L layers, mixer site s = 1 … 2·L and the one before lm_head see n_s whole blocks, ⌈l/B⌉ before the attention of layer l = 0 … L − 1,
⌊l/B⌋ + 1 before its feed-forward, ⌈L/B⌉ at the end, beside the running sum. Each source has a score, a product with one vector of d, and a
share in the sum::

    FLOPs per token  4·d·Σ (n_s + 1)          bytes per token  d·b_a·(Σ n_s + ⌈L/B⌉): blocks read at every site, and written once

The running sum is not counted, as no layer's residual is here. Source: vllm/models/kimi_k3/nvidia/model.py (``KimiDecoderLayer``) and
ops/attn_res.py, which reads every source once.
"""

from __future__ import annotations

from costmodel.architecture.types import Architecture
from costmodel.building.layers import blocks
from costmodel.deployment import Deployment, stage_layers
from costmodel.equations.parameters import Gemm
from costmodel.equations.rate_sources import RateSource


def residual_blocks(architecture: Architecture, layers: int | None = None) -> int:
    """Return the blocks that there are after ``layers`` layers, by default all: ⌈L/B⌉; 0 without attention residuals."""
    size = architecture.residual_block
    return -(-(architecture.layer_count if layers is None else layers) // size) if size else 0


def blocks_seen(architecture: Architecture) -> int:
    """Return Σ n_s, the blocks that all mixers of a model see, and what comes before lm_head."""
    if not architecture.residual_block:
        return 0
    layers = range(architecture.layer_count)
    within = sum(residual_blocks(architecture, layer) + layer // architecture.residual_block + 1 for layer in layers)
    return within + residual_blocks(architecture)


def residual_gemms(deployment: Deployment, rates: RateSource) -> tuple[Gemm, ...]:
    """Return the attention residuals of a step as one kernel, a pipeline stage's in proportion to its layers; none for other models."""
    architecture, hardware = deployment.architecture, deployment.hardware
    if not architecture.residual_block:
        return ()
    sites = 2 * blocks(deployment)
    each = 1 / (2 * architecture.layer_count)
    seen, written = blocks_seen(architecture) * each, residual_blocks(architecture) * each
    sources = seen + 1 + each  # the running sum at every site, and once more before lm_head
    dtype, size = deployment.activation_dtype, deployment.activation_bytes
    return (
        Gemm(
            name="attn_res",
            group="elementwise",
            flops_per_token=4 * architecture.hidden * sources * sites,
            weight_bytes=architecture.hidden * size * sites,
            io_bytes_per_token=(seen + written) * architecture.hidden * size * sites,
            count=sites,
            rate=rates.mixer("attn_res", dtype, hardware.peaks[dtype], hardware.bandwidth),
        ),
    )


def stage_messages(deployment: Deployment) -> float:
    """Return how many vectors of d a token's message between two pipeline stages is: 1, and the blocks so far, on average."""
    starts, total = 0, 0
    sizes = stage_layers(deployment.architecture.layer_count, deployment.pp)
    for size in sizes[:-1]:
        starts += size
        total += residual_blocks(deployment.architecture, starts)
    return 1 + total / (deployment.pp - 1) if total else 1.0
