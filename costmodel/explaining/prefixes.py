"""Misunderstanding 9: what a prefix cache keeps, and what is computed all the same."""

from __future__ import annotations

from costmodel.explaining.batches import batch_of
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.formulas import rest_formula
from costmodel.explaining.keeping import kept_of
from costmodel.explaining.scene import Scene, flops_of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import count, flop, plural, seconds, share, size

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Of the prompt that were sent before."""
USUAL = 0.9
"""Share of the prompt that is the same as before, in the verdict: a long system prompt or document and a new question."""


def found_tokens(prompt: int, same: int, block: int) -> int:
    """Return how many tokens of a prompt come from the cache if ``same`` leading ones were sent before.

    Whole blocks only, and never the last token: its output is wanted, so it is computed in any case. Source:
    vllm/v1/core/kv_cache_manager.py (``get_computed_blocks``: at most ``num_tokens − 1``).
    """
    return min(same, prompt - 1) // block * block


def served(scene: Scene, same: int, block: int) -> dict[str, Cell]:
    """Return times of a request whose ``same`` leading tokens are cached: its prompt alone, and its answer among the streams."""
    prompt, output = scene.context, scene.output
    cached = found_tokens(prompt, same, block)
    prefill = scene.prefill(prompt - cached, cached)
    step = time_of(scene.decode(batch_of(scene, prompt + output).streams, prompt + output / 2))
    return {
        "same_tokens": same,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached,
        "prefill_s": time_of(prefill),
        "prefill_flops": flops_of(scene.prefill(prompt - cached, cached, floor=True)),
        "kept_kv_bytes": kept_of(scene, cached).bytes,
        "answer_steps": output - 1,
        "answer_s": (output - 1) * step,
    }


def prefix_cache(scene: Scene) -> Topic:
    """9. A prompt of which a share is cached: prefill of the rest, and an answer that costs what it always does."""
    prompt, block = scene.context, scene.block_tokens
    batch = batch_of(scene, prompt + scene.output)
    among = f"among {batch.said}" if batch.streams > 1 else f"alone{f' ({batch.mark})' * bool(batch.mark)}"
    same = int(USUAL * prompt) if scene.cached is None else scene.cached
    parts = sorted({int(part * prompt) for part in SHARES} | {same})
    rows = [served(scene, tokens, block) for tokens in parts]
    cold, again = rows[0], rows[-1]
    warm = served(scene, same, block)
    first, after = number(cold["prefill_s"]), number(warm["prefill_s"])
    answer, repeat = number(cold["answer_s"]), number(again["prefill_s"])
    saved = number(cold["prefill_flops"]) - number(warm["prefill_flops"])
    cached, computed = number(warm["cached_tokens"]), int(number(warm["computed_tokens"]))
    states = bool(scene.floor.states)
    kept = (
        "K and V of the prefix, and the states of recurrent layers at its end," if states else "K and V of the prefix"
    )
    parts_kept = "K, V and states" if states else "K and V"
    rest = "the one token that there is" if prompt == 1 else f"all {plural(prompt, 'token')}"
    found = (
        f"No, {kept} are. If {share(same / prompt)} of a prompt of {plural(prompt, 'token')} was sent before, its "
        f"prefill takes {seconds(after)} instead of {seconds(first)} ({flop(saved)} saved, "
        f"{size(number(warm['kept_kv_bytes']))} of {parts_kept} kept for it). The other {plural(computed, 'token')} "
        f"{'is' if computed == 1 else 'are'} computed, and so is all of the answer: "
        if cached
        else f"No, {kept} are, and only whole blocks of {plural(block, 'token')}: of a prompt of {plural(prompt, 'token')} of which "
        f"{count(same)} {'was' if same == 1 else 'were'} sent before, nothing comes from the cache. {rest.capitalize()} "
        f"{'is' if prompt == 1 else 'are'} computed in {seconds(first)}, and so is all of the answer: "
    )
    drawn = (
        f"{plural(scene.output, 'token')} in {seconds(answer)} {among}, as without a cache"
        if scene.output > 1
        else "its one token ends the prefill"
    )
    return Topic(
        number=9,
        name="prefix-cache",
        claim="The answer is cached.",
        verdict=f"{found}{drawn}. The very same prompt again still takes {seconds(repeat)} and a whole answer, which may be another one.",
        finding=f"A cached prefix saves {seconds(first - after)} of {seconds(first)} of prefill, and nothing of the {seconds(answer)} "
        "of the answer"
        if cached
        else f"Whole blocks of {plural(block, 'token')} are cached: nothing of a prompt of {plural(prompt, 'token')}, and never the answer",
        reason=(
            "K and V of a token depend on the tokens before it and on nothing else, so a prompt that begins with the same tokens has the "
            "same K and V there: they are still in memory from last time. Only whole blocks from the very beginning count; one different "
            "token, and all that follows it is computed."
            + (
                " A state of a recurrent layer stands for all tokens before it at once and cannot be cut: it is of use only if it was "
                "kept where the common part ends, at the end of a block."
                if states
                else ""
            ),
            "An answer is drawn token by token, each from probabilities that the model computes: the first at the end of the prefill, "
            f"then {plural(scene.output - 1, 'decode step')} that read the weights and the KV cache, cached prefix included. What is "
            "skipped is arithmetic of the prompt, so the time to the first token is shorter; the time per token is not.",
        ),
        numbers={
            "prompt_tokens": prompt,
            "block_tokens": block,
            "streams": batch.streams,
            "sent_before_share": same / prompt,
            **warm,
            "prefill_without_s": first,
            "prefill_saved_s": first - after,
            "without_prefill_flops": cold["prefill_flops"],
            "prefill_speedup_ratio": first / after,
            "same_prompt_prefill_s": repeat,
            "same_prompt_computed_tokens": again["computed_tokens"],
        },
        labels={
            "prompt_tokens": "prompt",
            "block_tokens": "tokens of a block",
            "streams": "streams that decode together: as asked for, or as many as fit",
            "sent_before_share": "share of the prompt that was sent before",
            "same_tokens": "its tokens",
            "cached_tokens": "of these from the cache: whole blocks, never the last token",
            "computed_tokens": "computed all the same",
            "prefill_s": "prefill with the cache",
            "prefill_flops": "its FLOPs",
            "kept_kv_bytes": f"{parts_kept} that the cache keeps for it",
            "answer_steps": "decode steps of the answer, as without a cache",
            "answer_s": f"their time, {among}",
            "prefill_without_s": "prefill without the cache",
            "prefill_saved_s": "saved",
            "without_prefill_flops": "FLOPs without the cache",
            "prefill_speedup_ratio": "prefill is faster by",
            "same_prompt_prefill_s": "prefill if all of the prompt was sent before",
            "same_prompt_computed_tokens": "tokens computed even then",
        },
        tables=(
            table(
                "shares",
                f"A prompt of {plural(prompt, 'token')} by what was sent before",
                {
                    "same_tokens": "sent before",
                    "cached_tokens": "cached",
                    "computed_tokens": "computed",
                    "prefill_flops": "FLOPs",
                    "prefill_s": "prefill",
                    "answer_steps": "decode steps",
                    "answer_s": "answer",
                },
                rows,
            ),
        ),
        formulas=(
            "cached c = ⌊min(same, n − 1)/block⌋·block",
            f"prefill of q = n − c tokens after c: {rest_formula(scene)}",
            "answer = (output − 1)·T_decode(B, n + output/2), with or without; B as asked for, or as many as fit",
        ),
        sources=(
            "Zheng et al., SGLang: RadixAttention, 2023, arXiv:2312.07104; Kwon et al., PagedAttention, SOSP 2023, arXiv:2309.06180",
            "vLLM, docs/design/prefix_caching.md; vllm/v1/core/kv_cache_manager.py",
        ),
    )
