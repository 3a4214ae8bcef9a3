"""``costmodel.plan/1`` of the inverse questions. All quantities in SI units; keys never change (docs/json.md)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from costmodel.hardware.profile import Frozen

Question = Literal["chunk", "batch", "prompt", "gpu", "replicas", "disaggregation"]


class Sparse(Frozen):
    """A document that leaves out what is not known."""

    @model_serializer(mode="wrap")
    def _omit_missing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Slo(Sparse):
    """The limits that were asked for; None for no limit."""

    itl_s: float | None = None
    """On every gap between two tokens of a stream; at the percentile for replicas."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: float | None = None
    """At which TTFT, TPOT, ITL and end-to-end latency are taken, of loads that are simulated."""


class Nearest(Sparse):
    """One change after which the limit that binds holds."""

    change: str
    """What changes, as the command line has it: ``--itl-ms``, ``--tp``, ``--every``."""
    value: float
    """In SI units: seconds for times; of ``--gpu`` the number of GPUs."""
    gpu: str | None = None
    """Canonical name of the part, of ``--gpu``."""
    text: str
    """The same in words, with the unit."""
    enough: bool = True
    """Whether all limits hold after this change alone; otherwise ``text`` says what does not."""


class Advice(Sparse):
    """What to set. Each value is the best that the limits allow; ``binding`` says which of them stops it."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    """Longest with which vLLM starts, where it does not start with the model's own."""
    context_tokens: int | None = None
    prompt_tokens: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    tensor_parallel: int | None = None
    replicas: int | None = None
    prefill_servers: int | None = None
    decode_servers: int | None = None
    binding: dict[str, str] = Field(default_factory=dict)
    """Name of a value above → the limit that binds it."""


class Bound(Frozen):
    """What one limit allows by itself."""

    limit: str
    allows: int | None
    """Largest value within it; None where it does not bind."""


class Checked(Sparse):
    """What the answer, or the value next to it, leads to."""

    value: int
    meets: bool
    """Whether all limits hold, by the equations."""
    itl_s: float | None = None
    """The longest gap, by the equations."""
    tpot_s: float | None = None
    ttft_s: float | None = None
    """Of a prompt that comes at the worst moment."""
    level: float | None = None
    """Share of the measurements that lie in intervals such as those below."""
    itl_interval_s: tuple[float, float] | None = None
    tpot_interval_s: tuple[float, float] | None = None
    """As wide, relative to the TPOT, as that of the decode step."""
    ttft_interval_s: tuple[float, float] | None = None
    """As wide, relative to the TTFT, as that of the longest mixed step."""
    kv_blocks_needed: int | None = None
    kv_blocks: int | None = None
    simulated_itl_s: float | None = None
    """The longest gap of the simulation."""
    simulated_tpot_s: float | None = None
    simulated_ttft_s: float | None = None
    """The longest TTFT of the simulation."""
    simulated_prompts: int | None = None
    """Prompts that it served; with 0 it confirms nothing."""


class Plan(Sparse):
    """What all answers have."""

    schema_: Literal["costmodel.plan/1"] = Field(default="costmodel.plan/1", alias="schema")
    plan: Question
    model: str | None
    gpu: str | None
    gpus: int | None
    """Of one server."""
    rung: Literal["fixed", "roofline", "calibrated"] | None
    calibration: str | None
    workload: dict[str, str | int | float | bool | None]
    limits: Slo
    feasible: bool
    binding: str
    """The limit that stops the answer from being better, or that cannot be held."""
    binds: str
    """The same as a sentence."""
    nearest: tuple[Nearest, ...] = ()
    """Where the answer is no: the nearest values with which the limit that binds holds."""
    advice: Advice | None = None
    """None where the answer is no."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ChunkPoint(Frozen):
    """One token budget of the trade-off."""

    max_num_batched_tokens: int
    itl_s: float
    """The longest gap of a stream."""
    ttft_s: float
    """Of a prompt that comes at the worst moment."""
    chunks: int
    keeps_up: bool
    """Whether a prompt is done before the next one comes."""


class ChunkPlan(Plan):
    """The answer of :func:`costmodel.plan_chunk`."""

    plan: Literal["chunk"] = "chunk"
    exact_max_num_batched_tokens: int | None = None
    """Largest whole number below the next multiple; the advice is a multiple of ``multiple``."""
    multiple: int
    at: Checked | None = None
    after: Checked | None = None
    """At the next larger multiple."""
    points: tuple[ChunkPoint, ...] = ()


class SizePlan(Plan):
    """The answer of :func:`costmodel.plan_batch` and :func:`costmodel.plan_prompt`."""

    plan: Literal["batch", "prompt"]
    unknown: Literal["streams", "context", "prompt"]
    bounds: tuple[Bound, ...] = ()
    """What each limit allows by itself."""
    at: Checked | None = None
    after: Checked | None = None
    """At one more, where a limit does not hold."""


class GpuOption(Sparse):
    """One part with one number of GPUs."""

    gpu: str
    """Canonical name of the part."""
    name: str
    gpus: int
    tensor_parallel: int = 1
    """Less than ``gpus`` where experts are spread over more (``--ep``)."""
    meets: bool
    missed: tuple[str, ...] = ()
    """Limits that do not hold; ``part`` where the part does not run the model as it was asked for."""
    why: str
    """Which limit does not hold, or what is closest to its limit."""
    rung: Literal["roofline", "calibrated"] | None = None
    """``roofline`` is a floor: no is no, yes is maybe."""
    tpot_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None
    """Of output, while all streams decode."""


class GpuPlan(Plan):
    """The answer of :func:`costmodel.plan_gpu`."""

    plan: Literal["gpu"] = "gpu"
    currency: str | None = None
    options: tuple[GpuOption, ...]
    """For each part the fewest GPUs that do it, cheapest first; then the parts that cannot, with the reason."""
    tried: tuple[GpuOption, ...] = ()
    """Every number of GPUs of every part."""


class FleetRun(Sparse):
    """One simulated fleet."""

    servers: int
    """Replicas, or servers of both kinds."""
    prefill_servers: int | None = None
    decode_servers: int | None = None
    gpus: int
    meets: bool
    missed: tuple[str, ...] = ()
    """Limits that do not hold; ``load`` where requests come faster than they are answered, ``refused`` where no server takes too many."""
    ttft_s: float | None = None
    """At the percentile; None where so many requests got no token."""
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    output_tokens_per_s: float
    busy_share: float
    """Share of the time that a step runs: near 1 for any server that always has a request."""
    kv_share: float | None = None
    """Most KV blocks in use on one server, of those there are; None for a cache without end."""
    keeps_up: bool
    """False where requests come faster than they are answered, by the rule of ``costmodel simulate``."""
    refused: dict[str, int] | None = None
    """Requests that no server takes, by reason; they count as missed."""


class ClosedForm(Frozen):
    """What the equations say of one server before anything is simulated."""

    rate_per_server: float
    """Largest rate within the limits on means, the KV cache and ``max_num_seqs`` [requests/s]."""
    running: int
    """Requests that decode at that rate."""
    tpot_s: float
    ttft_s: float
    """Means; without queueing."""
    servers: int


class FleetPlan(Plan):
    """The answer of :func:`costmodel.plan_replicas` and :func:`costmodel.plan_disaggregation`."""

    plan: Literal["replicas", "disaggregation"]
    closed_form: ClosedForm | None = None
    at: FleetRun | None = None
    """The answer, simulated."""
    before: tuple[FleetRun, ...] = ()
    """One server fewer, simulated: replicas, or one of each kind."""
    runs: tuple[FleetRun, ...]
    """All that was simulated, by number of servers."""
    together: FleetRun | None = None
    """Disaggregation: the fewest servers that do both and hold the same limits."""
