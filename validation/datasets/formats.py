"""Names of number formats in the files, and what they stand for here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.architecture.formats import INPUT_BYTES, PLAIN_FORMATS, WeightFormat
from costmodel.hardware.errors import unknown_name


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the weights of a measured product are stored, and what it multiplies in.

    Attributes:
        weights: storage of the weights, scales included.
        compute: number format of the matrix units, a key of a GPU profile's peaks.
        file_name: what the files call it.
    """

    weights: WeightFormat
    compute: str
    file_name: str

    @property
    def activation_bytes(self) -> float:
        """Bytes of one activation as the matrix unit reads it [B]."""
        return INPUT_BYTES[self.compute]


QUANTISATIONS: Final = {
    "bf16": Quantisation(PLAIN_FORMATS["bf16"], "bf16", "bfloat16"),
    "fp16": Quantisation(PLAIN_FORMATS["fp16"], "fp16", "float16"),
    "fp8": Quantisation(PLAIN_FORMATS["fp8"], "fp8", "fp8"),
    "fp8-block": Quantisation(PLAIN_FORMATS["fp8-block"], "fp8", "fp8_block"),
    "int8": Quantisation(PLAIN_FORMATS["int8"], "int8", "sq"),
    "int8-weights": Quantisation(WeightFormat("int8", weight_only=True), "bf16", "int8_wo"),
    "int4": Quantisation(PLAIN_FORMATS["int4"], "bf16", "int4_wo"),
    "int4-fp8": Quantisation(WeightFormat("int4", group_size=128, scale_bits=16), "fp8", "w4afp8"),
    "nvfp4": Quantisation(PLAIN_FORMATS["nvfp4"], "fp4", "nvfp4"),
    "mxfp4": Quantisation(PLAIN_FORMATS["mxfp4"], "bf16", "w4a16_mxfp4"),
    "mxfp4-fp8": Quantisation(PLAIN_FORMATS["mxfp4"], "fp8", "w4a8_mxfp4_mxfp8"),
}
"""By name: the plain ones are those of ``--dtype``; a suffix tells apart what is multiplied in another format."""

NAMES: Final = {quantisation.file_name: name for name, quantisation in QUANTISATIONS.items()}
"""Name in the files → name here."""


def quantisation(dtype: str) -> Quantisation:
    """Return what a dtype stands for.

    Raises:
        InputError: it is not one of :data:`QUANTISATIONS`.
    """
    if dtype not in QUANTISATIONS:
        raise unknown_name("dtype", dtype, QUANTISATIONS, "known: " + ", ".join(QUANTISATIONS))
    return QUANTISATIONS[dtype]
