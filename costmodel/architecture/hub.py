"""Configurations on this machine's Hugging Face cache, and on the Hub through ``huggingface_hub`` where it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from costmodel.hardware.errors import InputError

_TIMEOUT: Final = 5.0
"""Seconds to wait for the Hub to answer."""


def cache_folder() -> Path:
    """Return the cache: ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else ``huggingface/hub`` in the user's cache folder."""
    explicit = os.environ.get("HF_HUB_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "huggingface" / "hub"


def cached_folder(repository: str) -> Path | None:
    """Return the cached snapshot of ``organisation/name`` that holds a ``config.json``; None if there is none.

    The snapshot that ``refs/main`` names is preferred, then the most recent one. Names are compared without case, as
    the Hub does.
    """
    root = cache_folder()
    wanted = "models--" + repository.replace("/", "--").casefold()
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return None
    for entry in entries:
        if entry.name.casefold() == wanted:
            folder = _snapshot(entry)
            if folder is not None:
                return folder
    return None


def _snapshot(entry: Path) -> Path | None:
    snapshots = entry / "snapshots"
    try:
        main = (entry / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = ""
    if main and (snapshots / main / "config.json").is_file():
        return snapshots / main
    try:
        found = [folder for folder in snapshots.iterdir() if (folder / "config.json").is_file()]
    except OSError:
        return None
    return max(found, key=lambda folder: folder.stat().st_mtime) if found else None


def fetch(repository: str) -> Path | None:
    """Fetch ``config.json``, and ``hf_quant_config.json`` if there is one, into the cache and return its folder.

    Returns:
        None if ``huggingface_hub`` is not installed or ``HF_HUB_OFFLINE`` is set.

    Raises:
        InputError: the Hub does not answer, does not know the repository, or does not let this user read it.
    """
    import importlib.util  # not at the top: loading a preset must not wait for it

    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().upper()
    if offline in ("1", "ON", "YES", "TRUE") or importlib.util.find_spec("huggingface_hub") is None:
        return None
    path = _download(repository, "config.json", required=True)
    _download(repository, "hf_quant_config.json", required=False)
    return Path(path).parent if path else None


def _download(repository: str, filename: str, required: bool) -> str | None:
    import huggingface_hub
    from huggingface_hub import errors

    endpoint = os.environ.get("HF_ENDPOINT") or None
    shown = endpoint or "https://huggingface.co"
    try:
        found: Any = huggingface_hub.hf_hub_download(
            repository, filename, endpoint=endpoint, etag_timeout=_TIMEOUT, cache_dir=str(cache_folder())
        )
    except errors.EntryNotFoundError as error:
        if not required:
            return None
        raise InputError(f"model {repository!r}: its repository on {shown} has no {filename}") from error
    except errors.GatedRepoError as error:
        raise InputError(
            f"model {repository!r}: access on {shown} is restricted; log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"model {repository!r}: unknown to {shown} (or private); see `costmodel models list` for packaged ones"
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"model {repository!r}: not a valid organisation/name") from error
    except Exception as error:  # the Hub client lets its HTTP library's own errors through
        if not required:
            return None
        reason = type(error).__name__
        raise InputError(
            f"model {repository!r}: not packaged, not cached, and {shown} could not be asked ({reason})"
        ) from error
    return str(found)
