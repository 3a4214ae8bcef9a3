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


def gemma4(vision: ConfigReader, outer: ConfigReader) -> int:
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
    vision.ignore("global_head_dim", "pooling_kernel_size", "default_output_length", "image_seq_length")
    vision.ignore("video_seq_length", "chunk_size_feed_forward")
    outer.ignore("vision_soft_tokens_per_image", "audio_config")
    if outer.get("audio_config") is not None:
        raise outer.unsupported("audio_config: audio towers are not counted")
    vision.finish()
    layer = width * head * (2 * heads + 2 * keys) + 3 * width * inner + 4 * width + 2 * head
    tower = 2 * positions * width + 3 * patch**2 * width + layers * layer + (2 * width if standardised else 0)
    return tower + width * outer.integer("hidden_size")


def llama4(vision: ConfigReader, outer: ConfigReader) -> int:
    """Tower, adapter and projector of Llama 4 (modeling_llama4.py): a class token, learned positions, an adapter of two matrices."""
    width, inner = vision.integer("hidden_size", default=768), vision.integer("intermediate_size", default=5632)
    layers, patch = vision.integer("num_hidden_layers", default=34), vision.integer("patch_size", default=14)
    image, channels = vision.integer("image_size", default=448), vision.integer("num_channels", default=3)
    out = vision.integer("vision_output_dim", default=7680)
    into, outwards = (vision.integer(f"projector_{way}_dim", default=4096) for way in ("input", "output"))
    vision.ignore("num_attention_heads", "pixel_shuffle_ratio", "projector_dropout", "multi_modal_projector_bias")
    vision.ignore("vision_feature_layer", "vision_feature_select_strategy")
    vision.finish()
    embeddings = width + ((image // patch) ** 2 + 1) * width + channels * patch**2 * width + 4 * width
    adapter = inner * into + outwards**2
    return embeddings + _encoder(width, inner, layers) + adapter + out * outer.integer("hidden_size")
