"""Vision towers and their projectors: how many parameters they hold, what they multiply, and how their processors cut images.

Bounds of an image's area stand in ``preprocessor_config.json``, which is not read: those published with the models are taken.
"""

from __future__ import annotations

from costmodel.architecture.images import (
    DynamicImage,
    FixedImage,
    LongestEdge,
    PooledImage,
    TiledImage,
)
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.vision import Projection, VisionTower

QWEN2_AREA = (56**2, 16_384 * 28**2)
"""``min_pixels`` and ``max_pixels`` of Qwen2-VL and Qwen2.5-VL (preprocessor_config.json of their checkpoints)."""
QWEN3_AREA = (256**2, 4096**2)
"""``size`` of Qwen3-VL (preprocessor_config.json: shortest_edge 65,536, longest_edge 16,777,216); taken for Qwen3.5 with its tower."""
LLAMA4_TILES = 16
"""``max_patches`` of image_processing_llama4.py."""
GEMMA3_MARKERS = 4
"""Two line ends, begin and end of the image (processing_gemma3.py)."""


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Return the parameters of a matrix, and of its bias."""
    return inputs * outputs + (outputs if bias else 0)


def encoder(width: int, inner: int, layers: int) -> int:
    """Return the parameters of ``layers`` pre-norm encoder layers with biases: q, k, v, output, two-matrix feed-forward, two LayerNorms."""
    layer = 4 * linear(width, width) + linear(width, inner) + linear(inner, width) + 4 * width
    return layers * layer


def read_heads(vision: ConfigReader, key: str, width: int, default: int | None = None) -> tuple[int, int]:
    """Return heads and the dimension of one."""
    heads = vision.integer(key, default=default)
    if width % heads:
        raise vision.fail(key, f"{heads} does not divide the width {width} of the tower")
    return heads, width // heads


def _siglip(
    vision: ConfigReader, projector: Projection, projector_parameters: int, pooled: int | None, markers: int
) -> VisionTower:
    """SigLIP tower and one matrix after it (modeling_siglip.py; absent keys as configuration_siglip.py).

    Decoders after it see all of an image at once: vLLM computes its tokens in one step (``is_mm_prefix_lm``, vllm/platforms/cuda.py).
    """
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=3072)
    layers, patch = vision.integer("num_hidden_layers", default=12), vision.integer("patch_size", default=16)
    image, channels = vision.integer("image_size", default=224), vision.integer("num_channels", default=3)
    heads, head = read_heads(vision, "num_attention_heads", width, 12)
    vision.require("vision_use_head", False, "the pooling head is not counted")
    vision.finish()
    patches = (image // patch) ** 2
    embeddings = linear(channels * patch**2, width) + patches * width
    return VisionTower(
        parameters=embeddings + encoder(width, inner, layers) + 2 * width + projector_parameters,
        patch_inputs=channels * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(projector,),
        rule=FixedImage(image, patch, patches if pooled is None else pooled, markers),
        undivided=True,
    )


def gemma3(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """SigLIP tower and projector of Gemma 3 (modeling_gemma3.py): patches are pooled to 256 tokens, then a norm and a matrix."""
    width, hidden = vision.integer("hidden_size", default=768), outer.integer("hidden_size")
    projector = Projection("projector", width, hidden)
    tokens = outer.integer("mm_tokens_per_image", default=256)
    return _siglip(vision, projector, width * hidden + width, tokens, GEMMA3_MARKERS)


def paligemma(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """SigLIP tower and projector of PaliGemma (modeling_paligemma.py): a token for every patch."""
    vision.ignore("projection_dim", "num_image_tokens", "num_positions", "projector_hidden_act")
    width, hidden = vision.integer("hidden_size", default=768), outer.integer("hidden_size")
    outer.require("projection_dim", hidden, "only features as wide as the decoder are")
    outer.ignore("vocab_size")
    return _siglip(vision, Projection("projector", width, hidden), linear(width, hidden), None, 0)


def llava(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """CLIP tower and projector of LLaVA 1.5 (modeling_clip.py, modeling_llava.py): a class token, norms before and after the layers.

    Layers after the one whose output is taken (``vision_feature_layer``, usually the last but one) are stored, and not computed.
    """
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=3072)
    layers, patch = vision.integer("num_hidden_layers", default=12), vision.integer("patch_size", default=32)
    image, channels = vision.integer("image_size", default=224), vision.integer("num_channels", default=3)
    heads, head = read_heads(vision, "num_attention_heads", width, 12)
    if vision.text("model_type", "clip_vision_model") != "clip_vision_model":
        raise vision.unsupported(
            f"towers of {vision.text('model_type', '')} are not read in LLaVA, only clip_vision_model"
        )
    vision.ignore("projection_dim", "vocab_size")
    vision.finish()
    taken = outer.get("vision_feature_layer")
    taken = -2 if taken is None else taken
    if isinstance(taken, bool) or not isinstance(taken, int) or not -layers - 1 <= taken <= layers:
        raise outer.fail("vision_feature_layer", f"must be the number of a layer, not {taken!r}")
    outer.require("vision_feature_select_strategy", "default", "only features without the class token are")
    outer.ignore("image_seq_length")
    hidden, bias = outer.integer("hidden_size"), outer.flag("multimodal_projector_bias", True)
    patches = (image // patch) ** 2
    embeddings = width + channels * patch**2 * width + (patches + 1) * width
    projector = linear(width, hidden, bias) + linear(hidden, hidden, bias)
    return VisionTower(
        parameters=embeddings + encoder(width, inner, layers) + 4 * width + projector,
        patch_inputs=channels * patch**2,
        hidden=width,
        intermediate=inner,
        layers=taken if taken >= 0 else layers + 1 + taken,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(Projection("projector.linear_1", width, hidden), Projection("projector.linear_2", hidden, hidden)),
        rule=FixedImage(image, patch, patches, class_tokens=1),
    )


def mistral3(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Pixtral tower and projector of Mistral Small 3.1 (modeling_pixtral.py, modeling_mistral3.py): no biases, gated feed-forward."""
    width, inner = vision.integer("hidden_size", default=1024), vision.integer("intermediate_size", default=4096)
    layers, patch = vision.integer("num_hidden_layers", default=24), vision.integer("patch_size", default=16)
    channels = vision.integer("num_channels", default=3)
    heads = vision.integer("num_attention_heads", default=16)
    if vision.integer("head_dim", default=width // heads) * heads != width:
        raise vision.fail(
            "head_dim", "times num_attention_heads differs from hidden_size, which the tower does not allow"
        )
    longest = vision.integer("image_size", default=1024)
    vision.finish()
    merge, hidden = outer.integer("spatial_merge_size", default=2), outer.integer("hidden_size")
    bias = outer.flag("multimodal_projector_bias", False)
    tower = linear(channels * patch**2, width, False) + width
    tower += layers * (4 * width**2 + 3 * width * inner + 2 * width)
    features = vision_features(outer)
    projector = width + linear(width * merge**2, width, False) + linear(width * features, hidden, bias)
    return VisionTower(
        parameters=tower + projector + linear(hidden, hidden, bias),
        patch_inputs=channels * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        gated=True,
        projector=(
            Projection("projector.merge", width * merge**2, width),
            Projection("projector.linear_1", width * features, hidden),
            Projection("projector.linear_2", hidden, hidden),
        ),
        rule=LongestEdge(patch, merge, longest),
    )


def vision_features(outer: ConfigReader) -> int:
    """Return how many of the tower's layers the projector concatenates (``vision_feature_layer``: a number, or a list)."""
    chosen = outer.get("vision_feature_layer")
    return len(chosen) if isinstance(chosen, list) else 1


def qwen2_vl(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower and merger of Qwen2-VL (modeling_qwen2_vl.py): two-matrix feed-forwards of ``mlp_ratio`` times the width."""
    layers, width = vision.integer("depth", default=32), vision.integer("embed_dim", default=1280)
    inner, out = width * vision.integer("mlp_ratio", default=4), vision.integer("hidden_size", default=3584)
    patch, frames = vision.integer("patch_size", default=14), vision.integer("temporal_patch_size", default=2)
    channels = vision.first_integer("in_channels", "in_chans", default=3)
    merge = vision.integer("spatial_merge_size", default=2)
    heads, head = read_heads(vision, "num_heads", width, 16)
    vision.ignore("spatial_patch_size")
    vision.finish()
    merged = width * merge**2
    embeddings = channels * frames * patch**2 * width
    projector = 2 * width + linear(merged, merged) + linear(merged, out)
    return VisionTower(
        parameters=embeddings + encoder(width, inner, layers) + projector,
        patch_inputs=channels * frames * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=_merger("merger", merged, out, 1),
        rule=DynamicImage(patch, merge, *QWEN2_AREA),
    )


def qwen2_5_vl(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower and merger of Qwen2.5-VL (modeling_qwen2_5_vl.py): gated feed-forwards with biases, RMSNorms, windows of 112 pixels.

    Layers in ``fullatt_block_indexes`` see the whole image, the others their window.
    """
    layers, width = vision.integer("depth", default=32), vision.integer("hidden_size", default=1280)
    inner, out = (
        vision.integer("intermediate_size", default=3420),
        vision.integer("out_hidden_size", default=outer.integer("hidden_size")),
    )
    patch, frames = vision.integer("patch_size", default=14), vision.integer("temporal_patch_size", default=2)
    channels = vision.first_integer("in_channels", "in_chans", default=3)
    merge, window = vision.integer("spatial_merge_size", default=2), vision.integer("window_size", default=112)
    heads, head = read_heads(vision, "num_heads", width, 16)
    full = vision.items("fullatt_block_indexes") or [7, 15, 23, 31]
    vision.ignore("spatial_patch_size", "tokens_per_second")
    vision.finish()
    merged, along = width * merge**2, window // merge // patch
    layer = 4 * linear(width, width) + 2 * linear(width, inner) + linear(inner, width) + 2 * width
    embeddings = channels * frames * patch**2 * width
    return VisionTower(
        parameters=embeddings + layers * layer + width + linear(merged, merged) + linear(merged, out),
        patch_inputs=channels * frames * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        gated=True,
        projector=_merger("merger", merged, out, 1),
        rule=DynamicImage(patch, merge, *QWEN2_AREA, window=along),
        windowed_layers=layers - len([index for index in full if isinstance(index, int) and 0 <= index < layers]),
        window=(along * merge) ** 2,
    )


def _merger(name: str, merged: int, out: int, count: int) -> tuple[Projection, ...]:
    """Return the two matrices of Qwen's patch merger."""
    return Projection(f"{name}.up", merged, merged, count), Projection(f"{name}.down", merged, out, count)


def qwen3_vl(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower, merger and deep-stack mergers of Qwen3-VL (modeling_qwen3_vl.py)."""
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    layers, patch = vision.integer("depth"), vision.integer("patch_size")
    frames, channels = vision.integer("temporal_patch_size", default=2), vision.integer("in_channels", default=3)
    positions, merge = vision.integer("num_position_embeddings"), vision.integer("spatial_merge_size", default=2)
    out, deep = vision.integer("out_hidden_size"), len(vision.items("deepstack_visual_indexes"))
    heads, head = read_heads(vision, "num_heads", width, 16)
    vision.finish()
    merged = width * merge**2
    merger = linear(merged, merged) + linear(merged, out)
    return VisionTower(
        parameters=linear(channels * frames * patch**2, width)
        + positions * width
        + encoder(width, inner, layers)
        + merger
        + 2 * width
        + deep * (merger + 2 * merged),
        patch_inputs=channels * frames * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=_merger("merger", merged, out, 1 + deep),
        rule=DynamicImage(patch, merge, *QWEN3_AREA),
    )


def kimi_k25(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """MoonViT tower and projector of Kimi K2.5 (modeling_kimi_k25.py, published with the checkpoint); its processor's rule is not read."""
    width, inner = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    layers, patch = vision.integer("vt_num_hidden_layers"), vision.integer("patch_size")
    height, length = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    heads, head = read_heads(vision, "vt_num_attention_heads", width, 16)
    kernel = vision.items("merge_kernel_size")
    vision.require("pos_emb_type", "divided_fixed", "only the fixed-time position embedding is")
    vision.require("mm_projector_type", "patchmerger", "only the patch merger is")
    vision.ignore(
        "init_pos_emb_time",
        "merge_type",
        "video_attn_type",
        "mm_hidden_size",
        "text_hidden_size",
    )
    vision.ignore("projector_ln_eps")
    vision.finish()
    merged, hidden = width * int(kernel[0]) * int(kernel[1]), outer.integer("hidden_size")
    tower = linear(3 * patch**2, width) + height * length * width + encoder(width, inner, layers) + 2 * width
    return VisionTower(
        parameters=tower + 2 * width + linear(merged, merged) + linear(merged, hidden),
        patch_inputs=3 * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=_merger("merger", merged, hidden, 1),
        rule=None,
    )


def gemma4(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower and projector of Gemma 4 (modeling_gemma4.py): gated feed-forwards, four norms a layer, norms on heads of q and k, no biases.

    Positions are two tables of ``position_embedding_size``; ``standardize`` adds a mean and a scale of the tower's width.
    """
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=3072)
    layers, patch = vision.integer("num_hidden_layers", default=16), vision.integer("patch_size", default=16)
    heads = vision.integer("num_attention_heads", default=12)
    head = vision.integer("head_dim", default=64)
    keys = vision.integer("num_key_value_heads", default=heads)
    positions = vision.integer("position_embedding_size", default=10_240)
    vision.require("attention_bias", False, "biases in the tower are not counted")
    vision.require("use_clipped_linears", False, "clipped projections are not counted")
    standardised = vision.flag("standardize", False)
    pooling = vision.integer("pooling_kernel_size", default=3)
    vision.ignore("global_head_dim", "default_output_length", "image_seq_length")
    vision.ignore("video_seq_length", "chunk_size_feed_forward")
    tokens, hidden = outer.integer("vision_soft_tokens_per_image", default=280), outer.integer("hidden_size")
    text = outer.get("text_config")
    sees_images_whole = isinstance(text, dict) and text.get("use_bidirectional_attention") == "vision"
    outer.ignore("audio_config")
    if outer.get("audio_config") is not None:
        raise outer.unsupported("audio_config: audio towers are not counted")
    vision.finish()
    layer = width * head * (2 * heads + 2 * keys) + 3 * width * inner + 4 * width + 2 * head
    tower = 2 * positions * width + 3 * patch**2 * width + layers * layer + (2 * width if standardised else 0)
    return VisionTower(
        parameters=tower + width * hidden,
        patch_inputs=3 * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=keys,
        head_dim=head,
        gated=True,
        projector=(Projection("projector", width, hidden),),
        rule=PooledImage(patch, pooling, tokens),
        undivided=sees_images_whole,
    )


def llama4(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower, adapter and projector of Llama 4 (modeling_llama4.py): a class token, learned positions, an adapter of two matrices."""
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=5632)
    layers, patch = vision.integer("num_hidden_layers", default=34), vision.integer("patch_size", default=14)
    image, channels = vision.integer("image_size", default=448), vision.integer("num_channels", default=3)
    out = vision.integer("vision_output_dim", default=7680)
    into, outwards = (vision.integer(f"projector_{way}_dim", default=4096) for way in ("input", "output"))
    heads, head = read_heads(vision, "num_attention_heads", width, 16)
    ratio = vision.get("pixel_shuffle_ratio")
    if ratio is not None and (not isinstance(ratio, int | float) or not 0 < ratio <= 1 or (1 / ratio) % 1):
        raise vision.fail("pixel_shuffle_ratio", f"must be one part of a whole number, not {ratio!r}")
    vision.ignore("projector_dropout", "multi_modal_projector_bias")
    vision.ignore("vision_feature_layer", "vision_feature_select_strategy")
    vision.finish()
    hidden = outer.integer("hidden_size")
    embeddings = width + ((image // patch) ** 2 + 1) * width + channels * patch**2 * width + 4 * width
    adapter = inner * into + outwards**2
    return VisionTower(
        parameters=embeddings + encoder(width, inner, layers) + adapter + out * hidden,
        patch_inputs=channels * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(
            Projection("adapter.fc1", inner, into),
            Projection("adapter.fc2", outwards, outwards),
            Projection("projector", out, hidden),
        ),
        rule=TiledImage(image, patch, int(1 / (0.5 if ratio is None else ratio)), LLAMA4_TILES),
    )
