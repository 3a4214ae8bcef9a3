"""`costmodel explain`: a list, topics in full, a request's way; one document as from Python."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import costmodel
from costmodel.cli.explain_values import value_text
from costmodel.cli.explain_words import WORDS, words_in
from costmodel.explaining.asking import TOPICS
from costmodel.validation import tokenizing
from tests.cli.runner import document, printed, refusal, run


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tokenizer is installed, whatever this environment has."""
    monkeypatch.setattr(tokenizing, "_tekken", lambda: None)


def test_the_list_has_every_topic_with_claim_and_finding() -> None:
    text = printed("explain")
    said = " ".join(text.split())
    for topic in costmodel.explain().topics:
        assert f"{topic.number} {topic.name}" in said
        assert f"“{topic.claim}”" in said
        assert topic.finding in said
    assert "costmodel explain request" in said


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_says_all_of_it(name: str) -> None:
    text = printed(f"explain {name} --gpu a100 --streams 8 --context 2k")
    said = " ".join(text.split())
    [topic] = costmodel.explain(name, gpu="a100", streams=8, context=2000).topics
    for part in (topic.claim, topic.verdict, *topic.reason, *topic.formulas, *topic.sources, *topic.labels.values()):
        assert " ".join(part.split()) in said
    for table in topic.tables:
        assert (table.title in said) is table.shown
    for key in topic.labels:
        assert value_text(key, topic.numbers[key]) in said
    load = "one sequence of 131,072 tokens" if name == "long-context" else "8 streams, 2,000 tokens of context"
    assert f"calibrated rung (a100-80gb-sxm vllm); {load} " in said
    assert max(map(len, text.splitlines())) <= 160
    assert "None" not in text
    assert "nan" not in said.split()


@pytest.mark.parametrize(
    "command", ["explain", "explain all", "explain request", *(f"explain {name}" for name in TOPICS)]
)
def test_the_words_that_an_answer_uses_are_explained_once(command: str) -> None:
    text, _, rest = printed(command).partition("\nWords\n")
    said = " ".join(rest.split())
    found = words_in(text)
    assert "calibrated rung" in found
    for word, (_, meaning) in WORDS.items():
        assert said.count(f"{word}: {meaning}") == (word in found)
    for word in ("TPOT", "TTFT", "prefill", "tile", "block"):
        assert (re.search(rf"\b{word}(s|d)?\b", text) is not None) == (word in found)


def test_several_topics_and_all() -> None:
    text = printed("explain gqa kv-cache gqa")
    assert text.count("Formula") == 2
    assert printed("explain all").count("\nFormula\n") == len(TOPICS)


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("explain", {}),
        ("explain gqa", {"topics": "gqa"}),
        ("explain kv-cache gqa --model Qwen3-4B --gpu l40s", {"topics": ["kv-cache", "gqa"], "model": "Qwen3-4B", "gpu": "l40s"}),
        ("explain prefix-cache --cached-prefix 6k", {"topics": "prefix-cache", "cached_prefix": 6000}),
        ("explain speculation --draft-model ngram --speculative-tokens 3 --acceptance 0.5",
         {"topics": "speculation", "speculation": costmodel.Speculation("ngram", tokens=3, acceptance=0.5)}),
        ("explain quadratic --output 2k --calibration none", {"topics": "quadratic", "output": 2000, "calibration": "none"}),
    ],
)  # fmt: skip
def test_the_command_and_the_function_give_one_document(command: str, asked: dict[str, Any]) -> None:
    found = document(f"{command} --json")
    assert found == costmodel.explain(**asked).model_dump(mode="json", by_alias=True)
    assert found["schema"] == "costmodel.explanations/1"
    for topic in found["topics"]:
        assert set(topic) >= {"name", "claim", "verdict", "numbers"}


def test_a_request_is_the_document_of_the_function() -> None:
    found = document("explain request --prompt 4k --output 50 --chunk 1024 --streams 8 --context 1000 --json")
    asked = costmodel.explain_request(4000, 50, chunk=1024, streams=8, context=1000)
    assert found == asked.model_dump(mode="json", by_alias=True)
    assert found["schema"] == "costmodel.request/1"
    whole = document("explain request --chunk one-step --no-enable-prefix-caching --json")
    assert whole["token_budget"] == 8032
    assert whole["kept_blocks"] == 0


def test_the_report_of_a_request_names_every_stage() -> None:
    text = printed("explain request")
    found = costmodel.explain_request()
    said = " ".join(text.split())
    for name in ("tokenise", "queue", "prefill", "decode loop", "stream", "free or keep"):
        assert name in text
    for stage in found.stages:
        assert stage.what in said
        assert stage.formula in said
    assert "TTFT 271 ms, TPOT 7.79 ms, 1.82 s in all" in text
    assert "assumed" in printed("explain request --calibration none --gpu l4")


def test_a_tokenizer_that_is_installed_is_measured(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    library = SimpleNamespace(
        Tokenizer=SimpleNamespace(
            from_file=lambda _: SimpleNamespace(encode=lambda text: SimpleNamespace(ids=text.split()))
        )
    )
    importing, finding = importlib.import_module, tokenizing.importlib.util.find_spec
    monkeypatch.setattr(importlib, "import_module", lambda name: library if name == "tokenizers" else importing(name))
    monkeypatch.setattr(
        tokenizing.importlib.util, "find_spec", lambda name: True if name == "tokenizers" else finding(name)
    )
    assert "measured here:" in printed("explain request --tokenizer tokenizer.json")
    assert "measured here:" in printed("explain request --tokenizer .")


def test_an_acceptance_alone_is_that_of_the_usual_draft(own_folder: Path) -> None:
    text = " ".join(printed("explain speculation --acceptance 0.2").split())
    assert "20 % of the drafts are accepted, 1 draft per pass (eagle3 head of Llama-3.1-8B) gives 1.20 tokens" in text
    assert "p = 10^−" in text
    measured = run("explain speculation --accepted-length 2:2.1,3:2.3 --plot figure.svg")
    assert measured.exit_code == 0, measured.exception
    assert (own_folder / "figure.svg").exists()


@pytest.mark.parametrize("name", [*TOPICS, "request"])
def test_every_topic_has_a_figure(name: str, own_folder: Path) -> None:
    found = run(f"explain {name} --plot figure.svg --streams 4 --context 1000 --output 20")
    assert found.exit_code == 0, found.exception
    assert found.stderr == "wrote figure.svg\n"
    assert (own_folder / "figure.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("explain gqq", ("unknown topic 'gqq'", "gqa")),
        ("explain speculative", ("unknown topic 'speculative'", "speculation")),
        ("explain xyz", ("unknown topic 'xyz'", "long-context", "request")),
        ("explain request gqa", ("`explain request` stands alone", "gqa")),
        ("explain all gqa", ("`explain all` stands alone", "`costmodel explain gqa`")),
        ("explain kv-cache all gqa", ("`explain all` stands alone", "`costmodel explain kv-cache gqa`")),
        ("explain request --prompt 200k", ("200,000", "131,072 that Llama-3.1-8B takes", "at most 130,872")),
        ("explain gqa --prompt 100", ("--prompt", "costmodel explain request", "--context")),
        ("explain --chunk 100", ("--chunk", "costmodel explain request")),
        ("explain gqa --no-enable-prefix-caching", ("--enable-prefix-caching", "costmodel explain request")),
        ("explain gqa --cached-prefix 100", ("--cached-prefix", "costmodel explain prefix-cache")),
        ("explain gqa --draft-model eagle", ("--draft-model", "costmodel explain speculation")),
        ("explain request --draft-model eagle", ("without speculation", "costmodel explain speculation")),
        ("explain prefix-cache --cached-prefix 8000", ("leaves nothing of a prompt", "7999")),
        ("explain gqa --acceptance 0.5", ("--acceptance", "costmodel explain speculation")),
        ("explain --plot all.png", ("--plot", "one topic", "gqa")),
        ("explain gqa --plot gqa.gif", ("'.gif'", ".png, .svg or .pdf")),
        ("explain gqa --context 0", ("context must be at least 1",)),
        ("explain gqa --streams 0", ("streams must be at least 1",)),
        ("explain gqa --streams 2.5", ("--streams", "'2.5'")),
        ("explain gqa --model Llama-3.1-9B", ("Llama-3.1-8B",)),
        ("explain gqa --gpu h10O", ("h100",)),
        ("explain request --pp 2", ("pipeline stages are not simulated", "--tp")),
        ("explain request --chunk 32", ("token budget of 32", "at least 33")),
        ("explain request --prompt 0", ("prompt must be at least 1",)),
        ("explain request --tokenizer missing", ("no tokenizer at missing", "tokenizer.json")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(command: str, words: tuple[str, ...]) -> None:
    said = refusal(command)
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    "command", ["explain", "explain batch-size", "explain gqa", "explain speculation", "explain request"]
)
def test_a_server_that_does_not_start_by_default_is_said(command: str) -> None:
    longest = costmodel.plan_memory("gpt-oss-120b").memory.max_model_len
    text = " ".join(printed(f"{command} --model gpt-oss-120b").split())
    assert text.count(f"warning: vLLM will not start without --max-model-len {longest} or less") == 1
    assert "as it starts by default" not in text
    assert (f"KV blocks of a server with vLLM's defaults but for --max-model-len {longest}" in text) is (
        "batch-size" in command
    )
    assert "will not start" not in printed(command)


def test_weights_that_are_too_large_are_said() -> None:
    for command in ("explain", "explain gqa"):
        text = " ".join(printed(f"{command} --model Llama-3.1-405B").split())
        assert "warning: the weights, 812 GB on each GPU, are more than the 78.2 GB that vLLM may use of it" in text
    assert "leave no room for a KV cache" in printed("explain request --model Llama-3.1-405B")


def test_what_does_not_fit_is_said() -> None:
    fewer = " ".join(printed("explain decode-bound --model gemma-3-27b-it --gpu a100").split())
    assert "vllm); 17 of 32 streams, 8,000 tokens of context" in fewer
    assert "of 15,725: they do not fit at once, 17 do" in fewer
    assert "datasheet: waits for" in fewer
    text = " ".join(printed("explain batch-size --model DeepSeek-V3 --gpu h100").split())
    assert "not one sequence of 8,000 tokens fits beside the weights" in text
    assert "warning: 32 streams at 8,000 tokens need" in text
    assert "warning: a context of 8,000 tokens is more than the 4,096 that Llama-2-7B takes" in " ".join(
        printed("explain kv-cache --model Llama-2-7B").split()
    )


@pytest.mark.parametrize(
    "options", ["--streams 1 --context 1 --output 1", "--streams 5000 --context 1", "--context 1000000 --streams 1"]
)
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V3"])
def test_extreme_loads_are_answered(options: str, model: str) -> None:
    text = printed(f"explain all {options} --model {model} --gpu b200")
    assert "nan" not in text.split()
    assert "inf" not in text.split()
