"""The encoder of images: a prefill of its own, of patches that see one another, by the same equations as the decoder's.

With N_i patches, A_i = Σ p² pairs of a layer whose patches see their whole tile, A_iw of one whose patches see their window, R_i features::

    patch embedding   2·(c·f·p²)·d_i·N_i                     layers, per patch   2·(2·h_i + 2·h_kvi)·d_hi·d_i + (2 or 3)·2·d_i·d_fi
    attention         4·h_i·d_hi·(L_full·A_i + L_win·A_iw)   projector           2·Σ k·m·R_i

(FLOPs.) Weights are read once a step, K and V of every patch once a layer. vLLM runs the encoder in the step in which the first token of an
image is scheduled, before the decoder, all images of the step together, and keeps the features until they are used
(vllm/v1/core/sched/scheduler.py, ``_try_schedule_encoder_inputs``; vllm/v1/worker/gpu_model_runner.py, ``_execute_mm_encoder``). With TP
it divides the tower as it does the decoder (``mm_encoder_tp_mode`` "weights", its default), if the heads allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.architecture.images import MAX_SIDE, EncodedImage
from costmodel.architecture.linears import cross_linears
from costmodel.architecture.vision import VisionTower
from costmodel.checks import whole
from costmodel.deployment import Deployment
from costmodel.equations.numerics import Value
from costmodel.equations.parameters import AttentionKernel, Gemm, Parameters, Transfer
from costmodel.equations.rate_sources import DatasheetRates, RateSource
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Chunk, Reach, Work
from costmodel.hardware.errors import InputError, shown

MAX_IMAGES = 10_000
"""More images in a prompt are refused."""
DEFAULT_SIZE = "1024x1024"
USUAL_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class ImageLoad:
    """The images of every prompt: they stand first in it, one after another.

    Attributes:
        count: of a prompt.
        width, height: as they are sent [pixels].
        each: what becomes of one.
        window: patches of an attention window of the tower; 0 for none.
        audio: it is the spectrogram of 30 s of audio.
        crosses: what is encoded goes to cross-attention.
        undivided: vLLM computes the tokens of an image in one step.
        most_features: of the largest image that the model's processor makes.
    """

    count: int
    width: int
    height: int
    each: EncodedImage
    window: int = 0
    audio: bool = False
    crosses: bool = False
    undivided: bool = False
    most_features: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the images of a prompt add to it."""
        return self.count * self.each.tokens

    def begun(self, chunks: Sequence[Chunk], known: int = 0) -> int:
        """Return the images that a step with these chunks encodes: those whose first token that is to be computed is in one of them.

        Args:
            chunks: of prompts, with images that are part of theirs.
            known: tokens of every prompt that are in the prefix cache; an image that ends within them needs no encoding. Keys and values of
                cross-attention are in no prefix cache.
        """
        found = 0
        for chunk in chunks:
            start, end = chunk.cached, chunk.cached + chunk.tokens
            if self.crosses:
                found += self.count if start == known and chunk.tokens else 0
                continue
            first = start // self.each.tokens if start == known else -(-start // self.each.tokens)
            found += (
                max(min(-(-end // self.each.tokens), self.count) - min(first, self.count), 0) if chunk.tokens else 0
            )
        return found

    def at_once(self, budget: int) -> int:
        """Return how many images vLLM encodes in a step at most, and keeps at once: ⌊max(m, R_max)/R⌋.

        R features of one, R_max of the largest that the processor makes (``compute_mm_encoder_budget`` of
        vllm/v1/core/encoder_cache_manager.py, 0.32; its limit is larger where it takes videos, which are not counted). What goes to
        cross-attention has no such limit.

        Args:
            budget: m, ``max_num_batched_tokens``.
        """
        if self.crosses:
            return self.count
        return max(budget, self.most_features, self.each.features) // self.each.features

    def encodable(
        self, count: int, computed: int, tokens: int, known: Callable[[int], bool], fits: Callable[[int], bool]
    ) -> tuple[int, list[int]]:
        """Return how many of a prompt's next tokens a step can compute, and which images it encodes for them.

        A chunk ends before an image that is too many, and before one of which it would compute a part only, if the model sees images
        whole (``_try_schedule_encoder_inputs`` of vllm/v1/core/sched/scheduler.py, 0.32).

        Args:
            count: images of the prompt.
            computed: tokens of the prompt before them.
            tokens: as many as there is room for.
            known: whether an image's features are there.
            fits: whether so many images can be encoded in the step.
        """
        each, new = self.each.tokens, list[int]()
        for index in range(computed // each, min(-(-(computed + tokens) // each), count)):
            start = index * each
            if self.undivided and computed < start and computed + tokens < start + each:
                return start - computed, new
            if known(index):
                continue
            if not fits(len(new) + 1):
                return max(start - computed, 0), new
            new.append(index)
        return tokens, new

    def work(self, images: int) -> Work:
        """Return the work of encoding so many of the images in one step."""
        each, window = self.each, self.window
        return encoder_work(
            images * each.patches,
            images * each.features,
            images * len(each.sequences),
            images * each.pairs,
            {window: images * each.windowed_pairs} if window else {},
            tuple(Chunk(patches) for patches in set(each.sequences)),
        )


def encoder_work(
    patches: Value,
    features: Value,
    tiles: Value,
    pairs: Value,
    windowed: dict[Reach, Value],
    chunks: tuple[Chunk, ...],
) -> Work:
    """Return the sums of an encoder's step: patches are its tokens, features its rows."""
    all_pairs = {None: pairs, **windowed}
    read: dict[Reach, Value] = dict.fromkeys(all_pairs, patches)
    return Work(patches, features, tiles, 0, all_pairs, read, dict.fromkeys(all_pairs, 0), chunks)


def read_size(size: Any) -> tuple[int, int]:
    """Return width and height of ``1024x768``, or of two numbers.

    Raises:
        InputError: neither, or a side that is no whole number of pixels from 1 to 100,000.
    """
    sides: Any = size
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+)\s*[xX×*]\s*(\d+)\s*", size, re.ASCII)
        sides = None if found is None else tuple(map(int, found.groups()))
    if not isinstance(sides, Sequence) or isinstance(sides, str) or len(sides) != 2:
        raise InputError(f"image-size must be WIDTHxHEIGHT in pixels, such as {DEFAULT_SIZE}, not {shown(size)}")
    width, height = (whole(side, "image-size", 1, MAX_SIDE) for side in sides)
    return width, height


def make_images(deployment: Deployment, images: Any, size: Any = None) -> ImageLoad | None:
    """Return what the images of a prompt are for a model; None for no images.

    Args:
        deployment: model.
        images: how many a prompt has.
        size: of each, ``WIDTHxHEIGHT`` or two numbers; 1024x1024 if None.

    Raises:
        InputError: the model takes no images, or how its processor cuts them is not known.
    """
    count, tower = whole(images, "images", 0, MAX_IMAGES), deployment.architecture.vision
    if not count:
        if size is None and tower is not None and tower.frames is not None and tower.rule is not None:
            return ImageLoad(1, *tower.frames, tower.rule(*tower.frames), audio=True, crosses=True)
        if size is not None:
            raise InputError("image-size needs images (--images N), of which there are none")
        return None
    architecture = deployment.architecture
    if tower is not None and tower.frames is not None:
        raise InputError(
            f"{architecture.name} takes audio, not images: 30 s in every request, which are always counted"
        )
    if tower is None:
        why = next((note for note in architecture.notes if "vision_config" in note), "it has no vision tower")
        raise InputError(f"{architecture.name} takes no images here: {why}")
    if tower.rule is None:
        raise InputError(
            f"images of {architecture.name}: how its processor cuts them into patches is not known here, so they cannot be counted"
        )
    width, height = read_size(DEFAULT_SIZE if size is None else size)
    each, largest = tower.rule(width, height), tower.rule(MAX_SIDE, MAX_SIDE)
    return ImageLoad(
        count,
        width,
        height,
        each,
        tower.window,
        crosses=tower.cross,
        undivided=tower.undivided,
        most_features=largest.features,
    )


def with_states(deployment: Deployment, images: ImageLoad | None) -> Deployment:
    """Return the deployment with the states of an encoder that its sequences attend to, where the model has cross-attention.

    The streams that decode beside a prompt are taken to have images like its own.
    """
    tower = deployment.architecture.vision
    if images is None or tower is None or not tower.cross:
        return deployment
    return replace(deployment, encoder_states=float(images.count * images.each.features))


def with_encoder(
    parameters: Parameters, deployment: Deployment, images: ImageLoad | None, rates: RateSource | None = None
) -> Parameters:
    """Return the parameters of a step with those of its encoder, where there are images."""
    return parameters if images is None else replace(parameters, encoder=encoder_parameters(deployment, rates))


def encoder_parameters(deployment: Deployment, rates: RateSource | None = None, split: int | None = None) -> Parameters:
    """Return the parameters of a step of the encoder, per GPU. Its matrices are in the activations' dtype, whatever the decoder's are.

    Args:
        deployment: model, with a vision tower, and part; its dimensions may be symbols.
        rates: datasheet rates by default, or those fitted to the decoder's kernels, none of which were measured on an encoder.
        split: GPUs that share the tower, where the deployment's heads are symbols.
    """
    rates, tower = rates or DatasheetRates(), deployment.architecture.vision
    if tower is None:
        raise InputError(f"{deployment.architecture.name} has no vision tower")
    split = encoder_split(deployment) if split is None else split
    width, heads = tower.hidden, tower.heads / split if split > 1 else tower.heads
    inner = tower.intermediate / split if split > 1 else tower.intermediate
    keys = tower.kv_heads / split if split > 1 else tower.kv_heads
    shapes = [
        ("qkv_proj", width, (heads + 2 * keys) * tower.head_dim),
        ("o_proj", heads * tower.head_dim, width),
        ("gate_up_proj" if tower.gated else "up_proj", width, 2 * inner if tower.gated else inner),
        ("down_proj", inner, width),
    ]
    gemms = [_gemm(deployment, rates, "patch_embed", tower.patch_inputs, width, 1)]
    gemms += [_gemm(deployment, rates, name, inputs, outputs, tower.layers) for name, inputs, outputs in shapes]
    for item in tower.projector:
        outputs = item.outputs / split if split > 1 else item.outputs
        made = _gemm(deployment, rates, item.name, item.inputs, outputs, item.count, per_row=True)
        gemms.append(repeated(made, item.rows))
    gemms += [_gemm(deployment, rates, *shape, per_row=True) for shape in _cross_shapes(deployment)]
    transfers: tuple[Transfer, ...] = ()
    if split > 1:
        sent = 2 * (split - 1) / split * width * deployment.activation_bytes
        link = deployment.hardware.link_bandwidth
        transfers = (rates.transfer("all_reduce", "all_reduce", 2 * tower.layers, sent, link, split),)
    return Parameters(
        gemms=tuple(gemms),
        experts=(),
        attention=_attention(deployment, rates, tower, heads, keys),
        transfers=transfers,
        elementwise=rates.elementwise(tower.layers, width, deployment.activation_bytes, deployment.hardware.bandwidth),
    )


def _cross_shapes(deployment: Deployment) -> list[tuple[str, Value, Value, Value]]:
    """Return name, inputs, outputs and layers of the matrices that make keys and values for cross-attention of an encoder's states."""
    architecture, shapes = deployment.architecture, []
    for kind, count in zip(architecture.kinds, deployment.layer_counts, strict=True):
        if kind.cross is not None:
            linears = cross_linears(kind.cross, architecture.hidden, kind.formats.attention, deployment.tp)
            shapes += [(item.name, item.inputs, item.outputs, count) for item in linears if item.of_encoder]
    return shapes


def encoder_split(deployment: Deployment) -> int:
    """Return how many GPUs share the tower: the tensor-parallel size where it divides the heads; else every GPU computes all of it."""
    tower, tp = deployment.architecture.vision, deployment.tp
    return tp if tower is not None and tower.heads % tp == 0 and tower.kv_heads % tp == 0 else 1


def repeated(gemm: Gemm, rows: int) -> Gemm:
    """Return a matrix that ``rows`` rows pass for each one that is counted."""
    if rows == 1:
        return gemm
    return replace(gemm, flops_per_token=rows * gemm.flops_per_token, io_bytes_per_token=rows * gemm.io_bytes_per_token)


def _gemm(
    deployment: Deployment,
    rates: RateSource,
    name: str,
    inputs: Value,
    outputs: Value,
    count: Value,
    per_row: bool = False,
) -> Gemm:
    dtype, size, hardware = deployment.activation_dtype, deployment.activation_bytes, deployment.hardware
    return Gemm(
        name=name,
        group="linear",
        flops_per_token=2 * inputs * outputs * count,
        weight_bytes=inputs * outputs * size * count,
        io_bytes_per_token=(inputs + outputs) * size * count,
        count=count,
        rate=rates.kernel("gemm", dtype, hardware.peaks[dtype], hardware.bandwidth, inputs, outputs, dtype),
        per_row=per_row,
    )


def _attention(
    deployment: Deployment, rates: RateSource, tower: VisionTower, heads: Value, keys: Value
) -> tuple[AttentionKernel, ...]:
    dtype, size, hardware = deployment.activation_dtype, deployment.activation_bytes, deployment.hardware
    number = tower.fitted_head_dim or tower.head_dim
    names = [dtype] if number == USUAL_HEAD_DIM else [f"{dtype}.d{number}", dtype]
    rate = rates.attention("prefill_attention", names, hardware.peaks[dtype], hardware.bandwidth)
    widths = 2 * tower.head_dim
    layers: list[tuple[Reach, str, Value]] = [(None, "", tower.layers)]
    if tower.window:
        full = tower.layers - tower.windowed_layers
        layers = [(None, ".full", full), (tower.window, ".window", tower.windowed_layers)]
    return tuple(
        AttentionKernel(
            window=window,
            suffix=suffix,
            flops_per_pair=2 * heads * widths * count,
            flops_per_kv_token=0,
            kv_bytes_per_token=keys * widths * size * count,
            count=count,
            prefill_rate=rate,
            decode_rate=rate,
            prefill_tile=rates.prefill_tile(rate, heads * widths * size * count, 2 * widths * hardware.units * count),
        )
        for window, suffix, count in layers
    )


def encoder_operators(parameters: Parameters, work: Work) -> list[OperatorTime[Any]]:
    """Return the operators of an encoder's step, their names beginning with ``encoder.``."""
    return [item._replace(name=f"encoder.{item.name}") for item in step_operators(parameters, work)]
