"""Finding a model's configuration: a file, a packaged preset, the local Hugging Face cache, or the Hugging Face Hub."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from costmodel import checks
from costmodel.architecture import hub
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.pooling import MODULES, pooling_mode, pooling_path
from costmodel.architecture.types import Architecture, Pooling
from costmodel.hardware.errors import InputError, shown, unknown_name
from costmodel.hardware.reading import read_bytes, shown_path

DEFAULT_MODEL: Final = "Llama-3.1-8B"
"""The model that is meant where none is named."""

HINT: Final = "see `costmodel models list`"
_PRESETS: Final = Path(__file__).with_name("presets")
"""Packaged configurations; ``index.json`` maps each to the Hub repositories that have its shapes, its source first."""
_PRESET_POOLING: Final[dict[str, Pooling]] = {
    "bge-large-en-v1.5": "cls",
    "bge-m3": "cls",
    "e5-mistral-7b-instruct": "last",
    "Qwen3-Embedding-0.6B": "last",
    "Qwen3-Embedding-8B": "last",
}
"""What ``1_Pooling/config.json`` of their repositories says; without it a Qwen3-Embedding is a Qwen3 that writes text."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The configuration of a model as it was found.

    Attributes:
        config: content of ``config.json``.
        quant: content of ``hf_quant_config.json`` beside it; None if there is none.
        name: what the model is called.
        note: where it was read.
        pooling: pooling that Sentence Transformers' files beside it ask for; None without them.
    """

    config: dict[str, Any]
    quant: dict[str, Any] | None
    name: str
    note: str
    pooling: Pooling | None = None


def load_model(name_or_path: str) -> tuple[Architecture, str]:
    """Load a model by path or name.

    Tried in this order: a path (it exists, or is written like one), a packaged preset, the local Hugging Face cache,
    and the Hub, if ``huggingface_hub`` is installed and ``HF_HUB_OFFLINE`` is not set.

    Args:
        name_or_path: a ``config.json``, a folder that contains one, a preset (``Llama-3.1-8B``, with or without its
            organisation, in any case), or ``organisation/name`` on the Hub.

    Returns:
        The architecture, and a note that says where it was read.

    Raises:
        InputError: nothing is found under that name, or what is found is no configuration.
        UnsupportedError: the model has parts that there are no equations for.
    """
    files = find_model(name_or_path)
    return architecture_from_config(files.config, files.name, files.quant, files.pooling), files.note


def find_model(name_or_path: str) -> ModelFiles:
    """Find and read a model's configuration, without interpreting it; tried in the order of :func:`load_model`.

    Raises:
        InputError: nothing is found under that name, or what is found is no configuration.
    """
    text = checks.text(name_or_path, "model").strip()
    if not text:
        raise InputError(f"the model name is empty; {HINT}")
    if _is_path(text):
        return _from_path(Path(os.path.expanduser(text)), text)  # Path's own raises where the user is unknown
    preset = _aliases().get(text.casefold())
    if preset is not None:
        return _from_preset(preset)
    if text.count("/") == 1:
        folder = hub.cached_folder(text)
        if folder is not None:
            return _from_folder(folder, text, f"local Hugging Face cache: {folder}")
        fetched = hub.fetch(text)
        if fetched is not None:
            return _from_folder(fetched, text, f"Hugging Face Hub: {text}")
    if Path(text).is_dir():
        raise InputError(
            f"model {shown(text, 200)}: folder {shown_path(Path(text))} contains no config.json, and no model has that name; {HINT}"
        )
    hint = HINT
    if text.count("/") == 1:
        hint += (
            "; not in the local Hugging Face cache, and the Hub was not asked: offline, or huggingface_hub is missing"
        )
    raise unknown_name("model", text, _aliases_as_written(text), hint)


def model_names() -> tuple[str, ...]:
    """Return the names of the packaged presets, in the order of the index."""
    return tuple(_index())


def preset_spellings() -> dict[str, str]:
    """Return every name, case folded, that stands for a preset, and that preset."""
    return dict(_aliases())


def preset_config(name: str) -> dict[str, Any]:
    """Return the published configuration of a preset.

    Raises:
        InputError: no preset has that name.
    """
    preset = _aliases().get(name.strip().casefold())
    if preset is None:
        raise unknown_name("model", name, model_names(), HINT)
    return _parse((_PRESETS / f"{preset}.json").read_bytes(), preset)


def preset_repository(name: str) -> str:
    """Return the Hub repository (``organisation/name``) whose configuration a preset is."""
    return _index()[name][0]


@lru_cache(maxsize=1)
def _index() -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads((_PRESETS / "index.json").read_bytes())
    return content


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    """Map every spelling, case folded, to its preset: its own name, its repositories, and those without organisation."""
    found: dict[str, str] = {}
    for preset, repositories in _index().items():
        for spelling in (preset, *repositories, *(repository.split("/")[-1] for repository in repositories)):
            found.setdefault(spelling.casefold(), preset)
    return found


def _aliases_as_written(wanted: str) -> tuple[str, ...]:
    if "/" in wanted:
        return tuple(repository for repositories in _index().values() for repository in repositories)
    return model_names()


def _is_path(text: str) -> bool:
    """Return True for what is written as a path, and for names of a file or of a folder with a configuration."""
    if text.startswith((".", "~", "/")) or text.count("/") > 1 or "\\" in text or text.endswith(".json"):
        return True
    try:
        return Path(text).is_file() or (Path(text) / "config.json").exists()
    except (OSError, ValueError):
        return True


def _from_preset(preset: str) -> ModelFiles:
    note = f"preset {preset}: config of {preset_repository(preset)}"
    return ModelFiles(preset_config(preset), None, preset, note, _PRESET_POOLING.get(preset))


def _from_path(path: Path, text: str) -> ModelFiles:
    try:
        if path.is_dir():
            return _from_folder(path, path.resolve().name or text, f"file {path / 'config.json'}")
        if not path.exists():
            raise InputError(
                f"model {shown(text, 200)}: no such file or folder; name a config.json, a folder with one, or a preset ({HINT})"
            )
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"model {shown(text, 200)}: not a usable path ({_reason(error)})") from error
    config = _read(path)
    pooling = _pooling(path.parent) if path.name == "config.json" else None
    # Beside config.json lies hf_quant_config.json; beside NAME_config.json, NAME_hf_quant_config.json.
    quant = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if not path.name.endswith("config.json"):
        quant = path.with_name("hf_quant_config.json")
    parent = path.resolve().parent.name
    name = parent if path.name == "config.json" and parent else path.stem
    return ModelFiles(config, _read(quant) if quant.is_file() else None, name, f"file {path}", pooling)


def _from_folder(folder: Path, name: str, note: str) -> ModelFiles:
    config = folder / "config.json"
    if not config.is_file():
        raise InputError(f"model {shown(name, 200)}: folder {folder} contains no config.json")
    quant = folder / "hf_quant_config.json"
    return ModelFiles(_read(config), _read(quant) if quant.is_file() else None, name, note, _pooling(folder))


def _pooling(folder: Path) -> Pooling | None:
    """Return the pooling of the model in a folder, from its ``modules.json`` and what that names; None without them."""
    modules = folder / MODULES
    if not modules.is_file():
        return None
    path = pooling_path(_parse_any(read_bytes(modules, "model"), str(modules)))
    if path is None:
        return None
    config = folder / path / "config.json"
    return pooling_mode(_parse_any(read_bytes(config, "model"), str(config)) if config.is_file() else None)


def _read(path: Path) -> dict[str, Any]:
    return _parse(read_bytes(path, "model"), str(path))


def _parse_any(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({_reason(error)})") from error


def _parse(content: bytes, where: str) -> dict[str, Any]:
    parsed = _parse_any(content, where)
    if not isinstance(parsed, dict):
        raise InputError(f"{where}: holds a JSON {type(parsed).__name__}, not an object with the keys of a config.json")
    return parsed


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
