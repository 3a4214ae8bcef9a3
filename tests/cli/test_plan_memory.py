"""``costmodel plan memory``: one document, one table, one figure, and exit code 1 where the answer is no."""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodel
from tests.cli.runner import document, printed, refusal, run


def test_the_command_and_the_function_give_one_document() -> None:
    found = document("plan memory --model Qwen3-32B --tp 2 --max-model-len 32k --json")
    plan = costmodel.plan_memory("Qwen3-32B", tp=2, max_model_len=32_000)
    assert found == plan.model_dump(mode="json", by_alias=True)
    assert found["schema"] == "costmodel.plan/1"
    for key in (
        "weights_bytes", "activation_bytes", "non_torch_bytes", "cuda_graph_bytes", "kv_bytes_per_token", "kv_blocks",
        "kv_tokens", "max_concurrency",
    ):  # fmt: skip
        assert found["memory"][key] > 0


def test_the_report_says_what_uses_the_memory() -> None:
    text = printed("plan memory")
    for part in ("weights", "activations", "outside PyTorch", "CUDA graphs", "KV cache", "not used", "GiB = 2³⁰ bytes"):
        assert part in text
    assert "GPU KV cache size: " in text
    assert "Maximum concurrency for 131,072 tokens per request: " in text
    [bar] = [line for line in text.splitlines() if line.lstrip().startswith("[█")]
    assert bar.index("]") - bar.index("[") == 61


def test_every_engine_and_a_pipeline() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        assert document(f"plan memory --engine {engine} --json")["engine"]["name"] == engine
    assert "Pipeline stages" in printed("plan memory --model gemma-3-27b-it --pp 3")


def test_flags_reach_the_engine() -> None:
    found = document(
        "plan memory --engine-version 0.19.0 --max-num-batched-tokens 2048 --max-num-seqs 64 --max-model-len 8192 "
        "--gpu-memory-utilization 0.8 --block-size 32 --enforce-eager --disable-hybrid-kv-cache-manager --json"
    )["engine"]
    assert found == {
        "name": "vllm", "version": "0.19", "max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 8192,
        "memory_fraction": 0.8, "block_tokens": 32, "enforce_eager": True, "hybrid_kv_cache": False,
    }  # fmt: skip
    assert document("plan memory --kv-cache-memory-gib 2 --max-model-len 8k --json")["memory"]["kv_blocks"] == 1024


def test_what_does_not_fit_exits_with_one_and_says_what_would() -> None:
    result = run("plan memory --model Llama-3.3-70B-Instruct --max-model-len 32k")
    assert result.exit_code == 1
    for part in ("Does not fit: weights of 131.4 GiB", "It fits with any one of these", "--tp", "--dtype"):
        assert part in result.output
    result = run("plan memory --model Llama-3.1-405B --gpu t4")
    assert result.exit_code == 1
    assert "Does not fit" in result.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan memry", "did you mean memory?"),
        ("plan memory --max-num-seqs 100 --chunk 50", "use --max-num-seqs 50"),
        ("plan memory --max-model-len 1e9", "max-model-len"),
        ("plan memory --engine-version new", "release of vLLM"),
        ("plan memory --gpu h100,a100", "--gpu takes one value"),
        ("plan memory --kv-cache-memory-gib 0", "above zero"),
        ("plan memory --figure gpus", "needs --plot"),
        ("plan memory --gpu h10", "did you mean"),
        ("plan memory --engine trtllm --disable-hybrid-kv-cache-manager", "is vLLM's"),
        ("plan memory --engine sglang --enforce-eager", "enforce-eager is for vllm"),
    ],
)
def test_bad_input_is_one_line(command: str, said: str) -> None:
    assert said in refusal(command)


def test_a_release_that_is_not_known_yet_is_said() -> None:
    assert "vLLM 9.9 is later than 0.32" in printed("plan memory --engine-version 9.9.9")
    assert "is later than" not in printed("plan memory --engine-version 0.32.1")


@pytest.mark.parametrize("figure", ["gpus", "dtypes"])
def test_figures_are_drawn(figure: str, own_folder: Path) -> None:
    result = run(f"plan memory --plot {figure}.svg --figure {figure}")
    assert (result.exit_code, result.stderr) == (0, f"wrote {figure}.svg\n")
    text = (own_folder / f"{figure}.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml")


def test_help_lists_the_commands() -> None:
    assert "memory" in printed("plan --help")
    assert "--max-num-batched-tokens" in printed("plan memory --help")
