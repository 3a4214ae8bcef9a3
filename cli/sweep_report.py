"""The report of a sweep for people: the rows, or of many those that no other beats, and why others have no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.cli.text import count, milliseconds, percent, plural, significant, table, wrapped
from costmodel.sweeping.pareto import comparable, frontiers, waiting

if TYPE_CHECKING:
    from costmodel.sweeping.columns import Column
    from costmodel.sweeping.results import Sweep

MOST_ROWS = 40
"""More are not shown one by one."""
MOST_REASONS = 8

NAMES = {
    "model": "model", "gpu": "GPU", "tensor_parallel": "TP", "dtype": "dtype", "chunk_tokens": "chunk", "rate_per_s": "rate/s",
    "prompt_tokens": "prompt", "streams": "streams", "context_tokens": "context", "output_tokens": "output", "rung": "rung",
}  # fmt: skip
"""Axis → header; and the rung, as rows of different ones do not compare."""
MEASURES = {
    "steps": {"decode_step_s": "decode ms", "spike_s": "spike ms", "fraction_of_gaps": "slow gaps"},
    "load": {"itl_max_s": "ITL max ms", "ttft_p99_s": "TTFT p99 ms", "goodput_share": "good"},
    "interference": {"itl_max_s": "ITL max ms", "itl_p50_s": "ITL p50 ms", "ttft_s": "TTFT ms"},
}
COMMON = {
    "tpot_s": "TPOT ms",
    "output_tokens_per_s_per_gpu": "tokens/s per GPU",
    "cost_per_million_tokens": "per 1M tokens",
}


def report(found: Sweep) -> str:
    """Return the report."""
    columns = found.columns
    total = len(found)
    if not total:
        return "no rows"
    parts = [_summary(found, int(found.answered.sum()))]
    places: Sequence[int] = range(total)
    if total > MOST_ROWS:
        gain = found.numbers("output_tokens_per_s_per_gpu")
        places = frontiers(comparable(found.kind, columns), waiting(columns), gain).tolist()
        parts.append(
            f"{plural(len(places), 'row')} that no other row of the same model, work and rung beats in both TPOT and tokens/s per GPU "
            "(--out FILE has all):"
        )
        places = _thinned(places)
    if len(places):
        parts.append(_table(found, places))
    if reasons := _reasons(columns["problem"]):
        parts.append(reasons)
    parts += _remarks(found)
    return "\n\n".join(parts)


def _remarks(found: Sweep) -> list[str]:
    """Return notes, what simulations warn of, how many rows are floors, and how many have more prompts than they can do."""
    said = [f"note: {note}" for note in found.notes[:MOST_REASONS]]
    if len(found.notes) > MOST_REASONS:
        said.append(f"and {plural(len(found.notes) - MOST_REASONS, 'other note')} (--json has all)")
    if (warnings := found.columns.get("warnings")) is not None:
        counted: Counter[str] = Counter()
        for place, number in Counter(warnings.values[~warnings.missing].astype(int).tolist()).items():
            counted.update(dict.fromkeys(warnings.texts[place].split(" | "), number))
        said += [f"warning of {plural(number, 'row')}: {text}" for text, number in counted.most_common(MOST_REASONS)]
        if len(counted) > MOST_REASONS:
            said.append(f"and {plural(len(counted) - MOST_REASONS, 'other warning')} (--out FILE has all)")
    rung, overload = found.columns["rung"], found.columns.get("overload")
    floors = int((rung.values == rung.texts.index("roofline")).sum()) if "roofline" in rung.texts else 0
    if floors:
        said.append(f"{plural(floors, 'row')} at datasheet rates, a floor: nothing was measured on those parts.")
    if overload is not None and (number := int((overload.values == 1).sum())):
        said.append(
            f"{plural(number, 'row')} where the next prompt comes before the last is done (overload): "
            "the closed loop, whose TPOT is shown, knows nothing of it."
        )
    return [wrapped(text) for text in said]


def _summary(found: Sweep, answered: int) -> str:
    what = {"steps": "configuration", "load": "simulated load", "interference": "simulated experiment"}[found.kind]
    text = plural(len(found), what)
    if len(found) == 1 and not answered:
        return f"{text}, without an answer."
    return text + ("." if answered == len(found) else f", {count(len(found) - answered)} of them without an answer.")


def _thinned(places: Sequence[int]) -> list[int]:
    """Return at most :data:`MOST_ROWS` of them, evenly, the first and the last among them."""
    if len(places) <= MOST_ROWS:
        return list(places)
    step = (len(places) - 1) / (MOST_ROWS - 1)
    return [places[round(number * step)] for number in range(MOST_ROWS)]


def _table(found: Sweep, places: Sequence[int]) -> str:
    """Return a table: axes that differ, and what is measured where any row has it."""
    columns = found.columns
    axes = [name for name in NAMES if _differs(columns[name])] or ["gpu"]
    measures = {
        name: header
        for name, header in {**MEASURES[found.kind], **COMMON}.items()
        if any(value is not None for value in _cells(columns[name], places))
    }
    text_axes = [name for name in axes if columns[name].type == "text"]
    axes = [*text_axes, *(name for name in axes if name not in text_axes)]
    if found.kind == "steps" and "tpot_s" in measures:
        for name in {"tpot_s", "cost_per_million_tokens"} & measures.keys():
            measures[name] = f"closed-loop {measures[name]}"
    if found.currency and "cost_per_million_tokens" in measures:
        measures["cost_per_million_tokens"] += f" [{found.currency}]"
    header = [NAMES[name] for name in axes] + list(measures.values())
    lists = [[_written(name, value) for value in _cells(columns[name], places)] for name in [*axes, *measures]]
    return table(list(zip(*lists, strict=True)), header, left=len(text_axes))


def _differs(column: Column) -> bool:
    """Tell whether the rows of the sweep differ in a column; the prompt in one step, a budget of no number, is a value like others."""
    missing = column.missing
    there = column.values[~missing]
    return bool(len(there)) and (bool((there != there[0]).any()) or (column.type == "whole" and bool(missing.any())))


def _cells(column: Column, places: Sequence[int]) -> list[Any]:
    return [column.python(place, place + 1)[0] for place in places]


def _written(name: str, value: Any) -> str:
    if value is None:
        return "one step" if name == "chunk_tokens" else "–"
    if name.endswith("_s") and name not in ("rate_per_s",):
        return milliseconds(value)
    if name in ("fraction_of_gaps", "goodput_share"):
        return percent(value)
    if isinstance(value, float):
        return significant(value, 3 if name == "cost_per_million_tokens" else 4)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _reasons(column: Column) -> str:
    counted = Counter(column.values[~column.missing].astype(int).tolist())
    if not counted:
        return ""
    lines = [f"  {number:,} × {column.texts[place]}" for place, number in counted.most_common(MOST_REASONS)]
    if len(counted) > MOST_REASONS:
        lines.append(f"  and {plural(len(counted) - MOST_REASONS, 'other reason')}")
    return "\n".join(["Without an answer, or without all of it:", *(wrapped(line) for line in lines)])
