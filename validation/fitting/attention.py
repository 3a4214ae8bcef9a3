"""Which attention kernels are fitted: by cache format, dimension of heads and window, and the form of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.hardware.errors import InputError
from costmodel.validation.datasets import silicon
from costmodel.validation.datasets.tables import DecodeTable

FEWEST_ROWS = 30
"""An operator with fewer rows is left out of a calibration."""

PREFILL_TILE = ("compute_efficiency", "bandwidth_efficiency", "launch_s", "sharpness", "tile_rows", "shared_passes")
PREFILL_WINDOW = (*PREFILL_TILE[:-1], "kv_passes")
"""Tiles of a window see keys before it."""
DECODE_SPLIT = ("bandwidth_efficiency", "launch_s", "padding_tokens", "saturation_s", "saturation_tokens", "sharpness")
DECODE_WINDOW = ("bandwidth_efficiency", "launch_s", "wave_s")
"""In a full window every sequence reads the same tokens: nothing is padded or split, and nothing saturates."""
DECODE_BLOCKS = ("bandwidth_efficiency", "launch_s", "padding_tokens", "extra_launch_s", "key_s")
DECODE_BLOCKS_WINDOW = ("bandwidth_efficiency", "launch_s", "key_s")

FLASH_ATTENTION_2: Final = ("vllm_flash_attn", "vllm_flash_attn_fa2")
"""FlashAttention-2, which vLLM takes before Hopper: its decode kernel has a form of its own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Attention kernels that one entry of a calibration stands for.

    Attributes:
        kv_dtype: format of the KV cache.
        head_dim: dimension of a head.
        window: sliding window; None for full attention.
    """

    kv_dtype: str
    head_dim: int
    window: int | None = None

    def suffix(self, compute: str) -> str:
        """Return what follows the operator's name: ``bf16.d64.w128``; heads of 128 and full attention are not said."""
        parts = [compute if self.kv_dtype == "bf16" else f"kv-{self.kv_dtype}"]
        parts += [f"d{self.head_dim}"] if self.head_dim != USUAL else []
        parts += [f"w{self.window}"] if self.window else []
        return ".".join(parts)


USUAL: Final = 128
"""Heads of this dimension, which nearly all models served have, are not named in an operator's key."""

KINDS: Final = (
    Kind("bf16", USUAL),
    Kind("fp8", USUAL),
    Kind("bf16", 64),
    Kind("bf16", 64, 128),
    Kind("bf16", 256),
    Kind("fp8", 64),
    Kind("fp8", 64, 128),
)
"""Heads of 64 and windows of 128 are gpt-oss's, heads of 256 Gemma's."""


def read_kind(read: Callable[..., Any], gpu: str, engine: str, kind: Kind) -> Any:
    """Return the rows of one kind, of 16-bit queries or, where those are few, of queries in the format of the cache.

    Raises:
        InputError: not measured, or fewer than :data:`FEWEST_ROWS`.
    """
    for queries in dict.fromkeys(("bf16", kind.kv_dtype)):
        try:
            table = read(gpu, engine, queries, kind.kv_dtype)
        except InputError:
            continue
        window = np.inf if kind.window is None else kind.window
        table = table.select((table.head_dim == kind.head_dim) & (table.window == window))
        if len(table) >= FEWEST_ROWS:
            return table
    raise InputError(f"attention with a {kind.kv_dtype} cache and heads of {kind.head_dim} was not measured")


def decode_form(table: DecodeTable, kind: Kind) -> tuple[str, tuple[str, ...]]:
    """Return the form of decode attention and its free parameters, by the kernel that was measured."""
    if set(table.kernels.tolist()) <= set(FLASH_ATTENTION_2):
        return "decode_blocks", DECODE_BLOCKS if kind.window is None else DECODE_BLOCKS_WINDOW
    return "decode_split", DECODE_SPLIT if kind.window is None else DECODE_WINDOW


def read_prefill(gpu: str, engine: str, kind: Kind) -> Any:
    """Return the measured prefill attention of one kind."""
    return read_kind(silicon.prefill_attention, gpu, engine, kind)


def read_decode(gpu: str, engine: str, kind: Kind) -> Any:
    """Return the measured decode attention of one kind."""
    return read_kind(silicon.decode_attention, gpu, engine, kind)
