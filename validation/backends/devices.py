"""The machine that an engine runs on: names of devices, driver, clocks and throttling. NVML is asked where it is there."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from costmodel.hardware.catalog import load_gpu, resolve_gpu
from costmodel.hardware.errors import InputError
from costmodel.validation.measurements.measuring import Seen
from costmodel.validation.measurements.types import Machine

REASONS: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that slow a busy GPU down; idle, set clocks and the display's are none."""
REASON_CALLS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The call that returns them, and what it was called before."""
NVML_CLOCKS: Final = {"sm": 1, "memory": 2}
"""NVML's numbers of the clocks."""


def device_name(kind: str) -> str:
    """Return the name of the device that torch computes on, by the driver or the system.

    Args:
        kind: ``cuda`` (also AMD's) or ``cpu``.
    """
    if kind == "cuda":
        import torch

        return str(torch.cuda.get_device_name(torch.cuda.current_device()))
    return cpu_name()


def cpu_name() -> str:
    """Return the name of this machine's CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def memory_bytes() -> float:
    """Return the memory of this machine [B].

    Raises:
        InputError: the system does not tell.
    """
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # Windows has no such function, other systems may not have the names
        return float(_windows_memory().total)


def available_bytes() -> float:
    """Return the memory of this machine that is available [B]; all of it where the system does not tell.

    Raises:
        InputError: it does not tell that either.
    """
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return memory_bytes() if hasattr(os, "sysconf") else float(_windows_memory().available)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    length: int
    total: int
    available: int
    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


def _windows_memory() -> _MemoryStatus:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    windows = getattr(ctypes, "windll", None)
    if windows is None or not windows.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise InputError("the system does not tell how much memory this machine has")
    return status


def local_machine(kind: str, count: int = 1) -> Machine:
    """Return the machine that this process runs on, without torch, which would take a place on the GPU.

    Args:
        kind: ``cuda`` or ``cpu``.
        count: devices of the engine.
    """
    if kind == "cpu":
        name = cpu_name()
        return Machine(profile=profile_of(name, None), device=name)
    names = _driver_names()
    device = names[0] if names else "unknown GPU"
    return Machine(profile=profile_of(device, None), device=device, count=count)


def _driver_names() -> list[str]:
    """Return the names of the GPUs here, as the driver gives them; none where it does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        found = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def profile_of(device: str, asked: str | None) -> str | None:
    """Return the canonical name of a device's profile.

    Args:
        device: as the driver has it.
        asked: name of a part or a profile file, that the user knows better; None to go by the device.

    Raises:
        InputError: what was asked for is no part and no profile.
    """
    if asked is not None:
        return load_gpu(asked)[1].name
    try:
        return resolve_gpu(device).name
    except InputError:
        return None


class Nvml:
    """NVIDIA's management library, as far as it is there.

    Args:
        devices: of torch whose driver is asked, by torch's index.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = _library()
            self._nvml.nvmlInit()
        except Exception:  # no library, no driver, no permission: then nobody can tell
            self._nvml = None
            return
        try:
            self._handles = [self._handle(each) for each in devices]
        except Exception:  # a device that this library does not know; the driver's version can still be told
            self._handles = []

    def _handle(self, device: int) -> Any:
        """Return NVML's handle of a device; of a part of one (MIG) that of the whole, whose clocks it has."""
        import torch

        found = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if found is None:
            return self._nvml.nvmlDeviceGetHandleByIndex(device)
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{found}".encode())
        except Exception:  # the error has another class in every copy of the library
            part = self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{found}".encode())
            return self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)

    def driver(self) -> str | None:
        """Return the driver's version."""
        if self._nvml is None:
            return None
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except Exception:  # as in some containers
            return None
        return version.decode() if isinstance(version, bytes) else str(version)

    def seen(self) -> Seen | None:
        """Return the lowest clocks among the devices now, and what throttles any of them."""
        if self._nvml is None or not self._handles:
            return None
        try:
            clocks = {
                name: float(min(self._nvml.nvmlDeviceGetClockInfo(handle, number) for handle in self._handles))
                for name, number in NVML_CLOCKS.items()
            }
        except Exception:  # a driver that does not tell, as in some virtual machines
            clocks = {}
        return Seen(clocks, self._throttled())

    def _throttled(self) -> tuple[str, ...] | None:
        for name in REASON_CALLS:
            ask = getattr(self._nvml, name, None)
            if ask is None:
                continue
            bits = 0
            try:
                for handle in self._handles:
                    bits |= int(ask(handle))
            except Exception:  # a library newer than the driver has the new name, and the driver only the old one
                continue
            return tuple(reason for bit, reason in REASONS.items() if bits & bit)
        return None


def _library() -> Any:
    """Return NVML's Python bindings: those installed, or those that vLLM carries."""
    try:
        import pynvml

        return pynvml
    except ImportError:
        from vllm.third_party import pynvml as carried

        return carried


def _system() -> str:
    """Return the operating system, without what its owner calls this build of it."""
    return f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"


def versions(nvml: Nvml | None = None) -> dict[str, str]:
    """Return the versions of Python, the system, torch, CUDA or ROCm and the driver."""
    import torch

    found = {"python": platform.python_version(), "system": _system(), "torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        found["cuda"] = str(torch.version.cuda)
    if getattr(torch.version, "hip", None) is not None:
        found["rocm"] = str(torch.version.hip)
    if nvml is not None and (driver := nvml.driver()) is not None:
        found["driver"] = driver
    return found
