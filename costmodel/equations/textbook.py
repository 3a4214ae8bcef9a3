"""The textbook rung: the arithmetic of the lesson, weights ÷ bandwidth and FLOPs ÷ peak, nothing else.

It leaves out the KV cache, so its decode step is below the physical floor (the roofline rung).
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.equations.compressed import Compressed
from costmodel.equations.numerics import Value, is_zero, minimum, total
from costmodel.equations.work import BothWays, LocalChunks, OwnReach, Work, attended_pairs


@dataclass(frozen=True, slots=True)
class Textbook:
    """What the textbook arithmetic needs.

    Attributes:
        weight_bytes: P·b, all weights [B].
        active_parameters: P that a token passes (all of them in a dense model).
        attention: per window, h·d_h·L_w: width of the queries summed over the layers of that window.
        peak: F of the matrix products [FLOP/s].
        attention_peak: F of attention, which computes in the activations' dtype (or the KV cache's) [FLOP/s].
        bandwidth: W [B/s].
        gpus: GPUs that share every layer; work and weights divide by it.
        encoder_parameters: P_i of the images' encoder and its projector.
        encoder_width: h_i·d_hi·L_i of its attention.
        encoder_peak: F of its products, which are in the activations' dtype [FLOP/s].
    """

    weight_bytes: Value
    active_parameters: Value
    attention: tuple[tuple[OwnReach, Value], ...]
    peak: Value
    attention_peak: Value
    bandwidth: Value
    gpus: Value = 1
    encoder_parameters: Value = 0
    encoder_width: Value = 0
    encoder_peak: Value = 1


def textbook_decode(model: Textbook) -> Value:
    """Return the time of a decode step: P·b/W [s]."""
    return model.weight_bytes / (model.bandwidth * model.gpus)


def textbook_linear(model: Textbook, tokens: Value) -> Value:
    """Return the time of the matrix products for n tokens: 2·P·n/F [s]."""
    return 2 * model.active_parameters * tokens / (model.peak * model.gpus)


def textbook_attention(model: Textbook, tokens: Value, cached: Value = 0) -> Value:
    """Return the time of causal attention: 2·n²·h·d_h·L/F, the causal half of 4·n²·h·d_h·L [s].

    A chunk of q tokens after c cached ones costs its share, 2·((c + q)² − c²)·h·d_h·L/F. In a window w the triangle is cut off
    where a query would see more than w keys. Bidirectional attention has no triangle: 4·n²·h·d_h·L/F.
    """

    def area(window: OwnReach) -> Value:
        whole = _causal_area(cached + tokens, window)
        return whole if is_zero(cached) else whole - _causal_area(cached, window)

    return total(4 * area(window) * width / (model.attention_peak * model.gpus) for window, width in model.attention)


def textbook_prefill(model: Textbook, tokens: Value, cached: Value = 0) -> Value:
    """Return the time to prefill n tokens: 2·P·n/F + 2·n²·h·d_h·L/F [s]."""
    return textbook_linear(model, tokens) + textbook_attention(model, tokens, cached)


def textbook_encoder(model: Textbook, work: Work | None) -> Value:
    """Return the time of encoding images: 2·P_i·N_i/F + 4·A_i·h_i·d_hi·L_i/F [s]; 0 without images.

    Every parameter of the tower is taken to meet every patch, and every patch to see all others of its tile.
    """
    if work is None:
        return 0.0
    flops = 2 * model.encoder_parameters * work.tokens + 4 * work.pairs[None] * model.encoder_width
    return flops / (model.encoder_peak * model.gpus)


def _causal_area(tokens: Value, window: OwnReach) -> Value:
    """Return ∫₀ⁿ min(x, w) dx: n²/2, or n·w − w²/2 beyond the window; in local chunks ⌊n/w⌋·w²/2 + (n mod w)²/2.

    Both ways, ∫₀ⁿ min(x, s) + min(n − x, s) dx: twice that of a window s, n² without one. Compressed keys come on top of their window.
    """
    if isinstance(window, Compressed):
        return _causal_area(tokens, window.window) + window.area(tokens)
    if isinstance(window, BothWays):
        return 2 * _causal_area(tokens, window.side)
    if window is None:
        return tokens * tokens / 2
    if isinstance(window, LocalChunks):
        return attended_pairs(tokens, 0, window) - tokens / 2
    inside = minimum(tokens, window)
    return inside * inside / 2 + (tokens - inside) * window
