"""From the YAML of a case to its measured numbers, each with its unit and what the words around it say of the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from case_names import find_dtype

SYNONYMS: Final = {
    "batch": "conc concurrency batch batch_size bs c cc max_concurrency num_seqs streams users",
    "prompt": "isl input in input_len input_length prompt prompt_tokens input_tokens prompt_len tokens num_tokens",
    "output": "osl output out output_len output_length output_tokens gen_len",
    "both": "in_out length len",
    "context": "context ctx kv_len context_tokens seq_len_kv cached",
    "chunk": "chunk chunk_tokens max_num_batched_tokens chunk_size n_batch",
    "seq": "seq seqlen seq_len sequence",
    "tp": "tp tensor_parallel",
    "dtype": "dtype quant precision",
    "gpu": "gpu device",
    "drafts": "k num_speculative_tokens num_spec_tokens speculative_tokens spec_tokens",
    "accepted": "al acceptance_length accepted_length mean_acceptance_length",
    "skip": "acceptance n repeats",
}
"""Names that sources give to the conditions of a row → what they mean here."""

CONDITIONS: Final = {word: name for name, words in SYNONYMS.items() for word in words.split()}

_UNITS: Final = (
    (r"ms_per_step|ms", "ms"),
    (r"us", "us"),
    (r"(?:out_|in_|input_|output_|total_)?(?:tok|tokens|token)_(?:per_)?s(?:ec)?|tps", "tok/s"),
    (r"tflops", "tflops"),
    (r"s|sec|seconds", "s"),
)


@dataclass(frozen=True)
class Reading:
    """One measured number.

    Attributes:
        label: where it stands in the case.
        words: the words of its key, unit and conditions taken out.
        value: the number, in ``unit``.
        unit: ``ms``, ``us``, ``s``, ``tok/s``, ``tflops``, or empty if nothing says it.
        conditions: batch, prompt, output, context, chunk, seq, tp, dtype, gpu … as far as the row says them.
        siblings: keys of the same row.
    """

    label: str
    words: tuple[str, ...]
    value: float
    unit: str
    conditions: Mapping[str, Any]
    siblings: frozenset[str] = field(default_factory=frozenset)


def readings(case: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield every measured number of a case: scalars, rows of a list, parallel lists, and one level of nesting."""
    measured = case.get("measured") or {}
    yield from _walk(measured, "", {}, str(measured.get("unit", "")) if isinstance(measured, Mapping) else "")


def _walk(node: Any, label: str, conditions: Mapping[str, Any], unit: str) -> Iterator[Reading]:
    if isinstance(node, list):
        for index, row in enumerate(node):
            yield from _walk(row, f"{label}[{index}]" if label else f"[{index}]", conditions, unit)
        return
    if not isinstance(node, Mapping):
        return
    known = dict(conditions)
    for key, value in node.items():
        if (name := CONDITIONS.get(str(key).casefold())) and not isinstance(value, (list, Mapping)):
            known[name] = value
    lists = {str(key): value for key, value in node.items() if isinstance(value, list)}
    axis = next((key for key in lists if key.casefold() in CONDITIONS), None)
    for key, value in node.items():
        text = str(key)
        if text.casefold() in CONDITIONS or text in ("unit", "notes"):
            continue
        where = f"{label}.{text}" if label else text
        if isinstance(value, list) and axis is not None and len(value) == len(lists[axis]):
            for at, number in zip(lists[axis], value, strict=True):
                inside = {**known, CONDITIONS[axis.casefold()]: at}
                yield from _number(text, number, f"{where} @ {axis} {at}", inside, unit, frozenset(map(str, node)))
        elif isinstance(value, (list, Mapping)):
            words, found, inner = parse_key(text)
            inside = {**known, **found, "words": (*known.get("words", ()), *words)}
            yield from _walk(value, where, inside, inner or unit)
        else:
            yield from _number(text, value, where, known, unit, frozenset(map(str, node)))


def _number(
    key: str, value: Any, label: str, conditions: Mapping[str, Any], unit: str, siblings: frozenset[str]
) -> Iterator[Reading]:
    words, found, own = parse_key(key)
    spelt = re.fullmatch(r"\s*~?\s*([\d.]+(?:\s*-\s*[\d.]+)?)\s*([a-zA-Z/]*)\s*", str(value))
    number = as_number(spelt[1]) if spelt and isinstance(value, str) else as_number(value)
    if number is None:
        return
    if spelt and spelt[2] and isinstance(value, str):
        own = spelt[2]
    known = {**conditions, **found}
    outer = known.pop("words", ())
    yield Reading(label, (*outer, *words), number, _unit(own or unit), known, siblings - {key})


def as_number(value: Any) -> float | None:
    """Return a number, the number of a text, the middle of a range such as ``26-29``, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    span = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:-\s*(\d+(?:\.\d+)?))?\s*", str(value))
    return (float(span[1]) + float(span[2] or span[1])) / 2 if span else None


def parse_key(key: str) -> tuple[tuple[str, ...], dict[str, Any], str]:
    """Return (words, conditions, unit) of a key such as ``first_token_ms_128``, ``bf16_tp2``, ``b16_ms`` or ``128/2048``."""
    lengths = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", key)
    if lengths:
        return (), {"prompt": int(lengths[1]), "output": int(lengths[2])}, ""
    rest, unit = "_" + re.sub(r"[\s/-]+", "_", key.casefold()) + "_", ""
    for pattern, name in _UNITS:
        found = re.search(rf"_({pattern})_", rest)
        if found:
            unit = name
            prefix = found[1].split("_")[0]
            kept = prefix if prefix in ("out", "in", "input", "output", "total") else ""
            rest = rest.replace(found[0], f"_{kept}_" if kept else "_", 1)
            break
    conditions: dict[str, Any] = {}
    words = []
    for word in filter(None, rest.split("_")):
        tagged = re.fullmatch(r"(bs|b|batch|conc|c|tp|ctx|isl|osl)(\d+)", word)
        thousands = re.fullmatch(r"(\d+)k", word)
        benched = re.fullmatch(r"(pp|tg)(\d+)", word)
        piece = re.fullmatch(r"(\d+)(p|d)", word)
        if tagged and word.upper() not in key.split():  # B200 is a part, b200 a batch
            conditions[CONDITIONS[{"b": "batch"}.get(tagged[1], tagged[1])]] = int(tagged[2])
        elif benched:  # llama-bench: pp512 prompt processing, tg128 text generation
            conditions["prompt" if benched[1] == "pp" else "output"] = int(benched[2])
            words.append("prefill" if benched[1] == "pp" else "decode")
        elif piece:
            conditions["prompt" if piece[2] == "p" else "batch"] = int(piece[1])
        elif word.isdecimal():
            conditions["number"] = int(word)
        elif thousands:  # 4k is 4096 of something, 10k is 10,000
            count = int(thousands[1])
            conditions["number"] = count * (1000 if count & (count - 1) else 1024)
        elif find_dtype(word):
            conditions["dtype"] = word
        else:
            words.append(word)
    return tuple(words), conditions, unit


def _unit(text: str) -> str:
    folded = text.casefold().replace("tokens", "tok").replace("/s", "_s").replace(" ", "")
    for pattern, name in _UNITS:
        if re.fullmatch(pattern, folded):
            return name
    return text if text in ("ms", "us", "s", "tok/s", "tflops") else ""
