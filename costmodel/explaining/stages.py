"""The stages of a request's way: how long each takes, what it waits for, what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from costmodel.certainty import arrival_overheads, arrivals_fitted
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, attended_pairs, chunk_kv, make_work
from costmodel.explaining.documents import ServerStep, Stage
from costmodel.explaining.formulas import kept_formula, prompt_formula, read_formula, rest_formula
from costmodel.explaining.keeping import kept_of
from costmodel.explaining.layers import dense, looking
from costmodel.explaining.scene import Scene, flops_of, time_of
from costmodel.explaining.waiting import bound_of
from costmodel.explaining.words import count, plural, seconds, significant, size
from costmodel.simulation.settings import Settings

CHARACTERS = 3.94
"""Bytes of English text per token: Llama 3 Team, The Llama 3 Herd of Models, 2024, arXiv:2407.21783, section 3.2 (3.94 characters)."""
ID_BYTES = 4
"""Of a token's number."""
NEGLIGIBLE = 1e-9
"""Of a time [s]."""


class Tokenizer(NamedTuple):
    """How long a prompt takes to be tokenised [s], where that is known from, and whether it is assumed."""

    seconds: float
    said: str
    assumed: bool


class Course(NamedTuple):
    """When what happened to a request, in the time of the simulation [s]."""

    sent: float
    arrival: float
    """The engine has it."""
    scheduled: float
    first: float
    last: float
    steps: tuple[ServerStep, ...]
    """Of the server, times since it was sent."""
    chunks: tuple[tuple[int, int], ...]
    """Tokens of its prompt in each step that carried some, and tokens cached before."""


def weights_read(scene: Scene, tokens: float) -> float:
    """Return the bytes of weights that a step of so many tokens reads on one GPU: all matrices, and the experts that it touches [B]."""
    floor = scene.floor
    touched = sum(
        expert.weight_bytes * (1 - expert.idle_probability ** (expert.replicas * tokens)) for expert in floor.experts
    )
    return float(sum(gemm.weight_bytes for gemm in floor.gemms) + touched)


def kv_read(scene: Scene, chunks: Iterable[tuple[int, int]]) -> float:
    """Return the bytes of K and V that chunks of a prompt read, their own included [B]."""
    return float(
        sum(
            kernel.kv_bytes_per_token * chunk_kv(tokens, cached, kernel.window)
            for tokens, cached in chunks
            for kernel in scene.floor.attention
        )
    )


def answer_kv_read(scene: Scene, prompt: int, steps: int) -> float:
    """Return the bytes of K and V that ``steps`` decode steps after a prompt read: Σ_j min(n + j, w) tokens of each window w [B]."""
    return float(
        sum(
            kernel.kv_bytes_per_token * attended_pairs(steps, prompt, kernel.window) for kernel in scene.floor.attention
        )
    )


def answer_flops(scene: Scene, prompt: int, steps: int) -> float:
    """Return the FLOPs of one sequence in ``steps`` decode steps after a prompt: matrices per token, attention per KV token."""
    matrices = sum(gemm.flops_per_token for gemm in scene.floor.gemms)
    matrices += sum(expert.flops_per_token for expert in scene.floor.experts)
    attention = sum(
        kernel.flops_per_kv_token * attended_pairs(steps, prompt, kernel.window) for kernel in scene.floor.attention
    )
    states = sum(state.decode_flops for state in scene.floor.states)
    return float(steps * (matrices + states) + attention)


def state_moved(scene: Scene, steps: int) -> dict[str, float]:
    """Return the bytes of a sequence's states that ``steps`` steps read, and as many write [B]; nothing without recurrent layers."""
    once = float(sum(state.state_bytes for state in scene.floor.states)) / 2
    return {"state_bytes": steps * once} if once else {}


def way_to_engine(scene: Scene, way: float) -> str:
    """Say how long a tokenised request is on its way to the engine, and where that is known from."""
    fixed, _, waited = arrival_overheads(scene.fitted)
    if scene.fitted is None:
        return f"{seconds(way)} on its way through the server's processes (unknown without a calibration)"
    if not arrivals_fitted(scene.fitted):
        return f"{seconds(way)} on its way through the server's processes (unknown: {scene.fitted.name} has no served requests)"
    step = time_of(scene.decode(scene.streams, scene.context))
    parts = f"{seconds(fixed)} and {significant(waited)} decode steps of {seconds(step)}" if waited else seconds(fixed)
    more = way - fixed - waited * step  # where a tokenizer is measured, the rest of the time per token that is fitted
    if more > NEGLIGIBLE:
        parts += f", and {seconds(more)} more for handing over the prompt"
    elif more < -NEGLIGIBLE:
        parts = "all of it passes while the text is tokenised"
    return f"{seconds(way)} on its way through the server's processes ({parts}; fitted to served requests, {scene.fitted.name})"


def _multiplying(scene: Scene, bound: str) -> str:
    """Say why a decode step waits for multipliers more than for memory; nothing where it does not."""
    if bound != "compute":
        return ""
    reasons = ["their multipliers reach less than their peak"] if scene.fitted else []
    reasons += ["experts with few rows multiply padded tiles"] if scene.fitted and scene.floor.experts else []
    return " Most of that time kernels multiply longer than they read" + (
        f": {', and '.join(reasons)}." if reasons else "."
    )


def _rates(scene: Scene) -> str:
    """Return what the times of kernels have beside W and F."""
    return ", each rate with its efficiency, and overheads" if scene.fitted else ""


def _prefill(scene: Scene, steps: int, cached: int) -> str:
    """Return the formula of a prompt's steps: the first of all, or chunks after what is cached."""
    if steps == 1 and not cached:
        return prompt_formula(scene)
    return f"a chunk of q tokens after c takes {rest_formula(scene)}"


def stages_of(
    scene: Scene,
    course: Course,
    reading: Tokenizer,
    on_its_way: float,
    blocks: int,
    settings: Settings,
    prefix_caching: bool,
) -> tuple[Stage, ...]:
    """Return the stages of a request.

    Args:
        scene: model, GPU and the streams beside it.
        course: what the simulation saw.
        reading: its tokenisation.
        on_its_way: time until the engine has it, tokenisation included [s].
        blocks: KV blocks of its prompt and answer in layers that keep every token.
        settings: of the engine.
        prefix_caching: whether full blocks stay.
    """
    new, cached = sum(tokens for tokens, _ in course.chunks), course.chunks[0][1]
    prompt, output, streams = cached + new, scene.output, scene.streams
    per_token = float(sum(kernel.kv_bytes_per_token for kernel in scene.floor.attention))
    scheduled, first, last = (time - course.sent for time in (course.scheduled, course.first, course.last))
    steps = len(course.chunks)
    windows = scene.parameters.windows
    beside = [Decodes(streams, scene.context)]
    longest = max(course.chunks)
    mixed = step_operators(scene.parameters, make_work([Chunk(*longest)], beside, windows))
    middle = [*beside, Decodes(1, prompt + output / 2)]
    decoding = step_operators(scene.parameters, make_work([], middle, windows))
    decode_bound = bound_of(decoding)
    text = CHARACTERS * prompt
    seen = "every K and V of the sequence so far"
    if not dense(scene):
        seen = f"of the sequence what its layers look at ({looking(scene)})"
    experts = " (of the experts, those that its tokens choose)" if scene.floor.experts else ""
    waited = scheduled - reading.seconds
    way = on_its_way - reading.seconds
    full = (prompt + output - 1) // settings.block_tokens
    kept = kept_of(scene, full * settings.block_tokens)
    held = course.steps[-1].own_kv_blocks
    parts = f" of {settings.block_tokens:,} tokens"
    if settings.seats.windowed and held > blocks:
        parts = f" ({count(blocks)}{parts}, the others of layers with a window or a state)"
    who = (
        f"{count(cached)} tokens are in the prefix cache; the other {count(new)}"
        if cached
        else f"All {plural(new, 'token')}"
    )
    prefilling = (
        "in one step"
        if steps == 1
        else f"in {steps} chunks of up to {settings.token_budget:,} tokens less the {streams:,} of the streams"
    )
    return (
        Stage(
            name="tokenise",
            what=f"The text ({size(text)}, at {CHARACTERS} bytes per token of English) becomes {plural(prompt, 'token')} "
            f"({reading.said}).", start_s=0.0,
            duration_s=reading.seconds, steps=0, bound="host", flops=0.0, reads={"text_bytes": text},
            writes={"token_bytes": float(ID_BYTES * prompt)}, formula="tokens ÷ rate of the tokenizer", assumed=reading.assumed,
        ),
        Stage(
            name="queue",
            what=f"It waits for a place in the batch: {way_to_engine(scene, way)}, "
            f"then {seconds(max(waited - way, 0.0))} for the step that is running (it comes in the middle of one).",
            start_s=reading.seconds, duration_s=waited, steps=0, bound="queue", flops=0.0, reads={}, writes={},
            formula="way to the engine + what is left of the running step: t_decode/2 on average",
            assumed=not arrivals_fitted(scene.fitted),
        ),
        Stage(
            name="prefill",
            what=f"{who} of the prompt pass the model {prefilling}, beside {plural(streams, 'stream')} that wait "
            "for it; K and V of each of them are written. It ends with the first token: TTFT.",
            start_s=scheduled, duration_s=first - scheduled, steps=steps, bound=bound_of(mixed),
            flops=sum(flops_of(scene.prefill(tokens, cached, floor=True)) for tokens, cached in course.chunks),
            reads={
                "weights_bytes": sum(weights_read(scene, tokens + streams) for tokens, _ in course.chunks),
                "kv_bytes": kv_read(scene, course.chunks),
                **state_moved(scene, steps),
            },
            writes={"kv_bytes": new * per_token, **state_moved(scene, steps)},
            formula=f"Σ steps T(chunk beside the streams), and the streams' tokens: {_prefill(scene, steps, cached)}",
        ),
        Stage(
            name="decode",
            what=f"{plural(output - 1, 'step')}, each one token for everybody ({streams + 1} in the batch): it reads the weights"
            f"{experts} once for all, and {seen}; it writes K and V of one token. The gaps are the TPOT."
            f"{_multiplying(scene, decode_bound)}",
            start_s=first, duration_s=last - first, steps=output - 1, bound=decode_bound,
            flops=answer_flops(scene, prompt, output - 1),
            reads={
                "weights_bytes": (output - 1) * weights_read(scene, streams + 1),
                "kv_bytes": answer_kv_read(scene, prompt, output - 1),
                **state_moved(scene, output - 1),
            },
            writes={"kv_bytes": (output - 1) * per_token, **state_moved(scene, output - 1)},
            formula=f"Σ steps T_decode = Σ kernels max(bytes/W, FLOPs/F){_rates(scene)}; bytes: weights, and what is read of each "
            f"sequence = {read_formula(scene, kept_formula(scene))}",
        ),
        Stage(
            name="stream",
            what="Each token is turned into text and sent when its step ends, while the next step runs: "
            + (
                f"the first of {output:,} tokens comes from the prefill, the others from {plural(output - 1, 'step')} of the decode loop"
                if output > 1
                else "the one token comes from the prefill"
            )
            + " (until EOS). It takes no time of the GPU.",
            start_s=first, duration_s=last - first, steps=output - 1, bound="host", flops=0.0,
            reads={"token_bytes": float(ID_BYTES * output)}, writes={"text_bytes": CHARACTERS * output},
            formula="one event per token; gaps = step times",
        ),
        Stage(
            name="free",
            what=f"Its {plural(held, 'KV block')}{parts} are free at once. "
            + (
                f"{count(kept.blocks)} full ones keep what they hold ({size(kept.bytes)}"
                f"{': ' + kept.said if kept.said else ' of K and V'}) until the room is needed: "
                "a prompt that begins with the same tokens skips their prefill."
                if prefix_caching
                else "Nothing is kept: prefix caching is off."
            ),
            start_s=last, duration_s=0.0, steps=0, bound="nothing", flops=0.0, reads={}, writes={},
            formula="blocks = ⌈(prompt + output − 1)/block⌉ (the last token is never fed back); kept: ⌊…⌋"
            + ("" if kept.alike else " of layers that keep every token, ⌈(w − 1)/block⌉ of a window w, one state"),
        ),
    )  # fmt: skip
