"""KV blocks of a server, and what sequences take of them: the one rule of predictions, sweeps, plans and simulations.

A sequence that only decodes has one token in a step; a prompt may fill the token budget. Layers with a window w keep a token until no query
needs it, so a stream holds min(context, w − 1 + 1) tokens of them and a prompt min(prompt, w − 1 + budget), and both those of a second step
where steps are scheduled ahead (vllm/v1/core/single_type_kv_cache_manager.py: ``SlidingWindowManager``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs
from costmodel.equations.numerics import Value, maximum, minimum
from costmodel.memory.blocks import (
    KvGroup,
    block_bytes,
    kv_groups,
    longest_sequence,
    sequence_blocks,
    stage_groups,
)
from costmodel.memory.engines import SGLANG_WINDOW_SHARE, Budget, EngineSettings, default_settings, stage_budget
from costmodel.memory.weights import stage_patterns


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The KV cache that an engine makes of what is left.

    Attributes:
        settings: of the engine; its token budget and sequences may be float64 arrays, and so is then what follows from them.
        budgets: memory of every pipeline stage.
        groups: of layers, of the whole model.
        block_bytes: of every stage [B].
        stage_blocks: blocks that every stage could hold.
        blocks: of the pool: those of the stage with fewest.
    """

    settings: EngineSettings
    budgets: tuple[Budget, ...]
    groups: tuple[KvGroup, ...]
    block_bytes: tuple[int, ...]
    stage_blocks: tuple[Value, ...]
    blocks: Value

    @property
    def usable(self) -> Value:
        """Blocks that sequences can have: vLLM keeps one, the null block, for itself."""
        return maximum(self.blocks - (self.settings.engine == "vllm"), 0)

    @property
    def tokens(self) -> Value:
        """Tokens that it holds if every layer keeps every token; of one sequence, where there are states."""
        states = sum(group.states for group in self.groups)
        kept = [group.block_tokens for group in self.groups if not group.states]
        if not kept:
            return 0 * self.blocks
        return maximum(self.blocks - states, 0) // len(kept) * min(kept)

    def stream(self, context: Value) -> Value:
        """Return the blocks of a sequence that decodes at ``context``, its next token included."""
        return sequence_blocks(self.groups, context + 1 + self.settings.beside.tokens, self.settings.rules.in_flight)

    def prompt(self, tokens: Value) -> Value:
        """Return the blocks of a prompt being prefilled, and of the first token of its answer."""
        return sequence_blocks(self.groups, tokens + 1, self.settings.in_flight)

    def needed(self, streams: Value, context: Value, prompts: Value, prompt: Value) -> Value:
        """Return the blocks of ``streams`` at ``context`` beside ``prompts`` prompts of ``prompt`` tokens."""
        return streams * self.stream(context) + prompts * self.prompt(prompt)

    def starts(self, longest: int) -> bool:
        """Tell whether vLLM starts with ``max_model_len`` = ``longest``: one such sequence must fit; it counts as if all were prompt."""
        return bool(sequence_blocks(self.groups, longest, self.settings.in_flight) <= self.usable)

    def longest(self, most: int) -> int:
        """Return the largest ``max_model_len`` up to ``most`` with which vLLM starts; 0 for none."""
        return longest_sequence(self.groups, int(self.usable) + 1, self.settings.in_flight, most)


def pool_of(deployment: Deployment, settings: EngineSettings) -> Pool:
    """Return the KV cache that an engine makes of its memory."""
    budgets = tuple(stage_budget(deployment, stage, settings) for stage in range(deployment.pp))
    hybrid = settings.hybrid and settings.engine == "vllm"
    groups = kv_groups(deployment, settings.block_tokens, hybrid, settings.beside.drafts)
    sizes, first = [], 0
    for pattern in stage_patterns(deployment):
        sizes.append(_block_bytes(deployment, settings, stage_groups(groups, first, len(pattern))))
        first += len(pattern)
    # What is cached beside the model is cached for every token, so it makes a block of each group that keeps them all larger, and as all
    # groups take blocks of one size, every block.
    keeping = [group for group in groups if group.keeps_all] or groups
    tokens = min(group.block_tokens for group in keeping)
    sizes[-1] += round(settings.beside.kv_per_token * tokens / len(keeping))
    held = tuple(maximum(budget.available, 0.0) // size for budget, size in zip(budgets, sizes, strict=True))
    blocks = held[0]
    for others in held[1:]:
        blocks = minimum(blocks, others)
    return Pool(settings, budgets, groups, tuple(sizes), held, blocks)


def workload_settings(
    deployment: Deployment, token_budget: Value, sequences: Value, max_num_seqs: int | None = None
) -> EngineSettings:
    """Return vLLM's defaults at a token budget.

    Args:
        deployment: model and part.
        token_budget: tokens per step.
        sequences: that a workload has at once, for which there must be places.
        max_num_seqs: as it is set; by default vLLM's, at least ``sequences``.
    """
    rows = maximum(default_max_num_seqs(deployment), sequences) if max_num_seqs is None else max_num_seqs
    return replace(
        default_settings(deployment),
        token_budget=token_budget,
        sequences=minimum(rows, maximum(token_budget, sequences)),
    )


def _block_bytes(deployment: Deployment, settings: EngineSettings, groups: tuple[KvGroup, ...]) -> int:
    """Return the bytes of a block on one GPU of a stage; SGLang gives windowed layers fewer tokens [B]."""
    if settings.engine != "sglang" or not settings.hybrid or any(group.states for group in groups):
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
