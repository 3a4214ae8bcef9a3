"""The engine of vLLM as far as it goes without vLLM: what is refused before the start, and what is ended after it."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.errors import InputError
from costmodel.validation.backends import vllm_engine
from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.vllm_engine import VllmEngine


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a made-up vLLM was told to do; its engine has no scheduler."""
    told: list[str] = []
    core = SimpleNamespace(engine_core=SimpleNamespace(vllm_config=None), shutdown=lambda: told.append("shutdown"))
    started = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=core, step=None))

    def start(_: Any) -> Any:
        told.append("start")
        return started

    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: None)
    monkeypatch.setattr(VllmEngine, "_start", start)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    return told


@pytest.mark.parametrize(
    ("platform", "size", "bound", "expected"),
    [
        (("cpu", 2), 1, None, []),
        (("cuda", None), 1, None, []),
        (("cpu", 1), 2, None, []),
        (("cpu", 2), 1, "0", ["start", "shutdown"]),  # vLLM might have taken one thread
    ],
)
def test_the_clock_is_refused_before_the_start_where_threads_are_known(
    happened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    platform: tuple[str, int | None],
    size: int,
    bound: str | None,
    expected: list[str],
) -> None:
    monkeypatch.setattr(VllmEngine, "_platform", lambda _: platform)
    if bound is not None:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bound)
    folder = tempfile.gettempdir()
    with pytest.raises(InputError, match="OMP_NUM_THREADS=1"):
        VllmEngine(Asked("Llama-3.2-1B", random_weights=True, tensor_parallel=size, clock="cpu"))
    assert happened == expected
    assert tempfile.gettempdir() == folder


def test_whatever_fails_after_the_start_ends_the_engine(happened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmEngine, "_platform", lambda _: ("cpu", 1))
    with pytest.raises(AttributeError, match="scheduler_config"):
        VllmEngine(Asked("Llama-3.2-1B", random_weights=True))
    assert happened == ["start", "shutdown"]
