"""The nine statements of what is true of an inference server, each on the model."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest

import costmodel
from costmodel.architecture.counts import kv_bytes_per_token
from costmodel.explaining import ruler
from costmodel.explaining.asking import TOPICS
from costmodel.explaining.bandwidth import intensity
from costmodel.explaining.caching import cache_rows, state_rows
from costmodel.explaining.documents import Topic
from costmodel.explaining.heads import with_kv_heads
from costmodel.explaining.prefixes import found_tokens, served
from costmodel.explaining.projections import projection_flops
from costmodel.explaining.scene import MATRICES, Scene, bytes_of, flops_of, make_scene, of, time_of
from costmodel.explaining.squares import overtaking, parts
from costmodel.memory.blocks import stage_kv_bytes

MODELS = ["Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-4B", "gpt-oss-120b", "Mixtral-8x7B", "gemma-3-12b-it"]


def topic(name: str, **options: object) -> Topic:
    [found] = costmodel.explain(name, **options).topics  # type: ignore[arg-type]
    return found


@pytest.fixture(scope="module")
def scene() -> Scene:
    return make_scene()


def of_kv_heads(scene: Scene, group: int | None) -> Scene:
    return scene.changed(architecture=with_kv_heads(scene.architecture, group))


def test_every_topic_is_there_in_order() -> None:
    found = costmodel.explain()
    assert [item.name for item in found.topics] == list(TOPICS)
    assert [item.number for item in found.topics] == list(range(1, 10))
    for item in found.topics:
        assert item.claim == TOPICS[item.name][2]
        assert item.verdict
        assert item.reason
        assert item.formulas
        assert any("arXiv" in text or "CACM" in text for text in item.sources)
        assert set(item.labels) <= set(item.numbers)


# 1 --- the effective context is often shorter, and all of it is paid for --------------------------------------------------------


def test_the_effective_context_is_often_shorter_than_the_claimed_one() -> None:
    at = {item.name: item.effective // 1024 for item in ruler.MEASURED}
    assert len(at) == len(ruler.MEASURED)
    assert (at["Llama 3.1 (8B)"], at["Llama 3.1 (70B)"], at["Qwen2 (72B)"], at["GLM4 (9B)"]) == (32, 64, 32, 64)
    assert (at["Qwen3-32B"], at["Qwen3-235B-A22B"], at["Gemini-1.5-pro"], at["Jamba-1.5-mini (12B/52B)"]) == (128,) * 4
    # as the README of NVIDIA/RULER lists them, but for three whose scores there are below 85.6
    differing = {item.name: item.score(item.listed) for item in ruler.MEASURED if item.listed != item.effective}
    assert differing == {"Qwen3-14B": 85.1, "Qwen3-8B": 82.1, "Qwen3-4B": 77.8}
    assert ruler.at_the_longest() == (20, 8)
    shorter = {item.effective for item in ruler.MEASURED if item.claimed >= ruler.LONGEST > item.effective}
    assert shorter == {32_768, 65_536}  # as the verdict says


def test_a_measurement_is_that_of_the_model_and_no_other() -> None:
    names = {
        "Llama-3.1-8B-Instruct": "Llama 3.1 (8B)",
        "qwen3-8b-fp8": "Qwen3-8B",
        "Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
    }
    for name, published in names.items():
        found = ruler.measured_of(name)
        assert found is not None
        assert found.name == published
    for name in ("Qwen3-4B-Instruct-2507", "Qwen3-0.6B", "Yi-34B", "Phi-3-mini-4k-instruct", "Llama-3.1-405B", ""):
        assert ruler.measured_of(name) is None


@pytest.mark.parametrize(
    ("model", "effective", "opening", "words"),
    [
        ("Llama-3.1-8B", 32_768, "No.", "32,768 are effective; its score falls from 95.5 at 4k to 77.0 at 128k"),
        ("Qwen3-8B", 32_768, "No.", "(its README lists 65,536, where the score is 82.1)"),
        ("Qwen3-32B", 131_072, "Of Qwen3-32B and its 128k it is true by one measure", "The window of its config is 40,960"),
        ("Mixtral-8x7B-v0.1", 32_768, "Of Mixtral-8x7B-v0.1 and its 32k it is true", "85.9 at 32k"),
        ("gemma-3-12b-it", None, "Not by itself.", "gemma-3-12b-it is not in our table, so how it does is unknown here"),
    ],
)  # fmt: skip
def test_the_verdict_on_a_window_is_what_was_measured(
    model: str, effective: int | None, opening: str, words: str
) -> None:
    found = topic("long-context", model=model, gpu="b200")
    assert found.numbers["measured_effective_tokens"] == effective
    assert found.verdict.startswith(opening)
    assert words in found.verdict
    assert "at least 85.6" in found.reason[0]  # what effective means
    assert "commit ebe802cd" in found.sources[0]


def test_a_context_beyond_128k_is_looked_at_as_far_as_the_window_goes() -> None:
    longer = topic("long-context", context=200_000)
    assert longer.numbers["context_tokens"] == longer.numbers["window_tokens"] == 131_072
    assert "the whole window and not the 200,000 that were asked for" in longer.verdict
    wide = topic("long-context", model="Llama-4-Scout-17B-16E-Instruct", gpu="b200", tp=8, context=200_000)
    assert wide.numbers["context_tokens"] == 200_000
    assert "asked for" not in wide.verdict


def test_a_long_context_costs_more_than_its_length() -> None:
    numbers = topic("long-context", calibration="none").numbers
    assert numbers["length_ratio"] == 128
    assert numbers["prefill_ratio"] > 128
    # 128k: 4·32·128·32·n(n + 1)/2 in attention beside 2·6.98e9·n in the layers, and lm_head once
    n = 131_072
    attention, layers = 4 * 32 * 128 * 32 * n * (n + 1) / 2, 2 * 6_979_321_856 * n
    assert numbers["attention_flops_share"] == pytest.approx(
        attention / (attention + layers + 2 * 4096 * 128_256), rel=1e-9
    )
    assert numbers["kv_bytes"] == (n // 16 + 1) * 16 * 131_072


# 2 --- TPOT and KV memory limit the batch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "context"),
    [
        ("Llama-3.1-8B", "h100", 1, 8000),
        ("Llama-3.1-8B", "h100", 1, 500),
        ("gpt-oss-20b", "h100", 1, 4000),
        ("gemma-3-27b-it", "a100", 1, 8000),
        ("DeepSeek-V3.2", "h200", 8, 8000),
        ("Qwen3-Next-80B-A3B-Instruct", "h200", 2, 8000),
    ],
)
def test_the_batch_ends_where_the_cache_of_a_default_server_does(model: str, gpu: str, tp: int, context: int) -> None:
    numbers = topic("batch-size", model=model, gpu=gpu, tp=tp, context=context).numbers
    most = int(numbers["most_streams_in_kv_cache"])  # type: ignore[arg-type]
    memory = costmodel.plan_memory(model, gpu, tp=tp).memory
    blocks = memory.kv_blocks - 1  # one is vLLM's own
    each = make_scene(model, gpu, tp=tp).pool().stream(context)
    assert most == blocks // each
    assert numbers["kv_cache_bytes"] == pytest.approx(memory.kv_available_bytes, rel=1e-3)


def test_all_that_speak_of_a_cache_speak_of_the_same() -> None:
    numbers = topic("batch-size").numbers
    blocks = costmodel.explain_request(100, 5).kv_blocks_of_server
    assert blocks == costmodel.plan_memory().memory.kv_blocks - 1
    assert numbers["most_streams_in_kv_cache"] == blocks // 501  # 8,001 tokens in blocks of 16
    assert numbers["kv_cache_bytes"] == blocks * 16 * 131_072
    predicted = costmodel.predict(chunk=8192, streams=56, context=8000, prompts=1).memory
    assert predicted.kv_blocks == blocks
    # with max_num_seqs set to the batch the sampler takes less: a plan that sets it may have room for more
    bounds = {item.limit: item.allows for item in costmodel.plan_batch(8000, confirm=False).bounds}
    assert int(bounds["kv_memory"] or 0) >= blocks // 501


def test_a_larger_batch_gives_more_together_and_less_to_each(scene: Scene) -> None:
    table = topic("batch-size").table("batches")
    tpot, rate = table.column("tpot_s"), table.column("tokens_per_s")
    assert tpot == sorted(tpot)  # type: ignore[type-var]
    assert rate == sorted(rate)  # type: ignore[type-var]
    numbers = topic("batch-size").numbers
    double, one = int(numbers["most_streams_at_twice_the_tpot"]), numbers["tpot_one_s"]  # type: ignore[arg-type]
    assert time_of(scene.decode(double, 8000)) <= 2 * one < time_of(scene.decode(double + 1, 8000))  # type: ignore[operator]
    floor = make_scene(calibration="none")
    # what a sequence adds on the roofline: its KV bytes over the bandwidth, and its inputs and outputs
    added = time_of(floor.decode(33, 8000)) - time_of(floor.decode(32, 8000))
    assert added == pytest.approx(8001 * 131_072 / 3.35e12, rel=0.02)


# 3 --- KV cache and bandwidth, not n² ----------------------------------------------------------------------------------------------


def test_the_square_overtakes_where_it_does_by_hand(scene: Scene) -> None:
    # P_lin·2·n = 4·h·d_h·L·n(n + 1)/2  →  n + 1 = P_lin/(h·d_h·L)
    assert 6_979_321_856 / (32 * 128 * 32) == 53_248
    assert overtaking(scene, flops=True) == 53_248
    found = overtaking(scene)
    assert found is not None
    for tokens, behind in ((found - 1, True), (found, False)):
        step = scene.prefill(tokens)
        assert (time_of(of(step, ["attention"])) <= time_of(of(step, ["linear"]))) is behind


def test_the_square_is_a_small_part_of_an_ordinary_request(scene: Scene) -> None:
    numbers = topic("quadratic").numbers
    assert numbers["quadratic_share"] < 0.1  # type: ignore[operator]
    assert numbers["answer_share"] > 0.5  # type: ignore[operator]
    assert numbers["answer_kv_share"] > numbers["quadratic_share"]  # type: ignore[operator]
    whole = sum(value for key, value in parts(scene, 8000).items() if key.endswith("_s"))  # type: ignore[misc]
    assert whole == pytest.approx(time_of(scene.prefill(8000)) + 500 / 32 * time_of(scene.decode(32, 8250)), rel=1e-12)
    step = scene.decode(32, 8000, floor=True)
    assert all(item.bound == "memory" for item in step)


def test_a_request_shares_its_steps_with_as_many_as_fit() -> None:
    rows = {row["prompt_tokens"]: row for row in topic("quadratic").table("requests").rows}
    most = topic("batch-size", context=131_072 + 500).numbers["most_streams_in_kv_cache"]
    assert rows[131_072]["streams"] == most == 3
    assert rows[8000]["streams"] == 32


def test_windows_keep_attention_linear() -> None:
    assert topic("quadratic", model="Mistral-7B-v0.1").numbers["overtakes_in_flops_tokens"] is None


# 4 --- decode lacks bandwidth ------------------------------------------------------------------------------------------------------


def test_decode_is_far_below_the_ridge_point_and_prefill_far_above() -> None:
    numbers = topic("decode-bound").numbers
    assert numbers["ridge_flops_per_byte"] == pytest.approx(989e12 / 3.35e12)
    assert numbers["decode_flops_per_byte"] < 20  # type: ignore[operator]
    assert numbers["prefill_flops_per_byte"] > 1000  # type: ignore[operator]
    assert numbers["saved_by_twice_the_compute_share"] < 0.01  # type: ignore[operator]
    assert numbers["saved_by_twice_the_bandwidth_share"] > 0.3  # type: ignore[operator]


def test_on_the_roofline_twice_the_bandwidth_is_half_the_step_and_twice_the_compute_is_nothing() -> None:
    numbers = topic("decode-bound", calibration="none").numbers
    assert numbers["saved_by_twice_the_bandwidth_share"] == pytest.approx(0.5)
    assert numbers["saved_by_twice_the_compute_share"] == pytest.approx(0, abs=1e-12)
    assert numbers["moving_share"] == pytest.approx(1)


@pytest.mark.parametrize("streams", [1, 8, 64, 512])
def test_a_batch_shares_weights_and_not_the_cache(scene: Scene, streams: int) -> None:
    step = scene.decode(streams, 4000, floor=True)
    assert intensity(of(step, MATRICES)) == pytest.approx(streams, rel=0.3)  # 2·B FLOPs per weight of 2 bytes
    assert intensity(of(step, ["attention"])) == pytest.approx(4)  # h/h_kv = 32/8, whatever the batch


# 5 --- GQA reduces the cache, not the FLOPs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_kv_heads_change_bytes_in_proportion_and_no_flops_of_attention(model: str) -> None:
    scene = make_scene(model)
    attention = scene.architecture.kinds[0].attention
    heads = attention.query_heads
    one, all_heads = of_kv_heads(scene, None), of_kv_heads(scene, 1)
    for changed, kv_heads in ((one, 1), (all_heads, heads)):
        for step, own in (
            (scene.prefill(8000, floor=True), changed.prefill(8000, floor=True)),
            (scene.decode(32, 8000, floor=True), changed.decode(32, 8000, floor=True)),
        ):
            assert flops_of(of(own, ["attention"])) == flops_of(of(step, ["attention"]))
            moved = bytes_of(of(own, ["attention"])) / bytes_of(of(step, ["attention"]))
            assert moved == pytest.approx(kv_heads / attention.kv_heads, rel=1e-12)
        stored = stage_kv_bytes(changed.deployment, 0) / stage_kv_bytes(scene.deployment, 0)
        assert stored == pytest.approx(kv_heads / attention.kv_heads, rel=1e-12)


def test_the_small_change_is_in_the_projections(scene: Scene) -> None:
    for group, kv_heads in ((1, 32), (4, 8), (None, 1)):
        assert projection_flops(of_kv_heads(scene, group)) == 2 * 4096 * (2 * 32 + 2 * kv_heads) * 128 * 32
    numbers = topic("gqa").numbers
    assert numbers["kv_bytes_ratio"] == 4
    assert numbers["attention_flops_ratio"] == numbers["decode_attention_flops_ratio"] == 1
    assert numbers["projection_flops_ratio"] == 0.625


def test_latent_attention_saves_bytes_and_costs_flops_in_decode() -> None:
    numbers = topic("gqa", model="DeepSeek-V3", gpu="h200", tp=8).numbers
    assert numbers["attention_flops_ratio"] == 1
    assert numbers["decode_attention_flops_ratio"] == pytest.approx((2 * 512 + 64) / (192 + 128))  # absorbed
    whole = topic("gqa", model="DeepSeek-V3", gpu="h200").numbers
    assert whole["kv_bytes_ratio"] == pytest.approx(128 * (192 + 128) / 576)


def test_a_model_without_groups_is_told_what_they_would_do() -> None:
    found = topic("gqa", model="Llama-2-7B")
    assert found.table("variants").column("variant") == [
        "this model, MHA: 32 KV heads",
        "GQA: 4 KV heads",
        "MQA: 1 KV head",
    ]
    assert found.numbers["kv_bytes_ratio"] == 8


# 6 --- only K and V are cached -----------------------------------------------------------------------------------------------------


def test_the_cache_holds_k_and_v_and_nothing_else() -> None:
    rows = topic("kv-cache").table("layers").rows
    assert [row["part"] for row in rows] == ["K", "V"]
    assert [row["bytes_per_token"] for row in rows] == [8 * 128 * 2 * 32] * 2
    numbers = topic("kv-cache").numbers
    assert numbers["kv_bytes_per_token"] == 131_072
    assert (numbers["kv_blocks"], numbers["block_bytes"]) == (500, 16 * 131_072)
    assert numbers["sequence_kv_bytes"] == 8000 * 131_072
    assert numbers["cached_q_bytes"] == numbers["cached_scores_bytes"] == 0
    assert numbers["q_bytes_per_token"] == 32 * 128 * 2 * 32
    assert numbers["sequence_scores_bytes"] == 32 * 32 * 2 * 8000 * 8001 / 2


def test_the_latent_is_kept_once() -> None:
    rows = cache_rows(make_scene("DeepSeek-V3", "h200"))
    assert {row["part"] for row in rows} == {"the latent of K and V", "the rotary part of K"}
    assert sum(row["bytes_per_token"] for row in rows) == 61 * 576 * 2 == 70_272  # type: ignore[misc]


@pytest.mark.parametrize(
    "model", [name for name in costmodel.model_names() if not costmodel.load_model(name)[0].pooling]
)
def test_the_parts_are_all_there_is(model: str) -> None:
    scene = make_scene(model, "b200")
    kept = sum(row["bytes_per_token"] for row in cache_rows(scene))  # type: ignore[misc]
    assert kept == pytest.approx(kv_bytes_per_token(scene.architecture, scene.deployment.kv_bytes))
    if not scene.architecture.compresses:  # else a kernel counts keys, of which there are fewer than tokens
        assert kept == pytest.approx(sum(kernel.kv_bytes_per_token for kernel in scene.floor.attention))


# 9 --- K and V of the prefix are cached, the answer is not -------------------------------------------------------------------------


def test_whole_blocks_come_from_the_cache_and_the_last_token_never() -> None:
    assert found_tokens(8000, 0, 16) == 0
    assert found_tokens(8000, 15, 16) == 0
    assert found_tokens(8000, 7200, 16) == 7200
    assert found_tokens(8000, 8000, 16) == 7984
    assert found_tokens(8001, 8001, 16) == 8000
    assert found_tokens(1, 1, 16) == 0


def test_a_cached_prefix_shortens_the_prefill_and_not_the_answer(scene: Scene) -> None:
    rows = [served(scene, same, 16) for same in range(0, 8001, 400)]
    assert len({row["answer_s"] for row in rows}) == 1
    assert {row["answer_steps"] for row in rows} == {499}
    for before, after in itertools.pairwise(rows):
        assert after["prefill_s"] < before["prefill_s"]  # type: ignore[operator]
        assert after["prefill_flops"] < before["prefill_flops"]  # type: ignore[operator]
    half = served(scene, 4000, 16)
    # the second half still attends to the first: 2·P_lin·q + 4·h·d_h·L·(q·c + q(q + 1)/2) + lm_head
    pairs = 4000 * 4000 + 4000 * 4001 / 2
    by_hand = 2 * 6_979_321_856 * 4000 + 4 * 32 * 128 * 32 * pairs + 2 * 4096 * 128_256
    assert half["prefill_flops"] == pytest.approx(by_hand, rel=1e-12)
    assert half["kept_kv_bytes"] == 4000 * 131_072
    assert rows[-1]["computed_tokens"] == 16
    assert math.isfinite(float(str(rows[-1]["prefill_s"])))


def test_a_prefix_that_is_named_is_that_of_a_prediction() -> None:
    [found] = costmodel.explain("prefix-cache", cached_prefix=6000).topics
    predicted = costmodel.predict(8000, cached_prefix=6000).prefix_cache
    assert predicted is not None
    assert found.numbers["cached_tokens"] == predicted.cached_tokens == 6000
    assert found.numbers["prefill_s"] == pytest.approx(predicted.prefill_s, rel=1e-12)
    assert found.numbers["prefill_without_s"] == pytest.approx(predicted.prefill_without_cache_s, rel=1e-12)
    assert "75 % of a prompt of 8,000 tokens" in found.verdict


@pytest.mark.parametrize(("context", "cached_prefix"), [(1, None), (10, None), (100, 1), (8000, 0)])
def test_where_nothing_comes_from_the_cache_it_is_said(context: int, cached_prefix: int | None) -> None:
    found = topic("prefix-cache", context=context, cached_prefix=cached_prefix, output=1)
    assert found.numbers["cached_tokens"] == found.numbers["prefill_saved_s"] == 0
    assert "nothing comes from the cache" in found.verdict
    assert "its one token ends the prefill" in found.verdict
    assert "0 %" not in found.verdict
    assert not re.search(
        r"\b1 tokens", " ".join((found.verdict, found.finding, *(item.title for item in found.tables)))
    )


def test_a_prefix_of_recurrent_layers_has_states_too() -> None:
    found = topic("prefix-cache", model="Qwen3-Next-80B-A3B-Instruct", gpu="h200", tp=2)
    assert "and the states of recurrent layers at its end, are" in found.verdict
    assert "of K, V and states kept for it" in found.verdict
    assert "cannot be cut" in found.reason[0]
    assert found.numbers["cached_tokens"] == 7200 // 544 * 544
    assert found.numbers["kept_kv_bytes"] == (13 + 3) * 6_684_672  # the state at its end of each of three groups
    assert "states" not in " ".join((topic("prefix-cache").verdict, *topic("prefix-cache").reason))


def test_a_longer_context_is_looked_at_where_the_model_takes_it() -> None:
    assert topic("long-context", context=200_000).numbers["context_tokens"] == 131_072
    longer = topic("long-context", context=200_000, model="Qwen3-Next-80B-A3B-Instruct", gpu="h200", tp=2)
    assert longer.numbers["context_tokens"] == 200_000
    assert "200,000 tokens take" in longer.verdict
    assert topic("long-context", context=500).numbers["context_tokens"] == 131_072


# layers of every kind ---------------------------------------------------------------------------------------------------------------

MIXED = {
    "Qwen3-Next-80B-A3B-Instruct": 4,
    "Nemotron-H-56B-Base-8K": 4,
    "DeepSeek-V3.2": 8,
    "Llama-4-Scout-17B-16E-Instruct": 8,
}


@pytest.mark.parametrize("model", MIXED)
def test_layers_of_every_kind_are_explained(model: str) -> None:
    found = costmodel.explain(model=model, gpu="b200", tp=MIXED[model], context=20_000)
    assert len(found.topics) == 9
    for item in found.topics:
        for name, value in item.numbers.items():
            assert not isinstance(value, float) or math.isfinite(value), (item.name, name)


def test_the_states_of_recurrent_layers_are_told_apart_from_what_grows() -> None:
    scene = make_scene("Qwen3-Next-80B-A3B-Instruct", "h200")
    assert [(row["part"], row["layers"]) for row in cache_rows(scene)] == [("K", 12), ("V", 12)]
    [row] = state_rows(scene)
    # 32 states of 128 × 128 in 16 bits, and 3 inputs of 2·16·128 + 32·128 channels
    each = 2 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))
    assert (row["layers"], row["bytes_per_layer"], row["bytes_per_sequence"]) == (36, each, 36 * each)
    numbers = topic("kv-cache", model="Qwen3-Next-80B-A3B-Instruct", gpu="h200").numbers
    assert numbers["state_bytes_per_sequence"] == 36 * each
    assert "state_bytes_per_sequence" not in topic("kv-cache").numbers
    step = scene.decode(4, 8000)
    recurrent = of(step, ["states"])
    assert [item.name for item in recurrent] == ["decode_gdn"]
    assert not set(map(id, recurrent)) & set(map(id, of(step, ["attention"])))


def test_the_key_of_an_indexer_is_cached_too() -> None:
    rows = cache_rows(make_scene("DeepSeek-V3.2", "h200"))
    assert [(row["part"], row["layers"]) for row in rows] == [  # 3 dense layers and 58 with experts cache alike
        ("the latent of K and V", 61),
        ("the rotary part of K", 61),
        ("the indexer's key", 61),
    ]
    assert [row["bytes_per_layer"] for row in rows] == [1024, 128, 128 + 4]
    for row in rows:
        assert row["bytes_per_element"] == row["bytes_per_layer"] / row["elements_per_layer"]  # type: ignore[operator]
    found = topic("kv-cache", model="DeepSeek-V3.2", gpu="h200", tp=8)
    assert "the indexer's key in fp8 with a scale" in found.table("layers").title
    assert "only the latent of K and V, the rotary part of K and the indexer's key" in found.verdict
    assert "indexer" not in topic("kv-cache", model="DeepSeek-V3", gpu="h200", tp=8).table("layers").title


@pytest.mark.parametrize(
    ("model", "options", "blocks"),
    [
        ("Qwen3-Next-80B-A3B-Instruct", {"gpu": "h200", "tp": 2}, {"token_blocks": 15, "state_blocks": 6}),
        ("gemma-3-27b-it", {"gpu": "a100"}, {"token_blocks": 500, "window_blocks": 396}),
        ("Llama-4-Scout-17B-16E-Instruct", {"tp": 4}, {"token_blocks": 500, "window_blocks": 1500}),
        ("Mistral-7B-v0.1", {"gpu": "a100"}, {"token_blocks": 0, "window_blocks": 258}),
        ("Llama-3.1-8B", {}, {}),
    ],
)
def test_the_blocks_of_a_sequence_are_told_apart(model: str, options: dict[str, Any], blocks: dict[str, int]) -> None:
    """What a sequence holds is more than its tokens and states: the blocks say why, and they add up to those of the pool."""
    found = topic("kv-cache", model=model, **options)
    assert {
        key: value for key, value in found.numbers.items() if key in ("token_blocks", "window_blocks", "state_blocks")
    } == blocks
    total = sum(blocks.values()) or 500
    pool = make_scene(model, **options).pool()
    assert found.numbers["kv_blocks"] == total == pool.stream(7999)
    assert found.numbers["sequence_kv_bytes"] == total * pool.block_bytes[0]
    for value in blocks.values():
        assert f"{value:,} for" in found.verdict or f"in {total:,} whole blocks" in found.verdict
    assert ("with room for each twice" in found.verdict) is ("state_blocks" in blocks)
    assert ("with room for a whole chunk" in found.verdict) is model.startswith("Llama-4")


@pytest.mark.parametrize(
    ("model", "options", "tokens", "blocks"),
    [
        ("Llama-3.1-8B", {}, 8000, "blocks of n tokens: ⌈n/block⌉ of layers"),  # 500
        # 6 · (⌈(1,024 − 1 + 2)/16⌉ + 1) + ⌈4,000/16⌉ = 6 · 66 + 250 = 646
        ("gemma-3-27b-it", {"gpu": "a100"}, 4000, "6 × (⌈min(n, w − 1 + f)/block⌉ + 1) of a window"),
        # 3 · ⌈(8,192 + 2)/16⌉ + ⌈16,000/16⌉ = 3 · 513 + 1,000 = 2,539
        ("Llama-4-Scout-17B-16E-Instruct", {"tp": 4}, 16_000, "3 × ⌈min(n, w + f)/block⌉ of local chunks"),
        # ⌈32,000/544⌉ + 3 · 2 = 65
        ("Qwen3-Next-80B-A3B-Instruct", {"gpu": "h200", "tp": 2}, 32_000, "3 × 2 blocks of recurrent layers"),
    ],
)  # fmt: skip
def test_the_formula_of_the_blocks_gives_them(model: str, options: dict[str, Any], tokens: int, blocks: str) -> None:
    found = topic("kv-cache", model=model, context=tokens, **options)
    expected = {"Llama-3.1-8B": 500, "gemma-3-27b-it": 646, "Llama-4-Scout-17B-16E-Instruct": 2539}.get(model, 65)
    assert found.numbers["kv_blocks"] == expected
    assert blocks in found.formulas[1]
    assert "room for their next token as well: n + 1" in found.formulas[1]
    long = topic("long-context", model=model, context=tokens, **options)
    [row] = [row for row in long.table("lengths").rows if row["context_tokens"] == tokens]
    pool = make_scene(model, context=tokens, **options).pool()
    assert row["kv_bytes"] == pool.stream(tokens) * pool.block_bytes[0]
    assert "with room for its next token" in long.labels["kv_bytes"]
    assert ("a local chunk is just beginning" in long.reason[1]) is model.startswith("Llama-4")
    assert ("room for a whole one" in long.formulas[1]) is model.startswith("Llama-4")


def test_states_of_recurrent_layers_are_kept_as_well() -> None:
    found = topic("kv-cache", model="Qwen3-Next-80B-A3B-Instruct", gpu="h200", tp=2, context=32_000)
    # 36 layers: 16 of 32 states of 128 × 128, and 3 inputs of (2·8 + 16)·128 channels, on each of two GPUs, in 2 bytes
    each = 36 * 2 * (16 * 128 * 128 + 3 * (2 * 8 + 16) * 128)
    assert found.numbers["state_bytes_per_sequence"] == each
    assert "of recurrent layers a state of fixed size: 19.8 MB per sequence" in found.verdict
    assert "states of recurrent layers: 19.8 MB per sequence" in found.finding
    assert [row["bytes"] for row in found.table("kept").rows if row["per"] == "sequence"] == [each]
    assert "Σ heads·d_k·d_v elements of states" in found.formulas[0]
    assert "state" not in topic("kv-cache").finding


def test_the_formula_of_what_a_token_leaves_has_the_key_of_the_indexer() -> None:
    found = topic("kv-cache", model="DeepSeek-V3.2", gpu="h200", tp=8)
    # (512 + 64)·2 bytes of latent and rotary part, 128 in fp8 and a scale of 4 bytes, in 61 layers
    assert found.numbers["kv_bytes_per_token"] == 61 * ((512 + 64) * 2 + 128 + 4)
    assert (
        "(r + d_r)·b_kv of the latent and the rotary part of K + the indexer's key (d_i elements and their scale"
        in found.formulas[0]
    )
    assert "indexer" not in topic("kv-cache", model="DeepSeek-V3", gpu="h200", tp=8).formulas[0]


def test_local_chunks_keep_their_own_chunk() -> None:
    rows = cache_rows(make_scene("Llama-4-Scout-17B-16E-Instruct", "b200", tp=8))
    assert {row["window"] for row in rows} == {"all tokens", "its chunk of 8,192"}
