"""Activation peak, against hand counts and what vLLM logged. Sources: costmodel/validation/datasets/memory_starts.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.source import preset_config
from costmodel.deployment import Deployment, deploy
from costmodel.engine import GIB
from costmodel.memory.activations import (
    COMPILED_BYTES,
    activation_parts,
    common_bytes,
    kept_bytes,
    layer_bytes,
    sampler_bytes,
    stage_activation_bytes,
)
from costmodel.memory.rules import MIB, vllm_rules
from tests.strategies import deployments, examples

OLD, NEW = vllm_rules("0.11"), vllm_rules("0.19")


def llama(tmp_path: Path, **dimensions: int) -> str:
    """Return the path of a config like Llama-3.1-8B's with other dimensions."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(preset_config("Llama-3.1-8B") | dimensions), encoding="utf-8")
    return str(path)


def test_layers_by_hand() -> None:
    # Llama-3.1-8B: 2 B · (3·14,336 + 3·4,096) = 110,592 B = 108 KiB per token
    deployment = deploy("Llama-3.1-8B", "h100")
    assert layer_bytes(deployment, 1000, vllm_rules("0.6")) == 1000 * 110_592
    assert layer_bytes(deployment, 1000, NEW) == 1000 * 110_592 + COMPILED_BYTES
    # TP divides what is inside the feed-forward, not what is between layers
    assert layer_bytes(deploy("Llama-3.1-8B", "h100", tp=2), 1000, vllm_rules("0.6")) == 1000 * 2 * 3 * (7168 + 4096)


def test_activations_grow_with_the_budget() -> None:
    # vLLM issue 10517, Llama-3.1-8B on a 24 GB card: 2.07 GiB at 20,000 tokens, 2.99 at 29,000.
    deployment, rules = deploy("Llama-3.1-8B", "rtx-3090"), vllm_rules("0.6")
    for tokens, measured in ((20_000, 2.07), (29_000, 2.99)):
        peak = layer_bytes(deployment, tokens, rules) + common_bytes(deployment, tokens)
        assert peak / GIB == pytest.approx(measured, abs=0.01)


def test_sampler_by_hand() -> None:
    deployment = deploy("Llama-3.1-8B", "h100")
    hidden = 2 * 4096 * (8192 + 2 * 1024)
    assert sampler_bytes(deployment, 8192, 1024, OLD) == 128_256 * 1024 * 38 + hidden
    assert sampler_bytes(deployment, 8192, 1024, NEW) == 128_256 * (1024 * 14 + 132 * 4) + hidden
    # fewer sequences than multiprocessors: a buffer for each sequence only
    assert sampler_bytes(deployment, 8192, 8, NEW) == 128_256 * 8 * (14 + 4) + 2 * 4096 * (8192 + 16)


@pytest.mark.parametrize(
    ("model", "measured_gib"),
    [("Llama-3.1-8B", 4.76), ("Qwen3-32B", 5.64), ("gpt-oss-20b", 7.38)],  # V = 128k, 152k, 201k
)
def test_the_sampler_peak_grows_with_the_vocabulary(model: str, measured_gib: float) -> None:
    # about 38.6 kB · V with everything that is held beside it (facts of the llm-d planner, vLLM 0.11, budget 8192)
    deployment = deploy(model, "h100")
    peak = activation_parts(deployment, 8192, 1, OLD)[1]
    assert peak / GIB == pytest.approx(measured_gib, abs=0.015)
    assert peak / deployment.architecture.vocabulary == pytest.approx(38.6e3, rel=0.05)


@pytest.mark.parametrize(
    ("model", "tp", "measured_gib"),
    [("Qwen3-30B-A3B", 1, 2.68), ("DeepSeek-V2-Lite", 1, 1.93), ("Mixtral-8x7B-v0.1", 2, 1.21)],
)
def test_the_workspace_of_experts_stays(model: str, tp: int, measured_gib: float) -> None:
    deployment = deploy(model, "h100", tp=tp)
    assert activation_parts(deployment, 8192, 1, NEW)[1] / GIB == pytest.approx(measured_gib, abs=0.015)
    assert kept_bytes(deployment, 8192, NEW) > 0.4 * GIB
    assert kept_bytes(deployment, 8192, OLD) == 0


def test_the_workspace_of_experts_by_hand() -> None:
    # Qwen3-30B-A3B: 8 of 128 experts of 768, d = 2,048: two buffers of 8·2,048 elements per token
    assert kept_bytes(deploy("Qwen3-30B-A3B", "h100"), 1000, NEW) == 1000 * 2 * 8 * (2048 + 2048)
    # gpt-oss has kernels of its own for 4 bits
    assert kept_bytes(deploy("gpt-oss-20b", "h100"), 1000, NEW) == 0


@pytest.mark.parametrize(
    ("dimensions", "measured_gib"),
    [
        ({"intermediate_size": 11_008, "vocab_size": 32_016, "num_key_value_heads": 32}, 0.77),  # CodeLlama-7B
        ({"intermediate_size": 12_800, "vocab_size": 49_155}, 0.85),  # Granite-3.1-8B
    ],
)
def test_layers_that_need_more_than_their_sampler(
    dimensions: dict[str, int], measured_gib: float, tmp_path: Path
) -> None:
    deployment = deploy(llama(tmp_path, **dimensions), "h100")
    layers, sampler = activation_parts(deployment, 8192, 1, NEW)
    assert layers > sampler
    assert layers / GIB == pytest.approx(measured_gib, abs=0.02)


def test_only_the_last_stage_samples() -> None:
    # vLLM 0.19 on H100s: 1.05 GiB on the first of four stages, 0.96 on the first of three of Qwen3-8B
    for model, stages, measured in (("Llama-3.1-8B", 4, 1.05), ("Qwen3-8B", 3, 0.96)):
        deployment = deploy(model, "h100", pp=stages)
        kinds = deployment.architecture.kinds
        first = stage_activation_bytes(deployment, kinds, 8192, 1024, NEW, last=False)
        assert first / GIB == pytest.approx(measured, abs=0.015)
        assert stage_activation_bytes(deployment, kinds, 8192, 1024, NEW) > first + 0.8 * GIB


def test_what_both_peaks_have() -> None:
    # cuBLAS: 32 MiB on Hopper, 8.125 MiB before; images fill a step where there is a vision tower
    assert common_bytes(deploy("Llama-3.1-8B", "h100"), 8192) == 32 * MIB
    assert common_bytes(deploy("Llama-3.1-8B", "a100"), 8192) == 8.125 * MIB
    assert common_bytes(deploy("gemma-3-4b-it", "h100"), 8192) == 32 * MIB + 8192 * 2 * 2560


@examples(60)
@given(deployments(), st.integers(1, 10_000), st.integers(1, 2000), st.integers(1, 1000))
def test_more_tokens_or_sequences_never_need_less(deployment: Deployment, tokens: int, rows: int, more: int) -> None:
    kinds = deployment.architecture.kinds
    for rules in (OLD, NEW):
        base = stage_activation_bytes(deployment, kinds, tokens, rows, rules)
        assert stage_activation_bytes(deployment, kinds, tokens + more, rows, rules) >= base
        assert stage_activation_bytes(deployment, kinds, tokens, rows + more, rules) >= base
        assert stage_activation_bytes(replace(deployment, pp=2), kinds, tokens, rows, rules) >= base
