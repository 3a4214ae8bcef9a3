"""A vision tower: what it multiplies for every patch, and how its processor cuts an image."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.architecture.images import ImageRule
from costmodel.equations.numerics import Value


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix between tower and decoder, which every feature of an image passes, or what will become one.

    Attributes:
        name: kernel name.
        inputs, outputs: k and m.
        count: matrices of this shape that a feature passes.
        rows: of its inputs that make one feature: 1 after patches are merged, before that several.
    """

    name: str
    inputs: Value
    outputs: Value
    count: Value = 1
    rows: int = 1


@dataclass(frozen=True, slots=True)
class VisionTower:
    """A transformer without causal mask over the patches of an image, and the projector that makes tokens of its output.

    Attributes:
        parameters: stored, projector included.
        patch_inputs: numbers of a patch, channels·frames·patch².
        hidden: d_i.
        intermediate: d_fi, width of the feed-forward.
        layers: L_i.
        heads, kv_heads: h_i, and heads of keys and values.
        head_dim: d_hi.
        gated: feed-forwards have a gate.
        projector: what every feature passes after the layers.
        rule: what becomes of an image; None where its processor's rule is not known here.
        windowed_layers: layers whose patches see only those of their window.
        window: patches of a whole window.
        cross: features are no tokens of the prompt, but keys and values of cross-attention.
        frames: frames and bins of the spectrogram that every request brings; None for images.
        fitted_head_dim: d_hi as a number where ``head_dim`` is a symbol; else 0.
        undivided: tokens of an image see one another in the decoder, so that vLLM computes all of an image's in one step.
    """

    parameters: int
    patch_inputs: Value
    hidden: Value
    intermediate: Value
    layers: Value
    heads: Value
    kv_heads: Value
    head_dim: Value
    projector: tuple[Projection, ...]
    rule: ImageRule | None
    gated: bool = False
    windowed_layers: Value = 0
    window: int = 0
    cross: bool = False
    frames: tuple[int, int] | None = None
    fitted_head_dim: int = 0
    undivided: bool = False
