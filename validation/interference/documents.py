"""What a report of the experiment says: the document ``costmodel.interference/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from costmodel.hardware.profile import Frozen
from costmodel.simulation.results import Percentiles, Result, Stalls
from costmodel.validation.interference.matching import Cause
from costmodel.validation.interference.records import Lag, Plan, Server
from costmodel.validation.measurements.types import Machine


class RunResult(Frozen):
    """One run, of its beginning (every stream has a token) to its end."""

    duration_s: float
    complete: bool
    gaps: int
    gaps_per_stream: float
    stalls: int
    stall_detail: Stalls
    itl: Percentiles | None
    """Of all gaps of all streams together, nearest rank."""
    tokens: int
    tokens_per_s: float
    answers: int
    """Requests of the streams."""
    restarts: int
    """Of those, begun while the run was under way."""
    failures: int
    bundles: int
    """Gaps of no length: tokens that came with the one before."""
    context_tokens: float
    """Mean tokens that a stream had in the KV cache."""
    ttft: Percentiles | None = None
    """Of the injected prompts, from when they are sent."""
    lag: Lag | None = None


class SpikeResult(Frozen):
    """High gaps of most streams at one time."""

    time_s: float
    """Of the beginning of its first gap, since the run's beginning."""
    height_s: float
    """Median over the streams of the longest gap of each."""
    duration_s: float
    """From the beginning of the first to the end of the last."""
    steps: int
    """High gaps that the median stream had."""
    streams: int
    cause: Cause
    injection: int | None


class InjectionResult(Frozen):
    """One injected prompt."""

    sent_s: float
    """Since the run's beginning."""
    ttft_s: float | None
    prompt_tokens: int | None
    """As the server counted them."""
    cached_tokens: int | None
    spike: int | None
    """Index of the spike that it made."""
    problem: str | None


class OneStep(Frozen):
    """Whether every prompt went through in one step, and if not, which flag is in the way."""

    verdict: Literal["yes", "no", "unknown"]
    steps: float | None
    """High gaps of the median stream per injection, their median."""
    why: str
    flag: str | None = None
    """Of ``vllm serve``, that would change it."""


class Compared(Frozen):
    """A prediction beside what was measured."""

    what: str
    predicted_s: float
    measured_s: float
    error: float
    """predicted ÷ measured − 1."""
    interval_s: tuple[float, float] | None
    inside_interval: bool | None


class Interference(Frozen):
    """``costmodel.interference/1``."""

    schema_: Literal["costmodel.interference/1"] = Field(default="costmodel.interference/1", alias="schema")
    server: Server
    model_name: str
    machine: Machine | None
    workload: Plan
    baseline: RunResult | None
    injected: RunResult | None
    spikes: tuple[SpikeResult, ...]
    injections: tuple[InjectionResult, ...]
    threshold_s: float | None
    """Gaps above it are high."""
    one_to_one: bool
    """Every answered injection has a spike, and every spike that the server made otherwise than by a restart has an injection."""
    decode_step_s: float | None
    """Median gap of the baseline; where most are of no length, because tokens come together, the median of the others."""
    spike_s: float | None
    """Median height of the spikes of injections."""
    spike_ratio: float | None
    one_step: OneStep
    predicted: tuple[Compared, ...] = ()
    prediction: str | None = None
    """GPU, model, rung and calibration of the prediction."""
    simulated: Result | None = None
    """The injected run as the simulator has it."""
    problems: dict[str, int] = Field(default_factory=dict)
    """What went wrong → how often."""
    complete: bool
    record: str | None = None
    """File of the raw tokens."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Interferences(Frozen):
    """``costmodel.interferences/1``: several records of one call."""

    schema_: Literal["costmodel.interferences/1"] = Field(default="costmodel.interferences/1", alias="schema")
    interferences: tuple[Interference, ...]
