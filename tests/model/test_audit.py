"""What an independent recount of the first version found wrong, or found untested."""

import pytest

from costmodel.architecture.counts import kv_bytes_per_token
from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, make_work
from costmodel.memory import kv_blocks, stage_kv_bytes
from costmodel.memory.blocks import block_bytes, kv_groups, sequence_blocks
from costmodel.prediction import predict


@pytest.mark.parametrize(("model", "tp", "ep"), [("Mixtral-8x7B-v0.1", 1, 8), ("Qwen3-30B-A3B", 2, 8)])
def test_expert_parallelism_does_not_divide_a_replicas_attention(model: str, tp: int, ep: int) -> None:
    # Each of the e/t replicas prefills its own prompts: 2·P_a·n/F over its own t GPUs, whatever e is.
    shared, alone = predict(model=model, tp=tp, ep=ep), predict(model=model, tp=tp)
    assert shared.rungs.textbook.prefill_s == pytest.approx(alone.rungs.textbook.prefill_s)
    assert shared.rungs.textbook.decode_step_s < alone.rungs.textbook.decode_step_s
    assert any("attention replicas" in note for note in shared.notes)
    assert shared.gpu.count == ep


@pytest.mark.parametrize(
    ("model", "gpu", "options"), [("Llama-3.1-8B", "h100", {"dtype": "fp8"}), ("gpt-oss-20b", "b200", {})]
)
def test_textbook_attention_computes_in_the_activations_dtype(model: str, gpu: str, options: dict[str, str]) -> None:
    # Quantised weights do not make attention faster; an fp8 KV cache may.
    textbook = predict(model=model, gpu=gpu, **options).rungs.textbook  # type: ignore[arg-type]
    plain = predict(model=model, gpu=gpu, dtype="bf16").rungs.textbook
    eight = predict(model=model, gpu=gpu, kv_dtype="fp8", **options).rungs.textbook  # type: ignore[arg-type]
    assert textbook.prefill_attention_s == pytest.approx(plain.prefill_attention_s)
    assert eight.prefill_attention_s < plain.prefill_attention_s


def test_experts_within_one_replica_are_reduced_not_sent() -> None:
    # vLLM with TP = EP and no data parallelism: every GPU holds every token; the outputs are all-reduced, two per layer.
    deployment = deploy("Mixtral-8x7B-v0.1", "h100", tp=8, ep=8)
    parameters = build_parameters(deployment)
    found = {
        item.name: item for item in step_operators(parameters, make_work([Chunk(100)], windows=parameters.windows))
    }
    assert "expert_dispatch" not in found
    assert found["all_reduce"].bytes == pytest.approx(2 * 32 * 100 * 4096 * 2 * 2 * 7 / 8)


def test_every_operator_has_a_name_of_its_own() -> None:
    for options in ({"ep": 4}, {"ep": 8, "tp": 2}, {"pp": 2, "tp": 2}):
        rung = predict(model="gpt-oss-20b", **options).rungs.roofline
        for operators in (rung.operators, rung.decode_operators):
            names = [operator.name for operator in operators]
            assert len(set(names)) == len(names)


def test_a_default_server_may_have_no_room() -> None:
    # vLLM on an L4: max_num_batched_tokens 2048, max_num_seqs 256.
    engine = predict(gpu="l4", model="Llama-3.2-1B", streams=3000).engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs, engine.chunks) == (2048, 256, None)
    assert predict(gpu="l4", model="Llama-3.2-1B", streams=200).engine.chunks == 5  # ⌈8000/1848⌉


def test_blocks_round_up_per_sequence() -> None:
    # traps: 15,049 tokens at block 128 are 118 blocks (llm-d-planner, docs/empirical-vllm-memory-results.md).
    assert kv_blocks(15_049, 128) == 118
    assert kv_blocks(15_049) == 941
    assert kv_blocks(0) == 0


def test_without_the_hybrid_allocator_sliding_layers_keep_everything() -> None:
    # traps: full price where the hybrid manager is disabled (vLLM-metal pull request 563).
    deployment = deploy("gpt-oss-120b", "h100")
    alike, groups = kv_groups(deployment, hybrid=False), kv_groups(deployment)
    assert sequence_blocks(alike, 8192, 1) * block_bytes(alike) == 8192 * 73_728
    assert sequence_blocks(groups, 8192, 1) * block_bytes(groups) == (8192 + 128 + 16) * 73_728 / 2


def test_replicas_do_not_divide_a_request_s_cache() -> None:
    # traps: DP splits requests, not a request's cache (unified-cache-management issue 1217).
    alone, replicated = deploy("Mixtral-8x7B-v0.1", "h100"), deploy("Mixtral-8x7B-v0.1", "h100", ep=8)
    assert stage_kv_bytes(replicated, 0) == stage_kv_bytes(alone, 0) == kv_bytes_per_token(alone.architecture, 2.0)
