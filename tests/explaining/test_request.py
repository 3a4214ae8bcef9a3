"""A request's way: stages that follow one another, bytes by hand, and what the simulation says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import costmodel
from costmodel.certainty import arrival_overheads
from costmodel.cli.explain_report import request_report
from costmodel.documents import Prediction
from costmodel.errors import InputError
from costmodel.explaining.documents import RequestExplanation, Stage
from costmodel.explaining.keeping import kept_of
from costmodel.explaining.request import ASSUMED_RATE
from costmodel.explaining.scene import make_scene
from costmodel.explaining.words import seconds, size

MATRICES = 6_979_321_856 + 4096 * 128_256
"""Weights that a step of Llama-3.1-8B reads: all but the embedding and the norms."""


def stages(document: RequestExplanation) -> dict[str, Stage]:
    return {stage.name: stage for stage in document.stages}


@pytest.fixture(scope="module")
def found() -> RequestExplanation:
    return costmodel.explain_request()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk": 512},
        {"prompt": 1, "output": 1},
        {"prompt": 17, "output": 2, "streams": 1},
        {"gpu": "mi300x"},
        {"engine": "sglang"},
        {"cached_prefix": 6000},
        {"cached_prefix": 6000, "chunk": 512},
        {"model": "Qwen3-Next-80B-A3B-Instruct", "gpu": "b200", "tp": 4},
    ],
    ids=str,
)
def test_stages_follow_one_another(options: dict[str, Any]) -> None:
    document = costmodel.explain_request(**options)
    way = [stage for stage in document.stages if stage.name != "stream"]
    assert [stage.name for stage in way] == ["tokenise", "queue", "prefill", "decode", "free"]
    for before, after in itertools.pairwise(way):
        assert after.start_s == pytest.approx(before.start_s + before.duration_s, abs=1e-12)
    assert way[-1].start_s == pytest.approx(document.e2e_s)
    assert way[3].start_s == pytest.approx(document.ttft_s)
    computed = document.prompt_tokens - document.cached_prefix_tokens
    assert sum(step.own_tokens for step in document.steps) == computed + document.output_tokens - 1
    for one, other in zip(document.steps, document.steps[1:], strict=False):
        assert other.start_s == pytest.approx(one.start_s + one.duration_s, abs=1e-12)  # the server is never idle


def test_the_prefill_is_the_spike_that_is_predicted(found: RequestExplanation) -> None:
    prediction: Prediction = costmodel.predict()
    assert stages(found)["prefill"].duration_s == pytest.approx(prediction.spike.height_s, rel=1e-12)
    assert found.steps[0].duration_s == pytest.approx(prediction.best.decode_step_s, rel=1e-9)
    chunked = costmodel.explain_request(chunk=2048)
    predicted = costmodel.predict(chunk=2048).spike
    assert stages(chunked)["prefill"].steps == predicted.chunks == 4
    assert stages(chunked)["prefill"].duration_s == pytest.approx(predicted.duration_s, rel=1e-12)


def test_bytes_are_those_counted_by_hand(found: RequestExplanation) -> None:
    by_name, per_token = stages(found), 131_072
    prefill, decode = by_name["prefill"], by_name["decode"]
    assert found.kv_bytes_per_token == per_token
    assert prefill.reads == {"weights_bytes": 2 * MATRICES, "kv_bytes": 8000 * per_token}
    assert prefill.writes == {"kv_bytes": 8000 * per_token}
    assert decode.reads["weights_bytes"] == 199 * 2 * MATRICES
    assert decode.reads["kv_bytes"] == sum(8000 + j for j in range(1, 200)) * per_token
    assert decode.writes["kv_bytes"] == 199 * per_token
    assert decode.flops == 199 * 2 * MATRICES + 4 * 32 * 128 * 32 * sum(8000 + j for j in range(1, 200))
    assert (prefill.bound, decode.bound) == ("compute", "memory")


def test_chunks_read_the_weights_and_the_context_again() -> None:
    prefill = stages(costmodel.explain_request(chunk=2048))["prefill"]
    assert prefill.reads["weights_bytes"] == 4 * 2 * MATRICES
    assert prefill.reads["kv_bytes"] == (2016 + 4032 + 6048 + 8000) * 131_072
    assert prefill.writes["kv_bytes"] == 8000 * 131_072


def test_blocks_grow_with_the_sequence_and_are_kept_or_freed(found: RequestExplanation) -> None:
    held = [step.own_kv_blocks for step in found.steps]
    assert held == sorted(held)
    assert held[0] == 0
    assert found.kv_blocks == held[-1] == 513  # ⌈(8000 + 199)/16⌉
    assert found.kept_blocks == 512
    for step in found.steps:
        assert step.own_tokens <= 1 or step.own_kv_blocks == 500
    off = costmodel.explain_request(prefix_caching=False)
    assert (off.kv_blocks, off.kept_blocks) == (513, 0)
    assert off.e2e_s == found.e2e_s


def test_the_tokenizer_is_measured_fitted_or_assumed(found: RequestExplanation) -> None:
    assert "fitted to served requests" in stages(found)["tokenise"].what
    measured = stages(costmodel.explain_request(tokens_per_s=2e6, tokenizer="mine"))
    assert measured["tokenise"].duration_s == 8000 / 2e6
    assert "measured here: 2,000,000 tokens/s of mine" in measured["tokenise"].what
    assert measured["prefill"].start_s == pytest.approx(
        stages(found)["prefill"].start_s, rel=1e-12
    )  # the way to the engine is fitted
    assumed = stages(costmodel.explain_request(calibration="none"))["tokenise"]
    assert assumed.assumed
    assert assumed.duration_s == 8000 / ASSUMED_RATE
    assert "assumed" in assumed.what
    slow = costmodel.explain_request(tokens_per_s=1000)
    assert stages(slow)["tokenise"].duration_s == 8
    assert slow.ttft_s > 8


@pytest.mark.parametrize(("options", "why"), [
    ({"gpu": "rtx-4090"}, "unknown: rtx-4090 vllm, layers of Llama-3.1-8B has no served requests"),
    ({"calibration": "none"}, "unknown without a calibration"),
])  # fmt: skip
def test_a_way_to_the_engine_that_nothing_tells_of_is_assumed(options: dict[str, Any], why: str) -> None:
    queue = stages(costmodel.explain_request(**options))["queue"]
    assert queue.assumed
    assert f"0 µs on its way through the server's processes ({why})" in queue.what


def test_the_way_to_the_engine_is_not_assumed_where_it_is_fitted(found: RequestExplanation) -> None:
    assert not stages(found)["queue"].assumed
    longest = costmodel.explain_request(131_072 - 1, 1, streams=1)
    assert longest.prompt_tokens + longest.output_tokens == 131_072


def test_a_windowed_model_reads_its_windows_only() -> None:
    document = costmodel.explain_request(2000, 50, model="gpt-oss-20b")
    decode = stages(document)["decode"]
    per_layer = 2 * 8 * 64 * 2
    assert decode.reads["kv_bytes"] == sum(12 * per_layer * (2000 + j) + 12 * per_layer * 128 for j in range(1, 50))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": 0}, "prompt must be at least 1"),
        ({"output": 0}, "output must be at least 1"),
        ({"chunk": 32}, "use at least 33"),
        ({"chunk": "engin"}, "'engine' or 'one-step'"),
        ({"tokens_per_s": 0}, "tokens_per_s must be a finite number above zero"),
        ({"streams": 1000, "output": 100_000}, "use an output of at most"),
        ({"model": "Llama-3.1-9B"}, "Llama-3.1-8B"),
        ({"prompt": 130_873}, "use a prompt of at most 130,872 tokens"),
        ({"prompt": 1, "output": 131_072}, "use an output of fewer than 131,072 tokens"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        costmodel.explain_request(**options)


def test_a_decode_loop_that_multiplies_says_so(found: RequestExplanation) -> None:
    decode = stages(costmodel.explain_request(model="gpt-oss-120b"))["decode"]
    assert decode.bound == "compute"
    assert "Most of that time kernels multiply longer than they read" in decode.what
    assert "Σ kernels max(bytes/W, FLOPs/F), each rate with its efficiency, and overheads" in decode.formula
    plain = stages(found)["decode"]
    assert plain.bound == "memory"
    assert "kernels multiply" not in plain.what
    assert "efficiency" not in stages(costmodel.explain_request(calibration="none"))["decode"].formula


def test_no_more_streams_decode_beside_a_request_than_fit() -> None:
    load: dict[str, Any] = {"model": "Qwen3-32B", "gpu": "h200", "tp": 2, "context": 16_000}
    document = costmodel.explain_request(streams=64, **load)
    assert document.streams_asked == 64
    # a request of 8,000 + 200 tokens takes about half as much as a stream of 16,000: one stream less than without it
    alone = make_scene(**load).most_streams(16_000)
    assert document.streams in (alone - 1, alone)
    fitting = costmodel.explain_request(streams=document.streams, **load)
    assert (fitting.tpot_s, fitting.stages) == (document.tpot_s, document.stages)
    assert not any("do not fit" in text for text in fitting.warnings)
    more = costmodel.explain_request(streams=document.streams + 1, **load)
    assert more.streams == document.streams
    assert any(f"beside the request: {document.streams} do and decode here" in text for text in document.warnings)
    assert document.kv_blocks_of_server is not None
    said = " ".join(request_report(document).split())
    assert f"among {document.streams} of 64 streams at 16,000 tokens" in said
    assert f"beside {document.streams} streams that wait" in said


def test_a_cached_prefix_is_not_computed() -> None:
    whole, cached = costmodel.explain_request(), costmodel.explain_request(cached_prefix=6000)
    assert cached.cached_prefix_tokens == 6000
    prefill, per_token = stages(cached)["prefill"], 131_072
    assert prefill.duration_s == pytest.approx(costmodel.predict(cached_prefix=6000).spike.height_s, rel=1e-12)
    assert prefill.reads["kv_bytes"] == 8000 * per_token
    assert prefill.writes == {"kv_bytes": 2000 * per_token}
    assert "6,000 tokens are in the prefix cache; the other 2,000 of the prompt" in prefill.what
    assert stages(cached)["decode"].duration_s == pytest.approx(stages(whole)["decode"].duration_s, rel=1e-12)
    assert cached.kv_blocks == whole.kv_blocks
    with pytest.raises(InputError, match="leaves nothing of a prompt"):
        costmodel.explain_request(100, cached_prefix=100)
    with pytest.raises(InputError, match="which is off"):
        costmodel.explain_request(cached_prefix=100, prefix_caching=False)


def test_a_request_reads_and_writes_its_states_in_every_step() -> None:
    document = costmodel.explain_request(
        3000, 10, model="Qwen3-Next-80B-A3B-Instruct", gpu="b200", chunk=1024, streams=8
    )
    each = 36 * 2 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    by_name = stages(document)
    assert by_name["prefill"].steps == 3
    assert by_name["prefill"].reads["state_bytes"] == by_name["prefill"].writes["state_bytes"] == 3 * each
    assert by_name["decode"].reads["state_bytes"] == 9 * each


BLOCK = 16 * 2 * 2
"""Tokens of a block, K and V, and bytes of an element."""
KEPT: list[tuple[str, dict[str, Any], tuple[int, int, int], int]] = [
    # 10 of 62 layers see everything; the others, in 6 groups, the last 1,024 tokens: ⌈1023/16⌉ blocks each
    ("gemma-3-27b-it", {"gpu": "a100"}, (512, 6 * 64, 0), BLOCK * 10 * 16 * 128),
    ("gpt-oss-20b", {}, (512, 8, 0), BLOCK * 12 * 8 * 64),  # 12 of 24, a window of 128
    ("Llama-3.1-8B", {}, (512, 0, 0), 16 * 131_072),
    ("Mistral-7B-v0.1", {"gpu": "a100"}, (0, 256, 0), 16 * 131_072),  # a window of 4,096 in all layers
    ("Qwen3-Next-80B-A3B-Instruct", {"gpu": "h200", "tp": 2}, (15, 0, 3), 6_684_672),  # a block is as large as a state
    # its 8,192 tokens are a whole local chunk: the next token looks at none of them there
    ("Llama-4-Scout-17B-16E-Instruct", {"gpu": "h100", "tp": 4}, (512, 0, 0), BLOCK * 12 * 2 * 128),
]


@pytest.mark.parametrize(("model", "options", "kept", "block"), KEPT, ids=[name for name, *_ in KEPT])
def test_the_blocks_that_are_kept_have_their_size(
    model: str, options: dict[str, Any], kept: tuple[int, int, int], block: int
) -> None:
    document = costmodel.explain_request(model=model, **options)
    scene = make_scene(model, **options)
    found = kept_of(scene, 8199)  # the last of 200 tokens is never fed back
    assert (found.full, found.windows, found.states) == kept
    assert found.bytes == sum(kept) * block
    assert document.kept_blocks == sum(kept)
    said = stages(document)["free"].what
    assert f"{sum(kept):,} full ones keep what they hold ({size(found.bytes)}" in said
    assert ("of the layers that keep every token" in said) is (model not in ("Llama-3.1-8B", "Mistral-7B-v0.1"))
    assert ("the states at its end" in said) is bool(scene.floor.states)


@pytest.mark.parametrize(("model", "options"), [(name, options) for name, options, *_ in KEPT])
def test_a_prefix_is_kept_in_as_many_bytes_by_request_and_prefix_cache(model: str, options: dict[str, Any]) -> None:
    [topic] = costmodel.explain("prefix-cache", model=model, context=9000, cached_prefix=8199, **options).topics
    found = kept_of(make_scene(model, **options), 8199)
    assert topic.numbers["kept_kv_bytes"] == found.bytes
    assert f"({size(found.bytes)}" in stages(costmodel.explain_request(model=model, **options))["free"].what


@pytest.mark.parametrize(("model", "options"), [(name, options) for name, options, *_ in KEPT])
def test_the_blocks_of_the_server_are_those_of_plan_memory(model: str, options: dict[str, Any]) -> None:
    document = costmodel.explain_request(model=model, **options)
    tp = options.get("tp", 1)
    planned = costmodel.plan_memory(model, options.get("gpu", "h100"), tp=tp).memory
    assert document.kv_blocks_of_pool == planned.kv_blocks
    usable = document.kv_blocks_of_server
    assert usable is not None
    # a prompt that is prefilled holds min(w − 1 + budget, prompt) tokens of a window until its next step
    aside = {"gemma-3-27b-it": 1530, "gpt-oss-20b": 492}.get(model, 0)
    assert usable == planned.kv_blocks - 1 - aside
    said = " ".join(request_report(document).split())
    assert f"of {usable:,} that requests can have (there are {planned.kv_blocks:,}: one is vLLM's own" in said
    assert (f"{aside:,} are set aside for the layers with a window" in said) is bool(aside)


def test_where_its_numbers_come_from_is_said(found: RequestExplanation) -> None:
    by_name = stages(found)
    assert "31.5 kB, at 3.94 bytes per token of English" in by_name["tokenise"].what
    fixed, per_token, waited = arrival_overheads(make_scene().fitted)
    way = fixed + waited * found.steps[0].duration_s
    assert (
        f"{seconds(way)} on its way through the server's processes ({seconds(fixed)} and 1.92 decode steps"
        in by_name["queue"].what
    )
    faster = stages(costmodel.explain_request(tokens_per_s=2e6))["queue"].what
    assert f", and {seconds(8000 * per_token - 8000 / 2e6)} more for handing over the prompt; fitted" in faster
    slower = stages(costmodel.explain_request(tokens_per_s=1000))["queue"].what
    assert (
        "0 µs on its way through the server's processes (all of it passes while the text is tokenised; fitted" in slower
    )
    assert "unknown without a calibration" in stages(costmodel.explain_request(calibration="none"))["queue"].what
    assert "the first of 200 tokens comes from the prefill, the others from 199 steps" in by_name["stream"].what
    single = stages(costmodel.explain_request(100, 1))["stream"].what
    assert "the one token comes from the prefill (until EOS)" in single
    assert "of the experts" not in by_name["decode"].what
    assert (
        "of the experts, those that its tokens choose"
        in stages(costmodel.explain_request(model="gpt-oss-20b"))["decode"].what
    )
