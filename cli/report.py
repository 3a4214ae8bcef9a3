"""A prediction as text for a person: what happens, who sees it, where the time goes, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.cli.speculation_report import prefix_text, speculation_cells, speculation_text
from costmodel.cli.text import (
    adapters,
    count,
    gib,
    listed,
    milliseconds,
    parameters,
    percent,
    plural,
    seconds,
    significant,
    size,
    table,
)
from costmodel.documents import Operator, Prediction, Rung
from costmodel.spike import PERCENTILES

STATISTICS = (*PERCENTILES, "max")
NOTHING = 1e-9
"""Share of a step below which an operator has no row."""


def report(prediction: Prediction) -> str:
    """Return the report of one prediction."""
    parts = [
        _heading(prediction),
        _images(prediction),
        _rungs(prediction),
        _spike(prediction),
        prefix_text(prediction),
        speculation_text(prediction),
        _operators(prediction),
        _memory(prediction),
        _remarks(prediction),
    ]
    return "\n\n".join(part for part in parts if part)


def comparison(predictions: Sequence[Prediction], changing: Sequence[str]) -> str:
    """Return one table of several predictions; ``changing`` names the options that differ between them."""
    if "chunk" not in changing and len({item.workload.chunk_tokens for item in predictions}) > 1:
        changing = [*changing, "chunk"]  # --chunk engine is another budget on another GPU
    mixed = len({_rung_name(item) for item in predictions}) > 1
    header = [
        *changing,
        *(["rung"] if mixed else []),
        "decode ms",
        "prefill ms",
        "spike ms",
        "× decode",
        "steps",
        "gaps hit",
        "moves",
        "fits",
        *(["TPOT ms", "drafted", "speedup"] if any(item.speculation for item in predictions) else []),
    ]
    rows = []
    for item in predictions:
        rung, spike = item.best, item.spike
        rows.append(
            [
                *(_option(item, name) for name in changing),
                *([_rung_name(item).replace(" rung", "")] if mixed else []),
                milliseconds(rung.decode_step_s),
                milliseconds(rung.prefill_s),
                milliseconds(spike.height_s),
                significant(rung.spike_ratio, 3),
                count(spike.chunks),
                "all: overload" if spike.overload else percent(spike.fraction_of_gaps),
                " ".join(name for name in STATISTICS if spike.moves[name]),
                "yes" if item.memory.fits else "no",
                *speculation_cells(item),
            ]
        )
    first = predictions[0]
    rungs = "" if mixed else f"; {_rung_name(first)}"
    text = _common(first, changing) + "\n" + _load(first, changing) + f"{rungs}\n\n"
    text += table(rows, header, left=len(changing) + mixed) + _LEGEND
    if first.speculation is not None:
        text += "  TPOT, drafted, speedup: of speculative decoding, its tokens per pass, against the decode step beside it\n"
    remarks = _shared_remarks("note", [(item, item.notes) for item in predictions])
    warnings = [(item, [text for text in item.warnings if not text.startswith(_IN_COLUMNS)]) for item in predictions]
    return text + "".join(f"\n{remark}" for remark in [*remarks, *_shared_remarks("warning", warnings)])


def _shared_remarks(kind: str, remarks: Sequence[tuple[Prediction, Sequence[str]]]) -> list[str]:
    """Return each remark once, with the parts that it is about where that is not all of them."""
    every = {item.gpu.profile for item, _ in remarks}
    about: dict[str, list[str]] = {}
    for item, texts in remarks:
        for text in texts:
            parts = about.setdefault(text, [])
            if item.gpu.profile not in parts:
                parts.append(item.gpu.profile)
    return [
        f"{kind}: {text}" if set(parts) == every else f"{kind}: {', '.join(parts)}: {text}"
        for text, parts in about.items()
    ]


_IN_COLUMNS = ("does not fit", "overload")
_LEGEND = """

  steps: mixed steps per prompt; gaps hit: share of a stream's gaps that are mixed steps; moves: statistics of the gaps that are at the
  spike; fits: weights and KV cache of the workload in the GPU's memory
"""


def _common(item: Prediction, changing: Sequence[str]) -> str:
    """Return what all rows of a table share: model, number formats, GPU, parallel sizes."""
    parts = []
    if "model" not in changing:
        parts.append(item.model.name)
    if "dtype" not in changing and "model" not in changing:
        parts.append(f"{item.workload.dtype} weights")
    if "gpu" not in changing:
        parts.append(item.gpu.name if "tp" in changing else f"{item.gpu.count} × {item.gpu.name}")
    sizes = _sizes(item)
    if "tp" not in changing and sizes:
        parts.append(sizes)
    return ", ".join(parts) or "comparison"


def _rung_name(item: Prediction) -> str:
    return f"{item.headline} rung" + (f", {item.calibration}" if item.calibration else "")


def _sizes(item: Prediction) -> str:
    work = item.workload
    named = (("TP", work.tensor_parallel), ("PP", work.pipeline_parallel), ("EP", work.expert_parallel))
    return ", ".join(f"{name} {value}" for name, value in named if value > 1)


def _option(item: Prediction, name: str) -> str:
    work = item.workload
    values = {
        "model": item.model.name,
        "gpu": item.gpu.profile,
        "prompt": count(work.prompt_tokens),
        "streams": count(work.streams),
        "context": count(work.context_tokens),
        "chunk": "one step" if work.chunk_tokens is None else count(work.chunk_tokens),
        "tp": str(work.tensor_parallel),
        "dtype": work.dtype,
    }
    return values[name]


def _heading(item: Prediction) -> str:
    work = item.workload
    formats = (
        f"{work.dtype} weights"
        if work.dtype == work.compute_dtype
        else f"{work.dtype} weights, {work.compute_dtype} products"
    )
    if work.kv_dtype != work.compute_dtype or work.kv_dtype != work.dtype:
        formats += f", {work.kv_dtype} KV cache"
    sizes = _sizes(item)
    size_text = parameters(item.model.total_parameters)
    if item.model.active_parameters != item.model.total_parameters:
        size_text += f", {parameters(item.model.active_parameters)} active"
    if work.lora is not None:
        formats += f", {adapters(work.lora)}"
    gpus = f"{item.gpu.count} × {item.gpu.name}" + (f" ({sizes})" if sizes else "")
    return f"{item.model.name} ({size_text} parameters; {formats}) on {gpus}\n{_load(item)}"


def _load(item: Prediction, changing: Sequence[str] = ()) -> str:
    work = item.workload
    streams = [plural(work.streams, "stream")] if "streams" not in changing else []
    context = [f"context {count(work.context_tokens)}"] if "context" not in changing else []
    parts = [" at ".join(streams + context)] if streams or context else []
    if "prompt" not in changing:
        many = "one prompt" if work.prompts == 1 else f"{work.prompts} prompts"
        cached = f" ({count(work.cached_prefix_tokens)} of them cached)" if work.cached_prefix_tokens else ""
        parts.append(f"{many} of {plural(work.prompt_tokens, 'token')}{cached}")
    if "chunk" not in changing:
        parts.append(
            "in one step" if work.chunk_tokens is None else f"at most {count(work.chunk_tokens)} tokens per step"
        )
    parts.append(f"every {work.every_s:g} s")
    return ", ".join(parts)


def _images(item: Prediction) -> str:
    """Say what the images of a prompt are to the model; nothing without any."""
    images = item.images
    if images is None:
        return ""
    if images.kind == "audio":
        return (
            f"Audio: 30 s in every request, {count(images.width)} frames and {count(images.features)} states of the encoder; "
            f"encoding them takes {milliseconds(item.best.prefill_encoder_s)} ms of the prefill ({item.headline} rung)"
        )
    resized = f"{count(images.resized_width)} × {count(images.resized_height)}"
    tiles = f" in {plural(images.tiles, 'tile')}" if images.tiles > 1 else ""
    many = "each" if images.count > 1 else "it"
    return (
        f"Images: {count(images.count)} of {count(images.width)} × {count(images.height)} pixels in every prompt; {many} becomes "
        f"{resized}{tiles}, {count(images.patches)} patches and {plural(images.tokens_per_image, 'token')}\n"
        f"  They are {count(images.tokens)} of the prompt's {count(item.workload.prompt_tokens)} tokens, and encoding them takes "
        f"{milliseconds(item.best.prefill_encoder_s)} ms of its prefill ({item.headline} rung)"
    )


def _rungs(item: Prediction) -> str:
    names = ["textbook", "roofline"] + (["calibrated"] if item.rungs.calibrated else [])
    rungs: list[Rung] = [item.rungs.get(name) for name in names]  # type: ignore[arg-type]
    communication = []
    if any(rung.prefill_communication_s for rung in rungs):
        communication = [["  communication", *(milliseconds(rung.prefill_communication_s) for rung in rungs)]]
    rows = [
        ["decode step", *(milliseconds(rung.decode_step_s) for rung in rungs)],
        ["prefill, prompt alone", *(milliseconds(rung.prefill_s) for rung in rungs)],
        ["  layers' matrices", *(milliseconds(rung.prefill_linear_s) for rung in rungs)],
        ["  attention", *(milliseconds(rung.prefill_attention_s) for rung in rungs)],
        *communication,
        *(
            [
                [
                    f"  encoding {'audio' if item.images.kind == 'audio' else 'images'}",
                    *(milliseconds(rung.prefill_encoder_s) for rung in rungs),
                ]
            ]
            if item.images
            else []
        ),
        ["spike: longest step", *(milliseconds(rung.spike_s) for rung in rungs)],
        ["spike in decode steps", *(f"{significant(rung.spike_ratio, 3)} ×" for rung in rungs)],
    ]
    text = table(rows, ["milliseconds", *names])
    if (bounds := item.intervals) is not None:
        shown = ", ".join(
            f"{label} {milliseconds(low)}–{milliseconds(high)}"
            for label, (low, high) in (
                ("decode", bounds.decode_step_s),
                ("prefill", bounds.prefill_s),
                ("spike", bounds.spike_s),
            )
        )
        text += f"\n\n  {100 * bounds.level:.0f} % intervals of the calibrated rung [ms]: {shown}"
    return text


def _spike(item: Prediction) -> str:
    spike, rung, work = item.spike, item.best, item.workload
    times = f"{significant(rung.spike_ratio, 3)} decode steps"
    if spike.chunks == 1:
        first = f"Every stream waits {seconds(spike.height_s)} for one token: {times}, in one mixed step."
    else:
        first = (
            f"Every stream gets {count(spike.chunks)} slow tokens in a row, {seconds(spike.duration_s)} in all; "
            f"the slowest takes {seconds(spike.height_s)}: {times}."
        )
    if spike.overload:
        second = (
            f"Overload: the next prompt comes after {work.every_s:g} s, before this one is done; every gap is slow."
        )
    else:
        second = (
            f"Of the {count(spike.gaps_per_period)} gaps a stream sees in {work.every_s:g} s, "
            f"{percent(spike.fraction_of_gaps)} are slow: {_moved(item)}."
        )
    double = item.doubling
    cached = f", still {count(work.cached_prefix_tokens)} of them cached" if work.cached_prefix_tokens else ""
    third = f"Twice the prompt ({count(double.prompt_tokens)} tokens{cached}): {seconds(double.spike_s)}, {double.ratio:.3f} × as high"
    third += f" (textbook {double.textbook_ratio:.3f} ×)."
    return (
        f"Spike ({_rung_name(item)})\n  {first}\n  {second}\n  {third}\n  {_default_server(item)}{_first_token(item)}"
    )


def _first_token(item: Prediction) -> str:
    if item.workload.prompts > 1 or item.spike.overload:
        return ""
    return f"\n  The prompt's own first token comes after {seconds(item.spike.duration_s)}, where it need not queue."


def _default_server(item: Prediction) -> str:
    engine = item.engine
    of_another = "" if engine.asked == "vllm" else f" Defaults of {engine.asked} are not known here."
    return _default_vllm(item) + of_another


def _default_vllm(item: Prediction) -> str:
    """Say what a server with the defaults that are known would do."""
    engine = item.engine
    if item.workload.streams > engine.max_num_seqs:
        return (
            f"A default {engine.name} server runs at most {count(engine.max_num_seqs)} sequences at once (max_num_seqs), "
            f"not {count(item.workload.streams)}."
        )
    server = f"A default {engine.name} server (max_num_batched_tokens {count(engine.max_num_batched_tokens)})"
    if engine.splits_prompt:
        return (
            f"{server} splits this into {plural(engine.chunks or 0, 'step')}; one step needs a budget of "
            f"{count(engine.one_step_budget)} or more."
        )
    hint = "" if item.workload.chunk_tokens is not None else " A smaller budget (--chunk) lowers the spike."
    return f"{server} takes this in one step.{hint}"


def _moved(item: Prediction) -> str:
    moved = [name for name in STATISTICS if item.spike.moves[name]]
    still = [name for name in STATISTICS if not item.spike.moves[name]]
    return f"{listed(moved)} {'is' if len(moved) == 1 else 'are'} at the spike" + (
        f"; {listed(still)} {'does' if len(still) == 1 else 'do'} not move" if still else ""
    )


def _operators(item: Prediction) -> str:
    rung = item.best
    spike = {operator.name: operator for operator in rung.operators}
    decode = {operator.name: operator for operator in rung.decode_operators}
    rows = []
    for name in dict.fromkeys([*decode, *spike]):
        mixed = spike.get(name)
        shares = ((decode, rung.decode_step_s), (spike, rung.spike_s))
        if all(name not in found or found[name].time_s < NOTHING * total for found, total in shares):
            continue  # a fit may leave nothing of an operator
        work = [significant(mixed.flops / 1e12, 3), size(mixed.bytes)] if mixed else ["", ""]
        rows.append([name, *_cells(decode.get(name), rung.decode_step_s), *_cells(mixed, rung.spike_s), *work])
    header = ["operator", "decode ms", "share", "bound by", "spike ms", "share", "bound by", "TFLOP", "bytes"]
    body = table(rows, header)
    return f"Where the time goes ({item.headline} rung): decode step, then the longest mixed step (FLOPs and bytes are its own)\n{body}"


def _cells(operator: Operator | None, total: float) -> list[str]:
    if operator is None:
        return ["", "", ""]
    return [milliseconds(operator.time_s), percent(operator.time_s / total), operator.bound]


def _memory(item: Prediction) -> str:
    memory = item.memory
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    return (
        f"Memory per GPU: weights {gib(memory.weights_bytes)}; KV cache {size(memory.kv_bytes_per_token)} per token, "
        f"needs {gib(memory.kv_needed_bytes)} of {gib(max(memory.kv_available_bytes, 0.0))} free "
        f"({count(memory.kv_tokens)} tokens): {verdict}"
    )


def _remarks(item: Prediction) -> str:
    notes = [f"note: {text}" for text in item.notes] + [f"warning: {text}" for text in item.warnings]
    if item.pipeline is not None:
        layers = "+".join(map(str, item.pipeline.layers))
        notes.insert(
            0,
            f"note: {len(item.pipeline.layers)} pipeline stages of {layers} layers; times are those of a token through all of "
            f"them; the slowest stage takes {milliseconds(item.pipeline.slowest_stage_decode_s)} ms per decode step",
        )
    return "\n".join(notes)
