"""How long a pass of speculative decoding takes: the target verifies k drafts of every stream, then the draft makes the next ones.

With D streams at context c, all of it from the equations of a step::

    verify  a step in which every stream has k + 1 rows: the last token and its k drafts; k + 1 rows through lm_head as well
    draft   k passes of the draft: the first with the k + 1 rows of every stream, since it has to have K and V of what was accepted, and
            one row each through lm_head; the others with one row each, at a context that grows
    TPOT    = (verify + draft + host) / E(k)

While weights are read anyway, further rows are nearly free: memory-bound steps verify at the price of a decode step. Where D·(k + 1) rows
reach the ridge point (or every expert, in a mixture of experts) they are not: a break-even batch follows from the same equations.
Source of the order of passes: ``propose`` of vllm/v1/spec_decode/llm_base_proposer.py (0.32), with its padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.equations.parameters import Parameters
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, Reach, Work, make_work
from costmodel.rungs import total_seconds
from costmodel.speculation.drafts import DraftParameters
from costmodel.speculation.host import NO_HOST, HostTimes


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of speculative decoding [s]."""

    verify_s: float
    """The target's step."""
    draft_s: float
    """Kernels of the draft's passes."""
    host_s: float
    """What the engine's host adds to both."""

    @property
    def total_s(self) -> float:
        """From one bundle of tokens to the next [s]."""
        return self.verify_s + self.draft_s + self.host_s


@dataclass(frozen=True, slots=True)
class Speculator:
    """A target and its draft, on one rung.

    Attributes:
        target: parameters of the target's steps.
        draft: those of the draft's passes; None for n-grams.
        host: times of the engine's host.
    """

    target: Parameters
    draft: DraftParameters | None
    host: HostTimes = NO_HOST

    def plain_s(self, streams: int, context: int, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of a step without speculation [s]."""
        work = make_work(chunks, [Decodes(streams, context)], self.target.windows)
        return total_seconds(step_operators(self.target, work))

    def pass_time(self, streams: int, context: int, tokens: int, chunks: Sequence[Chunk] = ()) -> PassTime:
        """Return the time of a pass in which each of ``streams`` at ``context`` has ``tokens`` drafts verified.

        Args:
            streams: D, at least 1.
            context: c, tokens that each has in the KV cache.
            tokens: k, at least 1.
            chunks: prompts, or parts of them, that are prefilled in the same step; a draft with layers prefills them as well, and drafts
                for them, also where the prompt is not done (vLLM's padded batch).
        """
        verify = total_seconds(
            step_operators(self.target, verify_work(streams, context, tokens, self.target.windows, chunks))
        )
        if self.draft is None:
            return PassTime(verify, 0.0, self.host.verify_s)
        times = [_seconds(self.draft.first, first_pass(streams, context, tokens, self.draft.first.windows, chunks))]
        if tokens > 1:  # the passes after the first differ by a token of context: their mean is taken
            prompts = [Decodes(1, chunk.cached + chunk.tokens + tokens / 2) for chunk in chunks]
            later = make_work([], [Decodes(streams, context + 1 + tokens / 2), *prompts], self.draft.later.windows)
            times += [_seconds(self.draft.later, later)] * (tokens - 1)
        waiting = sum(max(self.host.pass_s - seconds, 0.0) for seconds in times)
        return PassTime(verify, sum(times), self.host.verify_s + waiting)


def verify_work(
    streams: int, context: int, tokens: int, windows: Sequence[Reach], chunks: Sequence[Chunk] = ()
) -> Work:
    """Return the work of a step that verifies ``tokens`` drafts of each stream, beside ``chunks``."""
    return make_work(chunks, [Decodes(streams, context, tokens + 1)], windows)


def first_pass(streams: int, context: int, tokens: int, windows: Sequence[Reach], chunks: Sequence[Chunk] = ()) -> Work:
    """Return the work of the first draft pass: the rows that were verified, and one of each sequence through lm_head."""
    return replace(verify_work(streams, context, tokens, windows, chunks), rows=streams + len(chunks))


def _seconds(parameters: Parameters, work: Work) -> float:
    return total_seconds(step_operators(parameters, work))
