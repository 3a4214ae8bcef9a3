"""Weight dtype, compute dtype and KV-cache dtype: three different things, chosen from the checkpoint, the part and the user's wish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from costmodel.architecture.formats import NATIVE_COMPUTE, PLAIN_FORMATS, WeightFormat
from costmodel.architecture.linears import CONNECTIONS_FORMAT
from costmodel.architecture.types import Architecture, LayerFormats, LayerKind
from costmodel.equations.numerics import Value
from costmodel.hardware.errors import InputError, unknown_name
from costmodel.hardware.profile import GpuProfile

SIXTEEN_BIT = ("bf16", "fp16")
TORCH_NAMES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Names of dtypes here, and torch's."""
FROM_TORCH: Final = {long: short for short, long in TORCH_NAMES.items()} | {"float": "fp32", "half": "fp16"}
"""Torch's names of dtypes, and its and vLLM's other words for them, and those here."""
KV_DTYPES = ("bf16", "fp16", "fp32", "fp8", "int8")


def choose_compute_dtype(
    fmt: WeightFormat, activation_dtype: str, forced: str | None, peaks: Mapping[str, Value]
) -> str:
    """Return the compute dtype of products with weights of ``fmt``.

    A forced dtype wins for quantised weights; 16- and 32-bit weights compute in the activations' dtype; weight-only formats in
    16 bits; the rest in their :data:`~costmodel.architecture.formats.NATIVE_COMPUTE` dtype where the part has a peak for it.
    """
    if fmt.name in ("bf16", "fp16", "fp32"):
        preferred: tuple[str, ...] = (activation_dtype,)
    elif forced is not None:
        preferred = (forced,)
    elif fmt.weight_only:
        preferred = (activation_dtype,)
    else:
        native = NATIVE_COMPUTE.get(fmt.name, activation_dtype)
        skip_native = fmt.name == "mxfp4" and "fp4" not in peaks
        preferred = (activation_dtype,) if skip_native else (native, activation_dtype)
    for dtype in preferred:
        if dtype in peaks:
            return dtype
    raise InputError(f"the part cannot compute {fmt.name} weights in {preferred[0]}; it has {', '.join(peaks)}")


def layer_formats(kind: LayerKind) -> set[WeightFormat]:
    """Return the distinct weight formats of a layer."""
    formats = kind.formats
    named = {fmt for _, fmt in formats.overrides} | ({CONNECTIONS_FORMAT} if kind.residuals != 1 else set())
    return {formats.attention, formats.feed_forward, formats.experts, formats.router} | named


def main_format(architecture: Architecture) -> WeightFormat:
    """Return the format that most weights of the layers are stored in."""
    kind = next((kind for kind in reversed(architecture.kinds) if kind.feed_forward.kind != "none"), None)
    if kind is None:
        return architecture.kinds[-1].formats.attention
    return kind.formats.experts if kind.feed_forward.kind == "moe" else kind.formats.feed_forward


def choose_dtypes(
    architecture: Architecture, profile: GpuProfile, dtype: str | None, gpu: str
) -> tuple[str, Architecture, str]:
    """Return the activations' dtype, the architecture in the formats served, and a note where the part forced a choice."""
    if dtype is not None and dtype not in PLAIN_FORMATS:
        raise unknown_name("dtype", dtype, PLAIN_FORMATS, "known: " + ", ".join(PLAIN_FORMATS))
    activation = dtype if dtype in (*SIXTEEN_BIT, "fp32") else architecture.dtype
    note = ""
    if activation not in profile.peak_flops:
        usable = [name for name in ("bf16", "fp16", "fp32") if name in profile.peak_flops]
        if dtype == activation or not usable:
            raise InputError(f"{gpu} cannot compute in {activation}; use {' or '.join(usable) or 'another GPU'}")
        note = f"{profile.name} has no {activation} units: {usable[0]} is used"
        architecture = _retype(architecture, activation, usable[0])
        activation = usable[0]
    if dtype is not None:
        architecture = _with_dtype(architecture, PLAIN_FORMATS[dtype], PLAIN_FORMATS[activation])
    return activation, architecture, note


def choose_kv_dtype(kv_dtype: str | None, architecture: Architecture, activation: str) -> str:
    """Return the dtype of the KV cache: the user's, the checkpoint's if it carries KV scales, else that of the activations."""
    if kv_dtype in (None, "auto"):
        return architecture.kv_dtype or activation
    if kv_dtype not in KV_DTYPES:
        raise unknown_name("KV-cache dtype", str(kv_dtype), KV_DTYPES, "known: auto, " + ", ".join(KV_DTYPES))
    return str(kv_dtype)


def _with_dtype(architecture: Architecture, fmt: WeightFormat, plain: WeightFormat) -> Architecture:
    """Store every matrix of the layers in ``fmt``; embedding, lm_head and router stay in 16 bits, as quantised checkpoints keep them."""
    kinds = tuple(replace(kind, formats=LayerFormats(fmt, fmt, fmt, plain)) for kind in architecture.kinds)
    return replace(
        architecture, kinds=kinds, dtype=plain.name, embedding_format=plain, lm_head_format=plain, quantization=""
    )


def _retype(architecture: Architecture, old: str, new: str) -> Architecture:
    """Store what is in one 16- or 32-bit dtype in another."""
    before, after = PLAIN_FORMATS[old], PLAIN_FORMATS[new]

    def change(fmt: WeightFormat) -> WeightFormat:
        return after if fmt == before else fmt

    kinds = tuple(
        replace(
            kind,
            formats=LayerFormats(
                change(kind.formats.attention),
                change(kind.formats.feed_forward),
                change(kind.formats.experts),
                change(kind.formats.router),
                tuple((kernel, change(fmt)) for kernel, fmt in kind.formats.overrides),
            ),
        )
        for kind in architecture.kinds
    )
    return replace(
        architecture,
        kinds=kinds,
        dtype=new,
        embedding_format=change(architecture.embedding_format),
        lm_head_format=change(architecture.lm_head_format),
    )
