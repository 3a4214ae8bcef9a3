"""What the flags of a server say for a prediction or a simulation of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WHOLE: Final = {
    "max_num_batched_tokens": "chunk",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "tensor_parallel_size": "tp",
    "block_size": "block_tokens",
}
KV_FORMATS: Final = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "bfloat16": "bf16",
    "float16": "fp16",
}
"""vLLM's names of the KV cache's dtypes → costmodel's; ``auto`` is that of the activations."""
TRUTHS: Final = {"enable_prefix_caching": "prefix_caching", "enable_chunked_prefill": "chunked_prefill"}
"""Flags of the server that a simulation takes, and its names for them."""


def simulation_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of the server that a simulation takes, by its names; metrics have them as text."""
    found: dict[str, Any] = {}
    for theirs, ours in WHOLE.items():
        if (number := _whole(flags.get(theirs))) is not None:
            found[ours] = number
    for theirs, ours in TRUTHS.items():
        if str(flags.get(theirs)) in ("True", "False"):
            found[ours] = str(flags[theirs]) == "True"
    if (kv := KV_FORMATS.get(str(flags.get("kv_cache_dtype", flags.get("cache_dtype"))))) is not None:
        found["kv_dtype"] = kv
    blocks, size = _whole(flags.get("num_gpu_blocks")), _whole(flags.get("block_size"))
    if blocks and size:
        found["kv_tokens"] = (blocks - 1) * size  # one block, the null block, is never given out
    return found


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None
