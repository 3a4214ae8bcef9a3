"""The speed of a tokenizer: measured where one is installed, None where none is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from costmodel.errors import InputError
from costmodel.validation import tokenizing
from costmodel.validation.tokenizing import measure_tokenizer, sample


def test_the_sample_is_english_of_the_length_asked_for() -> None:
    assert len(sample(1000)) == 1000
    assert len(sample(3_000_000)) == 3_000_000
    assert " the " in sample(5000)


def test_a_rate_is_tokens_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0])
    monkeypatch.setattr(tokenizing.time, "perf_counter", lambda: next(times))
    found = tokenizing._measured("words", lambda text: [0] * (len(text) // 4), 20_000)
    assert found == tokenizing.TokenizerRate("words", 10_000.0, 20_000)


def test_none_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert measure_tokenizer(None, "Llama-3.1-8B", 100) is None
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert measure_tokenizer(None, str(tmp_path), 100) is None
    with pytest.raises(InputError, match="tokenizers is not installed"):
        measure_tokenizer(str(tmp_path), "Llama-3.1-8B", 100)
    with pytest.raises(InputError, match="no tokenizer at"):
        measure_tokenizer(str(tmp_path / "nothing"), "Llama-3.1-8B", 100)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="cannot read the tokenizer"):
        measure_tokenizer(str(tmp_path), "Llama-3.1-8B", 100)


def test_an_installed_tokenizer_is_faster_than_a_model(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    pytest.importorskip("mistral_common")
    found = measure_tokenizer(None, "Llama-3.1-8B", 8000)
    assert found is not None
    assert "mistral_common" in found.name
    assert found.tokens_per_s > 10_000
