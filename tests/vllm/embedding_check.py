"""Runs in a process of its own: steps of tiny models that pool, with random weights, on vLLM's CPU engine; prints one JSON document.

Arguments: a folder for each model. Of every model: what vLLM decided, and steps as (tokens of a document, documents, seconds of the one
thread that there is), each the least of three.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from typing import Any

POINTS = ((64, 1), (256, 1), (512, 1), (1024, 1), (32, 32), (64, 16), (128, 8), (256, 4), (512, 2))
"""Up to 1,024 tokens in a step: what more of them hold does not fit in the caches of small CPUs."""


def main() -> None:
    """Measure every model and print what was found."""
    from costmodel.validation.backends.vllm_engine import import_vllm

    import_vllm()
    from vllm.distributed import cleanup_dist_env_and_memory

    found = []
    for folder in sys.argv[1:]:
        found.append(measured(folder))
        gc.collect()
        cleanup_dist_env_and_memory()
    print(json.dumps(found))


def measured(folder: str) -> dict[str, Any]:
    """Start an engine, look at what it decided, and time its steps."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32",
            max_num_seqs=64, enable_prefix_caching=False,
        )
    )  # fmt: skip
    core = engine.engine_core.engine_core
    config = core.vllm_config
    run(engine, 256, 2)
    steps = [(tokens, documents, min(run(engine, tokens, documents) for _ in range(3))) for tokens, documents in POINTS]
    return {
        "pooling": config.model_config.pooler_config.seq_pooling_type,
        "chunked": config.scheduler_config.enable_chunked_prefill,
        "longest": config.model_config.max_model_len,
        "kv_groups": len(core.scheduler.kv_cache_config.kv_cache_groups),
        "steps": steps,
    }


def run(engine: Any, tokens: int, documents: int) -> float:
    """Return the seconds of the one step that takes these documents."""
    from vllm import PoolingParams

    numbers = random.Random(tokens)
    for index in range(documents):
        ids = [numbers.randrange(10, 900) for _ in range(tokens)]
        engine.add_request(f"{tokens}-{index}-{time.time()}", {"prompt_token_ids": ids}, PoolingParams(task="embed"))
    before = time.thread_time()
    engine.step()
    taken = time.thread_time() - before
    if engine.has_unfinished_requests():
        raise SystemExit(f"{documents} documents of {tokens} tokens took more than a step")
    return taken


if __name__ == "__main__":
    main()
