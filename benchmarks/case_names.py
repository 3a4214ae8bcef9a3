"""Names as people write them in reports: GPU, model, number formats, tensor parallelism, engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

from costmodel.architecture.source import preset_spellings
from costmodel.errors import InputError
from costmodel.hardware.catalog import resolve_gpu


class RefusedError(Exception):
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
        RefusedError: no words of it name a part.
    """
    for part in (re.sub(r"\([^)]*\)", " ", text), text):
        words = [word for word in re.split(r"[\s,;/()_]+", part) if word]
        for length in range(min(len(words), 5), 0, -1):
            for start in range(len(words) - length + 1):
                for order in permutations(words[start : start + length]) if length < 5 else [words[start : start + 5]]:
                    try:
                        return resolve_gpu(" ".join(order)).name
                    except InputError:
                        continue
    raise RefusedError(f"GPU {text!r} is not among the profiles")


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
        RefusedError: no preset has that name; a wrong model is worse than none.
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
    raise RefusedError(f"model {text!r} has no preset")


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
_GGUF_BITS: Final = {
    "q2_k": 2.625,
    "q3_k": 3.4375,
    "q3_k_s": 3.64,
    "q3_k_m": 4.0,
    "q4_0": 4.5,
    "q4_1": 5.0,
    "q4_k": 4.5,
    "q4_k_s": 4.67,
    "q4_k_m": 4.89,
    "q5_0": 5.5,
    "q5_k": 5.5,
    "q5_k_s": 5.57,
    "q5_k_m": 5.7,
    "q6_k": 6.5625,
    "q8_0": 8.5,
}
"""Bits per weight of GGUF formats: bytes of their blocks; S and M are mixtures, as tools/quantize/README.md of llama.cpp lists them."""
_GGUF = re.compile(r"\bi?q\d_\w+", re.IGNORECASE)


@dataclass(frozen=True)
class Formats:
    """Number formats of a deployment, as :func:`costmodel.deployment.deploy` takes them; None follows checkpoint and part."""

    dtype: str | None = None
    kv_dtype: str | None = None
    compute_dtype: str | None = None
    bits: float | None = None
    """Stored bits per weight, scales included, where they differ from the usual ones of ``dtype``: ``int4-g32``, ``Q4_K_M``."""


def find_dtype(word: str) -> str | None:
    """Return the weight dtype that a word names, None if it names none."""
    return _DTYPES.get(word.casefold())


def find_formats(text: str, row: str | None, engine: Engine) -> Formats:
    """Return the formats of a case, ``row`` being the dtype that the row itself names.

    ``X KV`` names the cache. Weights of 8 or 4 bits are multiplied in 16 bits by the engines that have weight-only kernels alone. A
    checkpoint in the engine's own fp8 (TensorRT-LLM) carries scales for an fp8 cache.

    Raises:
        RefusedError: several formats and the row does not say which, or one that there is no arithmetic for.
    """
    if (packed := _GGUF.search(text)) is not None:
        bits = _GGUF_BITS.get(packed[0].casefold())
        if bits is None or re.search(r"q\d_\w+\s*kv", text, re.IGNORECASE):
            raise RefusedError(f"dtype {text!r}: a GGUF format that there is no arithmetic for")
        return Formats("int8" if bits > 8 else "int4", None, "bf16", bits)
    cache = re.search(r"([a-z]+\d+)\s*kv|kv(?:[ -]?cache)?\W*([a-z]+\d+)", text, re.IGNORECASE)
    kv_dtype = find_dtype(cache[1] or cache[2]) if cache else None
    weights = text.replace(cache[0], " ") if cache else text
    named = list(dict.fromkeys(filter(None, map(find_dtype, re.split(r"[^A-Za-z0-9]+", weights)))))
    if not named and text.strip() and row is None:
        raise RefusedError(f"dtype {text!r} names no number format")
    if {"bf16", "fp16"} >= set(named):
        named = named[:1]  # one rate, one size
    if row is None and len(named) > 1:
        raise RefusedError(f"dtype {text!r} names several formats, and the row does not say which")
    dtype = row or (named[0] if named else None)
    if dtype == "mxfp4":
        dtype = None  # of the experts only: the checkpoint says where
    if dtype == "fp8" and engine.calibration == "trtllm" and kv_dtype is None:
        kv_dtype = "fp8"
    weight_only = engine.weight_only or re.search(r"weight.only|a16", text, re.IGNORECASE)
    group = re.search(r"\bg(?:roup)?[ _-]?(?:size[ _-]?)?(\d+)\b", text, re.IGNORECASE)
    compute_dtype = "bf16" if weight_only and dtype in ("int8", "fp8") else None
    return Formats(
        dtype, kv_dtype, compute_dtype, 4 + engine.group_bits / int(group[1]) if group and dtype == "int4" else None
    )


def find_parallel(text: str) -> tuple[int, int, int]:
    """Return (TP, PP, EP) as ``n_gpus_tp`` states them: ``4/TP4``, ``1 of TP1``, ``8 (TP4-PP2)``, ``DEP4``, ``2``; 1 for a range.

    ``TEP4`` divides attention and deals experts to the same four GPUs, ``DEP4`` has four replicas of attention.
    """
    stated = {kind: re.search(rf"{kind}\W?(\d+)", text, re.IGNORECASE) for kind in ("TP", "PP", "EP")}
    alone = re.match(r"\s*(\d+)\s*(?:$|[^\d.\s])", text)
    tp, pp, ep = (int(found[1]) if found else None for found in stated.values())
    if tp is None and ep is not None:
        tp = ep if re.search(r"TEP", text, re.IGNORECASE) else 1
    if tp is None:
        tp = int(alone[1]) if alone and pp is None else 1
    return tp, pp or 1, ep or 1


def find_count(text: str) -> int | None:
    """Return the number of GPUs that a row's name gives: ``RTX 4090 24GB * 2``, ``2x A100``; None if it gives none."""
    found = re.search(r"[*×]\s*(\d+)\b|\b(\d+)\s*[x×]\s", text)
    return int(found[1] or found[2]) if found else None


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
        group_bits: scale and zero point of a group of 4-bit weights [bits].
        splits_layers: several GPUs hold layers in turn (pipeline), not parts of each.
        quantises_head: 8- and 4-bit weights include embedding and lm_head, which quantised checkpoints elsewhere keep in 16 bits.
    """

    name: str
    calibration: str
    overheads: str
    weight_only: bool = False
    caveat: str = ""
    group_bits: int = 20
    splits_layers: bool = False
    quantises_head: bool = False


_EAGER = "eager engine: host launches, unfused elementwise kernels and attention kernels of its own are not in the calibration"
_STATIC = "TensorRT-LLM 0.x launched kernel by kernel, and its kernels of 2023 are older than those measured"
_V0 = "vLLM before V1: its host prepared every step between two steps, longer for more sequences"
_OTHER = "an engine of its own kernels, predicted with vLLM's"
_TRT_OLD = re.compile(r"(?:tensorrt|trt)-?llm\W*v?0\.\d\b|gptsession|static batch")
_VLLM_OLD = re.compile(r"vllm\W*v?0\.[0-7]\b|\bv0\b(?!\.)|^(?!.*\bv1\b).*\b202[34]\b", re.DOTALL)
_ENGINES: Final = (
    (r"profil|microbench|cuda-event", Engine("kernel profile", "vllm", "none")),
    (r"tensorrt|trt-?llm|\bnim\b", Engine("TensorRT-LLM", "trtllm", "engine")),
    (r"sglang", Engine("SGLang", "sglang", "engine")),
    (r"sarathi|eager|transformers|no cuda graph", Engine("eager PyTorch", "vllm", "eager", caveat=_EAGER)),
    (r"gpt-?fast", Engine("gpt-fast", "vllm", "engine", True, _OTHER, group_bits=32, quantises_head=True)),
    (
        r"llama\.cpp|ggml|exllama|koboldcpp",
        Engine("llama.cpp", "vllm", "engine", True, _OTHER, splits_layers=True, quantises_head=True),
    ),
    (r"mlc|\btgi\b|lmdeploy|deepspeed|lightllm", Engine("another engine", "vllm", "engine", caveat=_OTHER)),
    (r"vllm", Engine("vLLM", "vllm", "engine")),
)


def find_engine(text: str) -> Engine:
    """Return how the engine of a case is predicted; of several that a text names, the first in the table counts."""
    folded = text.casefold()
    for pattern, engine in _ENGINES:
        if re.search(pattern, folded):
            if engine.name == "TensorRT-LLM" and _TRT_OLD.search(folded):
                return replace(engine, overheads="eager", caveat=_STATIC)
            if engine.name == "vLLM" and _VLLM_OLD.search(folded):
                return replace(engine, caveat=_V0)
            return engine
    return Engine("an engine not named", "vllm", "engine", caveat="engine not named: predicted as vLLM")
