"""The benchmark of measured cases: what becomes of a small file, and that the shared one is answered or refused number by number."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from costmodel.hardware.calibration import Calibration
from tests.strategies import calibration_of

yaml = pytest.importorskip("yaml")

CASES = """
- {id: steps, kind: decode_step, gpu: A100 SXM 80GB power-limited 330 W, n_gpus_tp: 1..8, model: meta-llama/Llama-2-7b,
   dtype_quant: bf16/int8/int4-g32, engine_version: gpt-fast, measured: {bf16_tp1: 104.9, int4_tp2: 300, unit: tok/s}}
- {id: rows, kind: decode_step, gpu: H100 80GB, n_gpus_tp: 2/TP2, model: meta/llama-3.3-70b-instruct, dtype_quant: fp8,
   engine_version: NIM 1.8.0 (TRT-LLM), prompt_tokens: 5000, output_tokens: 500,
   measured: [{conc: 1, ttft_ms: 400, itl_ms: 18}, {conc: 8, ttft_ms: 800, itl_ms: 25, out_tok_s: 300}]}
- {id: mixed, kind: chunked_prefill, gpu: "A100 PCIe 80GB, NVLink pair", n_gpus_tp: 2/TP2, model: 01-ai/Yi-34B-200K, dtype_quant: fp16,
   engine_version: Sarathi-Serve, context: 1024+16,
   measured: {hybrid_1021p_plus_3d_ms: 217.65, decode_only_b4_ms: 68, decode_only_linear_ms: 25.5}}
- {id: many, kind: decode_step, gpu: several, n_gpus_tp: '1', model: LLaMA-2 7B, dtype_quant: fp16, engine_version: llama.cpp,
   measured: {RTX 4090: 60.78, Quadro RTX 8000: 30, unit: tok/s}}
- {id: full, kind: throughput, gpu: H100 SXM 80GB, n_gpus_tp: 1/TP1, model: nvidia/Llama-3.1-8B-Instruct-FP8, dtype_quant: fp8,
   engine_version: TensorRT-LLM v1.0, measured: {1000/1000: 15220}}
- {id: profile, kind: prefill, subkind: gemm_profile, gpu: H100 SXM 80GB, n_gpus_tp: 1 of TP1, model: meta-llama/Llama-2-70b-hf,
   dtype_quant: fp16, engine_version: CUDA-event profiling, measured: [{tokens: 1, qkv_ms: 0.063, sum_ms_per_layer: 0.593}]}
- {id: kernel, kind: attention_kernel, gpu: H100 80GB SXM5, model: "head_dim 128, causal fwd", dtype_quant: fp16,
   engine_version: FA 2024, measured: {seq: [1024], FA2: [260], FA3: [423], unit: TFLOPS}}
- {id: load, kind: itl_spike, gpu: H100, n_gpus_tp: '1', model: Llama-3.1-8B, dtype_quant: bf16, engine_version: vLLM,
   measured: {p99_itl_ms: 90}}
- {id: memory, kind: kv_capacity, gpu: H100, model: Llama-3.1-8B, measured: {kv_tokens: 1}}
"""


@pytest.fixture
def cases(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/cases.py``."""
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    return importlib.import_module("cases")


def rows_of(cases: ModuleType, content: list[dict[str, Any]], find: Any = None) -> dict[tuple[str, str], Any]:
    return {(row.case, row.what): row for row in cases.case_rows(content, find or (lambda gpu, engine: None))}


def test_every_kind_of_number_becomes_steps(cases: ModuleType) -> None:
    rows = rows_of(cases, yaml.safe_load(CASES))
    assert {key for key, row in rows.items() if row.error is None} == {
        ("rows", "[1].ttft_ms"),
        ("rows", "[1].out_tok_s"),
        ("many", "Quadro RTX 8000"),
        ("kernel", "FA2 @ seq 1024"),
        ("load", "p99_itl_ms"),
    }
    assert all(row.reason for row in rows.values() if row.error is None)
    assert all(row.rung == "roofline" for row in rows.values() if row.error is not None)
    assert not any(key[0] == "memory" for key in rows)


def test_questions_are_those_of_the_sources(cases: ModuleType) -> None:
    rows = rows_of(cases, yaml.safe_load(CASES))
    # One decode step at batch 1 reads every weight but the embedding: 6.607e9 · 2 B at 2.039 TB/s, and some KV cache.
    step = rows["steps", "bf16_tp1 (decode)"]
    assert step.measured_s == pytest.approx(1 / 104.9)
    assert step.predicted_s == pytest.approx(2 * (6.738e9 - 32_000 * 4096) / 2.039e12, rel=0.01)
    # 160 + 32 bits for 32 weights of a group, on two GPUs.
    assert rows["steps", "int4_tp2 (decode)"].predicted_s == pytest.approx(step.predicted_s * 5 / 16 / 2, rel=0.06)
    # Columns 8192 + 2·1024 of 8192 inputs, one layer, in 16 bits.
    assert rows["profile", "[0].qkv_ms (matrix)"].predicted_s == pytest.approx(2 * 8192 * 10_240 / 3.35e12, rel=0.01)
    # Causal: half of 4·s²·h·d per sequence, 16 heads of 128, 16 sequences.
    kernel = rows["kernel", "FA3 @ seq 1024 (attention)"]
    assert kernel.measured_s == pytest.approx(2 * 1024**2 * 2048 * 16 / 423e12)
    # Linear layers of a decode step take less than the step; a mixed step takes more.
    linear, decode = (
        rows["mixed", f"decode_only_{name}"].predicted_s for name in ("linear_ms (linear)", "b4_ms (decode)")
    )
    assert linear < decode < rows["mixed", "hybrid_1021p_plus_3d_ms (mixed)"].predicted_s
    # Somebody's prompt lengthens the gaps of a closed loop.
    alone, crowded = (rows["rows", f"[{index}].itl_ms (decode)"].predicted_s for index in (0, 1))
    assert crowded > alone + 7 / 500 * 0.9 * rows["rows", "[0].ttft_ms (prefill)"].predicted_s


def overhead(graph_s: float, eager_s: float) -> Calibration:
    form = {"graph": graph_s, "eager": eager_s}
    return calibration_of(
        {
            "gemm": {"form": "smooth_roofline", "parameters": {"bandwidth_efficiency": {"value": 0.8}}},
            **{
                f"overhead.{name}": {"form": "overhead", "parameters": {"per_step_s": {"value": value}}}
                for name, value in form.items()
            },
        }
    )


@pytest.mark.parametrize(
    ("engine", "added"), [("vLLM 0.11", 1e-3), ("vLLM 0.11, enforce_eager", 5e-3), ("profiling", 0.0)]
)
def test_overheads_follow_the_engine(cases: ModuleType, engine: str, added: float) -> None:
    case = {
        "id": "one",
        "kind": "decode_step",
        "gpu": "H100",
        "model": "Llama-3.1-8B",
        "dtype_quant": "bf16",
        "engine_version": engine,
        "measured": {"tpot_ms": 7},
    }
    calibrations = {0.0: overhead(0, 0), 1.0: overhead(1e-3, 5e-3)}
    bare, found = (
        rows_of(cases, [case], lambda gpu, name, c=calibration: c if gpu == "h100-sxm" else None)[
            "one", "tpot_ms (decode)"
        ]
        for calibration in calibrations.values()
    )
    assert found.rung == "calibrated"
    assert found.predicted_s - bare.predicted_s == pytest.approx(added, abs=1e-9)


def test_relatives_lend_their_efficiencies_and_misses_are_explained(cases: ModuleType) -> None:
    content = yaml.safe_load(CASES)
    rows = rows_of(cases, content, lambda gpu, engine: overhead(0, 0) if gpu == "h100-sxm" else None)
    assert rows["many", "RTX 4090 (decode)"].rung == "assumed"
    far = [row for row in rows.values() if row.error is not None and abs(row.error) > 0.25]
    assert far
    assert all(row.reason for row in far)


def test_the_command_prints_one_document(repo_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(CASES, encoding="utf-8")
    command = [
        sys.executable,
        str(repo_root / "benchmarks" / "cases.py"),
        "--cases",
        str(path),
        "--calibrations",
        str(tmp_path),
    ]
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert document["schema"] == "costmodel.cases/1"
    assert document["summary"]["predicted"] == sum(row["error"] is not None for row in document["rows"])
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "Not predicted:" in text
    assert "within 25 %" in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.yaml", None, "no file of cases at"),
        ("folder", ..., "cannot be read"),
        ("broken.yaml", "{", "cannot be read"),
        ("text.yaml", "words", "not a list of cases"),
    ],
)
def test_a_file_that_is_no_file_of_cases_is_one_line(
    repo_root: Path, tmp_path: Path, name: str, content: Any, said: str
) -> None:
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    command = [sys.executable, str(repo_root / "benchmarks" / "cases.py"), "--cases", str(path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert str(path) in line


def test_every_shared_case_is_predicted_or_refused_with_a_reason(cases: ModuleType, shared_folder: Path) -> None:
    path = shared_folder / "cases" / "measured.yaml"
    if not path.is_file():
        pytest.skip("needs the shared data folder (set COSTMODEL_SHARED)")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = cases.case_rows(content, cases.finder(None))
    assert {row.case for row in rows} == {case["id"] for case in content if case["kind"] in cases.KINDS}
    assert all(row.reason for row in rows if row.error is None or abs(row.error) > 0.25)
    # What can be predicted: more than half of the numbers, of every kind but those under load or with unknown models.
    predicted = [row for row in rows if row.error is not None]
    assert len(predicted) > 150
    kinds = {row.kind for row in predicted}
    assert kinds >= {"prefill", "decode_step", "chunked_prefill", "throughput", "attention_kernel", "spec_decode"}
