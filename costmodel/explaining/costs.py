"""Misunderstandings 1 and 2: long contexts and large batches."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.explaining import ruler
from costmodel.explaining.batches import batch_of
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.formulas import kept_formula, prompt_formula, read_formula
from costmodel.explaining.layers import dense, experts_of, growth, looking, sights
from costmodel.explaining.scene import MOST_STREAMS, Operators, Scene, flops_of, lengths, of, time_of
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
    again = "the whole context" if dense(scene) else f"what its layers look at ({looking(scene)})"
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
            f"attention {'with n²' if dense(scene) else growth(scene)}. Every further token of the answer reads {again} again from "
            f"memory.{_begun(scene)}",
        ),
        numbers=numbers,
        labels={
            "window_tokens": "window of the model's config",
            "context_tokens": "looked at here: 128k, or --context where that is more, within the window",
            "prefill_s": "time to prefill it, alone",
            "attention_time_share": f"share of that time in attention, {growth(scene)}",
            "attention_flops_share": "share of the FLOPs in attention",
            "decode_step_s": "time of a decode step of one such stream",
            "kv_bytes": "its KV cache, with room for its next token",
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
            f"prefill(n) = {prompt_formula(scene, 'Σ matrices 2·P·n/F')}",
            f"KV bytes, in whole blocks = {kept_formula(scene)}",
            f"decode step of one stream = (weights + read)/W, read = {read_formula(scene)}; on the calibrated rung efficiencies and "
            "overheads as well",
        ),
        sources=(
            ruler.SOURCE,
            "also: Liu et al., Lost in the Middle, TACL 2024, arXiv:2307.03172; Modarressi et al., NoLiMa, ICML 2025, arXiv:2502.05167",
        ),
    )


def _begun(scene: Scene) -> str:
    """Say that local chunks are empty at most lengths of the table; nothing for models without."""
    chunks = [sight.tokens for sight in sights(scene) if sight.what == "chunks"]
    if not chunks:
        return ""
    return (
        f" At multiples of {count(min(chunks))} tokens a local chunk is just beginning: there a decode step reads least, and just before "
        "them most. The KV cache has room for a whole chunk at any length."
    )


def _others(step: Operators, mixing: Sequence[str]) -> Operators:
    """Return the operators of a step that are neither of some groups nor experts."""
    left = set(map(id, of(step, (*mixing, "experts"))))
    return [item for item in step if id(item) not in left]


def _server(scene: Scene) -> str:
    """Return whose KV blocks are counted: by default no server may start."""
    longest, own = scene.longest_start, scene.architecture.max_positions
    if longest == 0 and own:
        return "KV blocks that vLLM has by default, of which there are too few to start"
    if longest < own:
        return f"KV blocks of a server with vLLM's defaults but for --max-model-len {longest}, without which it does not start"
    return "KV blocks of a server as it starts by default"


DIFFERENT = 0.02
"""Share of a step by which its formula is off where that is said."""


def _later(scene: Scene, limit: int, streams: int, each: float) -> str:
    """Return what a sequence more takes in batches larger than those of the means, up to all that fit; nothing where it is the same.

    Args:
        scene: model, GPU and context.
        limit: sequences that fit.
        streams: up to which ``each`` is the mean time that a sequence more takes [s].
    """
    if limit <= streams or experts_of(scene, 1) is not None:
        return ""
    first, last = (time_of(scene.decode(batch, scene.context)) for batch in (streams, limit))
    more = (last - first) / (limit - streams)
    if abs(last - first - (limit - streams) * each) <= DIFFERENT * last:
        return ""
    return f" (from {count(streams)} to the {count(limit)} that fit one more takes {seconds(more)})"


def batch_size(scene: Scene) -> Topic:
    """2. A decode step of B sequences takes t_shared + B·(t_own + t_added): tokens/s = B/T saturates while T goes on growing.

    t_own is what a sequence more adds in attention and states, t_added what it adds in all other kernels but the experts: both are means
    from one sequence to all. What one sequence needs as many do, launches for one, is shared.
    """
    context, batch = scene.context, batch_of(scene, scene.context)
    streams, most = batch.streams, batch.most
    one = time_of(scene.decode(1, context))
    limit = max(most, 1)
    double = largest(lambda streams: time_of(scene.decode(streams, context)), 2 * one, 1, MOST_STREAMS) or 1
    rows: list[dict[str, Cell]] = []
    for sequences in lengths(1, 2 ** max(limit, scene.streams, double).bit_length(), scene.streams, most, double):
        step, pool = scene.decode(sequences, context), scene.pool(sequences)
        needed, tpot = sequences * pool.stream(context), time_of(step)
        rows.append(
            {
                "streams": sequences,
                "tpot_s": tpot,
                "tokens_per_s": sequences / tpot,
                "attention_time_share": time_of(of(step, ["attention"])) / tpot,
                "kv_bytes": float(needed * pool.block_bytes[0]),
                "fits": bool(needed <= pool.usable),
            }
        )
    mixing = ("attention", "states")  # what a sequence has of its own: K and V, and states
    ends = [scene.decode(each, context) for each in (1, max(streams, 2))]
    own, added = (
        (time_of(last) - time_of(first)) / (max(streams, 2) - 1)
        for first, last in ([of(step, mixing) for step in ends], [_others(step, mixing) for step in ends])
    )
    own_memory = "KV cache and states" if scene.parameters.states else "KV cache"
    means = f"on average up to {plural(max(streams, 2), 'sequence')}"
    experts = experts_of(scene, streams)
    routed = [time_of(of(scene.decode(each, context), ["experts"])) for each in (1, streams)]
    shared, now = one - own - added - routed[0], time_of(scene.decode(streams, context))
    beside = f" ({batch.mark})" * bool(batch.mark)
    if streams > 1:
        beside = f"; {batch.said} together every {seconds(now)}"
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
        f"{seconds(one)}{beside}; from {count(double + 1)} on it "
        f"{'is' if double < most else 'would be'} more than twice as slow as alone. Here {memory}."
        + (
            f" Filling it from {half} to {limit} sequences makes {times(gain)} the tokens/s, and everyone waits {times(loss)} as long."
            if most > 1
            else ""
        ),
        finding=f"A batch ends where memory does, here at {plural(most, 'sequence')}, and slows everyone: "
        f"{seconds(one)} alone, {seconds(full)} at the end"
        if most
        else f"A batch ends where memory does: here {memory}",
        reason=(
            f"A decode step reads all weights{' but the experts' if experts else ''} once, for everybody in the batch: that part is "
            "shared, and a larger batch makes each token cheaper (weights, launches and what else takes as long for "
            f"one stream as for many{', without experts' if experts else ''}: {seconds(shared)})."
            + (
                f" Of the {count(experts.all)} routed experts of a layer it reads those that some token chose: {count(experts.per_token)} "
                f"for one stream ({seconds(routed[0])} in all layers), {significant(experts.touched)} for {count(streams)} "
                f"({seconds(routed[1])}); this part grows until all are read."
                if experts
                else ""
            ),
            f"But each sequence brings its own {own_memory}, which nobody shares: {seconds(own)} more per step and sequence at "
            f"{count(context)} tokens, and a token to be computed, {seconds(added)}, {means}. The step grows with the batch, tokens/s "
            f"approach about one per {seconds(own + added)}{_later(scene, limit, max(streams, 2), own + added)}, and the cache fills up.",
        ),
        numbers={
            "streams": streams,
            "tpot_one_s": one,
            "tpot_s": now,
            "tokens_per_s": streams / now,
            "shared_s": shared,
            **({"experts_one_s": routed[0], "experts_s": routed[1]} if experts else {}),
            "own_s": own,
            "added_s": added,
            "most_streams_in_kv_cache": most,
            "tpot_at_most_s": full if most else None,
            "at_most_tokens_per_s": limit / full if most else None,
            "most_streams_at_twice_the_tpot": double,
            "kv_cache_bytes": float(scene.pool().usable * scene.pool().block_bytes[0]),
        },
        labels={
            "streams": "streams that decode together: as asked for, or as many as fit",
            "tpot_one_s": "TPOT of one stream",
            "tpot_s": f"TPOT of {batch.said}",
            "tokens_per_s": "their tokens per second, together",
            "shared_s": f"part of a step that all share (that of one stream without its own part{' and experts' if experts else ''})",
            **(
                {
                    "experts_one_s": "experts that one stream chooses",
                    "experts_s": f"experts that {plural(streams, 'stream')} choose",
                }
                if experts
                else {}
            ),
            "own_s": f"part that each sequence adds, {means}: its own {own_memory}",
            "added_s": "what its token adds elsewhere: to matrices, "
            + ("links, " if scene.deployment.gpus > 1 else "")
            + "small kernels, overheads",
            "most_streams_in_kv_cache": "most sequences in the KV cache",
            "tpot_at_most_s": "TPOT there",
            "at_most_tokens_per_s": "tokens per second there",
            "most_streams_at_twice_the_tpot": "most sequences with at most twice the TPOT of one, whether they fit or not",
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
            f"TPOT(B) = T_decode(B) = t_shared{' + t_experts(B)' if experts else ''} + B·(t_own + t_added); "
            f"tokens/s = B/TPOT → about 1/(t_own + t_added), both means up to B = {count(max(streams, 2))}; "
            f"t_own = read/W, read = {read_formula(scene, kept_formula(scene))}",
            *(
                [
                    "t_experts(B) ∝ E·(1 − (1 − k/E)^B), the experts that B tokens touch; it waits for padded tiles where they have few"
                ]
                if experts
                else []
            ),
            f"largest B: B·⌈(n + 1)/block⌉ ≤ {_server(scene)} (costmodel plan memory); costmodel plan batch "
            "sets max_num_seqs to B as well: a smaller sampler and fewer CUDA graphs may leave room for a few more",
        ),
        sources=(
            "Pope et al., Efficiently Scaling Transformer Inference, MLSys 2023, arXiv:2211.05102 (sections 2 and 3)",
            "Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, arXiv:2309.06180",
        ),
    )
