"""What a record is said to say: percentiles, one step or not and which flag is in the way, late clients, miscounts."""

from unittest.mock import patch

import pytest

from costmodel.validation.interference.comparing import compare, simulate
from costmodel.validation.interference.records import Answer, Injection, Lag, Plan, Record, Run, Server
from costmodel.validation.interference.summary import starved, summarise, usual_gap

DECODE, SPIKE = 0.01, 0.2


def steps(spikes=(), end=4.0, height=SPIKE):
    """Return token times of a stream whose steps take 10 ms, but ``height`` from these moments on."""
    times, now, left = [0.0], 0.0, list(spikes)
    while now < end:
        long = bool(left) and now >= left[0] - 1e-9
        now += height if long else DECODE
        if long:
            left.pop(0)
        times.append(now)
    return tuple(times)


def make(spikes=(1.0, 3.0), plan=None, flags=None, metrics=None, injected=None, baseline=None, answers=None, lag=None):
    plan = Plan(
        **{
            "streams": 2,
            "context_tokens": 100,
            "output_tokens": 1000,
            "prompt_tokens": 1024,
            "every_s": 2.0,
            "first_s": 1.0,
            "duration_s": 4.0,
            "baseline_s": 4.0,
        }
        | (plan or {})
    )
    streams = [Answer(stream=index, sent=-1.0, times=steps(spikes)) for index in range(2)]
    calm = [Answer(stream=index, sent=-1.0, times=baseline or steps()) for index in range(2)]
    asked = injected or tuple(
        Injection(sent=at, first=at + SPIKE, outcome="whole", prompt_tokens=1024) for at in (1.0, 3.0)
    )
    runs = (
        Run(name="baseline", start=0.0, end=4.0, answers=tuple(calm), complete=True, lag=lag),
        Run(
            name="injected",
            start=0.0,
            end=4.0,
            answers=tuple(answers or streams),
            injections=asked,
            complete=True,
            metrics=metrics or {},
        ),
    )
    return Record(
        server=Server(url="http://x", flags=flags or {}),
        model_name="tiny",
        plan=plan,
        date="2026-01-01",
        command="",
        runs=runs,
        complete=True,
    )


def buckets(over_1024):
    name = "vllm:iteration_tokens_total"
    return {f"{name}<=512.0": 400.0, f"{name}<=1024.0": 400.0, f"{name}<=+Inf": 400.0 + over_1024}


def test_numbers():
    found = summarise(make())
    assert found.one_to_one
    assert found.decode_step_s == pytest.approx(DECODE)
    assert found.spike_s == pytest.approx(SPIKE)
    assert found.spike_ratio == pytest.approx(20)
    assert found.baseline.stalls == 0
    assert found.injected.stalls == 4
    assert found.injected.itl.max_s == pytest.approx(SPIKE)
    assert found.injected.itl.p50_s == pytest.approx(DECODE)
    assert found.injected.ttft.p50_s == pytest.approx(SPIKE)
    assert found.baseline.context_tokens == pytest.approx(100 + 200, abs=2)
    assert found.warnings == ()


def test_one_step_takes_a_budget_that_is_large_enough():
    """One high gap per prompt is no proof: a small rest of it may be in a step that is hardly higher than others."""
    found = summarise(make(flags={"max_num_batched_tokens": 1026})).one_step
    assert (found.verdict, found.flag) == ("yes", None)
    assert "takes 1,024 + 2 running streams" in found.why
    found = summarise(make(flags={"max_num_batched_tokens": 1000})).one_step
    assert (found.verdict, found.flag) == ("no", "--max-num-batched-tokens 1026 or more")
    found = summarise(make()).one_step
    assert found.verdict == "yes"
    assert "token budget is not known" in found.why


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"max_num_batched_tokens": 256}, "--max-num-batched-tokens 1026 or more"),
        ({"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 256}, "--long-prefill-token-threshold 0"),
        ({}, "--max-num-batched-tokens 1026 or more"),
    ],
)
def test_the_flag_in_the_way(flags, flag):
    chunks = tuple(start + SPIKE * index for start in (1.0, 3.0) for index in range(2))
    asked = tuple(Injection(sent=at, first=at + 2 * SPIKE, outcome="whole") for at in (1.0, 3.0))
    found = summarise(make(spikes=chunks, flags=flags, injected=asked)).one_step
    assert (found.verdict, found.steps, found.flag) == ("no", 2, flag)


def test_a_late_client_is_warned_of():
    found = summarise(make(lag=Lag(p50_s=0.001, p99_s=0.004, max_s=0.02, count=9)))
    assert any(
        "baseline: the client was up to 4.0 ms late (p99) beside a median gap of 10.0 ms" in text
        for text in found.warnings
    )
    assert not summarise(make(lag=Lag(p50_s=0.0, p99_s=0.0005, max_s=0.02, count=9))).warnings


@pytest.mark.parametrize(
    ("late", "told"),
    [
        ((), None),
        (((2.0, 0.9),), None),
        (((2.0, 0.9), (3.0, 0.2)), "late for 1.1 of the 4.0 s of the baseline run"),
        (((0.5, 9.0), (5.0, 1.4)), None),  # only what was in the run counts: 0.5 and 0.4 s
        (((5.0, 9.0),), "late for 4.0 of the 4.0 s"),
    ],
)
def test_a_client_that_hardly_ran_has_seen_nothing(late, told):
    record = make()
    runs = (record.runs[0].model_copy(update={"late": late}), record.runs[1])
    found = starved(record.model_copy(update={"runs": runs}))
    assert found is None if told is None else told in (found or "")


def test_tokens_that_come_together():
    together = tuple(sorted(steps() + steps()))
    record = make(baseline=together)
    assert usual_gap(record.baseline) == pytest.approx(DECODE)
    found = summarise(record)
    assert found.baseline.itl.p50_s == 0
    assert found.decode_step_s == pytest.approx(DECODE)
    assert any("came together" in text for text in found.warnings)


def test_pieces_of_several_tokens_without_counts():
    answers = [
        Answer(stream=0, sent=-1, times=steps((1.0, 3.0)), outcome="whole", output_tokens=3 * len(steps((1.0, 3.0))))
    ]
    assert any("sends 3 tokens in a piece" in text for text in summarise(make(answers=answers)).warnings)


def test_preemptions_and_cached_prompts_are_warned_of():
    metrics = {"vllm:num_preemptions_total": 3.0, "vllm:prefix_cache_hits_total": 512.0}
    text = " ".join(summarise(make(metrics=metrics)).warnings)
    assert "preempted 3 times" in text
    assert "--no-enable-prefix-caching" in text


@pytest.mark.parametrize("runs", [0, 1])
def test_records_that_end_early(runs):
    whole = make()
    found = summarise(whole.model_copy(update={"runs": whole.runs[:runs], "complete": False}))
    assert found.spike_s is None
    assert found.injected is None
    assert found.one_step.verdict == "unknown"
    assert (found.baseline is None) == (runs == 0)


def test_predicted_beside_measured():
    record = make(flags={"max_num_batched_tokens": 512, "kv_cache_dtype": "fp8_e4m3", "tensor_parallel_size": 2})
    found = compare(record, summarise(record), gpu="h100", model="Llama-3.1-8B")
    assert [row.what for row in found.rows] == ["decode step", "spike"]
    assert found.spike.workload.chunk_tokens == 512
    assert (found.spike.workload.kv_dtype, found.spike.workload.tensor_parallel) == ("fp8", 2)
    assert found.decode.workload.context_tokens == pytest.approx(300, abs=2)
    assert found.rows[0].predicted_s == found.decode.best.decode_step_s
    assert found.rows[1].error == pytest.approx(found.spike.spike.height_s / SPIKE - 1)


def asked(record):
    """Return how the run of a record was simulated."""
    with patch("costmodel.simulation.interfering.simulate_interference") as simulated:
        simulate(record, summarise(record), gpu="h100", model="Llama-3.1-8B")
    return simulated.call_args


def test_contexts_grow_from_where_they_were():
    flags = {"max_num_batched_tokens": 512, "max_num_seqs": 16, "cache_dtype": "fp8"}
    record = make(flags=flags | {"num_gpu_blocks": "900", "block_size": "16"})
    begun = [answer.model_copy(update={"prompt_tokens": 150}) for answer in record.injected.answers]
    later = record.injected.model_copy(update={"start": 0.5, "answers": tuple(begun)})
    record = record.model_copy(update={"runs": (record.baseline, later)})
    call = asked(record)
    assert call.args == (1024, 2)
    named = call.kwargs
    assert (named["context"], named["grow"]) == (150 + sum(moment <= 0.5 for moment in begun[0].times), True)
    assert (named["chunk"], named["max_num_seqs"], named["kv_tokens"], named["block_tokens"]) == (512, 16, 899 * 16, 16)
    assert (named["every"], named["first"], named["duration"], named["kv_dtype"]) == (2.0, 1.0, 3.5, "fp8")


def test_the_mean_context_is_held_where_answers_began_anew():
    times = steps((1.0, 3.0))
    answers = [
        Answer(stream=0, sent=-1.0, times=times[:100]),
        Answer(stream=0, sent=2.0, times=times[101:]),
        Answer(stream=1, sent=-1.0, times=times),
    ]
    record = make(answers=answers)
    named = asked(record).kwargs
    assert named["grow"] is False
    assert named["context"] == round(summarise(record).injected.context_tokens)


def test_what_cannot_be_simulated_is_said():
    record = make(flags={"max_num_seqs": 2})
    found = compare(record, summarise(record), gpu="h100", model="Llama-3.1-8B")
    assert found.simulated is None
    assert any(text.startswith("not simulated: ") and "max-num-seqs 2" in text for text in found.warnings)
