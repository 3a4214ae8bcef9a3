"""What a user may set of the simulated server: which names there are, and what is meant by those of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from costmodel.checks import choice
from costmodel.hardware.calibration import ENGINES, Calibration
from costmodel.hardware.errors import InputError, nearest, shown, suggestion
from costmodel.simulation.settings import DISAGGREGATED, SCHEDULERS
from costmodel.speculation.asking import Speculation

SimulatedRung = Literal["roofline", "calibrated"]
RUNGS = ("roofline", "calibrated")

ONE_STEP = ("one-step", "none")
"""Words for a token budget of one step for all."""


class ServerOptions(TypedDict, total=False):
    """How the simulated server is built and set; what is left out is as ``vllm serve`` would have it."""

    gpu: str
    model: str
    tp: int
    ep: int
    dtype: str | None
    kv_dtype: str | None
    compute_dtype: str | None
    lora: object
    """LoRA adapters, as :func:`costmodel.predict` takes them."""
    engine: str
    calibration: str | Path | Calibration | None
    assume_efficiency: bool
    rung: SimulatedRung | None
    """None for calibrated where there is a calibration, else roofline."""
    decode_s: float | None
    """Fixed time of a decode step, instead of model and GPU; with ``prefill_s`` [s]."""
    prefill_s: float | None
    """Fixed time of a step with a whole prompt [s]."""
    chunk: int | str | None
    """``max_num_batched_tokens``; ``"engine"`` for vLLM's default on this GPU, ``"one-step"`` (interference) for the prompt in one step."""
    max_num_seqs: int | None
    kv_tokens: int | None
    """Tokens that the KV cache holds for requests; None for what the GPU's memory leaves."""
    block_tokens: int
    max_model_len: int | None
    """None for the model's own, or what fits into the KV cache."""
    chunked_prefill: bool
    long_prefill_token_threshold: int
    prefix_caching: bool
    asynchronous: bool
    policy: str
    reserve_full_prompt: bool
    watermark: float
    speculation: Speculation | None
    """Speculative decoding (:class:`costmodel.Speculation`), its ``tokens`` named; steps are then scheduled in turns."""
    acceptance_draw: str
    """``random`` (seeded) or ``even``: every pass of a request gives as many tokens as the mean says, rests carried over."""
    acceptance_seed: int
    scheduler: str | None
    """None for the engine's own: ``prefill-first`` for SGLang, which prefills what waits before it goes on decoding, else ``vllm``.
    ``disaggregated`` is a server for prefill and one for decode, or as many as ``pools`` says."""


OPTIONS = tuple(ServerOptions.__annotations__)
"""Names of all options."""
TRUTHS = ("assume_efficiency", "chunked_prefill", "prefix_caching", "asynchronous", "reserve_full_prompt")
"""Options that are on or off."""

_POOLS = "pools=costmodel.Pools(prefill, decode, bandwidth, latency)"
_LIMITS = "limits=costmodel.Limits(ttft, tpot, e2e, stall_factor, stall)"
ELSEWHERE = {
    "max_num_batched_tokens": "chunk",
    "token_budget": "chunk",
    "async_scheduling": "asynchronous",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "block_size": "block_tokens",
    "decode_ms": "decode_s, in seconds",
    "prefill_ms": "prefill_s, in seconds",
    "scheduling_policy": "policy",
    "scheduler_reserve_full_isl": "reserve_full_prompt",
    "gpu_memory_utilization": "kv_tokens, the tokens that the KV cache holds",
    "num_gpu_blocks_override": "kv_tokens, the tokens that the KV cache holds",
    "kv_cache_dtype": "kv_dtype",
    "speculative_config": "speculation=costmodel.Speculation(draft, tokens, acceptance)",
    "num_speculative_tokens": "speculation=costmodel.Speculation(draft, tokens, acceptance)",
    "draft_model": "speculation=costmodel.Speculation(draft, tokens, acceptance)",
    "tensor_parallel_size": "tp",
    "pp": "tp: pipeline stages are not simulated",
    "pipeline_parallel_size": "tp: pipeline stages are not simulated",
    "enable_expert_parallel": "ep",
    **dict.fromkeys(
        ("max_loras", "max_lora_rank", "lora_rank", "loras", "enable_lora"),
        "lora=costmodel.Lora(rank, adapters, targets)",
    ),
    "max_concurrency": "clients",
    "concurrency": "clients",
    "request_rate": "rate",
    "num_prompts": "requests",
    "think_s": "think",
    "ramp_s": "ramp",
    "format": "form",
    **dict.fromkeys(("prefill_gpus", "decode_gpus", "kv_bandwidth", "kv_latency_ms", "kv_latency"), _POOLS),
    **dict.fromkeys(("ttft_slo_ms", "tpot_slo_ms", "e2e_slo_ms", "stall_factor", "stall_ms"), _LIMITS),
}
"""Names of the command line and of vLLM → what they are called here."""


def check_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> None:
    """Refuse options that there are not, and values of the wrong kind that would be taken for something else.

    Args:
        options: what the user set.
        others: further keywords of the function, to be suggested where a name looks like them.

    Raises:
        InputError: an unknown name, with the nearest one; a word for a truth value; an unknown rung or engine.
    """
    for name in options:
        if name in OPTIONS:
            continue
        if name in ELSEWHERE:
            raise InputError(f"no option {shown(name)} here: use {ELSEWHERE[name]}")
        close = nearest(name, [*OPTIONS, *others])
        hint = suggestion(close) if close else "known: " + ", ".join([*others, *OPTIONS])
        raise InputError(f"no option {shown(name)}; {hint}")
    for name in TRUTHS:
        if name in options:
            truth(options[name], name)
    if (rung := options.get("rung")) is not None:
        choice(rung, RUNGS, "rung")
    choice(options.get("engine", "vllm"), ENGINES, "engine")
    if (scheduler := options.get("scheduler")) is not None:
        choice(scheduler, (*SCHEDULERS, DISAGGREGATED), "scheduler")


def truth(value: Any, name: str) -> bool:
    """Return a value that is True or False, or raise :class:`InputError`: ``"no"`` would count as true."""
    if isinstance(value, bool):
        return value
    raise InputError(f"{name} must be True or False, not {shown(value)}")
