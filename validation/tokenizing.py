"""How fast a real tokenizer is on this machine."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodel.architecture.hub import cached_folder
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path

FILE: Final = "tokenizer.json"
"""Of a model's folder: what the library ``tokenizers`` reads."""
LEAST_CHARACTERS, MOST_CHARACTERS = 40_000, 400_000
CHARACTERS: Final = 4
"""About as many make a token."""
WARM: Final = 2_000
"""Characters that are encoded before the clock starts."""


@dataclass(frozen=True, slots=True)
class TokenizerRate:
    """What was measured.

    Attributes:
        name: of the tokenizer, in words.
        tokens_per_s: on one core of this machine, of English text [tokens/s].
        tokens: that were encoded.
    """

    name: str
    tokens_per_s: float
    tokens: int


def measure_tokenizer(given: str | None, model: str, prompt: int) -> TokenizerRate | None:
    """Measure a tokenizer that is installed: the one that is given, the model's own, or that of mistral_common; None if there is none.

    Args:
        given: ``tokenizer.json`` or its folder; None to look for one.
        model: name, folder or ``config.json`` of the model.
        prompt: tokens of the prompt, about as many of which are encoded.

    Raises:
        InputError: the tokenizer that is given cannot be read, or the library is missing.
    """
    if given is not None:
        path = Path(given).expanduser()
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no tokenizer at {shown_path(path)}: give a {FILE} or its folder")
        if importlib.util.find_spec("tokenizers") is None:
            raise InputError(
                "the library tokenizers is not installed: pip install tokenizers, or leave --tokenizer out"
            )
        return _measured(f"{path.parent.name}/{path.name}", _hugging_face(path), prompt)
    own = _own(model)
    if own is not None and importlib.util.find_spec("tokenizers") is not None:
        return _measured(f"the model's {FILE}", _hugging_face(own), prompt)
    tekken = _tekken()
    if tekken is not None and importlib.util.find_spec("tiktoken") is not None:
        return _measured(f"{tekken.name} (mistral_common; not the model's own)", _tiktoken(tekken), prompt)
    return None


def _own(model: str) -> Path | None:
    """Return the tokenizer of the model, in its folder or in the local Hugging Face cache."""
    path = Path(model).expanduser()
    folder = path if path.is_dir() else path.parent if path.suffix == ".json" else None
    if folder is None and model.count("/") == 1:
        folder = cached_folder(model)
    found = folder / FILE if folder else None
    return found if found and found.is_file() else None


def _tekken() -> Path | None:
    """Return the newest tokenizer that is packaged with mistral_common; None where that is not installed."""
    spec = importlib.util.find_spec("mistral_common")
    folders = [Path(place) / "data" for place in (spec.submodule_search_locations or ())] if spec else []
    found = sorted(path for folder in folders for path in folder.glob("tekken_*.json"))
    return found[-1] if found else None


def _hugging_face(path: Path) -> Callable[[str], Sequence[int]]:
    """Return what encodes with the library ``tokenizers``.

    Raises:
        InputError: the file is no tokenizer.
    """
    library: Any = importlib.import_module("tokenizers")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"cannot read the tokenizer {shown_path(path)}: {error}") from None

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.encode(text).ids
        return ids

    return encode


def _tiktoken(path: Path) -> Callable[[str], Sequence[int]]:
    """Return what encodes with ``tiktoken`` and the vocabulary of a tekken file, without its special tokens."""
    import base64

    library: Any = importlib.import_module("tiktoken")
    content = json.loads(path.read_text(encoding="utf-8"))
    config = content["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"][:size]}
    encoding = library.Encoding(path.stem, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = encoding.encode_ordinary(text)
        return ids

    return encode


def _measured(name: str, encode: Callable[[str], Sequence[int]], prompt: int) -> TokenizerRate:
    text = sample(min(max(CHARACTERS * prompt, LEAST_CHARACTERS), MOST_CHARACTERS))
    encode(text[:WARM])
    start = time.perf_counter()
    tokens = len(encode(text))
    return TokenizerRate(name, tokens / (time.perf_counter() - start), tokens)


def sample(characters: int) -> str:
    """Return so many characters of English text: the help on topics that is part of Python."""
    from pydoc_data.topics import topics

    text = "\n".join(topics.values())
    return (text * (characters // len(text) + 1))[:characters]
