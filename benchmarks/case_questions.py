"""From a measured number to the question that the model is asked: a deployment, the steps whose times add up to it, and the seconds.

A number is refused, with its reason, where no sum of steps stands for it: percentiles under load (a simulation's business), ratios,
derived figures, lengths that are not stated, parts and models that are not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from case_names import Engine, Refused, bridge_bandwidth, find_dtype, find_engine, find_formats, find_gpu, find_model, find_tp
from case_reading import Reading, readings

from costmodel.deployment import Deployment, deploy
from costmodel.engine import default_max_num_seqs, default_token_budget
from costmodel.equations.work import Chunk, Decodes
from costmodel.errors import InputError
from costmodel.memory import memory_of

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

ANSWER = 128
"""Tokens generated where a source does not say: only the mean context of a decode step hangs on it [tokens]."""

TRT_MAX_BATCH = 2048
"""TensorRT-LLM's default ``max_batch_size`` (1.0)."""

MATRICES: Final = {
    ("qkv",): "qkv_proj",
    ("o",): "o_proj",
    ("out", "proj"): "o_proj",
    ("attn", "out"): "o_proj",
    ("gate", "up"): "gate_up_proj",
    ("up",): "up_proj",
    ("mlp", "up"): "gate_up_proj",
    ("down",): "down_proj",
    ("mlp", "down"): "down_proj",
    ("lm", "head"): "lm_head",
}
"""Words of a kernel profile → our operator."""

ATTENTION_KERNELS: Final = {"hopper": ("fa3", "cudnn"), "ampere": ("fa2",), "ada": ("fa2",), "blackwell": ("cudnn", "fa4")}
"""Kernels that engines run on each architecture, which is what calibrations measured."""


@dataclass(frozen=True)
class Step:
    """Steps of one kind, and how often they occur in the measured time (a difference has a negative one)."""

    weight: float
    chunks: tuple[Chunk, ...] = ()
    decodes: tuple[Decodes, ...] = ()


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


def ask(case: Mapping[str, Any], reading: Reading) -> Question:
    """Return the question behind one measured number.

    Raises:
        Refused: there is none, and why.
    """
    _refuse_what_is_no_step(case, reading)
    engine = find_engine(f"{case.get('engine_version', '')} {case.get('flags', '')}")
    if case["kind"] == "attention_kernel":
        return _attention_kernel(case, reading, engine)
    deployment = _deployment(case, reading, engine)
    if reading.unit == "" and case["kind"] == "throughput":
        reading = replace(reading, unit="tok/s")
    if reading.unit == "":
        raise Refused("no unit")
    metric = _metric(case, reading)
    steps, part, measured, caveats = _METRICS[metric](case, reading, deployment)
    return Question(f"{reading.label} ({metric})", deployment, engine, steps, part, measured, caveats)


def _refuse_what_is_no_step(case: Mapping[str, Any], reading: Reading) -> None:
    words, kind = set(reading.words), case["kind"]
    if kind not in KINDS:
        raise Refused(f"kind {kind} holds no step times")
    if words & {"achieved", "gb", "mfu", "mbu"}:
        raise Refused("a rate derived from the time")
    if "approx" in words or (words & {"out", "total"} and reading.unit == "tok/s" and "itl_ms" in reading.siblings):
        raise Refused("derived from another number of the same row")
    if "outlier" in words or "warmup" in words:
        raise Refused("the source itself discards it")
    if words & {"x", "increase", "ratio", "speedup"}:
        raise Refused("a ratio over steps that the source does not give")
    if words & {"gap", "stall", "during"}:
        raise Refused("a gap in one stream, not a step: it hangs on scheduling and on what else the host does")
    if any(re.fullmatch(r"p\d+|qps\d*|\d*rps|serving|burst", word) for word in words):
        raise Refused("under a load with arrivals: queueing, which a simulation answers")
    if kind == "spec_decode" and not words & {"vanilla", "base", "baseline"}:
        raise Refused("speculative decoding is not modelled")
    if kind == "prefix_cache":
        raise Refused("throughput of a mix of prompts with and without cache: lengths of the batch are not stated")


def _deployment(case: Mapping[str, Any], reading: Reading, engine: Engine) -> Deployment:
    gpu = _row_gpu(str(case.get("gpu", "")), reading)
    row = reading.conditions.get("dtype")
    formats = find_formats(str(case.get("dtype_quant", "")), find_dtype(str(row)) if row else None, engine)
    tp = int(reading.conditions.get("tp", find_tp(str(case.get("n_gpus_tp", "1")))))
    try:
        deployment = deploy(
            find_model(str(case.get("model", ""))),
            gpu,
            tp=tp,
            dtype=formats.dtype,
            kv_dtype=formats.kv_dtype,
            compute_dtype=formats.compute_dtype,
        )
    except InputError as error:
        raise Refused(str(error)) from error
    bridge = bridge_bandwidth(str(case.get("gpu", "")), gpu)
    if bridge is not None and tp == 2:
        deployment = replace(deployment, hardware=replace(deployment.hardware, link_bandwidth=bridge))
    return deployment


def _row_gpu(text: str, reading: Reading) -> str:
    """Return the part of the row if its key or its conditions name one, else the case's."""
    for named in (reading.conditions.get("gpu"), reading.label.split(".")[-1], text):
        if named is None:
            continue
        try:
            return find_gpu(str(named))
        except Refused:
            continue
    raise Refused(f"GPU {text!r} is not among the profiles")


def _metric(case: Mapping[str, Any], reading: Reading) -> str:
    words, kind = set(reading.words), case["kind"]
    if "profile" in str(case.get("subkind", "")) and reading.unit in ("ms", "us", "s"):
        return "matrix"
    if "linear" in words:
        return "linear"
    if words & {"hybrid", "mixed"}:
        return "mixed"
    if words & {"latency", "e2e", "total"} and reading.unit != "tok/s":
        return "latency"
    if words & {"ttft", "first", "prefill", "input"}:
        return "prefill"
    if words & {"itl", "tpot", "tbt", "decode", "vanilla", "base", "baseline"}:
        return "decode"
    if kind == "throughput":
        return "throughput"
    if words & {"step"} and "chunk" in reading.conditions:
        return "chunk"
    return {"prefill": "prefill", "decode_step": "decode"}.get(kind, "unknown")


def _seconds(reading: Reading, tokens: float) -> float:
    """Return the seconds that a number stands for; rates are those of ``tokens``."""
    if reading.unit == "tok/s":
        return tokens / reading.value
    return reading.value * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[reading.unit]


def _stated(case: Mapping[str, Any], name: str) -> float | None:
    """Return the one number that a field of the case states: the first of ``1024+16``, the last of ``2 x 72000``, None of a list."""
    text = str(case.get(name, "")).replace(",", "")
    numbers = re.findall(r"\d+", text)
    if not numbers or (len(numbers) > 1 and not re.search(r"\d\s*(\+|x)\s*\d", text)):
        return None
    return float(numbers[-1] if "x" in text else numbers[0])


def _batch(case: Mapping[str, Any], reading: Reading) -> float:
    stated = reading.conditions.get("batch", _stated(case, "batch_concurrency"))
    return float(1 if stated is None else stated)


def _lengths(case: Mapping[str, Any], reading: Reading) -> tuple[float | None, float | None]:
    """Return prompt and answer of a row or its case [tokens]."""
    conditions = reading.conditions
    both = conditions.get("both")
    prompt = conditions.get("prompt", both if both is not None else _stated(case, "prompt_tokens"))
    output = conditions.get("output", both if both is not None else _stated(case, "output_tokens"))
    return (None if prompt is None else float(prompt)), (None if output is None else float(output))


Answer = tuple[tuple[Step, ...], str, float, tuple[str, ...]]


def _prefill(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    prompt, _ = _lengths(case, reading)
    prompt = float(reading.conditions.get("number", prompt or 0))
    batch = _batch(case, reading)
    if prompt < 1:
        raise Refused("the prompt's length is not stated")
    if batch > 1 and "itl_ms" in reading.siblings:
        raise Refused("TTFT of several requests at once: queueing, which a simulation answers")
    chunks = (Chunk(prompt),) * int(batch)
    return (Step(1.0, chunks),), "step", _seconds(reading, prompt * batch), ()


def _decode(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    prompt, output = _lengths(case, reading)
    batch = _batch(case, reading)
    stated = reading.conditions.get("context", _stated(case, "context"))
    known = stated is not None or prompt is not None
    context = float(stated) if stated is not None else (prompt or 0) + (output or ANSWER) / 2
    caveats = () if known else ("context not stated",)
    measured = _seconds(reading, batch)
    if "ttft_ms" in reading.siblings and prompt and output:
        running = min(batch, _capacity(deployment, prompt, output))
        return _closed_loop(running, prompt, output), "step", measured, ("the running batch is estimated from memory",)
    return (Step(1.0, (), (Decodes(batch, context),)),), "step", measured, caveats


def _closed_loop(running: float, prompt: float, output: float) -> tuple[Step, ...]:
    """Mean gap of a stream in a closed loop: a decode step, and in (D − 1)/osl of them somebody's prompt beside it."""
    context = prompt + output / 2
    decode = Step(1.0, (), (Decodes(running, context),))
    if running <= 1:
        return (decode,)
    share = (running - 1) / output
    others = (Decodes(running - 1, context),)
    return decode, Step(share, (Chunk(prompt),), others), Step(-share, (), others)


def _capacity(deployment: Deployment, prompt: float, output: float) -> float:
    """Return the sequences of prompt + output tokens that the KV cache holds."""
    longest = int(prompt + output)
    memory = memory_of(deployment, 1, longest, int(prompt), 1, default_token_budget(deployment))
    if memory.kv_tokens < longest:
        raise Refused(f"{deployment.architecture.name} does not fit with one sequence of {longest:,} tokens")
    return float(memory.kv_tokens // longest)


def _mixed(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    prompt, _ = _lengths(case, reading)
    if prompt is None:
        raise Refused("the chunk's length is not stated")
    context = float(reading.conditions.get("context", _stated(case, "context") or 0))
    step = Step(1.0, (Chunk(prompt),), (Decodes(_batch(case, reading), context),))
    return (step,), "step", _seconds(reading, prompt), ()


def _chunk(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    tokens = float(reading.conditions["chunk"])
    return (Step(1.0, (Chunk(tokens),)),), "step", _seconds(reading, tokens), ("what was cached before the chunk is not stated",)


def _linear(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    """The layers' matrices of a step: of the row itself, or of the row whose key begins alike."""
    like = reading
    if not reading.conditions.keys() & {"prompt", "number", "batch"}:
        alike = (row for row in readings(case) if row.words[:1] == reading.words[:1] and row.label != reading.label)
        like = next((row for row in alike if row.conditions), reading)
    answer = _decode if "decode" in reading.words else _prefill
    steps, _, _, caveats = answer(case, replace(like, unit=reading.unit, value=reading.value), deployment)
    return steps, "linear", _seconds(reading, 1), caveats


def _matrix(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    prompt, _ = _lengths(case, reading)
    if prompt is None:
        raise Refused("the number of tokens is not stated")
    steps = (Step(1.0, (Chunk(prompt),)),)
    if "sum" in reading.words:
        return steps, "layer:linear", _seconds(reading, 1), ()
    name = MATRICES.get(tuple(word for word in reading.words if word not in ("proj", "time")))
    if name is None:
        raise Refused(f"no operator here is called {' '.join(reading.words)!r}")
    return steps, f"layer:{name}", _seconds(reading, 1), ()


def _latency(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    """A static batch from start to end: its prompts, at the engine's token budget, then one step per further token."""
    prompt, output = _lengths(case, reading)
    if prompt is None or output is None:
        raise Refused("prompt and output lengths are not stated")
    batch = _batch(case, reading)
    per_step = max(1, int(default_token_budget(deployment) // prompt))
    full, rest = divmod(int(batch), per_step)
    steps = [Step(float(full), (Chunk(prompt),) * per_step)] if full else []
    steps += [Step(1.0, (Chunk(prompt),) * rest)] if rest else []
    context = prompt + output / 2
    steps.append(Step(output - 1, (), (Decodes(batch, context),)))
    return tuple(steps), "step", _seconds(reading, 1), ()


def _throughput(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    """A saturated server: the time in which D running sequences are all replaced, D·osl tokens.

    D is what the KV cache holds, at most the engine's limit. As many prompts share a step as the token budget takes and as end per
    step (D/osl); the other steps only decode.
    """
    prompt, output = _lengths(case, reading)
    if prompt is None or output is None:
        raise Refused("prompt and output lengths are not stated")
    if reading.unit != "tok/s":
        raise Refused(f"throughput in {reading.unit or 'no unit'}")
    trtllm = find_engine(str(case.get("engine_version", ""))).calibration == "trtllm"
    most = TRT_MAX_BATCH if trtllm else default_max_num_seqs(deployment)
    running = min(_capacity(deployment, prompt, output), float(most))
    budget = max(default_token_budget(deployment), 8192) if trtllm else default_token_budget(deployment)
    together = max(1.0, min(budget // prompt, running // output))
    context = prompt + output / 2
    mixing = running / together
    streams = (Decodes(running, context),)
    steps = [Step(mixing, (Chunk(prompt),) * int(together), streams)]
    if output > mixing:
        steps.append(Step(output - mixing, (), streams))
    tokens = running * output * ((prompt + output) / output if "total" in reading.words else 1)
    caveats = (f"running batch of {running:,.0f} estimated from memory and the engine's default limit",)
    return tuple(steps), "step", tokens / (reading.value * _gpus_counted(case, deployment)), caveats


def _gpus_counted(case: Mapping[str, Any], deployment: Deployment) -> int:
    """Return by how many GPUs a throughput is divided in the source (TensorRT-LLM's overview does so from 1.1 on)."""
    version = re.search(r"(?:TensorRT|TRT)-?LLM v?1\.([1-9])", str(case.get("engine_version", "")), re.IGNORECASE)
    return deployment.gpus if version else 1


def _attention_kernel(case: Mapping[str, Any], reading: Reading, engine: Engine) -> Question:
    """One causal forward kernel in FlashAttention's own setting: 16,384 tokens in all, hidden 2,048, FLOPs halved."""
    gpu = _row_gpu(str(case.get("gpu", "")), reading)
    deployment = deploy("Llama-3.1-8B", gpu)
    usual = ATTENTION_KERNELS.get(deployment.profile.architecture, ())
    if not set(reading.words) & set(usual):
        raise Refused(
            f"{' '.join(reading.words).upper()} is not what engines run on {deployment.profile.architecture} "
            f"({', '.join(usual).upper()}), so no calibration describes it"
        )
    dim = re.search(r"head.?dim\w*\W*(\d+)", str(case.get("model", "")), re.IGNORECASE)
    if dim is None or "seq" not in reading.conditions or reading.unit != "tflops":
        raise Refused("head dimension, sequence length or unit not stated")
    width, length = int(dim[1]), float(reading.conditions["seq"])
    heads, batch = max(2048 // width, 1), max(int(16384 // length), 1)
    flops = 4 * length**2 * heads * width * batch / 2
    steps = (Step(1.0, (Chunk(length),) * batch),)
    part = f"attention:{heads}:{width}"
    kernel = Engine("kernel", engine.calibration, "none")
    return Question(f"{reading.label} (attention)", deployment, kernel, steps, part, flops / (reading.value * 1e12))


def _unknown(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    raise Refused(f"{' '.join(reading.words) or reading.label}: no rule turns this into steps")


_METRICS: Final = {
    "prefill": _prefill,
    "decode": _decode,
    "mixed": _mixed,
    "chunk": _chunk,
    "linear": _linear,
    "matrix": _matrix,
    "latency": _latency,
    "throughput": _throughput,
    "unknown": _unknown,
}
