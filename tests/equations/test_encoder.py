"""The encoder of images and cross-attention: FLOPs, bytes and states against hand counts; limits and monotony."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import deploy, deploy_architecture
from costmodel.encoder import encoder_operators, encoder_parameters, make_images, with_states
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, EncoderStates, make_work
from costmodel.rungs import total_seconds
from tests.architecture.vision_configs import LLAMA32_VISION, LLAVA, QWEN25_VL, WHISPER

GEMMA = "gemma-3-4b-it"


def deployed(config, tp=1):
    return deploy_architecture(architecture_from_config(config, "model"), "h100", tp=tp)


def encoded(deployment, images=1, size=(1024, 1024)):
    load = make_images(deployment, images, size)
    return {item.name: item for item in encoder_operators(encoder_parameters(deployment), load.work(images))}


@pytest.mark.parametrize(("images", "tp"), [(1, 1), (3, 1), (2, 4)])
def test_siglip_of_gemma_3(images, tp):
    """27 layers of 1,152 and 4,304, 16 heads of 72; 4,096 patches of 3·14² numbers; 256 features into 2,560."""
    found = encoded(deploy(GEMMA, "h100", tp=tp), images)
    patches = 4096 * images
    assert found["encoder.patch_embed"].flops == 2 * 588 * 1152 * patches
    assert found["encoder.qkv_proj"].flops == 27 * 2 * 1152 * 3 * 1152 * patches / tp
    assert found["encoder.up_proj"].flops == 27 * 2 * 1152 * 4304 * patches / tp
    assert found["encoder.projector"].flops == 2 * 1152 * 2560 * 256 * images / tp
    attention = found["encoder.prefill_attention"]
    assert attention.flops == 27 * 4 * 1152 * 4096**2 * images / tp
    assert attention.bytes == 27 * 2 * 1152 * 2 * patches / tp
    qkv = 1152 * 3 * 1152 / tp
    assert found["encoder.qkv_proj"].bytes == 27 * 2 * (qkv + (1152 + 3 * 1152 / tp) * patches)


def test_a_whole_image_is_two_flops_per_parameter_and_patch_and_its_pairs():
    """Gemma 3: 5.45 TFLOP an image, of which 2.09 are attention; positions and norms multiply nothing."""
    found = encoded(deploy(GEMMA, "h100"))
    assert sum(item.flops for item in found.values()) == pytest.approx(5.464e12, rel=1e-3)
    assert found["encoder.prefill_attention"].flops == pytest.approx(2.087e12, rel=1e-3)


def test_windows_of_qwen2_5_vl():
    """28 of 32 layers see windows of 64 patches; 1036 × 1036 pixels are 5,476 patches; gated feed-forwards of 3,420."""
    found = encoded(deployed(QWEN25_VL))
    along = [4] * 9 + [1]
    windows = sum((4 * a * b) ** 2 for a in along for b in along)
    assert found["encoder.prefill_attention.full"].flops == 4 * 4 * 1280 * 5476**2
    assert found["encoder.prefill_attention.window"].flops == 28 * 4 * 1280 * windows
    assert found["encoder.gate_up_proj"].flops == 32 * 2 * 1280 * 2 * 3420 * 5476
    assert found["encoder.merger.up"].flops == 2 * 5120 * 5120 * 1369
    assert found["encoder.merger.down"].flops == 2 * 5120 * 3584 * 1369


def test_llava_projects_features_twice():
    found = encoded(deployed(LLAVA), 2)
    assert found["encoder.projector.linear_1"].flops == 2 * 2 * 576 * 1024 * 4096
    assert found["encoder.projector.linear_2"].flops == 2 * 2 * 576 * 4096 * 4096
    assert found["encoder.prefill_attention"].flops == 2 * 23 * 4 * 1024 * 577**2


def test_a_tower_that_tp_does_not_divide_is_whole_on_every_gpu():
    """Whisper's 20 heads over 8 GPUs of a decoder that would take them."""
    whole = encoded(deploy(GEMMA, "h100"))
    arch = deploy(GEMMA, "h100").architecture
    odd = replace(arch, vision=replace(arch.vision, heads=9, kv_heads=9, head_dim=128))
    found = encoded(deploy_architecture(odd, "h100", tp=2))
    assert found["encoder.qkv_proj"].flops == whole["encoder.qkv_proj"].flops
    assert "encoder.all_reduce" not in found
    assert encoded(deploy(GEMMA, "h100", tp=2))["encoder.all_reduce"].bytes == 2 * 27 * 1152 * 2 * 4096


def steps(deployment, chunks=(), decodes=()):
    parameters = build_parameters(deployment)
    work = make_work(chunks, decodes, parameters.windows)
    return {item.name: item for item in step_operators(parameters, work)}


@pytest.mark.parametrize("tp", [1, 4])
def test_cross_attention_of_llama_3_2_vision(tp):
    """8 layers: each query sees the 6,404 states of four tiles, whose keys and values of 8 heads of 128 every step reads again."""
    plain = deployed(LLAMA32_VISION, tp)
    images = make_images(plain, 1, (1120, 1120))
    found = steps(with_states(plain, images), [Chunk(100, 50)], [Decodes(7, 900)])
    states = 4 * 1601
    assert found["prefill_cross_attention"].flops == 8 * 4 * 32 * 128 * 100 * states / tp
    assert found["prefill_cross_attention"].bytes == 8 * 2 * 8 * 128 * 2 * states / tp
    assert found["decode_cross_attention"].flops == 8 * 4 * 32 * 128 * 7 * states / tp
    assert found["decode_cross_attention"].bytes == 8 * 2 * 8 * 128 * 2 * 7 * states / tp
    assert found["cross.q_proj"].flops == 8 * 2 * 4096 * 4096 * 107 / tp
    assert found["cross.o_proj"].flops == found["cross.q_proj"].flops
    assert found["gate_up_proj"].flops == 40 * 2 * 4096 * 2 * 14_336 * 107 / tp
    assert found["qkv_proj"].flops == 32 * 2 * 4096 * (32 + 16) * 128 * 107 / tp
    encoder = encoded(plain)
    assert encoder["encoder.cross.kv_proj"].flops == 8 * 2 * 4096 * 2 * 8 * 128 * states / tp
    assert encoder["encoder.projector"].flops == 2 * 7680 * 4096 * states / tp


def test_without_images_layers_of_cross_attention_are_left_out():
    """What is left are the layers of Llama-3.1-8B."""
    found, llama = steps(deployed(LLAMA32_VISION), [Chunk(100)]), steps(deploy("Llama-3.1-8B", "h100"), [Chunk(100)])
    assert {name: item.flops for name, item in found.items()} == {name: item.flops for name, item in llama.items()}


def test_whisper_attends_to_1500_states():
    """32 layers of 20 heads of 64, in the decoder once to itself and once to the encoder."""
    plain = deployed(WHISPER)
    audio = make_images(plain, 0)
    deployment = with_states(plain, audio)
    found = steps(deployment, decodes=[Decodes(5, 99)])
    assert found["decode_attention"].flops == 32 * 4 * 1280 * 5 * 100
    assert found["decode_cross_attention"].flops == 32 * 4 * 1280 * 5 * 1500
    assert found["decode_cross_attention"].bytes == 32 * 2 * 1280 * 2 * 5 * 1500
    assert found["up_proj"].flops == 32 * 2 * 1280 * 5120 * 5
    encoder = {item.name: item for item in encoder_operators(encoder_parameters(deployment), audio.work(1))}
    convolutions = 2 * (2 * 3 * 128 * 1280 + 3 * 1280 * 1280) * 1500
    assert encoder["encoder.patch_embed"].flops == convolutions
    assert encoder["encoder.prefill_attention"].flops == 32 * 4 * 1280 * 1500**2
    assert encoder["encoder.cross.kv_proj"].flops == 32 * 2 * 1280 * 2560 * 1500


def test_the_work_of_cross_attention_does_not_grow_with_the_context():
    window = EncoderStates(300)
    work = make_work([Chunk(10, 5), Chunk(0)], [Decodes(4, 999)], [window])
    assert (work.pairs[window], work.prefill_kv[window], work.decode_kv[window]) == (3000, 300, 1200)


@settings(max_examples=30, deadline=None)
@given(
    images=st.integers(1, 20),
    width=st.integers(200, 3000),
    height=st.integers(200, 3000),
    more=st.integers(30, 2000),
)
def test_more_and_larger_images_take_no_less_time(images, width, height, more):
    deployment = deployed(QWEN25_VL)
    parameters = encoder_parameters(deployment)

    def seconds(count, across):
        load = make_images(deployment, count, (across, height))
        return total_seconds(encoder_operators(parameters, load.work(count)))

    assert seconds(images, width) < seconds(images + 1, width)
    assert seconds(images, width) <= seconds(images, width + more)


def test_parameters_without_images_have_no_encoder():
    assert roofline_parameters(deploy(GEMMA, "h100")).encoder is None
