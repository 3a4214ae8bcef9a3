"""``costmodel simulate``: the lesson through the real command, files, exit codes, Ctrl-C, and what contradicts itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.cli.simulate_running import Watch
from costmodel.simulation.stepping import Progress
from tests.cli.runner import document, printed, refusal, run

LESSON = "simulate interference --decode-ms 10 --prefill-ms 146.4"
LOAD = "simulate load --clients 4 --requests 12 --prompt 200 --output 20 --decode-ms 10 --prefill-ms 30"
TRACE = "arrival_s,prompt_tokens,output_tokens,group\n0,100,5,a\n0.5,300,1,b\n1,9000000,4,a\n"


def test_the_lesson() -> None:
    found = document(f"{LESSON} --json")
    assert found["schema"] == "costmodel.simulation/1"
    before, after = found["baseline"], found["injected"]
    assert after["gaps_per_stream"] == pytest.approx(3946, abs=5)
    assert after["stalls"] == 4 * 32
    assert before["stalls"] == 0
    for name in ("p50_s", "p99_s"):
        assert after["itl"][name] == before["itl"][name] == pytest.approx(0.010)
    for name in ("p99.9_s", "max_s"):
        assert after["itl"][name] == pytest.approx(0.1464)
    assert [spike["injected_s"] for spike in found["spikes"]] == [5.0, 15.0, 25.0, 35.0]
    for spike in found["spikes"]:
        assert 0 <= spike["time_s"] - spike["injected_s"] <= 0.010


def test_the_lesson_every_second() -> None:
    found = document(f"{LESSON} --every 1 --first 0.5 --json")
    assert found["injected"]["itl"]["p99_s"] == pytest.approx(0.1464)
    assert found["injected"]["itl"]["p50_s"] == pytest.approx(0.010)


def test_the_report_says_what_happened() -> None:
    text = " ".join(printed(LESSON).split())
    assert "p99.9 and max are at the spike; p50, p90 and p99 do not move" in text
    assert "All 32 streams wait up to 146.4 ms for a token, 14.6 × the usual 10.00 ms" in text
    assert "(at 5, 15, 25 and 35 s)" in text
    assert "TTFT counts from when the engine has the prompt" in text
    every = " ".join(printed(f"{LESSON} --every 1 --first 0.5").split())
    assert "p99, p99.9 and max are at the spike" in every
    assert "every 1 s, when a prompt comes (40 times)" in every
    small = " ".join(printed("simulate interference --prompt 2 --duration 20 --rung roofline").split())
    assert "The streams feel nothing" in small
    assert "one more decode" in printed("simulate interference --prompt 1")


def test_the_command_and_the_function_give_one_document() -> None:
    made = costmodel.simulate_interference(4000, 16, gpu="h200", chunk=1024, every=5)
    found = run(
        "simulate interference --prompt 4k --streams 16 --gpu h200 --max-num-batched-tokens 1024 --every 5 --json"
    )
    assert json.loads(found.stdout) == json.loads(made.model_dump_json(by_alias=True))


def test_several_budgets_are_compared() -> None:
    found = document("simulate interference --chunk 512,one-step --json")
    assert found["schema"] == "costmodel.simulations/1"
    chunked, whole = found["simulations"]
    assert chunked["server"]["token_budget"] == 512
    assert whole["server"]["token_budget"] == 8032
    assert chunked["injected"]["itl"]["max_s"] < 0.2 * whole["injected"]["itl"]["max_s"]
    assert chunked["injected"]["ttft"]["p50_s"] > whole["injected"]["ttft"]["p50_s"]
    text = printed("simulate interference --chunk 512,one-step")
    assert "A budget of 512 instead of 8,032: the longest gap is" in text
    assert len([line for line in text.splitlines() if line.startswith(("  512 ", "  one step (8,032) "))]) == 2


def test_load_and_trace_report(own_folder: Path) -> None:
    text = printed("simulate load --clients 8 --requests 16 --prompt 500 --output 50 --ttft-slo-ms 500 --stall-ms 50")
    for words in (
        "TTFT",
        "queueing",
        "end to end",
        "p99.9",
        "Latencies count from when a request is sent",
        "16 done",
        "Goodput",
    ):
        assert words in text
    (own_folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    found = document("simulate trace trace.csv --json")
    assert found["workload"]["form"] == "csv"
    assert found["result"]["requests"]["done"] == 2
    assert sum(found["result"]["requests"]["refused"].values()) == 1
    assert "1 refused" in printed("simulate trace trace.csv")
    assert document("simulate trace trace.csv --limit 1 --speed 2 --json")["result"]["requests"]["sent"] == 1


def test_flags_reach_the_server() -> None:
    found = document(
        "simulate load --rate 20 --requests 50 --burstiness 0.5 --prompt 600 --output 30 --spread 0.5 --seed 3 --chunk 1k --max-num-seqs 64"
        " --kv-tokens 20k --block-size 32 --max-model-len 2k --long-prefill-token-threshold 256 --no-enable-prefix-caching"
        " --no-async-scheduling --scheduling-policy priority --watermark 0.01 --no-reserve-full-prompt --rung roofline --json"
    )
    server = found["server"]
    expected = {
        "token_budget": 1000, "max_num_seqs": 64, "kv_tokens": 20000, "block_tokens": 32, "max_model_len": 2000, "prefix_caching": False,
        "long_prefill_token_threshold": 256, "asynchronous": False, "policy": "priority", "rung": "roofline", "chunked_prefill": True,
    }  # fmt: skip
    assert {name: server[name] for name in expected} == expected
    assert found["workload"]["seed"] == 3


def test_schedulers_and_pools() -> None:
    most = {}
    for name in ("vllm", "sarathi", "prefill-first", "separate", "disaggregated"):
        found = document(f"simulate interference --scheduler {name} --prompts 3 --json")
        assert found["server"]["scheduler"] == name
        most[name] = found["injected"]["itl"]["max_s"]
    assert most["disaggregated"] < most["sarathi"] < most["vllm"]
    server = document(
        "simulate load --rate 5 --requests 20 --scheduler disaggregated --prefill-gpus 2 --kv-bandwidth 25 --kv-latency-ms 2 --json"
    )["server"]
    assert server["pools"] == {
        "prefill_servers": 2, "decode_servers": 1, "kv_bandwidth_bytes_per_s": 25e9, "kv_latency_s": 0.002, "gpus_per_server": 1,
    }  # fmt: skip


def test_a_share_of_good_requests_decides_the_exit_code() -> None:
    assert run(f"{LOAD} --ttft-slo-ms 1").exit_code == 0  # no verdict was asked for
    missed = run(f"{LOAD} --ttft-slo-ms 1 --slo-share 0.5")
    assert missed.exit_code == 1
    assert missed.stderr == "0 % of the requests are good, fewer than 50 %\n"
    assert "Goodput (TTFT ≤ 1.000 ms): 0 % of the requests" in missed.stdout
    assert run(f"{LOAD} --ttft-slo-ms 1000 --e2e-slo-ms 1e5 --slo-share 1").exit_code == 0


@pytest.mark.parametrize(
    ("command", "figure"),
    [
        *((LESSON, figure) for figure in ("itl", "percentiles", "distribution", "load")),
        *((LOAD, figure) for figure in ("load", "percentiles", "distribution")),
        (f"{LESSON} --chunk 512,one-step", "itl"),
    ],
)
def test_figures_are_drawn(command: str, figure: str, own_folder: Path) -> None:
    result = run(f"{command} --plot out.png --figure {figure}")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "wrote out.png\n"
    assert (own_folder / "out.png").read_bytes().startswith(b"\x89PNG")


def interrupt_at(time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come when the simulation is at some time."""
    shown = Watch.__call__

    def call(self: Watch, progress: Progress) -> None:
        shown(self, progress)  # ends the simulation where Ctrl-C has come before
        if progress.time >= time:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Watch, "__call__", call)
    monkeypatch.setattr("costmodel.simulation.stepping.REPORT_EVERY", 0.0)


def test_ctrl_c_reports_what_was_simulated(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(0.1, monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    result = run(f"{LOAD} --json --requests-file out.csv")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["interrupted"] is True
    assert 0 < found["result"]["output_tokens"] < 12 * 20
    assert len((own_folder / "out.csv").read_text(encoding="utf-8").splitlines()) > 1
    assert signal.getsignal(signal.SIGINT) is before
    text = run(LOAD)
    assert text.exit_code == 130
    assert "TTFT" in text.stdout


def test_ctrl_c_in_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(0.0, monkeypatch)
    result = run(f"{LESSON} --chunk 512,one-step --json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert found["schema"] == "costmodel.simulation/1"
    assert found["interrupted"] is True
    assert found["injected"] is None
    assert run(LESSON).exit_code == 130
    assert run(f"{LESSON} --plot out.png").exit_code == 130


def test_ctrl_c_in_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(0.5, monkeypatch)
    result = run("simulate load --rate 20 --requests 100 --scheduler disaggregated --prefill-gpus 2 --json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["result"]["requests"]["done"] == 0


def test_a_second_ctrl_c_ends_at_once() -> None:
    with Watch() as watch:
        watch(Progress(0.0, 0, 0))
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        with Watch() as watch:
            watch(Progress(0.0, 0, 0))
            watch(Progress(12.5, 30, 20))
            watch.done()
        shown = capsys.readouterr().err
        assert ("simulated 12.5 s: 20 requests done, 10 in the server" in shown) == terminal
        assert bool(shown) == terminal


CONTRADICTIONS = (
    (f"{LESSON} --gpu h100", "--decode-ms", "--gpu", "leave out one"),
    ("simulate interference --decode-ms 10", "decode-ms and prefill-ms go together"),
    ("simulate interference --decode-ms 10 --prefill-ms=-1", "prefill-ms", "above zero", "-1"),
    (f"{LESSON} --scheduler disaggregated --kv-bandwidth 3", "--kv-bandwidth needs a model"),
    ("simulate interference --prompt 8000,4000", "--prompt takes one value", "2"),
    ("simulate interference --chunk 32", "token budget of 32", "at least 33"),
    ("simulate interference --chunk 512,16", "token budget of 16", "at least 33"),
    ("simulate interference --max-num-seqs 16", "max-num-seqs 16", "at least 33"),
    ("simulate interference --kv-tokens 100", "does not hold 32 streams", "use --kv-tokens 16384"),
    ("simulate interference --pp 2", "pp 2", "--tp"),
    ("simulate interference --first 50", "first must be before the end of the run"),
    ("simulate interference --every 1e-9", "more than 10,000,000 prompts"),
    ("simulate interference --duration 1e99", "duration must be at most 1e+09"),
    ("simulate interference --decode-ms 1e-320 --prefill-ms 100", "--decode-ms", "0.001 to 1e+09 ms"),
    ("simulate interference --tpot-slo-ms 10", "--tpot-slo-ms", "--stall-ms"),
    ("simulate interference --slo-share 0.9", "--slo-share", "--ttft-slo-ms"),
    ("simulate interference --slo-share 2 --ttft-slo-ms 3", "slo-share", "at most 1", "2"),
    ("simulate interference --ttft-slo-ms nan", "ttft-slo-ms", "finite", "nan"),
    ("simulate interference --stall-factor 0", "stall-factor", "above zero"),
    ("simulate interference --prefill-gpus 2", "--prefill-gpus", "--scheduler disaggregated"),
    ("simulate interference --scheduler disaggregated --prefill-gpus 0", "prefill servers", "at least 1"),
    ("simulate interference --scheduler disaggregated --kv-latency-ms nan", "kv-latency-ms", "nan"),
    ("simulate interference --scheduler disaggregated --kv-latency-ms=-1", "kv-latency-ms", "0 or above", "not -1"),
    ("simulate interference --scheduler disaggregated --kv-bandwidth 1e300", "kv-bandwidth", "at most", "1e+300"),
    ("simulate interference --scheduler vlm", "'vlm'", "did you mean vllm?"),
    ("simulate load --rate 3 --scheduler vllm,vlm", "'vlm'", "did you mean vllm?"),
    ("simulate interference --scheduler sarathi --no-enable-chunked-prefill", "sarathi", "--scheduler vllm"),
    ("simulate interference --watermark 1", "watermark", "below 1"),
    ("simulate interference --rung roofline --assume-efficiency", "--rung roofline", "--assume-efficiency"),
    ("simulate interference --rung calibrated --gpu rtx-3090", "no calibration of rtx-3090", "--rung roofline"),
    ("simulate interference --requests-file x.txt", "'.txt'", ".csv or .parquet"),
    ("simulate interference --requests-file x.csv --chunk 512,1024", "--requests-file", "one simulation"),
    ("simulate interference --requests-file missing/x.csv", "missing", "does not exist"),
    ("simulate interference --figure itl", "--figure itl needs --plot"),
    ("simulate interference --plot x.gif", "'.gif'", ".png"),
    ("simulate interference --chunk 512,1024,2048,4096,one-step --plot x.png", "up to 4 panels"),
    ("simulate interference --chunk 512,1024 --figure load --plot x.png", "--figure load shows one simulation"),
    (
        "simulate load --rate 4 --chunk 512,1024 --figure percentiles --plot x.png",
        "--figure distribution takes several",
    ),
    ("simulate trace trace.csv --requests-file trace.csv --force", "--requests-file trace.csv is the trace itself"),
    ("simulate load", "clients", "rate"),
    ("simulate load --clients 3 --rate 4", "clients", "rate"),
    ("simulate load --clients 3 --burstiness 2", "--burstiness", "--rate"),
    ("simulate load --clients 3 --duration 10", "closed loop", "duration"),
    ("simulate load --rate 3 --think-s 2", "--think-s", "--clients"),
    ("simulate load --rate 3 --requests 10 --duration 3", "not both"),
    ("simulate load --clients 2 --spread 1", "spread must be below 1"),
    ("simulate load --clients 2 --chunk none", "--chunk", "engine"),
    ("simulate load --clients 2 --chunk 1 --max-num-seqs 4", "token budget of 1", "--chunk 4"),
    ("simulate load --clients 2 --scheduler disaggregated", "closed loop", "--rate"),
    ("simulate trace", "FILE"),
    ("simulate trace missing.csv", "missing.csv", "no such file"),
    ("simulate trace wrong.csv", "wrong.csv, line 3", "-5"),
    ("simulate trace none.csv", "none.csv", "empty"),
    ("simulate trace trace.csv --limit 0", "limit", "at least 1"),
    ("simulate trace trace.csv --speed 0", "speed", "above zero"),
    ("simulate trace trace.csv --format azur", "unknown format 'azur'", "azure"),
    ("simulate load --clients 2 --scheduler vllm,disaggregated", "--scheduler disaggregated", "--rate"),
    ("simulate interfere", "'interfere'", "interference"),
)


@pytest.mark.parametrize("case", CONTRADICTIONS, ids=lambda case: case[0][9:70])
def test_wrong_input_is_refused_in_one_line(case: tuple[str, ...], own_folder: Path) -> None:
    (own_folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    (own_folder / "wrong.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,-5,10\n", encoding="utf-8"
    )
    (own_folder / "none.csv").write_text("", encoding="utf-8")
    before = sorted(own_folder.iterdir())
    command, *fragments = case
    message = refusal(command)
    assert len(message) < 500
    for fragment in fragments:
        assert fragment in message
    assert sorted(own_folder.iterdir()) == before


def test_one_step_is_one_step_with_every_scheduler() -> None:
    text = "simulate interference --scheduler sarathi --chunk one-step --prompt 1000 --duration 8 --json"
    assert document(text)["server"]["token_budget"] == 1000 + 32
