"""A capacity plan for one service: which GPU, how the server is set, how many of them, and whether to split prefill from decode.

The numbers at the top are the service's own; prices are yours (a CSV or TOML file will do as well).
"""

from __future__ import annotations

import costmodel

MODEL = "Qwen3-32B"
PEAK_RATE, PROMPT, OUTPUT = 8.0, 1500, 200
"""Requests per second at the peak, and their longest prompt and answer [tokens]; lengths vary by half."""
LONG_PROMPT, EVERY_S = 16_000, 20.0
"""What people paste into a chat now and then [tokens], and how often into one server [s]."""
STREAMS, CONTEXT = 24, 1700
"""Chats that one server should carry, and the longest context of each [tokens]."""
TTFT_S, TPOT_S, STALL_S = 3.0, 0.030, 0.150
"""Limits: first token, mean gap, and the longest gap that anybody should see [s]."""
PRICES = {"h100": 2.5, "h200": 3.2, "b200": 5.0, "l40s": 0.9, "a100": 1.3}
"""Of one GPU for an hour."""

part = costmodel.plan_gpu(
    LONG_PROMPT, STREAMS, CONTEXT, ttft=TTFT_S, tpot=TPOT_S, every=EVERY_S, model=MODEL, prices=PRICES
)
print(f"{MODEL}: {part.binds}")
for option in part.options:
    cost = "" if option.cost_per_hour is None else f"{option.cost_per_hour:6.2f} an hour"
    print(f"  {option.gpus} × {option.gpu:<14} {'yes' if option.meets else 'no ':<4}{cost}  {option.why}")
assert part.advice is not None, part.nearest
gpu, tp = part.advice.gpu or "", part.advice.gpus or 1

chunk = costmodel.plan_chunk(
    LONG_PROMPT, STREAMS, CONTEXT, itl=STALL_S, ttft=TTFT_S, every=EVERY_S, model=MODEL, gpu=gpu, tp=tp
)
assert chunk.advice is not None, chunk.nearest
budget = chunk.advice.max_num_batched_tokens
batch = costmodel.plan_batch(CONTEXT, tpot=TPOT_S, chunk=budget, model=MODEL, gpu=gpu, tp=tp)
assert batch.advice is not None, batch.nearest
seqs = batch.advice.max_num_seqs
print(f"vllm serve {MODEL} -tp {tp} --max-num-batched-tokens {budget} --max-num-seqs {seqs}")
print(f"  {chunk.binds}\n  {batch.binds}")

fleet = costmodel.plan_replicas(
    PEAK_RATE, ttft=TTFT_S, tpot=TPOT_S, percentile=99, prompt=PROMPT, output=OUTPUT, spread=0.5,
    model=MODEL, gpu=gpu, tp=tp, chunk=budget, max_num_seqs=seqs,
)  # fmt: skip
print(f"{PEAK_RATE:g} requests a second: {fleet.binds}")
apart = costmodel.plan_disaggregation(
    PEAK_RATE, ttft=TTFT_S, tpot=TPOT_S, percentile=99, prompt=PROMPT, output=OUTPUT, spread=0.5,
    model=MODEL, gpu=gpu, tp=tp, compare=False,
)  # fmt: skip
print(f"prefill and decode apart: {apart.binds}")
if fleet.advice and apart.advice:
    print(f"GPUs: {fleet.advice.gpus} together, {apart.advice.gpus} apart")
