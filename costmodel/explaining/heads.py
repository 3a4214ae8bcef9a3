"""Misunderstanding 5: what grouped heads save."""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.counts import (
    kv_elements_per_token,
)
from costmodel.architecture.types import Architecture, Attention
from costmodel.explaining.compressed import own_formulas
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.projections import index_keys, latent_formula, left_out, plain_formula, projection_flops
from costmodel.explaining.scene import MATRICES, Scene, flops_of, no_indexer, of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.waiting import bound_of
from costmodel.explaining.words import count, flop, plural, seconds, share, size, times
from costmodel.memory.blocks import stage_kv_bytes


def with_kv_heads(architecture: Architecture, group: int | None) -> Architecture:
    """Return the model with ``group`` query heads per KV head in every layer (None: one KV head for all of them).

    Latent attention becomes plain attention of the same heads: every head has K and V of its own, and what it projects from is d. Its
    indexer stays as it is.
    """
    kinds = []
    for kind in architecture.kinds:
        attention = kind.attention
        if attention.shared_kv:
            attention = replace(attention, kv_heads=1 if group is None else max(attention.query_heads // group, 1))
        elif attention.kind in ("gqa", "mla"):
            heads = 1 if group is None else max(attention.query_heads // group, 1)
            rank = attention.q_lora_rank if attention.index_heads else 0  # from which an indexer projects, either way
            attention = replace(
                attention, kind="gqa", kv_heads=heads, q_lora_rank=rank, kv_lora_rank=0, rope_head_dim=0
            )
        kinds.append(replace(kind, attention=attention))
    return replace(architecture, kinds=tuple(kinds))


def variants(scene: Scene) -> list[tuple[str, str, Scene]]:
    """Return (key, what it is, scene) of the model with one KV head per query head, as it is, and with one for all."""
    kind = _main(scene.architecture)
    heads, kv_heads = kind.query_heads, kind.kv_heads
    if kind.kind == "mla":
        return [
            ("mha", "K and V for every head (MHA)", _variant(scene, 1)),
            ("model", f"this model: one latent of {kv_elements_per_token(kind)} for all heads (MLA)", scene),
        ]
    found = [("mha", f"MHA: {heads} KV heads", _variant(scene, 1))]
    if 1 < kv_heads < heads:
        found.append(("model", f"this model, GQA: {kv_heads} KV heads", scene))
    elif kv_heads == heads and heads % 8 == 0 and heads > 8:
        found.append(("gqa", f"GQA: {heads // 8} KV heads", _variant(scene, 8)))
    found.append(("mqa", "MQA: 1 KV head", _variant(scene, None)))
    label = {heads: "mha", 1: "mqa"}.get(kv_heads)
    return [(key, f"this model, {what}" if key == label else what, made) for key, what, made in found]


def _main(architecture: Architecture) -> Attention:
    """Return the first attention of the model that keeps keys and values of every token, else its first."""
    kinds = [kind.attention for kind in architecture.kinds]
    return next((each for each in kinds if each.kind in ("gqa", "mla")), kinds[0])


def _variant(scene: Scene, group: int | None) -> Scene:
    return scene.changed(architecture=with_kv_heads(scene.architecture, group))


def _numbers(scene: Scene, most: int, streams: int) -> dict[str, Cell]:
    """Return what a variant computes, keeps and takes, of which ``most`` sequences fit; decode steps of ``streams``."""
    context = scene.context
    prompt, step = scene.prefill(context, floor=True), scene.decode(streams, context, floor=True)
    timed = scene.decode(streams, context)
    return {
        "prefill_attention_flops": flops_of(no_indexer(of(prompt, ["attention"]))),
        "decode_attention_flops": flops_of(no_indexer(of(step, ["attention"]))),
        "projection_flops_per_token": projection_flops(scene),
        "kv_bytes_per_token": stage_kv_bytes(scene.deployment, 0),
        "decode_step_s": time_of(timed),
        "decode_attention_s": time_of(of(timed, ["attention"])),
        "prefill_s": time_of(scene.prefill(scene.context)),
        "most_streams_in_kv_cache": most,
        "streams_fit": scene.streams <= most,
    }


def gqa(scene: Scene) -> Topic:
    """5. The same model with other numbers of KV heads: attention's FLOPs count query heads, the cache's bytes KV heads."""
    made = variants(scene)
    fits = [each.most_streams(scene.context) for *_, each in made]
    # one batch for all: as many as fit with every number of heads, but for those with which none does
    compared = min([scene.streams, *(most for most in fits if most)])
    found = [(key, what, _numbers(each, most, compared)) for (key, what, each), most in zip(made, fits, strict=True)]
    by = {key: numbers for key, _, numbers in found}
    mha, last = by["mha"], found[-1][2]
    own = next((numbers for _, what, numbers in found if what.startswith("this model")), last)
    shown = by.get("gqa", last) if own is mha else own
    scenes = [
        next(each for each, (*_, has) in zip(made, found, strict=True) if has is numbers)[2] for numbers in (mha, shown)
    ]
    latent = _main(scene.architecture).kind == "mla"
    fewer = _ratio(mha, shown, "kv_bytes_per_token")
    name = "Here the latent of MLA" if latent else "Grouping the query heads"
    makes = "would make" if own is mha else "makes"
    core = _ratio(shown, mha, "prefill_attention_flops")
    decode = _ratio(shown, mha, "decode_attention_flops")
    projections = _ratio(shown, mha, "projection_flops_per_token")
    saved = number(mha["projection_flops_per_token"]) - number(shown["projection_flops_per_token"])
    less = f"{flop(abs(saved))} per token {'less' if saved >= 0 else 'more'}"
    others = left_out(scene)
    indexed = _main(scene.architecture).index_heads
    if latent and core > 1:
        same = f"Attention, which works on the latent itself, even has {times(core)} the FLOPs, in the prompt and in a decode step"
    elif latent:
        same = f"A decode step, which works on the latent itself, even has {times(decode)} the FLOPs in attention"
    else:
        same = "Attention itself has exactly as many FLOPs as with K and V for every head"
    if indexed:
        same += " (its indexer, which is the same either way, not counted)"
    same += (
        f"; the projections through latents have {less}"
        if latent
        else f"; only the projections that make K and V {'would be' if own is mha else 'are'} smaller ({less})"
    )
    waits = bound_of(scene.decode(scene.streams, scene.context)) == "memory"
    slow = "Since a decode step waits for memory," if waits else "A decode step reads the cache of every sequence:"
    rows: list[dict[str, Cell]] = [{"variant": what, **numbers} for _, what, numbers in found]
    return Topic(
        number=5,
        name="gqa",
        claim="GQA reduces FLOPs.",
        verdict=f"No, it reduces the KV cache. {name} {makes} the cache {times(fewer)} smaller "
        f"({size(number(mha['kv_bytes_per_token']))} → {size(number(shown['kv_bytes_per_token']))} per token)"
        f"{_steps(scene, scenes, mha, shown, own is mha, latent)}. {same}.",
        finding=(
            f"MLA: attention's FLOPs {times(core)} in the prompt and {times(decode)} in decode, "
            if latent
            else "The same FLOPs in attention, "
        )
        + f"a KV cache {times(fewer)} smaller",
        reason=(
            _shared_heads(scene, latent, core),
            f"{slow} fewer bytes make it faster, and since the cache is smaller, more sequences fit. "
            f"{_projected(latent, projections, saved / _matrix_flops(scenes[0]), own is mha, others)}{_per_gpu(scene)}",
        ),
        numbers={
            "kv_bytes_ratio": fewer,
            "attention_flops_ratio": core,
            "decode_attention_flops_ratio": decode,
            "projection_flops_ratio": projections,
            "compared_streams": compared,
            **{f"{key}_{name}": value for key, numbers in by.items() for name, value in numbers.items()},
        },
        labels={
            "kv_bytes_ratio": "KV cache of MHA over this one's"
            if own is not mha
            else "KV cache of MHA over that of fewer heads",
            "attention_flops_ratio": "FLOPs of attention in the prompt, over MHA's",
            "decode_attention_flops_ratio": "FLOPs of attention in a decode step, over MHA's",
            "projection_flops_ratio": f"FLOPs of attention's projections (q, k, v and output{f'; without {others}' if others else ''}), "
            "over MHA's",
            "compared_streams": "streams of the decode steps below: as many as fit either way"
            if any(fits) and compared < scene.streams
            else "streams of the decode steps below",
        },
        tables=(
            table(
                "variants",
                f"The same model with other KV heads (prompt of {count(scene.context)}; decode steps of {plural(compared, 'stream')} at as "
                "many tokens)",
                {
                    "variant": "KV heads",
                    "prefill_attention_flops": "attention, prompt",
                    "decode_attention_flops": "attention, decode",
                    "projection_flops_per_token": "projections/token",
                    "kv_bytes_per_token": "KV/token",
                    "decode_step_s": "decode step",
                    "most_streams_in_kv_cache": "fit",
                    "streams_fit": f"{count(scene.streams)} fit",
                },
                rows,
            ),
        ),
        formulas=(
            "K and V for every head: attention = 2·h·(d_k + d_v)·L·(query, key) pairs; KV bytes per token = h·(d_k + d_v)·b_kv·L"
            f"{index_keys(scene)}"
            if latent
            else "attention = 4·h·d_h·L·(query, key) pairs: no h_kv in it; KV bytes per token = 2·h_kv·d_h·b_kv·L"
            + index_keys(scene),
            f"{'K and V for every head: ' * latent}projections = {plain_formula(scenes[0].architecture, _main(scenes[0].architecture))}",
            *_latent_formulas(scene, core),
            *own_formulas(scene.architecture),
        ),
        sources=(
            "Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models, EMNLP 2023, arXiv:2305.13245",
            "Shazeer, Fast Transformer Decoding: One Write-Head is All You Need, 2019, arXiv:1911.02150",
            *(("DeepSeek-AI, DeepSeek-V2 (MLA), 2024, arXiv:2405.04434",) if latent else ()),
        ),
    )


def _steps(
    scene: Scene, scenes: list[Scene], mha: dict[str, Cell], shown: dict[str, Cell], fancied: bool, latent: bool
) -> str:
    """Return what a decode step takes with and without, of a batch that fits both ways, and how many sequences fit."""
    before, after = (int(number(numbers["most_streams_in_kv_cache"])) for numbers in (mha, shown))
    fit = f"{plural(after, 'sequence')} of {count(scene.context)} tokens {'would fit' if fancied else 'fit'} instead of {count(before)}"
    both, told = min(scene.streams, before, after), ""
    if before < scene.streams:
        only = "with the latent only" if latent else "with grouped heads only"
        verb = ("would fit" if fancied else "fit") + ("s" if scene.streams == 1 and not fancied else "")
        told = f" ({plural(scene.streams, 'stream')} {verb} {only if scene.streams <= after else 'neither way'})"
    if not both:
        return f"; {fit}{told}" if after else f"; not one sequence of {count(scene.context)} tokens fits either way"
    took = [seconds(time_of(each.decode(both, scene.context))) for each in reversed(scenes)]
    return (
        f", so that a decode step of {plural(both, 'stream')} {'would take' if fancied else 'takes'} {took[0]} instead of {took[1]}, and "
        f"{fit}{told}"
    )


def _shared_heads(scene: Scene, latent: bool, core: float) -> str:
    """Return why FLOPs and bytes count different heads."""
    if not latent:
        return (
            "Attention compares every query with every key. Grouped heads share keys and values, but each query head still does all its "
            "own comparisons: the FLOPs count query heads (h), the bytes that are kept and read count KV heads (h_kv)."
        )
    kind = _main(scene.architecture)
    wide, plain = 2 * kind.kv_lora_rank + kind.rope_head_dim, kind.head_dim + kind.value_head_dim
    return (
        "Attention compares every query with every key. Here no heads are grouped: K and V of all of them are projected from one latent "
        f"of {kv_elements_per_token(kind)} elements, and only that is kept. A kernel that reads the latent itself compares every query "
        f"head with it, whose keys and values have {count(wide)} elements together instead of {count(plain)} "
        f"({times(float(wide / plain))}), {'in the prompt as in' if core > 1 else 'in'} a decode step."
    )


def _projected(latent: bool, projections: float, of_all: float, fancied: bool, others: str) -> str:
    """Return what becomes of the projections: ``projections`` of what they were, and the saved share ``of_all`` matrices."""
    alone = f" (those of {others} not counted)" if others else ""
    if latent:
        return f"Attention's projections{alone} have {times(projections)} the FLOPs that they had with K and V for every head."
    would = "would have" if fancied else "have"
    return (
        f"The projections to K and V {'would' if fancied else 'do'} shrink: those of attention (to queries, keys, values and the output) "
        f"{would} {share(projections)} of the FLOPs that they {'have' if fancied else 'would have'} with K and V for every head{alone}. "
        f"That {'would be' if fancied else 'is'} {share(of_all)} less in all matrices of the model together."
    )


def _matrix_flops(scene: Scene) -> float:
    """Return the FLOPs of one token in all matrices, on one GPU."""
    return flops_of(of(scene.decode(1, scene.context, floor=True), MATRICES))


def _latent_formulas(scene: Scene, core: float) -> list[str]:
    """Return what latent attention computes and keeps instead; nothing for other models."""
    kind = _main(scene.architecture)
    if kind.kind != "mla":
        return []
    plain, absorbed = "2·h·(d_k + d_v)·L·pairs", "2·h·(2·kv_lora_rank + rope)·L·pairs"
    where = (
        f"{absorbed}, in the prompt as in a decode step"
        if core > 1
        else f"{plain} in the prompt, {absorbed} in a decode step"
    )
    return [
        f"this model (MLA): attention = {where}; KV bytes per token = (kv_lora_rank + rope)·b_kv·L{index_keys(scene)}; projections = "
        f"{latent_formula(kind)}"
    ]


def _per_gpu(scene: Scene) -> str:
    """Return that GPUs hold KV heads more than once where there are fewer heads than GPUs."""
    tp = scene.deployment.tp
    if tp == 1 or _main(scene.architecture).kind != "gqa":
        return ""
    return f" Each of {tp} GPUs holds a KV head at least: fewer than {tp} heads make the cache of a GPU no smaller."


def _ratio(first: dict[str, Cell], second: dict[str, Cell], key: str) -> float:
    below = number(second[key])
    return number(first[key]) / below if below else 0.0
