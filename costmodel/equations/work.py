"""What one engine step has to do, as the few sums that its cost depends on.

A step serves sequences i with q_i new tokens and c_i cached tokens. Prefill chunks and decoding sequences are kept apart,
because different kernels serve them. All sums are :data:`~costmodel.equations.numerics.Value`: floats, arrays or symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from costmodel.equations.compressed import Compressed
from costmodel.equations.numerics import Value, ceil, maximum, minimum, total


@dataclass(frozen=True, slots=True)
class LocalChunks:
    """Chunked local attention (Llama 4): a query at position p sees the (p mod w) + 1 tokens of its own chunk of w."""

    size: int
    """w [tokens]."""


@dataclass(frozen=True, slots=True)
class BothWays:
    """Bidirectional attention of encoders: a query sees the whole sequence, or ``side`` tokens before it and as many after it."""

    side: int | None = None
    """Tokens on either side [tokens]; None for all."""

    @property
    def backward(self) -> int | None:
        """What a query sees of itself and the tokens before it, as a window [tokens]; None for all."""
        return None if self.side is None else self.side + 1


@dataclass(frozen=True, slots=True)
class EncoderStates:
    """Cross-attention: every query of a sequence sees the E states that an encoder made of its image or audio."""

    size: Value
    """E [states]."""


Window = int | LocalChunks | BothWays | None
"""Width of a sliding window in tokens, the query itself included, local chunks, or both ways; None for full causal attention."""
OwnReach = Window | Compressed
"""What the queries of a sequence see of its own tokens: keys of them, or compressed ones."""
Reach = OwnReach | EncoderStates
"""What the queries of a sequence see: of its own tokens, or an encoder's states."""


def window_name(window: Reach) -> str:
    """Return how a window is called in names of operators and columns: ``full``, ``window_128``, ``chunks_8192``, ``both_ways``,
    ``both_ways_64``, ``compressed_4``, ``encoder``.
    """
    if window is None:
        return "full"
    if isinstance(window, Compressed):
        return f"compressed_{window.ratio}"
    if isinstance(window, EncoderStates):
        return "encoder"
    if isinstance(window, BothWays):
        return "both_ways" if window.side is None else f"both_ways_{window.side}"
    return f"chunks_{window.size}" if isinstance(window, LocalChunks) else f"window_{window}"


def seen_tokens(context: Value, window: Reach = None) -> Value:
    """Return the KV tokens that one query sees that has ``context`` tokens before it, itself included.

    c + 1; min(c + 1, w) in a sliding window; c − w·⌊c/w⌋ + 1 in local chunks. Both ways it has nothing after it yet. E states of an
    encoder. The last w of c + 1 tokens and min(⌊(c + 1)/m⌋, k) entries where keys are compressed.
    """
    if isinstance(window, Compressed):
        entries = window.entries(context + 1)
        return minimum(context + 1, window.window) + entries if window.window else entries
    if isinstance(window, BothWays):
        window = window.backward
    if window is None:
        return context + 1
    if isinstance(window, EncoderStates):
        return window.size + 0 * context
    if isinstance(window, LocalChunks):
        return context - _chunks_start(context, window.size) + 1
    return minimum(context + 1, window)


def widest(window: Reach) -> Value:
    """Return the most tokens that a query sees; None for all. Both ways 2·s + 1, its own and s tokens on either side."""
    if isinstance(window, BothWays):
        return None if window.side is None else 2 * window.side + 1
    if isinstance(window, Compressed):
        return window.widest
    return window.size if isinstance(window, LocalChunks | EncoderStates) else window


def _chunks_start(position: Value, size: int) -> Value:
    """Return where the local chunk of a position begins: w·⌊p/w⌋."""
    return -(size * ceil(-1 * position / size))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a prompt that is prefilled in one step."""

    tokens: Value
    """q, new tokens; 0 for no chunk at all."""
    cached: Value = 0
    """c, tokens of the same sequence that are in the KV cache already."""


@dataclass(frozen=True, slots=True)
class Decodes:
    """Sequences that each decode at the same context: one token, or several rows where drafted tokens are verified."""

    count: Value
    context: Value
    """Tokens in the KV cache before the step."""
    queries: Value = 1
    """New tokens of each sequence in the step: 1, or 1 + k with k drafted tokens to verify."""


@dataclass(frozen=True, slots=True)
class Work:
    """The sums of one step.

    Attributes:
        tokens: N = Σ q_i [tokens].
        rows: R, rows through lm_head: one for every sequence scheduled (also for partial chunks, as vLLM does), and one for every
            drafted token that is verified [rows].
        prefills: prefill chunks in the step.
        decodes: D, decoding sequences.
        pairs: A_w per window, attended (query, key) pairs of all prefill chunks [pairs].
        prefill_kv: C_p per window, KV tokens that the prefill chunks read, their own included [tokens].
        decode_kv: C_w per window, KV tokens that the decoding sequences read, their own included [tokens].
        decode_pairs: per window, attended (query, key) pairs of the decoding sequences; None where each has one query, so that they are
            those of ``decode_kv`` [pairs].
    """

    tokens: Value
    rows: Value
    prefills: Value
    decodes: Value
    pairs: dict[Reach, Value]
    prefill_kv: dict[Reach, Value]
    decode_kv: dict[Reach, Value]
    chunks: tuple[Chunk, ...] = field(default=(), compare=False)
    """The chunks themselves, for forms that depend on the longest of them."""
    decode_pairs: dict[Reach, Value] | None = None
    drafted: Value = 0
    """Rows of the decoding sequences beyond one each: drafted tokens that are verified [tokens]."""

    @property
    def sequences(self) -> Value:
        """Sequences in the step, however many rows each has."""
        return self.prefills + self.decodes


def attended_pairs(tokens: Value, cached: Value, window: Reach = None) -> Value:
    """Return the (query, key) pairs that a causal chunk attends: Σ_{j=1…q} min(c + j, w).

    Full attention: q·c + q(q + 1)/2. In a window w, with s = min(max(w − c, 0), q) queries that still see everything before them:
    s·c + s(s + 1)/2 + (q − s)·w. In local chunks of w the sum over positions is S(c + q) − S(c), with
    S(n) = ⌊n/w⌋·w(w + 1)/2 + r(r + 1)/2 and r = n mod w. In cross-attention q·E.

    Both ways every query also sees what comes after it: q² pairs of a whole sequence instead of q(q + 1)/2; with s tokens on either side
    the causal pairs of the window s + 1, and once more those of the chunk itself, its diagonal left out.

    Args:
        tokens: q, queries in the chunk [tokens].
        cached: c, keys before the chunk [tokens].
        window: w [tokens], local chunks, both ways, or compressed keys (:mod:`~costmodel.equations.compressed`); None for full attention.
    """
    if isinstance(window, Compressed):
        pairs = window.pairs(tokens, cached)
        return attended_pairs(tokens, cached, window.window) + pairs if window.window else pairs
    if isinstance(window, BothWays):
        back = window.backward
        return attended_pairs(tokens, cached, back) + attended_pairs(tokens, 0, back) - tokens
    if window is None:
        return tokens * cached + tokens * (tokens + 1) / 2
    if isinstance(window, EncoderStates):
        return tokens * window.size
    if isinstance(window, LocalChunks):
        return _chunked_pairs(cached + tokens, window.size) - _chunked_pairs(cached, window.size)
    growing = minimum(maximum(window - cached, 0), tokens)
    return growing * cached + growing * (growing + 1) / 2 + (tokens - growing) * window


def _chunked_pairs(tokens: Value, size: int) -> Value:
    """Return the pairs of the first n positions in local chunks: ⌊n/w⌋·w(w + 1)/2 + r(r + 1)/2."""
    start = _chunks_start(tokens, size)
    rest = tokens - start
    return start * (size + 1) / 2 + rest * (rest + 1) / 2


def chunk_kv(tokens: Value, cached: Value, window: Reach = None) -> Value:
    """Return the KV tokens that a chunk reads: c + q, min(c, w − 1) + q in a window, c mod w + q in local chunks, E; 0 for an empty one."""
    if isinstance(window, EncoderStates):
        return window.size * minimum(tokens, 1)
    if isinstance(window, Compressed):
        whole = chunk_kv(tokens, cached, window.window) if window.window else 0
        return whole + window.read(tokens, cached) * minimum(tokens, 1)
    if isinstance(window, BothWays):
        window = window.backward
    if isinstance(window, LocalChunks):
        reached = cached - _chunks_start(cached, window.size)
    else:
        reached = cached if window is None else minimum(cached, window - 1)
    return (reached + tokens) * minimum(tokens, 1)


def decode_kv(decodes: Decodes, window: Reach = None) -> Value:
    """Return the KV tokens that decoding sequences read: count·min(context + 1, w); with q queries each count·(min(context, w − 1) + q).

    The rows of one sequence share what they read: its K and V come from memory once, however many tokens are verified.
    """
    if _one_query(decodes):
        return decodes.count * seen_tokens(decodes.context, window)
    return decodes.count * chunk_kv(decodes.queries, decodes.context, window)


def _one_query(decodes: Decodes) -> bool:
    return isinstance(decodes.queries, int) and decodes.queries == 1


def longest_kv(chunks: Iterable[Chunk], window: Reach = None) -> Value:
    """Return the KV tokens that the last query of the longest chunk sees: max over chunks of min(c + q, w); 0 without chunks."""
    longest: Value = None
    for chunk in chunks:
        seen = (chunk.cached + chunk.tokens) * minimum(chunk.tokens, 1)
        if isinstance(window, EncoderStates):
            seen = window.size * minimum(chunk.tokens, 1)
        elif isinstance(window, Compressed):
            seen = seen_tokens(chunk.cached + chunk.tokens - 1, window) * minimum(chunk.tokens, 1)
        elif (width := widest(window)) is not None:
            seen = minimum(seen, width)
        longest = seen if longest is None else maximum(longest, seen)
    return 0 if longest is None else longest


def make_work(
    chunks: Sequence[Chunk] = (), decodes: Sequence[Decodes] = (), windows: Iterable[Reach] = (None,)
) -> Work:
    """Sum the work of one step.

    Args:
        chunks: prefill chunks in the step.
        decodes: groups of decoding sequences.
        windows: the windows that the model's layers have (:attr:`Parameters.windows`).

    Returns:
        The sums, with one entry per window.
    """
    prefilled = total(chunk.tokens for chunk in chunks)
    prefills = total(minimum(chunk.tokens, 1) for chunk in chunks)
    decoding = total(group.count for group in decodes)
    windows = tuple(windows)
    pairs, prefill_kv, read_kv = {}, {}, {}
    for window in windows:
        pairs[window] = total(attended_pairs(chunk.tokens, chunk.cached, window) for chunk in chunks)
        prefill_kv[window] = total(chunk_kv(chunk.tokens, chunk.cached, window) for chunk in chunks)
        read_kv[window] = total(decode_kv(group, window) for group in decodes)
    if all(map(_one_query, decodes)):
        rows = prefills + decoding
        return Work(prefilled + decoding, rows, prefills, decoding, pairs, prefill_kv, read_kv, tuple(chunks))
    verified = total(group.count * group.queries for group in decodes)
    attended = {
        window: total(group.count * attended_pairs(group.queries, group.context, window) for group in decodes)
        for window in windows
    }
    rows = prefills + verified
    drafted = verified - decoding
    return Work(
        prefilled + verified, rows, prefills, decoding, pairs, prefill_kv, read_kv, tuple(chunks), attended, drafted
    )
