"""How the servers of the end-to-end rows were started, where a public launch script says so; the file of the rows does not.

Read from the launch scripts of InferenceX (https://github.com/SemiAnalysisAI/InferenceX, folder ``benchmarks``) at the versions of the
runs. None of these settings is fitted, and none was chosen by an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costmodel.validation.datasets.end_to_end import EndToEndRow

DEFAULT_BUDGET: Final = 8192
"""``max_num_batched_tokens`` of vLLM's server before 0.32 on parts of 70 GiB and more, and what InferenceX sets elsewhere [tokens]."""

TRTLLM_BUDGET: Final = 16384
"""``max_num_tokens`` of InferenceX's TensorRT-LLM servers (20,000 for gpt-oss, which no row of up to 1,024 clients tells apart)."""

RANDOM_SHARE: Final = 0.9
"""InferenceX draws lengths uniformly from 0.8 L to L (``random_range_ratio`` 0.8): their mean, as a share of the nominal length L."""

PROMPTS_PER_CLIENT: Final = 10.0
"""InferenceX sends 10·C prompts to a server with C clients. NVIDIA's own runs do not say; the same is taken."""

BATCH_WAIT_STEPS: Final = 20
"""``batch_wait_timeout_iters`` of the TensorRT-LLM servers of Llama-3.1-70B, for 1,024/1,024 tokens and fewer than 8 GPUs only."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a row was served with and how it was asked.

    Attributes:
        kv_dtype: format of the KV cache; None for that of the activations.
        token_budget: most tokens of one step [tokens].
        expert_parallel: expert-parallel size.
        wait_steps: decode steps for which a prompt may be held back so that several are prefilled together.
        input_tokens, output_tokens: mean lengths [tokens].
        prompts_per_client: prompts sent, divided by the clients.
    """

    kv_dtype: str | None
    token_budget: int
    expert_parallel: int
    wait_steps: int
    input_tokens: float
    output_tokens: float
    prompts_per_client: float


def server_of(row: EndToEndRow) -> Server:
    """Return how the server of a row was started, and the mean lengths of its requests."""
    share = RANDOM_SHARE if row.protocol == "InferenceX" else 1.0
    return Server(
        kv_dtype="fp8" if has_fp8_cache(row) else None,
        token_budget=_token_budget(row),
        expert_parallel=_expert_parallel(row),
        wait_steps=_wait_steps(row),
        input_tokens=share * row.input_tokens,
        output_tokens=share * row.output_tokens,
        prompts_per_client=PROMPTS_PER_CLIENT,
    )


def has_fp8_cache(row: EndToEndRow) -> bool:
    """Tell whether the KV cache was kept in fp8.

    Llama-3.1-70B: every script sets it. gpt-oss-120b on B200: TensorRT-LLM, and vLLM from 0.15. MiniMax-M2.5: the scripts for
    Blackwell from vLLM 0.19. ``nvidia/…-FP8`` checkpoints of Llama carry scales for the cache, which the engines follow.
    """
    blackwell = row.gpu in ("b200", "b300")
    if row.family == "Llama-3.1-70B" or row.model.startswith("nvidia/Llama"):
        return True
    if row.family == "gpt-oss-120b":
        return blackwell and (row.engine == "trtllm" or row.version == "0.15.1")
    return row.family == "MiniMax-M2.5" and blackwell and row.version != "0.17.0"


def _token_budget(row: EndToEndRow) -> int:
    if row.protocol == "InferenceX" and row.engine == "trtllm":
        return TRTLLM_BUDGET
    if row.family == "MiniMax-M2.5" and row.gpu in ("b200", "b300") and row.version != "0.17.0":
        return 2 * row.input_tokens
    return DEFAULT_BUDGET


def _expert_parallel(row: EndToEndRow) -> int:
    """The early scripts for MiniMax-M2.5 on B200 turn expert parallelism on whatever the row says."""
    if row.family == "MiniMax-M2.5" and row.gpu == "b200" and row.version == "0.17.0":
        return row.tp
    return row.moe_ep if row.moe_ep > 1 and row.moe_tp == 1 else 1


def _wait_steps(row: EndToEndRow) -> int:
    held = row.family == "Llama-3.1-70B" and row.engine == "trtllm" and row.tp < 8
    return BATCH_WAIT_STEPS if held and row.input_tokens == row.output_tokens == 1024 else 0
