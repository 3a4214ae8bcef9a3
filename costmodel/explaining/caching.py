"""Misunderstandings 5 and 6: what grouped heads save, and what is in the KV cache."""

from __future__ import annotations

from dataclasses import replace

from costmodel.architecture.counts import (
    index_bytes_per_token,
    kv_elements_per_token,
    state_bytes_per_sequence,
)
from costmodel.architecture.linears import layer_linears, query_heads_per_gpu
from costmodel.architecture.types import Architecture, Attention, StateMixer
from costmodel.equations.work import LocalChunks, Window, attended_pairs, seen_tokens, widest
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.scene import Scene, flops_of, of, time_of
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import count, flop, plural, seconds, share, significant, size, times
from costmodel.memory.blocks import stage_kv_bytes


def with_kv_heads(architecture: Architecture, group: int | None) -> Architecture:
    """Return the model with ``group`` query heads per KV head in every layer (None: one KV head for all of them).

    Latent attention becomes plain attention of the same heads: every head has K and V of its own, and what it projects from is d.
    """
    kinds = []
    for kind in architecture.kinds:
        attention = kind.attention
        if attention.kind in ("gqa", "mla"):
            heads = 1 if group is None else max(attention.query_heads // group, 1)
            attention = replace(attention, kind="gqa", kv_heads=heads, q_lora_rank=0, kv_lora_rank=0, rope_head_dim=0)
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


def _numbers(scene: Scene) -> dict[str, Cell]:
    prompt, step = scene.prefill(scene.context, floor=True), scene.decode(scene.streams, scene.context, floor=True)
    return {
        "prefill_attention_flops": flops_of(of(prompt, ["attention"])),
        "decode_attention_flops": flops_of(of(step, ["attention"])),
        "projection_flops_per_token": projection_flops(scene),
        "kv_bytes_per_token": stage_kv_bytes(scene.deployment, 0),
        "decode_step_s": time_of(scene.decode(scene.streams, scene.context)),
        "decode_attention_s": time_of(of(scene.decode(scene.streams, scene.context), ["attention"])),
        "prefill_s": time_of(scene.prefill(scene.context)),
        "most_streams_in_kv_cache": scene.most_streams(scene.context),
    }


def projection_flops(scene: Scene) -> float:
    """Return the FLOPs of one token in the projections of attention (q, k, v, latents and output), on one GPU: 2·k·m each."""
    deployment, architecture = scene.deployment, scene.architecture
    return float(
        sum(
            2 * linear.weights * layers
            for kind, layers in zip(architecture.kinds, deployment.layer_counts, strict=True)
            for linear in layer_linears(kind, architecture.hidden, deployment.tp, deployment.ep)
            if linear.group == "attention"
        )
    )


def gqa(scene: Scene) -> Topic:
    """5. The same model with other numbers of KV heads: attention's FLOPs count query heads, the cache's bytes KV heads."""
    found = [(key, what, _numbers(made)) for key, what, made in variants(scene)]
    by = {key: numbers for key, _, numbers in found}
    mha, last = by["mha"], found[-1][2]
    own = next((numbers for _, what, numbers in found if what.startswith("this model")), last)
    shown = by.get("gqa", last) if own is mha else own
    latent = _main(scene.architecture).kind == "mla"
    fewer = _ratio(mha, shown, "kv_bytes_per_token")
    name = "Here the latent of MLA" if latent else "Grouping the query heads"
    core = _ratio(shown, mha, "prefill_attention_flops")
    decode = _ratio(shown, mha, "decode_attention_flops")
    projections = _ratio(shown, mha, "projection_flops_per_token")
    saved = number(mha["projection_flops_per_token"]) - number(shown["projection_flops_per_token"])
    less = f"{flop(abs(saved))} per token {'less' if saved >= 0 else 'more'}"
    same = (
        f"A decode step, which works on the latent itself, even has {times(decode)} the FLOPs in attention; the projections through "
        f"latents have {less}"
        if latent
        else "Attention itself has exactly as many FLOPs as with K and V for every head; only the projections that make K and V are "
        f"smaller ({less})"
    )
    before, after = number(mha["most_streams_in_kv_cache"]), number(shown["most_streams_in_kv_cache"])
    fit = f" and {after:,.0f} sequences of {count(scene.context)} tokens fit instead of {before:,.0f}" if after else ""
    rows: list[dict[str, Cell]] = [{"variant": what, **numbers} for _, what, numbers in found]
    return Topic(
        number=5,
        name="gqa",
        claim="GQA reduces FLOPs.",
        verdict=f"No, it reduces the KV cache. {name} makes the cache {times(fewer)} smaller "
        f"({size(number(mha['kv_bytes_per_token']))} → {size(number(shown['kv_bytes_per_token']))} per token), so that a decode step of "
        f"{plural(scene.streams, 'stream')} takes {seconds(number(shown['decode_step_s']))} instead of "
        f"{seconds(number(mha['decode_step_s']))}{fit}. {same}.",
        finding=(f"MLA: attention's FLOPs {times(core)} in the prompt, " if latent else "The same FLOPs in attention, ")
        + f"a KV cache {times(fewer)} smaller",
        reason=(
            "Attention compares every query with every key. Grouped heads share keys and values, but each query head still does all its "
            "own comparisons: the FLOPs count query heads (h), the bytes that are kept and read count KV heads (h_kv).",
            "Since a decode step waits for memory, fewer bytes make it faster, and since the cache is smaller, more sequences fit. "
            f"The projections to K and V do shrink: attention's projections have {share(projections)} of the FLOPs, a small part of "
            "the model's.",
        ),
        numbers={
            "kv_bytes_ratio": fewer,
            "attention_flops_ratio": core,
            "decode_attention_flops_ratio": decode,
            "projection_flops_ratio": projections,
            **{f"{key}_{name}": value for key, numbers in by.items() for name, value in numbers.items()},
        },
        labels={
            "kv_bytes_ratio": "KV cache of MHA over this one's"
            if own is not mha
            else "KV cache of MHA over that of fewer heads",
            "attention_flops_ratio": "FLOPs of attention in the prompt, over MHA's",
            "decode_attention_flops_ratio": "FLOPs of attention in a decode step, over MHA's",
            "projection_flops_ratio": "FLOPs of attention's projections, over MHA's",
        },
        tables=(
            table(
                "variants",
                f"The same model with other KV heads (prompt of {count(scene.context)}, {plural(scene.streams, 'stream')} at as many)",
                {
                    "variant": "KV heads",
                    "prefill_attention_flops": "attention, prompt",
                    "decode_attention_flops": "attention, decode",
                    "projection_flops_per_token": "projections/token",
                    "kv_bytes_per_token": "KV/token",
                    "decode_step_s": "decode step",
                    "most_streams_in_kv_cache": "fit",
                },
                rows,
            ),
        ),
        formulas=(
            "attention = 4·h·d_h·L·(query, key) pairs: no h_kv in it; KV bytes per token = 2·h_kv·d_h·b_kv·L",
            "projections = 2·d·(2·h + 2·h_kv)·d_h·L per token"
            + (" (MLA: latents of q_lora_rank and kv_lora_rank + rope)" if latent else ""),
        ),
        sources=(
            "Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models, EMNLP 2023, arXiv:2305.13245",
            "Shazeer, Fast Transformer Decoding: One Write-Head is All You Need, 2019, arXiv:1911.02150",
            *(("DeepSeek-AI, DeepSeek-V2 (MLA), 2024, arXiv:2405.04434",) if latent else ()),
        ),
    )


def cache_rows(scene: Scene) -> list[dict[str, Cell]]:
    """Return what one token leaves in the cache of one GPU, by layer kind and part [B]."""
    deployment = scene.deployment
    rows: list[dict[str, Cell]] = []
    for kind, layers in zip(scene.architecture.kinds, deployment.layer_counts, strict=True):
        for what, elements, each in _parts(kind.attention, deployment.tp, float(deployment.kv_bytes)):
            rows.append(
                {
                    "part": what,
                    "layers": int(layers),
                    "window": _kept_for(kind.attention.window),
                    "elements_per_layer": float(elements),
                    "bytes_per_layer": each,
                    "bytes_per_token": each * float(layers),
                }
            )
    return rows


def _kept_for(window: Window) -> str:
    if isinstance(window, LocalChunks):
        return f"its chunk of {window.size:,}"
    width = widest(window)
    return "all tokens" if width is None else f"last {width:,}"


def _parts(attention: Attention, tp: int, kv_bytes: float) -> list[tuple[str, float, float]]:
    """Return what is cached per token and layer on one GPU: name, elements, bytes."""
    if attention.kind == "none":
        return []
    whole = kv_elements_per_token(attention, tp)
    if attention.kind == "mla":
        found = [("the latent of K and V", attention.kv_lora_rank), ("the rotary part of K", attention.rope_head_dim)]
    else:
        widths = attention.head_dim + attention.value_head_dim
        found = [("K", whole * attention.head_dim / widths), ("V", whole * attention.value_head_dim / widths)]
    parts = [(name, float(elements), float(elements * kv_bytes)) for name, elements in found if elements]
    if attention.index_heads:
        parts.append(("the indexer's key", float(attention.index_head_dim), float(index_bytes_per_token(attention))))
    return parts


def state_rows(scene: Scene) -> list[dict[str, Cell]]:
    """Return what one sequence has in recurrent layers on one GPU, however long it is, by kind of layer [B]."""
    deployment, rows = scene.deployment, []
    counts: dict[StateMixer, float] = {}
    for kind, layers in zip(scene.architecture.kinds, deployment.layer_counts, strict=True):
        if kind.state is not None:
            counts[kind.state] = counts.get(kind.state, 0.0) + float(layers)
    for state, layers in counts.items():
        each = float(state_bytes_per_sequence(state, deployment.activation_bytes, deployment.tp))
        row: dict[str, Cell] = {
            "part": f"{STATE_NAMES[state.kind]}: {state.heads} states of {state.key_dim} × {state.value_dim}, last inputs",
            "layers": int(layers),
            "bytes_per_layer": each,
            "bytes_per_sequence": each * layers,
        }
        rows.append(row)
    return rows


STATE_NAMES = {"gdn": "gated delta net", "mamba2": "Mamba 2"}


def kv_cache(scene: Scene) -> Topic:
    """6. K and V of every token and layer; Q is used in its own step only, and scores never leave the kernel."""
    deployment, context = scene.deployment, scene.context
    rows, states = cache_rows(scene), state_rows(scene)
    kept = sum(number(row["bytes_per_token"]) for row in rows)
    fixed = sum(number(row["bytes_per_sequence"]) for row in states)
    pool = scene.pool()
    blocks = int(pool.stream(context - 1))
    held = float(blocks * pool.block_bytes[0])
    q = scores = square = 0.0
    for kind, layers in zip(scene.architecture.kinds, deployment.layer_counts, strict=True):
        attention = kind.attention
        if attention.kind == "none":
            continue
        heads = query_heads_per_gpu(attention, deployment.tp)
        q += heads * attention.head_dim * layers * deployment.activation_bytes
        each = heads * layers * deployment.activation_bytes
        scores += each * seen_tokens(context - 1, attention.reach)
        square += each * attended_pairs(context, 0, attention.reach)
    names = " and ".join(dict.fromkeys(str(row["part"]) for row in rows))
    shown: list[dict[str, Cell]] = [
        *({"what": f"{row['part']} ({row['window']})", "kept": True, "bytes": row["bytes_per_token"]} for row in rows),
        {"what": "Q", "kept": False, "bytes": q},
        {"what": f"scores, of token {count(context)}", "kept": False, "bytes": scores},
    ]
    return Topic(
        number=6,
        name="kv-cache",
        claim="The cache stores Q and the attention scores.",
        verdict=f"No, only {names}: {size(kept)} per token, {size(held)} for a sequence of {count(context)} tokens"
        + (
            f" (in whole blocks, recurrent layers included: their states are {size(fixed)}, whatever its length)"
            if fixed
            else ""
        )
        + f". Q ({size(q)} per "
        f"token) is used once, in the step of its own token, and never again. Scores would be {size(square)} for that sequence, "
        f"{times(square / held)} its cache: they exist only inside the attention kernel, a tile at a time.",
        finding=f"The cache holds {names}: {size(kept)} per token, and neither Q nor scores",
        reason=(
            "A new token asks (its query Q) and every token before it answers: with its key K, which says how well it matches, and its "
            "value V, which says what it contributes. Later tokens need K and V of all earlier ones again, so these are kept.",
            "They have queries of their own: nobody asks for an old Q again. Scores are the products of one query with all keys; they "
            "are summed up at once and are worthless for the next token, which has other products.",
        ),
        numbers={
            "kv_bytes_per_token": kept,
            "sequence_tokens": context,
            "sequence_kv_bytes": held,
            "kv_blocks": blocks,
            "block_tokens": scene.block_tokens,
            "block_bytes": float(pool.block_bytes[0]),
            **({"state_bytes_per_sequence": fixed} if fixed else {}),
            "q_bytes_per_token": q,
            "last_token_scores_bytes": scores,
            "sequence_scores_bytes": square,
            "cached_q_bytes": 0,
            "cached_scores_bytes": 0,
        },
        labels={
            "kv_bytes_per_token": "kept per token, all layers",
            "sequence_tokens": "length of the sequence",
            "sequence_kv_bytes": "kept for it, in whole blocks",
            "kv_blocks": "its blocks",
            "block_tokens": "tokens of a block",
            "block_bytes": "bytes of a block",
            **({"state_bytes_per_sequence": "states of the recurrent layers, whatever the length"} if fixed else {}),
            "q_bytes_per_token": "Q of one token, all layers: used once, not kept",
            "last_token_scores_bytes": "scores of its last token, all layers: never stored",
            "sequence_scores_bytes": "scores of the sequence: never stored",
            "cached_q_bytes": "of Q in the cache",
            "cached_scores_bytes": "of scores in the cache",
        },
        tables=(
            table(
                "layers",
                f"What one token leaves in the cache ({deployment.kv_dtype}, {significant(deployment.kv_bytes)} B per element)",
                {
                    "part": "part",
                    "layers": "layers",
                    "window": "kept for",
                    "elements_per_layer": "elements/layer",
                    "bytes_per_layer": "B/layer",
                    "bytes_per_token": "all layers",
                },
                rows,
            ),
            *(
                [
                    table(
                        "states",
                        "What one sequence has in recurrent layers, however long it is",
                        {
                            "part": "part",
                            "layers": "layers",
                            "bytes_per_layer": "B/layer",
                            "bytes_per_sequence": "all layers",
                        },
                        states,
                    )
                ]
                if states
                else []
            ),
            table(
                "kept",
                "Kept or not, per token",
                {"what": "what", "kept": "kept", "bytes": "per token"},
                shown,
                shown=False,
            ),
        ),
        formulas=(
            "bytes per token = Σ layers h_kv·(d_k + d_v)·b_kv; MLA: (kv_lora_rank + rope)·b_kv; a window keeps its last w tokens",
            "not kept: Q = h·d_h·b_a·L per token; scores = h·L·n(n + 1)/2·b_a, in a window fewer",
        ),
        sources=(
            "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762 (section 3.2)",
            "Kwon et al., PagedAttention, SOSP 2023, arXiv:2309.06180; vllm/v1/core/kv_cache_utils.py",
        ),
    )


def _ratio(first: dict[str, Cell], second: dict[str, Cell], key: str) -> float:
    below = number(second[key])
    return number(first[key]) / below if below else 0.0
