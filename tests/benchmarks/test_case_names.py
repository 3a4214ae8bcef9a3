"""Names as people write them in reports, read by the rules of the cases benchmark."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def names(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/case_names.py``."""
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("case_names")


@pytest.fixture
def reading(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/case_reading.py``."""
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("case_reading")


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("H100 80GB (79.18 GiB visible; form factor not stated)", "h100-sxm"),
        ("A100 SXM 80GB power-limited 330 W (hybrid cube mesh)", "a100-80gb-sxm"),
        ("A100 PCIe 80GB, NVLink pair", "a100-80gb-pcie"),
        ("H100 80GB SXM5", "h100-sxm"),
        ("2x RTX 4090", "rtx-4090"),
        ("DGX Spark GB10", "gb10"),
        ("Quadro RTX 8000 48GB", None),
    ],
)
def test_gpus(names: ModuleType, text: str, gpu: str | None) -> None:
    if gpu is None:
        with pytest.raises(names.RefusedError, match="not among the profiles"):
            names.find_gpu(text)
    else:
        assert names.find_gpu(text) == gpu


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("meta-llama/Llama-2-7b", "Llama-2-7B"),
        ("LLaMA 7B", "Llama-2-7B"),
        ("LLaMA-3 70B", "Llama-3-70B"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B"),
        ("neuralmagic/Meta-Llama-3-8B-Instruct-FP8", "Llama-3-8B"),
        ("meta/llama-3.3-70b-instruct", "Llama-3.3-70B-Instruct"),
        ("GPT-J 6B", "gpt-j-6b"),
        ("Falcon 180B", "falcon-180B"),
        ("Llama-2-70B int4 + draft Llama-2-7B int4", "Llama-2-70B"),
        ("Qwen3.8-27B", None),
    ],
)
def test_models(names: ModuleType, text: str, model: str | None) -> None:
    if model is None:
        with pytest.raises(names.RefusedError, match="no preset"):
            names.find_model(text)
    else:
        assert names.find_model(text) == model


@pytest.mark.parametrize(
    ("text", "row", "engine", "expected"),
    [
        ("bf16/fp16", None, "vLLM", ("bf16", None, None, None)),
        ("fp8 weights+act, fp8 KV", None, "vLLM", ("fp8", "fp8", None, None)),
        ("fp8", None, "TensorRT-LLM v1.0", ("fp8", "fp8", None, None)),  # its checkpoints carry scales of the cache
        ("fp8", None, "vLLM", ("fp8", None, None, None)),
        ("bf16 (KV cache: fp8)", None, "vLLM", ("bf16", "fp8", None, None)),
        ("mxfp4 MoE", None, "vLLM", (None, None, None, None)),
        ("bf16/int8/int4-g32", "int8", "gpt-fast", ("int8", None, "bf16", None)),
        ("bf16/int8/int4-g32", "int4", "gpt-fast", ("int4", None, None, 5.0)),
        ("Q4_K_M", None, "llama.cpp", ("int4", None, "bf16", 4.89)),
    ],
)
def test_formats(names: ModuleType, text: str, row: str | None, engine: str, expected: tuple[object, ...]) -> None:
    found = names.find_formats(text, row, names.find_engine(engine))
    assert (found.dtype, found.kv_dtype, found.compute_dtype, found.bits) == expected


@pytest.mark.parametrize("text", ["bf16 vs fp8", "quantized", "Q5_K, q4_0 KV"])
def test_formats_that_are_not_clear_are_refused(names: ModuleType, text: str) -> None:
    with pytest.raises(names.RefusedError):
        names.find_formats(text, None, names.find_engine("vLLM"))


@pytest.mark.parametrize(
    ("text", "calibration", "overheads"),
    [
        ("TensorRT-LLM v0.5 (static)", "trtllm", "eager"),
        ("TensorRT-LLM v1.0, kv fraction 0.90-0.95", "trtllm", "engine"),
        ("NIM 1.8.0 (TRT-LLM)", "trtllm", "engine"),
        ("SGLang 0.4", "sglang", "engine"),
        ("vLLM 0.11, enforce_eager", "vllm", "eager"),
        ("Sarathi-Serve OSDI'24 artifact (vLLM fork, no CUDA graphs)", "vllm", "eager"),
        ("Vidur CUDA-event profiling (torch GEMM)", "vllm", "none"),
        ("llama.cpp Dec 2023", "vllm", "engine"),
    ],
)
def test_engines(names: ModuleType, text: str, calibration: str, overheads: str) -> None:
    engine = names.find_engine(text)
    assert (engine.calibration, engine.overheads) == (calibration, overheads)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4/TP4", (4, 1, 1)),
        ("1 of TP1", (1, 1, 1)),
        ("8 (TP4-PP2)", (4, 2, 1)),
        ("8/TP8 EP8", (8, 1, 8)),
        ("4 (DEP4)", (1, 1, 4)),
        ("TEP4", (4, 1, 4)),
        ("2", (2, 1, 1)),
        ("1..8", (1, 1, 1)),
    ],
)
def test_parallel_sizes(names: ModuleType, text: str, expected: tuple[int, int, int]) -> None:
    assert names.find_parallel(text) == expected


@pytest.mark.parametrize(
    ("key", "words", "conditions", "unit"),
    [
        ("first_token_ms_128", ("first", "token"), {"number": 128}, "ms"),
        ("bf16_tp2", (), {"dtype": "bf16", "tp": 2}, ""),
        ("b16_ms", (), {"batch": 16}, "ms"),
        ("b200_ms", (), {"batch": 200}, "ms"),
        ("B200", ("b200",), {}, ""),
        ("128/2048", (), {"prompt": 128, "output": 2048}, ""),
        ("hybrid_1021p_plus_3d_ms", ("hybrid", "plus"), {"prompt": 1021, "batch": 3}, "ms"),
        ("out_tok_s", ("out",), {}, "tok/s"),
        ("prefill_16k_ms", ("prefill",), {"number": 16_384}, "ms"),
        ("tg128", ("decode",), {"output": 128}, ""),
    ],
)
def test_keys(reading: ModuleType, key: str, words: tuple[str, ...], conditions: dict[str, object], unit: str) -> None:
    assert reading.parse_key(key) == (words, conditions, unit)


def test_lists_of_one_length_are_rows(reading: ModuleType) -> None:
    case = {"measured": {"batch": [1, 8], "tpot_ms": [7, "9.5 - 10.5"], "ttft": "31 ms"}}
    found = [(item.label, item.value, item.unit, item.conditions.get("batch")) for item in reading.readings(case)]
    assert found == [
        ("tpot_ms @ batch 1", 7.0, "ms", 1),
        ("tpot_ms @ batch 8", 10.0, "ms", 8),
        ("ttft", 31.0, "ms", None),
    ]
