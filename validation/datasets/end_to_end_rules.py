"""Which end-to-end rows are not fitted to, and why; stated before any fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from costmodel.validation.datasets.end_to_end import EndToEndRow, EndToEndTable
from costmodel.validation.datasets.rules import Rule
from costmodel.validation.datasets.tables import Mask

LONGEST_TTFT: Final = 10.0
"""Longest mean time to first token that is not mostly a queue [s]."""

SWITCHABLE: Final = ("batch is not concurrency", "TTFT over 10 s")
"""Rules that may be switched off in a fit; the others take rows that are not modelled, or are kept for the final test."""

Bound = Callable[[EndToEndRow], float | None]
"""Least TPOT that the datasheet allows for a row [s]; None where it cannot be said."""


def counted_twice(row: EndToEndRow) -> bool:
    """Tell whether an InferenceX row multiplies the tensor and expert parallelism of the same GPUs.

    gpt-oss on H200, 1024/8192, 32 clients: "tp 4, experts 2 × 2" takes 9.85 ms per token, and tp 2 takes 9.86; "tp 16, 4 × 4" takes 7.65,
    and tp 4 takes 7.60. So such rows ran on ``moe_tp`` GPUs, not on its square.
    """
    return row.protocol == "InferenceX" and row.moe_tp == row.moe_ep > 1


def consistent(row: EndToEndRow) -> bool:
    """Tell whether attention and experts can lie on the same GPUs: tp·dp = expert tp·ep."""
    if row.dense or row.disaggregated:
        return True
    return not counted_twice(row) and row.tp * row.attention_dp == row.moe_tp * row.moe_ep


def _each(judge: Callable[[EndToEndRow], bool]) -> Callable[[EndToEndTable], Mask]:
    return lambda table: np.fromiter((judge(row) for row in table), dtype=np.bool_, count=len(table))


def end_to_end_rules(bound: Bound | None = None) -> tuple[Rule[EndToEndTable], ...]:
    """Return the rules.

    Args:
        bound: least TPOT by the datasheet; without it, no row is called too fast.
    """

    def possible(row: EndToEndRow) -> bool:
        least = bound(row) if bound is not None else None
        return least is None or row.tpot_s >= least

    return (
        Rule(
            "final test",
            "DeepSeek, Kimi, GLM-5 and Qwen3.5 are the final test: they are never fitted to and choose nothing.",
            _each(lambda row: not row.final_test),
        ),
        Rule(
            "disaggregated",
            "Prefill and decode ran on separate GPUs, whose steps do not mix; not modelled.",
            _each(lambda row: not row.disaggregated),
        ),
        Rule(
            "attention DP",
            "Attention data parallelism splits the batch among ranks that wait for each other; not modelled yet.",
            _each(lambda row: row.attention_dp <= 1),
        ),
        Rule(
            "pipeline",
            "Pipeline parallelism has bubbles; not modelled yet.",
            _each(lambda row: row.pp <= 1),
        ),
        Rule(
            "batch is not concurrency",
            "The batch size differs from the clients, or no number of clients is stated, so the load is not known.",
            _each(lambda row: row.disaggregated or row.batch_size == row.concurrency),
        ),
        Rule(
            "parallelism",
            "Attention and experts are stated on different numbers of GPUs, or the same GPUs are counted twice.",
            _each(consistent),
        ),
        Rule(
            "TTFT over 10 s",
            "The mean first token waits in a queue longer than any prefill: the server was overloaded.",
            _each(lambda row: row.ttft_s <= LONGEST_TTFT),
        ),
        Rule(
            "faster than the datasheet",
            "A token takes less time than the weights and the KV cache take to be read, so the row is mislabelled.",
            _each(possible),
        ),
    )
