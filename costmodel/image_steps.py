"""The mixed steps of prompts with images under a token budget, as vLLM's scheduler makes them.

A chunk ends before an image that the step cannot encode (:meth:`~costmodel.encoder.ImageLoad.encodable`); who comes after it then goes on
with the tokens that are left. Features are kept until all tokens of their image are computed. Prompts are served in turn, in the order in
which they came; one that has not begun waits for those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from costmodel.encoder import ImageLoad
from costmodel.equations.work import Chunk
from costmodel.spike import chunk_room, mixed_steps


@dataclass(slots=True)
class _Prompt:
    """How far a prompt is: tokens computed, and images whose features are kept."""

    computed: int
    begun: bool = False
    kept: set[int] = field(default_factory=set)


def image_steps(
    images: ImageLoad, prompt: int, prompts: int, budget: int, room: int, cached: int = 0
) -> Iterator[list[Chunk]]:
    """Yield the chunks of every mixed step.

    Args:
        images: of every prompt.
        prompt: n, tokens of each prompt, those of its images among them.
        prompts: that arrive together.
        budget: m, tokens per step.
        room: m − D, those of them for prompts.
        cached: tokens of each prompt that the prefix cache has.
    """
    most = images.at_once(budget)
    waiting, under_way = prompts, list[_Prompt]()
    while waiting or under_way:
        left, begun, chunks = room, 0, []
        index = 0
        while left and (index < len(under_way) or waiting):
            if index == len(under_way):
                under_way.append(_Prompt(cached))
                waiting -= 1
            state = under_way[index]
            index += 1
            tokens, new = min(prompt - state.computed, left), list[int]()
            if not images.crosses:
                free = most - max(begun, sum(len(item.kept) for item in under_way))
                tokens, new = images.encodable(
                    images.count, state.computed, tokens, state.kept.__contains__, free.__ge__
                )
            if not tokens and not state.begun:  # it waits, and all after it
                under_way.pop()
                waiting += 1
                break
            if not tokens:
                continue
            chunks.append(Chunk(tokens, state.computed))
            state.begun, state.computed = True, state.computed + tokens
            state.kept.update(new)
            begun, left = begun + len(new), left - tokens
        yield chunks
        for state in under_way:
            state.kept = {image for image in state.kept if (image + 1) * images.each.tokens > state.computed}
        under_way = [state for state in under_way if state.computed < prompt]


def prompt_steps(
    images: ImageLoad | None, prompt: int, prompts: int, budget: int | None, streams: int, cached: int = 0
) -> Iterator[list[Chunk]]:
    """Yield the chunks of every mixed step of prompts that arrive together beside streams, with images or without.

    Args:
        images, prompt, prompts, cached: as in :func:`image_steps`; None for no images.
        budget: m, tokens per step; None for one step.
        streams: D, of which each takes a token of it.
    """
    room = chunk_room(budget, streams)
    if images is None or budget is None or room is None:
        return mixed_steps(prompt, prompts, room, cached)
    return image_steps(images, prompt, prompts, budget, room, cached)
