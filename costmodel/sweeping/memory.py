"""How much memory this machine has left."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def free_memory() -> int | None:
    """Return the memory that can be had without swapping [B], as Linux estimates it; None where the system does not say."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
