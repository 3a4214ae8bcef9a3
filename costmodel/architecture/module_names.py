"""Matching module names against the patterns of quantisation configurations."""

from __future__ import annotations

import re
from collections.abc import Iterable


class NamePatterns:
    """A set of patterns over module names such as ``model.layers.0.self_attn.q_proj``.

    Tools write exclusions in three ways, all of which are understood:

    - a full name, a module above it, or a part of a name between dots (``lm_head``, ``model.layers.0.self_attn``,
      ``gate``): whole segments, so that ``gate`` is the router and not ``gate_proj``;
    - wildcards: ``model.layers.*.self_attn``, ``model.layers.0*``;
    - regular expressions after ``re:``, matched from the start of the name (compressed-tensors).
    """

    def __init__(self, patterns: Iterable[str]):
        self._plain: set[str] = set()
        expressions = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                expressions.append(f"(?:{pattern[3:]})")
            elif "*" in pattern or "?" in pattern:
                glob = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
                expressions.append(rf"(?:{glob}(?:\..*)?\Z)")
            else:
                self._plain.add(pattern)
        self._expression = re.compile("|".join(expressions)) if expressions else None

    def __bool__(self) -> bool:
        return bool(self._plain) or self._expression is not None

    def match(self, name: str) -> bool:
        """Return True if any pattern matches ``name``."""
        if self._expression is not None and self._expression.match(name):
            return True
        if not self._plain:
            return False
        parts = name.split(".")
        return any(
            ".".join(parts[start:stop]) in self._plain
            for start in range(len(parts))
            for stop in range(start + 1, len(parts) + 1)
        )

    def mentions_single_experts(self) -> bool:
        """Return True if a pattern may treat the experts of one layer differently."""
        text = " ".join(self._plain) + (self._expression.pattern if self._expression else "")
        return re.search(r"experts\\?\.\\?[\[(\d]", text) is not None
