"""The cost of one engine step: the one place where operators become seconds, and where it is written down what adds and what overlaps.

Overlap: within one kernel, arithmetic and memory traffic overlap: the kernel lasts as long as the slower of the two
(``max`` on the roofline rung, a smooth maximum on the calibrated one). Add: kernels of one step run one after the other on a
GPU, so their times add; so do communication and overheads. Prefill attention and decode attention of a mixed step are separate
kernels and add, unless a calibration says that they are one (``mixed_tiles``). Pipeline stages follow one another for one token, so
they add as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from costmodel.equations.mixed_attention import mixed_seconds
from costmodel.equations.numerics import Value, ceil, is_zero, maximum, minimum, smooth_max, total
from costmodel.equations.parameters import (
    AttentionKernel,
    DecodeBlocks,
    ExpertGemm,
    GroupedExperts,
    MixedTiles,
    OperatorGroup,
    Parameters,
    Rate,
    StateKernel,
    Transfer,
)
from costmodel.equations.work import Reach, Work, longest_kv

T = TypeVar("T")
Bound = Literal["compute", "memory", "link", "latency"]


class OperatorTime(NamedTuple, Generic[T]):
    """One operator in one step. A tuple, because a step makes a dozen of them and must stay quick.

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
                gemm.weight_bytes * gemm.times_read(work.sequences) + gemm.io_bytes_per_token * served,
                gemm.count,
                gemm.rate,
                served,
            )
        )
    for expert in parameters.experts:
        if expert.grouped is not None:
            operators.append(_grouped_experts(expert, expert.grouped, tokens))
            continue
        touched = expert.touched(tokens, work.sequences)
        operators.append(
            _kernel(
                expert.name,
                "experts",
                expert.flops_per_token * tokens,
                expert.weight_bytes * touched + expert.io_bytes_per_token * tokens,
                expert.count,
                expert.rate,
                expert.visits_per_token * tokens,
            )
        )
    for kernel in parameters.attention:
        operators += _attention(kernel, work, parameters.windows)
    for state in parameters.states:
        operators += _recurrent(state, work)
    operators += [_transfer(transfer, tokens) for transfer in parameters.transfers]
    if (elementwise := parameters.elementwise) is not None:
        moved = elementwise.bytes_per_token * tokens
        if not is_zero(elementwise.cached_tokens):
            moved = moved * tokens / (tokens + elementwise.cached_tokens)
        seconds, fixed = moved / elementwise.bandwidth, elementwise.launch
        operators.append(
            OperatorTime(
                "elementwise", "elementwise", 0 * moved, moved, seconds + fixed, 0.0, seconds, fixed, "elementwise"
            )
        )
    if (overheads := parameters.overheads) is not None:
        mixed = minimum(work.prefills, 1)
        graph, eager = overheads.graph, overheads.eager
        if not is_zero(overheads.graph_sequence):
            graph = graph + overheads.graph_sequence * work.decodes
        if not is_zero(overheads.eager_sequence):
            eager = eager + overheads.eager_sequence * work.decodes
        # What a decode step costs the engine, the same step with a chunk beside it costs at least.
        fixed = mixed * maximum(eager, graph) + (1 - mixed) * graph
        key = overheads.graph_key if is_zero(work.prefills) else overheads.eager_key
        operators.append(OperatorTime("overhead", "overhead", 0.0, 0.0, fixed, 0.0, 0.0, fixed, key))
    return operators


def step_times(parameters: Parameters, work: Work) -> StepTimes[Any]:
    """Return the seconds of a step by group; same arguments as :func:`step_operators`."""
    sums: dict[str, Value] = {}
    for operator in step_operators(parameters, work):
        key = _REPORTED[operator.group]
        sums[key] = sums[key] + operator.seconds if key in sums else operator.seconds
    whole = total(sums.values())
    zero = 0 * whole
    return StepTimes(
        whole, *(sums.get(key, zero) for key in ("linear", "attention", "lm_head", "communication", "other"))
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
    name: str, group: OperatorGroup, flops: Value, moved: Value, launches: Value, rate: Rate, tokens: Value = 0
) -> OperatorTime[Any]:
    """One kernel: t0·launches + smooth_max(FLOPs/(e_c·F), bytes/(e_b·W), p), and with it what its fitted form adds.

    ``serial``, the time that depth alone takes, is a third term of the smooth maximum; ``per_token`` is added for every token. A last
    wave that is partly empty turns compute time c into c·(1 + w/(c + w)). Whole tiles of rows take N rounded up, and ``serial`` is the
    time of a whole tile. Beyond ``few_rows`` tokens memory takes 1 + ``slowdown`` times as long.
    """
    compute, serial = flops / (rate.compute_efficiency * rate.peak), rate.serial
    if not is_zero(rate.tile_rows):
        # N rounded up to T/4, T/2 or a multiple of T: 2 − ceil(2N/T) is 1 up to T/2 and not above 0 beyond.
        tile = rate.tile_rows
        spared = tile / 2 * maximum(2 - ceil(2 * tokens / tile), 0) + tile / 4 * maximum(2 - ceil(4 * tokens / tile), 0)
        compute = compute * (tile * ceil(tokens / tile) - spared) / tokens
        serial = serial * (1 - spared / tile)
    if not is_zero(rate.wave):
        wave = rate.wave * launches
        compute = compute * (1 + wave / (compute + wave))
    memory = moved / (rate.bandwidth_efficiency * rate.bandwidth)
    if not is_zero(rate.slowdown):
        memory = memory * (1 + rate.slowdown * minimum(maximum(tokens - rate.few_rows, 0), 1))
    seconds, fixed = smooth_max(compute, memory, rate.sharpness), 0
    if not is_zero(serial):
        seconds = smooth_max(seconds, serial * launches, rate.sharpness)
    if not is_zero(rate.per_token):
        seconds = seconds + rate.per_token * launches * tokens
    if not is_zero(rate.launch):
        fixed = rate.launch * launches
        seconds = seconds + fixed
    return OperatorTime(name, group, flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)


def _grouped_experts(expert: ExpertGemm, grouped: GroupedExperts, tokens: Value) -> OperatorTime[Any]:
    """Routed experts in one grouped kernel: every expert touched pads its rows to whole tiles, and costs a little time of its own.

    A router is uneven. If experts' popularity is spread exponentially, all but the first of n tokens leave an expert idle with
    chance 1/(1 + (n − 1)·k/E), and the first with 1 − k/E; even choice, (1 − k/E)^n, is what the roofline counts and is a floor here:
    of the time, and of what is told of arithmetic and reading.
    """
    rate, served, chosen = expert.rate, expert.replicas * tokens, 1 - expert.idle_probability
    touched = 1 - expert.idle_probability / (1 + (served - 1) * chosen)
    experts = expert.copies * touched
    flops, io = expert.flops_per_token * tokens, expert.io_bytes_per_token * tokens
    moved = expert.weight_bytes * (1 - expert.idle_probability**served) + io
    busiest = expert.imbalance
    padding = expert.flops_per_token / expert.visits_per_token * grouped.padding_rows * experts
    compute = (flops * busiest + padding) / (rate.compute_efficiency * rate.peak)
    memory = (expert.weight_bytes * touched + io * busiest) / (rate.bandwidth_efficiency * rate.bandwidth)
    memory = memory + grouped.expert_s * experts * expert.count
    fixed = rate.launch * expert.count
    passes = rate.per_token * expert.count * expert.visits_per_token * tokens * busiest
    multiplied, read = flops / rate.peak, moved / rate.bandwidth
    seconds = maximum(maximum(compute, memory) + passes + fixed, maximum(multiplied, read))
    compute, memory = maximum(compute, multiplied), maximum(memory + passes, read)
    return OperatorTime(expert.name, "experts", flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)


def _attention(kernel: AttentionKernel, work: Work, windows: tuple[Reach, ...]) -> list[OperatorTime[Any]]:
    """Prefill and decode attention of the layers of one window; a kernel that serves nothing is left out where that is known."""
    operators = []
    if kernel.mixed_tiles is not None and not is_zero(work.prefills):
        return _mixed_attention(kernel, kernel.mixed_tiles, work, least=any(window is not None for window in windows))
    if not is_zero(work.prefills):
        operators.append(_prefill_attention(kernel, work))
    if not is_zero(work.decodes):
        operators.append(_decode_attention(kernel, work))
    return operators


def _prefill_attention(kernel: AttentionKernel, work: Work) -> OperatorTime[Any]:
    """Plain: a kernel of A_w pairs and C_p KV tokens. Tiled: smooth_max(compute + bytes of q, k, v and output, longest tile).

    The bytes of a chunk are those of half a tile at least, smooth_max(n, T/2, 4) tokens, summed as if chunks were alike.
    """
    name, rate, tile = f"prefill_{kernel.name}{kernel.suffix}", kernel.prefill_rate, kernel.prefill_tile
    flops = kernel.flops_per_pair * work.pairs[kernel.window]
    moved = kernel.kv_bytes_per_token * work.prefill_kv[kernel.window]
    launches = kernel.count * minimum(work.prefills, 1)
    if tile is None:
        return _kernel(name, "attention", flops, moved, launches, rate)
    compute = flops / (rate.compute_efficiency * rate.peak)
    queries, read = work.tokens - work.decodes, moved
    if not is_zero(tile.least_rows):
        least = tile.least_rows * work.prefills
        queries = smooth_max(queries, least, 4)
        read = smooth_max(read, kernel.kv_bytes_per_token * least, 4)
    shared = tile.shared_passes * (tile.io_bytes_per_token * kernel.kv_bytes_per_token) ** 0.5
    passed = queries * (tile.io_bytes_per_token + shared + tile.kv_passes * kernel.kv_bytes_per_token) + read
    memory = passed / (rate.bandwidth_efficiency * rate.bandwidth)
    longest = tile.tile_flops * longest_kv(work.chunks, kernel.window) / (rate.compute_efficiency * rate.peak)
    fixed = rate.launch * launches
    seconds = smooth_max(compute + memory, longest, rate.sharpness) + fixed
    return OperatorTime(name, "attention", flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)


def _mixed_attention(kernel: AttentionKernel, tiles: MixedTiles, work: Work, least: bool) -> list[OperatorTime[Any]]:
    """One kernel of tiles, told apart: what the chunks take alone, and what the decoding sequences add to it.

    With ``least`` the sequences take as long beside a chunk as without one, at least. So it is in models with sliding windows, whose
    mixed steps nobody has measured; in those without, measured, tiles may be a little quicker than the kernels of a decode step.
    Where arrays or symbols leave open whether a step has prefill, a step without runs its decode attention as always.
    """
    name, rate, mixed = f"prefill_{kernel.name}{kernel.suffix}", kernel.prefill_rate, minimum(work.prefills, 1)
    time = mixed_seconds(kernel, tiles, work)
    flops = kernel.flops_per_pair * work.pairs[kernel.window]
    moved = kernel.kv_bytes_per_token * work.prefill_kv[kernel.window]
    fixed, key = rate.launch * kernel.count * mixed, rate.calibrated_by
    seconds = time.chunks + fixed
    operators = [OperatorTime(name, "attention", flops, moved, seconds, time.compute, time.memory, fixed, key)]
    if not is_zero(work.decodes):
        decode = _decode_attention(kernel, work)
        seconds, fixed, compute, memory = time.added, time.tiles, time.serving, time.reading
        if least:
            seconds = maximum(seconds, decode.seconds)
            compute, memory = maximum(compute, decode.compute_s), maximum(memory, decode.memory_s)
        if not is_zero(1 - mixed):
            seconds, fixed = (
                mixed * seconds + (1 - mixed) * decode.seconds,
                mixed * fixed + (1 - mixed) * decode.fixed_s,
            )
        operators.append(
            decode._replace(seconds=seconds, compute_s=compute, memory_s=memory, fixed_s=fixed, calibrated_by=key)
        )
    return operators


def _decode_attention(kernel: AttentionKernel, work: Work) -> OperatorTime[Any]:
    """Plain: a kernel of C_w KV tokens, and of more (query, key) pairs where drafted tokens are verified.

    Split: KV bytes with padding, and a time that saturates with the mean context.

    Blocks: KV bytes with padding or, where a context stays on one multiprocessor, its keys one after another; and further kernels.
    """
    name, rate, split = f"decode_{kernel.name}{kernel.suffix}", kernel.decode_rate, kernel.decode_split
    read = work.decode_kv[kernel.window]
    pairs = read if work.decode_pairs is None else work.decode_pairs[kernel.window]
    flops, moved = kernel.flops_per_kv_token * pairs, kernel.kv_bytes_per_token * read
    launches = kernel.count * minimum(work.decodes, 1)
    if split is None:
        return _kernel(name, "attention", flops, moved, launches, rate)
    compute = flops / rate.peak
    least = kernel.kv_bytes_per_token * split.padding_tokens * work.decodes
    if isinstance(split, DecodeBlocks):
        memory = split.reads * maximum(moved, least) / (rate.bandwidth_efficiency * rate.bandwidth)
        beyond = maximum(read / maximum(work.decodes, 1) - split.block_tokens, 0)
        fixed = (
            rate.launch * launches
            + split.splits * minimum(beyond, 1)
            + split.copies * minimum(maximum(work.decodes - 1, 0), 1)
        )
        seconds = maximum(maximum(compute, memory), split.per_key * beyond) + fixed
        return OperatorTime(name, "attention", flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)
    memory = smooth_max(moved, least, split.sharpness) / (rate.bandwidth_efficiency * rate.bandwidth)
    if not is_zero(split.wave):
        memory = maximum(memory, split.wave * launches)
    # t1·c/(c + c1) with the mean context c = C_w/D, written so that it is zero without sequences.
    saturating = launches * split.saturation * read / (read + split.saturation_tokens * maximum(work.decodes, 1))
    fixed = rate.launch * launches + saturating
    seconds = maximum(compute, memory) + fixed
    return OperatorTime(name, "attention", flops, moved, seconds, compute, memory, fixed, rate.calibrated_by)


def _recurrent(state: StateKernel, work: Work) -> list[OperatorTime[Any]]:
    """Recurrent layers: one kernel that scans the prompts in chunks, one that updates the states of decoding sequences.

    Either reads and writes the state of each of its sequences once; the weights of the convolutions are read by whichever runs. Where
    drafted tokens are verified, a state is written after each of them, so that those refused can be taken back (vLLM:
    ``fused_recurrent_gated_delta_rule`` with ``ssm_state_indices`` of 1 + k blocks).
    """
    operators = []
    if not is_zero(work.prefills):
        tokens = work.tokens - work.decodes - work.drafted
        moved = state.state_bytes * work.prefills + state.io_bytes_per_token * tokens
        some = minimum(work.prefills, 1)
        moved = moved + state.weight_bytes * some
        operators.append(
            _kernel(
                f"prefill_{state.name}",
                "attention",
                state.prefill_flops * tokens,
                moved,
                state.count * some,
                state.prefill_rate,
            )
        )
    if not is_zero(work.decodes):
        moved = (state.state_bytes + state.io_bytes_per_token) * work.decodes
        if not is_zero(work.drafted):
            moved = moved + (state.state_bytes / 2 + state.io_bytes_per_token) * work.drafted
        some = minimum(work.decodes, 1)
        moved = moved + state.weight_bytes * some
        operators.append(
            _kernel(
                f"decode_{state.name}",
                "attention",
                state.decode_flops * (work.decodes + work.drafted),
                moved,
                state.count * some,
                state.decode_rate,
            )
        )
    return operators


def _transfer(transfer: Transfer, tokens: Value) -> OperatorTime[Any]:
    sent = transfer.count * transfer.bytes_per_token * tokens
    moving = transfer.imbalance * sent / (transfer.efficiency * transfer.bandwidth)
    if not is_zero(transfer.one_shot_bytes):
        at_once = transfer.count * transfer.one_shot_bytes * tokens / (transfer.efficiency * transfer.bandwidth)
        moving = minimum(at_once, moving + transfer.count * transfer.two_shot)
    fixed = transfer.count * transfer.latency
    if not is_zero(transfer.large):
        # The last token before the threshold is a ramp, not a step: sizes at the threshold itself must not hang on rounding.
        beyond = minimum(maximum(tokens - transfer.large_tokens + 1, 0), 1)
        fixed = fixed + transfer.count * transfer.large * beyond
    key = transfer.calibrated_by
    return OperatorTime(transfer.name, "communication", 0 * sent, sent, moving + fixed, 0.0, moving, fixed, key)
