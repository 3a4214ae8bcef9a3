"""Misunderstanding 4: what a decode step lacks."""

from __future__ import annotations

import math
from dataclasses import replace

from costmodel.dtypes import main_format
from costmodel.equations.step import OperatorTime
from costmodel.explaining.batches import batch_of
from costmodel.explaining.documents import Cell, Table, Topic
from costmodel.explaining.formulas import pair_flops, token_bytes
from costmodel.explaining.layers import Experts, experts_of
from costmodel.explaining.scene import (
    MATRICES,
    MOST_STREAMS,
    Operators,
    Scene,
    bytes_of,
    flops_of,
    no_indexer,
    of,
    time_of,
)
from costmodel.explaining.tables import table
from costmodel.explaining.waiting import bound_of, waited
from costmodel.explaining.words import count, plural, seconds, share, significant
from costmodel.solving import largest

ENOUGH = 0.25
"""Share of a step that twice a rate saves at least where the step lacks that rate; half of it at most is possible."""
COLUMNS = {"memory": "for memory", "compute": "multipliers", "link": "other GPUs", "latency": "launches"}
"""What a kernel waits for → column of the table that has the time."""
WAITING = {"memory": "memory", "compute": "the multipliers", "link": "other GPUs", "latency": "launches and overheads"}


def decode_bound(scene: Scene) -> Topic:
    """4. Arithmetic intensity (FLOPs per byte) of a decode step, against the ridge point F/W of the GPU."""
    deployment, context, batch = scene.deployment, scene.context, batch_of(scene, scene.context)
    streams = batch.streams
    hardware = deployment.hardware
    dtype = deployment.compute_dtype_of(main_format(scene.architecture))
    ridge = hardware.peaks[dtype] / hardware.bandwidth
    step, one, prompt = (
        scene.decode(streams, context, floor=True),
        scene.decode(1, context, floor=True),
        scene.prefill(context, floor=True),
    )
    kernels = scene.decode(streams, context)
    headline = time_of(kernels)
    computing, moving = _at_peak(step)
    waits = {name: time / headline for name, time in waited(kernels).items()}
    peaks, wide = {name: 2 * peak for name, peak in hardware.peaks.items()}, 2 * hardware.bandwidth
    by_compute, by_bandwidth, by_both = (
        1 - time_of(scene.changed(hardware=replace(hardware, **twice)).decode(streams, context)) / headline
        for twice in ({"peaks": peaks}, {"bandwidth": wide}, {"peaks": peaks, "bandwidth": wide})
    )
    most = largest(lambda batch: _surplus(scene, batch), 0.0, 1, MOST_STREAMS)
    matrices, attention = intensity(of(step, MATRICES)), intensity(of(step, ["attention"]))
    first, last = _said(bound_of(kernels), computing / headline, waits["compute"], by_bandwidth)
    experts, several = experts_of(scene, streams), plural(streams, "stream")
    indexed = " (with the indexer)" if len(no_indexer(step)) < len(step) else ""
    numbers: dict[str, Cell] = {
        "peak_flops_per_s": float(hardware.peaks[dtype]),
        "bandwidth_bytes_per_s": float(hardware.bandwidth),
        "ridge_flops_per_byte": ridge,
        "one_stream_flops_per_byte": intensity(one),
        "decode_flops_per_byte": intensity(step),
        "matrices_flops_per_byte": matrices,
        "attention_flops_per_byte": attention,
        "prefill_flops_per_byte": intensity(prompt),
        "streams": streams,
        "decode_step_s": headline,
        "computing_s": computing,
        "moving_s": moving,
        "computing_share": computing / headline,
        "moving_share": moving / headline,
        **{f"waits_for_{name}_share": value for name, value in waits.items()},
        "saved_by_twice_the_compute_share": by_compute,
        "saved_by_twice_the_bandwidth_share": by_bandwidth,
        "saved_by_twice_both_share": by_both,
        "matrices_compute_bound_from_streams": None if most == MOST_STREAMS else (most or 0) + 1,
    }
    return Topic(
        number=4,
        name="decode-bound",
        claim="Decode is slow because it lacks compute.",
        verdict=f"{first}. A decode step of {batch.said} does {significant(intensity(step))} FLOPs per byte that it "
        f"moves; the GPU could do {significant(ridge)} in the time that a byte takes. At full rates its FLOPs need {seconds(computing)} of "
        f"{seconds(headline)} ({share(computing / headline)}), its bytes {seconds(moving)} ({share(moving / headline)}). Its kernels wait "
        f"for {_waiting(waits)}. Twice the compute would save {share(by_compute)} of the step, twice the bandwidth "
        f"{share(by_bandwidth)}, both {share(by_both)}.",
        finding=f"Decode does {significant(intensity(step))} FLOPs per byte where the GPU could do {significant(ridge)}: {last}",
        reason=(
            "A GPU has two speeds: how fast it multiplies (F) and how fast it reads its memory (W). Their ratio F/W, the ridge point, is "
            "how many operations a byte must be good for, or else the multipliers wait for the memory.",
            f"{_weights(scene, experts)} {_shared(streams, matrices, experts)} The KV cache is nobody else's: its "
            f"{significant(attention)} FLOPs per byte{indexed} stay the same however large the batch. "
            f"{_prompt(scene, intensity(prompt), ridge)}",
            _slower(scene, streams, experts),
        ),
        numbers=numbers,
        labels={
            "peak_flops_per_s": f"F: dense peak of the GPU at {dtype}",
            "bandwidth_bytes_per_s": "W: bandwidth of its memory",
            "ridge_flops_per_byte": "F/W: ridge point",
            "one_stream_flops_per_byte": "decode step of one stream",
            "decode_flops_per_byte": f"decode step of {several}",
            "matrices_flops_per_byte": "of it the matrices",
            "attention_flops_per_byte": "of it attention, on the KV cache" + indexed,
            "prefill_flops_per_byte": f"prefill of {count(context)} tokens",
            "streams": "streams that decode together: as asked for, or as many as fit",
            "decode_step_s": "time of that decode step",
            "computing_s": "its FLOPs at peak",
            "moving_s": "its bytes at full bandwidth",
            "computing_share": "share of the step that its FLOPs need at peak",
            "moving_share": "share of the step that its bytes need at full bandwidth",
            "waits_for_memory_share": "share of the step that its kernels wait for memory, as fast as they are",
            "waits_for_compute_share": "… for the multipliers, padding included",
            **({"waits_for_link_share": "… for other GPUs"} if deployment.gpus > 1 else {}),
            "waits_for_latency_share": "… for neither: launches, overheads",
            "saved_by_twice_the_compute_share": "saved by twice the compute",
            "saved_by_twice_the_bandwidth_share": "saved by twice the bandwidth",
            "saved_by_twice_both_share": "saved by twice both",
            "matrices_compute_bound_from_streams": "batch from which its matrices lack compute, inputs and outputs counted",
        },
        tables=(
            _operators(step, kernels if scene.fitted else None, f"{several}, {count(context)} tokens each"),
            table(
                "points",
                "Points of the figure",
                {"what": "what", "flops_per_byte": "FLOP/B", "flops_per_s": "FLOP/s", "bound": "bound"},
                [
                    _point("decode, 1 stream: matrices", of(one, MATRICES)),
                    _point(f"decode, {several}: matrices", of(step, MATRICES)),
                    _point(f"decode, {several}: KV cache", of(step, ["attention"])),
                    _point(f"decode, {several}: all of it", step),
                    _point(f"prompt, {count(context)} tokens: matrices", of(prompt, MATRICES)),
                    *(
                        _point(f"prompt, {count(context)} tokens: {what}", items)
                        for what, items in _attention_of(scene, prompt, dtype)
                    ),
                ],
                shown=False,
            ),
        ),
        formulas=(
            "time of a kernel ≥ max(FLOPs/F, bytes/W); FLOPs/bytes < F/W: it waits for memory",
            f"matrices: 2·P·B/(P·b_w) = 2·B/b_w; attention: {_per_kv_byte(scene)}, whatever the batch",
            _crossing(scene, ridge, experts),
        ),
        sources=(
            "Williams, Waterman, Patterson, Roofline: an insightful visual performance model, CACM 52(4), 2009",
            f"F and W: datasheet of the {deployment.profile.name} (costmodel gpus show {deployment.gpu})",
        ),
    )


def _said(bound: str, needed: float, computing: float, by_bandwidth: float) -> tuple[str, str]:
    """Return what is lacking: as a verdict begins, and as a finding ends.

    Args:
        bound: what the step waits for most, as in :func:`costmodel.explain_request`.
        needed: share of the step that its FLOPs need at peak.
        computing: share that its kernels wait for the multipliers.
        by_bandwidth: share that twice the bandwidth saves.
    """
    if bound == "memory" and by_bandwidth >= ENOUGH:
        return "No, it lacks bandwidth", "it lacks bandwidth"
    if bound == "memory":
        return "No, it waits for memory first, but not for memory alone", "it waits for memory, and not for that alone"
    if bound == "compute" and needed >= computing / 2:
        return "Here compute does bind, the batch is so large", "so large a batch lacks compute"
    if bound == "compute":
        return (
            "Here its kernels do wait for the multipliers, but mostly for padding",
            "what is multiplied is mostly padding",
        )
    return f"Mostly neither: it waits for {WAITING[bound]}", f"it waits for {WAITING[bound]}"


def _waiting(waits: dict[str, float]) -> str:
    """Return what kernels wait for, the longest first; what takes less than half a percent is left out."""
    found = sorted((item for item in waits.items() if item[1] >= 0.005), key=lambda item: -item[1])
    said = [f"{WAITING[name]} {share(value)}" for name, value in found]
    said[0] += " of the time"
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _weights(scene: Scene, experts: Experts | None) -> str:
    fmt = main_format(scene.architecture)
    width = float(scene.deployment.format_bytes[fmt])
    size = f"{width:.3g} {'byte' if f'{width:.3g}' == '1' else 'bytes'}"
    whose = "" if experts is None else " of an expert"
    return (
        f"For one token a weight is read and used for one multiplication and one addition: 2 FLOPs for {size} ({fmt.name}{whose}), "
        f"{significant(2 / width)} per byte."
    )


def _shared(streams: int, matrices: float, experts: Experts | None) -> str:
    who = f"{plural(streams, 'stream')} that share a step share the reading of the weights"
    if streams == 1:
        who = "A stream that is alone shares the reading of the weights with nobody"
    if experts is None:
        return f"{who}, so the matrices reach {significant(matrices)}."
    return (
        f"{who}, but of the {count(experts.all)} experts of a layer a token chooses {count(experts.per_token)}: the step reads "
        f"{significant(experts.touched)} of them, each for {significant(experts.rows)} {'token' if experts.rows == 1 else 'tokens'}, so "
        f"the matrices reach {significant(matrices)}."
    )


def _prompt(scene: Scene, reached: float, ridge: float) -> str:
    """Return what a prompt reaches, and what its kernels wait for, in the words of a decode step."""
    kernels = scene.prefill(scene.context)
    bound = bound_of(kernels)
    part = share(waited(kernels)[bound] / time_of(kernels))
    beyond = reached > ridge
    but = ": " if beyond == (bound == "compute") else ", and yet "
    why = ""
    if beyond and bound == "memory":
        some = (
            "experts, and what passes from kernel to kernel, go"
            if scene.parameters.experts
            else "what passes from kernel to kernel goes"
        )
        why = f": {some} through it"
    return (
        f"A prompt of {plural(scene.context, 'token')}, all in one step, reaches {significant(reached)}, "
        f"{'more' if beyond else 'less'} than F/W{but}its kernels wait for {WAITING[bound]} most ({part} of the time){why}."
    )


def _per_kv_byte(scene: Scene) -> str:
    """Return the formula of a decode step's FLOPs per byte of K and V."""
    flops, moved = pair_flops(scene, decode=True), token_bytes(scene)
    grouped = flops == "4·h·d_h" and moved == "2·h_kv·d_h·b_kv"
    return f"{flops}/({moved})" + (" = 2·(h/h_kv)/b_kv" if grouped else "")


def _slower(scene: Scene, streams: int, experts: Experts | None) -> str:
    """Return why kernels wait longer than their bytes and FLOPs need."""
    if scene.fitted is None:
        return "At datasheet rates every kernel takes as long as the longer of the two, and nothing else takes time."
    said = (
        "Kernels do not reach the datasheet's rates, so that they wait longer than their bytes or FLOPs need at these. Each wait is "
        "counted for the slower of the two, and a launch apart: the table has the parts of each kernel, and their sums are the shares "
        "above. Twice both rates save half of a wait at most, twice the slower one less where the other then becomes the slower, and twice "
        "the faster one a little, since the two do not overlap perfectly."
    )
    if experts is None or not any(expert.grouped for expert in scene.parameters.experts):
        return said
    routed = of(scene.decode(streams, scene.context), ("experts",))
    multiplying, reading = (sum(getattr(item, name) for item in routed) for name in ("compute_s", "memory_s"))
    floor = of(scene.decode(streams, scene.context, floor=True), ("experts",))
    exact, padded = sum(item.compute_s for item in floor), multiplying > reading and bound_of(floor) == "memory"
    return (
        f"{said} Experts are multiplied in whole tiles of rows, of which {significant(experts.rows)} per expert are tokens and the "
        f"others padding: {seconds(multiplying)} where their FLOPs need {seconds(exact)} at peak, beside {seconds(reading)} of reading. "
        "The longer of the two is waited for; shorten one, and the other remains."
        + (
            " So experts wait for memory at datasheet rates, which know no padding, and for the multipliers as their kernels are: the "
            "table has both."
            if padded
            else ""
        )
    )


def _crossing(scene: Scene, ridge: float, experts: Experts | None) -> str:
    width = float(scene.deployment.format_bytes[main_format(scene.architecture)])
    if experts is None:
        return f"they meet F/W at B = F/W·b_w/2 = {count(ridge * width / 2)} by weights alone; their inputs and outputs are moved as well"
    alone = ridge * width / 2 * experts.all / experts.per_token / scene.deployment.replicas
    return (
        f"experts: 2·B·k/(E·(1 − (1 − k/E)^B)·b_w), which meets F/W at B ≈ F/W·b_w/2·E/k = {count(alone)} by weights alone; "
        "inputs and outputs are moved as well, and other matrices meet it earlier"
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


def _operators(step: Operators, kernels: Operators | None, load: str) -> Table:
    """Return what a decode step's kernels count, and their times at datasheet rates and, where there is a calibration, as they are."""
    here = {item.name: item for item in kernels or ()}
    rows = [_row(item, here.get(item.name)) for item in step if item.seconds > 0]
    known = {row["operator"] for row in rows}
    rows += [_row(None, item) for item in here.values() if item.name not in known and item.seconds > 0]
    rows.append(_sum(step, kernels))
    columns = {"operator": "operator", "flops": "FLOPs", "bytes": "bytes", "flops_per_byte": "FLOP/B"}
    rated = {"bound": "waits for", "time_s": "time"}
    if kernels is None:
        return table("operators", f"The decode step at datasheet rates ({load})", {**columns, **rated}, rows)
    rated = {
        "bound": "datasheet: waits for",
        "time_s": "time",
        "calibrated_bound": "here: waits for",
        **{_waits(name): label for name, label in COLUMNS.items() if any(row[_waits(name)] for row in rows)},
        "calibrated_time_s": "time here",
    }
    return table("operators", f"The decode step, and what its kernels wait for ({load})", {**columns, **rated}, rows)


def _waits(name: str) -> str:
    return f"calibrated_waits_for_{name}_s"


def _sum(step: Operators, kernels: Operators | None) -> dict[str, Cell]:
    """Return the last row of the table: the step, whose waits are those of the verdict; bytes over links, which no memory moves, apart."""
    return {
        "operator": "all together",
        "flops": flops_of(step),
        "bytes": bytes_of(step),
        "flops_per_byte": intensity(step),
        "bound": bound_of(step),
        "time_s": time_of(step),
        **_here(kernels),
    }


def _here(kernels: Operators | None) -> dict[str, Cell]:
    """Return what kernels take as they are, and what they wait for meanwhile; empty cells without a calibration."""
    waits = waited(kernels) if kernels else None
    return {
        "calibrated_bound": bound_of(kernels) if kernels else None,
        **{_waits(name): waits[name] if waits else None for name in COLUMNS},
        "calibrated_time_s": time_of(kernels) if kernels else None,
    }


def _attention_of(scene: Scene, prompt: Operators, dtype: str) -> list[tuple[str, Operators]]:
    """Return attention, and its indexer where there is one, with their formats where these are not ``dtype``, whose peak is F."""
    every = of(prompt, ["attention"])
    own = no_indexer(every)
    indexer = [item for item in every if item not in own]
    named = [
        (what, items, _multiplied_in(scene, items, dtype)) for what, items in (("attention", own), ("indexer", indexer))
    ]
    alike = all(fmt in ("", dtype) for *_, fmt in named)
    return [(what if alike else f"{what} ({fmt})", items) for what, items, fmt in named if items or what == "attention"]


def _multiplied_in(scene: Scene, operators: Operators, dtype: str) -> str:
    """Return the format at whose peak operators at datasheet rates multiply: ``dtype`` if that is as fast; "" for none."""
    computing = sum(item.compute_s for item in operators)
    if not computing:
        return ""
    rate = flops_of(operators) / computing
    peaks = scene.deployment.hardware.peaks
    names = [
        name for name in (dtype, "bf16", *peaks) if name in peaks and math.isclose(peaks[name], rate, rel_tol=1e-6)
    ]
    return names[0] if names else ""


def _row(item: OperatorTime[float] | None, kernel: OperatorTime[float] | None) -> dict[str, Cell]:
    """Return an operator at datasheet rates, where these know it, and as the kernel that it is, where there is a calibration."""
    named = item or kernel
    assert named is not None
    return {
        "operator": named.name,
        "flops": item.flops if item else None,
        "bytes": item.bytes if item else None,
        "flops_per_byte": (item.flops / item.bytes if item.bytes else 0.0) if item else None,
        "bound": item.bound if item else None,
        "time_s": item.seconds if item else None,
        **_here([kernel] if kernel else None),
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
