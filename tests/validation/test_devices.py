"""What is found out of the machine."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.errors import InputError
from costmodel.validation.backends.devices import available_bytes, memory_bytes


def test_the_memory_is_what_the_system_tells() -> None:
    assert 0 < available_bytes() <= memory_bytes() < 1e15


def test_windows_tells_by_a_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried on a made-up Windows: without sysconf, with its structure of 64 bytes."""

    def status(pointer: Any) -> int:
        found = pointer._obj
        assert found.length == ctypes.sizeof(found) == 64
        found.total, found.available = 16 * 2**30, 5 * 2**30
        return 1

    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(InputError, match="does not tell how much memory"):
        memory_bytes()
    kernel = SimpleNamespace(GlobalMemoryStatusEx=status)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert memory_bytes() == 16 * 2**30
    monkeypatch.setattr("costmodel.validation.backends.devices.Path", lambda _: SimpleNamespace(read_text=missing))
    assert available_bytes() == 5 * 2**30


def missing(**_: str) -> str:
    raise FileNotFoundError
