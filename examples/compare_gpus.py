"""Which GPU keeps the spike of an 8,000-token prompt under 200 ms, and what does a decode step take there?

A calibrated row is a forecast. A roofline row, of a part that nobody has measured, is a floor: over the limit it says no, under it maybe.
"""

from __future__ import annotations

import costmodel

LIMIT_S = 0.200

print(f"{'GPU':<28}{'rung':<12}{'decode ms':>10}{'spike ms':>10}  under {LIMIT_S * 1e3:.0f} ms")
for gpu in ("h100", "h200", "b200", "a100", "l40s", "mi300x"):
    answer = costmodel.predict(prompt=8000, gpu=gpu, model="Llama-3.1-8B", streams=32)
    within = answer.spike.height_s <= LIMIT_S
    verdict = ("yes" if answer.headline == "calibrated" else "maybe: a floor") if within else "no"
    print(
        f"{answer.gpu.name:<28}{answer.headline:<12}{answer.best.decode_step_s * 1e3:10.2f}{answer.spike.height_s * 1e3:10.1f}  {verdict}"
    )
