"""What users feel: the lesson, the agreement with what is predicted in closed form, and what must hold of any load."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from costmodel.hardware.errors import InputError
from costmodel.prediction import predict
from costmodel.simulation import simulating
from costmodel.simulation.interfering import simulate_interference
from costmodel.simulation.jumping import JumpingEngine
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.pools import Pools
from costmodel.simulation.requests import ClosedLoop, Listed
from costmodel.simulation.results import Percentiles, Result, Simulation
from costmodel.simulation.running import Limits, engine_for
from costmodel.simulation.server import make_server
from costmodel.simulation.settings import Scheduler, Settings
from costmodel.simulation.simulating import run_load, simulate_load, simulate_trace
from costmodel.simulation.stepping import Engine, Progress

DECODE_S, PREFILL_S = 0.01, 0.1464
LESSON: Any = {"decode_s": DECODE_S, "prefill_s": PREFILL_S}
"""The two step times of the lesson [s]."""


def results(found: Simulation) -> tuple[Result, Result, Percentiles, Percentiles]:
    """Return baseline and injected, and the percentiles of their gaps."""
    before, after = found.baseline, found.injected
    assert before is not None
    assert after is not None
    assert before.itl is not None
    assert after.itl is not None
    return before, after, before.itl, after.itl


# --- the lesson ---------------------------------------------------------------------------------------------------------------


def test_a_prompt_every_ten_seconds_is_one_gap_in_a_thousand() -> None:
    found = simulate_interference(**LESSON)
    before, after, calm, felt = results(found)
    assert after.gaps_per_stream == pytest.approx(3946, abs=5)
    assert after.stalls == after.stall_detail.count == 4 * 32
    assert after.stalls / after.gaps == pytest.approx(0.00101, abs=0.00001)
    for name in ("p50_s", "p90_s", "p99_s"):
        assert getattr(felt, name) == pytest.approx(getattr(calm, name), rel=1e-9) == pytest.approx(DECODE_S)
    assert felt.p99_9_s == pytest.approx(PREFILL_S)
    assert felt.max_s == pytest.approx(PREFILL_S)
    assert calm.max_s == pytest.approx(DECODE_S)
    assert before.stalls == 0


def test_a_prompt_every_second_is_what_one_in_a_hundred_feels() -> None:
    _, after, calm, felt = results(simulate_interference(every=1.0, first=0.5, **LESSON))
    assert after.stalls == 40 * 32
    assert felt.p99_s == pytest.approx(PREFILL_S)
    assert felt.p50_s == pytest.approx(calm.p50_s)


def test_half_the_step_time_moves_the_percentile_back() -> None:
    """A faster decode makes more gaps: 4 of 7,900 are one in two thousand, and p99.9 stays flat."""
    _, _, calm, felt = results(simulate_interference(decode_s=0.005, prefill_s=PREFILL_S))
    assert felt.p99_9_s == pytest.approx(calm.p99_9_s)
    assert felt.max_s == pytest.approx(PREFILL_S)


def test_streams_are_there_from_the_beginning() -> None:
    found = simulate_interference(gpu="h100")
    before, _, calm, _ = results(found)
    assert found.server.request_overhead_s == 0
    assert before.gaps_per_stream == math.floor(40.0 / calm.max_s)
    assert before.busy_share == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("options", [LESSON, {"gpu": "h100"}, {"gpu": "h100", "asynchronous": True}])
def test_spikes_are_where_prompts_are_injected(options: Any) -> None:
    found = simulate_interference(**options)
    assert [spike.injected_s for spike in found.spikes] == [5.0, 15.0, 25.0, 35.0]
    _, _, calm, felt = results(found)
    step = calm.max_s
    for spike in found.spikes:
        # an engine that schedules ahead has the next step scheduled when the prompt comes, and a request takes a while to get there
        late = found.server.request_overhead_s + step * (2 if found.server.asynchronous else 1)
        assert -1e-9 <= spike.time_s - spike.injected_s <= late + 1e-9
        assert spike.height_s == pytest.approx(felt.max_s)
        assert spike.ttft_s == pytest.approx(spike.time_s + spike.height_s - spike.injected_s)
        assert (spike.steps, spike.prompt_tokens) == (1, 8000)


def test_chunks_lower_the_tallest_gap_and_lengthen_the_wait_for_the_prompt() -> None:
    whole, chunked = simulate_interference(gpu="h100"), simulate_interference(gpu="h100", chunk=512)
    _, after, _, felt = results(whole)
    _, after_chunked, _, felt_chunked = results(chunked)
    assert felt_chunked.max_s < felt.max_s / 3
    assert after.ttft is not None
    assert after_chunked.ttft is not None
    assert after_chunked.ttft.p50_s > after.ttft.p50_s
    assert [spike.steps for spike in chunked.spikes] == [math.ceil(8000 / 480)] * 4


def test_streams_that_grow_step_more_slowly_as_they_do() -> None:
    _, _, held, _ = results(simulate_interference(gpu="h100"))
    _, _, grown, _ = results(simulate_interference(gpu="h100", grow=True))
    assert held.p50_s == pytest.approx(held.max_s, rel=1e-9)
    assert held.max_s < grown.p50_s < grown.max_s


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheduler", get_args(Scheduler))
def test_every_scheduler_stalls_streams_by_a_prompt_at_most_and_serves_it(scheduler: str, asynchronous: bool) -> None:
    found = simulate_interference(scheduler=scheduler, asynchronous=asynchronous, chunk=2048, **LESSON)
    _, after, _, felt = results(found)
    assert after.requests.done == 4
    whole = scheduler in ("prefill-first", "separate")
    most = DECODE_S + PREFILL_S if whole else PREFILL_S * 2048 / 8000
    assert DECODE_S < felt.max_s <= most + 1e-9


# --- what is predicted --------------------------------------------------------------------------------------------------------

CONFIGURATIONS = 60
MARGIN = 0.05
"""Configurations whose share of spikes is so close to a percentile are not asked whether it moves: predicted gaps are real numbers,
simulated ones are counted, and where the run begins and ends decides."""


def configuration(seed: int) -> dict[str, Any] | None:
    """Return a random configuration; None where the last chunk is a single token, which the engine runs as a decode."""
    draw = random.Random(seed)
    model = draw.choice(
        ["Llama-3.1-8B", "Llama-3.2-1B", "Qwen3-30B-A3B", "gpt-oss-20b", "gemma-3-12b-it", "DeepSeek-V2-Lite"]
    )
    streams, prompt = draw.choice([1, 4, 32, 100, 256]), round(math.exp(draw.uniform(math.log(100), math.log(40_000))))
    chunk = draw.choice([None, streams + draw.choice([64, 256, 1000, 4096])])
    if chunk is not None and prompt % (chunk - streams) == 1:
        return None
    return {
        "model": model, "gpu": draw.choice(["h100", "a100", "l40s", "b200", "h200", "t4" if model == "Llama-3.2-1B" else "h100"]),
        "tp": draw.choice([1, 2, 4]), "prompt": prompt, "streams": streams, "context": draw.choice([1, 100, 500, 5000]), "chunk": chunk,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_simulation_and_prediction_agree(seed: int) -> None:
    asked = configuration(seed)
    if asked is None:
        asked = configuration(1000 + seed)
        assert asked is not None
    draw = random.Random(-1 - seed)
    rare = predict(**asked, every=1e6)
    # from a period half filled with prefill to one in which no percentile below the maximum sees it
    steps, decode = rare.spike.chunks, getattr(rare.rungs, rare.headline).decode_step_s
    share = math.exp(draw.uniform(math.log(1e-4), math.log(0.5)))
    every = max(2 * (rare.spike.duration_s + decode), steps * decode / share, 0.1)
    predicted = predict(**asked, every=every).spike
    assert not predicted.overload
    periods = max(4, round(2000 * predicted.fraction_of_gaps / steps))
    found = simulate_interference(
        **asked, every=every, first=every / 4, duration=periods * every, kv_tokens=asked["streams"] * 6000 + 10**6
    )
    _, after, calm, felt = results(found)
    assert felt.max_s == pytest.approx(predicted.height_s, rel=0.01)
    assert felt.max_s == pytest.approx(predicted.height_s, rel=1e-9)  # of the same equations
    assert [spike.steps for spike in found.spikes] == [predicted.chunks] * periods
    for spike in found.spikes:
        assert spike.duration_s == pytest.approx(predicted.duration_s, rel=1e-9)
    decided = 0
    for name, share_below in (("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999)):
        if abs(predicted.fraction_of_gaps / (1 - share_below) - 1) > MARGIN:
            moved = getattr(felt, f"{name}_s") > calm.max_s * (1 + 1e-9)
            assert moved == predicted.moves[name.replace("_", ".")], (name, predicted.fraction_of_gaps, asked, every)
            decided += 1
    assert decided >= 2
    assert after.gaps_per_stream == pytest.approx(
        periods * steps / predicted.fraction_of_gaps, rel=0.01, abs=2 * periods
    )


def test_configurations_are_many_and_both_answers_are_among_them() -> None:
    asked = [configuration(seed) for seed in range(CONFIGURATIONS)]
    assert sum(each is not None for each in asked) >= 50
    assert len({(each["model"], each["gpu"]) for each in asked if each}) > 20
    assert {each["chunk"] is None for each in asked if each} == {True, False}


# --- any load -----------------------------------------------------------------------------------------------------------------


def load(**options: Any) -> Result:
    found = simulate_load(**{**LESSON, **options}).result
    assert found is not None
    return found


def test_without_load_a_request_takes_its_own_steps() -> None:
    made = load(clients=1, requests=5, prompt=800, output=11)
    assert made.ttft is not None
    assert made.e2e is not None
    assert made.queueing is not None
    assert made.ttft.mean_s == pytest.approx(PREFILL_S)
    assert made.ttft.max_s == pytest.approx(PREFILL_S)
    assert made.e2e.max_s == pytest.approx(PREFILL_S + 10 * DECODE_S)
    assert made.queueing.max_s == 0
    assert made.busy_share == pytest.approx(1.0)


@pytest.mark.parametrize("gpu", ["h100", "a100", "l40s"])
def test_one_client_waits_for_the_predicted_steps_and_the_way_to_the_engine(gpu: str) -> None:
    asked = predict(gpu=gpu, prompt=1000, streams=1, context=1000)
    rung = asked.rungs.calibrated
    assert rung is not None
    found = simulate_load(1, requests=3, prompt=1000, output=3, gpu=gpu)
    made = found.result
    assert made is not None
    assert made.ttft is not None
    assert made.tpot is not None
    server = make_server(ServerOptions(gpu=gpu), 1000)
    way = found.server.request_overhead_s + found.server.request_overhead_per_prompt_token_s * 1000
    assert made.ttft.max_s == pytest.approx(way + server.clock.mixed([(1000, 0)], 0, [0.0]), rel=1e-9)
    assert made.tpot.p50_s == pytest.approx(rung.decode_step_s, rel=0.001)


@pytest.mark.parametrize("options", [{"clients": 7}, {"rate": 3.0}, {"rate": 50.0, "burstiness": 0.3}])
@pytest.mark.parametrize("scheduler", get_args(Scheduler))
def test_every_request_is_done_or_refused_and_every_token_counted(options: Any, scheduler: str) -> None:
    made = load(
        requests=70, prompt=900, output=60, spread=0.9, seed=5, scheduler=scheduler, max_model_len=850, **options
    )
    counts = made.requests
    assert counts.sent == 70
    assert counts.unfinished == 0
    assert counts.done + sum(counts.refused.values()) == 70
    assert counts.refused["prompt longer than max_model_len allows"] > 0
    assert made.output_tokens == made.gaps + counts.done
    assert made.steps <= made.output_tokens + counts.done
    assert 0 < made.busy_share <= 1


def test_more_load_never_shortens_the_wait() -> None:
    waits = []
    for rate in (0.5, 2.0, 5.0, 6.5, 8.0, 20.0, 200.0):
        made = load(rate=rate, requests=300, burstiness=math.inf, prompt=1000, output=20)
        assert made.ttft is not None
        waits.append(made.ttft.mean_s)
    assert all(after > before - 1e-9 for before, after in itertools.pairwise(waits))
    assert waits[0] == pytest.approx(PREFILL_S, abs=2 * DECODE_S)


def test_equal_gaps_are_told_in_the_document() -> None:
    found = simulate_load(rate=5.0, requests=5, burstiness=math.inf, **LESSON)
    assert found.workload["burstiness"] == "inf"
    assert found.workload["rate_per_s"] == 5.0


def test_beyond_its_capacity_a_server_has_a_queue_that_grows_until_the_end() -> None:
    """8,192 tokens of prompt in 8,192/1,000 · 0.1464 s: 6.83 requests/s at most; at 10 requests/s the queue grows by 3 a second."""
    options: dict[str, Any] = {"burstiness": math.inf, "prompt": 1000, "output": 1}
    below, beyond = load(rate=6.0, requests=600, **options), load(rate=10.0, requests=600, **options)
    assert below.ttft is not None
    assert beyond.ttft is not None
    assert below.ttft.max_s < 3 * PREFILL_S
    assert beyond.ttft.max_s == pytest.approx(600 * PREFILL_S - 60, abs=2)
    assert beyond.duration_s == pytest.approx(600 * PREFILL_S, rel=0.01)
    assert beyond.busy_share > 0.99
    assert beyond.waiting_max > 100 > below.waiting_max


@pytest.mark.parametrize("options", [{"clients": 5}, {"rate": 3.0, "burstiness": 0.5}])
def test_a_seed_gives_the_same_document_and_another_seed_another(options: Any) -> None:
    base = {"requests": 60, "prompt": 700, "output": 50, "spread": 0.5, **options, **LESSON}
    first, again, other = (simulate_load(**base, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.result != other.result


def test_documents_come_back_from_json() -> None:
    for found in (
        simulate_interference(limits=Limits(stall=0.1), **LESSON),
        simulate_load(3, requests=9, limits=Limits(ttft=1.0, tpot=0.1), **LESSON),
    ):
        assert Simulation.model_validate_json(found.model_dump_json(by_alias=True)) == found


def test_the_engine_that_jumps_is_taken_where_it_can_be() -> None:
    assert engine_for(Settings(100, 100)) is JumpingEngine
    assert engine_for(Settings(100, 100, policy="priority")) is Engine


def test_goodput_counts_who_was_served_in_time() -> None:
    made = load(clients=20, requests=100, prompt=1000, output=10, limits=Limits(ttft=2.0))
    assert made.goodput is not None
    assert 0 < made.goodput.requests < 100
    assert (
        load(clients=20, requests=100, prompt=1000, output=10, limits=Limits(ttft=1e6, tpot=1e6, e2e=1e6)).goodput
        is not None
    )


TRACE = """arrival_s,prompt_tokens,output_tokens
0.0,500,3
0.5,800,2
2.0,300,1
4.0,5000,4
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of four requests, the longest of 5,000 tokens."""
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_a_trace_is_served_as_it_was_sent(trace: Path) -> None:
    found = simulate_trace(trace, decode_s=0.01, prefill_s=0.5)
    assert found.result is not None
    assert found.result.requests.done == 4
    assert found.result.output_tokens == 10
    assert found.result.ttft is not None
    assert found.result.ttft.max_s == pytest.approx(0.5)  # prefill_s is that of the longest prompt
    assert found.result.ttft.p50_s == pytest.approx(0.05)
    assert found.workload["requests"] == 4
    assert found.result.duration_s == pytest.approx(4.53)


def test_a_trace_may_be_sent_faster_or_only_its_beginning(trace: Path) -> None:
    found = simulate_trace(trace, speed=10.0, limit=3, decode_s=0.01, prefill_s=0.08)
    assert found.result is not None
    assert (found.result.requests.sent, found.workload["speed"]) == (3, 10.0)
    assert found.result.duration_s == pytest.approx(0.23)


def test_what_a_trace_has_that_cannot_be_served_is_refused_and_said(trace: Path) -> None:
    found = simulate_trace(trace, max_model_len=1000, **LESSON)
    assert found.result is not None
    assert found.result.requests.refused == {"prompt longer than max_model_len allows": 1}
    assert any("1 request was refused" in warning for warning in found.warnings)


def test_a_trace_through_pools(trace: Path) -> None:
    found = simulate_trace(trace, pools=Pools(2, 1, latency=0.1), **LESSON)
    assert found.result is not None
    assert (found.result.requests.done, found.result.output_tokens) == (4, 10)


def test_progress_is_told_from_the_beginning() -> None:
    told: list[Progress] = []
    for asynchronous in (False, True):
        options: Any = {**LESSON, "asynchronous": asynchronous}
        run_load(
            4,
            None,
            1.0,
            40,
            None,
            100,
            20,
            0.0,
            0.0,
            0.0,
            0,
            None,
            None,
            ServerOptions(**options),
            progress=told.append,
        )
    assert told
    assert (told[0].sent, told[0].ended) == (0, 0)
    assert all(0 <= each.ended <= each.sent <= 40 for each in told)


# --- the end before the end, and what can never be ----------------------------------------------------------------------------


def interrupt_after(monkeypatch: pytest.MonkeyPatch, source: type[Listed] | type[ClosedLoop], count: int) -> None:
    """Let Ctrl-C be pressed when a source is asked for its next request once more than ``count`` times."""
    left, take = iter(range(count)), source.take

    def interrupted(self: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return take(self)

    monkeypatch.setattr(source, "take", interrupted)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("count", [0, 1, 57])
def test_ctrl_c_reports_what_was_simulated(
    monkeypatch: pytest.MonkeyPatch, count: int, policy: str, asynchronous: bool
) -> None:
    interrupt_after(monkeypatch, Listed, count)
    options: Any = {**LESSON, "policy": policy, "asynchronous": asynchronous}
    found = run_load(
        None, 4.0, 1.0, 100, None, 500, 80, 0.5, 0.0, 0.0, 0, None, None, ServerOptions(**options)
    )  # fmt: skip
    document, (run,) = found.document, found.runs
    made = document.result
    assert document.interrupted
    assert made is not None
    assert made.requests.sent == count
    assert made.requests.done + made.requests.unfinished == count
    assert made.gaps == run.gaps.count
    started = sum(not math.isnan(item.first) for item in run.served)
    assert made.output_tokens == made.gaps + started
    done = sum(item.tokens for item in run.served if item.done)
    assert done <= made.output_tokens <= sum(item.request.output for item in run.served)
    assert made.duration_s == max(tally.end for tally in run.tallies)
    if count > 50:
        assert made.requests.done > 0
        assert made.requests.unfinished > 0
        assert made.output_tokens > done


def test_ctrl_c_of_clients_in_a_closed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, ClosedLoop, 33)
    found = simulate_load(4, requests=100, prompt=500, output=80, **LESSON)
    assert found.interrupted
    assert found.result is not None
    assert found.result.requests.sent == 33


def test_ctrl_c_before_and_amid_the_injections(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        interrupt_after(patched, Listed, 20)
        found = simulate_interference(**LESSON)
        assert found.interrupted
        assert found.injected is None
        assert found.baseline is not None
    interrupt_after(monkeypatch, Listed, 32 + 32 + 2)
    found = simulate_interference(**LESSON)
    _, after, _, felt = results(found)
    assert found.interrupted
    assert after.requests.sent == 2
    assert after.duration_s == pytest.approx(25, abs=0.2)
    assert felt.max_s == pytest.approx(PREFILL_S)
    assert len(found.spikes) == 2


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheduler", get_args(Scheduler))
@pytest.mark.parametrize(
    "options",
    [
        {"prompt": 10**7, "requests": 1},
        {"prompt": 10**7, "kv_tokens": 10**5},
        {"prompt": 5000, "kv_tokens": 100},
        {"prompt": 5000, "max_model_len": 100},
        {"prompt": 5000, "chunk": 1024, "max_num_seqs": 64, "chunked_prefill": False},
        {"prompt": 100, "output": 10**4, "kv_tokens": 1200, "requests": 4},
        {"prompt": 90, "output": 30, "kv_tokens": 320, "chunk": 100, "max_num_seqs": 50, "chunked_prefill": False},
    ],
    ids=str,
)
def test_no_load_runs_for_ever(
    options: Any, scheduler: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many steps as there are tokens at most, and a few for every preemption, would be many."""
    steps = iter(range(40_000))
    schedule = Engine.schedule

    def counted(self: Any) -> Any:
        assert next(steps, None) is not None, "more steps than there can be"
        return schedule(self)

    monkeypatch.setattr(Engine, "schedule", counted)
    if scheduler == "sarathi":
        options = {**options, "chunked_prefill": True}
    made = load(
        **{"clients": 3, "requests": 6, "output": 3, "scheduler": scheduler, "asynchronous": asynchronous, **options}
    )
    counts = made.requests
    assert counts.done + counts.unfinished + sum(counts.refused.values()) == counts.sent
    assert counts.unfinished == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 32}, "a token budget of 32 leaves no room for a prompt beside 32 running streams"),
        (
            {"max_num_seqs": 32},
            "max-num-seqs 32 leaves no place for a prompt beside 32 running streams; use at least 33",
        ),
        ({"max_num_seqs": 0}, "max-num-seqs must be at least 1, not 0"),
        ({"max_num_seqs": "all"}, "max-num-seqs must be a whole number, not 'all'"),
        ({"max_model_len": 500}, "max-model-len 500 is too short for streams at context 500; use at least 501"),
        ({"kv_tokens": 16_000}, "does not hold 32 streams at context 500; use --kv-tokens 16384 or more"),
        ({"limits": Limits(stall=-1.0)}, "stall limit must be a finite number above zero, not -1"),
        ({"limits": Limits(stall_factor=0.0)}, "stall factor"),
        ({"prompt": 0}, "prompt must be at least 1, not 0"),
        ({"max_model_len": 501, "grow": True}, "use at least 502"),
        ({"chunked_prefill": False, "chunk": 400}, "without chunked prefill, streams at context 500"),
        ({"grow": "no"}, "grow must be True or False, not 'no'"),
        ({"limits": 3}, "limits must be a costmodel.Limits"),
        ({"pools": 3}, "pools must be a costmodel.Pools"),
        ({"every": 1e18, "duration": 1e14}, "every must be at most 1e+09"),
        ({"first": 1e17, "duration": 1e8}, "first must be at most 1e+09"),
        ({"duration": 1e18}, "duration must be at most 1e+09"),
        ({"first": 40.0}, "first must be before the end"),
    ],
)
def test_an_experiment_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate_interference(**{**LESSON, **options})
    assert message in str(caught.value)


def test_what_just_fits_is_simulated() -> None:
    for options in (
        {"chunk": 33, "prompt": 5},
        {"max_num_seqs": 33},
        {"max_model_len": 501},
        {"kv_tokens": 16_384, "prompt": 5},
    ):
        found = simulate_interference(duration=6.0, **{**LESSON, **options})
        assert found.injected is not None
        assert found.injected.gaps > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either clients (a closed loop) or a rate"),
        ({"clients": 1, "rate": 1.0}, "give either clients (a closed loop) or a rate"),
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"clients": 2, "duration": 5.0}, "a closed loop ends after a number of requests"),
        ({"clients": 2, "requests": 0}, "requests must be at least 1, not 0"),
        ({"clients": 1, "think": 1e18}, "think must be at most 1e+09"),
        ({"clients": 1, "think": 1e9}, "use a think time of at most 1e+08 s"),
        ({"clients": 1, "ramp": 1e18}, "ramp must be at most 1e+09"),
        ({"rate": 1e-20, "requests": 5}, "use a rate of at least 5e-09"),
        ({"rate": 1e300}, "rate must be at most 1e+09"),
        ({"rate": 1.0, "duration": 1e18}, "duration must be at most 1e+09"),
        ({"rate": 1.0, "pools": Pools(latency=1e18)}, "KV latency must be at most 1e+09"),
        ({"rate": 0.0}, "rate must be a finite number above zero, not 0"),
        ({"rate": 1.0, "requests": 5, "duration": 5.0}, "give either requests or duration, not both"),
        ({"rate": 1.0, "limits": Limits(tpot=0.0)}, "tpot limit must be a finite number above zero, not 0"),
    ],
)
def test_a_load_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate_load(**options, **LESSON)
    assert message in str(caught.value)


def test_requests_at_a_rate_are_a_thousand_if_nothing_is_said() -> None:
    assert load(rate=100.0, prompt=10, output=2).requests.sent == simulating.DEFAULT_REQUESTS == 1000
