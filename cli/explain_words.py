"""What the words of explanations mean, for those that an answer uses."""

from __future__ import annotations

import re

WORDS = {
    "prefill": (
        r"\bprefills?\b",
        "computing a prompt, many of its tokens at once; it ends with the first token of the answer",
    ),
    "decode step": (
        r"\bdecode steps?\b|\bdecode\b",
        "one pass through the model that gives every stream one more token",
    ),
    "stream": (r"\bstreams?\b", "a sequence that is being answered; all of them share each step"),
    "KV cache": (
        r"\bcache\b|\bKV blocks?\b",
        "memory of the GPU that keeps keys (K) and values (V) of all tokens so far",
    ),
    "block": (
        r"\bblocks?\b",
        "piece in which the KV cache is handed out: room for a fixed number of tokens, 16 in most models",
    ),
    "tile": (r"\btiles?\b|\btiled\b", "part of a matrix that is small enough for the fast memory on the chip"),
    "TTFT": (r"\bTTFT\b", "time to first token: from sending a request to the first token of its answer"),
    "TPOT": (r"\bTPOT\b", "time per output token: mean time between the tokens of an answer after its first"),
    "calibrated rung": (
        r"\bcalibrated rung\b",
        "times with efficiencies and overheads fitted to measurements; on the roofline rung they are those of the datasheet",
    ),
    "roofline rung": (
        r"\broofline rung\b",
        "times at the datasheet's rates, which nothing can beat; nothing is fitted",
    ),
    "letters": (
        r"·L\b|\bd_h\b|\bh_kv\b|\bP·n|\bB/TPOT\b|\bb_w\b",
        "n tokens, B streams, L layers, P weights (P_lin of the layers), F FLOPs and W bytes per second of the GPU; h query heads, h_kv "
        "KV heads, d_h elements of a head (d_k of a key, d_v of a value), b bytes of an element (b_w of a weight, b_kv in the cache); of a "
        "latent, r elements and d_r of the rotary part; h_i heads of d_i elements of an indexer; E experts, of which a token chooses k",
    ),
}
"""Word → where it is used (regular expression), and what it means."""


def words_in(text: str) -> dict[str, str]:
    """Return the words that a text uses, in the order of :data:`WORDS`, and what they mean."""
    flat = " ".join(text.split())
    return {word: meaning for word, (pattern, meaning) in WORDS.items() if re.search(pattern, flat)}
