"""What a row of a sweep says. Quantities in SI units; None where there is no answer, and ``problem`` says why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Kind = Literal["steps", "load", "interference"]
Type = Literal["text", "whole", "number", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The configuration of a row, and whether there is an answer."""

    model: str
    gpu: str
    """Canonical name of the part, or the path of a profile."""
    gpus: int | None
    tensor_parallel: int
    dtype: str | None
    """Of the weights; the checkpoint's where none was asked for."""
    chunk_tokens: int | None
    """Token budget per step; None for the prompt in one step."""
    rate_per_s: float | None
    prompt_tokens: int
    streams: int | None
    context_tokens: int | None
    output_tokens: int | None
    problem: str | None
    """Why there is no answer, or not all of one."""
    rung: str | None
    """``calibrated``, or ``roofline`` where nothing was measured: a floor."""
    output_tokens_per_s: float | None
    """Of all its GPUs: with ep > tp that of all attention replicas, each of which has the streams (or the rate) of the row."""
    output_tokens_per_s_per_gpu: float | None
    tpot_s: float | None
    """Mean time per output token after the first; in a row of steps that of the closed loop, which knows no ``rate_per_s``."""
    ttft_s: float | None
    """Mean time to first token, likewise."""
    cost_per_hour: float | None
    """Of all its GPUs, in the currency of the table of prices."""
    cost_per_million_tokens: float | None
    """Of output, in that currency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow(Row):
    """A row of a sweep of steps: :func:`costmodel.predict` and :func:`costmodel.closed_loop` of one configuration."""

    decode_step_s: float | None
    """A step in which every stream decodes one token."""
    prefill_s: float | None
    """The prompt alone in one step."""
    spike_s: float | None
    """The longest mixed step."""
    spike_ratio: float | None
    """spike_s ÷ decode_step_s."""
    chunks: int | None
    """Mixed steps of a prompt."""
    mixed_s: float | None
    """Their sum."""
    fraction_of_gaps: float | None
    """Share of a stream's gaps that are mixed steps, with ``rate_per_s`` such prompts."""
    overload: bool | None
    """The next prompt comes before this one is done."""
    kv_tokens: int | None
    """Tokens that the KV cache holds."""
    kv_available_bytes: float | None
    """Per GPU; negative where not even the weights fit."""
    kv_needed_bytes: float | None
    """By the streams and the prompt."""
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRow(Row):
    """A row of a sweep of simulations: :func:`costmodel.simulate_load` or ``simulate_interference`` (injected run) of one configuration."""

    itl_p50_s: float | None
    itl_p99_s: float | None
    itl_max_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    stalls: int | None
    """Gaps of more than three medians."""
    requests_done: int | None
    requests_refused: int | None
    duration_s: float | None
    busy_share: float | None
    """Share of the time in which a step ran."""
    preemptions: int | None
    waiting_max: int | None
    goodput_share: float | None
    """Requests within every limit, of those done or refused; None without a limit."""
    kv_tokens: int | None
    warnings: str | None
    """What the simulation warns of, in one line."""


ROWS: dict[Kind, type[Row]] = {"steps": StepRow, "load": SimulatedRow, "interference": SimulatedRow}
_TYPES: dict[str, Type] = {"str": "text", "int": "whole", "float": "number", "bool": "truth"}


def types_of(kind: Kind) -> dict[str, Type]:
    """Return the columns of a kind of sweep, in order, with their types."""
    return {field.name: _TYPES[str(field.type).partition(" ")[0]] for field in fields(ROWS[kind])}


def may_be(kind: Kind, columns: Mapping[str, Any]) -> bool:
    """Tell whether columns by name can be of a row: there are such, with values of their types."""
    types = types_of(kind)
    return all(name in types and (value is None or _is(types[name], value)) for name, value in columns.items())


def _is(type_: Type, value: Any) -> bool:
    if type_ == "text":
        return isinstance(value, str)
    if type_ == "truth":
        return isinstance(value, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and (type_ == "number" or isinstance(value, int))
