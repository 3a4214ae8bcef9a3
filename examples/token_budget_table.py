"""Many steps at once: the largest token budget whose mixed step stays under an ITL limit, for several contexts of the streams."""

from __future__ import annotations

from typing import Literal

import numpy as np

import costmodel

LIMIT_S, STREAMS = 0.050, 64
RUNG: Literal["roofline", "calibrated"] = "calibrated"
"""What ``step_times`` takes by default where the part has a calibration; ``roofline`` is the floor."""

budgets = np.arange(STREAMS + 1, 16385)
cached = np.array([0, 8_000, 32_000, 64_000])

times = costmodel.step_times(
    rung=RUNG,
    gpu="h100",
    model="Llama-3.1-8B",
    prefill_tokens=(budgets - STREAMS)[None, :],
    prefill_cached=cached[:, None],
    decodes=STREAMS,
    decode_context=2000,
).total

print(
    f"largest --max-num-batched-tokens with every step under {LIMIT_S * 1e3:.0f} ms beside {STREAMS} streams ({RUNG} rung)"
)
for row, before in zip(times, cached, strict=True):
    fits = budgets[row <= LIMIT_S]
    print(f"  {before:>6,} tokens of the prompt cached: {fits.max() if fits.size else 'none'}")
