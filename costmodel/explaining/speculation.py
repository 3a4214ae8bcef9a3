"""Misunderstanding 8: speculative sampling keeps the distribution; and when it pays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel.equations.parameters import AttentionKernel
from costmodel.equations.step import step_operators
from costmodel.equations.work import Work, attended_pairs, chunk_kv
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.scene import Scene, lengths, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import count, plural, seconds, share, significant, times

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

SEED = 8
VOCABULARY = 21
"""Tokens of the demonstration; odd, so that the degrees of freedom are even and the chi-squared tail is a finite sum."""
SAMPLES = 200_000
DRAFTS = (1, 2, 3, 4, 5, 7)
"""Draft tokens per pass that are looked at: k."""
ACCEPTANCE = 0.7
"""Chance that a draft token is accepted where none is given; what it is for a model, draft and text must be measured."""


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Return the mean tokens of one pass, (1 − α^(k+1))/(1 − α): accepted drafts, and one from the model itself.

    Each draft is accepted with chance α if all before it were. Source: Leviathan et al. (2023), arXiv:2211.17192, equation 1.
    """
    if acceptance == 1:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def verification_s(scene: Scene, streams: int, drafts: int) -> float:
    """Return the time of a step that verifies ``drafts`` tokens of each of ``streams`` sequences: k + 1 rows per sequence [s].

    Matrices and lm_head see streams·(k + 1) tokens. Attention reads the KV cache of a sequence once for all its rows, and multiplies for
    each of them: :func:`~costmodel.equations.work.attended_pairs` of k + 1 queries.
    """
    parameters, rows, context = scene.parameters, drafts + 1, scene.context
    kernels: list[AttentionKernel] = []
    for kernel in parameters.attention:
        read = chunk_kv(rows, context, kernel.window)
        factor = attended_pairs(rows, context, kernel.window) / read
        kernels.append(replace(kernel, flops_per_kv_token=kernel.flops_per_kv_token * factor))
    windows = parameters.windows
    work = Work(
        tokens=streams * rows,
        rows=streams * rows,
        prefills=0,
        decodes=streams,
        pairs=dict.fromkeys(windows, 0),
        prefill_kv=dict.fromkeys(windows, 0),
        decode_kv={window: streams * chunk_kv(rows, context, window) for window in windows},
    )
    return time_of(step_operators(replace(parameters, attention=tuple(kernels)), work))


def drafting_s(scene: Scene, streams: int) -> float:
    """Return the time of one draft token for each sequence by a head of one decoder layer and lm_head (EAGLE-like) [s].

    The layer is one of the model's own last kind. Source: Li et al. (2024), EAGLE, arXiv:2401.15077.
    """
    architecture = scene.architecture
    kind = architecture.kinds[architecture.pattern[-1]]
    head = replace(architecture, kinds=(kind,), pattern=(0,))
    return time_of(scene.changed(architecture=head, layer_counts=(1,)).decode(streams, scene.context))


def speculative_sample(
    target: NDArray[float64], draft: NDArray[float64], samples: int, seed: int = SEED
) -> tuple[NDArray[int64], NDArray[int64], float]:
    """Draw tokens by the rule of speculative sampling.

    A token x is drawn from the draft's distribution q and kept with chance min(1, p(x)/q(x)); else another is drawn from
    max(p − q, 0), normalised. What comes out is distributed as p, whatever q is.

    Args:
        target, draft: p and q, over the same tokens.
        samples: tokens to draw.
        seed: of the random numbers.

    Returns:
        Tokens that come out, tokens that the draft proposed, and the share that was accepted.

    Source: Leviathan et al. (2023), arXiv:2211.17192, algorithm 1 and appendix A.1; Chen et al. (2023), arXiv:2302.01318.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    proposed = generator.choice(len(draft), samples, p=draft)
    accepted = generator.random(samples) * draft[proposed] < target[proposed]
    rest = np.maximum(target - draft, 0)
    result = proposed.copy()
    if rest.sum() > 0:  # else p = q, and everything is accepted
        refused = ~accepted
        result[refused] = generator.choice(len(rest), int(refused.sum()), p=rest / rest.sum())
    return result, proposed, float(accepted.mean())


def chi_squared(tokens: NDArray[int64], distribution: NDArray[float64]) -> tuple[float, float]:
    """Return Pearson's chi-squared of drawn tokens against a distribution, and its p-value: the chance of a larger one if they are alike.

    The tail for an even number ν of degrees of freedom is e^(−x/2)·Σ_{i<ν/2} (x/2)^i/i!.
    """
    import numpy as np

    expected = distribution * len(tokens)
    statistic = float((((np.bincount(tokens, minlength=len(distribution)) - expected) ** 2) / expected).sum())
    freedom = len(distribution) - 1
    if freedom % 2:
        raise ValueError(f"{freedom} degrees of freedom are not even")
    logs = [i * math.log(statistic / 2) - math.lgamma(i + 1) - statistic / 2 for i in range(freedom // 2)]
    return statistic, min(math.fsum(math.exp(each) for each in logs), 1.0) if statistic > 0 else 1.0


def demonstration(samples: int = SAMPLES) -> dict[str, Cell]:
    """Draw tokens speculatively with a bad draft, and test whether their distribution is the model's; the draft's own are tested too."""
    import numpy as np

    generator = np.random.default_rng(SEED)
    target, draft = generator.dirichlet(np.ones(VOCABULARY)), generator.dirichlet(np.ones(VOCABULARY))
    target, draft = 0.9 * target + 0.1 / VOCABULARY, 0.9 * draft + 0.1 / VOCABULARY
    tokens, proposed, accepted = speculative_sample(target, draft, samples)
    statistic, chance = chi_squared(tokens, target)
    of_draft, chance_of_draft = chi_squared(proposed, target)
    return {
        "samples": samples,
        "vocabulary_tokens": VOCABULARY,
        "chi_squared": statistic,
        "p_value": chance,
        "chi_squared_of_draft": of_draft,
        "p_value_of_draft": chance_of_draft,
        "accepted_share": accepted,
        "expected_accepted_share": float(np.minimum(target, draft).sum()),
        "largest_deviation": float(np.abs(np.bincount(tokens, minlength=VOCABULARY) / samples - target).max()),
    }


def passes(scene: Scene, streams: int, drafts: int, acceptance: float) -> dict[str, Cell]:
    """Return what a batch gets out of ``drafts`` draft tokens per pass: TPOT = (k·draft + verification)/tokens per pass."""
    plain = time_of(scene.decode(streams, scene.context))
    verifying, drafting = verification_s(scene, streams, drafts), drafts * drafting_s(scene, streams)
    tokens = expected_tokens(acceptance, drafts)
    tpot = (verifying + drafting) / tokens
    return {
        "streams": streams,
        "draft_tokens": drafts,
        "tokens_per_pass": tokens,
        "decode_step_s": plain,
        "verification_s": verifying,
        "drafting_s": drafting,
        "tpot_s": tpot,
        "speedup_ratio": plain / tpot,
    }


def speculation(scene: Scene) -> Topic:
    """8. The rule of acceptance, tested on drawn tokens; and the speed-up of k draft tokens by batch."""
    demo = demonstration()
    chance, of_draft = number(demo["p_value"]), number(demo["p_value_of_draft"])
    most = max(scene.most_streams(scene.context), scene.streams, 2)
    batches, rows = lengths(1, most, scene.streams), []
    for streams in batches:
        rows.append(
            max((passes(scene, streams, k, ACCEPTANCE) for k in DRAFTS), key=lambda row: number(row["speedup_ratio"]))
        )
    here = max(
        (passes(scene, scene.streams, k, ACCEPTANCE) for k in DRAFTS), key=lambda row: number(row["speedup_ratio"])
    )
    curves = [passes(scene, streams, k, ACCEPTANCE) for streams in batches for k in (2, 4, 7)]
    ends = next((int(number(row["streams"])) for row in rows if number(row["speedup_ratio"]) <= 1), None)
    speedup = number(here["speedup_ratio"])
    pays = (
        f"With {plural(scene.streams, 'stream')} at {count(scene.context)} tokens, and if {share(ACCEPTANCE)} of the drafts are accepted, "
        f"{plural(int(number(here['draft_tokens'])), 'draft')} per pass give {significant(number(here['tokens_per_pass']))} tokens per "
        f"pass and {times(speedup)} the speed" + (f"; from about {ends} streams on it no longer pays" if ends else "")
        if speedup > 1
        else f"With {plural(scene.streams, 'stream')} it does not pay here: the batch is so large that more rows cost more time"
    )
    return Topic(
        number=8,
        name="speculation",
        claim="Speculative decoding changes the output.",
        verdict=f"No, it keeps the distribution of the model's tokens. Drawn just now, {count(number(demo['samples']))} tokens with a bad "
        f"draft model of which {share(number(demo['accepted_share']))} were accepted: a chi-squared test against the model's own "
        f"distribution gives p = {chance:.2g} (no difference to be seen); the same test of the draft's tokens gives p "
        f"{'< 1e-300' if of_draft < 1e-300 else f'= {of_draft:.0e}'}. What changes is speed. {pays}.",
        finding=f"Speculation keeps the distribution (p = {chance:.2g}); "
        + (f"here it is {times(speedup)} as fast" if speedup > 1 else "in so large a batch it does not pay"),
        reason=(
            "A cheap draft proposes k tokens; the model computes the probabilities of all of them in one pass. A token that the draft "
            "likes more than the model does (q > p) is kept only with chance p/q, and what is refused is drawn anew from what the draft "
            "gave too little. Both together are exactly p for every token. With greedy decoding, a draft is kept if it is the model's own "
            "choice, and the text is the same (but for rounding, as in any other batch).",
            "It is faster because a decode step waits for memory: k + 1 rows read the weights and the KV cache once, as one row does. "
            f"Here one row takes {seconds(number(here['decode_step_s']))}, {int(number(here['draft_tokens'])) + 1} rows take "
            f"{seconds(number(here['verification_s']))}. In a large batch the rows of others use up that slack.",
        ),
        numbers={**demo, "acceptance_share": ACCEPTANCE, **here, "pays_until_streams": ends},
        labels={
            "samples": "demonstration: tokens drawn",
            "vocabulary_tokens": "demonstration: vocabulary",
            "chi_squared": f"chi-squared against the model's distribution ({VOCABULARY - 1} degrees of freedom)",
            "p_value": "chance of a larger one if they are alike",
            "chi_squared_of_draft": "chi-squared of what the draft proposed",
            "p_value_of_draft": "chance of a larger one if that were alike",
            "accepted_share": "accepted drafts",
            "expected_accepted_share": "accepted drafts expected, Σ min(p, q)",
            "largest_deviation": "largest deviation of a token's frequency",
            "acceptance_share": "α assumed below: chance that a draft is accepted",
            "streams": "streams",
            "draft_tokens": "best k: draft tokens per pass",
            "tokens_per_pass": "tokens per pass",
            "decode_step_s": "decode step without",
            "verification_s": "pass of k + 1 rows per sequence",
            "drafting_s": "k draft tokens by a head of one layer",
            "tpot_s": "TPOT with",
            "speedup_ratio": "speed-up",
            "pays_until_streams": "batch at which it no longer pays",
        },
        tables=(
            table(
                "batches",
                f"Best k by batch, if {share(ACCEPTANCE)} of drafts are accepted (assumed; contexts of {count(scene.context)} tokens)",
                {
                    "streams": "batch",
                    "draft_tokens": "k",
                    "tokens_per_pass": "tokens/pass",
                    "decode_step_s": "TPOT without",
                    "verification_s": "verify",
                    "drafting_s": "draft",
                    "tpot_s": "TPOT with",
                    "speedup_ratio": "speed-up",
                },
                rows,
            ),
            table(
                "curves",
                "Speed-up by batch and k",
                {"streams": "batch", "draft_tokens": "k", "speedup_ratio": "speed-up", "tpot_s": "TPOT"},
                curves,
                shown=False,
            ),
        ),
        formulas=(
            "keep x ~ q with chance min(1, p(x)/q(x)), else draw from max(p − q, 0)/Σ: q·min(1, p/q) + max(p − q, 0) = p",
            "tokens per pass = (1 − α^(k+1))/(1 − α); TPOT = (k·t_draft + T(k + 1 rows per sequence))/tokens per pass",
        ),
        sources=(
            "Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023, arXiv:2211.17192",
            "Chen et al., Accelerating LLM Decoding with Speculative Sampling, 2023, arXiv:2302.01318; Li et al., EAGLE, arXiv:2401.15077",
        ),
    )
