"""How many tokens a pass gives: 1 + the drafted tokens that are accepted.

If every drafted token is accepted with the chance α, whatever came before, k drafts give on average::

    E(k) = 1 + α + α² + … + α^k = (1 − α^(k+1)) / (1 − α)        tokens per pass, from 1 to k + 1

(Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv:2211.17192, eq. 1). Chances that fall with the
position, as those of heads do, are given one by one: E(k) = 1 + p₁ + … + p_k, with p_i the share of passes whose first i drafts were all
accepted; or E(k) is given as it was measured. vLLM logs both: "Mean acceptance length" is E(k), "Per-position acceptance rate" are the
p_i. Its "Avg Draft acceptance rate" is (E(k) − 1)/k and is not α.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from costmodel.checks import whole
from costmodel.hardware.errors import InputError, shown

MOST_TOKENS = 64
"""Most drafted tokens per pass that are asked about."""


def expected_tokens(rate: float, tokens: int) -> float:
    """Return the tokens that a pass gives on average: (1 − α^(k+1))/(1 − α), k + 1 for α = 1.

    Args:
        rate: α, chance that a drafted token is accepted if those before it were, from 0 to 1.
        tokens: k, drafted tokens per pass.
    """
    return math.fsum(rate**position for position in range(tokens + 1))


def rate_of_length(length: float, tokens: int) -> float:
    """Return the α for which k drafts give ``length`` tokens per pass; the inverse of :func:`expected_tokens`.

    Raises:
        InputError: the length is not from 1 to k + 1.
    """
    if not 1 <= length <= tokens + 1:
        raise InputError(
            f"an accepted length of {length:g} cannot be: a pass with {tokens} drafted tokens gives from 1 to {tokens + 1} tokens "
            "(the one that every pass gives is counted)"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, tokens) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many drafted tokens are accepted, given in one of three ways; made by :func:`acceptance_of`.

    Attributes:
        rate: α.
        positions: p₁, p₂ …: share of the passes whose first i drafts were all accepted; they never rise.
        lengths: (k, E(k)) as measured, in order of k.
        assumed: nobody gave it: why it was taken, else "".
    """

    rate: float | None = None
    positions: tuple[float, ...] = ()
    lengths: tuple[tuple[int, float], ...] = ()
    assumed: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be said of it: that nobody gave it, or lengths that fall."""
        falling = (
            f"the accepted length falls from {before:g} with {fewer} drafted tokens to {after:g} with {more}; further drafts cannot make "
            "it shorter: check the measurement"
            for (fewer, before), (more, after) in pairwise(self.lengths)
            if after < before
        )
        return (*((self.assumed,) if self.assumed else ()), *falling)

    def known(self, most: int) -> list[int]:
        """Return the numbers of drafted tokens, up to ``most``, for which the accepted length is known."""
        if self.lengths:
            return [tokens for tokens, _ in self.lengths if tokens <= most]
        return list(range(1, min(most, len(self.positions) or most) + 1))

    def expected(self, tokens: int) -> float:
        """Return the tokens that a pass with ``tokens`` drafts gives on average, the one that every pass gives included.

        Raises:
            InputError: it is not known for so many.
        """
        if self.rate is not None:
            return expected_tokens(self.rate, tokens)
        if self.positions:
            if tokens > len(self.positions):
                raise InputError(
                    f"{tokens} speculative tokens, but acceptance is given for {len(self.positions)} positions; "
                    f"use --speculative-tokens {len(self.positions)} or fewer"
                )
            return 1 + math.fsum(self.positions[:tokens])
        found = dict(self.lengths).get(tokens)
        if found is None:
            nearest = min(self.lengths, key=lambda pair: abs(pair[0] - tokens))[0]
            raise InputError(
                f"no accepted length is given for {tokens} speculative tokens; the nearest is {nearest}: {dict(self.lengths)[nearest]:g}"
            )
        return found

    def chances(self, tokens: int) -> tuple[float, ...]:
        """Return, for each of ``tokens`` drafts in turn, the chance that it is accepted if those before it were.

        A measured length is taken for that of the constant α that gives it.
        """
        if self.rate is not None:
            return (self.rate,) * tokens
        if self.positions:
            self.expected(tokens)
            before = (1.0, *self.positions)
            return tuple(after / earlier if earlier else 0.0 for earlier, after in pairwise(before[: tokens + 1]))
        return (rate_of_length(self.expected(tokens), tokens),) * tokens


def acceptance_of(
    rate: float | None = None,
    positions: Sequence[float] | None = None,
    lengths: float | Mapping[int, float] | None = None,
    tokens: int | None = None,
) -> Acceptance | None:
    """Check what is said of acceptance; None where nothing is.

    Args:
        rate: α, from 0 to 1.
        positions: p₁, p₂ …, each from 0 to 1 and none above the one before.
        lengths: E(k) for ``tokens``, or a mapping k → E(k).
        tokens: k.

    Raises:
        InputError: out of range, or given in more than one way.
    """
    given = [
        name
        for name, value in (
            ("acceptance", rate),
            ("acceptance-per-position", positions),
            ("accepted-length", lengths),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} say the same thing twice; leave one of them out")
    if rate is not None:
        return Acceptance(rate=_share(rate, "acceptance"))
    if positions is not None:
        shares = tuple(_share(value, "acceptance-per-position") for value in positions)
        if not shares or any(after > before for before, after in pairwise(shares)):
            raise InputError(
                "acceptance-per-position are the shares of passes whose first 1, 2 … drafts were all accepted, so none is above the one "
                f"before; got {', '.join(f'{share:g}' for share in shares) or 'none'}"
            )
        return Acceptance(positions=shares)
    if lengths is None:
        return None
    if not isinstance(lengths, Mapping):
        if tokens is None:
            raise InputError(
                f"an accepted length of {shown(lengths)} is that of how many speculative tokens? Give --speculative-tokens, "
                "or lengths by number, e.g. 2:2.1,3:2.3"
            )
        lengths = {tokens: lengths}
    pairs = []
    for number, length in sorted(lengths.items()):
        drafted = whole(number, "speculative-tokens", 1, MOST_TOKENS)
        if isinstance(length, bool) or not isinstance(length, (int, float)):
            raise InputError(f"accepted-length must be a number, not {shown(length)}")
        rate_of_length(float(length), drafted)
        pairs.append((drafted, float(length)))
    if not pairs:
        raise InputError("accepted-length names no length; e.g. 2:2.1,3:2.3")
    return Acceptance(lengths=tuple(pairs))


def _share(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{name} must be from 0 to 1, not {shown(value)}")
    return float(value)
