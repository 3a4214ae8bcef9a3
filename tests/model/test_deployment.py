"""Number formats and parallel sizes of a deployment; what the engine does by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.architecture.source import preset_config
from costmodel.deployment import Deployment, deploy
from costmodel.engine import default_max_num_seqs, default_token_budget
from costmodel.errors import InputError
from costmodel.memory import stage_weight_bytes
from costmodel.prediction import predict


def write_model(folder: Path, quantization: dict[str, Any]) -> str:
    """Write the configuration of a quantised Llama-3.1-8B; return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(preset_config("Llama-3.1-8B") | {"quantization_config": quantization}), encoding="utf-8")
    return str(path)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
MIXED = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "channel"}},
        "group_1": {"targets": ["re:.*o_proj"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
    },
}
"""Two formats: 4-bit integers, and 8-bit floats for the output projections."""


# --- dtypes -------------------------------------------------------------------------------------------------------------


def test_dtypes_follow_checkpoint_and_part() -> None:
    deployment = deploy("Llama-3.1-8B", "h100")
    assert (deployment.dtype, deployment.activation_dtype, deployment.kv_dtype) == ("bf16", "bf16", "bf16")
    assert (deployment.activation_bytes, deployment.kv_bytes) == (2.0, 2.0)


def test_parts_without_bf16_use_fp16_and_say_so() -> None:
    # Volta and Turing have no bf16 units.
    deployment = deploy("Llama-3.1-8B", "t4")
    assert (deployment.activation_dtype, deployment.kv_dtype) == ("fp16", "fp16")
    assert any("no bf16" in note for note in deployment.notes)
    with pytest.raises(InputError, match="fp16"):
        deploy("Llama-3.1-8B", "t4", dtype="bf16")


@pytest.mark.parametrize(
    ("gpu", "dtype", "computed"),
    [
        ("h100", "fp8", "fp8"),
        ("a100", "fp8", "bf16"),  # Ampere has no fp8 units: weights are converted
        ("h100", "int8", "int8"),
        ("h100", "int4", "bf16"),  # weight-only
        ("h100", "mxfp4", "bf16"),  # Hopper has no fp4 units
        ("b200", "nvfp4", "fp4"),
        ("h100", "nvfp4", "bf16"),
    ],
)
def test_compute_dtype_is_what_weights_and_part_allow(gpu: str, dtype: str, computed: str) -> None:
    assert predict(gpu=gpu, dtype=dtype).workload.compute_dtype == computed


@pytest.mark.parametrize(
    ("dtype", "bytes_per_weight"),
    [("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0), ("mxfp4", 4.25 / 8), ("nvfp4", 4.5 / 8), ("int4", (4 + 20 / 128) / 8)],
)
def test_quantised_layers_keep_tables_in_16_bits(dtype: str, bytes_per_weight: float) -> None:
    # Llama-3.1-8B: 6,979,321,856 weights in matrices of layers; two tables of 525,336,576; 266,240 in norms.
    expected = 6_979_321_856 * bytes_per_weight + 2 * (2 * 525_336_576 + 266_240)
    expected += 2 * 131_072 * 128  # sines and cosines of every position
    assert predict(dtype=dtype).memory.weights_bytes == pytest.approx(expected, rel=1e-9)


def test_a_module_left_out_of_quantisation_is_stored_and_computed_in_16_bits(tmp_path: Path) -> None:
    quantised = deploy(write_model(tmp_path, AWQ), "h100")
    plain = stage_weight_bytes(quantised, 0)
    partly = deploy(write_model(tmp_path, AWQ | {"modules_to_not_convert": ["o_proj"]}), "h100")
    # o_proj: 32 matrices of 4096², 2 B instead of (4 + 20/128)/8 B
    assert stage_weight_bytes(partly, 0) - plain == pytest.approx(32 * 4096**2 * (2 - (4 + 20 / 128) / 8))


def test_a_module_left_out_of_quantisation_stays_so_on_any_part(tmp_path: Path) -> None:
    model = write_model(tmp_path, AWQ | {"modules_to_not_convert": ["o_proj"]})
    assert stage_weight_bytes(deploy(model, "t4"), 0) == stage_weight_bytes(deploy(model, "h100"), 0)


def test_a_kernel_may_be_stored_in_a_format_of_its_own(tmp_path: Path) -> None:
    weights = stage_weight_bytes(deploy(write_model(tmp_path, MIXED), "h100"), 0)
    output = 32 * 4096**2
    assert weights == pytest.approx((6_979_321_856 - output) / 2 + output + 2 * (2 * 525_336_576 + 266_240), rel=1e-3)


# --- parallel sizes -----------------------------------------------------------------------------------------------------


def test_gpus_and_replicas() -> None:
    def sizes(**options: int) -> tuple[int, int]:
        deployment: Deployment = deploy("Qwen3-30B-A3B", "h100", **options)
        return deployment.gpus, deployment.replicas

    assert sizes() == (1, 1)
    assert sizes(tp=2, pp=3) == (6, 1)
    assert sizes(tp=2, ep=2) == (2, 1)
    assert sizes(tp=2, ep=8, pp=2) == (16, 4)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_tensor_parallel_sizes_that_divide_the_heads(tp: int) -> None:
    # 32 query and 8 KV heads: beyond 8 GPUs KV heads are replicated.
    assert deploy("Llama-3.1-8B", "h100", tp=tp).tp == tp


def test_a_refusal_lists_what_is_possible() -> None:
    with pytest.raises(InputError, match="possible: 1, 2, 4, 8, 16, 32"):
        deploy("Llama-3.1-8B", "h100", tp=6)
    with pytest.raises(InputError, match="possible: 1, 2, 4"):
        deploy("Qwen2.5-7B", "h100", tp=8)
    with pytest.raises(InputError, match="feed-forward width"):
        deploy("Qwen2.5-7B", "h100", tp=28)  # 18944/28 is no whole number


def test_more_gpus_than_a_node_are_noted() -> None:
    assert any("more than one node" in note for note in deploy("Llama-3.1-8B", "h100", tp=16).notes)
    assert not any("more than one node" in note for note in deploy("Llama-3.1-8B", "h100", tp=8).notes)


# --- engine defaults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "budget", "sequences"),
    [
        ("h100-sxm", 8192, 1024),
        ("h200", 8192, 1024),
        ("b200", 16384, 1024),
        ("mi300x", 16384, 1024),
        ("a100-80gb-sxm", 2048, 256),
        ("a100-40gb-sxm", 2048, 256),
        ("l4", 2048, 256),
        ("l40s", 2048, 256),
        ("t4", 2048, 256),
    ],
)
def test_vllm_server_defaults(gpu: str, budget: int, sequences: int) -> None:
    # vllm/engine/arg_utils.py, get_batch_defaults: from 160 GiB, from 70 GiB but not the A100, the rest.
    deployment = deploy("Llama-3.2-1B", gpu)
    assert (default_token_budget(deployment), default_max_num_seqs(deployment)) == (budget, sequences)
