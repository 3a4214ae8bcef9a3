"""``closed_loop``: the document, what it takes from a calibration, identities and directions, and the questions that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

import costmodel
from costmodel.building import build_parameters
from costmodel.clients import ClosedLoop, closed_loop
from costmodel.deployment import deploy
from costmodel.equations.step import step_times
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.shipped import shipped_calibration
from costmodel.prediction import predict
from tests.model.samples import CALIBRATION, form
from tests.strategies import calibration_of

KEYS = {
    "schema", "model", "gpu", "gpus", "clients", "prompt_tokens", "output_tokens", "headline", "calibration", "ttft_s", "tpot_s",
    "running", "output_tokens_per_s", "intervals", "level",
}  # fmt: skip
"""Keys that scripts rely on: none may be renamed, others may be added."""


def with_requests(per_request_s: float, steps_waited: float, **more: Any) -> Calibration:
    """Return the sample calibration with a request's overheads, and whatever else."""
    request = form("request", per_request_s=per_request_s, steps_waited=steps_waited)
    dumped = calibration_of({"request": request}).model_dump(by_alias=True)
    operators = CALIBRATION.model_dump(by_alias=True)["operators"] | dumped["operators"]
    return Calibration.model_validate(dumped | {"operators": operators} | more)


# --- the document -------------------------------------------------------------------------------------------------------


def test_the_document_as_json() -> None:
    loop = costmodel.closed_loop(16, 2000, 300, "h100", calibration="none")
    document = json.loads(loop.model_dump_json())
    assert document.keys() >= KEYS
    assert document["schema"] == "costmodel.closed_loop/1"
    assert (document["model"], document["gpu"]) == ("Llama-3.1-8B", "NVIDIA H100 SXM5 80GB")
    assert [document[key] for key in ("gpus", "clients", "prompt_tokens", "output_tokens")] == [1, 16, 2000, 300]
    assert ClosedLoop.model_validate(document) == loop
    with pytest.raises(ValidationError, match="frozen"):
        loop.clients = 1


def test_without_a_calibration_it_is_the_roofline() -> None:
    loop = closed_loop(calibration="none")
    assert (loop.headline, loop.calibration, loop.intervals, loop.level) == ("roofline", None, None, None)


@pytest.mark.parametrize(("gpu", "engine"), [("rtx-4090", "vllm"), ("h100-sxm", "vllm"), ("h100-sxm", "trtllm")])
def test_by_default_it_takes_the_shipped_calibration(gpu: str, engine: str) -> None:
    shipped = shipped_calibration(gpu, engine)
    assert shipped is not None
    loop = closed_loop(gpu=gpu, engine=engine, prompt=500)
    assert (loop.headline, loop.calibration) == ("calibrated", shipped.name)
    assert loop == closed_loop(gpu=gpu, engine=engine, prompt=500, calibration=shipped)
    assert (loop.intervals is not None) == bool(shipped.end_to_end)
    assert loop.tpot_s > closed_loop(gpu=gpu, prompt=500, calibration="none").tpot_s


# --- numbers ------------------------------------------------------------------------------------------------------------


def test_one_client_by_the_steps_of_predict() -> None:
    # Alone: TPOT is the decode step at prompt + half the answer; a prompt waits for nobody's step but, by default, half of its own.
    loop = closed_loop(1, 1000, 200, calibration="none", prompts_per_client=10)
    steps = predict(1000, streams=1, context=1100, calibration="none").rungs.roofline
    # Mean requests that decode are a little under one, so they read a little less.
    assert loop.tpot_s == pytest.approx(steps.decode_step_s, rel=1e-3)
    share = loop.running * steps.prefill_s / (200 * loop.tpot_s)
    under_way = (1 - share) * steps.decode_step_s + share * steps.prefill_s
    assert loop.ttft_s == pytest.approx(0.9 * (0.5 * under_way + steps.prefill_s) + 0.1 * steps.prefill_s, rel=1e-3)


def test_many_clients_by_their_steps() -> None:
    # 32 clients, room for 8,192 − 32 tokens in a step: the first 32 prompts come in four steps of eight, and the mean one waits for 2½.
    loop = closed_loop(32, 1000, 200, calibration="none", prompts_per_client=5)
    parameters = build_parameters(deploy("Llama-3.1-8B", "h100"))

    def seconds(prompts: int, streams: float) -> float:
        groups = [Decodes(streams, 1100)] if streams else []
        return float(step_times(parameters, make_work([Chunk(1000)] * prompts, groups, parameters.windows)).total)

    decode, mixed = seconds(0, loop.running), seconds(1, loop.running - 1)
    assert loop.tpot_s == pytest.approx(decode + 0.9 * (loop.running - 1) / 200 * (mixed - decode), rel=1e-9)
    share = loop.running * mixed / (200 * loop.tpot_s)
    steady = 0.5 * ((1 - share) * decode + share * mixed) + mixed
    assert loop.ttft_s == pytest.approx(0.8 * steady + 0.2 * 2.5 * seconds(8, 0), rel=1e-9)


def test_chunks_of_a_lone_prompt_take_no_less_than_the_whole() -> None:
    whole, chunked = (closed_loop(1, 4000, 200, calibration="none", budget=budget) for budget in (4001, 1001))
    assert whole.ttft_s < chunked.ttft_s  # weights are read four times


def test_chunks_cost_the_streams_what_they_add_to_decode_steps() -> None:
    # Three steps more read the weights three times more, but take the place of three decode steps: TPOT hardly changes.
    whole, chunked = (closed_loop(32, 4000, 1000, calibration="none", budget=budget) for budget in (4032, 1032))
    assert chunked.tpot_s == pytest.approx(whole.tpot_s, rel=0.05)


@pytest.mark.parametrize("clients", [1, 8, 128])
def test_tokens_per_second_are_those_of_all_answers(clients: int) -> None:
    loop = closed_loop(clients, 800, 400, calibration="none")
    assert loop.output_tokens_per_s == pytest.approx(clients * 400 / (loop.ttft_s + 400 * loop.tpot_s), rel=1e-12)
    # The same by those that decode: each makes a token in a mean TPOT.
    assert loop.output_tokens_per_s == pytest.approx(loop.running / loop.tpot_s, rel=1e-9)
    assert 0 < loop.running <= clients


@pytest.mark.parametrize("calibration", ["none", CALIBRATION])
def test_no_token_is_faster_than_the_decode_step_of_the_roofline(calibration: str | Calibration) -> None:
    loop = closed_loop(32, 1000, 1000, calibration=calibration)
    floor = predict(1000, streams=int(loop.running), context=1500, calibration="none").rungs.roofline
    assert loop.tpot_s > floor.decode_step_s
    assert loop.ttft_s > floor.prefill_s


def test_more_clients_and_longer_prompts_take_longer() -> None:
    def times(clients: int, prompt: int, output: int) -> tuple[float, float]:
        loop = closed_loop(clients, prompt, output, calibration="none")
        return loop.ttft_s, loop.tpot_s

    usual = times(16, 1000, 500)
    for more in ((64, 1000, 500), (16, 3000, 500)):
        assert all(slow > fast for slow, fast in zip(times(*more), usual, strict=True))


def test_sizes_of_the_deployment_are_taken() -> None:
    one = closed_loop(calibration="none")
    two = closed_loop(calibration="none", tp=2)
    eight = closed_loop(calibration="none", dtype="fp8")
    assert (one.gpus, two.gpus) == (1, 2)
    for faster in (two, eight):
        assert faster.tpot_s < one.tpot_s
        assert faster.ttft_s < one.ttft_s
        assert faster.output_tokens_per_s > one.output_tokens_per_s
    assert closed_loop(calibration="none", kv_dtype="fp8").tpot_s < one.tpot_s
    mixture = closed_loop(model="Qwen3-30B-A3B", tp=2, ep=2, calibration="none")
    assert (mixture.model, mixture.gpus) == ("Qwen3-30B-A3B", 2)


def test_the_first_burst_counts_less_among_more_prompts() -> None:
    first, ten, many = (closed_loop(32, calibration="none", prompts_per_client=each).ttft_s for each in (1, 10, 1000))
    assert first > ten > many


# --- calibration --------------------------------------------------------------------------------------------------------


def test_time_outside_the_steps_is_added_to_the_first_token() -> None:
    # One client: with w = 0, nothing else depends on it.
    plain, later = (closed_loop(1, calibration=with_requests(seconds, 0.0)) for seconds in (0.0, 0.05))
    assert later.ttft_s - plain.ttft_s == pytest.approx(0.05, rel=1e-9)
    assert later.tpot_s == pytest.approx(plain.tpot_s, rel=1e-3)


def test_steps_waited_are_steps_under_way() -> None:
    none, two = (closed_loop(1, 10, calibration=with_requests(0.0, waited)) for waited in (0.0, 2.0))
    assert two.ttft_s - none.ttft_s == pytest.approx(0.9 * 2 * none.tpot_s, rel=0.01)


def test_intervals_are_around_the_value() -> None:
    residuals = {"ttft": {"level": 0.8, "low": -0.2, "high": 0.3}, "tpot": {"level": 0.8, "low": -0.1, "high": 0.05}}
    loop = closed_loop(calibration=with_requests(0.0, 0.5, end_to_end=residuals))
    assert loop.level == 0.8
    assert loop.intervals is not None
    assert loop.intervals["ttft_s"] == pytest.approx((0.8 * loop.ttft_s, 1.3 * loop.ttft_s))
    assert loop.intervals["tpot_s"] == pytest.approx((0.9 * loop.tpot_s, 1.05 * loop.tpot_s))
    assert closed_loop(calibration=CALIBRATION).intervals is None


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"clients": 2.5}, "clients must be a whole number, not 2.5"),
        ({"clients": "many"}, "clients must be a whole number, not 'many'"),
        ({"prompt": 0}, "prompt must be at least 1, not 0"),
        ({"output": 0}, "output must be at least 1, not 0"),
        ({"output": None}, "output must be a whole number, not None"),
        ({"budget": 32}, "a budget of 32 tokens leaves no room for a prompt beside 32 clients"),
        ({"budget": 0}, "budget must be at least 1, not 0"),
        ({"clients": 9000}, "a budget of 8192 tokens leaves no room for a prompt beside 9000 clients"),
        ({"prompts_per_client": -1}, "prompts_per_client must be a finite number above zero, not -1"),
        ({"prompts_per_client": "ten"}, "prompts_per_client must be a number, not 'ten'"),
        ({"engine": "vllmm"}, "unknown engine 'vllmm'"),
        ({"gpu": "h10O"}, "unknown GPU 'h10O'"),
        ({"model": "Llama-3.1-9B"}, "Llama-3.1-9B"),
        ({"gpu": "a100", "dtype": "nvfp4", "compute_dtype": "fp4"}, "fp4"),
        ({"calibration": "missing.toml"}, "missing.toml: no such file"),
        ({"gpu": "h200", "calibration": CALIBRATION}, "is for h100-sxm, but the GPU is h200"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        closed_loop(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
