"""Vision towers of MiniMax-M3 and of other models whose projectors do more than one matrix per feature.

What :mod:`~costmodel.architecture.towers` says of image sizes holds here too.
"""

from __future__ import annotations

from costmodel.architecture.images import DynamicImage
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
            Projection("projector.linear_1", width, between, per_patch=True),
            Projection("projector.linear_2", between, hidden, per_patch=True),
            Projection("merger.linear_1", merged, between),
            Projection("merger.linear_2", between, hidden),
        ),
        rule=DynamicImage(patch, merge, *M3_AREA),
    )
