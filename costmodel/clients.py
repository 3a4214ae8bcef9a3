"""``closed_loop``: mean TTFT and TPOT of clients that each wait for their answer before they ask again, by the closed form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from costmodel.building import build_parameters, roofline_parameters
from costmodel.calibrations import uncalibrated
from costmodel.certainty import engine_of, find_calibration, rate_warnings, request_overheads
from costmodel.checks import positive, whole
from costmodel.deployment import Deployment, deploy
from costmodel.engine import GIB, default_max_num_seqs, default_token_budget, other_defaults
from costmodel.equations.closed_loop import Clients, Loop, solve_loop
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import Frozen
from costmodel.memory import memory_of
from costmodel.rungs import total_seconds
from costmodel.spike import mixed_steps, step_count


class ClosedLoop(Frozen):
    """``costmodel.closed_loop/1``: the answer of :func:`costmodel.closed_loop`."""

    schema_: Literal["costmodel.closed_loop/1"] = Field(default="costmodel.closed_loop/1", alias="schema")
    model: str
    gpu: str
    gpus: int
    clients: int
    prompt_tokens: int
    output_tokens: int
    headline: Literal["roofline", "calibrated"]
    calibration: str | None
    ttft_s: float
    """Mean time to first token [s]."""
    tpot_s: float
    """Mean time per output token after it [s]."""
    running: float
    """Mean number of requests that decode at a time."""
    output_tokens_per_s: float
    intervals: dict[str, tuple[float, float]] | None = None
    """``level``-intervals of ``ttft_s`` and ``tpot_s``, from rows that the calibration was not fitted to."""
    level: float | None = None
    warnings: tuple[str, ...] = ()


def closed_loop(
    clients: int = 32,
    prompt: int = 1000,
    output: int = 1000,
    gpu: str = "h100",
    model: str = "Llama-3.1-8B",
    *,
    budget: int | None = None,
    prompts_per_client: float = 10.0,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    tp: int = 1,
    ep: int = 1,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
) -> ClosedLoop:
    """Predict mean TTFT and TPOT of a closed loop: ``clients`` that send their next prompt when their last answer ends.

    See :mod:`costmodel.equations.closed_loop` for the equations. It is a closed form: prompts that queue for long, as in an overloaded
    server, need a simulation; ``warnings`` says where that is known.

    Args:
        clients: C.
        prompt, output: mean lengths [tokens].
        gpu, model, dtype, kv_dtype, compute_dtype, lora, tp, ep, engine, calibration: as in :func:`costmodel.predict`.
        budget: ``max_num_batched_tokens``; None for vLLM's default on this GPU [tokens].
        prompts_per_client: prompts in all, divided by C; the first C of them come at once.

    Returns:
        The frozen document ``costmodel.closed_loop/1``.

    Raises:
        InputError: a name, number or combination that cannot be, or a token budget that leaves no room for prompts.
    """
    formats: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype}
    deployment = deploy(model, gpu, tp=tp, ep=ep, **formats, lora=lora)
    clients = whole(clients, "clients", 1, 1_000_000)
    prompt, output = whole(prompt, "prompt", 1), whole(output, "output", 1)
    each = positive(prompts_per_client, "prompts_per_client")
    if each < 1:
        raise InputError(f"prompts_per_client must be at least 1, not {each:g}")
    room = whole(default_token_budget(deployment) if budget is None else budget, "budget", 1) - clients
    if room < 1:
        raise InputError(f"a budget of {room + clients} tokens leaves no room for a prompt beside {clients} clients")
    fitted = find_calibration(calibration, deployment, engine)
    rates = CalibratedRates(fitted) if fitted else None
    parameters = build_parameters(deployment, rates)
    who = Clients(
        count=clients,
        output_tokens=output,
        burst_share=1 / (2 * each),
        burst_prompts=max(1, min(clients, room // prompt)),
        prompt_steps=step_count(prompt, 1, room),
    )
    loop = _solve(parameters, who, prompt, room, fitted)
    return ClosedLoop(
        model=deployment.architecture.name,
        gpu=deployment.profile.name,
        gpus=deployment.gpus,
        clients=clients,
        prompt_tokens=prompt,
        output_tokens=output,
        headline="calibrated" if fitted else "roofline",
        calibration=fitted.name if fitted else None,
        ttft_s=loop.ttft,
        tpot_s=loop.tpot,
        running=loop.running,
        output_tokens_per_s=clients * output / (loop.ttft + output * loop.tpot),
        intervals=_intervals(fitted, loop, deployment, prompt, output) if fitted else None,
        level=min((item.level for item in fitted.end_to_end.values()), default=None) if fitted else None,
        warnings=(
            *_warnings(deployment, clients, prompt, output, room + clients),
            *other_defaults(engine_of(fitted, engine)),
            *(rate_warnings(rates) if rates else [uncalibrated(deployment, engine, calibration, loop=True)]),
        ),
    )


def _intervals(
    fitted: Calibration, loop: Loop, deployment: Deployment, prompt: int, output: int
) -> dict[str, tuple[float, float]] | None:
    """Return the intervals of TTFT and TPOT, none of which begins below a prompt or a token alone at datasheet rates."""
    if not fitted.end_to_end:
        return None
    floor = roofline_parameters(deployment)
    alone = {
        "ttft": make_work([Chunk(prompt)], windows=floor.windows),
        "tpot": make_work(decodes=[Decodes(1, prompt + output // 2)], windows=floor.windows),
    }
    found = {}
    for name, item in fitted.end_to_end.items():
        value = loop.ttft if name == "ttft" else loop.tpot
        least = float(total_seconds(step_operators(floor, alone[name])))
        found[f"{name}_s"] = (max(value * (1 + item.low), min(least, value)), value * (1 + item.high))
    return found


def _warnings(deployment: Deployment, clients: int, prompt: int, output: int, budget: int) -> Iterator[str]:
    """Yield what the closed form leaves out for these clients: memory and places."""
    memory = memory_of(deployment, clients, prompt + output, prompt, 1, budget)
    if not memory.fits:
        yield (
            f"{clients} clients need {memory.kv_needed_bytes / GIB:.1f} GiB of KV cache per GPU, "
            f"{max(memory.kv_available_bytes, 0) / GIB:.1f} GiB are free: prompts would queue, which this does not count"
        )
    if clients > (places := default_max_num_seqs(deployment)):
        yield f"{clients} clients are more than the {places} sequences that a default server runs at once: prompts would queue"


def _solve(parameters: Parameters, clients: Clients, prompt: int, room: int, fitted: Calibration | None) -> Loop:
    """Solve the loop with the step equations of one deployment."""
    context = prompt + clients.output_tokens / 2
    windows = parameters.windows
    chunks = list(mixed_steps(prompt, 1, room))

    def seconds(prefills: Any, running: float) -> float:
        groups = [Decodes(running, context)] if running > 0 else []
        return float(total_seconds(step_operators(parameters, make_work(prefills, groups, windows))))

    def decode(running: float) -> float:
        return seconds([], max(running, 1.0))

    def mixed(running: float) -> float:
        others = max(running - 1, 0.0) if clients.count > 1 else 0.0
        return sum(seconds(step, others) for step in chunks)

    burst = mixed(1.0) if len(chunks) > 1 else seconds([Chunk(float(prompt))] * int(clients.burst_prompts), 0.0)
    request, waited = request_overheads(fitted)
    return solve_loop(clients, decode, mixed, burst, request, waited)
