"""The speculation part of ``costmodel.prediction/1``. All quantities in SI units; keys never change (docs/json.md)."""

from __future__ import annotations

from typing import Literal

from costmodel.hardware.profile import Frozen

Method = Literal["ngram", "eagle", "eagle3", "mtp", "model"]


class SpeculationRow(Frozen):
    """Speculation with one number of drafted tokens."""

    tokens: int
    """k, drafted tokens per pass."""
    accepted_length: float
    """Tokens that a pass gives on average, the one that every pass gives included."""
    pass_s: float
    """From one bundle of tokens to the next."""
    tpot_s: float
    """pass_s ÷ accepted_length."""
    speedup: float
    """Plain decode step ÷ tpot_s; below 1 speculation slows decoding down."""


class SpeculationInfo(Frozen):
    """Speculative decoding of all streams, on the headline rung."""

    method: Method
    draft: str
    """Model or head that drafts."""
    tokens: int
    """k: as it was asked for, else the best."""
    acceptance: float | None
    """α, chance that a drafted token is accepted if those before it were; None where lengths or positions were given."""
    accepted_length: float
    acceptance_assumed: bool
    """Nobody gave it."""
    plain_step_s: float
    """The decode step without speculation."""
    verify_s: float
    """The target's step with k + 1 rows per stream."""
    draft_s: float
    """Kernels of the k draft passes."""
    host_s: float
    """What the engine's host adds; 0 on the roofline rung."""
    pass_s: float
    """Sum of the three: the gap between two bundles of tokens."""
    tpot_s: float
    speedup: float
    textbook_speedup: float
    """E(k)/(k·c + 1) with c the draft's first pass ÷ the plain step (arXiv:2211.17192, theorem 3.8): verifying taken to be free."""
    floor_tpot_s: float
    """tpot_s on the roofline rung."""
    best_tokens: int
    """k of the lowest TPOT; 0 where not to speculate is best."""
    best_tpot_s: float
    break_even_streams: int | None
    """Most streams at which speculation with k tokens pays; 0 where it pays at none, None where it pays at all that were tried."""
    tried_streams: int
    """The most that were tried: the engine's max_num_seqs, or the streams asked about if they are more; no more than the token budget has
    k + 1 tokens for."""
    spike_s: float | None
    """The longest step with prefill while streams speculate, draft passes included; None where the token budget has no room for one."""
    spike_chunks: int | None
    """Steps of the prompts: every stream takes k + 1 tokens of the token budget."""
    draft_weights_bytes: float
    """That each GPU holds beside the target."""
    draft_kv_bytes_per_token: float
    """That each GPU caches beside the target's."""
    by_tokens: tuple[SpeculationRow, ...]
    """For every k for which acceptance is known and the token budget has room, up to 16."""


class PrefixCacheInfo(Frozen):
    """What the prefix cache saves of the prompts' prefill, alone in a step, on the headline rung."""

    cached_tokens: int
    """Of each prompt, found in the cache: their K and V are read, not computed."""
    computed_tokens: int
    """Of each prompt: they still attend to all tokens before them."""
    prefill_s: float
    prefill_without_cache_s: float
    saved_share: float
    """1 − prefill_s/prefill_without_cache_s; less than the share of the tokens where attention counts."""
