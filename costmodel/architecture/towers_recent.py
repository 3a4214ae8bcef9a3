"""Vision towers of MiniMax-M3, Step-3.7 and Kimi K3, whose projectors do more than one matrix per feature.

What :mod:`~costmodel.architecture.towers` says of image sizes holds here too.
"""

from __future__ import annotations

from costmodel.architecture.images import DynamicImage, WholeAndCrops
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.towers import encoder, linear, read_heads
from costmodel.architecture.vision import Projection, VisionTower

M3_AREA = (4 * 28**2, 672**2)
"""``min_pixels`` and ``max_pixels`` of the processor (vllm/transformers_utils/processors/minimax_m3.py)."""


def minimax_m3(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower, projector and merger of MiniMax-M3 (modeling_minimax_m3_vl.py): CLIP's layers with rotary positions, no norm after them.

    The projector works on every patch, in the decoder's width; the merger makes a token of merge² of its outputs.
    """
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    layers, patch = vision.integer("num_hidden_layers"), vision.integer("patch_size")
    channels = vision.integer("num_channels", default=3)
    heads, head = read_heads(vision, "num_attention_heads", width)
    compression = vision.section("img_token_compression_config")
    compression.require("image_token_compression_method", "patch_merge", "only merging patches is")
    merge, frames = compression.integer("spatial_merge_size"), compression.integer("temporal_patch_size")
    compression.finish()
    vision.require("position_embedding_type", "rope", "only rotary positions are")
    vision.ignore("image_size", "projection_dim", "vocab_size", "vision_segment_max_frames", "rope_mode")
    vision.finish()
    hidden = outer.integer("hidden_size")
    between = outer.integer("projector_hidden_size", default=hidden)
    outer.require("num_reward_heads", 0, "heads of a reward model are not counted")
    outer.ignore("img_token_compression_config", "image_grid_pinpoints", "image_seq_length")
    bias = outer.flag("multimodal_projector_bias", True)
    merge_bias = outer.flag("patch_merge_bias", True)
    merged = hidden * merge**2
    projector = linear(width, between, bias) + linear(between, hidden, bias)
    merger = linear(merged, between, merge_bias) + linear(between, hidden, merge_bias)
    inputs = channels * frames * patch**2
    return VisionTower(
        parameters=inputs * width + 2 * width + encoder(width, inner, layers) + projector + merger,
        patch_inputs=inputs,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(
            Projection("projector.linear_1", width, between, rows=merge**2),
            Projection("projector.linear_2", between, hidden, rows=merge**2),
            Projection("merger.linear_1", merged, between),
            Projection("merger.linear_2", between, hidden),
        ),
        rule=DynamicImage(patch, merge, *M3_AREA),
    )


def step3p7(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Perception encoder, downsamplers and projector of Step-3.7-Flash (modeling_step3p7.py): two learned scales a layer, no last norm.

    Two convolutions of 3 × 3 with stride 2, each to twice the width, make one feature of 16 patches. Learned positions are those of the
    whole image; crops are of 504 pixels (vllm/transformers_utils/processors/step3_vl.py).
    """
    width, layers = vision.integer("width", default=1536), vision.integer("layers", default=47)
    heads, head = read_heads(vision, "heads", width, 16)
    ratio = vision.get("mlp_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 100:
        raise vision.fail("mlp_ratio", f"must be a number above 0, not {ratio!r}")
    inner = int(width * ratio)
    side, patch = vision.integer("image_size", default=728), vision.integer("patch_size", default=14)
    channels = vision.integer("num_channels", default=3)
    for key, expected in (
        ("use_cls_token", False),
        ("ues_cls_token", False),
        ("use_ln_pre", True),
        ("use_ln_post", False),
    ):
        vision.require(
            key, expected, "the tower of Step-3.7-Flash has a norm before its layers, none after them, no class token"
        )
    vision.require("use_abs_posemb", True, "the tower of Step-3.7-Flash has learned positions")
    vision.ignore("use_rope2d")
    if vision.get("ls_init_value") in (None, 0):
        raise vision.unsupported("ls_init_value: the layers of the tower of Step-3.7-Flash have learned scales")
    vision.finish()
    outer.require("understand_projector_stride", 2, "only downsampling by two convolutions of stride 2 is")
    outer.ignore("image_token_len", "patch_token_len")
    hidden, bias = outer.integer("hidden_size"), outer.flag("projector_bias", False)
    inputs = channels * patch**2
    embeddings = inputs * width + (side // patch) ** 2 * width + 2 * width
    downsamplers = linear(9 * width, 2 * width) + linear(9 * 2 * width, 4 * width)
    layer_scales = 2 * width * layers
    return VisionTower(
        parameters=embeddings
        + encoder(width, inner, layers)
        + layer_scales
        + downsamplers
        + linear(4 * width, hidden, bias),
        patch_inputs=inputs,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(
            Projection("downsampler1", 9 * width, 2 * width, rows=4),
            Projection("downsampler2", 9 * 2 * width, 4 * width),
            Projection("projector", 4 * width, hidden),
        ),
        rule=WholeAndCrops(side, 504, patch, 4),
    )


def kimi_k3(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """MoonViT tower and projector of Kimi K3 (vllm/model_executor/models/kimi_k25_vit.py); its processor's rule is not read.

    Heads wider than their share of the width, RMS norms, no biases; the projector has its norm behind it.
    """
    width, inner = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    layers, patch = vision.integer("vt_num_hidden_layers"), vision.integer("patch_size")
    rows, columns = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    inside = vision.integer("qkv_hidden_size", default=width)
    heads, head = read_heads(vision, "vt_num_attention_heads", inside)
    for key, expected in (
        ("pos_emb_type", "divided_fixed"),
        ("mm_projector_type", "patchmergerv2"),
        ("norm_type", "rmsnorm"),
        ("mlp_type", "mlp2"),
        ("attn_bias", False),
        ("linear_bias", False),
        ("patch_embed_proj_bias", False),
    ):
        vision.require(key, expected, "the tower of Kimi K3 has it otherwise")
    vision.ignore("init_pos_emb_time", "merge_type", "video_attn_type", "mm_hidden_size", "text_hidden_size")
    vision.ignore("pos_emb_interpolation_mode", "projector_ln_eps", "activation_func")
    kernel = vision.items("merge_kernel_size")
    vision.finish()
    merged, hidden = width * int(kernel[0]) * int(kernel[1]), outer.integer("hidden_size")
    layer = 4 * width * inside + 2 * width * inner + 2 * width
    tower = 3 * patch**2 * width + rows * columns * width + layers * layer + width
    return VisionTower(
        parameters=tower + merged * merged + merged * hidden + hidden,
        patch_inputs=3 * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(Projection("merger.up", merged, merged), Projection("merger.down", merged, hidden)),
        rule=None,
    )
