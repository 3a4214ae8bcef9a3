"""Speculative sampling keeps the distribution: the algorithm on small models, and a statistical test of what it gives.

Models here are chains: a row of a matrix is the distribution of the next token after each token. The draft proposes x from q, which is
accepted with the chance min(1, p(x)/q(x)). Where it is not, a token is drawn from what p has more than q, max(p − q, 0) scaled to sum 1,
and what was drafted after it is thrown away. Where all are accepted, one more token is drawn from p. For each position then::

    P(x) = q(x)·min(1, p(x)/q(x)) + (1 − Σ min(p, q)) · max(p(x) − q(x), 0)/(1 − Σ min(p, q)) = min(p, q) + max(p − q, 0) = p(x)

and a draft is accepted with the chance α = Σ min(p, q), one less the total variation distance of the two.
Source: Leviathan et al., arXiv:2211.17192, algorithm 1 and appendix A.1; Chen et al., arXiv:2302.01318.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from costmodel.hardware.errors import InputError

Array = Any
"""A NumPy array."""
Rule = Literal["speculative", "plain", "trusting"]


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What was sampled.

    Attributes:
        transitions: [V, V] how often each token (column) came after each (row).
        passes: of all sequences together, in which the target looked at drafts.
        drafted, accepted: tokens.
    """

    transitions: Array
    passes: int
    drafted: int
    accepted: int

    @property
    def tokens(self) -> int:
        """Tokens that came out."""
        return int(self.transitions.sum())

    @property
    def accepted_length(self) -> float:
        """Tokens per pass."""
        return self.tokens / self.passes


@dataclass(frozen=True, slots=True)
class Fit:
    """Pearson's χ² of counts against a distribution."""

    statistic: float
    degrees: int
    """Degrees of freedom."""
    p_value: float
    """Chance of a statistic at least as large if the counts were drawn from the distribution; near 0 where they were not."""
    log10_p_value: float
    """Its logarithm, where it is smaller than any float."""


def example_models(vocabulary: int = 8, likeness: float = 0.7, seed: int = 0) -> tuple[Array, Array]:
    """Return a target and a draft that is like it in part: rows of q are likeness·p + (1 − likeness)·noise.

    Args:
        vocabulary: V, at least 2.
        likeness: from 0 to 1.
        seed: of both.
    """
    if vocabulary < 2 or not 0 <= likeness <= 1:
        raise InputError(f"a vocabulary of at least 2 and a likeness from 0 to 1, not {vocabulary} and {likeness:g}")
    random = np.random.default_rng(seed)
    target = random.dirichlet(np.ones(vocabulary), vocabulary)
    noise = random.dirichlet(np.ones(vocabulary), vocabulary)
    return target, likeness * target + (1 - likeness) * noise


def acceptance_chances(target: Array, draft: Array) -> Array:
    """Return α after each token: Σ min(p, q) of the rows [V]."""
    return np.minimum(_chain(target, "target"), _chain(draft, "draft")).sum(axis=1)


def speculative_sampling(
    target: Array,
    draft: Array,
    tokens: int = 4,
    sequences: int = 2000,
    passes: int = 50,
    seed: int = 0,
    rule: Rule = "speculative",
) -> Sampled:
    """Sample many sequences at once, speculatively.

    Args:
        target, draft: [V, V] distributions of the next token after each.
        tokens: k, drafts per pass.
        sequences: that are sampled, each from a token at random.
        passes: of each.
        seed: of everything.
        rule: ``speculative``; ``plain`` for the target alone, one token per pass; or, as a counterexample, ``trusting``: every draft is
            taken as it is, which gives the draft's distribution.

    Raises:
        InputError: matrices that are no chains of one vocabulary, or counts that are not above zero.
    """
    p, q = _chain(target, "target"), _chain(draft, "draft")
    if p.shape != q.shape:
        raise InputError(f"target and draft have vocabularies of {len(p)} and {len(q)} tokens; they must have the same")
    if min(tokens, sequences, passes) < 1:
        raise InputError("tokens, sequences and passes must be at least 1")
    random, size = np.random.default_rng(seed), len(p)
    last = random.integers(size, size=sequences)
    transitions = np.zeros((size, size), dtype=np.int64)
    drafted = accepted = 0
    for _ in range(passes):
        going = np.ones(sequences, dtype=bool)  # all drafts so far were accepted
        context = last.copy()
        for _ in range(0 if rule == "plain" else tokens):
            proposed = _draw(q[context], random)
            chance = np.ones(sequences)
            if rule == "speculative":
                chance = np.minimum(1, p[context, proposed] / q[context, proposed])
            taken = going & (random.random(sequences) < chance)
            drafted += sequences
            accepted += int(taken.sum())
            np.add.at(transitions, (context[taken], proposed[taken]), 1)
            refused = np.flatnonzero(going & ~taken)
            if len(refused):
                before = context[refused]
                rest = np.maximum(p[before] - q[before], 0)
                instead = _draw(rest / rest.sum(axis=1, keepdims=True), random)
                np.add.at(transitions, (before, instead), 1)
                last[refused] = instead
            context = np.where(taken, proposed, context)
            going = taken
        bonus = _draw(p[context[going]], random)
        np.add.at(transitions, (context[going], bonus), 1)
        last[going] = bonus
    return Sampled(transitions, passes * sequences, drafted, accepted)


def goodness_of_fit(transitions: Array, target: Array) -> Fit:
    """Test whether transitions were drawn from a chain: Pearson's χ² over all rows, those without counts left out.

    Given the token before, tokens of a chain are independent, so each row of V classes adds V − 1 degrees of freedom.

    Args:
        transitions: [V, V] counts.
        target: [V, V] distributions.
    """
    p = _chain(target, "target")
    counts = np.asarray(transitions, dtype=float)
    seen = counts.sum(axis=1) > 0
    expected = counts[seen].sum(axis=1, keepdims=True) * p[seen]
    possible = expected > 0
    if counts[seen][~possible].any():
        return Fit(math.inf, int(possible.sum() - seen.sum()), 0.0, -math.inf)
    statistic = float((((counts[seen] - expected) ** 2)[possible] / expected[possible]).sum())
    degrees = int(possible.sum() - seen.sum())
    tail = log_chi_square_tail(statistic, degrees)
    return Fit(statistic, degrees, math.exp(tail), tail / math.log(10))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return P(χ² ≥ statistic) with so many degrees of freedom; 0 where it is smaller than any float."""
    return math.exp(log_chi_square_tail(statistic, degrees))


def log_chi_square_tail(statistic: float, degrees: int) -> float:
    """Return ln P(χ² ≥ statistic) with so many degrees of freedom: of the regularised incomplete gamma function Q(n/2, x/2).

    By its series below the mean and by Lentz's continued fraction above it (Numerical Recipes, section 6.2), to about 1e-12.
    """
    if degrees < 1 or statistic <= 0:
        return 0.0
    a, x = degrees / 2, statistic / 2
    log_scale = a * math.log(x) - x - math.lgamma(a)
    if x < a + 1:
        term = added = 1 / a
        n = a
        while abs(term) > added * 1e-15:
            n += 1
            term *= x / n
            added += term
        below = added * math.exp(log_scale)
        return math.log1p(-below) if below < 1 else -math.inf
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        factor = -i * (i - a)
        b += 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return log_scale + math.log(fraction)


def _draw(rows: Array, random: np.random.Generator) -> Array:
    """Draw one token from each row of distributions."""
    cumulated = rows.cumsum(axis=1)
    drawn = random.random((len(rows), 1)) * cumulated[:, -1:]
    return (cumulated > drawn).argmax(axis=1)


def _chain(matrix: Array, name: str) -> Array:
    rows = np.asarray(matrix, dtype=float)
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1] or (rows < 0).any() or not np.allclose(rows.sum(axis=1), 1):
        raise InputError(f"{name} must be a square matrix whose rows are distributions that sum to 1")
    return rows
