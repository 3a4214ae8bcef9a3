"""FLOPs of encoders and of cross-attention are those that torch counts in the reference classes of transformers.

Tiny models on a CPU, so that windows and masks are real. Counted are matrix products and convolutions, those of ``eager`` attention too.
Where a class computes something else, the test says what.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.building import roofline_parameters
from costmodel.deployment import Deployment, deploy_architecture
from costmodel.encoder import ImageLoad, encoder_operators, encoder_parameters, make_images, with_states
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, make_work

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[1] / "architecture" / "reference_counts.json"
CONFIGS = {name: each["config"] for name, each in json.loads(PAGE.read_text(encoding="utf-8"))["models"].items()}
SIZES = {"gemma3": (28, 28), "llava": (28, 28), "paligemma": (28, 28), "qwen2_vl": (40, 56), "qwen2_5_vl": (104, 72)}


def deployed(name: str) -> Deployment:
    return deploy_architecture(architecture_from_config(CONFIGS[name], name), "h100")


def counted(run: Any) -> int:
    """Return the FLOPs of what a function computes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def model_of(name: str) -> Any:
    """Return the reference class with random weights."""
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq

    classes = AutoModelForSpeechSeq2Seq if name == "whisper" else AutoModelForImageTextToText
    config = AutoConfig.for_model(**CONFIGS[name])
    return classes.from_config(config, attn_implementation="eager").eval().float()


def encoding(deployment: Deployment, images: ImageLoad) -> dict[str, float]:
    operators = encoder_operators(encoder_parameters(deployment), images.work(images.count))
    return {operator.name: operator.flops for operator in operators}


@pytest.mark.parametrize("name", ["gemma3", "llava", "paligemma"])
@pytest.mark.parametrize("number", [1, 3])
def test_fixed_towers(name: str, number: int) -> None:
    import torch

    model, deployment = model_of(name), deployed(name)
    side = CONFIGS[name]["vision_config"]["image_size"]
    expected = counted(lambda: model.model.get_image_features(torch.randn(number, 3, side, side)))
    images = make_images(deployment, number, (side, side))
    assert images is not None
    found = encoding(deployment, images)
    if name == "llava":  # the class computes the layer whose output nobody takes
        tower = deployment.architecture.vision
        assert tower is not None
        layers = ("qkv_proj", "o_proj", "up_proj", "down_proj", "prefill_attention")
        for layer in layers:
            found[f"encoder.{layer}"] *= (tower.layers + 1) / tower.layers
        found["encoder.patch_embed"] *= (images.each.patches - 1) / images.each.patches  # the class token is no patch
    assert sum(found.values()) == expected


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("grid", [(4, 6), (14, 18), (18, 34)])
def test_towers_of_any_resolution(name: str, grid: tuple[int, int]) -> None:
    """Grids of patches: 34 by 18 are not whole windows of 8 by 8."""
    import torch

    model, deployment = model_of(name), deployed(name)
    rows, columns = grid
    tower = deployment.architecture.vision
    assert tower is not None
    pixels = torch.randn(rows * columns, int(tower.patch_inputs))
    expected = counted(lambda: model.model.get_image_features(pixels, torch.tensor([[1, rows, columns]])))
    patch = CONFIGS[name]["vision_config"]["patch_size"]
    rule = tower.rule
    assert rule is not None
    each = type(rule)(patch, 2, 1, 10**9, getattr(rule, "window", 0))(columns * patch, rows * patch)
    assert each.patches == rows * columns
    assert sum(encoding(deployment, ImageLoad(1, 1, 1, each, tower.window)).values()) == expected


def test_whisper() -> None:
    """The encoder, and a prompt of seven tokens that attends to its states, keys and values of which are made once."""
    import torch

    model, deployment = model_of("whisper"), deployed("whisper")
    audio = make_images(deployment, 0)
    assert audio is not None
    config = CONFIGS["whisper"]
    states, width = config["max_source_positions"], config["d_model"]
    mels = torch.randn(1, config["num_mel_bins"], 2 * states)
    found = encoding(deployment, audio)
    crossing = found.pop("encoder.cross.kv_proj")
    assert sum(found.values()) == counted(lambda: model.model.encoder(mels))
    served = with_states(deployment, audio)
    parameters = roofline_parameters(served)
    work = make_work([Chunk(7)], windows=parameters.windows)
    operators = {item.name: item.flops for item in step_operators(parameters, work) if item.group != "lm_head"}
    # eager attention multiplies the whole square of a prompt, not its causal half.
    square = operators.pop("prefill_attention") * 2 * 7 / 8
    encoded = torch.randn(1, states, width)
    ids = torch.arange(7).unsqueeze(0)
    expected = counted(lambda: model.model.decoder(input_ids=ids, encoder_hidden_states=encoded))
    assert sum(operators.values()) + square + crossing == expected


def test_llama_3_2_vision() -> None:
    """The tower over four tiles, one of them in use, and a prompt of five tokens that attends to its states."""
    import torch

    model, deployment = model_of("mllama"), deployed("mllama")
    config = CONFIGS["mllama"]["vision_config"]
    side, tiles = config["image_size"], config["max_num_tiles"]
    images = make_images(deployment, 1, (side, side))
    assert images is not None
    found = encoding(deployment, images)
    crossing, projector = found.pop("encoder.cross.kv_proj"), found.pop("encoder.projector")
    pixels = torch.randn(1, 1, tiles, 3, side, side)
    mask, ratio = torch.tensor([[[1] + [0] * (tiles - 1)]]), torch.tensor([[1]])
    expected = counted(lambda: model.model.vision_model(pixels, ratio, mask))
    # Padded patches pass the layers, and no embedding: 49 patches and a class token are padded to 56.
    patches = (side // config["patch_size"]) ** 2
    found["encoder.patch_embed"] *= tiles * patches / images.each.patches
    mask_product = 2 * images.each.pairs  # the class multiplies its mask by itself
    assert sum(found.values()) + mask_product == expected
    served = with_states(deployment, images)
    parameters = roofline_parameters(served)
    work = make_work([Chunk(5)], windows=parameters.windows)
    operators = {item.name: item.flops for item in step_operators(parameters, work) if item.group != "lm_head"}
    square = operators.pop("prefill_attention") * 2 * 5 / 6
    states = torch.randn(1, images.each.features, CONFIGS["mllama"]["text_config"]["hidden_size"])
    ids = torch.arange(5).unsqueeze(0)
    decoder = counted(lambda: model.model.language_model(input_ids=ids, cross_attention_states=states))
    assert sum(operators.values()) + square + crossing == decoder
    assert projector == 2 * config["vision_output_dim"] * states.shape[-1] * images.each.features
