"""Encoders whose output goes to cross-attention: the tower of Llama 3.2 Vision, the encoder of Whisper."""

from __future__ import annotations

from costmodel.architecture.images import AudioWindow, CrossTiles
from costmodel.architecture.reader import ConfigReader
from costmodel.architecture.towers import encoder, linear, read_heads
from costmodel.architecture.vision import Projection, VisionTower


def mllama(vision: ConfigReader, outer: ConfigReader) -> VisionTower:
    """Tower and projector of Llama 3.2 Vision (modeling_mllama.py): 32 layers, then 8 global ones with two gates each.

    Positions, and one embedding of every aspect ratio before, within and after the layers; the outputs of some layers are set beside the
    last one's, so that a feature is ``vision_output_dim`` wide.
    """
    width, inner = vision.integer("hidden_size", default=1280), vision.integer("intermediate_size", default=5120)
    layers, extra = vision.integer("num_hidden_layers", default=32), vision.integer("num_global_layers", default=8)
    image, patch = vision.integer("image_size", default=448), vision.integer("patch_size", default=14)
    tiles, channels = vision.integer("max_num_tiles", default=4), vision.integer("num_channels", default=3)
    out = vision.integer("vision_output_dim", default=7680)
    heads, head = read_heads(vision, "attention_heads", width, 16)
    ratios = len(vision.items("supported_aspect_ratios")) or 8
    vision.ignore("num_attention_heads", "intermediate_layers_indices")
    vision.finish()
    hidden, patches = outer.integer("hidden_size"), (image // patch) ** 2 + 1
    per_ratio = (ratios + 1) * tiles * width
    embeddings = channels * patch**2 * width + width + patches * width + per_ratio * patches + 1 + 2 * (per_ratio + 1)
    layer = 4 * width**2 + linear(width, inner) + linear(inner, width) + 4 * width
    tower = embeddings + (layers + extra) * layer + 2 * extra + 4 * width
    return VisionTower(
        parameters=tower + linear(out, hidden),
        patch_inputs=channels * patch**2,
        hidden=width,
        intermediate=inner,
        layers=layers + extra,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(Projection("projector", out, hidden),),
        rule=CrossTiles(image, patch, tiles),
        cross=True,
    )


def whisper(config: ConfigReader) -> VisionTower:
    """Encoder of Whisper (modeling_whisper.py): two convolutions over 3 frames each, the second with stride 2; keys have no biases.

    Per state the first convolution makes two frames of 3·mels inputs, the second one state of 3·d.
    """
    width, mels = config.integer("d_model", default=256), config.integer("num_mel_bins", default=80)
    layers, inner = config.integer("encoder_layers", default=4), config.integer("encoder_ffn_dim", default=1536)
    states = config.integer("max_source_positions", default=1500)
    heads, head = read_heads(config, "encoder_attention_heads", width, 6)
    convolutions = linear(3 * mels, width) + linear(3 * width, width)
    return VisionTower(
        parameters=convolutions + states * width + encoder(width, inner, layers) - layers * width + 2 * width,
        patch_inputs=2 * 3 * mels + 3 * width,
        hidden=width,
        intermediate=inner,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        projector=(),
        rule=AudioWindow(states),
        cross=True,
        frames=(2 * states, mels),
    )
