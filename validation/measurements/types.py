"""What a measurement is: an engine on a machine with a model, and the steps that were seen on it. All quantities in SI units."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from costmodel.hardware.profile import Frozen

SCHEMA = "costmodel.measurement/1"

Purpose = Literal["decode", "prefill", "chunk", "mixed", "served"]
"""Why a step was run: decodes alone; one whole prompt; a chunk on a cached context; prompts beside decodes; or it came up by itself."""
Clock = Literal["wall", "cpu"]

Tokens = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[float, Field(gt=0)]


class Engine(Frozen):
    """What ran the steps.

    Attributes:
        name: ``vllm`` or ``torch``.
        version: of it.
        versions: of what it stands on (torch, CUDA, driver, Python).
        flags: that were set, by the engine's own names.
    """

    name: Literal["vllm", "torch"]
    version: str
    versions: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


class Machine(Frozen):
    """Where.

    Attributes:
        profile: canonical name of the part's profile; None where there is none.
        device: as the driver or the system names it.
        count: devices of the engine (tensor parallel).
        clocks_mhz: by name (sm, memory), where they could be read.
        throttled: reasons that were seen while measuring; None where nobody could tell.
        threads: of the engine, on a CPU.
    """

    profile: str | None
    device: str
    count: int = 1
    clocks_mhz: dict[str, float] = Field(default_factory=dict)
    throttled: tuple[str, ...] | None = None
    threads: int | None = None


class Model(Frozen):
    """Of what.

    Attributes:
        name: of a preset, folder or repository.
        config: its config.json.
        dtype: of the weights; as in ``costmodel.deploy``.
        kv_dtype: of the KV cache; None for the activations'.
        random_weights: weights were made up.
    """

    name: str
    config: dict[str, Any]
    dtype: str
    kv_dtype: str | None = None
    random_weights: bool = False


class Step(Frozen):
    """One kind of step, with the time that its repeats took.

    Attributes:
        chunks: of every prompt in it (new tokens, tokens that were cached before).
        decodes: tokens cached before, of every decoding sequence; of repeats whose contexts grew from one to the next, the median.
        seconds: median of the repeats [s].
        spread: median absolute deviation of them [s].
        wall_seconds: median of their wall time, where ``seconds`` is CPU time [s].
        repeats: how many.
        purpose: why it was run.
        held_out: it is for checking, not for fitting.
    """

    chunks: tuple[tuple[Tokens, Tokens], ...] = ()
    decodes: tuple[Tokens, ...] = ()
    seconds: Positive
    spread: Annotated[float, Field(ge=0)] = 0.0
    wall_seconds: Positive | None = None
    repeats: Annotated[int, Field(ge=1)] = 1
    purpose: Purpose = "served"
    held_out: bool = False

    @model_validator(mode="after")
    def _computes(self) -> Self:
        if not self.tokens or any(new == 0 for new, _ in self.chunks):
            raise ValueError("a step, and each of its chunks, computes at least one token")
        return self

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return sum(new for new, _ in self.chunks) + len(self.decodes)


class Header(Frozen):
    """What is the same for all steps.

    Attributes:
        source: ``in-process`` (an engine that costmodel drove), ``log`` (a server's log) or ``probe`` (kernels and steps of torch).
        clock: ``cpu`` is the process's CPU time, which is honest only where one thread computes everything.
        date: of the beginning, ISO 8601.
        command: that made it.
    """

    schema_: Literal["costmodel.measurement/1"] = Field(default="costmodel.measurement/1", alias="schema")
    source: Literal["in-process", "log", "probe"]
    engine: Engine
    machine: Machine
    model: Model
    clock: Clock = "wall"
    date: str
    command: str
    notes: tuple[str, ...] = ()


class Measurement(Header):
    """A whole measurement; the document ``costmodel.measurement/1``.

    Attributes:
        steps: kinds of steps, each once.
        complete: the plan was run to its end.
    """

    steps: tuple[Step, ...]
    complete: bool = True
