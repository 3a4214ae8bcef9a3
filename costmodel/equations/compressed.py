"""Attention over compressed keys (DeepSeek-V4): what a query sees of them, one entry for every m tokens of its sequence.

The query at position p sees the ⌊(p + 1)/m⌋ entries that are complete, or the k of them that an indexer chooses, and beside them the last w
tokens as they are. Sums over positions rest on Σ_{t=1…n} ⌊t/m⌋ = m·F(F − 1)/2 + F·(n − m·F + 1) with F = ⌊n/m⌋.

Source: DeepSeek-V4 report, section 2.3 (CSA, m = 4 and k by the indexer; HCA, m = 128); vllm/models/deepseek_v4/sparse_mla.py,
``BuildC128ATopkMetadataKernel``: num_compressed = (position + 1) // compress_ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.equations.numerics import Value, floor, maximum, minimum


@dataclass(frozen=True, slots=True)
class Compressed:
    """Which keys a query sees: compressed ones, and a window of whole ones."""

    ratio: int
    """m [tokens per entry]."""
    window: int = 0
    """w, last tokens that are seen as they are, the query included; 0 for entries alone, which is what an indexer compares."""
    top_k: int = 0
    """k, entries that an indexer chooses; 0 for all."""

    @property
    def widest(self) -> int | None:
        """Most keys that a query sees; None for no limit."""
        return self.window + self.top_k if self.top_k else None

    def entries(self, tokens: Value) -> Value:
        """Return the entries that a query sees which is the ``tokens``-th of its sequence: min(⌊t/m⌋, k)."""
        whole = floor(tokens / self.ratio)
        return minimum(whole, self.top_k) if self.top_k else whole

    def pairs(self, tokens: Value, cached: Value) -> Value:
        """Return the (query, entry) pairs of a chunk of ``tokens`` queries after ``cached`` tokens: Σ min(⌊t/m⌋, k)."""
        return self._pairs(cached + tokens) - self._pairs(cached)

    def read(self, tokens: Value, cached: Value) -> Value:
        """Return the entries that a chunk reads: those of its first query, and those that are complete from then on.

        min(⌊(c + 1)/m⌋, k) + ⌊(c + q)/m⌋ − ⌊(c + 1)/m⌋, as in a window, which is the least that queries of one choice each can read.
        """
        first = cached + 1
        return self.entries(first) + floor((cached + tokens) / self.ratio) - floor(first / self.ratio)

    def area(self, tokens: Value) -> Value:
        """Return ∫₀ⁿ min(x/m, k) dx: N²/2m + (n − N)·k with N = min(n, m·k); the textbook's sum."""
        if not self.top_k:
            return tokens * tokens / (2 * self.ratio)
        inside = minimum(tokens, self.ratio * self.top_k)
        return inside * inside / (2 * self.ratio) + (tokens - inside) * self.top_k

    def _pairs(self, tokens: Value) -> Value:
        """Return Σ_{t=1…n} min(⌊t/m⌋, k): up to t = m·k the sum of floors, k each beyond."""
        if not self.top_k:
            return self._floors(tokens)
        full = self.ratio * self.top_k
        return self._floors(minimum(tokens, full)) + maximum(tokens - full, 0) * self.top_k

    def _floors(self, tokens: Value) -> Value:
        whole = floor(tokens / self.ratio)
        return self.ratio * whole * (whole - 1) / 2 + whole * (tokens - self.ratio * whole + 1)
