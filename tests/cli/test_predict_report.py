"""The report and the comparison of ``costmodel predict`` show the numbers of its document and say what is remarkable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import costmodel
from costmodel.cli.text import milliseconds, percent, seconds, significant
from costmodel.hardware.shipped import shipped_calibration
from tests.cli.runner import document, printed

MODELS = ("Llama-3.1-8B", "gemma-3-12b-it", "gpt-oss-20b", "DeepSeek-V2-Lite")


def test_the_lessons_numbers() -> None:
    text = printed("predict --params 8e9 --calibration none")
    lines = {line.split("  ")[1].strip(): line.split()[-2:] for line in text.splitlines() if line.startswith("  ")}
    assert lines["decode step"] == ["4.776", "5.153"]
    assert text.count("146.4") == 2
    textbook = document("predict --params 8e9 --json")["rungs"]["textbook"]
    shown = {
        name: round(textbook[name] * 1e3, 3)
        for name in ("decode_step_s", "prefill_linear_s", "prefill_attention_s", "spike_s")
    }
    assert shown["decode_step_s"] == 4.776
    assert round(shown["prefill_linear_s"], 2) == 129.42
    assert round(shown["prefill_attention_s"], 2) == 16.96
    assert round(shown["spike_s"], 2) == 146.39
    assert round(textbook["spike_ratio"], 2) == 30.65
    assert round(textbook["prefill_linear_s"] / textbook["decode_step_s"], 1) == 27.1
    ratios = [document(f"predict --params 8e9 --prompt {n} --json")["doubling"]["textbook_ratio"] for n in (4000, 8000)]
    assert [round(ratio, 3) for ratio in ratios] == [2.123, 2.232]


def test_numbers_that_round_up_keep_their_digits() -> None:
    assert [significant(value) for value in (9.9996, 9.9994, 999.96, 0.0)] == ["10.00", "9.999", "1,000", "0"]
    assert [seconds(value) for value in (0.99996, 9.9996e-4, 1.2345e-7)] == ["1.000 s", "1.000 ms", "123.5 ns"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "options", ["", "--calibration none", "--chunk 2048 --every 1", "--prompt 500 --streams 1", "--engine sglang"]
)
def test_the_report_shows_the_numbers_of_the_document(model: str, options: str) -> None:
    command = f"predict --model {model} {options}"
    found, text = document(f"{command} --json"), printed(command)
    for rung in found["rungs"].values():
        for name in ("decode_step_s", "prefill_s", "prefill_linear_s", "prefill_attention_s", "spike_s"):
            assert milliseconds(rung[name]) in text
        assert rung["prefill_communication_s"] == 0
        assert f"{significant(rung['spike_ratio'], 3)} ×" in text
    assert found["headline"] == ("roofline" if "none" in options else "calibrated")
    best, spike = found["rungs"][found["headline"]], found["spike"]
    for operator in (*best["operators"], *best["decode_operators"]):
        assert operator["name"] in text
        assert milliseconds(operator["time_s"]) in text
        assert operator["bound"] in text
    assert found["gpu"]["name"] in text
    assert found["model"]["name"] in text
    assert seconds(spike["height_s"]) in text
    assert seconds(found["doubling"]["spike_s"]) in text
    assert percent(spike["fraction_of_gaps"]) in text
    assert f"{found['memory']['kv_tokens']:,} tokens" in text
    for remark in (*found["notes"], *found["warnings"]):
        assert remark in text


def test_the_exact_part_is_named() -> None:
    assert "on 1 × NVIDIA H100 SXM5 80GB" in printed("predict --gpu h100")
    assert "h100 is taken as NVIDIA H100 SXM5 80GB; also h100-pcie, h100-nvl" in printed("predict --gpu h100")
    text = printed("predict --gpu 'NVIDIA H100 80GB HBM3' --tp 4")
    assert "on 4 × NVIDIA H100 SXM5 80GB (TP 4)" in text
    assert "is taken as" not in text


@pytest.mark.parametrize("options", ["--tp 4", "--pp 2", "--model gpt-oss-20b --tp 2 --ep 2"])
def test_time_on_the_link_has_a_row(options: str) -> None:
    found, text = document(f"predict {options} --json")["rungs"], printed(f"predict {options}")
    [row] = [line.split()[1:] for line in text.splitlines() if line.startswith("    communication ")]
    assert row == [
        milliseconds(found[rung]["prefill_communication_s"]) for rung in ("textbook", "roofline", "calibrated")
    ]
    assert found["textbook"]["prefill_communication_s"] == 0
    parts = ("prefill_linear_s", "prefill_attention_s", "prefill_communication_s")
    for rung in (found["roofline"], found["calibrated"]):
        assert rung["prefill_communication_s"] > 0
        assert sum(rung[name] for name in parts) < rung["prefill_s"]
    assert "communication" not in printed("predict")


def test_what_a_default_server_does() -> None:
    engine = document("predict --json")["engine"]
    assert engine["name"] == "vLLM 0.32"
    text = printed("predict --prompt 8000 --gpu h100")
    assert "A default vLLM 0.32 server (max_num_batched_tokens 8,192) takes this in one step. A smaller budget" in text
    text = printed("predict --prompt 8000 --gpu h100 --chunk 8192")
    assert "max_num_batched_tokens 8,192) takes this in one step.\n" in text
    text = printed("predict --prompt 8000 --gpu a100")
    assert "A default vLLM 0.32 server (max_num_batched_tokens 2,048) splits this into 4 steps;" in text
    assert "one step needs a budget of 8,032 or more." in text
    text = printed("predict --streams 1025")
    assert "A default vLLM 0.32 server runs at most 1,024 sequences at once (max_num_seqs), not 1,025." in text
    assert "max_num_batched_tokens" not in text
    assert "(max_num_seqs), not 257." in printed("predict --streams 257 --gpu a100")
    assert "max_num_seqs" not in printed("predict --streams 256 --gpu a100")
    assert document("predict --prompt 8000 --gpu a100 --chunk engine --json")["spike"]["chunks"] == 4
    assert document("predict --prompt 8000 --gpu a100 --chunk 8032 --json")["spike"]["chunks"] == 1


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_defaults_of_other_engines_are_not_known_and_that_is_said(engine: str) -> None:
    options = f"--engine {engine} --chunk engine"
    found, text = document(f"predict --json {options}"), printed(f"predict {options}")
    assert (found["engine"]["name"], found["engine"]["asked"]) == ("vLLM 0.32", engine)
    [note] = [note for note in found["notes"] if note.startswith("only vLLM's defaults are known")]
    assert note.endswith(f"not of {engine}")
    assert f"note: {note}" in text
    assert f"takes this in one step. Defaults of {engine} are not known here." in text
    assert any("only vLLM's defaults" in warning for warning in costmodel.closed_loop(2, engine=engine).warnings)


def test_nothing_is_said_of_other_engines_where_the_defaults_are_those_of_the_engine() -> None:
    found = document("predict --json")
    assert found["engine"]["asked"] == "vllm"
    assert not any("only vLLM's defaults" in note for note in found["notes"])
    assert "are not known here" not in printed("predict")
    assert not any("only vLLM's" in warning for warning in costmodel.closed_loop(2).warnings)


def test_a_calibration_file_says_which_engine_it_is_of() -> None:
    sglang = shipped_calibration("h100-sxm", "sglang")
    assert costmodel.predict(calibration=sglang).engine.asked == "sglang"


def test_the_engines_budget_is_its_default() -> None:
    for gpu, budget in (
        ("h200", 8192),
        ("h100", 8192),
        ("a100", 2048),
        ("b200", 16384),
        ("l4", 2048),
        ("mi300x", 16384),
    ):
        engine = document(f"predict --gpu {gpu} --json")["engine"]["max_num_batched_tokens"]
        chunk = document(f"predict --gpu {gpu} --chunk engine --json")["workload"]["chunk_tokens"]
        assert engine == chunk
        if gpu != "h200":  # 141 GB are 131 GiB
            assert chunk == budget


def test_overload_is_said() -> None:
    text = printed("predict --every 0.1")
    assert "Overload: the next prompt comes after 0.1 s, before this one is done" in text
    assert "warning: overload" in text
    text = printed("predict --every 0.1 --gpu h100,a100")
    assert text.count("all: overload") == text.count("overload") == 2
    assert document("predict --every 0.1 --json")["spike"]["fraction_of_gaps"] == 1.0


def test_who_sees_it() -> None:
    assert "max is at the spike; p50, p99 and p99.9 do not move." in printed("predict --every 10")
    assert "p99.9 and max are at the spike; p50 and p99 do not move." in printed("predict --every 2")
    assert "p99, p99.9 and max are at the spike; p50 does not move." in printed("predict --every 0.4")
    moves = document("predict --every 0.4 --json")["spike"]["moves"]
    assert moves == {"p50": False, "p99": True, "p99.9": True, "max": True}


def test_several_slow_tokens_are_said() -> None:
    found = document("predict --chunk 2048 --json")["spike"]
    assert found["chunks"] == 4
    text = printed("predict --chunk 2048")
    assert f"gets 4 slow tokens in a row, {seconds(found['duration_s'])} in all" in text
    assert "at most 2,048 tokens per step" in text


def test_what_does_not_fit_is_said() -> None:
    text = printed("predict --model Llama-3.1-70B")
    assert "DOES NOT FIT" in text
    assert "use more GPUs (--tp)" in text
    table = printed("predict --model Llama-3.1-70B --tp 1,4")
    rows = [line.split() for line in table.splitlines() if line[:4].strip().isdecimal()]
    assert [(row[0], row[-1]) for row in rows] == [("1", "no"), ("4", "yes")]
    assert "does not fit" not in table


def test_a_forced_dtype_is_said() -> None:
    assert "NVIDIA T4 16GB has no bf16 units: fp16 is used" in printed("predict --gpu t4")


def test_stages_of_a_pipeline_are_said() -> None:
    text = printed("predict --pp 3")
    layers = document("predict --pp 3 --json")["pipeline"]["layers"]
    assert sum(layers) == 32
    assert f"3 pipeline stages of {'+'.join(map(str, layers))} layers" in text


def test_the_comparison_is_a_table_of_all() -> None:
    options = "--prompt 4000,8000,16000 --gpu h100,a100"
    lines = printed(f"predict {options}").splitlines()
    assert lines[0] == "Llama-3.1-8B, bf16 weights"
    assert lines[1] == "32 streams at context 500, in one step, every 10 s"
    assert re.split(r" {2,}", lines[3].strip()) == ["gpu", "prompt", "rung", *COLUMNS]
    rows = lines[5:11]
    for row, item in zip(rows, document(f"predict --json {options}")["predictions"], strict=True):
        best = item["rungs"]["calibrated"]
        gpu, prompt, rung, *cells = re.split(r" {2,}", row.strip())
        assert (gpu, prompt) == (item["gpu"]["profile"], f"{item['workload']['prompt_tokens']:,}")
        assert rung == f"calibrated, {item['calibration']}"
        assert cells[:3] == [milliseconds(best[name]) for name in ("decode_step_s", "prefill_s", "spike_s")]
        assert cells[3] == significant(best["spike_ratio"], 3)
        assert cells[4] == str(item["spike"]["chunks"])
        assert cells[5] == percent(item["spike"]["fraction_of_gaps"])
        assert cells[-1] == "yes"
    legend = " ".join(" ".join(lines[11:]).partition("note:")[0].split())
    assert re.findall(r"([\w ]+):", legend) == ["steps", " gaps hit", " moves", " fits"]


COLUMNS = ("decode ms", "prefill ms", "spike ms", "× decode", "steps", "gaps hit", "moves", "fits")


@pytest.mark.parametrize(
    ("options", "heading"),
    [
        ("--gpu h100,a100", "Llama-3.1-8B, bf16 weights"),
        ("--prompt 1k,2k", "Llama-3.1-8B, bf16 weights, 1 × NVIDIA H100 SXM5 80GB"),
        ("--prompt 1k,2k --tp 4", "Llama-3.1-8B, bf16 weights, 4 × NVIDIA H100 SXM5 80GB, TP 4"),
        ("--tp 1,2", "Llama-3.1-8B, bf16 weights, NVIDIA H100 SXM5 80GB"),
        ("--dtype bf16,fp8", "Llama-3.1-8B, 1 × NVIDIA H100 SXM5 80GB"),
        ("--model Llama-3.1-8B,Llama-3.2-1B", "1 × NVIDIA H100 SXM5 80GB"),
        ("--model Llama-3.1-8B,Llama-3.2-1B --gpu h100,a100", "comparison"),
    ],
)
def test_the_comparison_says_what_its_rows_share(options: str, heading: str) -> None:
    assert printed(f"predict {options}").splitlines()[0] == heading


def test_the_comparison_shows_budgets_that_differ() -> None:
    """``--chunk engine`` is one option and another budget on every part."""
    lines = printed("predict --chunk engine --gpu h100,a100 --calibration none").splitlines()
    assert re.split(r" {2,}", lines[3].strip())[:2] == ["gpu", "chunk"]
    assert [line.split()[1] for line in lines[5:7]] == ["8,192", "2,048"]
    lines = printed("predict --chunk engine --gpu h100,h200 --calibration none").splitlines()
    assert re.split(r" {2,}", lines[3].strip())[:2] == ["gpu", "decode ms"]
    assert "at most 8,192 tokens per step" in lines[1]


def test_the_comparison_names_every_remark_once() -> None:
    text = printed("predict --prompt 4000,8000 --gpu h100,t4")
    assert text.count("no bf16 units") == 1
    assert text.count("is taken as NVIDIA H100") == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_engine_chooses_the_calibration_and_is_named(engine: str) -> None:
    found, text = document(f"predict --engine {engine} --json"), printed(f"predict --engine {engine}")
    assert (found["headline"], found["calibration"]) == ("calibrated", f"h100-sxm {engine}")
    assert f"(calibrated rung, h100-sxm {engine})" in text
    assert not any("no calibration" in warning for warning in found["warnings"])


def test_engines_differ_in_the_calibrated_rung_alone() -> None:
    rungs = [document(f"predict --engine {engine} --json")["rungs"] for engine in ("vllm", "sglang", "trtllm")]
    assert len({rung["calibrated"]["spike_s"] for rung in rungs}) == 3
    assert all(rung["roofline"] == rungs[0]["roofline"] for rung in rungs)


def test_intervals_are_shown(calibration_file: Path) -> None:
    found, text = document("predict --json"), printed("predict")
    assert found["intervals"]["level"] == 0.8
    [line] = [line for line in text.splitlines() if "intervals" in line]
    assert line.strip().startswith("80 % intervals of the calibrated rung [ms]: decode ")
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = found["intervals"][name]
        assert found["rungs"]["roofline"][name] <= low < found["rungs"]["calibrated"][name] < high
        assert f"{milliseconds(low)}–{milliseconds(high)}" in line


@pytest.mark.parametrize(
    "options",
    ["--calibration none", "--gpu mi300x", "--gpu rtx-4090 --engine sglang", "--gpu rtx-4090 --engine trtllm"],
)
def test_without_a_calibration_the_roofline_stands_with_a_warning(options: str) -> None:
    found, text = document(f"predict --json {options}"), printed(f"predict {options}")
    assert found["headline"] == "roofline"
    assert not {"calibration", "intervals"} & set(found)
    [warning] = [text for text in found["warnings"] if text.startswith("no calibration in use")]
    assert warning.startswith("no calibration in use: the roofline rung is a floor, measured steps take longer")
    assert "warning: no calibration in use" in text
    assert "Spike (roofline rung)" in text
    assert not re.search(r"interval|textbook +roofline +calibrated", text)


def test_an_assumed_efficiency_is_said_and_gives_no_intervals() -> None:
    found, text = (
        document("predict --gpu l4 --assume-efficiency --json"),
        printed("predict --gpu l4 --assume-efficiency"),
    )
    assert found["headline"] == "calibrated"
    assert found["calibration"].startswith("assumed from ")
    assert "intervals" not in found
    assert any("nothing was measured on this part" in warning for warning in found["warnings"])
    assert found["calibration"] in text
    assert document("predict --gpu l4 --json")["headline"] == "roofline"
    with_own = document("predict --assume-efficiency --json")
    assert with_own == document("predict --json")


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("", ()),
        ("--prompt 100000", ("tokens", "kv_tokens")),
        ("--streams 40000", ("tokens",)),
        ("--streams 32 --context 400000", ("kv_tokens",)),
    ],
)
def test_leaving_the_range_of_the_fit_is_said(options: str, variables: tuple[str, ...]) -> None:
    """With the variable, its value, the step and the range."""
    found, text = document(f"predict --json {options}"), printed(f"predict {options}")
    outside = [warning for warning in found["warnings"] if warning.startswith("outside the calibration")]
    for warning in outside:
        assert f"warning: {warning}" in text
        assert re.search(r": \w+ = \S+ in the (decode|prefill|spike) step, fitted on \S+ to \S+ \(\w", warning)
    named = {re.split(r"[: ]+", warning)[3] for warning in outside}
    assert named >= set(variables)
    assert variables or not outside


def test_the_comparison_says_which_rows_have_no_calibration() -> None:
    options = "--gpu h100,mi300x"
    found = document(f"predict --json {options}")["predictions"]
    assert [item["headline"] for item in found] == ["calibrated", "roofline"]
    assert "no calibration in use" in printed(f"predict {options}")


def test_the_calibrated_report(calibration_file: Path) -> None:
    text = printed(["predict", "--calibration", str(calibration_file)])
    assert "textbook  roofline  calibrated" in text
    assert re.search(r"^Spike \(calibrated rung\W+synthetic\)+$", text, re.MULTILINE)
    assert "80 % intervals of the calibrated rung [ms]: decode " in text
    table = printed(["predict", "--gpu", "h100", "--prompt", "1k,2k", "--calibration", str(calibration_file)])
    assert re.search(r"; calibrated rung, synthetic$", table.splitlines()[1])
    assert "is a floor" not in text


def test_twice_the_prompt_says_what_stays_cached() -> None:
    assert "Twice the prompt (16,000 tokens, still 6,000 of them cached): " in printed("predict --cached-prefix 6000")
    assert "Twice the prompt (16,000 tokens): " in printed("predict")
    found = document("predict --cached-prefix 6000 --json")["doubling"]["spike_s"]
    assert found == document("predict --prompt 16000 --cached-prefix 6000 --json")["rungs"]["calibrated"]["spike_s"]
