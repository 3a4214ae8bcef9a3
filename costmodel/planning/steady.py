"""The closed form of the long-prompt load: streams that decode all the time, and prompts that come among them every so often.

It counts as the simulator does: contexts of the streams are held, a chunk of one token is a decode, prompts go in the order in which they
came. So the longest gap is exactly that of :func:`costmodel.simulate_interference`, as long as a prompt is done before the next one comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.certainty import arrival_overheads
from costmodel.checks import MAX_SECONDS, cached_part, positive, whole
from costmodel.encoder import ImageLoad
from costmodel.equations.work import Chunk, seen_tokens
from costmodel.image_steps import prompt_steps
from costmodel.planning.serving import Site
from costmodel.simulation.clock import Clock, decode_alike
from costmodel.simulation.encoding import Encoding
from costmodel.spike import step_count, tallest_candidates, visibility


@dataclass(frozen=True, slots=True)
class Steady:
    """A load.

    Attributes:
        streams, context: that decode, and tokens that each has in the KV cache.
        prompt, prompts: tokens of a long prompt, those of its images among them, and how many come at once; 0 prompts for none.
        every: seconds from one to the next.
        prefix: tokens of each prompt that the prefix cache has, as far as that leaves a token to compute.
        encoding: of the images that each prompt begins with; None without any.
    """

    streams: int
    context: int
    prompt: int = 0
    prompts: int = 0
    every: float = 10.0
    prefix: int = 0
    encoding: Encoding | None = None

    @property
    def cached(self) -> int:
        """Tokens of each prompt that are not computed."""
        return max(min(self.prefix, self.prompt - 1), 0)

    @property
    def new(self) -> int:
        """Tokens of each prompt that are computed."""
        return self.prompt - self.cached

    @property
    def one_step(self) -> int:
        """Token budget that takes the prompts in one step beside the streams."""
        return self.new * self.prompts + self.streams

    @property
    def image_tokens(self) -> int:
        """Tokens of a prompt that stand for its images."""
        return self.encoding.images.tokens if self.encoding else 0

    def steps(self, budget: int) -> Iterator[list[Chunk]]:
        """Yield the chunks of every mixed step of one injection at a token budget, in turn."""
        images = self.encoding.images if self.encoding else None
        return prompt_steps(images, self.prompt, self.prompts, budget, self.streams, self.cached)

    def step_count(self, budget: int) -> int:
        """Return how many mixed steps that are."""
        if self.encoding is None:
            return step_count(self.new, self.prompts, budget - self.streams)
        return sum(1 for _ in self.steps(budget))


def checked(streams: int, context: int, prompt: int, prompts: int, every: float, prefix: int = 0) -> Steady:
    """Return a load, or raise :class:`InputError` for a number that cannot be."""
    return Steady(
        whole(streams, "streams", 1, 1_000_000),
        whole(context, "context", 1),
        whole(prompt, "prompt", 1),
        whole(prompts, "prompts", 1, 4096),
        positive(every, "every", MAX_SECONDS),
        whole(prefix, "cached-prefix", 0),
    )


def with_images(load: Steady, images: ImageLoad | None) -> Steady:
    """Return a load whose prompts, given without images, begin with some; how long they take is that of the site."""
    return load if images is None else replace(load, prompt=load.prompt + images.tokens)


def with_prefix(load: Steady) -> Steady:
    """Return a load whose cached prefix leaves something of its prompts, or raise :class:`InputError`."""
    cached_part(load.prefix, load.prompt)
    return load


def all_cached(load: Steady) -> tuple[str, ...]:
    """Return the note of prompts that are no longer than the prefix that is said to be cached."""
    if not load.prompts or load.prefix < load.prompt:
        return ()
    return (
        f"the cached prefix of {load.prefix:,} tokens is no shorter than the prompt: all of it but the last token is taken as cached",
    )


def decode_s(clock: Clock, load: Steady) -> float:
    """Return the time of a decode step of all streams [s]."""
    return decode_alike(clock, load.streams, load.context)


def mixed_s(clock: Clock, load: Steady, chunks: Sequence[Chunk]) -> float:
    """Return the time of a step with these chunks beside the streams [s]."""
    decodes, alone = load.streams, [chunk for chunk in chunks if chunk.tokens == 1]
    reads = []
    for window in clock.windows:
        read = load.streams * seen_tokens(load.context, window)
        reads.append(read + sum(seen_tokens(chunk.cached, window) for chunk in alone))
    sizes = [(int(chunk.tokens), int(chunk.cached)) for chunk in chunks if chunk.tokens != 1]
    decodes += len(alone)
    seconds = clock.mixed(sizes, decodes, reads) if sizes else clock.decode(decodes, reads)
    if load.encoding is not None and (begun := load.encoding.images.begun(chunks, load.cached)):
        seconds += load.encoding.seconds(begun)
    return seconds


def longest_gap_s(clock: Clock, load: Steady, budget: int) -> float:
    """Return the longest gap that a stream sees [s]: a mixed step, of those that can be the longest, or the decode step."""
    decode = decode_s(clock, load)
    if not load.prompts:
        return decode
    if load.encoding is not None:
        return max(decode, *(mixed_s(clock, load, chunks) for chunks in load.steps(budget)))
    steps = tallest_candidates(load.prompt, load.prompts, budget - load.streams, load.cached, clock.windows)
    return max(decode, *(mixed_s(clock, load, chunks) for chunks in steps))


def first_step_s(clock: Clock, load: Steady, budget: int) -> float:
    """Return the time of the first mixed step, which never falls with the budget, unlike the longest one [s]."""
    return mixed_s(clock, load, next(load.steps(budget)))


def drain_s(clock: Clock, load: Steady, budget: int) -> float:
    """Return Σ T_mixed, the time of all steps of the prompts of one injection [s]."""
    return math.fsum(mixed_s(clock, load, chunks) for chunks in load.steps(budget))


def taken_s(clock: Clock, load: Steady, budget: int) -> float:
    """Return how long the engine has the last of the prompts until its first token, if they come just after a step began [s].

    T_dec + Σ T_mixed, the TTFT of :func:`costmodel.simulate_interference`.
    """
    return decode_s(clock, load) + drain_s(clock, load, budget)


def before_engine_s(site: Site, load: Steady) -> float:
    """Return the time between a prompt being sent and the engine having it, as the calibration has it for this load [s].

    That of :func:`costmodel.simulate_load`: t_0 + t_1·n + k·T_dec, with n tokens of prompt (``arrival`` of the calibration); 0 without one.
    """
    if not load.prompts or site.fitted is None:
        return 0.0
    fixed, per_token, steps = arrival_overheads(site.fitted.rates.calibration)
    return fixed + per_token * load.prompt + steps * decode_s(site.clock, load)


def ttft_s(site: Site, load: Steady, budget: int) -> float:
    """Return the TTFT of the last of the prompts, from when it is sent, if the engine has it just after a step began [s]."""
    return before_engine_s(site, load) + taken_s(site.clock, load, budget)


def mean_gap_s(clock: Clock, load: Steady, budget: int) -> float:
    """Return the mean gap of a stream, its TPOT [s]: τ ÷ gaps per period; infinite where prompts come too fast."""
    decode = decode_s(clock, load)
    if not load.prompts:
        return decode
    seen = visibility(drain_s(clock, load, budget), load.step_count(budget), decode, load.every)
    return math.inf if seen.overload else load.every / seen.gaps


def keeps_up(clock: Clock, load: Steady, budget: int) -> bool:
    """Tell whether the prompts of one injection are done before the next come, whatever step they come in."""
    return not load.prompts or taken_s(clock, load, budget) <= load.every


MEASURES: Mapping[str, Callable[[Site, Steady, int], float]] = {
    "itl": lambda site, load, budget: longest_gap_s(site.clock, load, budget),
    "ttft": ttft_s,
    "tpot": lambda site, load, budget: mean_gap_s(site.clock, load, budget),
}
"""What has a limit → its value at a token budget [s]."""
