"""``predict_embedding``: steps, rates and limits of models that pool."""

import pytest

import costmodel
from costmodel import InputError, predict_embedding
from costmodel.deployment import deploy
from costmodel.embedding import make_documents
from costmodel.engine import default_token_budget
from costmodel.memory.rules import MIB


def test_a_document_on_the_roofline_by_hand():
    """512 tokens of bge-m3 on an H100: 2·512·24·12·d² + 4·d·24·512² FLOPs at 989 TFLOP/s; only the smaller matrices wait for memory."""
    rung = predict_embedding(512, "h100", "bge-m3", calibration="none").rungs.roofline
    flops = 2 * 512 * 24 * 12 * 1024**2 + 4 * 1024 * 24 * 512**2
    assert flops / 989e12 <= rung.latency_s <= 1.02 * flops / 989e12
    assert rung.latency_s == pytest.approx(rung.linear_s + rung.attention_s)


def test_a_full_step_and_its_rate():
    """8,192 tokens of the default budget are 16 documents of 512; they take less than 16 steps of one."""
    found = predict_embedding(512, "h100", "bge-m3")
    assert found.steps.full_step_documents == 16
    for rung in (found.rungs.textbook, found.rungs.roofline, found.best):
        assert rung.documents_per_s == pytest.approx(16 / rung.full_step_s)
        assert rung.tokens_per_s == pytest.approx(512 * rung.documents_per_s)
        assert rung.full_step_s <= 16 * rung.latency_s * (1 + 1e-12)
    assert found.best.latency_s > found.rungs.roofline.latency_s
    assert found.headline == "calibrated"
    assert any("both ways was not measured" in text for text in found.warnings)


def test_documents_of_several_steps():
    found = predict_embedding(512, "h100", "bge-m3", documents=40, calibration="none")
    alone = predict_embedding(512, "h100", "bge-m3", documents=16, calibration="none").rungs.roofline
    rest = predict_embedding(512, "h100", "bge-m3", documents=8, calibration="none").rungs.roofline
    assert found.steps.steps == 3
    assert found.rungs.roofline.latency_s == pytest.approx(2 * alone.latency_s + rest.latency_s)


@pytest.mark.parametrize("model", ["bge-m3", "ModernBERT-large", "Qwen3-Embedding-0.6B"])
def test_more_tokens_and_more_documents_take_longer(model):
    times = [predict_embedding(n, "l4", model).rungs.roofline.latency_s for n in (1, 16, 128, 512, 2048, 8192)]
    assert times == sorted(times)
    several = [predict_embedding(128, "l4", model, documents=n).rungs.roofline.latency_s for n in (1, 2, 16, 64, 200)]
    assert several == sorted(several)


def test_a_causal_embedder_may_take_several_steps_and_an_encoder_may_not():
    found = predict_embedding(20_000, "h100", "Qwen3-Embedding-8B", chunk=8192, calibration="none")
    assert (found.steps.steps, found.steps.steps_per_document, found.steps.full_step_documents) == (3, 3, 1)
    assert found.rungs.roofline.documents_per_s == pytest.approx(1 / found.rungs.roofline.latency_s)
    whole = predict_embedding(20_000, "h100", "Qwen3-Embedding-8B", chunk=20_000, calibration="none")
    assert found.rungs.roofline.attention_s == pytest.approx(whole.rungs.roofline.attention_s)
    with pytest.raises(InputError, match="bge-m3 takes each in one step; use at least 2000"):
        predict_embedding(2000, "h100", "bge-m3", chunk=1024)


def test_the_budget_of_vllm_holds_the_longest_document():
    for gpu, name, budget in (
        ("l4", "bge-m3", 8192),
        ("l4", "bge-large-en-v1.5", 2048),
        ("l4", "Qwen3-Embedding-8B", 2048),
    ):
        assert default_token_budget(deploy(name, gpu, pooling=True)) == budget
    assert default_token_budget(deploy("bge-m3", "b200", pooling=True)) == 16_384


def test_sequences_at_once_bind_where_documents_are_short():
    documents = make_documents(deploy("bge-m3", "l4", pooling=True), 4, 1000)
    assert documents.together == 256
    assert [often for _, often in documents.steps] == [3, 1]
    split = make_documents(deploy("Qwen3-Embedding-0.6B", "l4", pooling=True), 4, 1000)
    assert sum(often for _, often in split.steps) == 4


def test_documents_are_packed_where_they_may_be_split():
    load = make_documents(deploy("Qwen3-Embedding-0.6B", "l4", pooling=True), 1500, 4, 2048)
    assert [sum(chunk.tokens for chunk in step) for step, _ in load.steps] == [2048, 2048, 1904]
    whole = make_documents(deploy("bge-m3", "l4", pooling=True), 1500, 4, 8192)
    assert [len(step) for step, _ in whole.steps] == [4]


def test_memory_of_an_encoder_is_weights_and_activations():
    """Weights 2 B each, no table of rotations; activations of 8,192 tokens: (2·d_ff + 3·d)·2 B, and what compiled layers hold."""
    memory = predict_embedding(512, "h100", "bge-m3").memory
    assert memory.weights_bytes == 2 * 566_705_152
    expected = 8192 * 2 * (2 * 4096 + 3 * 1024) + 0.05 * 2**30 + 32 * MIB
    assert memory.activation_bytes == pytest.approx(expected)
    assert (memory.kv_blocks, memory.kv_needed_bytes, memory.kv_bytes_per_token, memory.fits) == (0, 0, 0, True)


def test_a_causal_embedder_keeps_its_cache():
    found = predict_embedding(512, "h100", "Qwen3-Embedding-8B")
    assert found.memory.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2
    assert found.memory.kv_blocks_needed == 16 * 512 // 16
    assert found.workload.kv_dtype == "bf16"
    assert predict_embedding(512, "h100", "bge-m3").workload.kv_dtype is None


def test_tensor_parallel_divides_and_communicates():
    one, two = (predict_embedding(512, "h100", "Qwen3-Embedding-8B", tp=tp, calibration="none") for tp in (1, 2))
    assert two.rungs.roofline.linear_s == pytest.approx(one.rungs.roofline.linear_s / 2, rel=0.02)
    assert two.rungs.roofline.communication_s > one.rungs.roofline.communication_s == 0
    assert two.gpu.count == 2


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"model": "Qwen3-8B"}, "Qwen3-8B writes text and does not pool"),
        ({"prompt": 9000}, "prompt 9,000 is more than the 8,192 tokens that bge-m3 takes; use 8192"),
        ({"prompt": 0}, "prompt must be at least 1"),
        ({"documents": 0}, "documents must be at least 1"),
        ({"chunk": "all"}, "chunk must be a whole number or 'engine'"),
        ({"kv_dtype": "fp8"}, "bge-m3 keeps no KV cache, since every token sees both ways; leave --kv-dtype out"),
        ({"model": "Qwen3-Embedding-0.6B", "chunk": 1, "prompt": 4000, "documents": 100}, "more than 200000 steps"),
    ],
)
def test_what_cannot_be_is_said(asked, reason):
    with pytest.raises(InputError, match=reason.replace(".", r"\.")):
        predict_embedding(**asked)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: costmodel.predict(512, "h100", "bge-m3"),
        lambda: costmodel.step_times("h100", "bge-m3"),
        lambda: costmodel.simulate_load(model="bge-m3", clients=4),
        lambda: costmodel.plan_chunk(model="bge-m3", itl=0.05),
        lambda: costmodel.solve("prompt", model="bge-m3", spike_s=0.05),
    ],
)
def test_what_decodes_refuses_models_that_pool_in_a_line(ask):
    with pytest.raises(
        InputError, match="bge-m3 pools: it embeds or classifies documents and writes no text"
    ) as caught:
        ask()
    assert "\n" not in str(caught.value)
    assert "`costmodel.predict_embedding`" in str(caught.value)


def test_the_document_is_complete():
    document = predict_embedding(512, "h100", "bge-m3").model_dump(by_alias=True)
    assert document["schema"] == "costmodel.embedding/1"
    assert document["model"]["pooling"] == "cls"
    assert "calibration" in document
    bare = predict_embedding(512, "l4", "bge-m3").model_dump(by_alias=True)
    assert "calibration" not in bare
    assert "calibrated" not in bare["rungs"]
