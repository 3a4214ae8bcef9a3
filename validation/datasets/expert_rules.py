"""Which measured rows of routed experts are not fitted to, stated before any fit; see :mod:`~costmodel.validation.datasets.rules`."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.validation.datasets.formats import quantisation
from costmodel.validation.datasets.limits import Limits, limits
from costmodel.validation.datasets.rules import FLOOR, Rule
from costmodel.validation.datasets.tables import Column, Mask, MoeTable

UNGATED: Final = ((1024, 2688), (2048, 5120), (2688, 1856), (8192, 5120))
"""Hidden and intermediate size of models whose experts have two matrices instead of three (Nemotron-H)."""

GROUP_LIMITED: Final = ((7168, 256, 8),)
"""Hidden size, experts and experts per token of models that choose groups of experts first (DeepSeek-V3)."""

NARROWEST: Final = 128
"""Least width of an expert on one GPU."""

SMALL_SHARE: Final = 0.3
"""Share of a call's time that reading its experts from memory would take, below which it does not matter where they come from."""

MOST_GPUS: Final = 8
"""GPUs of one server."""


def touched_experts(table: MoeTable) -> Column:
    """Return the experts that some token chooses, on one GPU without expert parallelism, by an uneven router."""
    chosen = table.top_k / table.experts
    touched: Column = table.experts * (1 - (1 - chosen) / (1 + (table.tokens - 1) * chosen))
    return touched


def expert_bytes(table: MoeTable) -> Column:
    """Return the bytes of one expert on one GPU: three matrices of hidden size times width [B]."""
    weight = quantisation(table.dtype).weights.bytes_per_weight
    size: Column = 3 * table.hidden * table.width / table.tensor_parallel * weight
    return size


def experts_floor(table: MoeTable, part: Limits) -> Column:
    """Return max(FLOPs/F, bytes of the k experts that one token needs/W) [s]: no choice of experts needs less."""
    kind = quantisation(table.dtype)
    rows = table.tokens * table.top_k / table.expert_parallel
    flops = 6 * table.hidden * table.width / table.tensor_parallel * rows
    moved = expert_bytes(table) * np.minimum(table.top_k, table.experts / table.expert_parallel)
    return np.maximum(
        flops / part.peak(kind.compute), np.where(table.expert_parallel == 1, moved / part.bandwidth, 0.0)
    )


def expert_rules(gpu: str) -> tuple[Rule[MoeTable], ...]:
    """Return the rules for routed experts measured on ``gpu``, for rows without expert parallelism."""
    part = limits(gpu)

    def gated(table: MoeTable) -> Mask:
        shapes = zip(table.hidden.tolist(), table.width.tolist(), strict=True)
        known = np.array([shape not in UNGATED for shape in shapes], dtype=np.bool_)
        return known & ~np.char.endswith(table.kernels, "nongated")

    def free(table: MoeTable) -> Mask:
        shapes = zip(table.hidden.tolist(), table.experts.tolist(), table.top_k.tolist(), strict=True)
        return np.array([shape not in GROUP_LIMITED for shape in shapes], dtype=np.bool_)

    def usual(table: MoeTable) -> Mask:
        families = np.array(
            [name.removesuffix("modular").removesuffix("monolithic") for name in table.kernels.tolist()]
        )
        names, counts = np.unique(families, return_counts=True)
        most: Mask = families == names[counts.argmax()] if len(names) else np.ones(0, dtype=np.bool_)
        return most

    def cold_or_launch(table: MoeTable) -> Mask:
        read = expert_bytes(table) * touched_experts(table)
        return (read > part.l2) | (read / part.bandwidth < SMALL_SHARE * table.seconds)

    return (
        Rule("not gated", "Experts of two matrices are another operator; few models have them.", gated),
        Rule("groups first", "A router that chooses groups of experts first leaves more of them idle.", free),
        Rule(
            "narrow experts",
            "Experts of more than 8 slices, or under 128 wide per GPU: models are not cut so thin.",
            lambda table: (table.tensor_parallel <= MOST_GPUS) & (table.width / table.tensor_parallel >= NARROWEST),
        ),
        Rule(
            "balanced",
            "Every expert in turn: no router is so even, and no tile of rows is left partly empty. The two power laws stay.",
            lambda table: table.skew > 0,
        ),
        Rule(
            "few tokens",
            "With no more choices than experts the collector hardly gives two to one expert: more are touched than by chance. One "
            "token is as in a server.",
            lambda table: (table.tokens == 1) | (table.tokens * table.top_k > table.experts),
        ),
        Rule(
            "experts in L2",
            "The call is repeated on the same experts: below the size of L2 they are read from there, which no server sees. "
            "Where memory would take under 30 % of the time, it does not matter.",
            cold_or_launch,
        ),
        Rule(
            FLOOR,
            "Faster than datasheet compute or bandwidth allows, so data came from a cache or the clock was wrong.",
            lambda table: table.seconds >= experts_floor(table, part),
        ),
        Rule(
            "another kernel",
            "Of the kernels that an engine chooses from, by model and option, the one that ran most rows: the parameters are of one.",
            usual,
        ),
    )
