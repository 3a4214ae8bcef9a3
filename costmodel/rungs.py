"""One rung of a prediction: the decode step, the prompts alone, and the longest mixed step, with their operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.checks import MAX_SECONDS, cached_part, positive, whole
from costmodel.deployment import Deployment
from costmodel.documents import Operator, Rung
from costmodel.encoder import ImageLoad, encoder_operators
from costmodel.engine import default_token_budget
from costmodel.equations.parameters import Parameters
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.textbook import (
    Textbook,
    textbook_attention,
    textbook_decode,
    textbook_encoder,
    textbook_linear,
)
from costmodel.equations.work import Chunk, Decodes, Reach, Work, make_work
from costmodel.hardware.errors import InputError, shown
from costmodel.image_steps import prompt_steps
from costmodel.spike import chunk_room, longest, mixed_work, step_count, tallest_candidates

MAX_STEPS = 200_000
"""More mixed steps than this are refused: the question is hardly meant."""


@dataclass(frozen=True, slots=True)
class Load:
    """The workload of a prediction, checked."""

    prompt: int
    prompts: int
    streams: int
    context: int
    budget: int | None
    every: float
    cached: int = 0
    """Tokens of each prompt that are in the prefix cache."""
    images: ImageLoad | None = None
    """Of every prompt, the tokens they add to it being among those of ``prompt``."""

    @property
    def new(self) -> int:
        """Tokens of each prompt that are to be computed."""
        return self.prompt - self.cached

    @property
    def one_step_budget(self) -> int:
        """Token budget that takes all prompts in one step beside the streams."""
        return self.new * self.prompts + self.streams

    def candidates(self, windows: Iterable[Reach] = ()) -> list[list[Chunk]]:
        """The mixed steps among which the longest one is, of a model with these windows: with images, those that encode some too."""
        if self.images is not None:
            return list(self.steps())
        room = chunk_room(self.budget, self.streams)
        return tallest_candidates(self.prompt, self.prompts, room, self.cached, windows)

    def steps(self) -> Iterator[list[Chunk]]:
        """Yield the chunks of every mixed step in turn."""
        return prompt_steps(self.images, self.prompt, self.prompts, self.budget, self.streams, self.cached)

    def decode_work(self, windows: Iterable[Reach]) -> Work:
        """The work of a decode step of all streams."""
        return make_work(decodes=[Decodes(self.streams, self.context)], windows=windows)

    def prefill_work(self, windows: Iterable[Reach]) -> Work:
        """The work of a step with all prompts, whole, and nothing else."""
        return make_work([Chunk(self.new, self.cached)] * self.prompts, windows=windows)

    def mixed_work(self, chunks: Sequence[Chunk], windows: Iterable[Reach]) -> Work:
        """The work of a mixed step: the chunks, and one token for each stream."""
        return mixed_work(chunks, self.streams, self.context, windows)

    def encoder_work(self, chunks: Sequence[Chunk]) -> Work | None:
        """The encoder's work in the step that has these chunks; None where no image begins in them."""
        begun = 0 if self.images is None else self.images.begun(chunks, self.cached)
        return self.images.work(begun) if self.images is not None and begun else None

    @property
    def prompts_encoder_work(self) -> Work | None:
        """The work of encoding the images of all prompts at once."""
        return self.encoder_work([Chunk(self.new, self.cached)] * self.prompts)


def make_load(
    deployment: Deployment,
    prompt: Any,
    prompts: Any,
    streams: Any,
    context: Any,
    chunk: Any,
    every: Any = 10.0,
    cached_prefix: Any = 0,
    images: ImageLoad | None = None,
) -> Load:
    """Check the numbers of a workload; ``chunk`` may be ``"engine"`` for vLLM's default token budget on this GPU.

    Images add their tokens to ``prompt``, which counts those of the text.

    Raises:
        InputError: not whole, out of range, or not finite; the message names the input.
    """
    budget = chunk
    if isinstance(chunk, str):
        if chunk != "engine":
            raise InputError(f"chunk must be a whole number or 'engine', not {shown(chunk)}")
        budget = default_token_budget(deployment)
    tokens = whole(prompt, "prompt", 1) + (images.tokens if images is not None else 0)
    load = Load(
        tokens,
        whole(prompts, "prompts", 1, 4096),
        whole(streams, "streams", 1, 1_000_000),
        whole(context, "context", 0),
        None if budget is None else whole(budget, "chunk", 1),
        positive(every, "every", MAX_SECONDS),
        cached_part(cached_prefix, tokens),
        images,
    )
    room = chunk_room(load.budget, load.streams)
    most = MAX_STEPS if images is None else MAX_STEPS // 10  # with images every one of them is gone through
    if step_count(load.new, load.prompts, room) > most:
        asked = f"{load.prompts} × {load.new}" if load.prompts > 1 else f"{load.new}"
        raise InputError(f"{asked} tokens at {room} per step are more than {most} steps; use a larger chunk")
    return load


def textbook_rung(textbook: Textbook, load: Load) -> Rung:
    """Return the textbook rung: decode by bandwidth, prefill by FLOPs, the spike as the prefill of the longest chunk alone."""
    decode = textbook_decode(textbook)
    linear = textbook_linear(textbook, load.new * load.prompts)
    attention = textbook_attention(textbook, load.new, load.cached) * load.prompts
    chunks, spike = textbook_spike(textbook, load)
    gpus = textbook.gpus
    spike_linear = textbook_linear(textbook, sum(chunk.tokens for chunk in chunks))
    encoder = textbook_encoder(textbook, load.prompts_encoder_work)
    spike_encoder = textbook_encoder(textbook, load.encoder_work(chunks))
    spike_attention = spike - spike_linear - spike_encoder
    images = (
        Operator(
            name="encoder",
            flops=spike_encoder * textbook.encoder_peak,
            bytes=0.0,
            time_s=spike_encoder,
            bound="compute",
        ),
    )
    return Rung(
        decode_step_s=decode,
        prefill_s=linear + attention + encoder,
        prefill_linear_s=linear,
        prefill_attention_s=attention,
        prefill_communication_s=0.0,
        prefill_encoder_s=encoder,
        spike_s=spike,
        spike_ratio=spike / decode,
        operators=(
            Operator(
                name="linear", flops=spike_linear * textbook.peak, bytes=0.0, time_s=spike_linear, bound="compute"
            ),
            Operator(
                name="attention",
                flops=spike_attention * textbook.attention_peak,
                bytes=0.0,
                time_s=spike_attention,
                bound="compute",
            ),
            *(images if spike_encoder else ()),
        ),
        decode_operators=(
            Operator(name="weights", flops=0.0, bytes=textbook.weight_bytes / gpus, time_s=decode, bound="memory"),
        ),
    )


def step_rung(parameters: Parameters, load: Load) -> Rung:
    """Return a rung of operator counts: the decode step, the prompts alone, and the longest mixed step."""
    windows = parameters.windows
    decode = step_operators(parameters, load.decode_work(windows))
    alone = step_operators(parameters, load.prefill_work(windows))
    encoder = encoding_operators(parameters, load.prompts_encoder_work)
    chunks, spike = longest_step(parameters, load)
    decode_s = total_seconds(decode)
    return Rung(
        decode_step_s=decode_s,
        prefill_s=total_seconds(alone) + total_seconds(encoder),
        prefill_linear_s=sum(item.seconds for item in alone if item.group in ("linear", "experts")),
        prefill_attention_s=sum(item.seconds for item in alone if item.group == "attention"),
        prefill_communication_s=sum(item.seconds for item in alone if item.group == "communication"),
        prefill_encoder_s=total_seconds(encoder),
        spike_s=spike,
        spike_ratio=spike / decode_s,
        operators=shown_operators(mixed_operators(parameters, load, chunks)),
        decode_operators=shown_operators(decode),
    )


def total_seconds(operators: list[OperatorTime[float]]) -> float:
    """Return the time of a step: its operators add up [s]."""
    return sum(operator.seconds for operator in operators)


def shown_operators(operators: list[OperatorTime[Any]]) -> tuple[Operator, ...]:
    """Return the operators of a step as documents show them."""
    return tuple(
        Operator(name=item.name, flops=item.flops, bytes=item.bytes, time_s=item.seconds, bound=item.bound)
        for item in operators
    )


def textbook_seconds(textbook: Textbook, chunks: list[Chunk], images: Work | None = None) -> float:
    """Return the textbook time of prefilling these chunks, and of encoding images beside them [s]."""
    attention = sum(textbook_attention(textbook, chunk.tokens, chunk.cached) for chunk in chunks)
    encoder = textbook_encoder(textbook, images)
    return float(textbook_linear(textbook, sum(chunk.tokens for chunk in chunks)) + attention + encoder)


def encoding_operators(parameters: Parameters, work: Work | None) -> list[OperatorTime[Any]]:
    """Return the operators of encoding images; none without any."""
    return [] if work is None or parameters.encoder is None else encoder_operators(parameters.encoder, work)


def mixed_operators(parameters: Parameters, load: Load, chunks: list[Chunk]) -> list[OperatorTime[Any]]:
    """Return the operators of a mixed step: these chunks beside the streams of the load, and the images that begin in them."""
    decoder = step_operators(parameters, load.mixed_work(chunks, parameters.windows))
    return [*decoder, *encoding_operators(parameters, load.encoder_work(chunks))]


def mixed_seconds(parameters: Parameters, load: Load, chunks: list[Chunk]) -> float:
    """Return the time of a mixed step, as of :func:`mixed_operators` [s]."""
    return total_seconds(mixed_operators(parameters, load, chunks))


def longest_step(parameters: Parameters, load: Load) -> tuple[list[Chunk], float]:
    """Return the chunks of the longest mixed step, and its time: the height of the spike [s]."""
    return longest(load.candidates(parameters.windows), lambda chunks: mixed_seconds(parameters, load, chunks))


def textbook_spike(textbook: Textbook, load: Load) -> tuple[list[Chunk], float]:
    """Return the longest chunk (or chunks of one step) on the textbook rung, and the time of its prefill alone [s]."""
    windows = [window for window, _ in textbook.attention]
    return longest(
        load.candidates(windows), lambda chunks: textbook_seconds(textbook, chunks, load.encoder_work(chunks))
    )


def mixed_step_times(parameters: Parameters, load: Load) -> list[float]:
    """Return the time of every mixed step of one injection, in order [s]."""
    return [mixed_seconds(parameters, load, chunks) for chunks in load.steps()]
