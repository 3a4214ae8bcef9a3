"""A GPU that is none: torch's CUDA calls in Python, tensors in the CPU's memory. It knows the rules of streams and captures, no kernels."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

FORBIDDEN = {"cpu", "item", "tolist", "__bool__", "nonzero", "tensor", "randn", "randint", "normal_"}
"""What waits for the device, copies from the host or draws random numbers: not while a stream is captured."""


class OnTheCpu(TorchFunctionMode):
    """Puts what is meant for a GPU into the CPU's memory, and refuses what a capture refuses."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self.cuda.capturing and name in FORBIDDEN:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if name == "linear":
            self.cuda.log.append("kernel")
            self.cuda.used.add(self.cuda.stream)
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class FakeCuda:
    """What happened on the device: ``log`` of kernels, synchronisations, captures and replays; streams that computed."""

    def __init__(self, patch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
        self.log: list[str] = []
        self.used: set[object] = set()
        self.capturing = False
        self.stream: object = "default"
        cuda, generator = torch.cuda, torch.Generator
        properties = SimpleNamespace(
            multi_processor_count=132, L2_cache_size=60 * 2**20, total_memory=2**37, uuid="1234", name="NVIDIA H200"
        )
        for name, value in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "get_device_name": lambda device=None: "NVIDIA H200",
            "get_device_properties": lambda device: properties,
            "get_device_capability": lambda device=None: capability,
            "mem_get_info": lambda: (2**33, 2**37),
            "synchronize": self.synchronize,
            "empty_cache": lambda: self.log.append("empty_cache"),
            "Stream": object,
            "stream": self.on_stream,
            "Event": lambda enable_timing: FakeEvent(),
            "CUDAGraph": lambda: FakeGraph(self.log),
            "graph": self.graph,
        }.items():
            patch.setattr(cuda, name, value)
        made = lambda cls, device: generator("cpu")  # noqa: E731
        patch.setattr(torch, "Generator", type("Generator", (), {"__new__": made}))  # a class, as annotations want one

    def synchronize(self) -> None:
        assert not self.capturing
        self.log.append("synchronize")

    @contextmanager
    def on_stream(self, stream: object) -> Any:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def graph(self, graph: FakeGraph, stream: object) -> Any:
        assert stream in self.used, "warm up on the stream that is captured"
        self.log += ["synchronize", "capture"]
        with self.on_stream(stream):
            self.capturing = True
            began = time.perf_counter()
            try:
                yield
            finally:
                self.capturing = False
                graph.seconds = time.perf_counter() - began


class FakeGraph:
    """Takes as long as what was captured."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.seconds = 0.0

    def replay(self) -> None:
        self.log.append("replay")
        time.sleep(self.seconds)


class FakeEvent:
    """Has the time of the host."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1e3 + 1e-6


@contextmanager
def fake_cuda(patch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> Any:
    """Pretend that there is a GPU."""
    cuda = FakeCuda(patch, capability)
    with OnTheCpu(cuda):
        yield cuda
