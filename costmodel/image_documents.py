"""What a prediction says of the images of its prompts: their sizes, patches and tokens, and what their time rests on."""

from __future__ import annotations

from costmodel.deployment import Deployment
from costmodel.documents import Images
from costmodel.encoder import ImageLoad, encoder_split
from costmodel.hardware.calibration import Calibration


def images_info(images: ImageLoad | None) -> Images | None:
    """Return the images as documents say them; None without any."""
    if images is None:
        return None
    each = images.each
    return Images(
        kind="audio" if images.audio else "image",
        count=images.count,
        width=images.width,
        height=images.height,
        resized_width=each.width,
        resized_height=each.height,
        tiles=len(each.sequences),
        patches=each.patches,
        features=each.features,
        tokens_per_image=each.tokens,
        tokens=images.tokens,
    )


def image_notes(deployment: Deployment, images: ImageLoad | None, fitted: Calibration | None) -> list[str]:
    """Return what the time of images rests on.

    Args:
        deployment: model and part.
        images: of every prompt.
        fitted: calibration in use.
    """
    if images is None:
        return []
    kind, notes = "audio" if images.audio else "images", []
    if not images.audio:
        notes.append(
            "images: cut and resized as by the processor's published defaults; loading and resizing them is not counted"
        )
    if fitted is not None:
        notes.append(f"{kind}: encoded at the efficiencies of the decoder's kernels; none was fitted to an encoder")
    if deployment.tp > 1 and encoder_split(deployment) == 1:
        notes.append(f"{kind}: TP {deployment.tp} does not divide the encoder's heads; every GPU computes all of it")
    if deployment.encoder_states:
        notes.append(
            f"{kind}: every sequence, the streams' too, attends to {deployment.encoder_states:,.0f} encoder states in "
            "layers of cross-attention, and keeps their keys and values"
        )
    return notes


def image_limits(images: ImageLoad | None, budget: int | None) -> list[str]:
    """Return a note where vLLM's encoder budget cuts chunks at a token budget; None for the prompt in one step."""
    if images is None or budget is None or images.count <= images.at_once(budget):
        return []
    most = max(budget, images.most_features, images.each.features)
    return [
        f"images: vLLM encodes at most {most:,} features per step (its encoder budget is max_num_batched_tokens, or the largest "
        "image if that is more) and ends a chunk before an image that is too many"
    ]


def image_warnings(images: ImageLoad | None, budget: int | None) -> list[str]:
    """Return a warning where vLLM does not start with a token budget: a model that sees images whole, and less than an image."""
    if images is None or budget is None or not images.undivided or images.each.features <= budget:
        return []
    return [
        f"vLLM does not start with {budget:,} tokens per step: this model computes the {images.each.features:,} features of an image in "
        f"one; use at least {images.each.features:,}"
    ]
