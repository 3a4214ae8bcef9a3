"""``closed_loop``: mean TTFT and TPOT of clients that each wait for their answer before they ask again, by the closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from costmodel.building import build_parameters
from costmodel.certainty import find_calibration, request_overheads
from costmodel.checks import positive, whole
from costmodel.deployment import deploy
from costmodel.engine import default_token_budget
from costmodel.equations.closed_loop import Clients, Loop, solve_loop
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import Frozen
from costmodel.rungs import total_seconds
from costmodel.spike import mixed_steps


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
    tp: int = 1,
    ep: int = 1,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
) -> ClosedLoop:
    """Predict mean TTFT and TPOT of a closed loop: ``clients`` that send their next prompt when their last answer ends.

    See :mod:`costmodel.equations.closed_loop` for the equations. It is a closed form: prompts that queue for long, as in an overloaded
    server, need a simulation.

    Args:
        clients: C.
        prompt, output: mean lengths [tokens].
        gpu, model, dtype, kv_dtype, compute_dtype, tp, ep, engine, calibration: as in :func:`costmodel.predict`.
        budget: ``max_num_batched_tokens``; None for vLLM's default on this GPU [tokens].
        prompts_per_client: prompts in all, divided by C; the first C of them come at once.

    Returns:
        The frozen document ``costmodel.closed_loop/1``.

    Raises:
        InputError: a name, number or combination that cannot be, or a token budget that leaves no room for prompts.
    """
    deployment = deploy(model, gpu, tp=tp, ep=ep, dtype=dtype, kv_dtype=kv_dtype, compute_dtype=compute_dtype)
    clients = whole(clients, "clients", 1, 1_000_000)
    prompt, output = whole(prompt, "prompt", 1), whole(output, "output", 1)
    share = 1 / (2 * max(positive(prompts_per_client, "prompts_per_client"), 1.0))
    room = whole(default_token_budget(deployment) if budget is None else budget, "budget", 1) - clients
    if room < 1:
        raise InputError(f"a budget of {room + clients} tokens leaves no room for a prompt beside {clients} clients")
    fitted = find_calibration(calibration, deployment, engine)
    parameters = build_parameters(deployment, CalibratedRates(fitted) if fitted else None)
    loop = _solve(
        parameters, Clients(clients, output, share, max(1, min(clients, room // prompt))), prompt, room, fitted
    )
    intervals = None
    if fitted is not None and fitted.end_to_end:
        values = {"ttft": loop.ttft, "tpot": loop.tpot}
        intervals = {
            f"{name}_s": (values[name] * (1 + item.low), values[name] * (1 + item.high))
            for name, item in fitted.end_to_end.items()
        }
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
        intervals=intervals,
        level=min(item.level for item in fitted.end_to_end.values()) if fitted and fitted.end_to_end else None,
    )


def _solve(parameters: Parameters, clients: Clients, prompt: int, room: int, fitted: Calibration | None) -> Loop:
    """Solve the loop with the step equations of one deployment."""
    context = prompt + clients.output_tokens / 2
    windows = parameters.windows
    chunks = list(mixed_steps(prompt, 1, room))

    def seconds(prefills: Any, running: float) -> float:
        groups = [Decodes(running, context)] if running > 0 else []
        return float(total_seconds(step_operators(parameters, make_work(prefills, groups, windows))))

    def decode(running: float) -> float:
        return seconds([], max(running, 1e-9))

    def mixed(running: float) -> float:
        others = max(running - 1, 0.0) if clients.count > 1 else 0.0
        # Steps of one prompt beyond the first take the place of decode steps.
        return sum(seconds(step, others) for step in chunks) - (len(chunks) - 1) * decode(running)

    burst = seconds([Chunk(float(min(prompt, room)))] * int(clients.burst_prompts), 0.0)
    if prompt > room:
        burst = mixed(1.0)
    request, waited = request_overheads(fitted)
    return solve_loop(clients, decode, mixed, burst, request, waited)
