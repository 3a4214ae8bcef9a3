"""Values of explanations as text: the end of a key is its unit."""

from __future__ import annotations

from costmodel.cli.text import count, large, percent, seconds, significant, size
from costmodel.explaining.documents import Cell


def value_text(key: str, value: Cell) -> str:
    """Return a value with its unit, by the end of its key."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return BOUNDS.get(value, value) if key.endswith("bound") else value
    for end, write in WRITERS.items():
        if key == end.lstrip("_") or key.endswith(end):
            return write(float(value))
    return count(value) if isinstance(value, int) or float(value).is_integer() else significant(value, 3)


def _times(value: float) -> str:
    return f"{significant(value, 3)} ×"


def _tiny(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if value < 1e-3 else significant(value, 2)


BOUNDS = {"compute": "multipliers", "link": "other GPUs", "latency": "launches"}
"""What a kernel waits for, as verdicts call it."""
WRITERS = {
    "_flops_per_byte": lambda value: f"{significant(value, 3)} FLOP/B",
    "_flops_per_s": lambda value: f"{large(value)}FLOP/s",
    "_bytes_per_s": lambda value: f"{size(value)}/s",
    "_tokens_per_s": lambda value: significant(value, 3),
    "_flops_per_token": lambda value: f"{large(value)}FLOP",
    "_bytes_per_token": size,
    "_bytes_per_sequence": size,
    "_bytes_per_element": lambda value: significant(value, 3),
    "_bytes_per_layer": lambda value: f"{count(value)} B",
    "_share": percent,
    "_ratio": _times,
    "_bytes": size,
    "_flops": lambda value: f"{large(value)}FLOP",
    "_score": lambda value: f"{value:.1f}",
    "_s": lambda value: seconds(value, 3),
    "_bits": _tiny,
    "_log10": lambda value: f"{value:,.0f}",
    "_value": _tiny,
    "_value_of_draft": _tiny,
    "_deviation": _tiny,
}
"""End of a key → how its values are written; the first that fits."""
