"""Recorded runs: what is read of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import InputError
from costmodel.validation.datasets.served_runs import read_run

META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "vllm_version": "0.19.0",
    "kv_cache": {"num_gpu_blocks": 500, "block_size": 16, "enable_prefix_caching": True},
    "hardware": {"device_name": "NVIDIA H100 80GB HBM3"},
    "resolved_config": {
        "cache_config": {"cache_dtype": "auto"},
        "model_config": {"dtype": "torch.bfloat16", "max_model_len": 4096, "quantization": None},
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 1, "enable_expert_parallel": False},
        "scheduler_config": {
            "max_num_batched_tokens": 2048, "max_num_seqs": 64, "enable_chunked_prefill": True, "async_scheduling": False,
            "policy": "fcfs", "long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": False,
        },
    },
}  # fmt: skip
REQUEST = {
    "input_toks": 10, "output_toks": 5, "arrival_time": 1e9, "queued_ts": 5.0, "scheduled_ts": 5.1, "first_token_ts": 5.2,
    "last_token_ts": 5.3,
}  # fmt: skip


def folder_of(path: Path, meta: Any = META, requests: str = json.dumps(REQUEST), ticks: str = "") -> Path:
    """Write a recorded run."""
    (path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (path / "requests.jsonl").write_text(requests, encoding="utf-8")
    if ticks:
        (path / "timeseries.csv").write_text(ticks, encoding="utf-8")
    return path


def changed(part: str, **values: Any) -> dict[str, Any]:
    """Return the description of a run with one part of its configuration changed."""
    config = META["resolved_config"]
    return META | {"resolved_config": config | {part: config.get(part, {}) | values}}


def test_a_run_is_read(tmp_path: Path) -> None:
    ticks = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n1.0,10.0,5.0,1,0,50.0\n"
    run = read_run(folder_of(tmp_path, ticks=ticks))
    served, settings = run.served, run.served.settings
    assert (served.model, served.gpu, served.engine) == (META["model"], "NVIDIA H100 80GB HBM3", "vLLM 0.19.0")
    assert (served.tp, served.pp, served.ep, served.dtype, served.kv_dtype) == (2, 1, 1, "bf16", None)
    assert (settings.token_budget, settings.max_num_seqs, settings.kv_blocks, settings.max_model_len) == (
        2048,
        64,
        500,
        4096,
    )
    assert settings.prefix_caching
    assert not settings.asynchronous
    assert not settings.reserve_full_prompt
    assert len(run.requests) == 1
    assert run.requests.arrival.tolist() == [5.0]
    assert run.ticks is not None
    assert run.ticks.kv_share.tolist() == [0.5]


def test_formats_and_parallel_sizes(tmp_path: Path) -> None:
    meta = changed("parallel_config", enable_expert_parallel=True, tensor_parallel_size=4)
    assert read_run(folder_of(tmp_path, meta)).served.ep == 4
    meta = changed("cache_config", cache_dtype="fp8_e4m3")
    assert read_run(folder_of(tmp_path, meta)).served.kv_dtype == "fp8"
    meta = changed("model_config", quantization="fp8")
    assert read_run(folder_of(tmp_path, meta)).served.dtype is None
    assert read_run(folder_of(tmp_path, meta)).ticks is None


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (changed("parallel_config", data_parallel_size=2), "2 engines .* one engine can be simulated"),
        (changed("speculative_config", method="eagle"), "speculative decoding is not simulated"),
        (changed("scheduler_config", policy="lottery"), "unknown policy 'lottery'; known: fcfs, priority"),
        ({}, "missing or malformed 'kv_cache'"),
        ([], "missing or malformed"),
    ],
)
def test_other_engines_are_refused(tmp_path: Path, meta: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_run(folder_of(tmp_path, meta))


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ("", "no requests"),
        ('{"input_toks": 3', "line 1: not a finished request"),
        (json.dumps(REQUEST) + "\n" + json.dumps(REQUEST | {"last_token_ts": None}), "line 2: not a finished request"),
        (json.dumps(REQUEST | {"output_toks": 0}), "lengths must be at least 1"),
        (json.dumps(REQUEST | {"first_token_ts": float("nan")}), "times finite"),
    ],
)
def test_requests_that_did_not_finish_are_refused(tmp_path: Path, requests: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_run(folder_of(tmp_path, requests=requests))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"requests\.jsonl: cannot be read"):
        read_run(tmp_path)
    with pytest.raises(InputError, match=r"timeseries\.csv: missing column"):
        read_run(folder_of(tmp_path, ticks="t,running\n1,2\n"))
