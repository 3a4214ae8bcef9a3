"""Layers of other kinds on the real engine: a fit to some steps predicts the others, also those with prompts beside decodes.

Tiny models with random weights on a CPU: a Qwen3-Next of six gated delta nets and two gated attentions with experts, and a Llama 4 whose
local chunks of 256 tokens are shorter than its prompts. vLLM 0.32 has no Mamba 2 that runs on a CPU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from costmodel.validation.measurements.files import read_measurement
from tests.cli.runner import document, run
from tests.vllm.conftest import Followed

pytestmark = pytest.mark.vllm

COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8000,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **COMMON,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "intermediate_size": 688,
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000.0,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "llama4_text": {
        **COMMON,
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "intermediate_size": 256,
        "intermediate_size_mlp": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "attention_chunk_size": 256,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 1,
        "use_qk_norm": True,
    },
}
LIMIT = 0.15
"""Of the median error of steps that were held out."""


@pytest.mark.parametrize("name", MODELS)
def test_held_out_steps_are_predicted(
    name: str, followed: Followed, environment: dict[str, str], tmp_path: Path
) -> None:
    model, measured, calibration = tmp_path / name, tmp_path / "steps.jsonl", tmp_path / "fit.toml"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    gpu = ["--gpu", str(followed.folder / "cpu.toml")]
    flags = "--dtype bf16 --enforce-eager --max-num-batched-tokens 1024 --max-model-len 2048 --minutes 0.7"
    words = ["measure", "--random-weights", str(model), "--out", str(measured), *gpu, *flags.split()]
    done = subprocess.run(
        [sys.executable, "-c", "from costmodel.cli.entry import main; main()", *words],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert run(["fit", str(measured), *gpu, "-o", str(calibration)]).exit_code == 0
    rows = document(["check", str(measured), *gpu, "--calibration", str(calibration), "--held-out", "--json"])["rows"]
    errors = [abs(row["error"]) for row in rows]
    assert len(errors) >= 8
    assert any(step.chunks and step.decodes for step in read_measurement(measured).steps)
    print(f"{name}: {statistics.median(errors):.1%} of {len(errors)}")
    assert statistics.median(errors) <= LIMIT
