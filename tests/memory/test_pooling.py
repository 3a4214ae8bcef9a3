"""``plan_memory`` of models that pool: no KV cache and no sampler, a budget that holds the longest document, graphs of one kind."""

import pytest

from costmodel import InputError, plan_memory
from costmodel.deployment import deploy
from costmodel.memory.blocks import kv_groups


def test_an_encoder_keeps_no_cache():
    plan = plan_memory("bge-m3", "l4")
    memory = plan.memory
    assert (memory.kv_blocks, memory.kv_groups, memory.kv_tokens, memory.kv_bytes_per_token) == (0, 0, 0, 0)
    assert memory.fits
    assert memory.kv_available_bytes == 0
    assert plan.engine.max_num_batched_tokens == memory.max_model_len == 8192
    assert memory.max_concurrency == 1
    assert plan.log == ("Model loading took 1.06 GiB memory",)
    assert kv_groups(deploy("ModernBERT-large", "l4", pooling=True)) == ()


def test_shorter_documents_run_together():
    plan = plan_memory("bge-m3", "l4", max_model_len=512)
    assert (plan.engine.max_num_batched_tokens, plan.memory.max_concurrency) == (2048, 4)


def test_a_budget_that_the_longest_document_does_not_fit_in_is_refused_as_vllm_does():
    with pytest.raises(InputError, match="use --max-num-batched-tokens 8192 or --max-model-len 4096"):
        plan_memory("bge-m3", "l4", max_num_batched_tokens=4096)
    assert plan_memory("bge-m3", "l4", max_num_batched_tokens=4096, max_model_len=4096).memory.fits
    assert plan_memory("Qwen3-Embedding-0.6B", "l4", max_num_batched_tokens=4096).memory.fits


def test_what_is_too_large_does_not_fit():
    plan = plan_memory("bge-m3", "l4", max_num_batched_tokens=1_000_000)
    assert not plan.memory.fits
    assert "are more than the 22.0 GiB of the GPU" in plan.binds
    assert ("--max-num-batched-tokens", "500000") in [(each.change, each.value) for each in plan.advice]


def test_a_decoder_that_embeds_has_a_cache_and_no_sampler():
    """The sampler of Qwen3-8B at 1,024 sequences of 151,936 logits takes more than its layers; that of its embedder is not there."""
    text, embeds = plan_memory("Qwen3-8B", "h100"), plan_memory("Qwen3-Embedding-8B", "h100")
    assert embeds.memory.kv_bytes_per_token == text.memory.kv_bytes_per_token
    assert embeds.memory.activation_bytes < text.memory.activation_bytes
    assert embeds.memory.weights_bytes == pytest.approx(text.memory.weights_bytes - 2 * (2 * 151_936 - 151_665) * 4096)
    assert embeds.memory.cuda_graph_bytes < text.memory.cuda_graph_bytes


def test_other_engines_are_refused():
    with pytest.raises(InputError, match="how sglang divides memory for models that pool is not known"):
        plan_memory("bge-m3", "l4", engine="sglang")
