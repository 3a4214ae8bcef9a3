"""What a KV cache holds of the longest sequence: what vLLM works out at start-up and logs."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.deployment import Deployment
from costmodel.memory.blocks import KvGroup, longest_sequence, sequence_blocks
from costmodel.memory.engines import Budget, EngineSettings
from costmodel.memory.pool import pool_of


@dataclass(frozen=True, slots=True)
class Capacity:
    """What of the KV cache there is.

    Attributes:
        budgets: of every pipeline stage.
        groups: of the whole model.
        block_bytes: of every stage [B].
        stage_blocks: blocks that every stage could hold.
        blocks: of the pool: those of the stage with fewest.
        tokens: that the engine logs.
        concurrency: how many of the longest sequence fit at once.
        per_sequence: blocks of the longest sequence.
        longest: longest sequence that fits.
    """

    budgets: tuple[Budget, ...]
    groups: tuple[KvGroup, ...]
    block_bytes: tuple[int, ...]
    stage_blocks: tuple[int, ...]
    blocks: int
    tokens: int
    concurrency: float
    per_sequence: int
    longest: int

    @property
    def fullest(self) -> int:
        """The stage that has too little memory for a given KV cache, else the one that holds the fewest blocks."""
        stages = range(len(self.budgets))
        budgets, held = self.budgets, self.stage_blocks
        return min(stages, key=lambda stage: (-budgets[stage].excess, held[stage], budgets[stage].available))


def capacity_of(deployment: Deployment, settings: EngineSettings, longest: int) -> Capacity:
    """Return the KV cache that an engine makes of its memory, and what of it the longest sequence takes.

    As at vLLM's start-up, the longest sequence counts as if it were all prompt: its windows hold a token budget beside themselves.
    """
    pool = pool_of(deployment, settings)
    allowed = max(deployment.architecture.max_positions or longest, longest)
    blocks = int(pool.blocks)
    if not pool.groups:
        at_once = float(pool.concurrency(longest))
        return Capacity(pool.budgets, (), pool.block_bytes, (0,) * len(pool.budgets), 0, 0, at_once, 0, allowed)
    return Capacity(
        pool.budgets,
        pool.groups,
        pool.block_bytes,
        tuple(map(int, pool.stage_blocks)),
        blocks,
        int(pool.tokens(longest)),
        float(pool.concurrency(longest)),
        sequence_blocks(pool.groups, longest, settings.in_flight),
        longest_sequence(
            pool.groups, blocks + (settings.engine != "vllm"), settings.in_flight, allowed
        ),  # no null block
    )
