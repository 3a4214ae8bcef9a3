"""The token budget trades the stall of everybody for the first token of one: simulated, on one GPU, for several budgets."""

from __future__ import annotations

import costmodel

BUDGETS = (512, 1024, 2048, 4096, None)
"""``--max-num-batched-tokens``; None for the whole prompt in one step."""

print("32 streams of Llama-3.1-8B on an H100, a prompt of 8,000 tokens every 10 s, 40 s simulated")
print("  budget   longest gap   gaps over 50 ms   TTFT of the prompt (median)")
for budget in BUDGETS:
    found = costmodel.simulate_interference(8000, 32, gpu="h100", chunk=budget, limits=costmodel.Limits(stall=0.050))
    injected = found.injected
    assert injected is not None
    assert injected.itl is not None
    assert injected.ttft is not None
    name = "one step" if budget is None else f"{budget:,}"
    print(
        f"  {name:>8}   {injected.itl.max_s * 1e3:8.1f} ms   {injected.stall_detail.over_limit / 32:15.0f}   "
        f"{injected.ttft.p50_s * 1e3:8.1f} ms"
    )

load = costmodel.simulate_load(rate=8, requests=500, prompt=2000, output=200, spread=0.5, gpu="h100")
result = load.result
assert result is not None
assert result.ttft is not None
print(f"8 requests/s: TTFT p50 {result.ttft.p50_s * 1e3:.0f} ms, p99 {result.ttft.p99_s * 1e3:.0f} ms")
