"""Operators of a step gathered into the few groups that a figure can show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from costmodel.cli.figures import style
from costmodel.documents import Operator


class Group(NamedTuple):
    """How a group of operators looks."""

    name: str
    color: str
    hatch: str


WHOLE: Final = Group("all weights (not split)", style.PALE, "")
PROJECTIONS: Final = Group("attention projections", style.BLUE, "")
FEED_FORWARD: Final = Group("feed-forward / experts", style.SKY, "..")
PREFILL_ATTENTION: Final = Group("prefill attention", style.VERMILLION, "//")
DECODE_ATTENTION: Final = Group("decode attention (KV read)", style.ORANGE, "\\\\")
LM_HEAD: Final = Group("lm_head", style.YELLOW, "--")
COMMUNICATION: Final = Group("communication", style.PURPLE, "xx")
OVERHEAD: Final = Group("elementwise + overhead", style.GREEN, "++")

GROUPS: Final = (
    WHOLE,
    PROJECTIONS,
    FEED_FORWARD,
    PREFILL_ATTENTION,
    DECODE_ATTENTION,
    LM_HEAD,
    COMMUNICATION,
    OVERHEAD,
)
"""In the order in which they are stacked."""

_BY_NAME: Final = {
    "weights": WHOLE,  # of the textbook rung, which knows no operators
    "linear": WHOLE,
    "attention": PREFILL_ATTENTION,
    "prefill_attention": PREFILL_ATTENTION,
    "decode_attention": DECODE_ATTENTION,
    "lm_head": LM_HEAD,
    "elementwise": OVERHEAD,
    "overhead": OVERHEAD,
    "all_reduce": COMMUNICATION,
    "expert_dispatch": COMMUNICATION,
    "expert_combine": COMMUNICATION,
    "pipeline_send": COMMUNICATION,
    "experts": FEED_FORWARD,
    "shared_expert": FEED_FORWARD,
    "shared_expert_gate": FEED_FORWARD,
    "router": FEED_FORWARD,
    "gate_up_proj": FEED_FORWARD,
    "up_proj": FEED_FORWARD,
    "down_proj": FEED_FORWARD,
}


def group_of(operator: Operator) -> Group:
    """Return the group of an operator, by its name up to the first dot: what follows tells variants apart."""
    stem = operator.name.split(".")[0]
    if stem in _BY_NAME:
        return _BY_NAME[stem]
    if operator.bound == "link":
        return COMMUNICATION
    return PROJECTIONS if stem.endswith("_proj") else OVERHEAD


def seconds_by_group(operators: Iterable[Operator]) -> dict[Group, float]:
    """Return the time of each group that takes any, in the order of :data:`GROUPS` [s]."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for operator in operators:
        sums[group_of(operator)] += operator.time_s
    return {group: seconds for group, seconds in sums.items() if seconds > 0}
