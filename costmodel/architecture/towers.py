"""Vision towers and their projectors: how many parameters they hold. They take memory, but no part in text steps."""

from __future__ import annotations

from costmodel.architecture.reader import ConfigReader


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _encoder(width: int, inner: int, layers: int) -> int:
    """Return the parameters of ``layers`` pre-norm encoder layers with biases: q, k, v, output, two-matrix feed-forward, two LayerNorms."""
    layer = 4 * _linear(width, width) + _linear(width, inner) + _linear(inner, width) + 4 * width
    return layers * layer


def gemma3(vision: ConfigReader, outer: ConfigReader) -> int:
    """SigLIP tower and projector of Gemma 3 (modeling_siglip.py, modeling_gemma3.py; absent keys as configuration_siglip.py)."""
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=3072)
    layers, patch = vision.integer("num_hidden_layers", default=12), vision.integer("patch_size", default=16)
    image, channels = vision.integer("image_size", default=224), vision.integer("num_channels", default=3)
    vision.require("vision_use_head", False, "the pooling head is not counted")
    vision.ignore("num_attention_heads")
    vision.finish()
    patches = (image // patch) ** 2
    embeddings = _linear(channels * patch**2, width) + patches * width
    projector = width * outer.integer("hidden_size") + width
    return embeddings + _encoder(width, inner, layers) + 2 * width + projector


def mistral3(vision: ConfigReader, outer: ConfigReader) -> int:
    """Pixtral tower and projector of Mistral Small 3.1 (modeling_pixtral.py, modeling_mistral3.py): no biases, gated feed-forward."""
    width, inner = vision.integer("hidden_size", default=1024), vision.integer("intermediate_size", default=4096)
    layers, patch = vision.integer("num_hidden_layers", default=24), vision.integer("patch_size", default=16)
    channels = vision.integer("num_channels", default=3)
    heads = vision.integer("num_attention_heads", default=16)
    if vision.integer("head_dim", default=width // heads) * heads != width:
        raise vision.fail(
            "head_dim", "times num_attention_heads differs from hidden_size, which the tower does not allow"
        )
    vision.ignore("image_size")
    vision.finish()
    merge, hidden = outer.integer("spatial_merge_size", default=2), outer.integer("hidden_size")
    bias = outer.flag("multimodal_projector_bias", False)
    tower = _linear(channels * patch**2, width, False) + width
    tower += layers * (4 * width**2 + 3 * width * inner + 2 * width)
    features = vision_features(outer)
    projector = width + _linear(width * merge**2, width, False) + _linear(width * features, hidden, bias)
    return tower + projector + _linear(hidden, hidden, bias)


def vision_features(outer: ConfigReader) -> int:
    """Return how many of the tower's layers the projector concatenates (``vision_feature_layer``: a number, or a list)."""
    chosen = outer.get("vision_feature_layer")
    return len(chosen) if isinstance(chosen, list) else 1


def qwen3_vl(vision: ConfigReader, outer: ConfigReader) -> int:
    """Tower, merger and deep-stack mergers of Qwen3-VL (modeling_qwen3_vl.py)."""
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    layers, patch = vision.integer("depth"), vision.integer("patch_size")
    frames, channels = vision.integer("temporal_patch_size", default=2), vision.integer("in_channels", default=3)
    positions, merge = vision.integer("num_position_embeddings"), vision.integer("spatial_merge_size", default=2)
    out, deep = vision.integer("out_hidden_size"), len(vision.items("deepstack_visual_indexes"))
    vision.ignore("num_heads")
    vision.finish()
    merged = width * merge**2
    merger = _linear(merged, merged) + _linear(merged, out)
    return (
        _linear(channels * frames * patch**2, width)
        + positions * width
        + _encoder(width, inner, layers)
        + merger
        + 2 * width
        + deep * (merger + 2 * merged)
    )


def kimi_k25(vision: ConfigReader, outer: ConfigReader) -> int:
    """MoonViT tower and projector of Kimi K2.5 (modeling_kimi_k25.py, published with the checkpoint)."""
    width, inner = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    layers, patch = vision.integer("vt_num_hidden_layers"), vision.integer("patch_size")
    height, length = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    kernel = vision.items("merge_kernel_size")
    vision.require("pos_emb_type", "divided_fixed", "only the fixed-time position embedding is")
    vision.require("mm_projector_type", "patchmerger", "only the patch merger is")
    vision.ignore(
        "init_pos_emb_time",
        "vt_num_attention_heads",
        "merge_type",
        "video_attn_type",
        "mm_hidden_size",
        "text_hidden_size",
    )
    vision.ignore("projector_ln_eps")
    vision.finish()
    merged = width * int(kernel[0]) * int(kernel[1])
    tower = _linear(3 * patch**2, width) + height * length * width + _encoder(width, inner, layers) + 2 * width
    return tower + 2 * width + _linear(merged, merged) + _linear(merged, outer.integer("hidden_size"))
