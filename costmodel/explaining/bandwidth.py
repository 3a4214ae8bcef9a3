"""Misunderstanding 4: what a decode step lacks."""

from __future__ import annotations

from dataclasses import replace

from costmodel.dtypes import main_format
from costmodel.equations.step import OperatorTime
from costmodel.explaining.documents import Cell, Topic
from costmodel.explaining.scene import MATRICES, MOST_STREAMS, Operators, Scene, bytes_of, flops_of, of, time_of
from costmodel.explaining.tables import table
from costmodel.explaining.words import count, plural, seconds, share, significant
from costmodel.solving import largest


def decode_bound(scene: Scene) -> Topic:
    """4. Arithmetic intensity (FLOPs per byte) of a decode step, against the ridge point F/W of the GPU."""
    deployment, streams, context = scene.deployment, scene.streams, scene.context
    hardware = deployment.hardware
    dtype = deployment.compute_dtype_of(main_format(scene.architecture))
    ridge = hardware.peaks[dtype] / hardware.bandwidth
    step, one, prompt = (
        scene.decode(streams, context, floor=True),
        scene.decode(1, context, floor=True),
        scene.prefill(context, floor=True),
    )
    headline = time_of(scene.decode(streams, context))
    computing, moving = _at_peak(step)
    faster = scene.changed(hardware=replace(hardware, peaks={name: 2 * peak for name, peak in hardware.peaks.items()}))
    wider = scene.changed(hardware=replace(hardware, bandwidth=2 * hardware.bandwidth))
    by_compute = 1 - time_of(faster.decode(streams, context)) / headline
    by_bandwidth = 1 - time_of(wider.decode(streams, context)) / headline
    most = largest(lambda batch: _surplus(scene, batch), 0.0, 1, MOST_STREAMS)
    matrices, attention = intensity(of(step, MATRICES)), intensity(of(step, ["attention"]))
    lacking = computing < moving
    numbers: dict[str, Cell] = {
        "peak_flops_per_s": float(hardware.peaks[dtype]),
        "bandwidth_bytes_per_s": float(hardware.bandwidth),
        "ridge_flops_per_byte": ridge,
        "one_stream_flops_per_byte": intensity(one),
        "decode_flops_per_byte": intensity(step),
        "matrices_flops_per_byte": matrices,
        "attention_flops_per_byte": attention,
        "prefill_flops_per_byte": intensity(prompt),
        "decode_step_s": headline,
        "computing_s": computing,
        "moving_s": moving,
        "computing_share": computing / headline,
        "moving_share": moving / headline,
        "saved_by_twice_the_compute_share": by_compute,
        "saved_by_twice_the_bandwidth_share": by_bandwidth,
        "matrices_compute_bound_from_streams": None if most == MOST_STREAMS else (most or 0) + 1,
    }
    return Topic(
        number=4,
        name="decode-bound",
        claim="Decode is slow because it lacks compute.",
        verdict=f"{'No, it lacks bandwidth' if lacking else 'Here compute does bind, the batch is so large'}. A decode step of "
        f"{plural(streams, 'stream')} does {significant(intensity(step))} FLOPs per byte that it moves; the GPU could do "
        f"{count(ridge)} in the time that a byte takes. Its multipliers are needed for {seconds(computing)} of {seconds(headline)} "
        f"({share(computing / headline)}), its memory for {seconds(moving)} ({share(moving / headline)}). Twice the compute would "
        f"save {share(by_compute)} of the step, twice the bandwidth {share(by_bandwidth)}.",
        finding=f"Decode does {significant(intensity(step))} FLOPs per byte where the GPU could do {count(ridge)}: "
        + ("it lacks bandwidth" if lacking else "so large a batch lacks compute"),
        reason=(
            "A GPU has two speeds: how fast it multiplies (F) and how fast it reads its memory (W). Their ratio F/W, the ridge point, is "
            "how many operations a byte must be good for, or else the multipliers wait for the memory.",
            "For one token every weight is read and used for one multiplication and one addition: about one FLOP per byte at 16 bits. "
            f"{plural(streams, 'stream')} that share a step share the reading of the weights, so their matrices reach "
            f"{significant(matrices)}. The KV cache is nobody else's: its {significant(attention)} FLOPs per byte stay the same however "
            f"large the batch. A prompt of {count(context)} tokens, all in one step, reaches {count(intensity(prompt))}.",
        ),
        numbers=numbers,
        labels={
            "peak_flops_per_s": f"F: dense peak of the GPU at {dtype}",
            "bandwidth_bytes_per_s": "W: bandwidth of its memory",
            "ridge_flops_per_byte": "F/W: ridge point",
            "one_stream_flops_per_byte": "decode step of one stream",
            "decode_flops_per_byte": f"decode step of {plural(streams, 'stream')}",
            "matrices_flops_per_byte": "of it the matrices",
            "attention_flops_per_byte": "of it attention, on the KV cache",
            "prefill_flops_per_byte": f"prefill of {count(context)} tokens",
            "decode_step_s": "time of that decode step",
            "computing_s": "its FLOPs at peak",
            "moving_s": "its bytes at full bandwidth",
            "computing_share": "share of the step that the multipliers are needed",
            "moving_share": "share of the step that the memory is needed",
            "saved_by_twice_the_compute_share": "saved by twice the compute",
            "saved_by_twice_the_bandwidth_share": "saved by twice the bandwidth",
            "matrices_compute_bound_from_streams": "batch from which its matrices lack compute",
        },
        tables=(
            table(
                "operators",
                f"The decode step at datasheet rates ({plural(streams, 'stream')}, {count(context)} tokens each)",
                {
                    "operator": "operator",
                    "flops": "FLOPs",
                    "bytes": "bytes",
                    "flops_per_byte": "FLOP/B",
                    "bound": "waits for",
                    "time_s": "time",
                },
                [_row(item) for item in step if item.seconds > 0],
            ),
            table(
                "points",
                "Points of the figure",
                {"what": "what", "flops_per_byte": "FLOP/B", "flops_per_s": "FLOP/s", "bound": "bound"},
                [
                    _point("decode, 1 stream: matrices", of(one, MATRICES)),
                    _point(f"decode, {plural(streams, 'stream')}: matrices", of(step, MATRICES)),
                    _point(f"decode, {plural(streams, 'stream')}: KV cache", of(step, ["attention"])),
                    _point(f"decode, {plural(streams, 'stream')}: all of it", step),
                    _point(f"prompt, {count(context)} tokens: matrices", of(prompt, MATRICES)),
                    _point(f"prompt, {count(context)} tokens: attention", of(prompt, ["attention"])),
                ],
                shown=False,
            ),
        ),
        formulas=(
            "time of a kernel ≥ max(FLOPs/F, bytes/W); FLOPs/bytes < F/W: it waits for memory",
            "matrices: 2·P·B/(P·b_w) = 2·B/b_w; attention of GQA: 4·h·d_h/(2·h_kv·d_h·b_kv) = 2·(h/h_kv)/b_kv, whatever the batch",
        ),
        sources=(
            "Williams, Waterman, Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009",
            f"F and W: datasheet of the {deployment.profile.name} (costmodel gpus show {deployment.gpu})",
        ),
    )


def intensity(operators: Operators) -> float:
    """Return FLOPs per byte; 0 of nothing."""
    moved = bytes_of(operators)
    return flops_of(operators) / moved if moved else 0.0


def _at_peak(operators: Operators) -> tuple[float, float]:
    """Return the time of all FLOPs at peak, and of all bytes at full bandwidth [s]: of operators at datasheet rates."""
    on_chip = [item for item in operators if item.group != "communication"]
    return sum(item.compute_s for item in on_chip), sum(item.memory_s for item in on_chip)


def _surplus(scene: Scene, batch: int) -> float:
    """Return by how much the matrices of a decode step compute longer than they read, at datasheet rates [s]."""
    computing, moving = _at_peak(of(scene.decode(batch, scene.context, floor=True), ("linear", "experts")))
    return computing - moving


def _row(item: OperatorTime[float]) -> dict[str, Cell]:
    return {
        "operator": item.name,
        "flops": item.flops,
        "bytes": item.bytes,
        "flops_per_byte": item.flops / item.bytes if item.bytes else 0.0,
        "bound": item.bound,
        "time_s": item.seconds,
    }


def _point(what: str, operators: Operators) -> dict[str, Cell]:
    computing, moving = _at_peak(operators)
    seconds = time_of(operators)
    return {
        "what": what,
        "flops_per_byte": intensity(operators),
        "flops_per_s": flops_of(operators) / seconds if seconds else 0.0,
        "bound": "compute" if computing > moving else "memory",
    }
