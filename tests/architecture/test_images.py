"""How images become patches and tokens: published examples, hand counts, and the limits of every rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.images import (
    CrossTiles,
    DynamicImage,
    FixedImage,
    LongestEdge,
    PooledImage,
    TiledImage,
    best_grid,
)
from costmodel.architecture.source import load_model
from costmodel.architecture.towers import QWEN2_AREA, QWEN3_AREA
from costmodel.hardware.errors import InputError
from tests.architecture.vision_configs import LLAVA, QWEN25_VL

QWEN2 = DynamicImage(14, 2, *QWEN2_AREA)
SIDES = st.integers(1, 8000)


def test_qwen2_vl_counts_a_token_for_every_28_pixels_squared():
    """The model card of Qwen2-VL: 4 to 16,384 tokens an image; 224 × 224 pixels are 8 × 8 = 64 (arXiv:2409.12191: 66 with both markers)."""
    image = QWEN2(224, 224)
    assert (image.patches, image.features, image.tokens) == (256, 64, 66)
    assert QWEN2(1, 1).features == 4
    assert QWEN2(50_000, 50_000).features == 128 * 128
    assert QWEN2(1024, 1024).features == 37 * 37  # 1036 × 1036
    assert QWEN2(1920, 1080).features == 69 * 39  # 1932 × 1092


def test_windows_of_qwen2_5_vl_see_64_patches():
    """112 pixels are 8 × 8 patches; of 37 × 37 merged patches nine windows along a side are whole and one has a single row."""
    rule = DynamicImage(14, 2, *QWEN2_AREA, window=4)
    assert rule(224, 224).windowed_pairs == 4 * 64**2
    along = [4] * 9 + [1]
    assert rule(1024, 1024).windowed_pairs == sum((4 * a * b) ** 2 for a in along for b in along)


def test_gemma_3_has_256_tokens_whatever_the_image():
    arch, _ = load_model("gemma-3-4b-it")
    assert arch.vision.rule(100, 3000) == FixedImage(896, 14, 256, 4)(1, 1)
    assert arch.vision.rule(1, 1).sequences == (4096,)


def test_pixtral_has_a_break_after_every_row():
    """arXiv:2410.07073, with the merging of Mistral Small 3.1: 1024 × 1024 are 37 rows of 37 tokens and a break or end."""
    assert LongestEdge(14, 2, 1540)(1024, 1024).tokens == 37 * 38
    assert LongestEdge(14, 2, 1540)(3080, 1540).features == 55 * 28


def test_gemma_4_stays_within_280_tokens():
    assert PooledImage(16, 3, 280)(1024, 1024).features == 16 * 16
    assert PooledImage(16, 3, 280)(48 * 280, 48).features == 280


def test_llama_4_cuts_tiles_and_adds_an_overview():
    """Four tiles of 144 tokens, an overview, a separator after every tile, begin, image and end: processing_llama4.py."""
    rule = TiledImage(336, 14, 2, 16)
    image = rule(672, 672)
    assert image.sequences == (577,) * 5
    assert (image.features, image.tokens) == (5 * 144, 5 * 144 + 4 + 3)
    assert rule(336, 336).tokens == 144 + 3


def test_the_best_grid_is_that_of_the_processors():
    """The example of get_best_fit in image_processing_llama4.py, with up to three tiles of 224: 300 × 200 pixels go into 448 × 224."""
    assert best_grid(300, 200, 224, 3) == (1, 2)
    assert best_grid(10_000, 100, 336, 16) == (1, 16)


def test_llama_3_2_vision_puts_one_token_into_the_prompt():
    """Four tiles of 560 pixels are 4 × 1,601 states; the tower runs over four tiles padded to 1,608 (modeling_mllama.py)."""
    image = CrossTiles(560, 14, 4)(1120, 1120)
    assert (image.sequences, image.features, image.tokens) == ((4 * 1608,), 4 * 1601, 1)
    assert CrossTiles(560, 14, 4)(560, 560).features == 1601


def test_llava_drops_the_class_token_and_the_last_layer():
    tower = architecture_from_config(LLAVA, "llava").vision
    assert (tower.rule(640, 480).sequences, tower.rule(640, 480).tokens, tower.layers) == ((577,), 576, 23)


def test_a_configuration_with_flat_keys_is_read_as_one_with_a_text_section():
    """Qwen2.5-VL was published with the text decoder's keys beside ``vision_config``, and written later with ``text_config``."""
    text = {key: value for key, value in QWEN25_VL.items() if key not in ("model_type", "vision_config")}
    nested = {**QWEN25_VL, "text_config": {**text, "model_type": "qwen2_5_vl_text"}}
    for key in text:
        del nested[key]
    nested["tie_word_embeddings"] = False
    assert architecture_from_config(nested, "q").kinds == architecture_from_config(QWEN25_VL, "q").kinds


@pytest.mark.parametrize(
    "rule",
    [
        QWEN2,
        DynamicImage(16, 2, *QWEN3_AREA),
        LongestEdge(14, 2, 1540),
        PooledImage(16, 3, 280),
        TiledImage(336, 14, 2, 16),
    ],
)
@given(width=SIDES, height=SIDES)
def test_every_image_has_tokens_and_patches(rule, width, height):
    if max(width, height) > 200 * min(width, height):
        width = height
    image = rule(width, height)
    turned = rule(height, width)
    assert 0 < image.features <= image.patches
    assert image.tokens >= image.features
    assert image.pairs <= image.patches**2
    assert (turned.features, turned.pairs) == (image.features, image.pairs)


@given(width=st.integers(28, 4000), height=st.integers(28, 4000), more=st.integers(28, 2000))
def test_a_larger_image_has_no_fewer_tokens_while_it_is_not_shrunk(width, height, more):
    if (width + more) * (height + more) > 0.9 * QWEN2_AREA[1] or max(width, height) > 100 * min(width, height):
        return
    assert QWEN2(width + more, height + more).features >= QWEN2(width, height).features


@given(width=st.integers(28, 6000), height=st.integers(28, 6000))
def test_areas_keep_within_the_bounds_of_qwen(width, height):
    if max(width, height) > 100 * min(width, height):
        return
    image = QWEN2(width, height)
    assert QWEN2_AREA[0] <= image.width * image.height <= QWEN2_AREA[1]
    if 1.1 * QWEN2_AREA[0] <= width * height <= 0.9 * QWEN2_AREA[1]:
        assert abs(image.width - width) <= 14


def test_sides_that_differ_too_much_are_refused():
    with pytest.raises(InputError, match="200 times"):
        QWEN2(5000, 20)
