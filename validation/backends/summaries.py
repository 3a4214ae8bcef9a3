"""What recordings hold of the things they are meant to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from costmodel.validation.backends.recordings import Recording

EVENTS: Final = (
    "steps",
    "empty",
    "partial",
    "hits",
    "same step hits",
    "preemptions",
    "several at once",
    "ends preempted",
    "resumed on hits",
    "seats full",
    "blocks short",
    "cut by length",
    "one token",
)
"""Columns, as :func:`count` counts them."""


def count(recording: Recording) -> Counter[str]:
    """Return how often things happen in a recording.

    *partial*: scheduled parts of what was known. *hits*: admissions that found cached blocks; *same step hits*: those of blocks first
    scheduled in the same step; *resumed on hits*: those after a preemption. *several at once*: steps with more than one preemption;
    *ends preempted*: preemptions of a request that the output still on its way ends. *seats full*: steps that scheduled as many requests
    as may run; *blocks short*: those that left less than a block in ten free. *cut by length*: requests that ``max_model_len`` ended;
    *one token*: requests of one output token.
    """
    settings, found = recording.settings, Counter[str]()
    requests = {each.id: each for each in recording.requests}
    known = {each.id: each.prompt for each in recording.requests}
    running: set[int] = set()
    before: set[int] = set()
    columns = zip(recording.steps, recording.preempted, recording.free_blocks, strict=True)
    for index, (step, victims, free) in enumerate(columns):
        running -= set(victims)
        found["steps"] += 1
        found["empty"] += not step
        found["preemptions"] += len(victims)
        found["several at once"] += len(victims) > 1
        found["ends preempted"] += sum(recording.finished[each] < index for each in victims)
        found["seats full"] += len(step) == settings.max_num_seqs
        found["blocks short"] += free < settings.kv_blocks / 10
        new: set[int] = set()
        for request, tokens, computed in step:
            if request not in running:
                found["hits"] += computed > 0
                found["resumed on hits"] += computed > 0 and request in before
                named = set(requests[request].prefix[: computed // settings.block_tokens])
                found["same step hits"] += bool(named & new)
                running.add(request)
                before.add(request)
            if computed + tokens < known[request]:
                found["partial"] += 1
            else:
                known[request] = max(known[request], computed + tokens) + (computed + tokens == known[request])
            first, last = computed // settings.block_tokens, (computed + tokens) // settings.block_tokens
            new |= set(requests[request].prefix[first:last])
    found["cut by length"] = sum(each.prompt + each.output > settings.max_model_len for each in recording.requests)
    found["one token"] = sum(each.output == 1 for each in recording.requests)
    return found


def summary(recordings: Sequence[Recording]) -> str:
    """Return a table of recordings with an event, and of events, by what the recordings were drawn for."""
    lines = ["recordings that hold it / how often it happens in all", " ".join(["family".ljust(15), "runs", *EVENTS])]
    families = [*dict.fromkeys(each.covers for each in recordings), "all"]
    for family in families:
        counts = [count(each) for each in recordings if family in (each.covers, "all")]
        cells = [f"{sum(each[event] > 0 for each in counts)}/{sum(each[event] for each in counts)}" for event in EVENTS]
        width = [max(len(event), 7) for event in EVENTS]
        row = " ".join(cell.rjust(wide) for cell, wide in zip(cells, width, strict=True))
        lines.append(f"{family.ljust(15)} {len(counts):4} {row}")
    lines[1] = f"{'family'.ljust(15)} runs " + " ".join(event.rjust(max(len(event), 7)) for event in EVENTS)
    return "\n".join(lines)
