"""Write ``models.md``: every packaged preset and every published configuration that the architecture reader was walked over.

Run as ``python docs/make_models_table.py`` with ``aiconfigurator-core`` installed; a test compares the result with the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from costmodel.architecture.counts import (
    active_parameters,
    checkpoint_bytes,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
)
from costmodel.architecture.families import FAMILIES, TOWERS, architecture_from_config
from costmodel.architecture.quantization_methods import METHODS
from costmodel.architecture.source import load_model, model_names, preset_repository
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerKind
from costmodel.equations.work import BothWays, LocalChunks
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.validation.datasets.package import package_folder

PAGE = Path(__file__).with_name("models.md")

HEAD = """# Models

`costmodel predict --model NAME` takes a packaged preset, a `config.json` or a folder that holds one, an `organisation/name` in the
local Hugging Face cache, or, with the `hub` extra, one on the Hub. This page is written by `make_models_table.py`.

**Total** is what serving holds in memory, vision tower included, multi-token-prediction layers not. **Active** is the part of the
text model that one token passes: the chosen experts only; the embedding counts whole, which some model cards leave out. **KV** is
what one token adds to the cache in bf16 over all layers, before any window is full; checkpoints that carry scales for an 8-bit cache
take half of it. Compressed keys count beside those of the tokens that they are made of, which leave with their window. What recurrent
layers keep of a sequence, however long, comes after it. Models that pool (they embed or classify documents and write no text) have no
lm_head; those whose tokens see both ways keep no cache. **Weights** are bytes of the stored weights, scales included; GiB is 2³⁰ bytes.

What is not understood is refused with its reason, never estimated: layers without equations, unknown keys whose names suggest that
they change shapes, and quantisation formats without arithmetic.
"""


def configurations() -> Path | None:
    """Return the folder of published configurations inside ``aiconfigurator_core``; None if it is not installed."""
    try:
        folder = package_folder() / "model_configs"
    except InputError:
        return None
    return folder if folder.is_dir() else None


def published(folder: Path) -> Iterator[tuple[str, dict[str, object], dict[str, object] | None]]:
    """Yield (``organisation/name``, configuration, content of ``hf_quant_config.json`` or None), sorted by name."""
    for path in sorted(folder.glob("*_config.json"), key=lambda path: path.name.casefold()):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        stem = path.name.removesuffix("_config.json")
        quant = folder / f"{stem}_hf_quant_config.json"
        yield (
            stem.replace("--", "/", 1),
            json.loads(path.read_text(encoding="utf-8")),
            json.loads(quant.read_text(encoding="utf-8")) if quant.is_file() else None,
        )


def describe_kind(kind: LayerKind) -> str:
    """Return a layer kind in a few words, e.g. ``gqa 32/8 × 128, 8 of 128 experts``."""
    return ", ".join(part for part in (describe_mixer(kind), describe_feed_forward(kind.feed_forward)) if part)


def describe_mixer(kind: LayerKind) -> str:
    """Return what mixes the tokens of a layer."""
    attention, state = kind.attention, kind.state
    if (cross := kind.cross) is not None:
        own = describe_mixer(replace(kind, cross=None))
        return (f"{own}, " if own else "") + f"cross {cross.query_heads}/{cross.kv_heads} × {cross.head_dim}"
    if state is not None:
        return f"{state.kind} {state.heads} × {state.key_dim} × {state.value_dim}"
    if attention.kind == "none" or attention.shared_kv:
        return describe_compressed(attention) if attention.shared_kv else ""
    if attention.kind == "mla":
        text = f"mla {attention.query_heads} heads, {attention.kv_lora_rank} + {attention.rope_head_dim}"
    else:
        text = f"gqa {attention.query_heads}/{attention.kv_heads} × {attention.head_dim}"
        if attention.value_head_dim != attention.head_dim:
            text += f" + {attention.value_head_dim}"
    if attention.top_k:
        text += f", top {attention.top_k}"
        text += f" by {attention.index_heads} × {attention.index_head_dim}" if attention.index_heads else ""
    if isinstance(attention.window, LocalChunks):
        return f"{text}, chunks of {attention.window.size}"
    if isinstance(attention.window, BothWays):
        side = attention.window.side
        return f"{text}, both ways" if side is None else f"{text}, {side} either side"
    return text if attention.window is None else f"{text}, window {attention.window}"


def describe_compressed(attention: Attention) -> str:
    """Return attention whose key is its value, and what it sees of compressed keys."""
    text = f"shared kv {attention.query_heads} × {attention.head_dim}, window {attention.window}"
    if not attention.compression:
        return text
    if not attention.top_k:
        return f"{text} + 1 in {attention.compression}"
    chosen = f"top {attention.top_k} by {attention.index_heads} × {attention.index_head_dim}"
    return f"{text} + 1 in {attention.compression}, {chosen}"


def describe_feed_forward(ff: FeedForward) -> str:
    """Return the feed-forward of a layer."""
    if ff.kind == "none":
        return ""
    if ff.kind == "dense":
        return "dense"
    shared = " + shared" if ff.shared_intermediate else ""
    return f"{ff.experts_per_token} of {ff.experts}{shared} experts" + (f" in {ff.latent}" if ff.latent else "")


def describe_layers(arch: Architecture) -> str:
    """Return how many layers there are of each kind; kinds that differ only in weight formats are one."""
    counts: dict[str, int] = {}
    for index in arch.pattern:
        text = describe_kind(arch.kinds[index])
        counts[text] = counts.get(text, 0) + 1
    return "; ".join(f"{count} × ({text})" for text, count in counts.items())


def describe_weights(arch: Architecture) -> str:
    """Return the quantisation method and the size of the stored weights."""
    cache = f", {arch.kv_dtype} cache" if arch.kv_dtype else ""
    return f"{arch.quantization or arch.dtype}{cache}, {checkpoint_bytes(arch) / 2**30:,.2f} GiB"


def billions(count: float) -> str:
    """Return a parameter count in billions with three decimals."""
    return f"{count / 1e9:,.3f}"


def row(name: str, arch: Architecture) -> str:
    """Return one line of a table of models that are read."""
    cells = [
        name,
        describe_layers(arch),
        billions(total_parameters(arch)),
        billions(active_parameters(arch)),
        f"{kv_bytes_per_token(arch, 2):,.0f}" + (f" + {held / 2**20:,.1f} MiB" if (held := state_bytes(arch)) else ""),
        describe_weights(arch),
    ]
    return "| " + " | ".join(cells) + " |"


def table(rows: list[str]) -> str:
    """Return a table of models that are read."""
    return "\n".join(
        [
            "| model | layers | total (10⁹) | active (10⁹) | KV (B/token) | weights |",
            "|---|---|---:|---:|---:|---|",
            *rows,
        ]
    )


def render(folder: Path) -> str:
    """Return the page.

    Args:
        folder: published configurations to walk over.
    """
    presets = [row(f"{name} (`{preset_repository(name)}`)", load_model(name)[0]) for name in model_names()]
    read, refused = [], []
    for name, config, quant in published(folder):
        try:
            read.append(row(f"`{name}`", architecture_from_config(config, name, quant)))
        except UnsupportedError as error:
            refused.append(f"| `{name}` | {str(error).removeprefix(f'{name}: ')} |")
    families = ", ".join(f"`{name}`" for name in sorted({*FAMILIES, *TOWERS}))
    methods = ", ".join(f"`{name}`" for name in sorted({*METHODS, "modelopt"}))
    return "\n".join(
        [
            HEAD,
            f"Model types that are read: {families}.\n",
            f"Quantisation methods that are read: {methods}.\n",
            f"## Presets ({len(presets)})\n",
            table(presets),
            "\n## Published configurations\n",
            f"The {len(read) + len(refused)} configurations that `aiconfigurator-core` 0.12 carries, with their quantisation files.\n",
            f"### Read ({len(read)})\n",
            table(read),
            f"\n### Refused ({len(refused)})\n",
            "| model | reason |\n|---|---|",
            *refused,
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    folder = configurations()
    if folder is None:
        raise SystemExit("aiconfigurator-core is not installed: pip install aiconfigurator-core==0.12.0")
    PAGE.write_text(render(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
