"""Weight formats: how many bytes one stored weight takes, scales included, and which number formats it may be multiplied in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights of one module are stored.

    Attributes:
        name: format, one of the keys of :data:`ELEMENT_BITS` (``bf16``, ``fp8``, ``mxfp4`` …).
        group_size: weights that share one scale (0: one scale per output channel or tensor, which is negligible).
        scale_bits: bits of scale, and zero point where there is one, per group.
        weight_only: True if activations stay in 16 bits, so that products are computed in bf16 or fp16 whatever the
            part can do (AWQ, GPTQ, W8A16); False if the format may be multiplied natively where the part can.
    """

    name: str
    group_size: int = 0
    scale_bits: int = 0
    weight_only: bool = False

    @property
    def bytes_per_weight(self) -> float:
        """Bytes per weight, scales included: (element bits + scale bits / group size) / 8 [B]."""
        scale = self.scale_bits / self.group_size if self.group_size else 0.0
        return (ELEMENT_BITS[self.name] + scale) / 8


ELEMENT_BITS: Final = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
}
"""Bits of one stored element, scales not counted."""

NATIVE_COMPUTE: Final = {"fp8": "fp8", "int8": "int8", "mxfp4": "fp8", "nvfp4": "fp4"}
"""Dtype that a quantised format is multiplied in where the part has a peak for it; elsewhere in that of the activations.

Weight-only kernels (Marlin and its kin) dequantise to 16 bits, so fp8 weights run on an A100 and 4-bit ones anywhere.
mxfp4 multiplies with 8-bit activations only on parts with fp4 units (Blackwell, CDNA 4); elsewhere it computes in 16
bits.
"""

PLAIN_FORMATS: Final = {
    "fp32": WeightFormat("fp32"),
    "bf16": WeightFormat("bf16"),
    "fp16": WeightFormat("fp16"),
    "fp8": WeightFormat("fp8"),
    # As DeepSeek, Qwen and MiniMax publish it: one fp32 scale per 128 × 128 weights, activations scaled per 128 of a token.
    "fp8-block": WeightFormat("fp8", group_size=128 * 128, scale_bits=32),
    "int8": WeightFormat("int8"),
    # AWQ and GPTQ at their usual group of 128: an fp16 scale and a 4-bit zero point per group.
    "int4": WeightFormat("int4", group_size=128, scale_bits=20, weight_only=True),
    # OCP Microscaling v1.0: one E8M0 scale per 32 elements.
    "mxfp4": WeightFormat("mxfp4", group_size=32, scale_bits=8),
    # NVFP4: one E4M3 scale per 16 elements.
    "nvfp4": WeightFormat("nvfp4", group_size=16, scale_bits=8),
}
"""The format that ``--dtype NAME`` stands for."""

_OWN_COMPUTE: Final = {"fp8": "fp8", "fp8-block": "fp8", "int8": "int8", "nvfp4": "fp4"}
"""Compute dtype that the name of a stored format stands for by itself; 16 bits for the others."""


def format_name(fmt: WeightFormat, compute: str) -> str:
    """Return the name of a stored format and how it is multiplied, as kernels were measured: ``fp8-block``, ``mxfp4-fp8``.

    Scales per block of weights make fp8 ``fp8-block``. A compute dtype that the format does not imply is a suffix: ``-weights`` for
    16 bits where the format could be multiplied natively, else the dtype.
    """
    name = "fp8-block" if fmt.name == "fp8" and fmt.group_size else fmt.name
    sixteen = compute in ("bf16", "fp16", "fp32")
    if compute == _OWN_COMPUTE.get(name, compute if sixteen else ""):
        return name
    return f"{name}-weights" if sixteen else f"{name}-{compute}"


INPUT_BYTES: Final = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": PLAIN_FORMATS["nvfp4"].bytes_per_weight,
    "int4": 0.5,
}
"""Bytes of an activation as the matrix unit reads it, quantised to the compute dtype [B]; fp4 with one scale per 16."""
