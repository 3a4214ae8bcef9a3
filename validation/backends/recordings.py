"""What a scheduler did with a workload, step by step, as it is kept on disk: one line of JSON per workload, all compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class Settings:
    """An engine's settings that a scheduler decides by.

    Attributes:
        token_budget: tokens a step may process (vLLM: max_num_batched_tokens).
        max_num_seqs: requests that may run at once.
        kv_blocks: blocks of the KV cache as vLLM counts them, one of which (the null block) is never given to a request.
        block_tokens: tokens in a block.
        long_prefill_token_threshold: most tokens of one request in a step while there are others; 0 is no limit.
        long_prefill_token_threshold_adaptive: never cut a request below its fair share of the budget.
        chunked_prefill: whether a waiting request may be admitted with a part of its tokens because of the budget.
        prefix_caching: whether full blocks are found again by their tokens.
        policy: order of the waiting requests and choice of the one to preempt.
        async_scheduling: whether a step is scheduled before the output of the one before it is known.
        max_model_len: most tokens of a request, prompt and output [tokens].
        reserve_full_prompt: admit a request only if all its known tokens fit (scheduler_reserve_full_isl).
        watermark: fraction of ``kv_blocks`` that an admission leaves free while others run.
    """

    token_budget: int
    max_num_seqs: int
    kv_blocks: int
    block_tokens: int
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    chunked_prefill: bool = True
    prefix_caching: bool = False
    policy: Policy = "fcfs"
    async_scheduling: bool = False
    max_model_len: int = 512
    reserve_full_prompt: bool = True
    watermark: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request.

    Attributes:
        id: place in the order of arrival.
        arrival_step: index of the ``schedule()`` call before which it is added.
        prompt: tokens of the prompt.
        output: most tokens to generate; fewer where ``max_model_len`` ends it.
        priority: the lower the earlier; only with policy ``priority``.
        prefix: names of the leading blocks of the prompt. Two requests share leading tokens as long as their names are equal;
            all tokens beyond are the request's own.
    """

    id: int
    arrival_step: int
    prompt: int
    output: int
    priority: int = 0
    prefix: tuple[int, ...] = ()


Scheduled = tuple[int, int, int]
"""Request, tokens scheduled, tokens computed before (prefix hits included)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A workload and what the scheduler made of it. All lists have one entry per ``schedule()`` call.

    Attributes:
        covers: what the workload was drawn for.
        settings: the engine's settings.
        requests: in order of arrival.
        steps: what was scheduled, in the order of the scheduler's output; empty where nothing was.
        preempted: the requests preempted, in this order.
        free_blocks: blocks free when the call returned.
        finished: request → index of the call with whose output it finished.
    """

    covers: str
    settings: Settings
    requests: tuple[Arrival, ...]
    steps: tuple[tuple[Scheduled, ...], ...]
    preempted: tuple[tuple[int, ...], ...]
    free_blocks: tuple[int, ...]
    finished: dict[int, int]


def to_json(recording: Recording) -> str:
    """Return a recording as one line."""
    return json.dumps(asdict(recording), separators=(",", ":"))


def from_json(line: str) -> Recording:
    """Read a line of :func:`to_json`."""
    document: dict[str, Any] = json.loads(line)
    return Recording(
        covers=document["covers"],
        settings=Settings(**document["settings"]),
        requests=tuple(Arrival(**each | {"prefix": tuple(each["prefix"])}) for each in document["requests"]),
        steps=tuple(tuple((each[0], each[1], each[2]) for each in step) for step in document["steps"]),
        preempted=tuple(tuple(step) for step in document["preempted"]),
        free_blocks=tuple(document["free_blocks"]),
        finished={int(request): step for request, step in document["finished"].items()},
    )


def write(path: Path, recordings: Iterable[Recording]) -> None:
    """Write recordings, the same bytes for the same recordings."""
    text = "".join(to_json(each) + "\n" for each in recordings)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def read(path: Path) -> Iterator[Recording]:
    """Yield the recordings in a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield from_json(line)
