"""Checks: steps, experiments and benchmark clients beside predictions; files that are none are refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.errors import InputError
from costmodel.validation.checking.asking import Asked, make_predictor
from costmodel.validation.checking.benchmarks import aiperf, guidellm, sglang_bench, vllm_bench
from costmodel.validation.checking.documents import Row, make_check, make_row, summarise
from costmodel.validation.checking.files import check_file
from costmodel.validation.checking.interference import check_experiment, experiment_of
from costmodel.validation.fitting.calibrate import to_toml
from costmodel.validation.fitting.measured import measured_deployment
from costmodel.validation.interference.records import Answer, Injection, Run
from tests.validation import synthetic


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with profile, calibration and model of the machine that takes exactly the times of the calibration."""
    synthetic.write_profile(tmp_path / "machine.toml")
    (tmp_path / "truth.toml").write_text(to_toml(synthetic.calibration()))
    (tmp_path / "config.json").write_text(json.dumps(synthetic.LLAMA))
    return tmp_path


def asked(machine: Path, model: bool = True, **options: Any) -> Asked:
    name = str(machine / "config.json") if model else None
    dtype = {"dtype": "fp32"} if model else {}
    return Asked(str(machine / "machine.toml"), name, {"calibration": machine / "truth.toml", **dtype, **options})


def only(path: Path, wanted: Asked) -> tuple[Any, list[Row]]:
    ((file, rows),) = check_file(path, wanted)
    return file, list(rows)


def test_a_row_and_what_rows_say() -> None:
    near, far = make_row("a", "decode", 1.1, 1.0, (0.9, 1.2)), make_row("b", "decode", 0.5, 1.0, (0.4, 0.6))
    assert near.error == pytest.approx(0.1)
    assert (near.inside_interval, far.inside_interval) == (True, False)
    summary = summarise([near, far, make_row("c", "mixed", 1.0, 1.0)])
    assert summary.median_absolute_error == pytest.approx(0.1)
    assert summary.mean_absolute_error == pytest.approx(0.2)
    assert summary.coverage == 0.5
    assert summarise([make_row("c", "mixed", 1.0, 1.0)]).coverage is None


def test_limits_fail_rows_or_all(machine: Path) -> None:
    path = synthetic.write(synthetic.measure(machine / "machine.toml", noise=0.05), machine / "m.json")
    found = [*check_file(path, asked(machine, model=False)), *check_file(path, asked(machine, model=False))]
    check = make_check(found, max_error=0.08)
    assert check.passed is False
    assert check.failed == sum(abs(row.error) > 0.08 for row in check.rows) > 0
    assert [file.file for file in check.files] == ["m.json", "m.json (2)"]
    assert make_check(found, max_error=0.5).passed is True
    assert make_check(found, max_median_error=0.001).passed is False
    assert make_check(found).passed is None
    assert set(check.kinds) == {"decode", "prefill", "mixed"}


def test_steps_of_the_truth_have_no_error(machine: Path) -> None:
    path = synthetic.write(synthetic.measure(machine / "machine.toml"), machine / "m.json")
    file, rows = only(path, asked(machine, model=False))
    assert file.rung == "calibrated"
    assert max(abs(row.error) for row in rows) < 1e-9
    assert all(row.inside_interval is None for row in rows), "this calibration has no residuals"
    _, held = only(
        path, Asked(str(machine / "machine.toml"), None, {"calibration": machine / "truth.toml"}, held_out=True)
    )
    assert 0 < len(held) < len(rows)
    assert all(row.held_out for row in held)


def test_steps_without_a_calibration_are_at_the_floor(machine: Path) -> None:
    path = synthetic.write(synthetic.measure(machine / "machine.toml"), machine / "m.json")
    file, rows = only(path, Asked(str(machine / "machine.toml")))
    assert file.rung == "roofline"
    assert any("no calibration in use" in note for note in file.notes)
    assert all(row.error < 0 for row in rows)
    with pytest.raises(InputError, match="no calibration of machine"):
        only(path, Asked(str(machine / "machine.toml"), None, {"rung": "calibrated"}))
    with pytest.raises(InputError, match="leave out --model"):
        only(path, asked(machine))


def served(machine: Path, prompts: tuple[int, ...] = (64, 256, 1000), output: int = 50) -> list[dict[str, Any]]:
    """Return requests that are answered one after the other, in exactly the times of the calibration."""
    deployment = measured_deployment(
        synthetic.measure(machine / "machine.toml", kinds=[]), str(machine / "machine.toml")
    )
    predictor = make_predictor(deployment, asked(machine, model=False), "vllm")
    windows = predictor.parameters.windows
    found, sent = [], 7.0
    for prompt in prompts:
        ttft = predictor.step(make_work([Chunk(float(prompt))], [], windows))[0]
        gaps = [
            predictor.step(make_work([], [Decodes(1.0, float(prompt + index))], windows))[0]
            for index in range(output - 1)
        ]
        found.append({"sent": sent, "prompt": prompt, "output": output, "ttft": ttft, "itl": gaps})
        sent += 2 * (ttft + math.fsum(gaps))
    return found


def bench(requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model_id": "tiny",
        "start_times": [each["sent"] for each in requests],
        "input_lens": [each["prompt"] for each in requests],
        "output_lens": [each["output"] for each in requests],
        "ttfts": [each["ttft"] for each in requests],
        "itls": [each["itl"] for each in requests],
        **more,
    }


def test_a_benchmark_of_vllm_is_simulated_request_by_request(machine: Path) -> None:
    (machine / "bench.json").write_text(json.dumps(bench(served(machine))))
    file, rows = only(machine / "bench.json", asked(machine))
    assert file.form == "vllm bench serve, 3 requests"
    errors = {row.what: row.error for row in rows}
    assert {"ITL p50", "ITL p99", "ITL max", "TTFT p50", "TTFT max", "TPOT p50"} <= set(errors)
    assert "TTFT p99" not in errors, "three requests have no p99"
    assert max(map(abs, errors.values())) < 1e-6
    with pytest.raises(InputError, match=r"bench.json: a result of vllm bench serve does not say enough of the server"):
        only(machine / "bench.json", Asked())


def test_failed_and_bundled_answers_are_told(machine: Path) -> None:
    requests = served(machine)
    requests[0]["itl"] = requests[0]["itl"][::2]
    content = bench(requests, max_concurrency=4)
    for name, value in (("start_times", 9.0), ("input_lens", 5), ("output_lens", 0), ("ttfts", 0.0), ("itls", [])):
        content[name].append(value)
    run = vllm_bench(content)
    assert len(run.requests) == 3
    text = " ".join(run.notes)
    assert "1 request that failed is left out" in text
    assert "1 answers came with several tokens at once" in text
    assert "max_concurrency 4 held requests back" in text


def test_start_times_of_sglang_are_found_from_durations(machine: Path) -> None:
    requests = served(machine, (100, 200, 300, 400))
    content = bench(requests, backend="sglang", request_rate=math.inf, max_concurrency=2)
    del content["start_times"], content["model_id"]
    run = sglang_bench(content)
    lasting = [each["ttft"] + math.fsum(each["itl"]) for each in requests]
    assert [each.sent for each in run.requests] == pytest.approx([0.0, 0.0, lasting[0], lasting[1]])
    (machine / "sglang.jsonl").write_text(2 * (json.dumps(content) + "\n"))
    found = list(check_file(machine / "sglang.jsonl", asked(machine, engine="vllm")))
    assert [file.form for file, _ in found] == [
        "SGLang bench_serving, line 1 4 requests",
        "SGLang bench_serving, line 2 4 requests",
    ]
    with pytest.raises(InputError, match="at 8 requests/s at random times, which its file does not keep"):
        sglang_bench(content | {"request_rate": 8.0})


def records(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {"request_start_ns": round(each["sent"] * 1e9), "benchmark_phase": "profiling"},
            "metrics": {
                "input_sequence_length": {"value": each["prompt"], "unit": "tokens"},
                "output_sequence_length": {"value": each["output"], "unit": "tokens"},
                "time_to_first_token": {"value": each["ttft"] * 1e3, "unit": "ms"},
                "inter_chunk_latency": {"value": [gap * 1e3 for gap in each["itl"]], "unit": "ms"},
                "inter_token_latency": {"value": math.fsum(each["itl"]) / len(each["itl"]) * 1e3, "unit": "ms"},
            },
            "error": None,
        }
        for each in requests
    ]


def test_records_of_aiperf_are_read_with_their_units(machine: Path) -> None:
    found = records(served(machine))
    failed = {
        "metadata": {"request_start_ns": 1},
        "metrics": {"error_isl": {"value": 5, "unit": "tokens"}},
        "error": {"code": 499},
    }
    (machine / "profile_export.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*found, failed]))
    file, rows = only(machine / "profile_export.jsonl", asked(machine))
    assert "1 request that failed is left out" in file.notes
    assert max(abs(row.error) for row in rows) < 1e-6
    with pytest.raises(InputError, match="line 3: is no record of AIPerf"):
        aiperf([(3, {"metadata": {}, "metrics": {"output_sequence_length": {"value": 1}}})])


def test_guidellm_has_means_per_request_and_says_so(machine: Path) -> None:
    listed = [
        {
            "request_start_time": each["sent"],
            "prompt_tokens": each["prompt"],
            "output_tokens": each["output"],
            "time_to_first_token_ms": each["ttft"] * 1e3,
            "inter_token_latency_ms": math.fsum(each["itl"]) / len(each["itl"]) * 1e3,
        }
        for each in served(machine)
    ]
    content = {"benchmarks": [{"requests": {"successful": listed, "errored": [{}], "incomplete": []}}]}
    (machine / "benchmarks.json").write_text(json.dumps(content))
    file, rows = only(machine / "benchmarks.json", asked(machine))
    assert {row.kind for row in rows} == {"ttft", "tpot"}
    assert max(abs(row.error) for row in rows) < 1e-6
    assert any("mean of a request" in note for note in file.notes)
    with pytest.raises(InputError, match="benchmark 1 of GuideLLM has no whole list"):
        guidellm({"benchmarks": [{"requests": None}]})


AIPERF = (
    '{"metadata": {"request_start_ns": 1}, "metrics": {"time_to_first_token": {"value": %s, "unit": "ms"}, '
    '"input_sequence_length": {"value": 1, "unit": "tokens"}, "output_sequence_length": {"value": %s, "unit": "tokens"}}}'
)
GUIDELLM = (
    '{"benchmarks": [{"requests": {"successful": [{"request_start_time": 1, "prompt_tokens": 1, "time_to_first_token_ms": %s, '
    '"output_tokens": %s, "inter_token_latency_ms": null}]}}]}'
)
"""Files with one request, whose time to the first token and length are to be filled in."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is no JSON"),
        ("schema = 1", "it is no JSON"),
        ("[1, 2]", "it is no JSON"),
        ('{"schema": "costmodel.prediction/1"}', "its schema is 'costmodel.prediction/1'"),
        ('{"some": "thing"}', "its keys are 'some'"),
        ('{"model_id": "m", "median_ttft_ms": 1.0}', "has no list start_times; write it with `vllm bench serve --save-result"),
        ('{"backend": "sglang", "median_itl_ms": 1.0}', "has no list input_lens; write it with `python -m sglang.bench_serving"),
        ('{"input_config": {}, "request_latency": {}}', "has AIPerf's summary; check its profile_export.jsonl"),
        ('{"start_times": [1], "input_lens": [1], "output_lens": [1], "ttfts": [1], "itls": []}', "different lengths"),
        ('{"start_times": ["x"], "input_lens": [1], "output_lens": [1], "ttfts": [1], "itls": [[]]}', "request 1: its times"),
        ('{"start_times": [1], "input_lens": [1], "output_lens": [0], "ttfts": [1], "itls": [[]]}', "no request of vllm bench serve"),
        ('{"start_times": [1], "input_lens": [1], "output_lens": [1e999], "ttfts": [1], "itls": [[]]}', "request 1: its times"),
        ('{"itls": [[1]], "input_lens": [1], "output_lens": [2], "ttfts": [null]}', "request 1: its times and lengths are no numbers"),
        ('{"itls": [[NaN]], "input_lens": [1], "output_lens": [2], "ttfts": [1]}', "request 1: its times and lengths are no numbers"),
        ('{"itls": [null], "input_lens": [1], "output_lens": [2], "ttfts": [1]}', "request 1: its times and lengths are no numbers"),
        (AIPERF % ("NaN", 2), "line 1: is no record of AIPerf's profile_export.jsonl ('a time is not finite')"),
        (AIPERF % (1, "1e999"), "line 1: is no record of AIPerf"),
        (GUIDELLM % ("NaN", 2), "benchmark 1 of GuideLLM has no whole list of requests ('a time is not finite')"),
        (GUIDELLM % (1, "1e999"), "benchmark 1 of GuideLLM has no whole list"),
        (GUIDELLM % (1, -2), "('a length is negative')"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused_in_one_line(machine: Path, content: str, message: str) -> None:
    (machine / "file.json").write_text(content)
    with pytest.raises(InputError) as refused:
        list(check_file(machine / "file.json", asked(machine)))
    assert message in str(refused.value)
    assert "file.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def record(machine: Path, prompt: int = 1000, streams: int = 4) -> SimpleNamespace:
    """Return a record of an experiment whose steps take the times of the calibration; contexts grow from 200 on."""
    measurement = synthetic.measure(machine / "machine.toml", kinds=[])
    predictor = make_predictor(
        measured_deployment(measurement, str(machine / "machine.toml")), asked(machine, model=False), "vllm"
    )
    windows = predictor.parameters.windows

    def step(context: int, chunks: list[Chunk]) -> float:
        return predictor.step(make_work(chunks, [Decodes(float(streams), float(context))], windows))[0]

    def run(name: Literal["baseline", "injected"], steps: int, long: Sequence[int]) -> Run:
        times, injections, now = [0.0], [], 0.0
        for index in range(steps):
            seconds = step(200 + index, [Chunk(float(prompt))] if index in long else [])
            if index in long:
                injections.append(Injection(sent=now + 1e-6, first=now + seconds, prompt_tokens=prompt))
            now += seconds
            times.append(now)
        answers = tuple(
            Answer(stream=stream, sent=-1.0, times=tuple(times), prompt_tokens=200) for stream in range(streams)
        )
        return Run(name=name, start=0.0, end=now, answers=answers, injections=tuple(injections))

    injected = run("injected", 600, range(50, 600, 100))
    first, second = (each.sent for each in injected.injections[:2])
    return SimpleNamespace(
        plan=SimpleNamespace(
            streams=streams,
            context_tokens=100,
            prompt_tokens=prompt,
            every_s=second - first,
            first_s=first,
            duration_s=injected.end,
        ),
        baseline=run("baseline", 300, ()),
        injected=injected,
        model=measurement.model,
        machine=None,
        server=SimpleNamespace(
            engine="vllm",
            flags={"max_num_batched_tokens": "4096", "enable_prefix_caching": "False", "num_gpu_blocks": "1024"},
        ),
        notes=(),
        complete=True,
    )


def test_an_experiment_has_its_decode_step_and_spikes(machine: Path) -> None:
    experiment = experiment_of(record(machine))
    assert (experiment.context, experiment.injected_context, experiment.begun) == (350, 500, 201)
    file, rows = check_experiment(machine / "record.jsonl", experiment, asked(machine, model=False))
    found = {row.what: row for row in rows}
    assert abs(found["decode step of 4 streams"].error) < 0.01
    assert [abs(found[f"spike {number}"].error) < 0.02 for number in range(1, 7)] == [True] * 6
    assert abs(found["injected ITL p99.9"].error) < 0.02
    for run in ("baseline", "injected"):
        assert abs(found[f"{run} ITL p50"].error) < 0.01
        assert abs(found[f"{run} ITL p90"].error) < 0.01
    assert found["injected ITL p90"].predicted_s > 1.05 * found["baseline ITL p90"].predicted_s
    assert file.model == "tiny"
    assert file.form == "interference record, 4 streams, 6 prompts of 1,000 tokens"
    with pytest.raises(InputError, match="does not say which GPU"):
        check_experiment(machine / "record.jsonl", experiment, Asked())


def test_flags_of_a_record_reach_the_simulation(machine: Path) -> None:
    chunked = record(machine)
    chunked.server.flags |= {"max_num_batched_tokens": 504}
    _, rows = check_experiment(machine / "record.jsonl", experiment_of(chunked), asked(machine, model=False))
    heights = [row.predicted_s for row in rows if row.kind == "spike"]
    _, whole = check_experiment(machine / "record.jsonl", experiment_of(record(machine)), asked(machine, model=False))
    assert max(heights) < 0.7 * max(row.predicted_s for row in whole if row.kind == "spike")
    _, forced = check_experiment(
        machine / "record.jsonl", experiment_of(chunked), asked(machine, model=False, chunk="one-step")
    )
    assert max(row.predicted_s for row in forced) == max(row.predicted_s for row in whole)


def test_a_record_without_answers_has_nothing_to_compare(machine: Path) -> None:
    empty = record(machine)
    empty.injected = empty.injected.model_copy(update={"injections": ()})
    with pytest.raises(InputError, match="no injected prompt that was answered"):
        experiment_of(empty)
