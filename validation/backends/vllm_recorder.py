"""What every step of a vLLM engine in this process held and how long it took, checked against vLLM's own count."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Recorded:
    """One step that ran.

    Attributes:
        chunks: (new tokens, tokens cached before) of every prompt, in the scheduler's order.
        decodes: tokens cached before, of every decoding sequence, ascending.
        wall_seconds: from the step's beginning, or the end of the one before if that came later, to its own end [s].
        cpu_seconds: CPU time of this process meanwhile, all threads [s].
    """

    chunks: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    wall_seconds: float
    cpu_seconds: float


class Recorder:
    """Stands before ``schedule`` and ``update_from_output`` of a scheduler, whichever class vLLM chose for it.

    With asynchronous scheduling the next step is scheduled while one runs. Then a step begins when the one before it ends, as for the
    streams, which get a token at the end of each.

    Args:
        scheduler: vLLM's, which has nothing to do at the moment.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.steps: list[Recorded] = []
        self._begun: deque[tuple[int, tuple[tuple[int, int], ...], tuple[int, ...], float, float]] = deque()
        self._end = (0.0, 0.0)
        self._schedule = scheduler.schedule
        self._update = scheduler.update_from_output
        scheduler.schedule = self.schedule
        scheduler.update_from_output = self.update

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Schedule, and note what the step holds; ``num_computed_tokens`` has the step's own tokens already."""
        wall, cpu = time.perf_counter(), time.process_time()
        output = self._schedule(*arguments, **named)
        chunks, decodes = [], []
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            cached = request.num_computed_tokens - tokens
            if cached < request.num_prompt_tokens:
                chunks.append((tokens, cached))
            else:
                decodes.append(cached)
                if tokens != 1:
                    raise RuntimeError(
                        f"a sequence decodes {tokens} tokens in a step; speculative decoding is not measured"
                    )
        if chunks or decodes:
            check_count(output, chunks, decodes)
            self._begun.append((id(output), tuple(chunks), tuple(sorted(decodes)), wall, cpu))
        return output

    def update(self, scheduled: Any, output: Any) -> Any:
        """Update, and note that the step has ended."""
        result = self._update(scheduled, output)
        wall, cpu = time.perf_counter(), time.process_time()
        if self._begun and self._begun[0][0] == id(scheduled):
            _, chunks, decodes, began_wall, began_cpu = self._begun.popleft()
            before_wall, before_cpu = self._end
            self.steps.append(
                Recorded(chunks, decodes, wall - max(began_wall, before_wall), cpu - max(began_cpu, before_cpu))
            )
            self._end = wall, cpu
        return result


def check_count(output: Any, chunks: list[tuple[int, int]], decodes: list[int]) -> None:
    """Compare a step with vLLM's own count of it, that of its iteration details.

    Raises:
        RuntimeError: they differ, so this release of vLLM means something else by the numbers that the recorder reads.
    """
    from vllm.v1.utils import compute_iteration_details

    theirs = compute_iteration_details(output)
    counted = (
        theirs.num_ctx_requests,
        theirs.num_ctx_tokens,
        theirs.num_generation_requests,
        theirs.num_generation_tokens,
    )
    ours = (len(chunks), sum(new for new, _ in chunks), len(decodes), len(decodes))
    if counted != ours:
        raise RuntimeError(
            f"vLLM counts (prompts, their tokens, sequences that decode, their tokens) {counted}, the recorder {ours}"
        )
