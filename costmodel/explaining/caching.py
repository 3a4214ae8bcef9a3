"""Misunderstanding 6: what is in the KV cache."""

from __future__ import annotations

from costmodel.architecture.counts import (
    index_bytes_per_token,
    kv_elements_per_token,
    state_bytes_per_sequence,
)
from costmodel.architecture.linears import query_heads_per_gpu
from costmodel.architecture.types import Attention, StateMixer
from costmodel.equations.work import LocalChunks, Window, attended_pairs, seen_tokens, widest
from costmodel.explaining.compressed import cached_parts
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.keeping import Kept, held_formula, held_of
from costmodel.explaining.layers import dense, looking, sights
from costmodel.explaining.scene import Scene
from costmodel.explaining.tables import number, table
from costmodel.explaining.words import count, listed, size, times


def cache_rows(scene: Scene) -> list[dict[str, Cell]]:
    """Return what one token leaves in the cache of one GPU, by layer kind and part [B]."""
    deployment = scene.deployment
    layers_of: dict[
        tuple[str, str, float, float], float
    ] = {}  # layers that differ in their feed-forward only are counted together
    for kind, layers in zip(scene.architecture.kinds, deployment.layer_counts, strict=True):
        for what, kept, elements, each in _parts(kind.attention, deployment.tp, float(deployment.kv_bytes)):
            key = (what, kept, float(elements), each)
            layers_of[key] = layers_of.get(key, 0.0) + float(layers)
    return [
        {
            "part": what,
            "layers": int(layers),
            "window": window,
            "elements_per_layer": elements,
            "bytes_per_element": each / elements,
            "bytes_per_layer": each,
            "bytes_per_token": each * layers,
        }
        for (what, window, elements, each), layers in layers_of.items()
    ]


def _spans(rows: list[dict[str, Cell]]) -> dict[str, float]:
    """Return the bytes per token of all layers by how long they are kept [B]."""
    found: dict[str, float] = {}
    for row in rows:
        found[str(row["window"])] = found.get(str(row["window"]), 0.0) + number(row["bytes_per_token"])
    return found


def _kept_as(spans: dict[str, float]) -> str:
    """Return for which tokens they are kept, where layers differ or all have a window."""
    said = [(f"{size(held)} of it for " if len(spans) > 1 else "for ") + span + " only" * (span != "all tokens")
            for span, held in sorted(spans.items(), key=lambda item: item[0] != "all tokens")]  # fmt: skip
    return "" if list(spans) == ["all tokens"] else f" ({' and '.join(said)})"


def _kept_for(window: Window) -> str:
    if isinstance(window, LocalChunks):
        return f"its chunk of {window.size:,}"
    width = widest(window)
    return "all tokens" if width is None else f"the last {width:,}"


def _parts(attention: Attention, tp: int, kv_bytes: float) -> list[tuple[str, str, float, float]]:
    """Return what is cached per token and layer on one GPU: name, for how long, elements, bytes."""
    if attention.kind == "none":
        return []
    if attention.shared_kv:
        return cached_parts(attention, tp, kv_bytes)
    whole = kv_elements_per_token(attention, tp)
    if attention.kind == "mla":
        found = [("the latent of K and V", attention.kv_lora_rank), ("the rotary part of K", attention.rope_head_dim)]
    else:
        widths = attention.head_dim + attention.value_head_dim
        found = [("K", whole * attention.head_dim / widths), ("V", whole * attention.value_head_dim / widths)]
    kept = _kept_for(attention.window)
    parts = [(name, kept, float(elements), float(elements * kv_bytes)) for name, elements in found if elements]
    if attention.index_heads:
        index = float(index_bytes_per_token(attention))
        parts.append(("the indexer's key", kept, float(attention.index_head_dim), index))
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


def _needed(scene: Scene, spans: list[str]) -> str:
    """Return which K and V later tokens need again, and so which are kept."""
    if dense(scene):
        return "Later tokens need K and V of all earlier ones again, so these are kept."
    said = f"Later tokens need K and V again of those earlier ones that they look at: {looking(scene)}. "
    if any(sight.what == "chosen" for sight in sights(scene)):
        return said + "Which ones are chosen differs from token to token, so all are kept."
    if spans == ["all tokens"]:
        return said + "Layers that look at all keep all."
    return said + "In layers with a window nobody looks further back, so older ones are dropped."


STATE_NAMES = {"gdn": "gated delta net", "kda": "Kimi delta attention", "mamba2": "Mamba 2"}


def _of_states(fixed: float) -> str:
    """Return what recurrent layers keep of a sequence; nothing where there are none."""
    if not fixed:
        return ""
    return f", and of recurrent layers a state of fixed size: {size(fixed)} per sequence, whatever its length; together"


def _token_formula(scene: Scene) -> str:
    """Return the bytes per token, and of states, for the layers that there are."""
    terms: dict[str, None] = {}
    for attention in (kind.attention for kind in scene.architecture.kinds if kind.attention.kind != "none"):
        if attention.shared_kv:
            terms["h_kv·d_h·b_kv·(1 + 1/m) where m tokens make a compressed key, without 1/m elsewhere"] = None
        elif attention.kind == "mla":
            terms["(r + d_r)·b_kv of the latent and the rotary part of K"] = None
        else:
            terms["h_kv·(d_k + d_v)·b_kv"] = None
        if attention.index_heads:
            share = ", one for m tokens" if attention.compression else ""
            terms[f"the indexer's key{share} (d_i elements and their scale, in the format of the table)"] = None
    said = "bytes per token = Σ layers " + " + ".join(terms)
    looks = {sight.what for sight in sights(scene)}
    said += "; a window keeps its last w tokens" if "window" in looks else ""
    said += "; a local chunk keeps its own w tokens" if "chunks" in looks else ""
    if scene.parameters.states:
        said += "; of a sequence also, in recurrent layers, Σ heads·d_k·d_v elements of states and the last inputs, whatever n is"
    return said


def _in_blocks(held: Kept, block: float, windows: str) -> str:
    """Return how the blocks of a sequence are shared out, where layers differ: they take more than their tokens and states alone."""
    if held.alike:
        return ""
    if held.windows == held.blocks:
        return f" (in {count(held.windows)} whole blocks of {size(block)})"
    parts = [f"{count(held.full)} for the layers that keep every token"] if held.full else []
    parts += [f"{count(held.windows)} for those with {windows}"] if held.windows else []
    if held.states:
        parts.append(f"{count(held.states)} for its states, with room for each twice, for prefix caching")
    return f" (in whole blocks of {size(block)}, which all layers take: {listed(parts)})"


def kv_cache(scene: Scene) -> Topic:
    """6. K and V of every token and layer; Q is used in its own step only, and scores never leave the kernel."""
    deployment, context = scene.deployment, scene.context
    rows, states = cache_rows(scene), state_rows(scene)
    kept = sum(number(row["bytes_per_token"]) for row in rows)
    fixed = sum(number(row["bytes_per_sequence"]) for row in states)
    pool, held = scene.pool(), held_of(scene, context)
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
    spans = _spans(rows)
    chunked = any(sight.what == "chunks" for sight in sights(scene))
    windows = "local chunks, with room for a whole chunk" if chunked else "a window"
    names = listed(list(dict.fromkeys(str(row["part"]) for row in rows)))
    of_states: list[dict[str, Cell]] = [
        {"what": "states (per sequence)", "kept": True, "per": "sequence", "bytes": fixed}
    ]
    shown: list[dict[str, Cell]] = [
        *(
            {"what": f"{row['part']} ({row['window']})", "kept": True, "per": "token", "bytes": row["bytes_per_token"]}
            for row in rows
        ),
        *(of_states if fixed else []),
        {"what": "Q", "kept": False, "per": "token", "bytes": q},
        {"what": f"scores, of token {count(context)}", "kept": False, "per": "token", "bytes": scores},
    ]
    return Topic(
        number=6,
        name="kv-cache",
        claim="The cache stores Q and the attention scores.",
        verdict=f"No, only {names}: {size(kept)} per token{_kept_as(spans)}"
        f"{_of_states(fixed)}, {size(held.bytes)} for a sequence of {count(context)} tokens"
        + _in_blocks(held, float(pool.block_bytes[0]), windows)
        + f". Q ({size(q)} per "
        f"token) is used once, in the step of its own token, and never again. Scores would be {size(square)} for that sequence, "
        f"{times(square / held.bytes)} its cache: they exist only inside the attention kernel, a tile at a time.",
        finding=f"The cache holds {names}: {size(kept)} per token"
        f"{', part of it for a while only' if len(spans) > 1 else ''}"
        f"{f', states of recurrent layers: {size(fixed)} per sequence' if fixed else ''}, and neither Q nor scores",
        reason=(
            "A new token asks (its query Q) and every token before it answers: with its key K, which says how well it matches, and its "
            f"value V, which says what it contributes. {_needed(scene, list(spans))}",
            "They have queries of their own: nobody asks for an old Q again. Scores are the products of one query with all keys; they "
            "are summed up at once and are worthless for the next token, which has other products.",
        ),
        numbers={
            "kv_bytes_per_token": kept,
            "sequence_tokens": context,
            "sequence_kv_bytes": held.bytes,
            "kv_blocks": held.blocks,
            **({"token_blocks": held.full} if held.full < held.blocks else {}),
            **({"window_blocks": held.windows} if held.windows else {}),
            **({"state_blocks": held.states} if held.states else {}),
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
            "kv_bytes_per_token": "kept per token, all layers"
            + ("" if len(spans) == 1 else ", while all of them keep it"),
            "sequence_tokens": "length of the sequence",
            "sequence_kv_bytes": "kept for it, in whole blocks",
            "kv_blocks": "its blocks",
            **({"token_blocks": "of them for layers that keep every token"} if held.full < held.blocks else {}),
            **({"window_blocks": f"of them for layers with {windows}"} if held.windows else {}),
            **({"state_blocks": "of them for recurrent layers, each as large as the others"} if held.states else {}),
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
                f"What one token leaves in the cache (KV {deployment.kv_dtype}"
                + (
                    ", the indexer's key in fp8 with a scale"
                    if any("indexer" in str(row["part"]) for row in rows)
                    else ""
                )
                + ")",
                {
                    "part": "part",
                    "layers": "layers",
                    "window": "kept for",
                    "elements_per_layer": "elements/layer",
                    "bytes_per_element": "B/element",
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
                "Kept or not, per token; states per sequence",
                {"what": "what", "kept": "kept", "per": "of each", "bytes": "bytes"},
                shown,
                shown=False,
            ),
        ),
        formulas=(
            _token_formula(scene),
            f"{held_formula(scene)}; where sequences are to fit (long-context, batch-size, speculation) they have room for their "
            "next token as well: n + 1",
            "not kept: Q = h·d_h·b_a·L per token; scores = h·L·n(n + 1)/2·b_a, in a window fewer",
        ),
        sources=(
            "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762 (section 3.2)",
            "Kwon et al., PagedAttention, SOSP 2023, arXiv:2309.06180; vllm/v1/core/kv_cache_utils.py",
        ),
    )
