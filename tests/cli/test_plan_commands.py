"""The inverse questions of `costmodel plan`: one document, one report, exit code 1 where the answer is no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import costmodel
from tests.cli.runner import document, parse, printed, refusal, run

FLEET = "--rate 20 --prompt 1000 --output 50 --requests 100"


@pytest.mark.parametrize(
    ("command", "function", "asked"),
    [
        ("chunk --itl-ms 50 --streams 16", "plan_chunk", {"itl": 0.05, "streams": 16}),
        ("batch --tpot-ms 20 --context 4k", "plan_batch", {"tpot": 0.02, "context": 4000}),
        ("batch --solve context --tpot-ms 20", "plan_batch", {"tpot": 0.02, "unknown": "context"}),
        ("prompt --itl-ms 50 --chunk engine", "plan_prompt", {"itl": 0.05, "chunk": "engine"}),
        ("gpu --tpot-ms 20 --gpu h100,l40s", "plan_gpu", {"tpot": 0.02, "gpus": ["h100", "l40s"]}),
        (
            f"replicas --ttft-ms 200 --tpot-ms 10 {FLEET}",
            "plan_replicas",
            {"rate": 20.0, "prompt": 1000, "output": 50, "requests": 100, "ttft": 0.2, "tpot": 0.01},
        ),
        (
            f"disaggregation --ttft-ms 200 --tpot-ms 10 {FLEET}",
            "plan_disaggregation",
            {"rate": 20.0, "prompt": 1000, "output": 50, "requests": 100, "ttft": 0.2, "tpot": 0.01},
        ),
    ],
)
def test_the_command_and_the_function_give_one_document(command: str, function: str, asked: dict[str, Any]) -> None:
    found = document(f"plan {command} --json")
    plan = getattr(costmodel, function)(**asked)
    assert found == plan.model_dump(mode="json", by_alias=True)
    assert found["schema"] == "costmodel.plan/1"
    assert found["plan"] == command.split(maxsplit=1)[0]
    assert found["feasible"] is True
    assert found["advice"]
    assert found["binds"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "chunk --itl-ms 50",
            ("--max-num-batched-tokens 1536", "the limit on the gaps binds", "The trade-off", "TTFT ms"),
        ),
        (
            "batch --tpot-ms 20",
            ("--max-num-seqs", "the limit on the TPOT binds", "What each limit allows by itself", "kv_memory"),
        ),
        ("prompt --ttft-ms 500", ("tokens of prompt: the limit on the TTFT binds",)),
        ("gpu --tpot-ms 20 --gpu h100,mi300x", ("Fewest GPUs: 1 × NVIDIA H100", "maybe", "per hour")),
        (f"replicas --ttft-ms 200 {FLEET}", ("Closed form: one server answers", "Simulated", "TTFT p99 ms")),
        (f"disaggregation --tpot-ms 10 {FLEET}", ("prefill : decode = 1 : ", "servers that do both")),
    ],
)
def test_reports(command: str, words: tuple[str, ...]) -> None:
    text = printed(f"plan {command}")
    for word in words[:-1] if "gpu" in command else words:
        assert word in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize(
    ("command", "binding"),
    [
        ("chunk --itl-ms 5", "itl"),
        ("chunk --itl-ms 20 --ttft-ms 300", "ttft"),
        ("batch --tpot-ms 1", "tpot"),
        ("batch --model Llama-3.3-70B-Instruct", "kv_memory"),
        ("prompt --itl-ms 1", "itl"),
        ("gpu --tpot-ms 0.5 --gpu h100", "tpot"),
        ("gpu --ttft-ms 1000 --every 0.01 --gpu h100", "load"),
        ("chunk --itl-ms 50 --max-model-len 4096", "max_model_len"),
        ("replicas --itl-ms 100 --prompt 200000 --output 100 --rate 1 --requests 30", "max_model_len"),
        (f"replicas --ttft-ms 1 {FLEET}", "ttft"),
        (f"disaggregation --tpot-ms 1 {FLEET}", "tpot"),
    ],
)
def test_the_answer_is_no(command: str, binding: str) -> None:
    result = run(f"plan {command}")
    assert result.exit_code == 1
    assert "\nNo: " in result.stdout
    assert "the answer is yes" in result.stdout
    result = run(f"plan {command} --json")
    assert result.exit_code == 1
    found = parse(result.stdout)
    assert found["feasible"] is False
    assert found["binding"] == binding
    assert found["nearest"]
    assert "advice" not in found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("chunk", "--itl-ms"),
        ("chunk --itl-ms 0", "itl-ms must be a number above zero"),
        ("chunk --itl-ms 50 --pp 2", "pipeline stages are not simulated"),
        ("chunk --itl-ms 50 --gpu h1000", "h100"),
        ("chunk --itl-ms 50 --tp 3", "possible: 1, 2, 4"),
        ("chunk --itl-ms 50 --plot a.bmp", "unknown suffix"),
        ("batch --chunk big", "not a whole number"),
        ("gpu", "give a limit"),
        ("gpu --tpot-ms 20 --prices none.csv", "table of prices none.csv: no such file"),
        ("gpu --tpot-ms 20 --chunk one-step", "--chunk must be a number"),
        ("gpu --tpot-ms 20 --dtype fp7", "unknown dtype 'fp7'"),
        ("gpu --tpot-ms 20 --calibration /nope.toml", "no such file"),
        ("gpu --tpot-ms 20 --ep 4", "mixture of experts"),
        ("gpu --tpot-ms 20 --max-num-seqs 4 --gpu h100", "at least 33"),
        ("chunk --itl-ms 50 --max-model-len 500k", "131,072 that Llama-3.1-8B allows"),
        ("batch --prompt 0", "prompt must be at least 1"),
        ("replicas --ttft-ms 100", "either --rate"),
        ("replicas --rate 1", "give a limit"),
        ("replicas --rate 1 --trace a.csv --ttft-ms 1", "either --rate"),
        ("replicas --rate 1 --ttft-ms 1 --prefill-gpus 2", "No such option"),
        ("disaggregation --rate 1 --ttft-ms 1 --kv-bandwidth -1", "kv-bandwidth"),
        ("replica --rate 1", "replicas"),
    ],
)
def test_bad_input(command: str, said: str) -> None:
    assert said in refusal(f"plan {command}")


def test_figures_are_written(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nh100 = 2.5\nl40s = 1\n', encoding="utf-8")
    for command in ("chunk --itl-ms 50", f"gpu --tpot-ms 20 --prices {prices}", f"replicas --ttft-ms 200 {FLEET}"):
        path = tmp_path / f"{command.split()[0]}.png"
        result = run(f"plan {command} --plot {path}")
        assert result.exit_code == 0
        assert path.is_file()
        assert result.stderr == f"wrote {path}\n"
        assert "--force" in refusal(f"plan {command} --plot {path}")


def test_prices_have_the_currency_of_the_table(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nh100 = 2.5\n', encoding="utf-8")
    shown = printed(f"plan gpu --tpot-ms 20 --prices {prices}")
    assert "per hour [EUR]" in shown
    assert "per 1M tokens, all decoding [EUR]" in shown


def test_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{index / 20},1000,20\n" for index in range(60))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    found = document(f"plan replicas --trace {path} --ttft-ms 150 --percentile 95 --json")
    assert found["workload"]["kind"] == "trace"
    assert found["limits"] == {"ttft_s": 0.15, "percentile": 95.0}
    assert "60 requests of" in printed(f"plan replicas --trace {path} --ttft-ms 150")


def test_a_limit_has_a_greatest_value_and_the_least_is_shown() -> None:
    refused = run("plan chunk --itl-ms 1e308")
    assert refused.exit_code == 2
    assert "itl-ms must be a number above zero and at most 1e+12, not 1e+308" in refused.stderr
    assert "ITL ≤ 1e-303 s" in run("plan chunk --itl-ms 1e-300").stdout


def test_fleets_tell_lengths_load_and_cache() -> None:
    asked = (
        "plan replicas --rate 8 --requests 60 --prompt 2000 --output 100 --ttft-ms 500 --spread 0.5 --kv-tokens 40000"
    )
    out = run(asked).stdout
    assert "prompts of 1,000 to 2,000 (mean 1,500) and answers of 50 to 100 (mean 75) tokens" in out
    assert "KV cache" in out
    assert "busy" not in out
