"""A draft whose layers have other windows than the target's: what is simulated is what is predicted, for every pass and every spike."""

from __future__ import annotations

import pytest

import costmodel
from costmodel import Speculation
from costmodel.building import roofline_parameters
from costmodel.deployment import deploy
from costmodel.equations.work import Chunk
from costmodel.simulation.drafting import ModelPasses, Rows
from costmodel.speculation.drafts import draft_parameters, make_draft
from costmodel.speculation.steps import Speculator

PAIRS = [
    ("Llama-3.1-8B", "gemma-3-4b-it", 1),
    ("Phi-3-mini-4k-instruct", "Llama-3.2-1B", 1),
    ("Llama-3.1-8B", "Mistral-7B-v0.1", 1),
    ("Mistral-7B-v0.1", "Llama-3.2-1B", 1),
    ("gemma-4-26B-A4B", "Qwen3-0.6B", 2),
    ("Llama-4-Scout-17B-16E-Instruct", "gemma-3-4b-it", 4),
    ("gpt-oss-20b", "eagle3", 1),
]
"""Target, draft, tensor-parallel size: windows of the draft alone, of the target alone, of both, local chunks."""


@pytest.mark.parametrize(("model", "draft", "tp"), PAIRS)
@pytest.mark.parametrize(
    ("streams", "context", "budget"), [(8, 6000, None), (60, 500, None), (8, 500, 1032), (8, 9000, 2048)]
)
def test_passes_and_spikes_are_simulated_as_they_are_predicted(
    model: str, draft: str, tp: int, streams: int, context: int, budget: int | None
) -> None:
    """Whole prompts and parts of them, contexts within windows and beyond: equal to rounding."""
    asked = Speculation(draft, tokens=3, acceptance=0.75)
    common = {"model": model, "gpu": "h200", "tp": tp, "streams": streams, "context": context, "speculation": asked}
    predicted = costmodel.predict(4000, chunk=budget, **common).speculation  # type: ignore[arg-type]
    found = costmodel.simulate_interference(
        4000, chunk=budget or "one-step", acceptance_draw="even", duration=3.0, first=1.0, injected_output=1, **common
    )  # type: ignore[arg-type]
    assert predicted is not None
    assert found.baseline is not None
    assert found.baseline.itl is not None
    assert found.injected is not None
    assert found.injected.itl is not None
    assert found.baseline.itl.p50_s == pytest.approx(predicted.pass_s, rel=1e-9)
    assert found.injected.itl.max_s == pytest.approx(predicted.spike_s, rel=1e-9)


def test_sums_are_kept_for_the_windows_of_both() -> None:
    target = deploy("Phi-3-mini-4k-instruct", "h200")
    speculator = Speculator(roofline_parameters(target), draft_parameters(make_draft("gemma-3-4b-it", target)))
    assert set(ModelPasses(speculator, 3).windows) == {2047, 1024, None}


def test_a_draft_reads_the_prompt_and_not_the_streams_context() -> None:
    """Later passes by hand: KV of Llama-3.2-1B, 32,768 B per token, a prompt that is 99,000 tokens longer, two later passes."""
    target = deploy("Llama-3.1-8B", "h200")
    speculator = Speculator(roofline_parameters(target), draft_parameters(make_draft("Llama-3.2-1B", target)))
    times = []
    for length in (1000, 100_000):
        chunk = Chunk(1, length - 1)
        three, one = (speculator.pass_time(1, 500, tokens, [chunk]).draft_s for tokens in (3, 1))
        times.append(three - one)
    assert times[1] - times[0] == pytest.approx(2 * 99_000 * 32_768 / 4.8e12, rel=0.01)


def test_a_prompt_that_is_not_done_is_drafted_for_as_well() -> None:
    """vLLM's padded batch: with a step of nothing but part of a prompt, the draft's passes are run."""
    target = deploy("Llama-3.1-8B", "h200")
    speculator = Speculator(roofline_parameters(target), draft_parameters(make_draft("eagle3", target)))
    nothing = Rows(0, 0, [0.0], [0.0], [512 + 1.5 + 1])
    targets_only = ModelPasses(Speculator(speculator.target, None), 3)
    with_one, with_three = (ModelPasses(speculator, tokens).seconds([(512, 0)], nothing) for tokens in (1, 3))
    assert targets_only.seconds([(512, 0)], nothing) < with_one < with_three
