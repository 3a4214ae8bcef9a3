"""From a measured number to the steps whose times add up to it, by what it measures: a prefill, a decode step, a mixed step, a saturated
server …"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from case_names import RefusedError, find_engine
from case_reading import Reading, readings

from costmodel.deployment import Deployment
from costmodel.engine import default_max_num_seqs, default_token_budget
from costmodel.equations.work import Chunk, Decodes
from costmodel.memory import memory_of

ANSWER = 128
"""Tokens generated where a source does not say: only the mean context of a decode step hangs on it [tokens]."""

TRT_MAX_BATCH, TRT_MAX_TOKENS = 2048, 8192
"""TensorRT-LLM's default ``max_batch_size`` and ``max_num_tokens`` (1.0)."""

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


@dataclass(frozen=True)
class Step:
    """Steps of one kind, and how often they occur in the measured time (a difference has a negative one)."""

    weight: float
    chunks: tuple[Chunk, ...] = ()
    decodes: tuple[Decodes, ...] = ()


_METRIC_WORDS: Final = (
    ("linear", {"linear"}),
    ("mixed", {"hybrid", "mixed", "spike", "max"}),
    ("latency", {"latency", "e2e"}),
    ("prefill", {"ttft", "first", "prefill", "input", "chunk"}),
    ("decode", {"itl", "tpot", "tbt", "decode", "vanilla", "base", "baseline", "nospec"}),
)
"""Metric → words that mean it; the first that a key has counts."""


def metric_of(case: Mapping[str, Any], reading: Reading) -> str:
    """Return the key of :data:`METRICS` that a number is, by the words of its key, else by the kind of its case."""
    words, kind = set(reading.words), case["kind"]
    if "profile" in str(case.get("subkind", "")) and reading.unit in ("ms", "us", "s"):
        return "matrix"
    named = next((metric for metric, meant in _METRIC_WORDS if words & meant), None)
    if named is not None:
        return named
    if "step" in words and "chunk" in reading.conditions:
        return "chunk"
    return {"prefill": "prefill", "decode_step": "decode", "throughput": "throughput"}.get(kind, "unknown")


def _seconds(reading: Reading, tokens: float) -> float:
    """Return the seconds that a number stands for; rates are those of ``tokens``."""
    if reading.unit == "tok/s":
        return tokens / reading.value
    return reading.value * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[reading.unit]


def _stated(case: Mapping[str, Any], name: str) -> float | None:
    """Return the one number that a field of the case states: the first of ``1024+16``, the last of ``2 x 72000``, None of a list."""
    text = re.sub(r"(\d+)k\b", r"\g<1>000", str(case.get(name, "")).replace(",", ""), flags=re.IGNORECASE)
    numbers = re.findall(r"\d+", text)
    if not numbers or (len(numbers) > 1 and not re.search(r"\d\s*(\+|x)\s*\d", text)):
        return None
    return float(numbers[-1] if "x" in text else numbers[0])


def beside(reading: Reading, *words: str) -> bool:
    """Tell whether the row measures one of these as well: rows with TTFT and ITL come from a closed loop of clients."""
    return any(word in key.casefold() for key in reading.siblings for word in words)


def flag(case: Mapping[str, Any], *names: str) -> float | None:
    """Return the number that the engine's flags give one of these names: ``max_num_seqs=128``, ``--max-num-seqs 128``."""
    flags = f"{case.get('flags', '')} {case.get('engine_version', '')}".casefold().replace("-", "_")
    found = next((found for name in names if (found := re.search(rf"\b_*{name}[ =:]+(\d+)", flags))), None)
    return float(found[1]) if found else None


def _batch(case: Mapping[str, Any], reading: Reading) -> float:
    bare = case["kind"] == "decode_step" and not reading.words  # a row called 8, not RTX 4090
    keyed = reading.conditions.get("number") if bare else None
    stated = reading.conditions.get("batch", keyed if keyed is not None else _stated(case, "batch_concurrency"))
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
        raise RefusedError("the prompt's length is not stated")
    if batch > 1 and beside(reading, "itl", "tpot"):
        raise RefusedError("TTFT of several requests at once: queueing, which a simulation answers")
    chunks = (Chunk(prompt),) * int(batch)
    return (Step(1.0, chunks),), "step", _seconds(reading, prompt * batch), ()


def _decode(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    prompt, output = _lengths(case, reading)
    batch = _batch(case, reading)
    stated = reading.conditions.get("context", _stated(case, "context"))
    known = stated is not None or prompt is not None
    context = float(stated) if stated is not None else (prompt or 0) + (output or ANSWER) / 2
    caveats = () if known else ("context not stated",)
    measured = _seconds(reading, 1 if "user" in reading.words else batch)
    if beside(reading, "ttft") and prompt and output:
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
        raise RefusedError(f"{deployment.architecture.name} does not fit with one sequence of {longest:,} tokens")
    return float(memory.kv_tokens // longest)


def _mixed(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    """A chunk beside decoding streams; with a token budget stated, the streams' tokens count in it.

    The longest gap of a prompt in chunks is that of its last whole chunk, with all that went before in the cache.
    """
    prompt, _ = _lengths(case, reading)
    batch, cached = _batch(case, reading), 0.0
    budget = reading.conditions.get("chunk", flag(case, "max_num_batched_tokens", "chunk", "chunk_size"))
    if budget is not None:
        room = float(budget) - batch
        if prompt is not None and set(reading.words) & {"max", "spike"}:
            cached = max(prompt - room, 0.0)
        prompt = room if prompt is None else min(prompt, room)
    if prompt is None or prompt < 1:
        raise RefusedError("the chunk's length is not stated")
    context = float(reading.conditions.get("context", _stated(case, "context") or 0))
    step = Step(1.0, (Chunk(prompt, cached),), (Decodes(batch, context),))
    return (step,), "step", _seconds(reading, prompt), ()


def _chunk(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    tokens = float(reading.conditions["chunk"])
    return (
        (Step(1.0, (Chunk(tokens),)),),
        "step",
        _seconds(reading, tokens),
        ("what was cached before the chunk is not stated",),
    )


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
        raise RefusedError("the number of tokens is not stated")
    steps = (Step(1.0, (Chunk(prompt),)),)
    if "sum" in reading.words:
        return steps, "layer:linear", _seconds(reading, 1), ()
    name = MATRICES.get(tuple(word for word in reading.words if word not in ("proj", "time")))
    if name is None:
        raise RefusedError(f"no operator here is called {' '.join(reading.words)!r}")
    return steps, f"layer:{name}", _seconds(reading, 1), ()


def _latency(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    """A static batch from start to end: its prompts, at the engine's token budget, then one step per further token."""
    prompt, output = _lengths(case, reading)
    if prompt is None or output is None:
        raise RefusedError("prompt and output lengths are not stated")
    batch = _batch(case, reading)
    budget = flag(case, "max_num_batched_tokens", "max_num_tokens") or default_token_budget(deployment)
    per_step = max(1, int(budget // prompt))
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
        raise RefusedError("prompt and output lengths are not stated")
    if reading.unit != "tok/s":
        raise RefusedError(f"throughput in {reading.unit or 'no unit'}")
    trtllm = find_engine(str(case.get("engine_version", ""))).calibration == "trtllm"
    usual = TRT_MAX_BATCH if trtllm else default_max_num_seqs(deployment)
    most = flag(case, "max_num_seqs", "max_batch_size") or float(usual)
    running = min(_capacity(deployment, prompt, output), most)
    budget = flag(case, "max_num_batched_tokens", "max_num_tokens") or float(
        max(default_token_budget(deployment), TRT_MAX_TOKENS) if trtllm else default_token_budget(deployment)
    )
    together = max(1.0, min(budget // prompt, running // output))
    context = prompt + output / 2
    mixing = running / together
    streams = (Decodes(running, context),)
    steps = [Step(mixing, (Chunk(prompt),) * int(together), streams)]
    if output > mixing:
        steps.append(Step(output - mixing, (), streams))
    tokens = running * deployment.replicas * output * ((prompt + output) / output if "total" in reading.words else 1)
    caveats = (f"running batch of {running:,.0f} estimated from memory and the engine's default limit",)
    return tuple(steps), "step", tokens / (reading.value * _gpus_counted(case, deployment)), caveats


def _gpus_counted(case: Mapping[str, Any], deployment: Deployment) -> int:
    """Return by how many GPUs a throughput is divided in the source (TensorRT-LLM's overview does so from 1.1 on)."""
    version = re.search(r"(?:TensorRT|TRT)-?LLM v?1\.([1-9])", str(case.get("engine_version", "")), re.IGNORECASE)
    return deployment.gpus if version else 1


def _unknown(case: Mapping[str, Any], reading: Reading, deployment: Deployment) -> Answer:
    raise RefusedError(f"{' '.join(reading.words) or reading.label}: no rule turns this into steps")


METRICS: Final = {
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
