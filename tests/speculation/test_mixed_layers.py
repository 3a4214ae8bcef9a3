"""Speculation with layers of every kind: states that are kept after each draft, local chunks, sparse attention, lone mixers."""

from __future__ import annotations

from itertools import pairwise

import pytest

import costmodel
from costmodel.building import build_parameters, roofline_parameters
from costmodel.deployment import deploy
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Chunk, Decodes, LocalChunks, make_work
from costmodel.memory.blocks import kv_groups
from costmodel.simulation.clock import StepClock
from costmodel.speculation.drafts import make_draft

QWEN_NEXT, SCOUT = "Qwen3-Next-80B-A3B-Instruct", "Llama-4-Scout-17B-16E-Instruct"
NEMOTRON, DEEPSEEK = "Nemotron-H-56B-Base-8K", "DeepSeek-V3.2"
KINDS = {QWEN_NEXT: 4, SCOUT: 8, NEMOTRON: 4, DEEPSEEK: 8, "gemma-3-12b-it": 1}


def operators(model: str, tp: int, decodes: Decodes, *chunks: Chunk) -> dict[str, OperatorTime[float]]:
    parameters = roofline_parameters(deploy(model, "b200", tp=tp))
    return {item.name: item for item in step_operators(parameters, make_work(chunks, [decodes], parameters.windows))}


@pytest.mark.parametrize(("model", "kind"), [(QWEN_NEXT, "gdn"), (NEMOTRON, "mamba2")])
def test_a_state_is_read_once_and_written_after_every_row(model: str, kind: str) -> None:
    [state] = roofline_parameters(deploy(model, "b200", tp=4)).states
    assert state.name == kind
    one, five = (operators(model, 4, Decodes(3, 1000, queries))[f"decode_{kind}"] for queries in (1, 5))
    assert five.flops == 5 * one.flops
    assert one.bytes == 3 * (state.state_bytes + state.io_bytes_per_token) + state.weight_bytes
    assert five.bytes == 3 * (3 * state.state_bytes + 5 * state.io_bytes_per_token) + state.weight_bytes


def test_drafts_beside_a_prompt_are_no_part_of_its_scan() -> None:
    alone = operators(QWEN_NEXT, 4, Decodes(8, 1000), Chunk(512))["prefill_gdn"]
    beside = operators(QWEN_NEXT, 4, Decodes(8, 1000, 4), Chunk(512))["prefill_gdn"]
    assert (beside.flops, beside.bytes) == (alone.flops, alone.bytes)


def test_rows_that_cross_into_a_local_chunk_read_both() -> None:
    window = LocalChunks(8192)
    work = make_work([], [Decodes(2, 8190, 4)], [window])
    assert work.decode_kv[window] == 2 * (8190 + 4)
    assert work.decode_pairs is not None
    assert work.decode_pairs[window] == 2 * (8191 + 8192 + 1 + 2)


def test_a_sequence_has_a_block_for_the_state_after_every_draft() -> None:
    deployment = deploy(QWEN_NEXT, "b200", tp=4)
    for drafts in (0, 1, 3):
        groups = kv_groups(deployment, drafts=drafts)
        assert [group.states for group in groups] == [0, *[2 + drafts] * 3]
    # the convolution keeps an input more for each draft
    assert kv_groups(deployment, drafts=16)[0].block_tokens > kv_groups(deployment)[0].block_tokens


def test_fewer_sequences_fit_beside_their_drafts() -> None:
    asked = {"model": QWEN_NEXT, "gpu": "b200", "tp": 4, "max_model_len": 4096}
    plain, unsaid, counted = (
        costmodel.plan_memory(**asked, **more)  # type: ignore[arg-type]
        for more in ({}, {"draft_model": "mtp"}, {"draft_model": "mtp", "speculative_tokens": 3})
    )
    # 4,096 tokens in blocks of 272, or with three more inputs of the convolution of 288; three groups of 2 or 2 + 3 states
    assert (plain.memory.kv_block_tokens, counted.memory.kv_block_tokens) == (272, 288)
    assert plain.memory.kv_blocks_per_sequence == 16 + 3 * 2
    assert counted.memory.kv_blocks_per_sequence == 15 + 3 * 5
    assert counted.memory.max_concurrency < unsaid.memory.max_concurrency < plain.memory.max_concurrency
    assert any("--speculative-tokens" in note for note in unsaid.notes)
    assert not any("--speculative-tokens" in note for note in counted.notes)
    with pytest.raises(costmodel.InputError, match="give --draft-model"):
        costmodel.plan_memory(speculative_tokens=3)


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_heads_attend_and_have_a_feed_forward(model: str, method: str) -> None:
    target = deploy(model, "b200", tp=KINDS[model])
    draft = make_draft(method, target)
    assert draft.deployment is not None
    [kind] = draft.deployment.architecture.kinds
    assert kind.attention.kind != "none"
    assert kind.attention.window is None
    assert kind.state is None
    assert kind.feed_forward.kind != "none"
    assert 0 < draft.weights_bytes < 0.2 * costmodel.predict(model=model, gpu="b200").model.weights_bytes
    assert draft.kv_bytes_per_token > 0


@pytest.mark.parametrize("model", KINDS)
def test_a_pass_takes_longer_with_more_drafts_and_a_prompt(model: str) -> None:
    asked = {"model": model, "gpu": "b200", "tp": KINDS[model], "streams": 16, "context": 2000, "prompt": 3000}
    found = [
        costmodel.predict(**asked, speculation=costmodel.Speculation("eagle", tokens=k, acceptance=0.7)).speculation  # type: ignore[arg-type]
        for k in (1, 2, 5)
    ]
    for fewer, more in pairwise(found):
        assert fewer is not None
        assert more is not None
        assert fewer.plain_step_s < fewer.verify_s < more.verify_s
        assert fewer.pass_s < more.pass_s
        assert more.spike_s is not None
        assert more.spike_s > more.pass_s


@pytest.mark.parametrize("model", KINDS)
def test_simulated_passes_are_the_predicted_ones(model: str) -> None:
    speculation = costmodel.Speculation("eagle", tokens=3, acceptance=0.7)
    asked = {"model": model, "gpu": "b200", "tp": KINDS[model], "speculation": speculation, "calibration": "none"}
    predicted = costmodel.predict(streams=4, context=9000 if model == SCOUT else 2000, **asked).speculation  # type: ignore[arg-type]
    assert predicted is not None
    found = costmodel.simulate_interference(
        500,
        streams=4,
        context=9000 if model == SCOUT else 2000,
        every=10,
        first=0.5,
        duration=1.0,
        acceptance_draw="even",
        **asked,  # type: ignore[arg-type]
    )
    assert found.baseline is not None
    assert found.baseline.itl.p50_s == pytest.approx(predicted.pass_s, rel=1e-9)


def test_clocks_of_drafts_know_the_windows_of_their_target() -> None:
    clock = StepClock(build_parameters(deploy(SCOUT, "b200", tp=8)))
    assert LocalChunks(8192) in clock.windows
