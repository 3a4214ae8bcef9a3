"""``costmodel predict`` and others of models that pool."""

import pytest

from tests.cli.runner import document, run


def test_the_report_says_documents_per_second_and_no_word_of_decoding():
    printed = run(["predict", "--model", "bge-m3", "--gpu", "h100"]).output
    assert "1 document of 512 tokens, at most 8,192 tokens per step; pooled: the first token" in printed
    assert "full step: 16 documents" in printed
    assert "documents and" in printed
    assert "no KV cache: fits" in printed
    assert "It writes no text: no decode steps, no streams, no spikes." in printed
    assert "decode ms" not in printed


def test_a_long_document_of_a_decoder():
    printed = run(
        ["predict", "--model", "Qwen3-Embedding-8B", "--gpu", "l4", "--prompt", "20k", "--chunk", "8192"]
    ).output
    assert "1 document, 3 steps" in printed
    assert "longest step of a document" in printed
    assert "KV cache 147 kB per token" in printed


def test_documents_of_both_commands_are_the_librarys():
    found = document(["predict", "--model", "bge-m3", "--gpu", "l4", "--prompt", "256", "--prompts", "8", "--json"])
    assert found["schema"] == "costmodel.embedding/1"
    assert found["workload"]["documents"] == 8
    several = document(["predict", "--model", "bge-m3,ModernBERT-large", "--gpu", "l4,h100", "--json"])
    assert several["schema"] == "costmodel.embeddings/1"
    assert len(several["embeddings"]) == 4


def test_several_are_a_table():
    printed = run(["predict", "--model", "bge-m3", "--gpu", "l4", "--prompt", "128,512"]).output
    assert "documents/s" in printed
    assert printed.count("bge-m3") == 2


@pytest.mark.parametrize("option", ["--streams 3", "--context 100", "--every 2", "--pp 2"])
def test_options_of_decoding_are_refused_in_one_line(option):
    done = run(["predict", "--model", "bge-m3", *option.split()])
    assert done.exit_code == 2
    assert f"leave {option.split()[0]} out" in done.output
    assert done.output.count("\n") == 1


def test_models_that_write_text_are_asked_for_apart():
    for models in ("bge-m3,Qwen3-8B", "Qwen3-8B,bge-m3"):
        done = run(["predict", "--model", models])
        assert done.exit_code == 2
        assert "Qwen3-8B writes text and does not pool; ask for its steps apart" in done.output


@pytest.mark.parametrize(
    "words",
    [
        "simulate load --clients 4 --requests 10",
        "simulate interference",
        "plan batch --tpot-ms 50",
        "formula decode",
        "sweep --gpu l4",
        "explain gqa",
    ],
)
def test_other_commands_say_that_it_pools(words):
    done = run([*words.split(), "--model", "bge-m3"])
    assert "pools" in done.output


def test_its_formula_is_a_prefill():
    printed = run(["formula", "prefill", "--model", "bge-m3", "--rung", "textbook", "--prompt", "512"]).output
    assert "attention = 4·L·d_h·h·n²/F" in printed


def test_it_is_shown_and_kept(tmp_path):
    printed = run(["models", "show", "bge-m3"]).output
    assert "24 × attention both ways, 16 query and 16 KV heads of 64; dense 4,096" in printed
    assert "no lm_head, cls pooling, fp16 activations, no KV cache" in printed
    assert run(["models", "import", "Qwen3-Embedding-0.6B", str(tmp_path / "kept")]).exit_code == 0
    assert document(["models", "show", str(tmp_path / "kept"), "--json"])["pooling"] == "last"


def test_its_memory_is_planned():
    printed = run(["plan", "memory", "--model", "bge-m3", "--gpu", "l4"]).output
    assert "No KV cache: every token sees both ways" in printed
    assert "peak of 8,192 tokens\n" in printed


def test_it_is_not_measured(tmp_path):
    done = run(["measure", "--random-weights", "bge-m3", "--gpu", "l4", "--out", str(tmp_path / "steps.jsonl")])
    assert done.exit_code == 2
    assert "only steps of models that write text are measured" in done.output
