"""What a reader should know of a question before reading the answer: lockstep, chunks without a price, a scheduler that stands in."""

from __future__ import annotations

from costmodel.simulation.seats import Seats
from costmodel.simulation.settings import Settings

LIKE_A_DECODE = 1.01
"""A chunk that takes at most so many decode steps is not felt."""


def lockstep(clients: int | None, requests: int | None, spread: float, ramp: float) -> list[str]:
    """Say that clients of one length who begin together stay together.

    Args:
        clients: of a closed loop; None for arrivals at a rate.
        requests: in all.
        spread, ramp: of the lengths, and of the beginning [s].
    """
    if clients is None or clients == 1 or requests == 1 or spread or ramp:
        return []
    return [
        f"all {clients:,} clients begin at once with requests of one length and stay in step: their prompts queue for one another, "
        "and TTFT is that of such waves; a spread (0.2) of the lengths or a ramp tells them apart"
    ]


def of_windows(seats: Seats, aside: int, crossing: bool = False) -> tuple[str, ...]:
    """Say how the memory of layers with a window is counted; nothing where there are none.

    Args:
        seats: what a sequence takes for them.
        aside: blocks that are set aside for a prompt [blocks of the pool].
        crossing: the states are those of an encoder.
    """
    if seats.spare:
        return (
            "all layers have a window, and a sequence longer than that is counted as if it kept all its tokens: more would fit",
        )
    if not seats.windowed:
        return ()
    if all(group.states for group in seats.windowed):
        states = sum(group.states for group in seats.windowed)
        layers = "layers of cross-attention" if crossing else "recurrent layers"
        return (f"{layers} take {states} KV blocks of every sequence, however long it is, beside those of its tokens",)
    return (
        "layers with a window take their KV blocks for the whole length of a sequence from its first token on, which is at most what they "
        f"need; {aside:,} blocks are set aside for one prompt being prefilled, and several at once may take more",
    )


def unfelt_chunks(decode: float, prefill: float, prompt: int, settings: Settings, streams: int) -> list[str]:
    """Say that with fixed step times a chunk takes no longer than a decode step, so that nobody feels it.

    Args:
        decode, prefill: times of a decode step and of a step with a whole prompt [s].
        prompt: its length [tokens].
        settings: of the server, whose budget is less than the prompt.
        streams: that take a token of the budget each.
    """
    chunk = settings.token_budget - streams
    if chunk >= prompt or prefill * chunk / prompt > LIKE_A_DECODE * decode or prefill <= LIKE_A_DECODE * decode:
        return []
    return [
        f"a chunk of {chunk:,} tokens takes its share of the prompt's fixed time, {1e3 * prefill * chunk / prompt:.3g} ms, which is "
        f"within a decode step ({1e3 * decode:.3g} ms): nobody feels it here; on a GPU it adds to the step (leave out the fixed times)"
    ]


def stand_in(engine: str, scheduler: str | None) -> list[str]:
    """Say that vLLM's scheduler runs the steps of another engine.

    Args:
        engine: whose step times are used.
        scheduler: that was asked for; None for the engine's own.
    """
    if engine != "trtllm" or scheduler is not None:
        return []
    return [
        "the scheduler of TensorRT-LLM is not simulated: vLLM's stands in for it, on the step times of TensorRT-LLM"
    ]
