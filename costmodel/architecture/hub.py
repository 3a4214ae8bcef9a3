"""Configurations on this machine's Hugging Face cache, and on the Hub through ``huggingface_hub`` where it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from costmodel.architecture.pooling import MODULES, POOLING
from costmodel.hardware.errors import InputError

_HUB: Final = "https://huggingface.co"
_TIMEOUT: Final = 5.0
"""Seconds to wait for the Hub to answer."""


def cache_folder() -> Path:
    """Return the cache: ``HF_HUB_CACHE``, else ``HF_HOME/hub``, else ``huggingface/hub`` in the user's cache folder."""
    explicit = os.environ.get("HF_HUB_CACHE")
    if explicit:
        return Path(os.path.expanduser(explicit))
    home = os.environ.get("HF_HOME")
    if home:
        return Path(os.path.expanduser(home)) / "hub"
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "huggingface" / "hub"


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
    """Fetch ``config.json`` into the cache, and beside it what there is of other files that say how it is served; return its folder.

    Returns:
        None if ``huggingface_hub`` is not installed or ``HF_HUB_OFFLINE`` is set.

    Raises:
        InputError: the Hub does not answer, does not know the repository, or does not let this user read it.
    """
    import importlib.util  # not at the top: loading a preset must not wait for it

    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().upper()
    if offline in ("1", "ON", "YES", "TRUE") or importlib.util.find_spec("huggingface_hub") is None:
        return None
    endpoint = (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    _knock(repository, endpoint)
    path = _download(repository, "config.json", endpoint)
    if path is None:
        raise InputError(f"model {repository!r}: its repository on {endpoint} has no config.json")
    _download(repository, "hf_quant_config.json", endpoint)
    if _download(repository, MODULES, endpoint) is not None:
        _download(repository, f"{POOLING}/config.json", endpoint)
    return Path(path).parent


def _knock(repository: str, endpoint: str) -> None:
    """Ask the Hub once, so that no network is said at once: its own client repeats for half a minute.

    Raises:
        InputError: it cannot be reached, or answers with an error of its own.
    """
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    try:
        request = Request(f"{endpoint}/{quote(repository)}/resolve/main/config.json", method="HEAD")
        with urlopen(request, timeout=_TIMEOUT):
            return
    except HTTPError as error:
        error.close()
        if error.code < 500:  # unknown, restricted, renamed: its client knows how to tell
            return
        raise _unreachable(repository, endpoint, f"it answers {error.code}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise _unreachable(repository, endpoint, " ".join(str(reason).split()) or type(error).__name__) from error


def _unreachable(repository: str, endpoint: str, reason: str) -> InputError:
    return InputError(f"model {repository!r}: not packaged, not cached, and {endpoint} could not be asked ({reason})")


def _download(repository: str, filename: str, endpoint: str) -> str | None:
    """Return the path of one file in the cache; None if the repository has no such file."""
    import huggingface_hub
    from huggingface_hub import errors, utils

    quiet = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        found: Any = huggingface_hub.hf_hub_download(
            repository, filename, endpoint=endpoint, etag_timeout=_TIMEOUT, cache_dir=str(cache_folder())
        )
    except errors.LocalEntryNotFoundError as error:  # a subclass of EntryNotFoundError that means "could not be asked"
        raise _unreachable(repository, endpoint, type(error.__cause__ or error).__name__) from error
    except errors.EntryNotFoundError:
        return None
    except errors.GatedRepoError as error:
        raise InputError(
            f"model {repository!r}: access on {endpoint} is restricted; log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"model {repository!r}: unknown to {endpoint} (or private); see `costmodel models list` for packaged ones"
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"model {repository!r}: not a valid organisation/name") from error
    except Exception as error:  # the client lets the errors of its HTTP library through
        raise _unreachable(repository, endpoint, type(error).__name__) from error
    finally:
        if not quiet:
            utils.enable_progress_bars()
    return str(found)
