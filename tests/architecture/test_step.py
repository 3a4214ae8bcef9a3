"""Step-3.7-Flash: counts, cache, kernels and images against a hand count."""

import pytest

from costmodel.architecture.counts import (
    active_parameters,
    kv_bytes_per_token,
    layer_parameters,
    parameter_table,
    text_parameters,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.source import load_model, preset_config
from costmodel.building import build_parameters
from costmodel.deployment import deploy_architecture
from costmodel.encoder import encoder_parameters
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.memory.blocks import kv_groups

STEP = load_model("Step-3.7-Flash")[0]
EXPERT = 3 * 4096 * 1280


def operators(chunks=(), decodes=(), tp=1):
    deployment = deploy_architecture(STEP, "h200", tp=tp)
    parameters = build_parameters(deployment)
    return {item.name: item for item in step_operators(parameters, make_work(chunks, decodes, parameters.windows))}


def changed(**keys):
    config = preset_config("Step-3.7-Flash")
    return architecture_from_config({**config, "text_config": {**config["text_config"], **keys}}, "model")


def own(heads):
    """Parameters of attention and norms: q, k, v, a gate per head, output, norms on heads, two norms."""
    return 4096 * (heads + 16) * 128 + 4096 * heads + heads * 128 * 4096 + 2 * 128 + 2 * 4096


def test_parameters():
    """12 layers of 64 heads, 33 sliding ones of 96; the first three dense. The class of transformers 5.19 and correction biases."""
    sparse = 289 * EXPERT + 288 * 4096 + 288
    kinds = {(kind.attention.window, kind.feed_forward.kind): layer_parameters(kind, 4096) for kind in STEP.kinds}
    assert kinds == {
        (None, "dense"): own(64) + 3 * 4096 * 11_264,
        (512, "dense"): own(96) + 3 * 4096 * 11_264,
        (512, "moe"): own(96) + sparse,
        (None, "moe"): own(64) + sparse,
    }
    windows = [STEP.kinds[index].attention.window for index in STEP.pattern]
    assert windows == [None if index % 4 == 0 else 512 for index in range(45)]
    assert total_parameters(STEP) == 198_937_133_056 + 288 * 42
    assert text_parameters(STEP) == 196_428_160_256 + 128_896 * 4096 + 288 * 42
    assert active_parameters(STEP) == text_parameters(STEP) - 42 * 280 * EXPERT


def test_the_published_total_has_three_prediction_layers_more():
    """201B on the model's page: layers 45 to 47, each a sliding, dense one with a projection of 2·d, three norms and a head."""
    layer = own(96) + 3 * 4096 * 11_264 + 2 * 4096**2 + 3 * 4096 + 128_896 * 4096
    assert round((total_parameters(STEP) + 3 * layer) / 1e9) == 201
    assert any("3 multi-token-prediction layers" in note for note in STEP.notes)


def test_cache_of_full_and_sliding_layers():
    assert kv_bytes_per_token(STEP) == 45 * 2 * 8 * 128 * 2
    groups = kv_groups(deploy_architecture(STEP, "h200", tp=8))
    assert [(group.window, len(group.layers)) for group in groups] == [(None, 12), *[(512, 11)] * 3]


@pytest.mark.parametrize("tp", [1, 8])
def test_decode_reads_a_window_in_most_layers(tp):
    found = operators(decodes=[Decodes(3, 9999)], tp=tp)
    full, sliding = found["decode_attention.full"], found["decode_attention.window_512"]
    assert full.flops == 12 * 3 * 10_000 * 4 * 64 * 128 / tp
    assert sliding.flops == 33 * 3 * 512 * 4 * 96 * 128 / tp
    assert full.bytes == 12 * 3 * 10_000 * 2 * 8 * 128 * 2 / tp
    assert sliding.bytes == 33 * 3 * 512 * 2 * 8 * 128 * 2 / tp
    assert sum(found[name].flops for name in ("g_proj", "g_proj.2")) == 3 * 2 * 4096 * (12 * 64 + 33 * 96) / tp


def test_prefill_pairs():
    found = operators([Chunk(4000)])
    window = 512 * 513 / 2 + (4000 - 512) * 512
    assert found["prefill_attention.full"].flops == 12 * 4000 * 4001 / 2 * 4 * 64 * 128
    assert found["prefill_attention.window_512"].flops == 33 * window * 4 * 96 * 128


# Counted by ImagePatcher and Step3VLImageProcessor.get_num_image_tokens of vLLM 0.32.
TOKENS = {
    (1024, 1024): 504,
    (500, 400): 171,
    (3000, 500): 669,
    (4000, 3000): 2665,
    (20, 300): 171,
    (728, 728): 504,
    (600, 1200): 422,
}


@pytest.mark.parametrize("size", TOKENS)
def test_tokens_of_an_image(size):
    assert STEP.vision.rule(*size).tokens == TOKENS[size]


def test_downsamplers_work_on_four_rows_and_one():
    """52² patches of the whole become 26², then 13² features."""
    image = STEP.vision.rule(400, 400)
    assert (image.sequences, image.features) == ((52**2,), 13**2)
    found = {gemm.name: gemm for gemm in encoder_parameters(deploy_architecture(STEP, "h200")).gemms}
    assert found["downsampler1"].flops_per_token * 169 == 2 * 26**2 * 9 * 1536 * 3072
    assert found["downsampler2"].flops_per_token == 2 * 9 * 3072 * 6144
    assert STEP.vision.parameters == 1_955_848_960 + 25_165_824


def test_eight_bits_of_the_experts_only():
    """As Step-3.7-Flash-FP8 lists what it does not convert: everything but the routed experts, by whole names."""
    names = [
        f"model.layers.{layer}.{module}"
        for layer in range(48)
        for module in (
            *(f"self_attn.{name}_proj" for name in "qkvog"),
            *(f"{part}.{name}_proj" for part in ("mlp", "share_expert") for name in ("gate", "up", "down")),
            "moe.gate",
        )
    ]
    quant = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": [*names, "lm_head"]}
    arch = architecture_from_config({**preset_config("Step-3.7-Flash"), "quantization_config": quant}, "model")
    stored = {row.module: row.format for row in parameter_table(arch)}
    assert {module for module, fmt in stored.items() if fmt != "bf16"} == {"experts"}


def test_what_is_not_said_is_refused():
    rewritten = {"model_type": "step3p7", "hidden_size": 4096, "num_attention_heads": 64, "first_k_dense_replace": 3}
    with pytest.raises(UnsupportedError, match=r"query heads of sliding layers .*use_head_wise_attn_gate"):
        architecture_from_config(rewritten, "model")
    with pytest.raises(InputError, match="moe_layers_enum must hold numbers of layers"):
        changed(moe_layers_enum="3,x")
    with pytest.raises(InputError, match="layer_types has 2 entries for 45 layers"):
        changed(layer_types=["full_attention"] * 2)
    with pytest.raises(UnsupportedError, match="layer type 'linear_attention'"):
        changed(layer_types=["linear_attention"] * 45)
    with pytest.raises(InputError, match="100 is not divisible by num_attention_groups 8"):
        changed(attention_other_setting={"num_attention_heads": 100})
    with pytest.raises(UnsupportedError, match="sink"):
        changed(sink=True)
