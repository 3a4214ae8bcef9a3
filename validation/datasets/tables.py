"""Measured kernels as columns: float64 arrays of equal length in SI units, and what they have in common as scalars."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from costmodel.hardware.errors import InputError

Column = NDArray[np.float64]
Words = NDArray[np.str_]
Mask = NDArray[np.bool_]


def check_mask(mask: Mask, rows: int) -> None:
    """Refuse a mask that is not one truth value per row, with :class:`InputError`."""
    if mask.dtype != np.bool_ or mask.shape != (rows,):
        raise InputError(f"mask must be {rows} truth values, not {mask.dtype} of shape {mask.shape}")


@dataclass(frozen=True, slots=True)
class Columns:
    """Base of records by column: every array field has one entry per row and cannot be written to."""

    def __post_init__(self) -> None:
        sizes = {}
        for name, array in self.columns().items():
            if array.ndim != 1:
                raise InputError(f"column {name} has {array.ndim} dimensions, not one")
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
            sizes[name] = len(array)
        if len(set(sizes.values())) > 1:
            raise InputError("columns differ in length: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def select(self, mask: Mask) -> Self:
        """Return the rows where ``mask`` is true.

        Raises:
            InputError: the mask is not one truth value per row.
        """
        check_mask(mask, len(self))
        return replace(self, **{name: array[mask] for name, array in self.columns().items()})


@dataclass(frozen=True, slots=True)
class KernelTable(Columns):
    """Timings of one kernel family on one GPU.

    Attributes:
        gpu: canonical name of the GPU profile.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        engine_version: version of the folder that was read.
        dtype: number format, a key of :data:`~costmodel.validation.datasets.formats.QUANTISATIONS`.
        source: file, relative to the package's folder.
        measured_by: engines and versions that the rows themselves name.
        seconds: time of one call [s].
        kernels: kernel that each row was measured with.
    """

    gpu: str
    engine: str
    engine_version: str
    dtype: str
    source: str
    measured_by: tuple[str, ...]
    seconds: Column
    kernels: Words


@dataclass(frozen=True, slots=True)
class GemmTable(KernelTable):
    """Linear layers: (m × k) times (k × n); weight bytes by ``dtype``.

    Several layers of different weights are called in turn on one input, and the time is the mean
    (:func:`~costmodel.validation.datasets.rules.layers_in_turn`), inside a CUDA graph except for vLLM's fp8-block, whose times are
    mostly the host's launches when tokens are few. Quantised layers include the quantisation of their 16-bit activations. Read from
    ``collector/<engine>/collect_gemm.py`` of the upstream repository, in versions that need not be those that measured.

    Attributes:
        tokens: m [tokens].
        outputs: n [features].
        inputs: k [features].
    """

    tokens: Column
    outputs: Column
    inputs: Column


@dataclass(frozen=True, slots=True)
class AttentionTable(KernelTable):
    """What attention kernels have in common; ``dtype`` is the format of queries as the file states it.

    vLLM's tables state bf16 queries even where the KV cache is fp8 and FlashAttention or FlashInfer quantises queries as well.

    Attributes:
        kv_dtype: format of the KV cache.
        batch: sequences.
        query_heads, kv_heads: heads on this GPU.
        head_dim: width of a head.
        window: sliding window, the query itself included [tokens]; infinite for full attention.
    """

    kv_dtype: str
    batch: Column
    query_heads: Column
    kv_heads: Column
    head_dim: Column
    window: Column


@dataclass(frozen=True, slots=True)
class PrefillTable(AttentionTable):
    """Causal attention of whole prompts.

    Attributes:
        tokens: new tokens per sequence (``isl`` of the file) [tokens].
        cached: tokens per sequence in the KV cache before (``step``; 0 in every table of version 0.12) [tokens].
    """

    tokens: Column
    cached: Column


@dataclass(frozen=True, slots=True)
class DecodeTable(AttentionTable):
    """Attention of one new token per sequence.

    Attributes:
        context: tokens per sequence in the KV cache before the step [tokens], so the kernel reads context + 1. The file's nominal
            length is S = isl + step, a power of two, with isl = 1 and step = S − 1. A stored version of vLLM's collector
            (``collector/vllm/collect_attn.py``) sets the length that the kernel sees to ``step``, one less than S; that is not
            corrected (0.2 % at S = 512).
    """

    context: Column


@dataclass(frozen=True, slots=True)
class AllReduceTable(KernelTable):
    """All-reduce among the GPUs of one node or NVLink domain.

    Attributes:
        gpus: ranks.
        bytes: message per rank [B]; the file's ``message_size`` counts elements.
        graph: inside a CUDA graph; else called eagerly. TensorRT-LLM's are always in a graph.
    """

    gpus: Column
    bytes: Column
    graph: Mask


@dataclass(frozen=True, slots=True)
class MoeTable(KernelTable):
    """Routed experts of one layer on one GPU, both products and the activation between them, without communication.

    Attributes:
        tokens: tokens that are routed, of all ranks [tokens].
        hidden: d [features].
        width: intermediate size of an expert before tensor parallelism [features].
        top_k, experts: experts per token, and in all.
        tensor_parallel, expert_parallel: this GPU holds experts/expert_parallel of them, each width/tensor_parallel wide.
        skew: exponent of the power law by which experts are chosen; 0 for balanced.
    """

    tokens: Column
    hidden: Column
    width: Column
    top_k: Column
    experts: Column
    tensor_parallel: Column
    expert_parallel: Column
    skew: Column


@dataclass(frozen=True, slots=True)
class MlaTable(KernelTable):
    """Multi-head latent attention, DeepSeek's dimensions; ``dtype`` is the format of queries.

    Attributes:
        kv_dtype: format of the KV cache.
        linear_dtype: format of the projections; empty where the rows are the attention kernel alone.
        batch: sequences.
        tokens: new tokens per sequence: prompt lengths, or 1 when decoding [tokens].
        cached: tokens per sequence in the KV cache before (``step``) [tokens].
        heads: heads on this GPU.
    """

    kv_dtype: str
    linear_dtype: str
    batch: Column
    tokens: Column
    cached: Column
    heads: Column
