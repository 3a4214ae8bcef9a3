"""One meaning of TTFT in all plans: from when a prompt is sent, as `simulate load` has it."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel
from costmodel.simulation.results import Simulation

IDLE: dict[str, Any] = {"rate": 0.1, "requests": 5, "output": 20}


def alone(prompt: int, **more: Any) -> Simulation:
    """Return a simulation of prompts that find the server idle."""
    return costmodel.simulate_load(prompt=prompt, **IDLE, **more)


def test_all_plans_and_the_load_agree() -> None:
    result = alone(8000).result
    assert result is not None
    assert result.ttft is not None
    seen = result.ttft.p50_s
    fleet = costmodel.plan_replicas(ttft=1.0, prompt=8000, **IDLE)
    [part] = costmodel.plan_gpu(streams=1, ttft=1.0, gpus=["h100"]).options
    chunk = costmodel.plan_chunk(streams=1, itl=1.0, confirm=False).points[-1]
    batch = costmodel.plan_batch(itl=0.205, prompt=8000, confirm=False).at
    assert batch is not None
    assert fleet.at is not None
    assert fleet.at.ttft_s == pytest.approx(seen, rel=1e-9)
    assert chunk.ttft_s == pytest.approx(part.ttft_s)
    step = costmodel.predict(streams=1).best.decode_step_s
    # Of a stream the prompt waits for one step at most, and is in steps with it; of many, longer.
    assert part.ttft_s is not None
    assert batch.ttft_s is not None
    assert seen < part.ttft_s < seen + 2 * step < batch.ttft_s


def test_a_limit_that_a_prompt_holds_is_held_by_the_load() -> None:
    plan = costmodel.plan_prompt(1, ttft=0.250, chunk="engine", confirm=False)
    assert plan.advice is not None
    prompt = plan.advice.prompt_tokens
    assert prompt is not None
    found = alone(prompt, limits=costmodel.Limits(ttft=0.250)).result
    assert found is not None
    assert found.goodput is not None
    assert found.goodput.share == 1.0
    more = alone(prompt + 500, limits=costmodel.Limits(ttft=0.250)).result
    assert more is not None
    assert more.goodput is not None
    assert more.goodput.share == 0.0


def test_what_lies_before_the_engine_is_that_of_the_calibration() -> None:
    """t_0 + t_1·8,000 + k decode steps of 32 streams; what is left is the TTFT of the long-prompt experiment."""
    plan = costmodel.plan_chunk(itl=0.050)
    assert plan.at is not None
    server = alone(8000).server
    assert plan.at.before_engine_s is not None
    fixed = plan.at.before_engine_s - 8000 * server.request_overhead_per_prompt_token_s
    assert 0 < server.request_overhead_s < fixed  # of more streams, whose steps are longer
    found = costmodel.simulate_interference(chunk=plan.at.value, first=5.0, duration=30.0).injected
    assert found is not None
    assert found.ttft is not None
    assert plan.at.simulated_ttft_s == pytest.approx(plan.at.before_engine_s + found.ttft.max_s)
    assert any("before the engine has the prompt" in note for note in plan.notes)


@pytest.mark.parametrize("server", [{"decode_s": 0.01, "prefill_s": 0.15}, {"rung": "roofline"}])
def test_without_a_calibration_nothing_lies_before_the_engine(server: dict[str, Any]) -> None:
    plan = costmodel.plan_chunk(itl=0.050, **server)
    assert plan.at is not None
    assert plan.at.before_engine_s == 0.0
    assert not any("before the engine" in note for note in plan.notes)


def test_it_is_no_load_of_the_engine() -> None:
    """Whether prompts come too fast is a question of the engine's time alone."""
    [part] = costmodel.plan_gpu(ttft=1.0, every=0.22, gpus=["h100"], most=1).options
    assert part.meets
    assert part.ttft_s is not None
    assert part.ttft_s > 0.22


@pytest.mark.parametrize("question", ["replicas", "disaggregation", "refused"])
def test_fleets_say_what_lies_before_the_engine(question: str) -> None:
    asked = {"rate": 2.0, "prompt": 1000, "output": 20, "requests": 10}
    if question == "disaggregation":
        plan = costmodel.plan_disaggregation(**asked, ttft=0.5, compare=False)
    else:
        plan = costmodel.plan_replicas(**asked, ttft=0.5 if question == "replicas" else 0.001)
    assert plan.feasible == (question != "refused")
    [said] = [note for note in plan.notes if "before the engine has the request" in note]
    assert "µs per prompt token" in said
