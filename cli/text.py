"""Text for people: quantities with units, aligned tables, one paragraph per finding."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from costmodel.documents import LoraInfo

WIDTH = 118
"""Longest line of a paragraph."""


def seconds(value: float, digits: int = 4) -> str:
    """Return a time with ``digits`` significant digits and a unit that suits it."""
    value = _rounded(value, digits)
    if 0 < value < 1e-12:
        return f"{value:.{digits}g} s"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit and (value > 0 or unit == "µs"):
            return f"{significant(value * factor, digits)} {unit}"
    return f"{significant(value, digits)} s"


def milliseconds(value: float) -> str:
    """Return a time in milliseconds, without the unit, so that a column can be compared at a glance."""
    return significant(value * 1e3)


def significant(value: float, digits: int = 4) -> str:
    """Return a number with up to ``digits`` significant digits and thousands separators, never in scientific notation."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    rounded = _rounded(value, digits)
    places = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:,.{min(places, 6)}f}"


def _rounded(value: float, digits: int) -> float:
    """Return a number rounded to so many significant digits, so that 9.9996 is 10.00 and not 10.000."""
    return float(f"{value:.{digits - 1}e}")


def count(value: float) -> str:
    """Return a count with thousands separators."""
    return f"{value:,.0f}"


def large(value: float) -> str:
    """Return a count of parameters or FLOPs with its SI prefix: 8.03 G, 1.03 T."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {prefix}" if value < 999.5 * limit else f"{value / limit:.0f} {prefix}"
    return f"{value:.3g} "


def parameters(value: float) -> str:
    """Return a parameter count as people say it: 8.03 B, 1.03 T."""
    return large(value).replace("G", "B").strip()


def gib(value: float) -> str:
    """Return bytes in GiB (2³⁰ bytes)."""
    return f"{value / 2**30:,.2f} GiB"


def size(value: float) -> str:
    """Return bytes with a decimal prefix: 16.1 GB, 131 kB."""
    return large(value) + "B"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with two significant digits."""
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 10 else f"{significant(value, 2)} %"


def plural(number: int, noun: str, many: str = "") -> str:
    """Return ``1 stream`` or ``32 streams``."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def adapters(lora: LoraInfo) -> str:
    """Return LoRA adapters in words."""
    sharded = ", fully sharded" if lora.fully_sharded else ""
    return f"{plural(lora.adapters, 'LoRA adapter')} of rank {lora.rank}{sharded}"


def listed(names: Sequence[str]) -> str:
    """Return ``p50``, ``p50 and p99``, ``p50, p99 and max``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def wrapped(text: str) -> str:
    """Return a paragraph in lines of a width that can be read."""
    tied = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    return "\n".join(textwrap.wrap(tied, WIDTH, subsequent_indent="  ")).replace("\N{NO-BREAK SPACE}", " ")


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), left: int = 1, indent: str = "  ") -> str:
    """Return aligned columns: the first ``left`` to the left, the rest to the right; a rule under the header."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append((indent + "  ".join(cells)).rstrip())
        if header and number == 0:
            text.append(indent + "  ".join("─" * width for width in widths))
    return "\n".join(text)
