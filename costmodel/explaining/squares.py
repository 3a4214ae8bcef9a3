"""Misunderstanding 3: what is expensive, and where attention's n² is."""

from __future__ import annotations

from costmodel.checks import MAX_TOKENS
from costmodel.explaining.batches import Batch, batch_of
from costmodel.explaining.costs import LONG, SHORT
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.formulas import equal_formula, prompt_formula
from costmodel.explaining.layers import dense, growth, looking, sights
from costmodel.explaining.scene import MATRICES, Scene, flops_of, lengths, of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.waiting import bound_of, spent
from costmodel.explaining.words import count, plural, seconds, share, significant
from costmodel.solving import largest


def quadratic(scene: Scene) -> Topic:
    """3. GPU time of a request: the prompt's matrices (∝ n) and attention (∝ n²), and its share of each decode step."""
    window = scene.architecture.max_positions or LONG
    rows = [parts(scene, tokens) for tokens in lengths(SHORT, max(window, scene.context), scene.context)]
    here = parts(scene, scene.context)
    whole = sum(number(here[key]) for key in PARTS)
    square, answer = number(here["prompt_attention_s"]), sum(number(here[key]) for key in PARTS if "answer" in key)
    overtakes, in_flops = overtaking(scene), overtaking(scene, flops=True)
    kv, launches = number(here["answer_kv_s"]), number(here["answer_launches_s"])
    batch = _batch(scene, scene.context)
    whole_prompt = dense(scene)
    what = "n²" if whole_prompt else "attention"
    passed = "all weights of the model"
    if scene.parameters.experts:
        passed = "the weights of the model, of its experts those that it chooses"
    step = scene.decode(batch.streams, scene.context)
    slow = ": bandwidth, not arithmetic" if bound_of(step) == "memory" else ""
    right = square > 0.5 * whole
    first = "Here it is" if right else "Not here"
    return Topic(
        number=3,
        name="quadratic",
        claim="It is expensive mainly because attention is O(n²).",
        verdict=f"{first}: of the GPU time of a request ({plural(scene.context, 'token')}, {count(scene.output)} of answer, "
        f"{batch.together}{', ' * bool(batch.mark)}{batch.mark}) "
        f"{'the n²' if whole_prompt else 'attention'} of the prompt is {share(square / whole)}; the answer is "
        f"{share(answer / whole)}: {_answer(scene, batch, here, whole)}. "
        f"{_asked(scene, what, overtakes, window)}.",
        finding=f"At {count(scene.context)} tokens {'the n² of attention' if whole_prompt else 'attention of the prompt'} is "
        f"{share(square / whole)} of a request's GPU time, the answer {share(answer / whole)}",
        reason=(
            f"{_square(scene)} It is computed once, on arithmetic units that are fast. Beside it every token passes "
            f"{passed}, which is linear in n {_beside(scene, overtakes)}.{_crossings(scene, overtakes, in_flops)}",
            f"The answer comes one token per step, and each step reads weights and every KV cache from memory again{slow}. Each of "
            f"{count(scene.output)} tokens of the answer costs {seconds(answer / scene.output)} of GPU time (its share of the step); each "
            f"token of the prompt {seconds((whole - answer) / scene.context)}.",
        ),
        numbers={
            "request_gpu_s": whole,
            "streams": here["streams"],
            **{key: here[key] for key in PARTS},
            "quadratic_share": square / whole,
            "answer_share": answer / whole,
            "answer_kv_share": kv / whole,
            "launches_of_answer_share": launches / answer,
            "overtakes_tokens": overtakes,
            "overtakes_in_flops_tokens": in_flops,
            "window_tokens": window,
            "longest_prompt_that_fits_tokens": longest_prompt(scene, max(window, scene.context)),
        },
        labels={
            "request_gpu_s": "GPU time of a request",
            "streams": f"streams of {count(scene.context + scene.output)} tokens that decode together: as asked for, or as many as fit"
            + ("" if batch.most else " (not one does: one alone)"),
            **PARTS,
            "prompt_attention_s": f"prompt: attention, {growth(scene)}",
            "answer_weights_s": f"answer: {_weights(scene, batch)}",
            "answer_rest_s": f"answer: {_others(scene)}",
            "quadratic_share": "share of the prompt's attention" + (", the n²" if whole_prompt else ""),
            "answer_share": "share of the answer",
            "answer_kv_share": "share of reading the KV cache for the answer",
            "launches_of_answer_share": f"launches and overheads in its decode steps, at {count(scene.context + scene.output / 2)} tokens",
            "overtakes_tokens": "prompt from which attention takes longer than the matrices",
            "overtakes_in_flops_tokens": "the same in FLOPs",
            "window_tokens": "window of the model",
            "longest_prompt_that_fits_tokens": "longest prompt, up to it, that fits into the KV cache with its answer",
        },
        tables=(
            table(
                "requests",
                f"GPU time of a request by length of its prompt ({count(scene.output)} tokens of answer"
                + (")" if all(row["fits"] for row in rows) else "; batch 1 where not one fits: alone, if it did)"),
                {
                    "prompt_tokens": "prompt",
                    "streams": "batch",
                    "fits": "fits",
                    **SHORT_PARTS,
                    **({} if whole_prompt else {"prompt_attention_s": "attention"}),
                    "quadratic_share": f"{what} share",
                },
                rows,
            ),
        ),
        formulas=(
            f"prompt = {prompt_formula(scene, 'Σ matrices 2·P_lin·n/F')}"
            + (f"; equal in FLOPs at n ≈ {equal_formula(scene)}" if whole_prompt else ""),
            "answer = output·T_decode(B, n + output/2)/B: a request's share of each step; B as asked for, or as many as fit"
            + ("" if all(row["fits"] for row in rows) else ", 1 where not one does"),
        ),
        sources=(
            "Kaplan et al., Scaling Laws for Neural Language Models, 2020, arXiv:2001.08361 (section 2.1: 2·P per token, and attention)",
            "Pope et al., Efficiently Scaling Transformer Inference, MLSys 2023, arXiv:2211.05102",
        ),
    )


def _answer(scene: Scene, batch: Batch, here: dict[str, Cell], whole: float) -> str:
    """Return what the time of the answer goes into, of the whole request; what is less than half a percent is left out."""
    names = {
        "answer_weights_s": _weights(scene, batch),
        "answer_kv_s": "reading the KV cache",
        "answer_launches_s": "launches and overheads",
        "answer_rest_s": _others(scene),
    }
    shares = {name: number(here[key]) / whole for key, name in names.items()}
    least = min(0.005, max(shares.values()))
    said = [f"{share(part)} for {name}" for name, part in shares.items() if part >= least]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _weights(scene: Scene, batch: Batch) -> str:
    """Return what the matrices of the answer's steps wait for, in words."""
    matrices = of(scene.decode(batch.streams, scene.context + scene.output / 2), MATRICES)
    if bound_of(matrices) != "compute":
        return "reading weights"
    padded = any(expert.grouped for expert in scene.parameters.experts)
    return "multiplying with weights" + (", padding included" if padded else "")


def _others(scene: Scene) -> str:
    """Return what else kernels of a step work on."""
    found = ["states of recurrent layers"] if scene.parameters.states else []
    found += ["links between GPUs"] if scene.deployment.gpus > 1 else []
    return " and ".join([", ".join(found), "small kernels"] if found else ["small kernels"])


def _asked(scene: Scene, what: str, overtakes: int | None, window: int) -> str:
    """Return where attention overtakes the matrices, as the verdict ends."""
    if overtakes is None:
        return f"In the prompt, attention never overtakes the matrices: {looking(scene)}"
    if scene.context >= overtakes:
        return f"In the prompt, {what} has overtaken the matrices, which it does from {count(overtakes)} tokens on"
    return f"In the prompt, {what} overtakes the matrices only from {count(overtakes)} tokens on" + (
        "" if overtakes <= window else f", more than the {count(window)} that the model takes"
    )


def _square(scene: Scene) -> str:
    """Return where the n² is."""
    if dense(scene):
        return "The n² is in the prompt only, where every token looks at all before it."
    found = [sight.what for sight in sights(scene)]
    if "chosen" in found:
        where = "The n² is in the prompt only, and there in the small heads of the indexer"
    elif "all" in found:
        where = "The n² is in the prompt only, and there in the layers that look at all tokens"
    else:
        where = "There is hardly an n², not even in the prompt"
    return f"{where}: {looking(scene)}."


def _beside(scene: Scene, overtakes: int | None) -> str:
    """Return how the matrices compare at the prompt that is looked at."""
    if overtakes is None:
        return "and always more"
    if scene.context >= overtakes:
        return f"and less from {count(overtakes)} tokens on, as here"
    return (
        "and much more until n is very large"
        if 4 * scene.context < overtakes
        else f"and more up to {count(overtakes - 1)} tokens"
    )


def _crossings(scene: Scene, overtakes: int | None, in_flops: int | None) -> str:
    """Return why times cross elsewhere than FLOPs: the rates of both at the crossing."""
    if overtakes is None or in_flops is None or overtakes == in_flops or overtakes <= SHORT:
        return ""
    kernels, exact = scene.prefill(overtakes), scene.prefill(overtakes, floor=True)
    rates = [
        significant(flops_of(of(exact, groups)) / time_of(of(kernels, groups)) / 1e12)
        for groups in (("attention",), ("linear", "experts"))
    ]
    return (
        f" In FLOPs they are equal at {count(in_flops)} tokens, in time at {count(overtakes)}: there the kernels of attention do "
        f"{rates[0]} TFLOP/s and those of the matrices {rates[1]}."
    )


PARTS = {
    "prompt_matrices_s": "prompt: matrices, ∝ n",
    "prompt_attention_s": "prompt: attention, ∝ n²",
    "prompt_rest_s": "prompt: the rest",
    "answer_weights_s": "answer: reading weights",
    "answer_kv_s": "answer: reading the KV cache",
    "answer_launches_s": "answer: launches and overheads",
    "answer_rest_s": "answer: the rest",
}
SHORT_PARTS = {
    "prompt_matrices_s": "matrices",
    "prompt_attention_s": "n²",
    "prompt_rest_s": "rest",
    "answer_weights_s": "answer: weights",
    "answer_kv_s": "answer: KV",
    "answer_launches_s": "launches",
    "answer_rest_s": "rest of it",
}


def parts(scene: Scene, prompt: int) -> dict[str, Cell]:
    """Return the GPU time of one request by what it goes into [s]: the prompt by kernels, the answer as in :func:`spent`.

    Its answer is one of ``scene.streams`` that decode together, or of as many as the KV cache holds at that length, if fewer; one where it
    does not hold one, and ``fits`` is false.
    """
    alone = scene.prefill(prompt)
    batch = _batch(scene, prompt)
    step = spent(scene.decode(batch.streams, prompt + scene.output / 2))
    steps = scene.output / batch.streams
    found = {
        "prompt_matrices_s": time_of(of(alone, MATRICES)),
        "prompt_attention_s": time_of(of(alone, ["attention"])),
        "answer_weights_s": steps * step["weights"],
        "answer_kv_s": steps * step["kv"],
        "answer_launches_s": steps * step["latency"],
        "answer_rest_s": steps * step["others"],
    }
    found["prompt_rest_s"] = time_of(alone) - found["prompt_matrices_s"] - found["prompt_attention_s"]
    whole = sum(found.values())
    return {
        "prompt_tokens": prompt,
        "streams": batch.streams,
        "fits": batch.most > 0,
        **found,
        "quadratic_share": found["prompt_attention_s"] / whole,
    }


def _batch(scene: Scene, prompt: int) -> Batch:
    """Return the streams that decode together after a prompt: as many as are asked for or fit; where not one fits, one alone."""
    batch = batch_of(scene, prompt + scene.output)
    return batch if batch.most else batch._replace(streams=1)


def longest_prompt(scene: Scene, most: int) -> int:
    """Return the longest prompt up to ``most`` tokens which the KV cache holds with its answer; 0 if it holds none."""

    def missing(prompt: int) -> float:
        pool = scene.pool()
        return float(pool.stream(prompt + scene.output) - pool.usable)

    return largest(missing, 0.0, 1, most) or 0


def overtaking(scene: Scene, flops: bool = False) -> int | None:
    """Return the shortest prompt whose attention takes longer (or has more FLOPs) than its layers' matrices; None if there is none."""

    def behind(tokens: int) -> float:
        operators = scene.prefill(tokens, floor=flops)
        measure = flops_of if flops else time_of
        return measure(of(operators, ["attention"])) - measure(of(operators, ("linear", "experts")))

    found = largest(behind, 0.0, SHORT, MAX_TOKENS)
    return None if found == MAX_TOKENS else SHORT if found is None else found + 1
