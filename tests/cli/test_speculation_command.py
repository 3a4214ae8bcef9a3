"""Speculative decoding and cached prefixes on the command line: documents, reports, one line for what cannot be."""

import pytest

import costmodel
from costmodel import Speculation
from tests.cli.runner import document, printed, refusal, run

EAGLE = "--draft-model eagle --speculative-tokens 3 --acceptance 0.6"


def test_the_document_is_that_of_the_python_api() -> None:
    found = document(f"predict {EAGLE} --cached-prefix 2k --streams 4 --json")
    asked = Speculation("eagle", tokens=3, acceptance=0.6)
    assert found == costmodel.predict(speculation=asked, cached_prefix=2000, streams=4).model_dump(
        by_alias=True, mode="json"
    )
    assert found["speculation"]["accepted_length"] == pytest.approx(2.176)
    assert found["prefix_cache"]["computed_tokens"] == 6000


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ("--draft-model eagle3 --num-speculative-tokens 3 --accepted-length 2.8", {"tokens": 3, "lengths": 2.8}),
        ("--draft-model eagle3 --accepted-length 2:2.36,3:2.79", {"lengths": {2: 2.36, 3: 2.79}}),
        ("--speculative-model eagle3 --acceptance-per-position 0.8,0.6,0.4", {"positions": [0.8, 0.6, 0.4]}),
    ],
)
def test_options_are_read_as_they_are_meant(options: str, attributes: dict[str, object]) -> None:
    found = document(f"predict {options} --streams 1 --json")["speculation"]
    made = costmodel.predict(streams=1, speculation=Speculation("eagle3", **attributes)).speculation  # type: ignore[arg-type]
    assert made is not None
    assert found == made.model_dump(mode="json")


def test_the_report_says_what_a_reader_needs() -> None:
    text = printed(f"predict {EAGLE} --streams 1 --cached-prefix 6000")
    for words in (
        "3 tokens drafted per pass",
        "4 rows per stream",
        "2.18 tokens (acceptance 0.6)",
        "drafted tokens per pass is the best number here",
        "It pays up to",
        "of KV cache per token",
        "Prefix cache: 6,000 tokens of the prompt are there (75 %)",
        "(6,000 of them cached)",
    ):
        assert words in text


def test_budgets_that_drafts_fill_are_told() -> None:
    text = printed(f"predict {EAGLE} --streams 32 --chunk 128")
    assert (
        "No prompt gets through: 32 streams × 4 tokens fill a budget of 128; a budget of 129 or more lets one in"
        in text
    )
    assert "It pays at every batch up to 32 streams" in text
    assert "; a budget of 128 has no room for more." in text


def test_several_configurations_have_columns_for_it() -> None:
    text = printed(f"predict {EAGLE} --streams 1,1024 --context 100")
    assert "speedup" in text
    assert "TPOT ms" in text


def test_simulations_tell_bundles() -> None:
    text = printed(f"simulate load --clients 2 --requests 8 --prompt 64 --output 64 {EAGLE}")
    assert "tokens per pass of a request" in text
    assert "3 tokens drafted per pass by eagle head of Llama-3.1-8B" in text
    text = printed(f"simulate interference --duration 6 --cached-prefix 4000 {EAGLE} --acceptance-draw even")
    assert "tokens per bundle" in text
    assert "(4,000 of them cached)" in text


def test_a_memory_plan_names_the_draft() -> None:
    found = document("plan memory --draft-model eagle3 --json")
    assert found["weights"][-1]["module"] == "draft"
    assert any("of the draft" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("predict --draft-model eagl", "did you mean eagle"),
        ("predict --acceptance 0.5", "needs a draft"),
        ("predict --draft-model ngram", "only you know"),
        ("predict --draft-model eagle --acceptance 1.5", "from 0 to 1"),
        ("predict --draft-model eagle --acceptance 0.5 --accepted-length 2 --speculative-tokens 3", "twice"),
        ("predict --draft-model eagle --accepted-length 2", "of how many speculative tokens"),
        ("predict --draft-model eagle --accepted-length 2:x", "must be numbers"),
        ("predict --draft-model eagle --accepted-length a:2", "not K:LENGTH"),
        ("predict --draft-model eagle --accepted-length 2:2.1,3:2.3,2:2.2", "given twice for 2 drafted tokens"),
        ("predict --draft-model eagle --acceptance-per-position 0.5,0.9", "none is above"),
        ("predict --draft-model eagle --speculative-tokens 0", "at least 1"),
        (
            "predict --draft-model eagle3 --acceptance 0.75 --speculative-tokens 3 --streams 60 --chunk 64",
            "64 does not hold the drafts of 60 streams (4 tokens of each); use a chunk of at least 240",
        ),
        (
            "predict --draft-model eagle3 --acceptance 0.75 --speculative-tokens 3 --streams 60 --chunk 200",
            "use a chunk of at least 240, or --speculative-tokens 2",
        ),
        ("predict --draft-model eagle3 --acceptance 0.75 --streams 60 --chunk 64", "use a chunk of at least 120"),
        ("predict --cached-prefix 8000", "of 8000 tokens leaves nothing of a prompt of 8000"),
        ("predict --cached-prefix 8000", "use at most 7999"),
        ("predict --cached-prefix 1 --prompt 1", "a prompt of 1 token has no cached prefix"),
        ("plan prompt --cached-prefix 10000000 --itl-ms 50", "use at most 131070"),
        ("plan prompt --cached-prefix 9 --itl-ms 50 --max-model-len 9", "use at most 7"),
        ("simulate load --clients 1 --draft-model eagle", "--speculative-tokens 3"),
        ("simulate load --clients 1 --acceptance-seed 3", "is for speculative decoding"),
        ("simulate interference --cached-prefix 9000", "use at most 7999"),
        ("plan chunk --itl-ms 50 --cached-prefix 8000", "use at most 7999"),
        ("plan batch --tpot-ms 20 --cached-prefix 100", "give --prompt"),
        ("plan memory --draft-model eagl", "did you mean eagle"),
        ("plan memory --speculative-tokens 3", "give --draft-model"),
        (
            "plan chunk --itl-ms 50 --draft-model eagle",
            "`plan replicas`, `plan disaggregation` and `simulate` run with one",
        ),
        ("plan batch --tpot-ms 20 --acceptance 0.5", "--acceptance: this is not answered with speculative decoding"),
        ("plan prompt --itl-ms 50 --speculative-model eagle", "`costmodel predict` has the pass"),
        ("plan gpu --itl-ms 50 --num-speculative-tokens 3", "is not answered with speculative decoding"),
        ("sweep --gpu h100 --draft-model eagle", "is not answered with speculative decoding"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(command: str, said: str) -> None:
    assert said in refusal(command)


def test_lengths_that_fall_are_a_warning() -> None:
    for command in ("predict", "simulate load --clients 1 --requests 1 --prompt 8 --output 8 --speculative-tokens 2"):
        asked = f"{command} --draft-model eagle --accepted-length"
        assert "falls from 2.1 with 2 drafted tokens to 2 with 3" in " ".join(
            run(f"{asked} 2:2.1,3:2.0").output.split()
        )
        assert "falls" not in run(f"{asked} 2:2.1,3:2.1").output


def test_a_prompt_that_is_all_cached_is_told() -> None:
    note = "the cached prefix of 100,000 tokens is no shorter than the prompt"
    assert note in " ".join(printed("plan prompt --itl-ms 50 --cached-prefix 100000 --kv-tokens 60000").split())
    assert note not in " ".join(printed("plan prompt --itl-ms 50 --cached-prefix 100000").split())


def test_one_token_is_one_token() -> None:
    assert "A request of 1 token with" in printed("explain request --prompt 1")


def test_an_assumed_acceptance_is_a_warning() -> None:
    assert "an acceptance of 0.6 is assumed" in run("predict --draft-model eagle").output
