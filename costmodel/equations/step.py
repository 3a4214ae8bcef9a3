"""The cost of one engine step: the one place where operators become seconds, and where it is written down what adds and what overlaps.

Overlap: within one kernel, arithmetic and memory traffic overlap: the kernel lasts as long as the slower of the two
(``max`` on the roofline rung, a smooth maximum on the calibrated one). Add: kernels of one step run one after the other on a
GPU, so their times add; so do communication and overheads. Prefill attention and decode attention of a mixed step are separate
kernels and add. Pipeline stages follow one another for one token, so they add as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from costmodel.equations.numerics import Value, ceil, minimum, smooth_max
from costmodel.equations.parameters import AttentionKernel, OperatorGroup, Parameters, Rate, Transfer
from costmodel.equations.work import Work

T = TypeVar("T")
Bound = Literal["compute", "memory", "link", "latency"]


@dataclass(frozen=True, slots=True)
class OperatorTime(Generic[T]):
    """One operator in one step.

    Attributes:
        name, group: what it is.
        flops: per GPU [FLOP].
        bytes: moved from and to device memory per GPU, or over the link [B].
        seconds: time [s].
        compute_s: FLOPs/(e_c·F) [s].
        memory_s: bytes/(e_b·W), or the link's time [s].
        fixed_s: launches, latencies, overheads [s].
        calibrated_by: key of the calibration's operator, "" if at datasheet rates.
    """

    name: str
    group: OperatorGroup
    flops: T
    bytes: T
    seconds: T
    compute_s: T
    memory_s: T
    fixed_s: T
    calibrated_by: str = ""

    @property
    def bound(self) -> Bound:
        """What limits the operator: ``compute``, ``memory``, ``link`` or ``latency`` (scalars only)."""
        values: tuple[Any, Any, Any] = (self.compute_s, self.memory_s, self.fixed_s)
        compute, memory, fixed = values
        if fixed > compute and fixed > memory:
            return "latency"
        if self.group == "communication":
            return "link"
        return "compute" if compute > memory else "memory"


@dataclass(frozen=True, slots=True)
class StepTimes(Generic[T]):
    """Seconds of one step, or of an array of steps, by group [s]."""

    total: T
    linear: T
    """Layers' weight matrices, routed experts included, lm_head not."""
    attention: T
    lm_head: T
    communication: T
    other: T
    """Elementwise kernels and overheads (calibrated rung only)."""


def step_operators(parameters: Parameters, work: Work) -> list[OperatorTime[Any]]:
    """Return every operator of a step with its FLOPs, bytes and seconds.

    Args:
        parameters: of the deployment.
        work: sums of the step, with an entry for every window of ``parameters``; at least one token.
    """
    tokens = padded_tokens(parameters, work)
    operators = []
    for gemm in parameters.gemms:
        served = work.rows if gemm.per_row else tokens
        operators.append(
            _kernel(
                gemm.name,
                gemm.group,
                gemm.flops_per_token * served,
                gemm.weight_bytes + gemm.io_bytes_per_token * served,
                gemm.count,
                gemm.rate,
            )
        )
    for expert in parameters.experts:
        touched = 1 - expert.idle_probability ** (expert.replicas * tokens)
        operators.append(
            _kernel(
                expert.name,
                "experts",
                expert.flops_per_token * tokens,
                expert.weight_bytes * touched + expert.io_bytes_per_token * tokens,
                expert.count,
                expert.rate,
            )
        )
    for kernel in parameters.attention:
        operators += _attention(kernel, work)
    operators += [_transfer(transfer, tokens) for transfer in parameters.transfers]
    if (elementwise := parameters.elementwise) is not None:
        moved = elementwise.bytes_per_token * tokens
        seconds, fixed = moved / elementwise.bandwidth, elementwise.launch
        operators.append(
            OperatorTime(
                "elementwise", "elementwise", 0 * moved, moved, seconds + fixed, 0.0, seconds, fixed, "elementwise"
            )
        )
    if (overheads := parameters.overheads) is not None:
        mixed = minimum(work.prefills, 1)
        fixed = mixed * overheads.eager + (1 - mixed) * overheads.graph
        key = overheads.graph_key if _is_zero(work.prefills) else overheads.eager_key
        operators.append(OperatorTime("overhead", "overhead", 0.0, 0.0, fixed, 0.0, 0.0, fixed, key))
    return operators


def step_times(parameters: Parameters, work: Work) -> StepTimes[Any]:
    """Return the seconds of a step by group; same arguments as :func:`step_operators`."""
    sums: dict[str, Value] = {}
    for operator in step_operators(parameters, work):
        key = _REPORTED[operator.group]
        sums[key] = sums[key] + operator.seconds if key in sums else operator.seconds
    total: Value = None
    for part in sums.values():
        total = part if total is None else total + part
    zero = 0 * total
    return StepTimes(
        total, *(sums.get(key, zero) for key in ("linear", "attention", "lm_head", "communication", "other"))
    )


def padded_tokens(parameters: Parameters, work: Work) -> Value:
    """Return the tokens that the linear layers see: N, padded to the CUDA-graph size in steps without prefill."""
    if parameters.overheads is None or parameters.overheads.graph_multiple == 1:
        return work.tokens
    multiple = float(parameters.overheads.graph_multiple)
    padding = multiple * ceil(work.tokens / multiple) - work.tokens
    return work.tokens + padding * (1 - minimum(work.prefills, 1))


_REPORTED = {
    "linear": "linear",
    "experts": "linear",
    "attention": "attention",
    "lm_head": "lm_head",
    "communication": "communication",
    "elementwise": "other",
    "overhead": "other",
}


def _kernel(
    name: str, group: OperatorGroup, flops: Value, moved: Value, launches: Value, rate: Rate
) -> OperatorTime[Any]:
    """One kernel: t0·launches + smooth_max(FLOPs/(e_c·F), bytes/(e_b·W), p)."""
    compute = flops / (rate.compute_efficiency * rate.peak)
    memory = moved / (rate.bandwidth_efficiency * rate.bandwidth)
    seconds, fixed = smooth_max(compute, memory, rate.sharpness), 0
    if not _is_zero(rate.launch):
        fixed = rate.launch * launches
        seconds = seconds + fixed
    return OperatorTime(name, group, flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)


def _attention(kernel: AttentionKernel, work: Work) -> list[OperatorTime[Any]]:
    """Prefill and decode attention of the layers of one window; a kernel that serves nothing is left out where that is known."""
    operators = []
    if not _is_zero(work.prefills):
        operators.append(
            _kernel(
                "prefill_attention" + kernel.suffix,
                "attention",
                kernel.flops_per_pair * work.pairs[kernel.window],
                kernel.kv_bytes_per_token * work.prefill_kv[kernel.window],
                kernel.count * minimum(work.prefills, 1),
                kernel.prefill_rate,
            )
        )
    if not _is_zero(work.decodes):
        read = work.decode_kv[kernel.window]
        operators.append(
            _kernel(
                "decode_attention" + kernel.suffix,
                "attention",
                kernel.flops_per_kv_token * read,
                kernel.kv_bytes_per_token * read,
                kernel.count * minimum(work.decodes, 1),
                kernel.decode_rate,
            )
        )
    return operators


def _transfer(transfer: Transfer, tokens: Value) -> OperatorTime[Any]:
    sent = transfer.count * transfer.bytes_per_token * tokens
    moving = transfer.imbalance * sent / (transfer.efficiency * transfer.bandwidth)
    fixed = transfer.count * transfer.latency
    key = transfer.calibrated_by
    return OperatorTime(transfer.name, "communication", 0 * sent, sent, moving + fixed, 0.0, moving, fixed, key)


def _is_zero(value: Value) -> bool:
    return isinstance(value, (int, float)) and value == 0
