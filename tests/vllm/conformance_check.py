"""Run by a test in a process of its own: workloads on an engine that computes them, with little memory and a small token budget."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.validation.backends.recordings import Arrival, Settings, write
from costmodel.validation.backends.scheduler_workloads import Workload, arrivals, with_prefixes
from costmodel.validation.backends.vllm_scheduler import run
from tests.vllm.conftest import VOCABULARY

WORKLOADS = 20
BLOCK = 32
"""The least that attention on a CPU takes [tokens]."""
ASKED = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 6,
    "num_gpu_blocks_override": 12,
    "block_size": BLOCK,
    "max_model_len": 256,
    "enable_prefix_caching": True,
}


def settings_of(config: Any) -> Settings:
    """Return what the engine's scheduler goes by, as vLLM has it after all its defaults."""
    scheduler, cache = config.scheduler_config, config.cache_config
    return Settings(
        token_budget=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        kv_blocks=cache.num_gpu_blocks,
        block_tokens=cache.block_size,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=scheduler.long_prefill_token_threshold_adaptive,
        chunked_prefill=scheduler.enable_chunked_prefill,
        prefix_caching=cache.enable_prefix_caching,
        policy=scheduler.policy,
        async_scheduling=bool(scheduler.async_scheduling),
        max_model_len=config.model_config.max_model_len,
        reserve_full_prompt=scheduler.scheduler_reserve_full_isl,
        watermark=scheduler.watermark,
    )


def tokens_of(arrival: Arrival, block_tokens: int) -> list[int]:
    """Return a prompt that the model knows: every named block has its own tokens, and so has every request."""
    sources = [(f"block {name}", block_tokens) for name in arrival.prefix]
    sources.append((f"request {arrival.id}", arrival.prompt - len(arrival.prefix) * block_tokens))
    return [token for name, count in sources for token in random.Random(name).choices(range(VOCABULARY), k=count)]


def draw(settings: Settings, seed: int) -> Workload:
    """Draw staggered requests that the KV cache has room for three of, and the budget for a part of a prompt."""
    rng = random.Random(seed)
    requests = arrivals(rng, rng.randint(6, 12), (4, 150), (6, 60), 20)
    requests = with_prefixes(rng, requests, settings.block_tokens, 2, 0.5)
    return Workload("computed", settings, requests)


def main() -> None:
    """Write recordings of so many workloads, the first of them with this seed."""
    folder, seed, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine's scheduler must be in this process
    from vllm import LLM

    llm = LLM(
        model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32", **ASKED
    )  # fmt: skip
    core = llm.llm_engine.engine_core.engine_core
    settings = settings_of(core.vllm_config)
    recordings = []
    for index in range(WORKLOADS):
        if not core.reset_prefix_cache():
            raise RuntimeError("requests are left over from the workload before")
        recording = run(draw(settings, seed + index), core, tokens_of)
        recordings.append(replace(recording, covers=f"seed {seed + index}"))
    write(out, recordings)


if __name__ == "__main__":
    main()
