"""Whether workloads fit into a GPU's memory, for arrays of them: :func:`costmodel.memory.memory_of` of one GPU group without a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.deployment import Deployment
from costmodel.memory.pool import Pool, own_length, pool_of, workload_settings


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """KV cache of one GPU beside one prompt; arrays that broadcast.

    Attributes:
        pool: its blocks.
        available: for the KV cache [B].
        tokens: of the cache, as vLLM logs it for sequences as long as the model allows.
    """

    pool: Pool
    available: Any
    tokens: Any

    def needed_blocks(self, streams: Any, context: Any, prompt: Any) -> Any:
        """Return the blocks of streams at ``context`` and of one prompt."""
        return self.pool.needed(streams, context, 1, prompt)

    def bytes_of(self, blocks: Any) -> Any:
        """Return the bytes of blocks [B]."""
        return blocks * float(self.pool.block_bytes[0])

    def holds(self, blocks: Any) -> Any:
        """Tell whether there are so many blocks."""
        return blocks <= self.pool.usable


def room_of(deployment: Deployment, streams: Any, budget: Any) -> Room:
    """Return the room for a KV cache at token budgets, for so many streams and a prompt."""
    pool = pool_of(deployment, workload_settings(deployment, budget, streams + 1))
    return Room(pool, pool.budgets[0].available, pool.tokens(own_length(deployment)))
