"""``costmodel.explanations/1`` and ``costmodel.request/1``. All quantities in SI units, named by the end of the key (docs/json.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from costmodel.hardware.profile import Frozen

Cell = float | int | str | bool | None
"""A number, in the unit that its key ends in; a word; or None where there is none."""


class Column(Frozen):
    """A column of a table."""

    key: str
    label: str


class Table(Frozen):
    """Numbers side by side."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Cell], ...]
    shown: bool = True
    """False for the many points of a curve, which a figure shows."""

    def column(self, key: str) -> list[Cell]:
        """Return one column."""
        return [row[key] for row in self.rows]


class Topic(Frozen):
    """One misunderstanding."""

    number: int
    name: str
    """Short name, as the command line takes it."""
    claim: str
    """What people say."""
    verdict: str
    """What is true, with the numbers that decide it."""
    finding: str
    """The same in one line, for a list and as the title of a figure."""
    reason: tuple[str, ...]
    """Why, for a reader who does not know the model; paragraphs."""
    numbers: dict[str, Cell]
    labels: dict[str, str]
    """Key of a number → what it is."""
    tables: tuple[Table, ...] = ()
    formulas: tuple[str, ...]
    sources: tuple[str, ...]

    def table(self, name: str) -> Table:
        """Return a table by its name."""
        return next(table for table in self.tables if table.name == name)


class Explained(Frozen):
    """What explanations are about."""

    model: str
    gpu: str
    gpus: int
    rung: Literal["roofline", "calibrated"]
    calibration: str | None
    dtype: str
    kv_dtype: str


class Explanations(Explained):
    """``costmodel.explanations/1``: what :func:`costmodel.explain` returns."""

    schema_: Literal["costmodel.explanations/1"] = Field(default="costmodel.explanations/1", alias="schema")
    context_tokens: int
    streams: int
    output_tokens: int
    topics: tuple[Topic, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Stage(Frozen):
    """One stage of a request's way."""

    name: Literal["tokenise", "queue", "prefill", "decode", "stream", "free"]
    what: str
    """What happens."""
    start_s: float
    """Since the request was sent."""
    duration_s: float
    steps: int
    """Steps of the server that it takes."""
    bound: str
    """What it waits for: ``host``, ``queue``, ``compute``, ``memory``, ``link``, ``latency`` or ``nothing``."""
    flops: float
    """Of this request alone, on one GPU."""
    reads: dict[str, float]
    """What it reads, in bytes, on one GPU: ``weights_bytes`` (shared by all that run in the step), ``kv_bytes`` …"""
    writes: dict[str, float]
    formula: str
    assumed: bool = False
    """True where a number is assumed and not computed or measured; ``what`` says which."""


class ServerStep(Frozen):
    """One step of the server while the request is there."""

    start_s: float
    duration_s: float
    tokens: int
    """Of all requests."""
    own_tokens: int
    """Of this request: a chunk of its prompt, 1 for a token of its answer, 0 while it waits."""
    own_kv_blocks: int
    """Blocks that it holds during the step."""


class RequestExplanation(Explained):
    """``costmodel.request/1``: what :func:`costmodel.explain_request` returns."""

    schema_: Literal["costmodel.request/1"] = Field(default="costmodel.request/1", alias="schema")
    prompt_tokens: int
    output_tokens: int
    cached_prefix_tokens: int
    """Of the prompt, in the prefix cache when it comes."""
    streams: int
    """That decode beside it: as asked for, or as many as fit."""
    streams_asked: int
    context_tokens: int
    token_budget: int
    block_tokens: int
    ttft_s: float
    tpot_s: float | None
    """None for an answer of one token."""
    e2e_s: float
    kv_bytes_per_token: float
    kv_blocks: int
    """That it holds at its end."""
    kv_blocks_of_server: int | None
    """That requests can have; None where memory is not counted."""
    kv_blocks_of_pool: int | None
    """That there are in all, as ``plan memory`` counts them: the null block of vLLM, and those that are set aside for layers with a window
    of a prompt being prefilled, included."""
    kept_blocks: int
    """Full blocks that stay in the prefix cache until they are needed, in all groups of layers; 0 without it."""
    stages: tuple[Stage, ...]
    steps: tuple[ServerStep, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
