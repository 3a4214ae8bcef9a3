"""From a measured number to the question that the model is asked: a deployment, the steps whose times add up to it, and the seconds.

A number is refused, with its reason, where no sum of steps stands for it: percentiles under load (a simulation's business), ratios,
derived figures, lengths that are not stated, parts and models that are not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from case_names import (
    Engine,
    RefusedError,
    bridge_bandwidth,
    find_count,
    find_dtype,
    find_engine,
    find_formats,
    find_gpu,
    find_model,
    find_parallel,
)
from case_reading import Reading
from case_steps import METRICS, Step, beside, metric_of

from costmodel.deployment import Deployment, deploy
from costmodel.equations.work import Chunk
from costmodel.errors import InputError
from costmodel.speculation.asking import Speculation
from costmodel.speculation.drafts import WORDS as DRAFTS
from costmodel.speculation.drafts import method_of

KINDS: Final = (
    "prefill",
    "decode_step",
    "chunked_prefill",
    "itl_spike",
    "throughput",
    "attention_kernel",
    "spec_decode",
    "prefix_cache",
)
"""Kinds of cases that hold step times, or numbers that turn into them."""

PLAIN: Final = {"vanilla", "base", "baseline", "nospec", "autoregressive"}
"""Words for a row of a speculative-decoding case that does not speculate."""

ATTENTION_KERNELS: Final = {
    "hopper": ("fa3", "cudnn"),
    "ampere": ("fa2",),
    "ada": ("fa2",),
    "blackwell": ("cudnn", "fa4"),
}
"""Kernels that engines run on each architecture, which is what calibrations measured."""


@dataclass(frozen=True)
class Question:
    """One measured number as a question.

    Attributes:
        what: for people.
        deployment: model and GPUs.
        engine: how it is predicted.
        steps: their times add up to the measured one.
        part: ``step``, ``linear`` (layers' matrices), ``layer:NAME`` (one matrix in one layer, ``linear`` for all of one layer) or
            ``attention:HEADS:DIM`` (one kernel).
        measured_s: the number in seconds.
        caveats: what the source leaves open, for the reasons.
    """

    what: str
    deployment: Deployment
    engine: Engine
    steps: tuple[Step, ...]
    part: str
    measured_s: float
    caveats: tuple[str, ...] = ()
    speculation: Speculation | None = None
    """Of a row that speculates: its one step is then a pass, and the measured time one of a token."""


def ask(case: Mapping[str, Any], reading: Reading) -> Question:
    """Return the question behind one measured number.

    Raises:
        RefusedError: there is none, and why.
    """
    try:
        return _ask(case, reading)
    except InputError as error:
        raise RefusedError(str(error)) from error
    except ValueError as error:  # a condition that is no number
        raise RefusedError(f"cannot be read: {error}") from error


def _ask(case: Mapping[str, Any], reading: Reading) -> Question:
    _refuse_what_is_no_step(case, reading)
    engine = find_engine(f"{case.get('engine_version', '')} {case.get('flags', '')}")
    if case["kind"] == "attention_kernel":
        return _attention_kernel(case, reading, engine)
    deployment = _deployment(case, reading, engine)
    if reading.unit == "" and case["kind"] == "throughput":
        reading = replace(reading, unit="tok/s")
    if reading.unit == "":
        raise RefusedError("no unit")
    metric = metric_of(case, reading)
    steps, part, measured, caveats = METRICS[metric](case, reading, deployment)
    speculation = _speculation(case, reading)
    if speculation is not None and (metric != "decode" or len(steps) != 1 or len(steps[0].decodes) != 1):
        raise RefusedError("of rows that speculate only times of a token are predicted")
    return Question(f"{reading.label} ({metric})", deployment, engine, steps, part, measured, caveats, speculation)


def _speculation(case: Mapping[str, Any], reading: Reading) -> Speculation | None:
    """Return what a row speculates with; None where it does not, or its case is of another kind.

    Raises:
        RefusedError: drafts, their number or their accepted length are not stated.
    """
    words = set(reading.words)
    if case["kind"] != "spec_decode" or words & PLAIN or {"no", "spec"} <= words:
        return None
    draft = next((method for word in reading.words if (method := method_of(word)) in DRAFTS), None)
    tokens, length = reading.conditions.get("drafts"), reading.conditions.get("accepted")
    if draft is None or tokens is None or length is None:
        raise RefusedError("speculation whose drafts, their number or their accepted length is not stated")
    return Speculation(draft, tokens=int(tokens), lengths=float(length))


def _refuse_what_is_no_step(case: Mapping[str, Any], reading: Reading) -> None:
    words, kind = set(reading.words), case["kind"]
    if reading.value <= 0:
        raise RefusedError("not a positive number")
    if words & {"achieved", "gb", "mfu", "mbu"}:
        raise RefusedError("a rate derived from the time")
    beside_itl = reading.unit == "tok/s" and beside(reading, "itl", "tpot")
    if "approx" in words or (beside_itl and words & {"out", "total", "output", "throughput"}):
        raise RefusedError("derived from another number of the same row")
    if "outlier" in words or "warmup" in words:
        raise RefusedError("the source itself discards it")
    if words & {"x", "increase", "ratio", "speedup"}:
        raise RefusedError("a ratio over steps that the source does not give")
    if words & {"gap", "stall", "during"}:
        raise RefusedError("a gap in one stream, not a step: it hangs on scheduling and on what else the host does")
    if "max" in words and kind != "itl_spike":
        raise RefusedError("the longest of many steps: which one is not stated")
    if any(re.fullmatch(r"p[89]\d*|p99\.\d+|qps\d*|\d*rps|serving|burst", word) for word in words):
        raise RefusedError("under a load with arrivals: queueing, which a simulation answers")
    if kind == "prefix_cache":
        raise RefusedError("throughput of a mix of prompts with and without cache: lengths of the batch are not stated")


def _deployment(case: Mapping[str, Any], reading: Reading, engine: Engine) -> Deployment:
    gpu = _row_gpu(str(case.get("gpu", "")), reading)
    row = reading.conditions.get("dtype")
    formats = find_formats(str(case.get("dtype_quant", "")), find_dtype(str(row)) if row else None, engine)
    tp, pp, ep = find_parallel(str(case.get("n_gpus_tp", "1")))
    tp = int(reading.conditions.get("tp", find_count(reading.label) or tp))
    if engine.splits_layers:
        tp, pp = 1, tp * pp
    deployment = deploy(
        find_model(str(case.get("model", ""))),
        gpu,
        tp=tp,
        pp=pp,
        ep=ep,
        dtype=formats.dtype,
        kv_dtype=formats.kv_dtype,
        compute_dtype=formats.compute_dtype,
    )
    bridge = bridge_bandwidth(str(case.get("gpu", "")), gpu)
    if bridge is not None and tp == 2:
        deployment = replace(deployment, hardware=replace(deployment.hardware, link_bandwidth=bridge))
    if formats.dtype in ("int8", "int4"):
        deployment = _repacked(deployment, formats.bits, engine.quantises_head)
    return deployment


def _repacked(deployment: Deployment, bits: float | None, head: bool) -> Deployment:
    """Store the layers' weights in ``bits`` each, if given, and embedding and lm_head in the same format, if ``head``."""
    architecture, stored = deployment.architecture, dict(deployment.format_bytes)
    fmt = architecture.kinds[0].formats.attention
    if bits is not None:
        stored[fmt] = bits / 8
    if head:
        architecture = replace(architecture, embedding_format=fmt, lm_head_format=fmt)
    return replace(deployment, architecture=architecture, format_bytes=stored)


def _row_gpu(text: str, reading: Reading) -> str:
    """Return the part of the row if its key or its conditions name one, else the case's."""
    key = reading.label.split(".")[-1] if reading.words else None  # b200 alone is a batch, B200 a word
    for named in (reading.conditions.get("gpu"), key, text):
        if named is None:
            continue
        try:
            return find_gpu(str(named))
        except RefusedError:
            continue
    raise RefusedError(f"GPU {text!r} is not among the profiles")


def _attention_kernel(case: Mapping[str, Any], reading: Reading, engine: Engine) -> Question:
    """One causal forward kernel in FlashAttention's own setting: 16,384 tokens in all, hidden 2,048, FLOPs halved."""
    gpu = _row_gpu(str(case.get("gpu", "")), reading)
    deployment = deploy("Llama-3.1-8B", gpu)
    usual = ATTENTION_KERNELS.get(deployment.profile.architecture, ())
    if not set(reading.words) & set(usual):
        raise RefusedError(
            f"{' '.join(reading.words).upper()} is not what engines run on {deployment.profile.architecture} "
            f"({', '.join(usual).upper()}), so no calibration describes it"
        )
    dim = re.search(r"head.?dim\w*\W*(\d+)", str(case.get("model", "")), re.IGNORECASE)
    if dim is None or "seq" not in reading.conditions or reading.unit != "tflops":
        raise RefusedError("head dimension, sequence length or unit not stated")
    width, length = int(dim[1]), float(reading.conditions["seq"])
    heads, batch = max(2048 // width, 1), max(int(16384 // length), 1)
    if "causal" not in (text := str(case.get("model", "")).casefold()) or re.search(r"non.?causal", text):
        raise RefusedError("not causal, or not said to be: engines prefill causally")
    flops = 4 * length**2 * heads * width * batch / 2
    steps = (Step(1.0, (Chunk(length),) * batch),)
    part = f"attention:{heads}:{width}"
    kernel = Engine("kernel", engine.calibration, "none")
    return Question(f"{reading.label} (attention)", deployment, kernel, steps, part, flops / (reading.value * 1e12))
