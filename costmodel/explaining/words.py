"""Numbers within sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence


def significant(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits and thousands separators: 0.0515, 5.15, 131, 1,050."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0)
    return f"{rounded:,.{min(places, 6)}f}"


def seconds(value: float) -> str:
    """Return a time with a unit that suits it: ``16.2 ms``."""
    for limit, factor, unit in ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms")):
        if value < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value)} s"


def _prefixed(value: float) -> str:
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:
            return f"{significant(value / limit)} {prefix}"
    return f"{significant(value)} "


def size(value: float) -> str:
    """Return bytes with a decimal prefix: ``131 kB``."""
    return _prefixed(value) + "B"


def flop(value: float) -> str:
    """Return FLOPs with a prefix: ``129 TFLOP``."""
    return _prefixed(value) + "FLOP"


def at_most(value: float) -> str:
    """Return the next power of ten that is not below a small number: ``1e-15``."""
    return "0" if value == 0 else f"1e{math.ceil(math.log10(value))}"


def times(value: float) -> str:
    """Return a factor: ``4.00 ×``."""
    return f"{significant(value)} ×"


def share(value: float) -> str:
    """Return a share of a whole: ``12 %``, ``0.4 %``."""
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{significant(percent, 2)} %"


def count(value: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """Return ``1 stream`` or ``32 streams``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
