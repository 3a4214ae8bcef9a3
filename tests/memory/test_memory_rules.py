"""Releases of vLLM, what is added when weights are loaded, and the rules of the three engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.deployment import deploy
from costmodel.engine import GIB
from costmodel.hardware.errors import InputError
from costmodel.memory.engines import captured_graphs, default_settings, non_torch_bytes, sglang_fraction, stage_budget
from costmodel.memory.rules import parse_version, vllm_rules
from costmodel.memory.weights import loaded_weight_bytes, loaded_weight_rows, stage_weight_bytes


@pytest.mark.parametrize(
    ("text", "parsed"), [("0.19", (0, 19)), ("v0.11.0", (0, 11)), ("0.26.1rc1", (0, 26)), ("1.0", (1, 0))]
)
def test_versions(text: str, parsed: tuple[int, int]) -> None:
    assert parse_version(text) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [("latest", "must be a release"), ("", "must be a release"), ("0.3", "older than 0.4"), ("0.x", "0.32")],
)
def test_what_is_no_version(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_version(text)


def test_what_changed_between_releases() -> None:
    # CUDA graphs sit outside the budget before 0.21 and inside since; the default share of the GPU changed with them
    old, new = vllm_rules("0.20"), vllm_rules("0.21")
    assert (old.graphs_inside, new.graphs_inside) == (False, True)
    assert (old.utilisation, new.utilisation, vllm_rules().utilisation) == (0.9, 0.92, 0.92)
    # the sampler no longer sorts from 0.17 on (Qwen3-14B on an H100: 5.64 GiB with 0.16, 2.23 with 0.17)
    assert (vllm_rules("0.16").sorted_sampler, vllm_rules("0.17").sorted_sampler) == (True, False)


def test_vllm_by_hand() -> None:
    # ceil(total · utilisation) − weights − activations − non-torch − CUDA graphs
    deployment = deploy("Llama-3.1-8B", "h100")
    budget = stage_budget(deployment, 0, default_settings(deployment))
    assert budget.usable == -(-round(79.18 * GIB) * 92 // 100)
    rest = budget.weights + budget.activations + budget.non_torch + budget.cuda_graphs
    assert budget.available == budget.usable - rest
    eager = stage_budget(deployment, 0, replace(default_settings(deployment), eager=True))
    assert (eager.cuda_graphs, eager.available) == (0, budget.available + budget.cuda_graphs)


def test_memory_fraction_differs_by_engine() -> None:
    # vLLM: total·f − weights − activations …; SGLang: free·f − weights; TensorRT-LLM: (free after weights and profile)·f
    deployment = deploy("Llama-3.1-8B", "h100")
    total, weights = 79.18 * GIB, loaded_weight_bytes(deployment, 0)
    shares = {}
    for engine in ("vllm", "sglang", "trtllm"):
        settings = replace(default_settings(deployment, engine), fraction=0.9)
        shares[engine] = stage_budget(deployment, 0, settings).available
    assert shares["sglang"] == pytest.approx((total - 0.61 * GIB) * 0.9 - weights)
    assert shares["trtllm"] == pytest.approx((total - weights - 0.61 * GIB) * 0.9, rel=0.02)
    assert shares["vllm"] < shares["sglang"] < shares["trtllm"]


def test_sglang_reserves_by_its_own_rule() -> None:
    # H100, TP 1: 512 + 1.5·8,192 + 2·256 + 128 MiB = 13,440 of 81,080 MiB
    assert sglang_fraction(deploy("Llama-3.1-8B", "h100"), 8192, 256) == pytest.approx(
        1 - 13_440 / (79.18 * 1024), abs=1e-3
    )
    settings = default_settings(deploy("Llama-3.1-8B", "rtx-4090"), "sglang")
    assert (settings.token_budget, settings.sequences) == (2048, 24)
    # vLLM issue 21348: Qwen3-235B-A22B in fp8 on four H100 at 0.93: 367,404 tokens
    large = deploy("Qwen3-235B-A22B", "h100", tp=4, dtype="fp8")
    available = stage_budget(large, 0, replace(default_settings(large, "sglang"), fraction=0.93)).available
    assert available // 48_128 == pytest.approx(367_404, rel=0.05)


def test_memory_outside_pytorch_grows_with_tensor_parallelism() -> None:
    # 0.13 → 0.55 GiB (llm-d planner, vLLM 0.11)
    rules = vllm_rules("0.11")
    one, two = (non_torch_bytes(deploy("Llama-3.1-8B", "h100", tp=tp), rules) for tp in (1, 2))
    assert (one / GIB, two / GIB) == (0.13, 0.55)


def test_captured_graphs_are_those_of_vllm() -> None:
    # meta.json of the RTX 4090 run (0.19): 51 sizes up to 512, of which 35 up to 256 sequences
    deployment = deploy("Llama-3.1-8B", "rtx-4090")
    assert captured_graphs(deployment, default_settings(deployment)) == 51 + 35
    assert captured_graphs(deployment, replace(default_settings(deployment), sequences=1)) == 2 + 1


@pytest.mark.parametrize(("model", "measured"), [("Llama-3.1-8B", 14.9888), ("Qwen3-32B", 61.03), ("Qwen3-0.6B", 1.12)])
def test_loading_adds_the_rotary_tables(model: str, measured: float) -> None:
    deployment = deploy(model, "h100")
    assert loaded_weight_bytes(deployment, 0) / GIB == pytest.approx(measured, abs=0.006)
    added = loaded_weight_bytes(deployment, 0) - stage_weight_bytes(deployment, 0)
    assert added == deployment.architecture.max_positions * 128 * 2


def test_loading_pads_mxfp4_experts() -> None:
    for model, measured in (("gpt-oss-20b", 13.47), ("gpt-oss-120b", 64.38)):
        deployment = deploy(model, "h100")
        assert loaded_weight_bytes(deployment, 0) / GIB == pytest.approx(measured, rel=0.003)
    experts = {row.module: row for row in loaded_weight_rows(deploy("gpt-oss-20b", "h100"), 0)}["experts"]
    assert experts.bytes == pytest.approx(experts.count * 4.25 / 8 * 3072 / 2880)
    # Marlin's tiles before Hopper: 3,072 × 2,944 for 2,880²
    older = {row.module: row for row in loaded_weight_rows(deploy("gpt-oss-20b", "a100"), 0)}["experts"]
    assert older.bytes == pytest.approx(older.count * 4.25 / 8 * 3072 * 2944 / 2880**2)


def test_a_mixture_holds_all_its_experts() -> None:
    # Mixtral 8x7B: 47 B parameters in memory, not the 13 B of a token
    assert stage_weight_bytes(deploy("Mixtral-8x7B-v0.1", "h200"), 0) == pytest.approx(2 * 46.7e9, rel=0.01)


def test_tied_embeddings_are_held_once() -> None:
    deployment = deploy("Llama-3.2-1B", "h100")
    assert stage_weight_bytes(deployment, 0) == 2 * 1_235_814_400
