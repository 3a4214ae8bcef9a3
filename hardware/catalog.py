"""The shipped GPU profiles by name: finds one part and reads that one file, plus the small index beside it."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from costmodel.hardware.errors import InputError, shown, unknown_name
from costmodel.hardware.profile import GpuProfile, read_profile

FOLDER = Path(__file__).parent
"""Where the profiles (``<canonical name>.toml``) and ``index.toml`` are."""

HINT = "see `costmodel gpus list`"

_SEPARATORS = re.compile(r"[\s_-]+")
_VENDOR_WORDS = re.compile(r"nvidia|tesla|geforce|amd|instinct|graphics")


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """Which part a name stands for."""

    name: str
    """Canonical name, e.g. ``h100-sxm``; of a profile file, its stem."""
    note: str = ""
    """Empty when the name is exact, else which part was taken and which others the name fits."""
    also: tuple[str, ...] = ()
    """Canonical names of those others."""


@dataclass(frozen=True, slots=True)
class _ShortName:
    """A name that fits several parts: the part that is taken, and the others."""

    name: str
    part: str
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Index:
    """The index in the form that look-ups need: every spelling is folded, and only in ``exact`` it keeps its vendor words."""

    titles: dict[str, str]
    aliases: dict[str, tuple[str, ...]]
    also: dict[str, tuple[str, ...]]
    exact: dict[str, str]
    full: dict[str, str]
    short: dict[str, _ShortName]


def gpu_names() -> tuple[str, ...]:
    """Return the canonical names of all shipped parts: NVIDIA by generation, then AMD."""
    return tuple(_index().titles)


def aliases() -> dict[str, tuple[str, ...]]:
    """Return, by canonical name, the other names that are taken as that part."""
    return dict(_index().aliases)


def title(name: str) -> str:
    """Return the full name of the part with this canonical name, without reading its profile.

    Raises:
        InputError: there is no such part.
    """
    titles = _index().titles
    if name not in titles:
        raise unknown_name("GPU", name, titles, HINT)
    return titles[name]


def resolve_gpu(name: str) -> GpuChoice:
    """Find the shipped part that a name stands for.

    Case, spaces, ``-``, ``_`` and vendor words do not matter, so ``H100_SXM``, ``h100-sxm`` and what ``nvidia-smi`` prints,
    ``NVIDIA H100 80GB HBM3``, are one. A name that fits several parts takes a documented one, and the note says so.

    Raises:
        InputError: the name is empty or fits no part; the message gives the nearest names.
    """
    if not name.strip():
        raise InputError(f"GPU name is empty; {HINT}")
    index = _index()
    if (part := index.exact.get(_fold(name))) is not None:
        return GpuChoice(part)
    key = _fold_without_vendor(name)
    if (part := index.full.get(key)) is not None:
        typed_canonical = key == _fold_without_vendor(part)
        also = index.also.get(part, ()) if typed_canonical else ()
        return GpuChoice(part, _note(name, part, also), also)
    if (short := index.short.get(key)) is not None:
        return GpuChoice(short.part, _note(name, short.part, short.also), short.also)
    raise unknown_name("GPU", name, (*index.titles, *(short.name for short in index.short.values())), HINT)


def load_gpu(name_or_path: str) -> tuple[GpuProfile, GpuChoice]:
    """Read the profile of a shipped part, or a profile file of the user's own.

    Args:
        name_or_path: a name for :func:`resolve_gpu`, or a path: it ends in ``.toml``, or has a separator and exists.

    Raises:
        InputError: unknown name, or the file is missing, a directory, unreadable or breaks the schema.
    """
    if not isinstance(name_or_path, str):
        raise InputError(f"GPU must be a name or a path, not {shown(name_or_path)}")
    if not name_or_path.isprintable():
        raise InputError(f"GPU name {name_or_path!r} has characters that cannot be printed; {HINT}")
    if is_path(name_or_path):
        path = Path(name_or_path)
        return read_profile(path), GpuChoice(path.stem, f"profile read from {name_or_path}")
    choice = resolve_gpu(name_or_path)
    return read_profile(FOLDER / f"{choice.name}.toml"), choice


def is_path(text: str) -> bool:
    """Tell whether the user means a file: a profile by its suffix, or something that is there and cannot be a name."""
    if text.casefold().endswith(".toml"):
        return True
    if os.sep in text or (os.altsep is not None and os.altsep in text):
        return os.path.exists(text)
    return os.path.isdir(text) and not _is_known(text)


def _is_known(name: str) -> bool:
    index = _index()
    return _fold(name) in index.exact or any(_fold_without_vendor(name) in keys for keys in (index.full, index.short))


def _note(name: str, part: str, also: tuple[str, ...]) -> str:
    return f"{name} is taken as {title(part)}; also {', '.join(also)}" if also else ""


def _fold(name: str) -> str:
    return _SEPARATORS.sub("", name.casefold())


def _fold_without_vendor(name: str) -> str:
    return _VENDOR_WORDS.sub("", _fold(name))


@cache
def _index() -> _Index:
    """Read ``index.toml`` once."""
    content = tomllib.loads((FOLDER / "index.toml").read_text(encoding="utf-8"))
    index = _Index({}, {}, {}, {}, {}, {})
    for name, entry in content["gpus"].items():
        index.titles[name] = entry["title"]
        index.also[name] = tuple(entry.get("also", ()))
        for alias in entry.get("exact", ()):
            index.exact[_fold(alias)] = name
        for alias in (name, entry["title"], *entry["aliases"]):
            index.full[_fold_without_vendor(alias)] = name
    for name, entry in content["short"].items():
        index.short[_fold_without_vendor(name)] = _ShortName(name, entry["gpu"], tuple(entry["also"]))
    for name, entry in content["gpus"].items():
        shorts = (short.name for short in index.short.values() if short.part == name)
        index.aliases[name] = (*entry["aliases"], *entry.get("exact", ()), *shorts)
    return index
