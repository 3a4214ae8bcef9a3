"""The KV cache that an engine makes of what is left: blocks of every stage and of the pool, and what a sequence takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.deployment import Deployment
from costmodel.memory.blocks import (
    KvGroup,
    block_bytes,
    kv_groups,
    longest_sequence,
    sequence_blocks,
    stage_groups,
)
from costmodel.memory.engines import SGLANG_WINDOW_SHARE, Budget, EngineSettings, stage_budget
from costmodel.memory.weights import stage_patterns


@dataclass(frozen=True, slots=True)
class Capacity:
    """What of the KV cache there is.

    Attributes:
        budgets: of every pipeline stage.
        groups: of the whole model.
        block_bytes: of every stage [B].
        stage_blocks: blocks that every stage could hold.
        blocks: of the pool: those of the stage with fewest.
        per_sequence: blocks of the longest sequence.
        longest: longest sequence that fits.
    """

    budgets: tuple[Budget, ...]
    groups: tuple[KvGroup, ...]
    block_bytes: tuple[int, ...]
    stage_blocks: tuple[int, ...]
    blocks: int
    per_sequence: int
    longest: int

    @property
    def fullest(self) -> int:
        """The stage that holds the fewest blocks."""
        return min(
            range(len(self.budgets)), key=lambda stage: (self.stage_blocks[stage], self.budgets[stage].available)
        )


def capacity_of(deployment: Deployment, settings: EngineSettings, longest: int) -> Capacity:
    """Return the KV cache that an engine makes of its memory, and what of it the longest sequence takes."""
    budgets = tuple(stage_budget(deployment, stage, settings) for stage in range(deployment.pp))
    groups = kv_groups(deployment, settings.block_tokens, settings.hybrid and settings.engine == "vllm")
    allowed = max(deployment.architecture.max_positions or longest, longest)
    sizes, first = [], 0
    for pattern in stage_patterns(deployment):
        sizes.append(_block_bytes(deployment, settings, stage_groups(groups, first, len(pattern))))
        first += len(pattern)
    held = tuple(int(max(budget.available, 0.0) // size) for budget, size in zip(budgets, sizes, strict=True))
    blocks = min(held)
    return Capacity(
        budgets,
        groups,
        tuple(sizes),
        held,
        blocks,
        sequence_blocks(groups, longest, settings.in_flight),
        longest_sequence(groups, blocks + (settings.engine != "vllm"), settings.in_flight, allowed),  # no null block
    )


def _block_bytes(deployment: Deployment, settings: EngineSettings, groups: Sequence[KvGroup]) -> int:
    """Return the bytes of a block on one GPU of a stage; SGLang gives windowed layers fewer tokens [B]."""
    if settings.engine != "sglang" or not settings.hybrid:
        return block_bytes(groups)
    windows = {
        number: deployment.architecture.kinds[index].attention.window
        for number, index in enumerate(deployment.architecture.pattern)
    }
    mixed = len({window is None for window in windows.values()}) > 1
    return round(
        sum(
            page * (SGLANG_WINDOW_SHARE if mixed and windows[number] is not None else 1)
            for number, page in groups[0].layers
        )
    )
