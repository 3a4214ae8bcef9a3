"""Misunderstanding 8: speculative sampling keeps the distribution; and when it pays, by :mod:`costmodel.speculation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.equations.rates import CalibratedRates
from costmodel.explaining.asking import USUAL_DRAFT
from costmodel.explaining.batches import Batch, batch_of
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.sampling import example_models, goodness_of_fit, speculative_sampling
from costmodel.explaining.scene import Scene, lengths, of
from costmodel.explaining.slack import slack
from costmodel.explaining.tables import number, table
from costmodel.explaining.waiting import bound_of
from costmodel.explaining.words import count, plural, seconds, share, significant, size, times
from costmodel.memory.engines import Beside
from costmodel.speculation.acceptance import MOST_TOKENS
from costmodel.speculation.asking import ASSUMED, MOST_TRIED, Plan, Speculation, last_that_pays, planned, speculator
from costmodel.speculation.steps import Speculator

LIKENESS = 0.4
"""How far the draft of the demonstration is like its target: a bad one."""
SEED = 8
TOKENS, SEQUENCES, PASSES = 4, 2000, 25
"""Of the demonstration: drafts per pass, sequences, and passes of each."""
MOST_CURVES = 5
"""That the figure has beside that of the best k of each batch."""
USUAL = Speculation(draft=USUAL_DRAFT)


def demonstration(sequences: int = SEQUENCES, passes: int = PASSES) -> dict[str, Cell]:
    """Sample speculatively with a bad draft, and test what comes out against the target's distribution; the draft's own tokens too."""
    import numpy as np

    target, draft = example_models(likeness=LIKENESS, seed=SEED)
    found = speculative_sampling(target, draft, TOKENS, sequences, passes, SEED)
    trusted = speculative_sampling(target, draft, TOKENS, sequences, passes, SEED, rule="trusting")
    fit, of_draft = goodness_of_fit(found.transitions, target), goodness_of_fit(trusted.transitions, target)
    chances = found.transitions / found.transitions.sum(axis=1, keepdims=True)
    return {
        "samples": found.tokens,
        "vocabulary_tokens": len(target),
        "degrees_of_freedom": fit.degrees,
        "chi_squared": fit.statistic,
        "p_value": fit.p_value,
        "chi_squared_of_draft": of_draft.statistic,
        "p_value_of_draft_log10": of_draft.log10_p_value,
        "demonstration_drafts": TOKENS,
        "demonstration_tokens_per_pass": found.accepted_length,
        "largest_deviation": float(np.abs(chances - target).max()),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """Speculation of a scene: what drafts, and its passes."""

    plan: Plan
    passes: Speculator

    def at(self, scene: Scene, streams: int, drafts: int) -> dict[str, Cell]:
        """Return what a batch gets out of ``drafts`` drafted tokens per pass."""
        plain = self.passes.plain_s(streams, scene.context)
        time = self.passes.pass_time(streams, scene.context, drafts)
        tokens = self.plan.acceptance.expected(drafts)
        tpot = time.total_s / tokens
        return {
            "streams": streams,
            "draft_tokens": drafts,
            "tokens_per_pass": tokens,
            "decode_step_s": plain,
            "verification_s": time.verify_s,
            "drafting_s": time.draft_s,
            "host_s": time.host_s,
            "tpot_s": tpot,
            "speedup_ratio": plain / tpot,
        }

    @property
    def known(self) -> list[int]:
        """Numbers of drafts that are looked at: the one that is asked for, or those of a prediction, whose acceptance is known."""
        if self.plan.tokens is not None:
            return [self.plan.tokens]
        return self.plan.acceptance.known(MOST_TRIED) or self.plan.acceptance.known(MOST_TOKENS)

    def best(self, scene: Scene, streams: int) -> dict[str, Cell]:
        """Return the same for the number of drafts with the lowest TPOT."""
        return min((self.at(scene, streams, drafts) for drafts in self.known), key=lambda row: number(row["tpot_s"]))


def drafted(scene: Scene) -> Drafted:
    """Return the speculation of a scene: as asked for, else an EAGLE-3 head."""
    deployment, fitted = scene.deployment, scene.fitted
    plan = planned(scene.speculation or USUAL, deployment)
    rates = CalibratedRates(fitted) if fitted else None
    return Drafted(plan, speculator(deployment, plan, rates, fitted.engine if fitted else "vllm"))


def together(found: Drafted, scene: Scene, asked: int | None = None) -> tuple[Batch, dict[str, Cell]]:
    """Return the streams that decode together beside the draft, and what they get out of their best number of drafts.

    Fewer of them may have another best number, whose drafts take other room.

    Args:
        found: speculation.
        scene: model, GPU and context.
        asked: streams that are asked for; those of the scene by default.
    """
    streams = asked = scene.streams if asked is None else asked
    while True:
        here = found.best(scene, streams)
        batch = batch_of(scene, scene.context, beside_of(found, here), "beside the draft")
        if not 0 < batch.most < streams:
            return batch._replace(streams=streams, asked=asked), here
        streams = batch.most


def beside_of(found: Drafted, row: dict[str, Cell]) -> Beside:
    """Return what the drafts of a row take beside the model."""
    return found.plan.beside(int(number(row["draft_tokens"])))


def fitting(found: Drafted, scene: Scene) -> tuple[int, int]:
    """Return how many sequences fit beside the draft, each batch with its best number of drafts, and that number; 0 if not one fits."""
    most = max(scene.most_streams(scene.context, found.plan.beside(drafts)) for drafts in found.known)
    batch, last = together(found, scene, max(most, 1))
    return (batch.streams if batch.most else 0), int(number(last["draft_tokens"]))


def _spare(scene: Scene, streams: int) -> str:
    """Return what more rows find to spare in a decode step, by what its kernels wait for most of the time."""
    waits = "A decode step of one row waits for"
    return {
        "memory": f"{waits} memory most of the time, and so has multipliers to spare.",
        "compute": f"{waits} the multipliers most of the time (costmodel explain decode-bound): more rows are of use only where they "
        "take the place of padding.",
        "link": f"{waits} other GPUs most of the time, which get more to send.",
        "latency": f"{waits} launches and overheads most of the time, which more rows hardly change.",
    }[bound_of(scene.decode(streams, scene.context))]


def _length(rate: float | None) -> str:
    """Return the formula of the tokens of a pass."""
    return "k + 1, as all drafts are accepted (α = 1)" if rate == 1 else "(1 − α^(k+1))/(1 − α)"


def _mixed(scene: Scene) -> bool:
    """Tell whether the model is a mixture of experts."""
    return bool(of(scene.decode(1, scene.context), ["experts"]))


def memory_beside(scene: Scene, found: Drafted, drafts: int, most: int, alone: int) -> str:
    """Return why fewer sequences fit beside the draft than without it: what it takes, and what that leaves.

    Args:
        scene: model, GPU and context.
        found: speculation.
        drafts: drafted tokens per pass.
        most, alone: sequences that fit beside the draft, and without it.
    """
    if most == alone:
        return ""
    beside = found.plan.beside(drafts)
    pools = scene.pool(max(alone, 1)), scene.pool(max(most, 1), beside)
    usable, each = [int(pool.usable) for pool in pools], [int(pool.stream(scene.context)) for pool in pools]
    sizes = [size(float(pool.block_bytes[-1])) for pool in pools]
    of_size = ["", ""] if sizes[0] == sizes[1] else [f" of {text}" for text in sizes]
    taken = [f"weights of {size(beside.weights)}"] if beside.weights else []
    taken += [f"{size(beside.kv_per_token)} of K and V per token"] if beside.kv_per_token else []
    takes = f"The draft takes {' and '.join(taken)}. That leaves" if taken else "There are"
    many = f"{count(each[1])} of them" + (" either way" if each[0] == each[1] else f" instead of {count(each[0])}")
    why = "it has room for its drafts"
    if scene.floor.states:
        why = f"recurrent layers keep a state after each of {plural(drafts, 'drafted token')}"
    larger = ""
    if of_size[0]:
        larger = " A block is larger, as it holds the draft's K and V too."
        if scene.floor.states:
            larger = " A block is larger: it must hold a recurrent layer's state, which grows with the drafts" + (
                ", and it holds the draft's K and V too." if beside.kv_per_token else "."
            )
    with_k = f" (k = {drafts})" if found.plan.tokens is None else ""
    return (
        f"Memory: {plural(most, 'sequence')} of {count(scene.context)} tokens {'fits' if most == 1 else 'fit'} beside the draft{with_k}, "
        f"{count(alone)} without it. {takes} {count(usable[1])} KV blocks{of_size[1]} instead of {count(usable[0])}{of_size[0]}, and a "
        f"sequence takes {many}{'' if each[0] == each[1] else f' ({why})'}.{larger}"
    )


def shown_drafts(rows: Sequence[Mapping[str, Cell]], known: Sequence[int]) -> list[int]:
    """Return the numbers of drafts whose curves are drawn: those that are the best of some batch, evenly chosen where they are many.

    Where there is but one, the fewest and the most that are looked at are beside it.
    """
    best = sorted({int(number(row["draft_tokens"])) for row in rows})
    if len(best) == 1:
        return sorted({*best, known[0], known[-1]})
    last = len(best) - 1
    return (
        best if last < MOST_CURVES else [best[round(place * last / (MOST_CURVES - 1))] for place in range(MOST_CURVES)]
    )


def speculation(scene: Scene) -> Topic:
    """8. The rule of acceptance, tested on drawn tokens; and the speed-up of k drafted tokens by batch."""
    demo, found = demonstration(), drafted(scene)
    chance, of_draft = number(demo["p_value"]), number(demo["p_value_of_draft_log10"])
    batch, here = together(found, scene)
    drafts, length = int(number(here["draft_tokens"])), number(here["tokens_per_pass"])
    most, last = fitting(found, scene)  # what a batch takes depends on its k
    alone = scene.most_streams(scene.context)
    memory = memory_beside(scene, found, last, most, alone)
    batches = lengths(1, max(most, scene.streams), scene.streams, most)
    best = [found.best(scene, streams) for streams in batches]
    rows: list[dict[str, Cell]] = [
        {**row, "fits": number(row["streams"]) <= scene.most_streams(scene.context, beside_of(found, row))}
        for row in best
    ]
    curves = [found.at(scene, streams, drafts) for streams in batches for drafts in shown_drafts(rows, found.known)]
    ends = last_that_pays(
        lambda batch: number(found.best(scene, batch)["speedup_ratio"]) > 1, max(most, 1)
    )  # of what fits
    speedup, acceptance = number(here["speedup_ratio"]), found.plan.acceptance
    if acceptance.rate is not None:
        accepted = f"if {share(acceptance.rate)} of the drafts are accepted" + (
            ", which is assumed" if acceptance.assumed else ""
        )
    else:
        accepted = "as many being accepted as were measured"
    streams = batch.said
    if ends:
        again = any(row["fits"] and number(row["streams"]) > ends and number(row["speedup_ratio"]) > 1 for row in rows)
        limit = f"; beyond {plural(ends, 'stream')} they {'do not always' if again else 'no longer'} pay"
    else:
        limit = f"; all {most:,} that fit still gain" if ends is None and most > batch.streams else ""
        limit += ", each batch with its best k" if limit and found.plan.tokens is None else ""
    pays = (
        f"With {streams} at {count(scene.context)} tokens, and {accepted}, {plural(drafts, 'draft')} per pass ({found.plan.draft.name}) "
        f"{'give' if drafts > 1 else 'gives'} {significant(length)} tokens per pass and {times(speedup)} the speed{limit}"
        if speedup > 1
        else f"With {streams} at {count(scene.context)} tokens it does not pay here: more rows and the drafts cost more time than they save"
    )
    host = found.passes.host
    return Topic(
        number=8,
        name="speculation",
        claim="Speculative decoding changes the output.",
        verdict=f"No, it keeps the distribution of the model's tokens. Drawn just now, {count(number(demo['samples']))} tokens with a bad "
        f"draft ({significant(number(demo['demonstration_tokens_per_pass']))} tokens per pass of at most {TOKENS + 1}): a chi-squared test "
        f"against the model's own distribution gives p = {chance:.2g} (no difference to be seen); the same test of the draft's tokens "
        f"gives p = 10^−{count(-of_draft)}. What changes is speed. {pays}.",
        finding=f"Speculation keeps the distribution (p = {chance:.2g}); "
        + (f"{batch.brief}: {times(speedup)} as fast" if speedup > 1 else "here it does not pay"),
        reason=(
            "A cheap draft proposes k tokens; the model computes the probabilities of all of them in one pass. A token that the draft "
            "likes more than the model does (q > p) is kept only with chance p/q, and what is refused is drawn anew from what the draft "
            "gave too little. Both together are exactly p for every token. With greedy decoding, a draft is kept if it is the model's own "
            "choice, and the text is the same (but for rounding, as in any other batch).",
            "It can be faster as long as k + 1 rows of a sequence take hardly longer than one: they read "
            + ("the weights" if not _mixed(scene) else "the weights (but for experts: other rows choose others)")
            + f" and its K and V once, as one row does. {_spare(scene, batch.streams)} "
            f"Here one row of each takes {seconds(number(here['decode_step_s']))}, {drafts + 1} rows take "
            f"{seconds(number(here['verification_s']))}."
            + (" " + slack([row for row in rows if row["fits"]], scene) if most > 1 else ""),
            *([memory] if memory else []),
        ),
        numbers={
            **demo,
            "draft": found.plan.draft.name,
            "acceptance_share": acceptance.rate,
            "acceptance_assumed": bool(acceptance.assumed),
            **here,
            "most_streams_in_kv_cache": most,
            "most_streams_without_draft": alone,
            "pays_until_streams": most if ends is None else ends,
        },
        labels={
            "samples": "demonstration: tokens drawn",
            "vocabulary_tokens": "demonstration: vocabulary",
            "demonstration_drafts": "demonstration: drafts per pass",
            "demonstration_tokens_per_pass": "demonstration: tokens per pass",
            "degrees_of_freedom": "degrees of freedom of the test",
            "chi_squared": "chi-squared against the model's distribution",
            "p_value": "chance of a larger one if they are alike",
            "chi_squared_of_draft": "chi-squared of what the draft proposed",
            "p_value_of_draft_log10": "log10 of the chance of a larger one if that were alike",
            "largest_deviation": "largest deviation of a token's frequency after another",
            "draft": "what drafts",
            "acceptance_share": "α: chance that a draft is accepted if those before it were",
            "acceptance_assumed": "α is an assumption, neither measured nor given",
            "streams": "streams",
            "draft_tokens": "k: drafts per pass" + ("" if found.plan.tokens else ", the best number"),
            "tokens_per_pass": "tokens per pass",
            "decode_step_s": "TPOT (time of a token) without: a decode step",
            "verification_s": "verify: step of k + 1 rows per sequence",
            "drafting_s": "draft: kernels of k drafts",
            "host_s": "host: what the engine's CPU adds to a pass",
            "tpot_s": "TPOT with: a pass over its tokens",
            "speedup_ratio": "speed-up",
            "most_streams_in_kv_cache": "most sequences in the KV cache beside the draft"
            + ("" if found.plan.tokens else ", with their best k"),
            "most_streams_without_draft": "most without it",
            "pays_until_streams": "largest batch that fits for which "
            + (f"{plural(drafts, 'draft')} pay" if found.plan.tokens else "drafts pay, each batch with its best k"),
        },
        tables=(
            table(
                "batches",
                f"{'Speed-up' if found.plan.tokens else 'Best k'} by batch, {accepted} (contexts of {count(scene.context)} tokens)",
                {
                    "streams": "batch",
                    "draft_tokens": "k",
                    "tokens_per_pass": "tokens/pass",
                    "decode_step_s": "TPOT without",
                    "verification_s": "verify",
                    "drafting_s": "draft",
                    "host_s": "host",
                    "tpot_s": "TPOT with",
                    "speedup_ratio": "speed-up",
                    "fits": "fits",
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
            f"tokens per pass = {_length(acceptance.rate)}; TPOT = (T(k + 1 rows per sequence) + k drafts + host)/tokens per pass",
            *(
                [
                    f"host = {seconds(host.verify_s)} per pass to sort out what was accepted"
                    + (
                        f" + for each of k drafts what its kernels take less than {seconds(host.pass_s)}, "
                        "the time of its launches"
                        if host.pass_s
                        else ""
                    )
                    + " (measured: docs/speculation.md)"
                ]
                if host.verify_s
                else []
            ),
        ),
        sources=(
            "Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023, arXiv:2211.17192",
            "Chen et al., Accelerating LLM Decoding with Speculative Sampling, 2023, arXiv:2302.01318",
            "Li et al., EAGLE-3: Scaling up Inference Acceleration of LLMs via Training-Time Test, 2025, arXiv:2503.01840",
            *([f"α that is assumed: {ASSUMED[found.plan.draft.method][1]}"] if acceptance.assumed else []),
        ),
    )
