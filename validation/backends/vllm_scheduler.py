"""The real scheduler of vLLM in this process, without weights or a GPU: its steps on small workloads, recorded.

The engine's own ``step`` and ``step_with_batch_queue`` run on an executor that computes nothing: it returns one token for each request
whose known tokens are all computed, as a model runner does, and none for a part of a prompt.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from costmodel.validation.backends.recordings import Arrival, Recording, Scheduled, Settings, write
from costmodel.validation.backends.scheduler_workloads import Workload, draw
from costmodel.validation.backends.summaries import summary

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
}
MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
}
"""A model so that there is one; nothing of it is ever computed."""
OWN_TOKENS: Final = 1 << 24
"""Token ids from here on belong to one request each; those below to named prefix blocks."""
SPAN: Final = 1 << 16
"""Token ids of one request."""
MOST_CALLS: Final = 20_000
"""A workload that takes more calls of ``schedule()`` never ends."""


def own_token(request: int, position: int) -> int:
    """Return the token that only this request has at this position."""
    return OWN_TOKENS + request * SPAN + position


def prompt_tokens(arrival: Arrival, block_tokens: int) -> list[int]:
    """Return the prompt: its named blocks, then its own tokens."""
    shared = [name * block_tokens + place for name in arrival.prefix for place in range(block_tokens)]
    return shared + [own_token(arrival.id, position) for position in range(len(shared), arrival.prompt)]


class Executor:
    """What the engine takes for its model executor.

    Args:
        requests: the scheduler's unfinished requests by name.
    """

    def __init__(self, requests: dict[str, Any]) -> None:
        self.requests = requests
        self.sampled: Any = None

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Future[Any]:
        """Return nothing yet where tokens are to be sampled, and an empty output where nothing was scheduled."""
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        if not scheduled.num_scheduled_tokens:
            return done(EMPTY_MODEL_RUNNER_OUTPUT)
        self.sampled = self.sample(scheduled)
        return done(None)

    def sample_tokens(self, _grammar: Any, non_block: bool = False) -> Any:
        """Return the tokens of the step executed last."""
        return done(self.sampled) if non_block else self.sampled

    def sample(self, scheduled: Any) -> Any:
        """Return a token for each request but those with a part of their prompt to go."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(scheduled.num_scheduled_tokens)
        tokens = []
        for name in names:
            request = self.requests[name]
            tokens.append([] if request.is_prefill_chunk else [own_token(int(name), request.num_computed_tokens)])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
        )


def done(result: Any) -> Future[Any]:
    """Return a future that has its result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Observer:
    """Notes what a scheduler decides, by standing before three of its methods.

    Args:
        scheduler: vLLM's, before its first step.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.pool = scheduler.kv_cache_manager.block_pool
        self.steps: list[tuple[Scheduled, ...]] = []
        self.preempted: list[tuple[int, ...]] = []
        self.free_blocks: list[int] = []
        self.finished: dict[int, int] = {}
        self.victims: list[int] = []
        self.calls: dict[int, int] = {}
        self.schedule = scheduler.schedule
        self.update = scheduler.update_from_output
        self.preempt = scheduler._preempt_request
        self._stand_before(self.note_schedule, self.note_update, self.note_preemption)

    def leave(self) -> None:
        """Give the scheduler its methods back."""
        self._stand_before(self.schedule, self.update, self.preempt)

    def _stand_before(self, schedule: Any, update: Any, preempt: Any) -> None:
        self.scheduler.schedule, self.scheduler.update_from_output = schedule, update
        self.scheduler._preempt_request = preempt

    def note_schedule(self, *arguments: Any, **named: Any) -> Any:
        """Schedule, and note the step."""
        output = self.schedule(*arguments, **named)
        self.calls[id(output)] = len(self.steps)
        step = []
        for name, tokens in output.num_scheduled_tokens.items():
            step.append((int(name), tokens, self.scheduler.requests[name].num_computed_tokens - tokens))
        self.steps.append(tuple(step))
        self.preempted.append(tuple(self.victims))
        self.victims.clear()
        self.free_blocks.append(self.pool.get_num_free_blocks())
        return output

    def note_update(self, scheduled: Any, output: Any) -> Any:
        """Update, and note which requests that finished."""
        call = self.calls.pop(id(scheduled))
        result = self.update(scheduled, output)
        for outputs in result.values():
            self.finished |= {int(each.request_id): call for each in outputs.outputs if each.finish_reason is not None}
        return result

    def note_preemption(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """Note a preemption, and do it."""
        self.victims.append(int(request.request_id))
        return self.preempt(request, *arguments, **named)


def make_config(settings: Settings, model: Path) -> Any:
    """Return vLLM's configuration, and check that it is the one asked for."""
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model), skip_tokenizer_init=True, max_model_len=settings.max_model_len, dtype="float32"
        ),
        cache_config=CacheConfig(
            block_size=settings.block_tokens,
            enable_prefix_caching=settings.prefix_caching,
            num_gpu_blocks_override=settings.kv_blocks,
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=settings.max_model_len,
            is_encoder_decoder=False,
            max_num_batched_tokens=settings.token_budget,
            max_num_seqs=settings.max_num_seqs,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=settings.long_prefill_token_threshold_adaptive,
            enable_chunked_prefill=settings.chunked_prefill,
            policy=settings.policy,
            scheduler_reserve_full_isl=settings.reserve_full_prompt,
            watermark=settings.watermark,
        ),
    )
    config.scheduler_config.async_scheduling = settings.async_scheduling  # the CPU platform turns it off
    config.cache_config.num_gpu_blocks = settings.kv_blocks
    taken = replace(
        settings,
        token_budget=config.scheduler_config.max_num_batched_tokens,
        block_tokens=config.cache_config.block_size,
        chunked_prefill=config.scheduler_config.enable_chunked_prefill,
        prefix_caching=config.cache_config.enable_prefix_caching,
        max_model_len=config.model_config.max_model_len,
    )
    if taken != settings:
        raise ValueError(f"vLLM changes {settings} to {taken}")
    return config


def make_cache(settings: Settings, config: Any) -> Any:
    """Return the layout of one group of full attention, planned by vLLM, which refuses what does not hold ``max_model_len``."""
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    register_all_kvcache_specs(config)
    config.cache_config.kv_cache_layout = "LBNHC"
    spec = FullAttentionSpec(block_size=settings.block_tokens, num_kv_heads=1, head_size=32, dtype=torch.float32)
    cache = get_kv_cache_configs(config, [{"layer": spec}], [settings.kv_blocks * spec.page_size_bytes])[0]
    if cache.num_blocks != settings.kv_blocks:
        raise ValueError(f"vLLM makes {cache.num_blocks} blocks of {settings.kv_blocks=}")
    return cache


def make_engine(settings: Settings, model: Path) -> Any:
    """Return vLLM's engine core with its scheduler, made by hand around an executor that computes nothing."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.structured_output import StructuredOutputManager

    config = make_config(settings, model)
    engine = EngineCore.__new__(EngineCore)
    engine.vllm_config = config
    engine.log_stats = False
    engine.structured_output_manager = StructuredOutputManager(config)
    engine.scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=make_cache(settings, config),
        structured_output_manager=engine.structured_output_manager,
        block_size=settings.block_tokens,
        hash_block_size=settings.block_tokens,
    )
    engine.model_executor = Executor(engine.scheduler.requests)
    engine.check_for_draft_tokens = engine.is_mm_encoder_only = engine.is_pooling_model = False
    engine.async_scheduling = settings.async_scheduling
    engine.aborts_queue = queue.Queue()
    engine._weight_version = None
    engine.batch_queue_size = config.max_concurrent_batches
    engine.batch_queue = deque(maxlen=engine.batch_queue_size) if engine.batch_queue_size > 1 else None
    engine.step_fn = engine.step if engine.batch_queue is None else engine.step_with_batch_queue
    engine.request_block_hasher = None
    if settings.prefix_caching:
        function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(function)
        engine.request_block_hasher = get_request_block_hasher(settings.block_tokens, function)
    return engine


def make_request(arrival: Arrival, settings: Settings, engine: Any, tokens: Callable[[Arrival, int], list[int]]) -> Any:
    """Return vLLM's request. Requests have arrived in the order of their ids."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    if arrival.prompt >= settings.max_model_len:
        raise ValueError(f"vLLM refuses a prompt of {arrival.prompt} tokens at its input: {settings.max_model_len=}")
    return Request(
        request_id=str(arrival.id),
        prompt_token_ids=tokens(arrival, settings.block_tokens),
        sampling_params=SamplingParams(max_tokens=arrival.output, ignore_eos=True, detokenize=False),
        pooling_params=None,
        arrival_time=float(arrival.id),
        priority=arrival.priority,
        block_hasher=engine.request_block_hasher,
    )


def record(workload: Workload, model: Path) -> Recording:
    """Run a workload to its end on an engine of its own that computes nothing."""
    return run(workload, make_engine(workload.settings, model))


def run(workload: Workload, engine: Any, tokens: Callable[[Arrival, int], list[int]] = prompt_tokens) -> Recording:
    """Run a workload to its end on an engine that has nothing to do.

    Requests are added before the call of ``schedule()`` with the index of their arrival. An idle engine does not call it: then all later
    arrivals move forward to its next call, and the recording has them there.

    Args:
        workload: with the settings of the engine.
        engine: vLLM's EngineCore.
        tokens: of a request's prompt, with the tokens of a block; the same where named blocks are the same, and only there.

    Raises:
        RuntimeError: the workload does not end.
    """
    settings = workload.settings
    observer = Observer(engine.scheduler)
    pending = deque(sorted(workload.requests, key=lambda each: (each.arrival_step, each.id)))
    arrived: list[Arrival] = []
    early = 0
    while True:
        call = len(observer.steps)
        if call > MOST_CALLS:
            raise RuntimeError(f"{workload} does not end")
        if not (engine.scheduler.has_requests() or engine.batch_queue):
            if not pending:
                break
            early = max(pending[0].arrival_step - call, 0)
        while pending and pending[0].arrival_step - early <= call:
            arrived.append(replace(pending.popleft(), arrival_step=call))
            engine.add_request(make_request(arrived[-1], settings, engine, tokens))
        engine.step_fn()
    observer.leave()
    return Recording(
        covers=workload.covers,
        settings=settings,
        requests=tuple(arrived),
        steps=tuple(observer.steps),
        preempted=tuple(observer.preempted),
        free_blocks=tuple(observer.free_blocks),
        finished=dict(sorted(observer.finished.items())),
    )


def record_all(workloads: Sequence[Workload]) -> list[Recording]:
    """Run workloads one after the other."""
    os.environ.update(ENVIRONMENT)
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        return [record(each, Path(folder)) for each in workloads]


def main() -> None:
    """Record workloads into a folder, and say what the recordings hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=420, help="workloads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the workloads (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="folder for vllm-VERSION.jsonl.gz")
    asked = parser.parse_args()
    import vllm

    recordings = record_all(tuple(draw(asked.count, asked.seed)))
    asked.output.mkdir(parents=True, exist_ok=True)
    path = asked.output / f"vllm-{vllm.__version__}.jsonl.gz"
    write(path, recordings)
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n{summary(recordings)}\n")


if __name__ == "__main__":
    main()
