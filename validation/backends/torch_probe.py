"""Rates of a device as torch gets them: copies, reads and matrix products. They make a profile for a part that nobody has described.

What is measured is below the datasheet, so a roofline on such a profile is no floor, only a good guess of one. It must not be far below:
steps that are faster than it cannot be fitted. So every rate is the best of several sizes, in rounds, since what disturbs one round is
often gone in the next.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import ComputeDtype, Figure, GpuProfile, Link, Source
from costmodel.validation.backends.asked import now
from costmodel.validation.backends.devices import Nvml, device_name, memory_bytes, versions
from costmodel.validation.backends.torch_engine import device_kind, import_torch

SOURCE: Final = "probe"
SIZES: Final = {"cuda": (2048, 4096, 8192, 16384), "cpu": (256, 512, 1024, 2048)}
"""Sides of the square matrices that are multiplied, ascending: a larger one only while there is time."""
COPIED: Final = {"cuda": 2**30, "cpu": 2**27}
"""Bytes of a copy: far more than any cache."""
BETWEEN_DEVICES: Final = 2**28
"""Bytes of a copy between host and device."""
PRODUCTS: Final[dict[ComputeDtype, str]] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "fp4": "float4_e2m1fn_x2",
}
"""costmodel's names of compute dtypes, and torch's of their operands."""
LEAST_SHARE: Final = 0.1
"""A dtype slower than this share of the fastest 16-bit or fp32 one is emulated, and is no dtype to compute in."""
PLAIN: Final = ("fp32", "bf16", "fp16")
"""Dtypes that a plain product takes."""
ROUNDS: Final = 3
"""How often everything is measured; the best counts."""
BATCH_SECONDS: Final = 0.005
"""Kernels of a GPU are timed back to back for about so long, so that a launch is hidden behind the kernel before it."""
MOST_BATCHED: Final = 100
BROKEN: Final = (RuntimeError, AttributeError, TypeError, NotImplementedError)
"""What torch raises for what a device, or this torch, does not have; memory that is not there is among them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that was measured.

    Attributes:
        what: was measured.
        value: per second.
        seconds: of the shortest repeat [s].
        detail: sizes.
    """

    what: str
    value: float
    seconds: float
    detail: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe found.

    Attributes:
        profile: made of it.
        rates: behind its numbers.
        versions: of what measured.
    """

    profile: GpuProfile
    rates: tuple[Rate, ...]
    versions: dict[str, str]


def probe(device: str | None, seconds: float, name: str | None = None) -> Probe:
    """Measure a device and describe it as a profile.

    Args:
        device: ``cuda``, ``cpu``, or None for a GPU if there is one.
        seconds: for all of it [s].
        name: of the part; None for the driver's.

    Raises:
        InputError: torch is missing, or there is no such device.
    """
    torch = import_torch()
    kind = device_kind(device)
    bandwidths, products, link = _rounds(kind, seconds)
    plain = [rate.value for dtype, rate in products.items() if dtype in PLAIN]
    if not bandwidths or not plain:
        raise InputError(f"torch computes nothing on this {kind} device; does `torch.ones(1, device='{kind}')` work?")
    kept = {
        dtype: rate for dtype, rate in products.items() if rate.value >= LEAST_SHARE * max(plain) or dtype == "fp32"
    }
    title = name or device_name(kind)
    profile = _profile(title, kind, bandwidths, kept, link)
    every = (*bandwidths, *kept.values(), *([link] if link else []))
    return Probe(profile, every, versions(Nvml([torch.cuda.current_device()]) if kind == "cuda" else None))


def _rounds(kind: str, seconds: float) -> tuple[list[Rate], dict[ComputeDtype, Rate], Rate | None]:
    """Return the best rates of memory, of products by dtype, and of the link, of several rounds."""
    share = seconds / (ROUNDS * (len(PRODUCTS) + 3))
    bandwidths: dict[str, Rate] = {}
    products: dict[ComputeDtype, Rate] = {}
    link: Rate | None = None
    with import_torch().inference_mode():
        for index in range(ROUNDS):
            with suppress(*BROKEN):  # what came before the failure counts
                for rate in _bandwidths(kind, share):
                    bandwidths[rate.what] = _better(bandwidths.get(rate.what), rate)
            for dtype in PRODUCTS if index == 0 else tuple(products):
                if (found := _product(dtype, kind, share)) is not None:
                    products[dtype] = _better(products.get(dtype), found)
            with suppress(*BROKEN):  # memory that cannot be pinned
                if (moved := _link(kind, share)) is not None:
                    link = _better(link, moved)
    return list(bandwidths.values()), products, link


def _better(one: Rate | None, other: Rate) -> Rate:
    return other if one is None or other.value > one.value else one


def _profile(
    title: str, kind: str, rates: list[Rate], products: dict[ComputeDtype, Rate], link: Rate | None
) -> GpuProfile:
    memory = max(rates, key=lambda rate: rate.value)
    total, figures = _sizes(kind)
    threads = f"threads: {import_torch().get_num_threads()}, " if kind == "cpu" else ""
    where = Source(
        title=f"costmodel gpus probe: {title}, {threads}torch {import_torch().__version__}, {now()}",
        url="measured:costmodel-gpus-probe",
        note="measured, so below the datasheet",
    )
    return GpuProfile(
        schema="costmodel.gpu/1",
        name=title if len(title) > 1 else f"part {title}",
        vendor=_vendor(kind),
        architecture=_architecture(kind),
        peak_flops={dtype: _figure(rate.value, rate.detail) for dtype, rate in products.items()},
        memory_bandwidth=_figure(memory.value, f"{memory.what}, {memory.detail}"),
        memory_nominal=_figure(total, "as the system has it"),
        memory_visible=_figure(total, "as the system has it"),
        link=Link(
            kind="none" if link is None else "pcie",
            bandwidth_per_direction=_figure(link.value, link.detail)
            if link is not None
            else _figure(memory.value, "no link: one device, whose memory bandwidth this is"),
            gpus_per_node=_figure(float(max(import_torch().cuda.device_count(), 1)), "as torch counts them"),
        ),
        sources={SOURCE: where},
        **figures,
    )


def _figure(value: float, note: str) -> Figure:
    """Return a number with four digits; bytes and counts as they are."""
    rounded = value if value < 1e4 else float(f"{value:.4g}")
    return Figure(value=rounded, source=SOURCE, note=note)


def _sizes(kind: str) -> tuple[float, dict[str, Figure]]:
    """Return the device's memory [B], and what the driver says of caches, units and power."""
    if kind == "cpu":
        return memory_bytes(), {}
    cuda = import_torch().cuda
    properties = cuda.get_device_properties(cuda.current_device())
    found = {"compute_units": properties.multi_processor_count, "l2_cache": getattr(properties, "L2_cache_size", 0)}
    figures = {
        key: Figure(value=float(value), source=SOURCE, note="by the driver") for key, value in found.items() if value
    }
    return float(properties.total_memory), figures


def _vendor(kind: str) -> Any:
    if kind == "cuda":
        return "amd" if getattr(import_torch().version, "hip", None) else "nvidia"
    name = device_name(kind).casefold()
    return next((vendor for vendor in ("intel", "amd") if vendor in name), "other")


def _architecture(kind: str) -> str:
    if kind == "cpu":
        return "cpu"
    major, minor = import_torch().cuda.get_device_capability()
    return f"compute capability {major}.{minor}"


def _bandwidths(kind: str, seconds: float) -> Iterator[Rate]:
    """Yield the bandwidth of a copy, which reads and writes, and of reading alone."""
    torch = import_torch()
    size = COPIED[kind]
    if kind == "cuda":
        size = min(size, int(torch.cuda.mem_get_info()[0] // 4))
    one = torch.ones(size // 4, device=kind, dtype=torch.float32)
    other = torch.empty_like(one)
    shortest = best_time(lambda: other.copy_(one), kind, seconds)
    yield Rate("copy", 2 * size / shortest, shortest, f"{size / 2**20:.0f} MiB, read and written")
    matrix, vector = one[: size // 4 // 4096 * 4096].view(-1, 4096), torch.ones(4096, device=kind)
    shortest = best_time(lambda: matrix @ vector, kind, seconds)
    yield Rate(
        "matrix times vector", matrix.numel() * 4 / shortest, shortest, f"{matrix.numel() * 4 / 2**20:.0f} MiB read"
    )


def _product(dtype: ComputeDtype, kind: str, seconds: float) -> Rate | None:
    """Return the best rate of matrix products in a dtype; None where the device has none."""
    best: Rate | None = None
    end = time.monotonic() + seconds
    for side in SIZES[kind]:
        if best is not None and time.monotonic() + 8 * 4 * best.seconds > end:  # eight times the work, a few repeats
            break
        each = max(min(seconds / len(SIZES[kind]), end - time.monotonic()), 0)
        ways = _multiplications(dtype, kind)
        times = [_time_of(way, dtype, kind, side, each / len(ways)) for way in ways]
        known = [found for found in times if found is not None]
        if not known:
            break
        shortest = min(known)
        rate = Rate(
            f"product in {dtype}", 2.0 * side**3 / shortest, shortest, f"product of matrices of {side} × {side}"
        )
        best = _better(best, rate)
    return best


Way = Callable[[ComputeDtype, str, int], Callable[[], Any]]
"""From a dtype, a device and the side of two matrices to what multiplies them."""


def _time_of(way: Way, dtype: ComputeDtype, kind: str, side: int, seconds: float) -> float | None:
    """Return the shortest time of a product [s]; None where this device, or this torch, does not have it."""
    try:
        return best_time(way(dtype, kind, side), kind, seconds)
    except BROKEN:
        return None


def _multiplications(dtype: ComputeDtype, kind: str) -> list[Way]:
    """Return the ways in which torch multiplies two matrices.

    On a CPU there are two libraries: MKL, which is slow on AMD's, behind a plain product, and oneDNN, which engines use.
    """
    if dtype == "int8":
        return [_int8_product]
    if dtype == "fp8":
        return [_fp8_product]
    if dtype == "fp4":
        return [_fp4_product]
    if dtype == "fp32" and kind == "cpu":
        return [_plain_product, _onednn_product]
    return [_plain_product]


def _plain_product(dtype: ComputeDtype, kind: str, side: int) -> Callable[[], Any]:
    torch = import_torch()
    operand = getattr(torch, PRODUCTS[dtype])
    left, right = (torch.randn(side, side, device=kind).to(operand) for _ in range(2))
    return lambda: left @ right.t()


def _int8_product(dtype: ComputeDtype, kind: str, side: int) -> Callable[[], Any]:
    """int8 into int32: more than 16 rows, sides in multiples of 8; the second matrix is transposed, as cuBLAS wants it."""
    torch = import_torch()
    left, right = (torch.randint(-8, 8, (side, side), device=kind, dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(left, right.t())


def _fp8_product(dtype: ComputeDtype, kind: str, side: int) -> Callable[[], Any]:
    """fp8 into bf16 with one fp32 scale each; sides in multiples of 16, the second matrix by columns, sums as engines have them (fast)."""
    torch = import_torch()
    fnuz = kind == "cuda" and getattr(torch.version, "hip", None) and torch.cuda.get_device_capability() == (9, 4)
    operand = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn  # MI300 has a format of its own
    left, right = (torch.randn(side, side, device=kind).to(operand) for _ in range(2))
    scale = torch.ones((), device=kind, dtype=torch.float32)
    return lambda: torch._scaled_mm(
        left, right.t(), scale, scale, out_dtype=torch.bfloat16, use_fast_accum=kind == "cuda"
    )


def _fp4_product(dtype: ComputeDtype, kind: str, side: int) -> Callable[[], Any]:
    """nvfp4 into bf16: two numbers a byte along k, an fp8 scale for every 16 of them; as all scales are one, their order is no matter.

    Raises:
        NotImplementedError: the device is none of NVIDIA's Blackwell.
    """
    torch = import_torch()
    if kind != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability() < (10, 0):
        raise NotImplementedError(PRODUCTS["fp4"])
    left, right = (
        torch.randint(0, 256, (side, side // 2), device=kind, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        for _ in range(2)
    )
    scales = torch.ones(side * side // 16, device=kind).to(torch.float8_e4m3fn)
    return lambda: torch._scaled_mm(left, right.t(), scales, scales, out_dtype=torch.bfloat16)


def _onednn_product(dtype: ComputeDtype, kind: str, side: int) -> Callable[[], Any]:
    torch = import_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own code
        from torch.utils.mkldnn import to_mkldnn

    layer = to_mkldnn(torch.nn.Linear(side, side, bias=False).eval())
    rows = torch.randn(side, side).to_mkldnn()
    return lambda: layer(rows)


def _link(kind: str, seconds: float) -> Rate | None:
    """Return the bandwidth from the host to a GPU; None for a CPU."""
    if kind == "cpu":
        return None
    torch = import_torch()
    host = torch.empty(BETWEEN_DEVICES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(BETWEEN_DEVICES, dtype=torch.uint8, device=kind)
    shortest = best_time(lambda: device.copy_(host, non_blocking=True), kind, seconds)
    detail = f"{BETWEEN_DEVICES / 2**20:.0f} MiB from the host; a link between GPUs was not measured"
    return Rate("host to device", BETWEEN_DEVICES / shortest, shortest, detail)


def best_time(work: Callable[[], Any], kind: str, seconds: float) -> float:
    """Return the shortest of several repeats, after one that is not counted [s]; at least three, then until the time ends.

    One thread of a CPU is timed by its CPU time, so what else the machine does counts less. A GPU is timed by its own events around
    kernels that follow one another.
    """
    end = time.monotonic() + seconds
    work()
    timed = _gpu_time(work) if kind == "cuda" else _cpu_time(work)
    shortest, repeats = math.inf, 0
    while repeats < 3 or time.monotonic() < end:
        shortest = min(shortest, timed())
        repeats += 1
    if kind == "cuda":
        import_torch().cuda.empty_cache()
    return shortest


def _cpu_time(work: Callable[[], Any]) -> Callable[[], float]:
    clock = time.process_time if import_torch().get_num_threads() == 1 else time.perf_counter

    def timed() -> float:
        began = clock()
        work()
        return clock() - began

    return timed


def _gpu_time(work: Callable[[], Any]) -> Callable[[], float]:
    cuda = import_torch().cuda
    began, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def batch(size: int) -> float:
        began.record()
        for _ in range(size):
            work()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3 / size  # torch has milliseconds

    cuda.synchronize()
    size = min(max(math.ceil(BATCH_SECONDS / max(batch(1), 1e-9)), 1), MOST_BATCHED)
    return lambda: batch(size)


def to_toml(profile: GpuProfile) -> str:
    """Return a profile as the text of its file."""
    import tomli_w

    return tomli_w.dumps(profile.model_dump(by_alias=True, exclude_none=True, mode="json"))
