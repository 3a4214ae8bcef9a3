"""Misunderstandings 1 and 2: long contexts and large batches."""

from __future__ import annotations

from costmodel.explaining import ruler
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.layers import dense, experts_of
from costmodel.explaining.scene import MOST_STREAMS, Scene, flops_of, lengths, of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import count, plural, seconds, share, significant, size, times
from costmodel.solving import largest

LONG = 131_072
"""128k, the window that the claim is about [tokens]."""
SHORT = 1_024


def long_context(scene: Scene) -> Topic:
    """1. What a window of 128k costs; what it is worth needs a measurement of quality, which is cited.

    Time of a prompt n: linear in n for the matrices, n(n + 1)/2 pairs for attention. A decode step reads n·(KV bytes per token).
    """
    window = scene.architecture.max_positions or max(LONG, scene.context)
    at = min(window, max(LONG, scene.context))
    rows: list[dict[str, Cell]] = []
    for tokens in lengths(min(SHORT, max(at // 8, 1)), at, min(scene.context, at)):
        alone, step = scene.prefill(tokens), scene.decode(1, tokens)
        exact, pool = scene.prefill(tokens, floor=True), scene.pool()
        rows.append(
            {
                "context_tokens": tokens,
                "prefill_s": time_of(alone),
                "attention_time_share": time_of(of(alone, ["attention"])) / time_of(alone),
                "attention_flops_share": flops_of(of(exact, ["attention"])) / flops_of(exact),
                "decode_step_s": time_of(step),
                "kv_bytes": float(pool.stream(tokens) * pool.block_bytes[0]),
                "sequences_that_fit": scene.most_streams(tokens),
            }
        )
    short, long = rows[0], rows[-1]
    grown = number(long["prefill_s"]) / number(short["prefill_s"])
    fits = int(number(long["sequences_that_fit"]))
    measured = ruler.measured_of(scene.architecture.name)
    numbers: dict[str, Cell] = {
        "window_tokens": window,
        **{key: long[key] for key in long},
        "prefill_ratio": grown,
        "length_ratio": at / number(short["context_tokens"]),
        "decode_step_short_s": short["decode_step_s"],
        "measured_effective_tokens": measured.effective if measured else None,
        "listed_effective_tokens": measured.listed if measured else None,
        "kv_cache_bytes": float(scene.pool().usable * scene.pool().block_bytes[0]),
    }
    cut = f", the whole window and not the {count(scene.context)} that were asked for," if scene.context > at else ""
    room = (
        f"{plural(fits, 'such sequence')} {'fits' if fits == 1 else 'fit'} into the KV cache"
        if fits
        else "not one such sequence fits"
    )
    return Topic(
        number=1,
        name="long-context",
        claim="128k of context means 128k that work well.",
        verdict=f"{ruler.effective_context(scene.architecture.name, window)} And all "
        f"of it is paid for: {count(at)} tokens{cut} take {seconds(number(long['prefill_s']))} to prefill "
        f"({share(number(long['attention_time_share']))} of it attention) and {size(number(long['kv_bytes']))} of KV cache; {room}.",
        finding=f"A context of {count(at)} tokens is paid for in full: {seconds(number(long['prefill_s']))} of prefill, "
        f"{size(number(long['kv_bytes']))} of KV cache",
        reason=(
            "The length that a model accepts is how many positions it was trained or extended to encode. How well it finds and "
            "combines what stands there is another matter, which only tests of the answers show; no cost model can. RULER has 13 such "
            "tasks: to find, trace, add up and answer. Effective is, by its measure, the longest context at which a model scores at "
            f"least {ruler.THRESHOLD}, as Llama-2-7B does at 4k tokens; nothing longer than {count(ruler.LONGEST)} tokens was tested.",
            f"The cost is certain. From {count(number(short['context_tokens']))} to {count(at)} tokens the prompt is "
            f"{times(at / number(short['context_tokens']))} as long and its prefill takes {times(grown)} as long: matrices grow with n, "
            "attention with n². Every further token of the answer reads the whole context again from memory.",
        ),
        numbers=numbers,
        labels={
            "window_tokens": "window of the model's config",
            "context_tokens": "looked at here: 128k, or --context where that is more, within the window",
            "prefill_s": "time to prefill it, alone",
            "attention_time_share": "share of that time in attention",
            "attention_flops_share": "share of the FLOPs in attention",
            "decode_step_s": "time of a decode step of one such stream",
            "kv_bytes": "its KV cache",
            "sequences_that_fit": "sequences of that length in the KV cache",
            "prefill_ratio": f"prefill time over that of {number(short['context_tokens']):,.0f} tokens",
            "length_ratio": "length over that",
            "decode_step_short_s": f"decode step of one stream at {number(short['context_tokens']):,.0f} tokens",
            "measured_effective_tokens": f"effective context: score of RULER of at least {ruler.THRESHOLD}",
            "listed_effective_tokens": "the same, as the README of RULER lists it",
            "kv_cache_bytes": "KV cache of a GPU",
        },
        tables=(
            table(
                "lengths",
                "What a context costs (one sequence; attention: its share of the prefill's time, and of its FLOPs)",
                {
                    "context_tokens": "tokens",
                    "prefill_s": "prefill",
                    "attention_time_share": "attention: time",
                    "attention_flops_share": "attention: FLOPs",
                    "decode_step_s": "decode step",
                    "kv_bytes": "KV cache",
                    "sequences_that_fit": "sequences that fit",
                },
                rows,
            ),
            table(
                "measured",
                f"Effective context, as measured (RULER; {count(ruler.LONGEST)} is the longest that was tested)",
                {
                    "model": "model",
                    "claimed_tokens": "claimed",
                    "effective_tokens": f"score ≥ {ruler.THRESHOLD} up to",
                    "listed_tokens": "README lists",
                    "score": "score at 128k",
                },
                [
                    {
                        "model": item.name,
                        "claimed_tokens": item.claimed,
                        "effective_tokens": item.effective,
                        "listed_tokens": item.listed,
                        "score": item.scores[-1],
                    }
                    for item in ruler.MEASURED
                ],
            ),
        ),
        formulas=(
            "prefill(n) = Σ matrices 2·P·n/F + 4·h·d_h·L·n(n + 1)/2/F; KV bytes = n·2·h_kv·d_h·b_kv·L, in whole blocks",
            "decode step of one stream = (weights + n·KV bytes per token)/W; efficiencies and overheads on the calibrated rung",
        ),
        sources=(
            ruler.SOURCE,
            "also: Liu et al., Lost in the Middle, TACL 2024, arXiv:2307.03172; Modarressi et al., NoLiMa, ICML 2025, arXiv:2502.05167",
        ),
    )


def batch_size(scene: Scene) -> Topic:
    """2. A decode step of B sequences takes t_shared + B·t_own: tokens/s = B/T saturates at 1/t_own while T goes on growing."""
    context, most = scene.context, scene.most_streams(scene.context)
    one = time_of(scene.decode(1, context))
    limit = max(most, 1)
    double = largest(lambda streams: time_of(scene.decode(streams, context)), 2 * one, 1, MOST_STREAMS) or 1
    rows: list[dict[str, Cell]] = []
    for streams in lengths(1, 2 ** max(limit, scene.streams, double).bit_length(), scene.streams, most, double):
        step, pool = scene.decode(streams, context), scene.pool(streams)
        needed, tpot = streams * pool.stream(context), time_of(step)
        rows.append(
            {
                "streams": streams,
                "tpot_s": tpot,
                "tokens_per_s": streams / tpot,
                "attention_time_share": time_of(of(step, ["attention"])) / tpot,
                "kv_bytes": float(needed * pool.block_bytes[0]),
                "fits": bool(needed <= pool.usable),
            }
        )
    mixing = ("attention", "states")  # what a sequence has of its own: K and V, and states
    own = time_of(of(scene.decode(scene.streams, context), mixing)) / scene.streams
    own_memory = "KV cache and states" if scene.parameters.states else "KV cache"
    alone, experts = scene.decode(1, context), experts_of(scene, scene.streams)
    shared = one - time_of(of(alone, (*mixing, "experts")))
    routed = [time_of(of(step, ["experts"])) for step in (alone, scene.decode(scene.streams, context))]
    now = time_of(scene.decode(scene.streams, context))
    full, half = time_of(scene.decode(limit, context)), max(limit // 2, 1)
    before = time_of(scene.decode(half, context))
    gain, loss = limit / full / (half / before), full / before
    memory = (
        f"the KV cache holds {plural(most, 'sequence')} of {count(context)} tokens and not one more"
        if most
        else f"not one sequence of {count(context)} tokens fits beside the weights"
    )
    return Topic(
        number=2,
        name="batch-size",
        claim="The bigger the batch, the better.",
        verdict=f"Only up to two limits: every reader's TPOT, and the memory for the KV cache. Alone, a stream gets a token every "
        f"{seconds(one)}; {scene.streams} together every {seconds(now)}; from {count(double + 1)} on it is more than twice as slow as "
        f"alone. Here {memory}."
        + (
            f" Filling it from {half} to {limit} sequences makes {times(gain)} the tokens/s, and everyone waits {times(loss)} as long."
            if most > 1
            else ""
        ),
        finding=f"A batch ends where memory does, here at {plural(most, 'sequence')}, and slows everyone: "
        f"{seconds(one)} alone, {seconds(full)} at the end",
        reason=(
            f"A decode step reads all weights{' but the experts' if experts else ''} once, for everybody in the batch: that part is "
            "shared, and a larger batch makes each token cheaper (weights and all that does not grow with "
            f"contexts{', without experts' if experts else ''}: {seconds(shared)})."
            + (
                f" Of the {count(experts.all)} routed experts of a layer it reads those that some token chose: {count(experts.per_token)} "
                f"for one stream ({seconds(routed[0])} in all layers), {significant(experts.touched)} for {count(scene.streams)} "
                f"({seconds(routed[1])}); this part grows until all are read."
                if experts
                else ""
            ),
            f"But each sequence brings its own {own_memory}, which nobody shares: {seconds(own)} more per step and sequence at "
            f"{count(context)} tokens. The step grows with the batch, tokens/s approach one per {seconds(own)}, and the cache fills up.",
        ),
        numbers={
            "tpot_one_s": one,
            "tpot_s": now,
            "tokens_per_s": scene.streams / now,
            "shared_s": shared,
            **({"experts_one_s": routed[0], "experts_s": routed[1]} if experts else {}),
            "own_s": own,
            "most_streams_in_kv_cache": most,
            "tpot_at_most_s": full if most else None,
            "at_most_tokens_per_s": limit / full if most else None,
            "most_streams_at_twice_the_tpot": double,
            "kv_cache_bytes": float(scene.pool().usable * scene.pool().block_bytes[0]),
        },
        labels={
            "tpot_one_s": "TPOT of one stream",
            "tpot_s": f"TPOT of {plural(scene.streams, 'stream')}",
            "tokens_per_s": "their tokens per second, together",
            "shared_s": f"part of a step that all share (one stream, attention{' and experts' if experts else ''} left out)",
            **(
                {
                    "experts_one_s": "experts that one stream chooses",
                    "experts_s": f"experts that {plural(scene.streams, 'stream')} choose",
                }
                if experts
                else {}
            ),
            "own_s": "part that each sequence adds: its own " + own_memory,
            "most_streams_in_kv_cache": "most sequences in the KV cache",
            "tpot_at_most_s": "TPOT there",
            "at_most_tokens_per_s": "tokens per second there",
            "most_streams_at_twice_the_tpot": "most sequences with at most twice the TPOT of one",
            "kv_cache_bytes": "KV cache of a GPU",
        },
        tables=(
            table(
                "batches",
                f"Decode steps at {count(context)} tokens of context",
                {
                    "streams": "batch",
                    "tpot_s": "TPOT",
                    "tokens_per_s": "tokens/s",
                    "attention_time_share": "in attention",
                    "kv_bytes": "KV cache",
                    "fits": "fits",
                },
                rows,
            ),
        ),
        formulas=(
            f"TPOT(B) = T_decode(B) ≈ t_shared{' + t_experts(B)' if experts else ''} + B·t_own; tokens/s = B/TPOT → 1/t_own; t_own = "
            + (
                "n·KV bytes per token/W"
                if dense(scene)
                else "Σ layers (what they look at)·KV bytes per token and layer/W"
            )
            + (" + states/W" if scene.parameters.states else ""),
            *(
                [
                    "t_experts(B) ∝ E·(1 − (1 − k/E)^B), the experts that B tokens touch; it waits for padded tiles where they have few"
                ]
                if experts
                else []
            ),
            "largest B: B·⌈(n + 1)/block⌉ ≤ KV blocks of a server as it starts by default (costmodel plan memory); costmodel plan batch "
            "sets max_num_seqs to B as well: a smaller sampler and fewer CUDA graphs may leave room for a few more",
        ),
        sources=(
            "Pope et al., Efficiently Scaling Transformer Inference, MLSys 2023, arXiv:2211.05102 (sections 2 and 3)",
            "Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, arXiv:2309.06180",
        ),
    )
