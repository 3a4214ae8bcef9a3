"""The lines that only a GPU runs, on a pretended one: order of waiting, warming up and capturing; shapes that torch's own checks accept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if os.environ.get("COSTMODEL_REQUIRE_VLLM") != "1":
    pytest.importorskip("torch", reason="needs vLLM, which brings torch (docs/measure-your-server.md)")

import torch

from costmodel.architecture.source import load_model
from costmodel.validation.backends import devices, torch_engine, torch_llama, torch_probe
from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.torch_engine import TorchEngine
from costmodel.validation.measurements.measuring import Missed
from costmodel.validation.measurements.plan import Point

from .fake_cuda import FakeCuda, fake_cuda

pytestmark = pytest.mark.vllm


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as found:
        yield found


@pytest.fixture
def engine(cuda: FakeCuda, tiny_model: Path) -> TorchEngine:
    return TorchEngine(
        Asked(str(tiny_model), True, dtype="fp32", max_num_batched_tokens=256, max_model_len=512), "cuda"
    )


@pytest.mark.parametrize(
    "point", [Point("decode", decodes=4, context=33), Point("mixed", (16, 32), 4, 33, True)], ids=["decode", "mixed"]
)
def test_a_step_is_warmed_up_on_the_stream_that_is_captured_and_then_replayed(
    point: Point, engine: TorchEngine, cuda: FakeCuda
) -> None:
    cuda.log.clear()
    samples = engine.run(point, 3, float("inf"))
    assert len(samples) == 3
    assert cuda.log.count("capture") == 1
    assert cuda.log.count("replay") >= 4  # one that is not counted
    after = cuda.log[cuda.log.index("replay") :]
    assert after[1] == "synchronize"
    assert "kernel" not in after


def test_without_graphs_no_warm_up_is_still_running_when_the_first_repeat_begins(
    cuda: FakeCuda, tiny_model: Path
) -> None:
    engine = TorchEngine(Asked(str(tiny_model), True, dtype="fp32", enforce_eager=True), "cuda")
    assert engine.header().engine.flags["cuda_graphs"] is False
    with torch.inference_mode():
        step = engine._prepared(Point("mixed", (16, 32), 4, 33, True))
        assert cuda.log[-1] == "synchronize"
        assert "capture" not in cuda.log
        assert step().shape == (5,)


def test_a_step_that_cannot_be_captured_is_launched_and_the_header_says_so(
    cuda: FakeCuda, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotation = torch_llama.Llama._rotation

    def with_a_copy_from_the_host(model: torch_llama.Llama, positions: Any) -> Any:
        torch.tensor(1.0, device="cuda")
        return rotation(model, positions)

    monkeypatch.setattr(torch_llama.Llama, "_rotation", with_a_copy_from_the_host)
    engine = TorchEngine(Asked(str(tiny_model), True, dtype="fp32"), "cuda")
    assert engine.header().engine.flags["cuda_graphs"] is False
    assert len(engine.run(Point("decode", decodes=4, context=33), 2, float("inf"))) == 2


def test_a_step_beyond_the_memory_is_left_out_and_an_error_of_the_device_is_not(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: BaseException) -> None:
        def cache(sequences: int, tokens: int) -> Any:
            raise error

        monkeypatch.setattr(engine._model, "cache", cache)

    point = Point("decode", decodes=4, context=33)
    fail(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(Missed, match="memory of the device"):
        engine.run(point, 1, float("inf"))
    fail(RuntimeError("cuDNN error\nmore"))
    with pytest.raises(Missed, match=r"^cuDNN error$"):
        engine.run(point, 1, float("inf"))
    monkeypatch.setattr(torch.cuda, "synchronize", fail_again)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.run(point, 1, float("inf"))


def fail_again() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_header_and_limits_of_a_gpu(engine: TorchEngine) -> None:
    header = engine.header()
    assert (header.machine.profile, header.machine.device, header.clock) == ("h200", "NVIDIA H200", "wall")
    assert header.engine.flags["cuda_graphs"] is True
    assert engine.limits.kv_tokens == int(2**33 / 2 / (2 * 6 * 2 * 64 * 4))
    engine.close()


def test_clocks_are_looked_at_while_the_device_computes(
    cuda: FakeCuda, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock(handle: object, number: int) -> int:
        assert cuda.log[-1] == "replay"  # and has not been waited for
        return 1980

    monkeypatch.setattr(devices, "_library", lambda: library(nvmlDeviceGetClockInfo=clock))
    engine = TorchEngine(Asked(str(tiny_model), True, dtype="fp32"), "cuda")
    assert engine.seen() is None
    engine.run(Point("decode", decodes=2, context=17), 1, float("inf"))
    seen = engine.seen()
    assert seen is not None
    assert seen.clocks_mhz == {"sm": 1980, "memory": 1980}
    assert cuda.log[-1] == "synchronize"


def library(**calls: Any) -> Any:
    """NVML's bindings."""

    def by_uuid(name: bytes) -> str:
        assert name == b"GPU-1234"
        return "whole"

    return SimpleNamespace(
        **{
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": by_uuid,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetClockInfo": lambda handle, number: 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x05,
        }
        | calls
    )


def test_nvml_of_a_part_of_a_device_and_of_an_old_driver(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise OSError("not known")

    def by_uuid(name: bytes) -> str:
        if name != b"MIG-1234":
            raise OSError("not found")
        return "part"

    def whole(part: str) -> str:
        assert part == "part"
        return "whole"

    mig = library(nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetDeviceHandleFromMigDeviceHandle=whole)
    monkeypatch.setattr(devices, "_library", lambda: mig)
    seen = devices.Nvml([0]).seen()
    assert seen is not None
    assert (seen.clocks_mhz["sm"], seen.throttled) == (1980, ("power cap",))

    old = library(
        nvmlDeviceGetCurrentClocksEventReasons=fails,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40,
        nvmlSystemGetDriverVersion=lambda: b"535",
    )
    monkeypatch.setattr(devices, "_library", lambda: old)
    nvml = devices.Nvml([0])
    assert nvml.driver() == "535"
    assert nvml._throttled() == ("thermal, by hardware",)

    unknown = library(nvmlDeviceGetHandleByUUID=fails, nvmlSystemGetDriverVersion=fails)
    monkeypatch.setattr(devices, "_library", lambda: unknown)
    nvml = devices.Nvml([0])
    assert (nvml.seen(), nvml.driver()) == (None, None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_probe, "SIZES", {"cuda": (64, 128)})
    monkeypatch.setattr(torch_probe, "COPIED", {"cuda": 2**20})
    monkeypatch.setattr(torch_probe, "BETWEEN_DEVICES", 2**20)


def test_one_product_that_fails_leaves_the_others(cuda: FakeCuda, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise RuntimeError("self.size(0) needs to be greater than 16")

    monkeypatch.setattr(torch, "_int_mm", fails)
    found = torch_probe.probe("cuda", 0.5)
    assert {"fp32", "bf16"} <= found.profile.peak_flops.keys()
    assert not {"int8", "fp4"} & found.profile.peak_flops.keys()
    assert found.profile.compute_units is not None
    assert found.profile.compute_units.value == 132
    assert found.profile.link.kind == "pcie"
    assert {rate.what for rate in found.rates} >= {"copy", "matrix times vector", "host to device"}


def test_memory_that_cannot_be_pinned_leaves_the_rest(
    cuda: FakeCuda, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(kind: str, seconds: float) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch_probe, "_link", fails)
    found = torch_probe.probe("cuda", 0.5)
    assert found.profile.link.kind == "none"


@pytest.mark.parametrize(
    ("way", "capability"), [("fp8", (9, 0)), ("int8", (9, 0)), ("fp4", (10, 0)), ("bf16", (9, 0)), ("fp32", (9, 0))]
)
def test_torch_accepts_the_shapes_of_every_product(
    way: Any, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own checks of sizes, strides and scales for a GPU, on tensors without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for side in torch_probe.SIZES["cuda"]:
        with FakeTensorMode():
            [make] = torch_probe._multiplications(way, "cuda")
            product = make(way, "cuda", side)()
        assert product.shape == (side, side)
        assert product.device.type == "cuda"


def test_no_fp4_before_blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert torch_probe._time_of(torch_probe._fp4_product, "fp4", "cuda", 64, 0.1) is None


@pytest.mark.parametrize("flash", [True, False])
def test_steps_on_a_gpu_have_the_right_shapes_with_and_without_flash_attention(
    flash: bool, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without FlashAttention heads are multiplied out, so that torch need not form all pairs."""
    heads = []

    def attention(queries: Any, keys: Any, values: Any, attn_mask: Any = None, **flags: Any) -> Any:
        heads.append((keys.shape[1], bool(flags.get("enable_gqa")), attn_mask is not None))
        assert keys.shape == values.shape
        return torch.empty_like(queries)

    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda parameters: flash)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    unseeded = type("Generator", (), {"__new__": lambda cls, device: SimpleNamespace(manual_seed=lambda seed: None)})
    monkeypatch.setattr(torch, "Generator", unseeded)
    shape = torch_llama.shape_of(load_model(str(tiny_model))[0])
    with torch.inference_mode():  # "meta": any device but a CPU, and no memory
        model = torch_llama.Llama(shape, "meta", torch.bfloat16, 0)
        tokens = torch.empty(19, dtype=torch.int64, device="meta")
        out = model.step(tokens, model.cache(1, 48), model.cache(3, 33), (16, 32), 32)
        model.step(tokens[:16], model.cache(1, 16), None, (16, 0), 0)
        model.step(tokens[:3], None, model.cache(3, 33), (0, 0), 32)
    assert out.shape == (4,)
    assert {each[:2] for each in heads} == ({(2, True)} if flash else {(4, False)})
    assert any(each[2] for each in heads)


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(torch_engine.InputError, match="torch finds no GPU"):
        torch_engine.device_kind("cuda")
