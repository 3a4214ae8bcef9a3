"""Whether workloads fit into a GPU's memory, for arrays of them: :func:`costmodel.memory.memory_of` of one GPU group without a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs
from costmodel.memory.blocks import BLOCK_TOKENS, stage_kv_bytes
from costmodel.memory.engines import default_settings, stage_budget


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Memory of one GPU; arrays that broadcast.

    Attributes:
        available: for the KV cache [B].
        tokens: that the cache holds.
    """

    available: Any
    tokens: Any


def room_of(deployment: Deployment, streams: Any, budget: Any) -> Room:
    """Return the room for a KV cache at token budgets, for so many streams."""
    rows = np.maximum(default_max_num_seqs(deployment), streams)
    settings = replace(
        default_settings(deployment),
        token_budget=budget,
        sequences=np.minimum(rows, np.maximum(budget, streams)),
    )
    available = stage_budget(deployment, 0, settings).available
    block = stage_kv_bytes(deployment, 0) * BLOCK_TOKENS
    return Room(available, np.maximum(available, 0.0) // block * BLOCK_TOKENS)


def needed_bytes(deployment: Deployment, streams: Any, context: Any, prompt: Any, budget: Any) -> Any:
    """Return the KV cache of streams at ``context`` and of one prompt, in whole blocks [B]."""
    held = streams * stage_kv_bytes(deployment, 0, context + 1, budget)
    return held + stage_kv_bytes(deployment, 0, prompt, budget)
