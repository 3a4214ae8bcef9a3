"""``costmodel models``: list, show, import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from costmodel.architecture.counts import (
    active_parameters,
    kv_bytes_per_token,
    parameter_table,
    state_bytes,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.formats import ELEMENT_BITS
from costmodel.architecture.pooling import pooling_files
from costmodel.architecture.source import find_model, load_model, model_names
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerKind
from costmodel.architecture.vision import VisionTower
from costmodel.cli.files import check_writable, write_atomically
from costmodel.cli.options import echo_json
from costmodel.cli.text import count, gib, parameters, percent, plural, size, table
from costmodel.encoder import DEFAULT_SIZE, read_size
from costmodel.equations.work import BothWays, LocalChunks, Window

STATE_NAMES = {"gdn": "GDN", "kda": "KDA", "mamba2": "Mamba 2"}
"""Recurrent layers in a word."""


@click.group("models")
def command() -> None:
    """List, show and import model architectures."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def list_models(as_json: bool) -> None:
    """List the packaged models; any config.json or cached Hugging Face name works as well."""
    found = {name: load_model(name)[0] for name in model_names()}
    if as_json:
        echo_json({"schema": "costmodel.models/1", "models": [_summary(item) for item in found.values()]})
        return
    rows = [
        [
            name,
            parameters(total_parameters(item)),
            parameters(active_parameters(item)),
            str(item.layer_count),
            _kinds(item),
            size(_kv_bytes(item)),
            item.quantization or item.dtype,
        ]
        for name, item in found.items()
    ]
    click.echo(table(rows, ["name", "parameters", "active", "layers", "kinds", "KV per token", "weights"]))
    click.echo(
        "\nAny config.json, its folder, or a name in the Hugging Face cache works too: `costmodel models show PATH`."
    )


@command.command("show")
@click.argument("name")
@click.option(
    "--tp", type=click.IntRange(1), default=1, show_default=True, help="GPUs that the weights are divided among."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def show(name: str, tp: int, as_json: bool) -> None:
    """Show what a model is made of: parameters and bytes by module, layer kinds, KV cache."""
    architecture, note = load_model(name)
    if tp > 1:
        from costmodel.deployment import check_parallelism

        check_parallelism(architecture, tp, 1, 1)
    rows = parameter_table(architecture, tp)
    if as_json:
        modules = [
            {"module": row.module, "parameters": row.count, "format": row.format, "bytes": row.bytes} for row in rows
        ]
        echo_json({"schema": "costmodel.model/1", **_summary(architecture), "tensor_parallel": tp, "modules": modules})
        return
    total, active = total_parameters(architecture), active_parameters(architecture)
    click.echo(
        f"{architecture.name} ({architecture.model_type}): {count(total)} parameters, {count(active)} active per token"
    )
    for index, kind in enumerate(architecture.kinds):
        click.echo(f"  {architecture.pattern.count(index)} × {_describe(kind)}")
    click.echo(
        f"  hidden {count(architecture.hidden)}, vocabulary {count(architecture.vocabulary)}"
        f"{_after_layers(architecture)}, {architecture.dtype} activations, {_cache(architecture)}"
        f"{f', states: {count(held)} B per sequence' if (held := _state_bytes(architecture)) else ''}"
    )
    whole = sum(row.bytes for row in rows)
    body = [[row.module, row.format, count(row.count), gib(row.bytes), percent(row.bytes / whole)] for row in rows]
    click.echo()
    click.echo(
        table(
            [*body, ["all", "", "", gib(whole), "100 %"]], ["module", "stored as", "weights", "size", "share"], left=2
        )
    )
    if tp > 1:
        click.echo(f"\nper GPU at TP {tp}")
    if (tower := architecture.vision) is not None:
        click.echo(f"\n{_describe_tower(tower)}")
    for text in (note, *architecture.notes):
        if text:
            click.echo(f"note: {text}")


def _after_layers(item: Architecture) -> str:
    """Return what follows the layers, where it is not an lm_head of its own."""
    if not item.pooling:
        return ", tied embeddings" if item.tied_embeddings else ""
    head = f" and a head of {' and '.join(map(count, item.head))} outputs" if item.head else ""
    return f", no lm_head, {item.pooling} pooling{head}"


def _cache(item: Architecture) -> str:
    if item.bidirectional:
        return "no KV cache"
    return f"KV cache {item.kv_dtype or item.dtype}: {count(_kv_bytes(item))} B per token"


@command.command("import")
@click.argument("source")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite a config.json in FOLDER.")
def import_model(source: str, folder: Path, force: bool) -> None:
    """Keep the config of SOURCE in FOLDER, so that --model FOLDER works anywhere, after checking that it is understood.

    SOURCE is a config.json, a folder, a preset to start from, or a name in the Hugging Face cache or on the Hub.
    """
    files = find_model(source)
    architecture = architecture_from_config(files.config, files.name, files.quant, files.pooling)
    contents = {"config.json": files.config, "hf_quant_config.json": files.quant, **pooling_files(files.pooling)}
    kept = {folder / name: content for name, content in contents.items() if content is not None}
    for path in kept:
        if path.parent == folder or folder.exists():
            check_writable(path, force, new_folder=True)
    for path, content in kept.items():
        write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", force)
    click.echo(f"wrote {folder}: {architecture.name}, {count(total_parameters(architecture))} parameters", err=True)


def _summary(item: Architecture) -> dict[str, Any]:
    return {
        "name": item.name,
        "model_type": item.model_type,
        "total_parameters": total_parameters(item),
        "active_parameters": active_parameters(item),
        "layers": item.layer_count,
        "kinds": [
            {"layers": item.pattern.count(index), "kind": _describe(kind)} for index, kind in enumerate(item.kinds)
        ],
        "kv_bytes_per_token": _kv_bytes(item),
        "state_bytes_per_sequence": _state_bytes(item),
        "encoder": None if item.vision is None else _describe_tower(item.vision),
        "dtype": item.dtype,
        "pooling": item.pooling or None,
        "quantization": item.quantization,
        "notes": list(item.notes),
    }


def _kv_bytes(item: Architecture) -> int:
    return int(kv_bytes_per_token(item, ELEMENT_BITS[item.kv_dtype or item.dtype] / 8))


def _state_bytes(item: Architecture) -> int:
    return int(state_bytes(item, ELEMENT_BITS[item.dtype] / 8))


def _kinds(item: Architecture) -> str:
    names = []
    for index, kind in enumerate(item.kinds):
        names.append((" ".join(_halves(kind)), item.pattern.count(index)))
    totals: dict[str, int] = {}
    for name, layers in names:
        totals[name] = totals.get(name, 0) + layers
    return ", ".join(f"{layers} {name}" for name, layers in totals.items())


def _halves(kind: LayerKind) -> list[str]:
    """Return the two halves of a layer in a word each: what mixes tokens, and MoE where it is one; a lone feed-forward is ``FFN``."""
    attention, found = kind.attention, []
    if attention.kind == "mla":
        found.append("sparse MLA" if attention.top_k else "MLA")
    elif attention.compression:
        found.append("chosen compressed" if attention.top_k else "compressed")
    elif attention.kind == "gqa":
        found.append("sparse" if attention.top_k else _reach_word(attention.window))
    if kind.cross is not None:
        found.append("cross")
    if kind.state is not None:
        found.append(STATE_NAMES[kind.state.kind])
    if kind.feed_forward.kind == "moe":
        found.append("MoE")
    return found or ["FFN"]


def _describe_tower(tower: VisionTower) -> str:
    """Return the encoder in a line, and what it makes of an image."""
    size = f"{tower.layers} layers of {count(tower.hidden)} and {count(tower.intermediate)}, {tower.heads} heads of {tower.head_dim}"
    if tower.rule is None:
        return f"encoder: {size}; its processor's rule for images is not known"
    if tower.frames is not None:
        return f"encoder of audio: {size}; 30 s are {count(tower.rule(*tower.frames).features)} states"
    width, height = read_size(DEFAULT_SIZE)
    each = tower.rule(width, height)
    what = f"{count(each.features)} states" if tower.cross else plural(each.tokens, "token")
    return f"encoder of images: {size}; {width} × {height} pixels are {count(each.patches)} patches and {what}"


def _describe(kind: LayerKind) -> str:
    parts = (_describe_mixer(kind), _describe_cross(kind.cross), _describe_feed_forward(kind.feed_forward))
    return "; ".join(part for part in parts if part)


def _describe_cross(cross: Attention | None) -> str:
    if cross is None:
        return ""
    return f"cross-attention, {cross.query_heads} query and {cross.kv_heads} KV heads of {cross.head_dim}"


def _describe_mixer(kind: LayerKind) -> str:
    attention, state = kind.attention, kind.state
    if state is not None:
        name = {"gdn": "gated delta net", "kda": "Kimi delta attention", "mamba2": "Mamba 2"}[state.kind]
        return f"{name}, {state.heads} states of {state.key_dim} × {state.value_dim}"
    if attention.kind == "none" or attention.shared_kv:
        return _describe_shared(attention) if attention.shared_kv else ""
    if attention.kind == "mla":
        latent = f"MLA, {attention.query_heads} heads, latent {attention.kv_lora_rank} + {attention.rope_head_dim}"
        return latent + _describe_choice(attention)
    heads = f"{attention.query_heads} query and {attention.kv_heads} KV heads of {attention.head_dim}"
    return (
        f"sparse attention, {heads}{_describe_choice(attention)}"
        if attention.top_k
        else f"{_reach(attention.window)}, {heads}"
    )


def _describe_choice(attention: Attention) -> str:
    """Return how many keys are chosen, and by what; nothing where all are seen."""
    if not attention.top_k:
        return ""
    chosen = f", {count(attention.top_k)} keys"
    if not attention.index_heads:
        return f"{chosen} of the indexer before"
    each = " for each group of heads" if attention.index_by_group else ""
    return f"{chosen}{each} by an indexer of {attention.index_heads} heads of {attention.index_head_dim}"


def _describe_shared(attention: Attention) -> str:
    """Return attention whose key is its value, and what it sees of compressed keys."""
    seen = _reach(attention.window)
    if attention.index_heads:
        indexer = f"the {count(attention.top_k)} that an indexer of {attention.index_heads} heads of {attention.index_head_dim} chooses"
        seen += f" and, of keys of {attention.compression} tokens each, {indexer}"
    elif attention.compression:
        seen += f" and all keys of {attention.compression} tokens each"
    return f"{seen}; {attention.query_heads} query heads of {attention.head_dim}, whose one key is its value"


def _reach_word(window: Window) -> str:
    """Return what a query sees of the keys in a word or two."""
    if isinstance(window, BothWays):
        return "both ways" if window.side is None else "window both ways"
    if isinstance(window, LocalChunks):
        return "chunks"
    return "full" if window is None else "window"


def _reach(window: Window) -> str:
    """Return the same with its size."""
    if isinstance(window, BothWays):
        return "attention both ways" if window.side is None else f"{count(window.side)} tokens on either side"
    if isinstance(window, LocalChunks):
        return f"chunks of {count(window.size)}"
    return "full attention" if window is None else f"window of {count(window)}"


def _describe_feed_forward(ff: FeedForward) -> str:
    if ff.kind == "none":
        return ""
    if ff.kind == "dense":
        return f"dense {count(ff.intermediate)}"
    shared = f" + shared {count(ff.shared_intermediate)}" if ff.shared_intermediate else ""
    latent = f" in {count(ff.latent)}" if ff.latent else ""
    return f"{ff.experts_per_token} of {ff.experts} experts of {count(ff.intermediate)}{latent}{shared}"
