"""How the simulated server is set: the flags of vLLM that decide who is scheduled, and what other schedulers do instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from costmodel.simulation.seats import NO_SEATS, Seats

if TYPE_CHECKING:
    from costmodel.simulation.drafting import Drafting
    from costmodel.simulation.encoding import Encoding

Scheduler = Literal["vllm", "prefill-first", "separate", "sarathi"]
SCHEDULERS: tuple[str, ...] = get_args(Scheduler)
DISAGGREGATED = "disaggregated"
"""Name of the scheduler where pools are given; each server schedules like vLLM."""
Policy = Literal["fcfs", "priority"]
POLICIES: tuple[str, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine.

    Attributes:
        token_budget: ``max_num_batched_tokens``, tokens per step at most.
        max_num_seqs: requests that run at once.
        kv_blocks: ``num_gpu_blocks``, the null block that vLLM keeps for itself included; None for memory without end.
        block_tokens: tokens of one KV block.
        max_model_len: longest sequence [tokens]; None for no limit.
        chunked_prefill: prompts that do not fit into the budget go in chunks; otherwise they wait until they fit whole.
        long_prefill_token_threshold: most tokens of one prompt per step beside other requests; 0 for no limit.
        long_prefill_token_threshold_adaptive: the limit is the share of the budget that is left to each request, if that is more.
        prefix_caching: full blocks stay until they are needed, and a prompt that begins with them skips them.
        asynchronous: ``async_scheduling``: a step is scheduled while the one before it runs.
        policy: who goes first among those who wait, and last out of memory.
        reserve_full_prompt: ``scheduler_reserve_full_isl``: a prompt is admitted only if all of it fits into free blocks.
        hold_steps: decode steps for which prompts are held back so that several are prefilled together, as TensorRT-LLM's
            ``batch_wait_timeout_iters``.
        watermark: share of all blocks that must stay free when a request is admitted beside others.
        scheduler: ``vllm`` (V1), ``sarathi`` (decodes first, then chunks up to the budget), ``prefill-first`` (steps of whole prompts as
            long as any wait, and of decodes otherwise) or ``separate`` (the two kinds of steps in turns).
        seats: blocks that a sequence takes for layers with a window.
        drafting: speculative decoding; None for none.
        encoding: of images; None without any.
    """

    token_budget: int
    max_num_seqs: int = 1024
    kv_blocks: int | None = None
    block_tokens: int = 16
    max_model_len: int | None = None
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefix_caching: bool = True
    asynchronous: bool = True
    policy: Policy = "fcfs"
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    hold_steps: int = 0
    scheduler: Scheduler = "vllm"
    seats: Seats = NO_SEATS
    drafting: Drafting | None = None
    encoding: Encoding | None = None

    @property
    def drafted(self) -> int:
        """Tokens that are drafted for every decoding request in every pass; 0 without speculation."""
        return 0 if self.drafting is None else self.drafting.tokens

    @property
    def lookahead(self) -> int:
        """Tokens that a decoding request has blocks for beyond those of its step, for the draft."""
        return 0 if self.drafting is None else self.drafting.lookahead

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that requests can have: all but the null block."""
        return None if self.kv_blocks is None else self.kv_blocks - 1

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that a sequence takes which ends with ``tokens``, those for its windows and states included."""
        return self.seats.of(tokens) + -(-tokens // self.block_tokens)

    @property
    def longest(self) -> float:
        """Longest sequence that the engine can hold, prompt and answer; infinity for no limit [tokens]."""
        blocks = self.usable_blocks
        held = math.inf
        if blocks is not None:
            held = max(blocks - self.seats.of(blocks * self.block_tokens), 0) * self.block_tokens
        return min(math.inf if self.max_model_len is None else self.max_model_len, held)

    @property
    def ends_at(self) -> float:
        """Length at which a sequence ends at the latest [tokens].

        Without chunks that is no more than the token budget: whoever is preempted starts again in one step.
        """
        whole = self.scheduler == "vllm" and not self.chunked_prefill
        return min(self.longest, self.token_budget) if whole else self.longest

    @property
    def watermark_blocks(self) -> int:
        """Blocks that must stay free when a request is admitted beside others."""
        return 0 if self.kv_blocks is None else int(self.watermark * self.kv_blocks)
