"""Kimi K3 and Kimi Linear: counts, states, cache, kernels and attention residuals against a hand count."""

import pytest

from costmodel.architecture.counts import (
    active_parameters,
    kv_bytes_per_token,
    layer_parameters,
    parameter_table,
    state_bytes,
    total_parameters,
)
from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.linears import layer_linears
from costmodel.architecture.source import load_model, preset_config
from costmodel.building import build_parameters
from costmodel.building.residuals import blocks_seen, residual_blocks
from costmodel.deployment import deploy_architecture
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.memory.activations import layer_bytes
from costmodel.memory.blocks import kv_groups
from costmodel.memory.rules import vllm_rules

K3 = load_model("Kimi-K3")[0]
HIDDEN, HEADS, DIM = 7168, 96, 128
WIDTH = HEADS * DIM
EXPERT, LATENT = 3 * 3584 * 3072, 3584

# Defaults of configuration_kimi_linear.py, which are those of Kimi-Linear-48B-A3B.
LINEAR = {
    "model_type": "kimi_linear",
    "vocab_size": 163_840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "model_max_length": 1_048_576,
    "dtype": "bfloat16",
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 27) if n % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}


def operators(chunks=(), decodes=(), tp=1, gpu="b300", arch=K3, **options):
    deployment = deploy_architecture(arch, gpu, tp=tp, **options)
    parameters = build_parameters(deployment)
    return {item.name: item for item in step_operators(parameters, make_work(chunks, decodes, parameters.windows))}


def changed(**keys):
    config = preset_config("Kimi-K3")
    return architecture_from_config({**config, "text_config": {**config["text_config"], **keys}}, "model")


def test_parameters_of_the_layers_of_k3():
    """69 layers of KDA, 24 of gated latent attention, the last two both; the first dense; "2.78T", "104B" without the embedding."""
    delta = (4 * WIDTH + DIM + HEADS) * HIDDEN + DIM * WIDTH + WIDTH * HIDDEN  # q, k, v, g, f_a, b; f_b; output
    delta += 4 * 3 * WIDTH + WIDTH + HEADS + DIM  # convolution, dt_bias, A_log, norm of outputs
    latent = HIDDEN * 1536 + 1536 * HEADS * 192 + HIDDEN * 576 + 512 * HEADS * 256 + HIDDEN * WIDTH + WIDTH * HIDDEN
    latent += 1536 + 512  # norms of the latents
    around = 4 * HIDDEN + 2 * HIDDEN  # norms of the layer and of its attention residuals, their vectors
    experts = 896 * EXPERT + 2 * HIDDEN * LATENT + LATENT + 3 * HIDDEN * 6144 + 896 * HIDDEN + 896
    dense, sparse, full = K3.kinds
    assert layer_parameters(dense, HIDDEN) == delta + around + 3 * HIDDEN * 33_792
    assert layer_parameters(sparse, HIDDEN) == delta + around + experts
    assert layer_parameters(full, HIDDEN) == latent + around + experts
    assert K3.pattern == (0, *(2 if n % 4 == 3 or n == 92 else 1 for n in range(1, 93)))
    layers = layer_parameters(dense, HIDDEN) + 68 * (delta + around + experts) + 24 * (latent + around + experts)
    text = layers + 2 * 163_840 * HIDDEN + HIDDEN + 2 * HIDDEN
    tower = 3 * 14**2 * 1024 + 64 * 64 * 1024 + 27 * (4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024) + 1024
    assert total_parameters(K3) == text + tower + 4096**2 + 4096 * HIDDEN + HIDDEN
    assert active_parameters(K3) == text - 92 * 880 * EXPERT
    assert round((active_parameters(K3) - 163_840 * HIDDEN) / 1e9) == 104


def test_experts_in_4_bits_and_all_else_in_16():
    """As others read it off the checkpoint: 1.45 TB of experts, a trunk of 108.81 GB with convolutions in 32 bits, 4.70 GB beside it."""
    stored = {row.module: row for row in parameter_table(K3)}
    assert {name for name, row in stored.items() if row.format != "bf16"} == {"experts"}
    assert stored["experts"].bytes == 92 * 896 * EXPERT * (4 + 8 / 32) / 8
    trunk = sum(
        stored[name].bytes for name in ("attention", "feed-forward", "router", "shared expert", "norms, biases, sinks")
    )
    assert (trunk + 69 * 4 * 3 * WIDTH * 2) / 1e9 == pytest.approx(108.81, abs=0.005)
    assert (stored["embedding"].bytes + stored["lm_head"].bytes) / 1e9 == pytest.approx(4.70, abs=0.005)
    assert (stored["experts"].bytes) / 1e12 == pytest.approx(1.45, abs=0.005)


def test_kimi_linear_equals_the_class():
    """KimiLinearForCausalLM of transformers 5.19 on the meta device, and correction biases; its gate goes through a rank of 128."""
    arch = architecture_from_config(LINEAR, "model")
    assert total_parameters(arch) == 49_122_675_072 + 256 * 26
    assert (arch.max_positions, arch.residual_block) == (1_048_576, 0)
    names = [linear.name for linear in layer_linears(arch.kinds[0], 2304)]
    assert names[:4] == ["in_proj", "f_b_proj", "g_b_proj", "out_proj"]


def test_states_in_32_bits_and_latents_without_rotation():
    """96 states of 128 × 128 in 32 bits, three inputs of a convolution over 3·12,288 channels in 16; 576 elements of 24 layers a token."""
    assert state_bytes(K3) == 69 * (96 * 128 * 128 * 4 + 3 * 3 * WIDTH * 2)
    assert state_bytes(K3, tp=8) == state_bytes(K3) / 8
    assert kv_bytes_per_token(K3) == kv_bytes_per_token(K3, tp=8) == 24 * 576 * 2
    assert not K3.rotary


def test_groups_of_blocks():
    """A block of latents is as large as a state, in multiples of 128 tokens; 69 recurrent layers are in groups of 24 and 23."""
    groups = kv_groups(deploy_architecture(K3, "b300", tp=8), 16)
    state = (96 * 128 * 128 * 4 + 3 * 3 * WIDTH * 2) / 8
    tokens = -(-state // (128 * 1152)) * 128
    assert [(group.block_tokens, len(group.layers), group.states) for group in groups] == [
        (tokens, 24, 0),
        *[(tokens, 23, 2)] * 3,
    ]
    assert {page for group in groups for _, page in group.layers} == {tokens * 1152}


@pytest.mark.parametrize("tp", [1, 8])
def test_kda_in_decode(tp):
    """A gated delta net's FLOPs; its state read and written, and per token channels, gate, outputs and a decay for each row."""
    found = operators(decodes=[Decodes(10, 500)], tp=tp)["decode_kda"]
    state = 96 * 128 * 128 * 4 + 3 * 3 * WIDTH * 2
    io = (3 * WIDTH + 2 * WIDTH + WIDTH) * 2
    assert found.flops == 69 * 10 * (7 * 96 * 128 * 128 + 2 * 4 * 3 * WIDTH) / tp
    assert found.bytes == 69 * (10 * (2 * state + io) + 4 * 3 * WIDTH * 2) / tp


def test_kda_in_prefill():
    found = operators([Chunk(4000)])["prefill_kda"]
    assert found.flops == 69 * 4000 * (96 * (6 * 128 * 128 + 64 * 5 * 128) + 2 * 4 * 3 * WIDTH)


def test_gated_latent_attention():
    found = operators(decodes=[Decodes(2, 999)])
    assert found["decode_attention"].flops == 24 * 2 * 1000 * 2 * 96 * (2 * 512 + 64)
    assert found["g_proj"].flops == 24 * 2 * 2 * HIDDEN * WIDTH
    assert found["latent_in_proj"].flops == 92 * 2 * 2 * HIDDEN * LATENT


def test_attention_residuals_by_going_through_the_layers():
    """Blocks of 12 layers: those before a layer, its own once begun, all eight at the end; two products of d for each source."""
    assert (residual_blocks(K3), residual_blocks(K3, 12), residual_blocks(K3, 13)) == (8, 1, 2)
    seen, kept = [], 0
    for layer in range(93):
        seen.append(kept)
        kept += layer % 12 == 0
        seen.append(kept)
    seen.append(kept)
    assert blocks_seen(K3) == sum(seen)
    found = operators(decodes=[Decodes(5, 100)])["attn_res"]
    assert found.flops == pytest.approx(5 * 4 * HIDDEN * sum(count + 1 for count in seen))
    weights = 2 * 93 * HIDDEN * 2
    assert found.bytes == pytest.approx(5 * HIDDEN * 2 * (sum(seen) + 8) + weights)
    assert "attn_res" not in operators(decodes=[Decodes(5, 100)], arch=architecture_from_config(LINEAR, "model"))


def test_sums_of_experts_travel_with_those_of_the_shared_one():
    """93 sums after attention and one after the dense layer; 92 of d and the latent width together."""
    found = {item.name: item for item in build_parameters(deploy_architecture(K3, "b300", tp=8)).transfers}
    assert (found["all_reduce"].count, found["latent_reduce"].count) == (94, 92)
    assert found["latent_reduce"].bytes_per_token / found["all_reduce"].bytes_per_token == (HIDDEN + LATENT) / HIDDEN


def test_stages_of_a_pipeline_send_the_blocks_too():
    """After 46 layers there are four blocks beside the running sum."""
    found = {item.name: item for item in build_parameters(deploy_architecture(K3, "b300", tp=8, pp=2)).transfers}
    assert found["pipeline_send"].bytes_per_token == 5 * HIDDEN * 2 / 8


def test_blocks_of_residuals_take_memory():
    deployment = deploy_architecture(K3, "b300", tp=8)
    more = layer_bytes(deployment, 16_384, vllm_rules())
    without = layer_bytes(deploy_architecture(changed(attn_res_block_size=None), "b300", tp=8), 16_384, vllm_rules())
    assert more - without == pytest.approx(16_384 * 8 * HIDDEN * 2)


def test_what_differs_is_refused():
    section = preset_config("Kimi-K3")["text_config"]["linear_attn_config"]
    with pytest.raises(UnsupportedError, match="mla_use_nope"):
        changed(mla_use_nope=False)
    with pytest.raises(InputError, match="each of the layers 1 to 93 once"):
        changed(linear_attn_config={**section, "kda_layers": section["kda_layers"][1:]})
    with pytest.raises(InputError, match="num_experts_per_token 1000 is more than the 896 experts"):
        changed(num_experts_per_token=1000)
    with pytest.raises(UnsupportedError, match="new_head_size"):
        changed(linear_attn_config={**section, "new_head_size": 3})
