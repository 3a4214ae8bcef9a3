"""Names as people write them in reports: GPU, model, number formats, tensor parallelism, engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from costmodel.architecture.source import preset_spellings
from costmodel.errors import InputError
from costmodel.hardware.catalog import resolve_gpu


class Refused(Exception):
    """A measured number that the model is not asked for, and why."""


# GPUs ------------------------------------------------------------------------------------------------------------------------------

BRIDGE: Final = {
    "a100-40gb-pcie": 300e9,
    "a100-80gb-pcie": 300e9,
    "h100-pcie": 300e9,
    "a30": 100e9,
    "a40": 56.25e9,
    "rtx-a6000": 56.25e9,
    "rtx-3090": 56.25e9,
}
"""NVLink bridge between two PCIe cards, per direction [B/s]: half of the total that the parts' datasheets give."""


def find_gpu(text: str) -> str:
    """Return the canonical name of the part that a text names: its longest run of words that a part is known by, in any order.

    Raises:
        Refused: no words of it name a part.
    """
    for part in (re.sub(r"\([^)]*\)", " ", text), text):
        words = [word for word in re.split(r"[\s,;/()]+", part) if word]
        for length in range(min(len(words), 5), 0, -1):
            for start in range(len(words) - length + 1):
                for order in permutations(words[start : start + length]) if length < 5 else [words[start : start + 5]]:
                    try:
                        return resolve_gpu(" ".join(order)).name
                    except InputError:
                        continue
    raise Refused(f"GPU {text!r} is not among the profiles")


def bridge_bandwidth(text: str, gpu: str) -> float | None:
    """Return the bandwidth of the NVLink bridge that a text gives a PCIe card [B/s]; None where it says nothing of it."""
    return BRIDGE.get(gpu) if "nvlink" in text.casefold() else None


# Models ----------------------------------------------------------------------------------------------------------------------------

_DTYPE_WORDS = r"fp8|fp4|nvfp4|mxfp4|bf16|fp16|int8|int4|awq|gptq|w\da\d+|dynamic|static|quantized|pertensor|kv"
_VARIANTS = rf"instruct|chat|base|hf|it|meta|{_DTYPE_WORDS}"


def _folded(name: str) -> str:
    words = [word for word in re.split(r"[\s_-]+", name.casefold()) if not re.fullmatch(_VARIANTS, word)]
    return re.sub(r"[^a-z0-9.]", "", "".join(words))


def find_model(text: str) -> str:
    """Return the preset that a text names: organisation, ``Instruct``, ``hf``, number formats, separators and case do not matter.

    A bare ``LLaMA 7B`` is the first generation, which has the shapes of Llama 2.

    Raises:
        Refused: no preset has that name; a wrong model is worse than none.
    """
    spellings = preset_spellings()
    name = re.split(r"\s\+\s|\(", text)[0].strip()
    if name.casefold() in spellings:
        return spellings[name.casefold()]
    folded = {_folded(spelling.split("/")[-1]): preset for spelling, preset in reversed(spellings.items())}
    wanted = _folded(name.split("/")[-1])
    for candidate in (wanted, re.sub(r"^llama(\d+b)$", r"llama2\1", wanted)):
        if candidate in folded:
            return folded[candidate]
    raise Refused(f"model {text!r} has no preset")


# Number formats --------------------------------------------------------------------------------------------------------------------

_DTYPES: Final = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "f16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "w8a8": "int8",
    "int8": "int8",
    "w8a16": "int8",
    "int4": "int4",
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
}
_GGUF = re.compile(r"\bi?q\d_", re.IGNORECASE)


@dataclass(frozen=True)
class Formats:
    """Number formats of a deployment, as :func:`costmodel.deployment.deploy` takes them; None follows checkpoint and part."""

    dtype: str | None = None
    kv_dtype: str | None = None
    compute_dtype: str | None = None


def find_dtype(word: str) -> str | None:
    """Return the weight dtype that a word names, None if it names none."""
    return _DTYPES.get(word.casefold())


def find_formats(text: str, row: str | None, engine: Engine) -> Formats:
    """Return the formats of a case, ``row`` being the dtype that the row itself names.

    ``X KV`` names the cache. Weights of 8 or 4 bits are multiplied in 16 bits by the engines that have weight-only kernels alone. A
    checkpoint in the engine's own fp8 (TensorRT-LLM) carries scales for an fp8 cache.

    Raises:
        Refused: several formats and the row does not say which, or one that there is no arithmetic for.
    """
    if _GGUF.search(text):
        raise Refused(f"dtype {text!r}: GGUF formats have no arithmetic here")
    cache = re.search(r"([a-z]+\d+)\s*(?:kv|cache)", text, re.IGNORECASE)
    kv_dtype = find_dtype(cache[1]) if cache else None
    weights = text.replace(cache[0], " ") if cache else text
    named = list(dict.fromkeys(filter(None, map(find_dtype, re.split(r"[^A-Za-z0-9]+", weights)))))
    if not named and text.strip() and row is None:
        raise Refused(f"dtype {text!r} names no number format")
    if {"bf16", "fp16"} >= set(named):
        named = named[:1]  # one rate, one size
    if row is None and len(named) > 1:
        raise Refused(f"dtype {text!r} names several formats, and the row does not say which")
    dtype = row or (named[0] if named else None)
    if dtype == "mxfp4":
        dtype = None  # of the experts only: the checkpoint says where
    if dtype == "fp8" and engine.calibration == "trtllm" and kv_dtype is None:
        kv_dtype = "fp8"
    weight_only = engine.weight_only or re.search(r"weight.only|a16", text, re.IGNORECASE)
    return Formats(dtype, kv_dtype, "bf16" if weight_only and dtype in ("int8", "fp8") else None)


def find_tp(text: str) -> int:
    """Return the tensor-parallel size that ``n_gpus_tp`` states: ``4/TP4``, ``1 of TP1``, ``2``; 1 where it gives a range."""
    stated = re.search(r"TP\s*(\d+)", text, re.IGNORECASE)
    if stated:
        return int(stated[1])
    alone = re.fullmatch(r"\s*(\d+)\s*", text)
    return int(alone[1]) if alone else 1


# Engines ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """How an engine is predicted.

    Attributes:
        name: what it is called in reasons.
        calibration: engine whose calibration is taken; vLLM's where that has none.
        overheads: ``engine``: as calibrated; ``eager``: the eager overhead in every step; ``none``: kernels alone.
        weight_only: 8-bit weights are only ever stored, never multiplied.
        caveat: why the prediction may miss, for the reasons column.
    """

    name: str
    calibration: str
    overheads: str
    weight_only: bool = False
    caveat: str = ""


_EAGER = "eager engine: its host launches every kernel, and that lasts longer than the kernels of a small step"
_OTHER = "an engine of its own kernels, predicted with vLLM's"
_ENGINES: Final = (
    (r"profil|microbench|cuda-event", Engine("kernel profile", "vllm", "none")),
    (r"tensorrt|trt-?llm|\bnim\b", Engine("TensorRT-LLM", "trtllm", "engine")),
    (r"sglang", Engine("SGLang", "sglang", "engine")),
    (r"sarathi|eager|transformers|no cuda graph", Engine("eager PyTorch", "vllm", "eager", caveat=_EAGER)),
    (r"gpt-?fast", Engine("gpt-fast", "vllm", "engine", weight_only=True, caveat=_OTHER)),
    (r"llama\.cpp|ggml|exllama|mlc|tgi|lmdeploy|deepspeed", Engine("another engine", "vllm", "engine", True, _OTHER)),
    (r"vllm", Engine("vLLM", "vllm", "engine")),
)


def find_engine(text: str) -> Engine:
    """Return how the engine of a case is predicted; of several that a text names, the first in the table counts."""
    folded = text.casefold()
    for pattern, engine in _ENGINES:
        if re.search(pattern, folded):
            if engine.name == "TensorRT-LLM" and re.search(r"v?\b0\.\d|static|gptsession", folded):
                return Engine(engine.name, engine.calibration, "eager", caveat=_EAGER)  # before CUDA graphs
            return engine
    return Engine("an engine not named", "vllm", "engine", caveat="engine not named: predicted as vLLM")
