"""Which measured kernels are not fitted to: rules with a reason each, stated before any fit, counted, and switchable.

>>> table, counts = apply_rules(gemm("h100-sxm"), gemm_rules("h100-sxm"), off=("narrow",))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, Self, TypeVar

import numpy as np

from costmodel.hardware.errors import InputError, unknown_name
from costmodel.validation.datasets.limits import (
    all_reduce_floor,
    decode_floor,
    gemm_floor,
    kv_bytes,
    limits,
    prefill_floor,
    weight_bytes,
)
from costmodel.validation.datasets.tables import (
    AllReduceTable,
    AttentionTable,
    Column,
    DecodeTable,
    GemmTable,
    Mask,
    PrefillTable,
)

SMALLEST_MATRIX: Final = 256
"""Least outputs and inputs of a linear layer [features]."""

LONGEST_PREFILL: Final = 32_768
"""Most prompt tokens in one step."""

SHORTEST_PREFILL: Final = 64
"""Least tokens of a prompt."""

LARGEST_MESSAGE: Final = 2**27
"""Largest all-reduce [B], 128 MiB."""

HOST_GPUS: Final = {"gb200": 4, "gb300": 4}
"""GPUs of one host, where the domain of fast links is wider than that."""

SERVED_MATRIX: Final = 512
"""Least inputs and outputs of a matrix that counts as like those of a server."""

SERVED_TOKENS: Final = 512
"""Least prompt, and least context, that count as like those of a server [tokens]."""


class Selectable(Protocol):
    """Rows that a mask can choose among."""

    def __len__(self) -> int: ...

    def select(self, mask: Mask, /) -> Self:
        """Return the rows where the mask is true."""


Rows = TypeVar("Rows", bound=Selectable)
Judged_contra = TypeVar("Judged_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Rule(Generic[Judged_contra]):
    """One reason to leave rows out.

    Attributes:
        name: by which it is counted and switched off.
        reason: why such rows say nothing about a server.
        keep: which rows stay.
    """

    name: str
    reason: str
    keep: Callable[[Judged_contra], Mask]


def apply_rules(rows: Rows, rules: Sequence[Rule[Rows]], off: Iterable[str] = ()) -> tuple[Rows, dict[str, int]]:
    """Leave out what the rules exclude, one after another.

    Args:
        rows: a table.
        rules: in the order in which they are counted.
        off: names of rules that do not apply.

    Returns:
        The rows that stay, and by rule how many it took of those that the rules before it had left.

    Raises:
        InputError: ``off`` names a rule that is not there.
    """
    counts = {}
    for rule in active_rules(rules, off):
        kept = rows.select(rule.keep(rows))
        counts[rule.name] = len(rows) - len(kept)
        rows = kept
    return rows, counts


def count_each(rows: Rows, rules: Sequence[Rule[Rows]]) -> dict[str, int]:
    """Return by rule how many rows it would take alone."""
    return {rule.name: int(len(rows) - np.count_nonzero(rule.keep(rows))) for rule in rules}


def active_rules(rules: Sequence[Rule[Rows]], off: Iterable[str] = ()) -> list[Rule[Rows]]:
    """Return the rules that are not switched off.

    Raises:
        InputError: ``off`` is one text, or names a rule that is not there.
    """
    if isinstance(off, str):
        raise InputError(f"off must be names of rules, not the text {off!r}")
    names = [rule.name for rule in rules]
    skipped = set(off)
    for name in sorted(skipped - set(names)):
        raise unknown_name("rule", name, names, "known: " + ", ".join(names))
    return [rule for rule in rules if rule.name not in skipped]


FLOOR: Final = "below floor"
"""Name of the rule against rows that are faster than the datasheet allows."""

_FLOOR_REASON = "Faster than datasheet compute or bandwidth allows, so data came from a cache or the clock was wrong."


def layers_in_turn(table: GemmTable) -> int:
    """Return how many layers of different weights the engine's collector calls one after another.

    Six; TensorRT-LLM up to five, as many as exceed L2 together; vLLM one where it is fp8-block or nvfp4.
    """
    if table.engine == "trtllm":
        return 5
    return 1 if table.engine == "vllm" and table.dtype in ("fp8-block", "nvfp4") else 6


def gemm_rules(gpu: str) -> tuple[Rule[GemmTable], ...]:
    """Return the rules for linear layers measured on ``gpu``."""
    part = limits(gpu)

    def wide(table: GemmTable) -> Mask:
        return (table.outputs >= SMALLEST_MATRIX) & (table.inputs >= SMALLEST_MATRIX)

    def cold(table: GemmTable) -> Mask:
        return layers_in_turn(table) * weight_bytes(table) > part.l2

    return (
        Rule(
            "narrow",
            "Layers of fewer than 256 inputs or outputs per GPU are routers and the like: a small part of any step.",
            wide,
        ),
        Rule(
            "weights in L2",
            "The layers called in turn fit in the L2 cache together, so their weights come from it; no server sees that.",
            cold,
        ),
        Rule(FLOOR, _FLOOR_REASON, lambda table: table.seconds >= gemm_floor(table, part)),
    )


KERNELS: Final = ("trtllm_mha", "fa3", "flashinfer", "triton")
"""Attention kernels of SGLang in the order of its own choice."""


def chosen_kernel(table: AttentionTable, *more: Column) -> Mask:
    """Return False for rows whose shape (with ``more`` columns) was also measured with a kernel that the engine rather takes."""
    order = np.array([KERNELS.index(name) if name in KERNELS else 0 for name in table.kernels.tolist()])
    shapes = (table.batch, table.query_heads, table.kv_heads, table.head_dim, table.window, *more)
    _, member = np.unique(np.stack(shapes, axis=1), axis=0, return_inverse=True)
    member = member.reshape(-1)
    best = np.full(int(member.max(initial=-1)) + 1, len(KERNELS))
    np.minimum.at(best, member, order)
    kept: Mask = order == best[member]
    return kept


_KERNEL_REASON = "The same shape was measured with two kernels; the engine takes the other one where it has the choice."


def prefill_rules(gpu: str) -> tuple[Rule[PrefillTable], ...]:
    """Return the rules for attention of prompts measured on ``gpu``."""
    part = limits(gpu)
    return (
        Rule("second kernel", _KERNEL_REASON, lambda table: chosen_kernel(table, table.tokens, table.cached)),
        Rule(
            "short prompts",
            "Batches of prompts under 64 tokens are decode-like, and servers do not see them.",
            lambda table: table.tokens >= SHORTEST_PREFILL,
        ),
        Rule(
            "above the token budget",
            "More than 32,768 prompt tokens exceed any usual budget of one step.",
            lambda table: table.batch * table.tokens <= LONGEST_PREFILL,
        ),
        Rule(FLOOR, _FLOOR_REASON, lambda table: table.seconds >= prefill_floor(table, part)),
    )


def decode_rules(gpu: str) -> tuple[Rule[DecodeTable], ...]:
    """Return the rules for attention of decoding sequences measured on ``gpu``."""
    part = limits(gpu)

    def cold_or_launch(table: DecodeTable) -> Mask:
        read = kv_bytes(table)
        return (read > part.l2) | (read < part.l2 / 16)

    return (
        Rule("second kernel", _KERNEL_REASON, lambda table: chosen_kernel(table, table.context)),
        Rule(
            "windows not full",
            "A window that the context does not fill is served by the same kernel in less time, for the first tokens of an answer only.",
            lambda table: ~np.isfinite(table.window) | (table.context >= table.window),
        ),
        Rule(
            "KV cache in L2",
            "The kernel is repeated on the same KV cache: below the size of L2 it is read from there, which no server sees; "
            "below a sixteenth of it the launch dominates, and where the bytes come from does not matter.",
            cold_or_launch,
        ),
        Rule(FLOOR, _FLOOR_REASON, lambda table: table.seconds >= decode_floor(table, part)),
    )


def all_reduce_rules(gpu: str) -> tuple[Rule[AllReduceTable], ...]:
    """Return the rules for all-reduces measured on ``gpu``."""
    part = limits(gpu)
    return (
        Rule(
            "eager",
            "Called one by one, the host's launch is measured; servers decode in CUDA graphs.",
            lambda table: table.graph,
        ),
        Rule(
            "several hosts",
            "A host of a Grace Blackwell rack has four GPUs; beyond them the engine takes another library than its own kernel.",
            lambda table: table.gpus <= HOST_GPUS.get(part.gpu, np.inf),
        ),
        Rule(
            "huge messages",
            "Above 128 MiB the engine takes another library, and no step sends such a message.",
            lambda table: table.bytes <= LARGEST_MESSAGE,
        ),
        Rule(FLOOR, _FLOOR_REASON, lambda table: table.seconds >= all_reduce_floor(table, part)),
    )
