"""What explanations say of models of every kind: dense, experts, windows, recurrent, latent with an indexer, ungrouped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import costmodel
from costmodel.architecture.types import NO_ATTENTION
from costmodel.explaining import flash
from costmodel.explaining.documents import Topic
from costmodel.explaining.heads import with_kv_heads
from costmodel.explaining.layers import dense, experts_of, looking, scores_said, sights
from costmodel.explaining.scene import Scene, flops_of, make_scene, no_indexer, of, time_of
from costmodel.explaining.waiting import bound_of, waited
from costmodel.explaining.words import seconds, size, times

PLACED: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {},
    "gpt-oss-20b": {},
    "Qwen3-Next-80B-A3B-Instruct": {"gpu": "h200", "tp": 2},
    "DeepSeek-V3": {"gpu": "h200", "tp": 8},
    "DeepSeek-V3.2": {"gpu": "h200", "tp": 8},
    "gemma-3-27b-it": {"gpu": "a100"},
    "Llama-2-7B": {},
    "Mixtral-8x7B": {"tp": 2},
}


def topic(name: str, model: str, **options: Any) -> Topic:
    [found] = costmodel.explain(name, model=model, **{**PLACED[model], **options}).topics
    return found


def scene_of(model: str, **options: Any) -> Scene:
    return make_scene(model, **{**PLACED[model], **options})


# what layers look at, and which experts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "found", "said"),
    [
        ("Llama-3.1-8B", [(32, "all", 0)], "every token looks at all before it"),
        ("gemma-3-27b-it", [(10, "all", 0), (52, "window", 1024)], "in 10 at all before it and in 52 at the last 1,024 only"),
        ("gpt-oss-20b", [(12, "all", 0), (12, "window", 128)], "in 12 at the last 128 only"),
        ("Qwen3-Next-80B-A3B-Instruct", [(12, "all", 0), (36, "state", 0)], "in 36 at a state of fixed size"),
        ("DeepSeek-V3.2", [(61, "chosen", 2048)], "the 2,048 that an indexer chooses"),
    ],
)  # fmt: skip
def test_what_a_token_looks_at_is_said_by_layers(model: str, found: list[tuple[int, str, int]], said: str) -> None:
    scene = scene_of(model)
    assert sights(scene) == found
    assert said in looking(scene)
    assert dense(scene) is (model == "Llama-3.1-8B")


def test_experts_that_a_step_touches_by_hand() -> None:
    assert experts_of(scene_of("Llama-3.1-8B"), 32) is None
    experts = experts_of(scene_of("DeepSeek-V3.2"), 32)
    assert experts is not None
    assert experts[:2] == (256, 8)
    assert experts.touched == pytest.approx(256 * (1 - (248 / 256) ** 32))
    assert experts.rows == pytest.approx(32 * 8 / experts.touched)
    alone = experts_of(scene_of("Mixtral-8x7B"), 1)
    assert alone is not None
    assert (alone.touched, alone.rows) == pytest.approx((2, 1))


# 4 --- what decode waits for ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", PLACED)
def test_what_kernels_wait_for_adds_up_and_bounds_what_a_faster_gpu_saves(model: str) -> None:
    numbers: dict[str, Any] = dict(topic("decode-bound", model).numbers)
    waits = {key: value for key, value in numbers.items() if key.startswith("waits_for_")}
    assert sum(waits.values()) == pytest.approx(1)
    assert all(value >= 0 for value in waits.values())
    by_bandwidth, by_compute = (numbers[f"saved_by_twice_the_{rate}_share"] for rate in ("bandwidth", "compute"))
    assert by_bandwidth <= waits["waits_for_memory_share"] / 2 + 0.03
    assert by_compute <= waits["waits_for_compute_share"] / 2 + 0.03
    assert by_bandwidth + by_compute <= numbers["saved_by_twice_both_share"] + 0.01 <= 0.51
    rates = waits["waits_for_memory_share"] + waits["waits_for_compute_share"]
    of_its_own = 0.04 if scene_of(model).parameters.experts else 0.0  # the time that a touched expert takes at any rate
    assert -0.006 - of_its_own <= numbers["saved_by_twice_both_share"] - rates / 2 <= 0.006


@pytest.mark.parametrize("model", PLACED)
def test_what_a_step_waits_for_is_one_thing_in_both_commands(model: str) -> None:
    scene = scene_of(model, context=500)
    decoding = scene.decode(32, 500)
    assert sum(waited(decoding).values()) == pytest.approx(time_of(decoding))
    way = costmodel.explain_request(500, 4, model=model, context=500, streams=31, **PLACED[model])
    [stage] = [stage for stage in way.stages if stage.name == "decode"]
    assert stage.bound == bound_of(decoding)
    verdict = topic("decode-bound", model, context=500).verdict
    begins = {"memory": "No, it ", "compute": "Here ", "latency": "Mostly neither"}
    assert verdict.startswith(begins[stage.bound])


@pytest.mark.parametrize(
    ("model", "options", "begins"),
    [
        ("Llama-3.1-8B", {}, "No, it lacks bandwidth."),
        ("Llama-3.1-8B", {"streams": 2000, "context": 1}, "Here compute does bind, the batch is so large."),
        ("gpt-oss-20b", {}, "Here its kernels do wait for the multipliers, but mostly for padding."),
        ("DeepSeek-V3.2", {}, "No, it waits for memory first, but not for memory alone."),
        ("Qwen3-Next-80B-A3B-Instruct", {"calibration": "none"}, "No, it lacks bandwidth."),
    ],
)
def test_the_verdict_is_that_of_the_numbers(model: str, options: dict[str, Any], begins: str) -> None:
    assert topic("decode-bound", model, **options).verdict.startswith(begins)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Llama-3.1-8B", "2 FLOPs for 2 bytes (bf16), 1.00 per byte"),
        ("DeepSeek-V3.2", "2 FLOPs for 1 byte (fp8 of an expert), 2.00 per byte"),
        ("DeepSeek-V3.2", "of the 256 experts of a layer a token chooses 8: the step reads 163 of them, each for 1.57 tokens"),
        ("DeepSeek-V3.2", "reaches 682, more than F/W, and yet its kernels wait for memory most"),
        ("gpt-oss-20b", "4.06 per expert are tokens and the others padding"),
        ("Llama-3.1-8B", "reaches 2,480, more than F/W: its kernels wait for the multipliers most"),
    ],
)  # fmt: skip
def test_the_reason_knows_the_weights(model: str, words: str) -> None:
    found = topic("decode-bound", model)
    assert words in " ".join(found.reason)
    assert ("padding" in " ".join(found.reason)) is (model != "Llama-3.1-8B")


def test_where_matrices_lack_compute_by_weights_alone() -> None:
    dense_model, experts = topic("decode-bound", "Llama-3.1-8B"), topic("decode-bound", "gpt-oss-20b")
    assert "B = F/W·b_w/2 = 295 by weights alone" in " ".join(dense_model.formulas)
    assert 295 < dense_model.numbers["matrices_compute_bound_from_streams"] < 1.15 * 295  # type: ignore[operator]
    assert f"= {989e12 / 3.35e12 * 0.53125 / 2 * 8:,.0f} by weights alone" in " ".join(experts.formulas)


@pytest.mark.parametrize("model", PLACED)
def test_the_table_of_kernels_waits_for_what_the_verdict_says(model: str) -> None:
    found = topic("decode-bound", model)
    *rows, _ = found.table("operators").rows
    took: dict[str, float] = {}
    for row in rows:
        took[str(row["calibrated_bound"])] = took.get(str(row["calibrated_bound"]), 0.0) + float(
            str(row["calibrated_time_s"])
        )
    assert sum(took.values()) == pytest.approx(found.numbers["decode_step_s"])
    scene = scene_of(model)
    assert max(took, key=lambda name: took[name]) == bound_of(scene.decode(int(str(found.numbers["streams"])), 8000))
    plain = topic("decode-bound", model, calibration="none").table("operators")
    assert [row["time_s"] for row in plain.rows[:-1]] == [row["time_s"] for row in rows if row["time_s"] is not None]
    assert "calibrated_bound" not in plain.rows[0]


WAITS = ("memory", "compute", "link", "latency")


@pytest.mark.parametrize("model", [*PLACED, "Llama-4-Scout-17B-16E-Instruct"])
def test_the_shares_of_the_verdict_are_the_sums_of_the_table(model: str) -> None:
    options = PLACED.get(model, {"gpu": "h100", "tp": 4})
    [found] = costmodel.explain("decode-bound", model=model, **options).topics
    *rows, last = [dict(row) for row in found.table("operators").rows]
    assert last["operator"] == "all together"
    numbers: dict[str, Any] = dict(found.numbers)
    shown = [name for name in WAITS if f"calibrated_waits_for_{name}_s" in rows[0]]
    for name in WAITS:
        key = f"calibrated_waits_for_{name}_s"
        whole = sum(float(str(row.get(key, 0.0))) for row in rows)
        assert whole == pytest.approx(float(str(last.get(key, 0.0))))
        assert whole / numbers["decode_step_s"] == pytest.approx(numbers[f"waits_for_{name}_share"])
    for row in [*rows, last]:
        parts = {name: float(str(row[f"calibrated_waits_for_{name}_s"])) for name in shown}
        assert sum(parts.values()) == pytest.approx(row["calibrated_time_s"])
        if row["bound"] == row["calibrated_bound"] == "memory" and row is not last:
            assert parts["memory"] >= float(str(row["time_s"])) * (1 - 1e-9)  # no less than its bytes at full bandwidth
    for key in ("time_s", "calibrated_time_s", "flops"):
        assert sum(float(str(row[key] or 0)) for row in rows) == pytest.approx(last[key])
    assert last["flops_per_byte"] == numbers["decode_flops_per_byte"]
    assert last["calibrated_time_s"] == pytest.approx(numbers["decode_step_s"])


def test_a_step_waits_for_memory_at_least_as_long_as_its_bytes_take() -> None:
    """Experts of Llama-4-Scout are read as fast as the datasheet says: what is fixed of their kernels passes meanwhile."""
    asked: dict[str, Any] = {"model": "Llama-4-Scout-17B-16E-Instruct", "tp": 4, "context": 16_000}
    [found] = costmodel.explain("decode-bound", **asked).topics
    numbers: dict[str, Any] = dict(found.numbers)
    assert numbers["waits_for_memory_share"] > numbers["moving_share"] > 0.8


def test_where_padding_changes_what_experts_wait_for_both_are_told() -> None:
    found = topic("decode-bound", "gpt-oss-20b")
    [experts] = [row for row in found.table("operators").rows if row["operator"] == "experts.gate_up_proj"]
    assert (experts["bound"], experts["calibrated_bound"]) == ("memory", "compute")
    assert (
        "experts wait for memory at datasheet rates, which know no padding, and for the multipliers" in found.reason[2]
    )
    assert "the table has both" not in " ".join(topic("decode-bound", "DeepSeek-V3.2").reason)
    spare = "A decode step of one row waits for the multipliers most of the time"
    assert spare in topic("speculation", "gpt-oss-20b").reason[1]
    assert "waits for memory most of the time" in topic("speculation", "Llama-3.1-8B").reason[1]


def test_experts_that_take_as_long_as_the_datasheet_reads_them_wait_for_memory() -> None:
    scene = make_scene("Qwen3-235B-A22B", "b200")
    [experts] = [item for item in scene.decode(32, 8000) if item.name == "experts.gate_up_proj"]
    assert experts.seconds == pytest.approx(experts.bytes / scene.deployment.hardware.bandwidth)
    assert experts.bound == bound_of([experts]) == "memory"
    numbers: dict[str, Any] = dict(
        costmodel.explain("decode-bound", model="Qwen3-235B-A22B", gpu="b200").topics[0].numbers
    )
    assert 0 < numbers["saved_by_twice_the_bandwidth_share"] <= numbers["waits_for_memory_share"] / 2
    assert numbers["saved_by_twice_the_compute_share"] < 0.01


# 2 --- a step of several streams reads more experts -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", PLACED)
def test_the_formula_of_a_batch_gives_its_step(model: str) -> None:
    found = topic("batch-size", model)
    numbers: dict[str, Any] = dict(found.numbers)
    scene, streams = scene_of(model), numbers["streams"]
    each = numbers["own_s"] + numbers["added_s"]
    for batch in (1, 2, 4, 8, streams):
        step = scene.decode(batch, 8000)
        by_formula = numbers["shared_s"] + time_of(of(step, ["experts"])) + batch * each
        assert by_formula == pytest.approx(time_of(step), rel=1e-9 if batch in (1, streams) else 0.03), batch
    assert numbers["shared_s"] + numbers.get("experts_one_s", 0.0) + each == pytest.approx(numbers["tpot_one_s"])
    assert numbers["shared_s"] + numbers.get("experts_s", 0.0) + streams * each == pytest.approx(numbers["tpot_s"])
    assert 0 < numbers["added_s"] < numbers["own_s"]
    routed = experts_of(scene, 32) is not None
    assert ("t_experts(B)" in " ".join(found.formulas)) is routed
    assert ("all weights but the experts" in found.reason[0]) is routed
    assert ("read = n·KV bytes per token" in found.formulas[0]) is dense(scene)
    if routed:
        assert numbers["experts_one_s"] < numbers["experts_s"]


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({"model": "gemma-3-27b-it", "gpu": "a100", "context": 4000}, 24),
        ({"model": "Llama-3.1-8B", "gpu": "rtx-4090", "context": 2000}, 20),
    ],
)
def test_what_a_sequence_more_takes_is_said_up_to_where_it_was_counted(asked: dict[str, Any], most: int) -> None:
    """The mean of 1 to 8 sequences is too little for those that follow, which the reason has apart: t(8) + (most − 8)·more = t(most)."""
    [found] = costmodel.explain("batch-size", **asked, streams=8).topics
    numbers: dict[str, Any] = dict(found.numbers)
    each = numbers["own_s"] + numbers["added_s"]
    assert numbers["most_streams_in_kv_cache"] == most
    assert numbers["shared_s"] + most * each < 0.98 * numbers["tpot_at_most_s"]
    more = (numbers["tpot_at_most_s"] - numbers["tpot_s"]) / (most - 8)
    assert f"(from 8 to the {most} that fit one more takes {seconds(more)})" in found.reason[1]
    assert "on average up to 8 sequences" in found.reason[1]
    assert "both means up to B = 8" in found.formulas[0]
    [full] = costmodel.explain("batch-size", **asked, streams=most).topics
    assert "that fit one more takes" not in full.reason[1]


# 3 --- where the square is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "label", "formula"),
    [
        ("Llama-3.1-8B", "prompt: attention, ∝ n²", "4·h·d_h·L·n(n + 1)/2/F"),
        ("Mixtral-8x7B", "prompt: attention, ∝ n²", "4·h·d_h·L·n(n + 1)/2/F"),
        ("gemma-3-27b-it", "prompt: attention, ∝ n² in 10 of 62 layers, ∝ n in others", "n·w − w(w − 1)/2 in a window of w < n"),
        ("Qwen3-Next-80B-A3B-Instruct", "prompt: attention, ∝ n² in 12 of 48 layers", "0 in recurrent layers"),
        ("DeepSeek-V3.2", "prompt: attention, ∝ n², small, in the indexer, and ∝ n", "the indexer 2·h_i·d_i·n(n + 1)/2"),
    ],
)  # fmt: skip
def test_the_square_is_where_layers_look_at_all(model: str, label: str, formula: str) -> None:
    found = topic("quadratic", model)
    assert found.labels["prompt_attention_s"] == label
    assert formula in found.formulas[0]
    assert looking(scene_of(model)) in found.reason[0]
    whole = "all before it." in found.reason[0] and dense(scene_of(model))
    assert ("the n² of the prompt" in found.verdict) is whole
    assert ("all weights of the model" in found.reason[0]) is (experts_of(scene_of(model), 1) is None)


def test_a_prompt_beyond_the_crossing_is_told_so() -> None:
    short, long = topic("quadratic", "Llama-3.1-8B"), topic("quadratic", "Llama-3.1-8B", context=131_072)
    assert short.verdict.startswith("Not here:")
    assert "n² overtakes the matrices only from 44,642 tokens on" in short.verdict
    assert "much more until n is very large" in short.reason[0]
    assert long.verdict.startswith("Here it is:")
    assert "n² has overtaken the matrices, which it does from 44,642 tokens on" in long.verdict
    assert "only" not in long.verdict
    assert "less from 44,642 tokens on, as here" in long.reason[0]


def test_the_two_crossings_are_explained_by_the_rates_there() -> None:
    scene, found = scene_of("Llama-3.1-8B"), topic("quadratic", "Llama-3.1-8B")
    assert "In FLOPs they are equal at 53,248 tokens, in time at 44,642" in found.reason[0]
    kernels, exact = scene.prefill(44_642), scene.prefill(44_642, floor=True)
    rates = [flops_of(of(exact, [name])) / time_of(of(kernels, [name])) / 1e12 for name in ("attention", "linear")]
    assert f"do {rates[0]:.0f} TFLOP/s and those of the matrices {rates[1]:.0f}" in found.reason[0]
    assert "In FLOPs" not in topic("quadratic", "Llama-3.1-8B", calibration="none").reason[0]


@pytest.mark.parametrize("model", PLACED)
def test_the_answer_is_split_as_a_decode_step_is(model: str) -> None:
    found: dict[str, Any] = dict(topic("quadratic", model).numbers)
    parts = [found[f"answer_{name}_s"] for name in ("weights", "kv", "launches", "rest")]
    assert sum(parts) == pytest.approx(found["answer_share"] * found["request_gpu_s"])
    assert found["answer_launches_s"] / sum(parts) == pytest.approx(found["launches_of_answer_share"])
    step = topic("decode-bound", model, context=8250, streams=found["streams"]).numbers  # half of the answer later
    assert found["launches_of_answer_share"] == pytest.approx(step["waits_for_latency_share"], rel=1e-9)
    assert sum(parts) == pytest.approx(500 / found["streams"] * step["decode_step_s"])  # type: ignore[operator]


# what does not fit ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "fit", "whole"), [("gemma-3-27b-it", 17, 16), ("Llama-2-7B", 14, 14)])
def test_a_batch_is_of_as_many_as_fit(model: str, fit: int, whole: int) -> None:
    said = "of the 32 asked for fit at once"
    topics = {item.name: item for item in costmodel.explain(model=model, **PLACED[model]).topics}
    numbers: dict[str, dict[str, Any]] = {name: dict(item.numbers) for name, item in topics.items()}
    assert numbers["batch-size"]["streams"] == numbers["decode-bound"]["streams"] == fit
    assert numbers["batch-size"]["tpot_s"] == numbers["batch-size"]["tpot_at_most_s"]
    assert numbers["batch-size"]["tpot_s"] == pytest.approx(numbers["decode-bound"]["decode_step_s"])
    assert numbers["quadratic"]["streams"] == numbers["prefix-cache"]["streams"] == whole  # of 8,500 tokens
    answer = numbers["quadratic"]["answer_share"] * numbers["quadratic"]["request_gpu_s"] * whole / 500
    assert numbers["prefix-cache"]["answer_s"] == pytest.approx(499 * answer)
    drafting = numbers["speculation"]
    assert drafting["streams"] <= drafting["most_streams_in_kv_cache"] < 32
    assert f"{drafting['streams']} of 32 streams: " in topics["speculation"].finding
    assert "of the 32 asked for fit beside the draft" in topics["speculation"].verdict
    for name in ("batch-size", "decode-bound", "quadratic", "prefix-cache"):
        assert said in topics[name].verdict
    fitting = costmodel.explain(model="Llama-3.1-8B").topics
    assert not any(said in item.verdict for item in fitting)


def test_where_not_one_fits_it_is_said() -> None:
    topics = costmodel.explain(["decode-bound", "quadratic", "prefix-cache", "batch-size"], model="DeepSeek-V3").topics
    for found in topics:
        assert "though not one fits" in found.verdict
        assert found.numbers["streams"] == (1 if found.name == "quadratic" else 32)
    assert topics[3].finding.endswith("not one sequence of 8,000 tokens fits beside the weights")
    assert not any(row["fits"] for row in topics[1].table("requests").rows)


def test_a_prompt_that_does_not_fit_is_answered_alone() -> None:
    """Of 8 streams fewer and fewer fit, at last one; what is longer is no batch of 8 again."""
    asked: dict[str, Any] = {"gpu": "rtx-4090", "context": 2000, "streams": 8}
    [found] = costmodel.explain("quadratic", **asked).topics
    rows = found.table("requests").rows
    batches = [row["streams"] for row in rows]
    assert batches == sorted(batches, reverse=True)  # type: ignore[type-var]
    assert [row["streams"] for row in rows if not row["fits"]] == [1, 1]
    longest = int(str(found.numbers["longest_prompt_that_fits_tokens"]))
    scene = make_scene(**asked)
    assert scene.most_streams(longest + 500) == 1
    assert scene.most_streams(longest + 501) == 0
    assert {row["fits"] for row in rows if int(str(row["prompt_tokens"])) <= longest} == {True}
    assert "batch 1 where not one fits" in found.table("requests").title
    assert "where not one" not in topic("quadratic", "Llama-3.1-8B").table("requests").title


# 1, 3, 6, 9 and the request: formulas and sentences of the layers that there are --------------------------------------------------

SEEN = {
    "Llama-3.1-8B": ("4·h·d_h·L·n(n + 1)/2", "n·2·h_kv·d_h·b_kv·L", "read = n·KV bytes per token"),
    "gemma-3-27b-it": ("4·h·d_h·Σ layers A(n)", "c(n) = n where a token looks at all, min(n, w) in a window of w", "read = KV bytes"),
    "DeepSeek-V3.2": ("2·h·(2·r + d_r)·Σ layers A(n)", "c(n)·(r + d_r)·b_kv", "c(n) = min(n, w) where w are chosen, and"),
    "Qwen3-Next-80B-A3B-Instruct": ("4·h·d_h·Σ layers A(n)", "0 in recurrent layers, which keep a state", "and states, read and written"),
}  # fmt: skip
"""Model → parts of the formulas of a prompt, of what is kept, and of what a decode step reads."""


@pytest.mark.parametrize("model", SEEN)
def test_what_is_computed_kept_and_read_is_said_by_layers(model: str) -> None:
    prompt, kept, read = SEEN[model]
    scene = scene_of(model)
    long, cache, prefix = (topic(name, model) for name in ("long-context", "kv-cache", "prefix-cache"))
    way = costmodel.explain_request(2000, 4, model=model, streams=4, chunk="one-step", **PLACED[model])
    prefilling, decoding = (next(stage for stage in way.stages if stage.name == name) for name in ("prefill", "decode"))
    assert prompt in long.formulas[0]
    assert prompt in prefilling.formula
    assert kept in long.formulas[1]
    assert read in long.formulas[2]
    for text, whole in (
        (long.reason[1], "reads the whole context again"),
        (decoding.what, "every K and V of the sequence so far"),
        (cache.reason[0], "K and V of all earlier ones again"),
        (prefix.formulas[1], "L·(q·c + q(q + 1)/2)"),
    ):
        assert (whole in text) is dense(scene)
        assert (looking(scene) in text) is (not dense(scene) and "Σ layers" not in text)


def test_the_formula_of_what_is_kept_gives_the_bytes() -> None:
    found = topic("long-context", "gemma-3-27b-it")
    by_formula = 2 * 16 * 128 * 2 * (10 * 131_072 + 52 * 1024)
    assert found.numbers["kv_bytes"] == pytest.approx(by_formula, rel=0.02)  # whole blocks
    read = costmodel.explain_request(8000, 2, model="DeepSeek-V3.2", streams=4, **PLACED["DeepSeek-V3.2"])
    [decoding] = [stage for stage in read.stages if stage.name == "decode"]
    assert decoding.reads["kv_bytes"] == 61 * (2048 * (512 + 64) * 2 + 8001 * (128 + 4))


# 5 --- what grouped heads save ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("Llama-3.1-8B", {}, "makes the cache 4.00 × smaller"),
        ("Llama-3.1-8B", {}, "(32 streams fit with grouped heads only)"),
        ("Llama-3.1-8B", {"streams": 8}, "a decode step of 8 streams takes"),
        ("Llama-2-7B", {}, "Grouping the query heads would make the cache 8.00 × smaller"),
        ("gemma-3-27b-it", {}, "(32 streams fit neither way)"),
        ("DeepSeek-V3", {}, "(32 streams fit with the latent only)"),
        ("DeepSeek-V3.2", {}, "even has 3.40 × the FLOPs, in the prompt and in a decode step (its indexer"),
        ("Qwen3-Next-80B-A3B-Instruct", {}, "a decode step of 32 streams takes"),
    ],
)
def test_batches_are_compared_that_fit_both_ways(model: str, options: dict[str, Any], words: str) -> None:
    found = topic("gqa", model, **options)
    assert words in found.verdict
    fits, streams = int(found.numbers["mha_most_streams_in_kv_cache"]), options.get("streams", 32)  # type: ignore[arg-type]
    assert f"a decode step of {min(fits, streams)} streams" in found.verdict
    assert f"instead of {fits}" in found.verdict
    compared = found.numbers["compared_streams"]
    assert compared == min(fits, streams)
    assert f"decode steps of {compared} streams" in found.table("variants").title
    for row in found.table("variants").rows:
        assert row["streams_fit"] is (streams <= row["most_streams_in_kv_cache"])  # type: ignore[operator]
        assert row["most_streams_in_kv_cache"] >= compared  # type: ignore[operator]
    if "would" not in found.verdict:  # the steps of the sentence are those of the table, and of the figure
        for row in found.table("variants").rows[:2]:
            assert seconds(float(str(row["decode_step_s"]))) in found.verdict


def test_why_heads_save_fits_the_heads() -> None:
    grouped, latent = (" ".join(topic("gqa", model).reason) for model in ("Llama-3.1-8B", "DeepSeek-V3.2"))
    assert "Grouped heads share keys and values" in grouped
    assert "Grouped heads" not in latent
    assert "1,088 elements together instead of 320 (3.40 ×)" in latent  # 2·512 + 64 beside 192 + 128
    split = " ".join(topic("gqa", "Qwen3-Next-80B-A3B-Instruct").reason)
    assert "Each of 2 GPUs holds a KV head at least: fewer than 2 heads make the cache of a GPU no smaller" in split
    assert "GPUs holds" not in grouped


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (
            "DeepSeek-V3",
            ("2·h·(d_k + d_v)·L·pairs in the prompt, 2·h·(2·kv_lora_rank + rope)·L·pairs in a decode step",),
        ),
        ("DeepSeek-V3.2", ("attention = 2·h·(2·kv_lora_rank + rope)·L·pairs, in the prompt as in a decode step",)),
        ("Llama-3.1-8B", ("attention = 4·h·d_h·L",)),
    ],
)
def test_the_formula_of_attention_is_that_of_its_flops(model: str, parts: tuple[str, ...]) -> None:
    found = topic("gqa", model)
    assert all(part in " ".join(found.formulas) for part in parts)
    assert ("kv_lora_rank" in " ".join(found.formulas)) is (model != "Llama-3.1-8B")


def test_the_projections_are_told_by_what_they_are_shares_of() -> None:
    """62.5 % of attention's projections; of all matrices of Llama-3.1-8B, with 32 KV heads, 2·4096·2·24·128·32 FLOPs less per token."""
    found = topic("gqa", "Llama-3.1-8B")
    assert "have 62 % of the FLOPs that they would have with K and V for every head" in found.reason[1]
    saved = 2 * 4096 * 2 * 24 * 128 * 32
    matrices = 2 * (6_979_321_856 + 4096 * 128_256) + saved
    assert f"That is {100 * saved / matrices:.1f} % less in all matrices" in found.reason[1]


def test_the_indexer_is_no_attention() -> None:
    scene, numbers = scene_of("DeepSeek-V3.2"), topic("gqa", "DeepSeek-V3.2").numbers
    pairs = 2048 * 2049 / 2 + (8000 - 2048) * 2048
    assert numbers["model_prefill_attention_flops"] == pytest.approx(2 * 16 * 1088 * 61 * pairs)
    assert numbers["model_decode_attention_flops"] == pytest.approx(
        2 * 16 * 1088 * 61 * 2048 * int(str(numbers["compared_streams"]))
    )
    assert numbers["attention_flops_ratio"] == numbers["decode_attention_flops_ratio"] == pytest.approx(3.4)
    step = scene.decode(32, 8000, floor=True)
    assert {item.name for item in step} - {item.name for item in no_indexer(step)} == {"decode_indexer"}


@pytest.mark.parametrize("model", ["DeepSeek-V3", "DeepSeek-V3.2"])
def test_an_indexer_is_neither_in_the_projections_nor_made_larger_by_more_kv_heads(model: str) -> None:
    """On one of 8 GPUs MHA has 2·7168·16·(2·192 + 2·128)·61 FLOPs per token; the latents 1536, 576 and 512 → 16·(128 + 128)."""
    scene, numbers = scene_of(model), topic("gqa", model).numbers
    plain = 2 * 7168 * 16 * (2 * 192 + 2 * 128) * 61
    latents = 7168 * 1536 + 1536 * 16 * 192 + 7168 * 576 + 512 * 16 * (128 + 128) + 16 * 128 * 7168
    assert numbers["mha_projection_flops_per_token"] == plain
    assert numbers["model_projection_flops_per_token"] == 2 * latents * 61
    assert numbers["projection_flops_ratio"] == pytest.approx(0.499, abs=5e-4)
    ours, mha = (
        {item.name: item.flops for item in each.decode(1, 8000, floor=True) if "indexer" in item.name}
        for each in (scene, scene.changed(architecture=with_kv_heads(scene.architecture, 1)))
    )
    assert ours == mha
    assert bool(ours) is (model == "DeepSeek-V3.2")


SYMBOLS = {
    "Llama-3.1-8B": {"h": 32, "h_kv": 8, "d_h": 128, "d": 4096, "L": 32},
    "Qwen3-Next-80B-A3B-Instruct": {"h": 8, "h_kv": 1, "d_h": 256, "d": 2048, "L": 12},
    "DeepSeek-V3.2": {"h": 16, "d_k": 192, "d_v": 128, "d": 7168, "L": 61, "r": 512, "d_r": 64, "r_q": 1536},
}  # fmt: skip
"""On one GPU."""


@pytest.mark.parametrize("model", SYMBOLS)
def test_the_formula_of_projections_gives_their_flops(model: str) -> None:
    found = topic("gqa", model)
    formula = found.formulas[-1].rpartition("projections = ")[2].partition(" per token")[0]
    by_formula = eval(formula.replace("·", "*").replace("−", "-"), {}, dict(SYMBOLS[model]))
    assert by_formula == found.numbers["model_projection_flops_per_token"]


def test_recurrent_layers_have_no_part_in_what_heads_save() -> None:
    """2·2048·(3·8 + 2·h_kv)·256·12 with h_kv of 1 and, with K and V for every head, 8: 26 of 40; queries and their gate are 16 of them."""
    found = topic("gqa", "Qwen3-Next-80B-A3B-Instruct")
    assert found.numbers["projection_flops_ratio"] == pytest.approx(26 / 40)
    assert "have 65 % of the FLOPs" in found.reason[1]
    assert "(those of recurrent layers not counted)" in found.reason[1]
    assert "2·d·(3·h + 2·h_kv)·d_h·L per token; L = 12 layers with attention" in found.formulas[1]


@pytest.mark.parametrize(("model", "key"), [("DeepSeek-V3.2", 132), ("DeepSeek-V3", 0)])
def test_the_formula_of_the_latent_cache_has_the_indexers_key(model: str, key: int) -> None:
    found = topic("gqa", model)
    assert found.numbers["model_kv_bytes_per_token"] == 61 * ((512 + 64) * 2 + key)
    assert (" + 132 B for the indexer's key in each of 61 layers" in found.formulas[2]) is bool(key)


# 6 --- how long what is cached ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Llama-3.1-8B", "131 kB per token, 1.05 GB"),
        ("gemma-3-27b-it", "508 kB per token (81.9 kB of it for all tokens and 426 kB of it for the last 1,024 only), 1.17 GB"),
        ("gpt-oss-20b", "49.2 kB per token (24.6 kB of it for all tokens and 24.6 kB of it for the last 128 only), 201 MB"),
        ("DeepSeek-V3.2", "78.3 kB per token, 627 MB"),
        ("Qwen3-Next-80B-A3B-Instruct", "a state of fixed size: 19.8 MB per sequence, whatever its length; together, 140 MB"),
    ],
)  # fmt: skip
def test_a_window_keeps_its_last_tokens_only(model: str, words: str) -> None:
    found = topic("kv-cache", model)
    windows = any(what == "window" for _, what, _ in sights(scene_of(model)))
    assert words in found.verdict
    assert ("older ones are dropped" in found.reason[0]) is windows
    assert ("while all of them keep it" in found.labels["kv_bytes_per_token"]) is windows


# 7 --- what attention waits for ---------------------------------------------------------------------------------------------------


def test_queries_of_a_tile_choose_keys_of_their_own() -> None:
    """A tile of 128 queries that choose 2,048 keys each may read all before it: 16 heads of 1,088 elements, a key of 576, 61 layers."""
    [found] = costmodel.explain("flash-attention", model="DeepSeek-V3.2", gpu="h200", tp=8, context=16_000).topics
    once = 61 * 2 * (16_000 * 16 * 1088 + 16_000 * 576)
    again = 61 * 2 * (16_000 * 16 * 1088 + sum(128 * tile for tile in range(1, 126)) * 576)
    assert found.numbers["tiled_bytes"] == once
    assert found.numbers["tiled_again_bytes"] == again
    assert (
        f"{size(again)}, {times(found.numbers['naive_bytes'] / again)} less, if every tile of 128 reads anew"
        in found.verdict
    )  # type: ignore[operator]
    assert "at most: each query chooses" in found.labels["tiled_again_bytes"]
    assert "choose" not in costmodel.explain("flash-attention").topics[0].verdict
    few = replace(NO_ATTENTION, kind="mla", top_k=4)
    assert flash._tile_keys(few, 128, 100_000) == 128 * 4  # no more than all of them choose


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("Llama-3.1-8B", {}, "less, so that multiplying is what it waits for"),
        ("Llama-3.1-8B", {"context": 512}, "so that it waits for moving both ways"),
        ("DeepSeek-V3.2", {}, "is what it waits for both ways"),
        ("gemma-3-27b-it", {}, "less, so that multiplying is what it waits for"),
        ("Qwen3-Next-80B-A3B-Instruct", {}, "less, so that multiplying is what it waits for"),
        ("Llama-2-7B", {}, "less, so that multiplying is what it waits for"),
    ],
)
def test_what_tiles_change_is_said_by_the_times(model: str, options: dict[str, Any], words: str) -> None:
    found = topic("flash-attention", model, **options)
    numbers: dict[str, Any] = dict(found.numbers)
    before, after, computing = (numbers[key] for key in ("naive_moving_s", "tiled_moving_s", "computing_s"))
    assert after < before
    assert (computing >= before) is ("both ways" in words and "moving" not in words)
    assert (computing < after) is ("moving both ways" in words)
    assert words in found.verdict
    assert f"{seconds(computing)} at peak" in found.verdict  # and what the kernels of the calibration take
    assert f"its kernels take {seconds(numbers['attention_s'])} by the calibration" in found.verdict


def test_without_a_calibration_there_is_one_time_of_attention() -> None:
    assert "by the calibration" not in topic("flash-attention", "Llama-3.1-8B", calibration="none").verdict


def test_one_such_sequence_fits() -> None:
    assert "1 such sequence fits into the KV cache" in topic("long-context", "gemma-3-27b-it").verdict
    assert "3 such sequences fit into the KV cache" in topic("long-context", "Llama-3.1-8B").verdict
    labels = [column.label for column in topic("long-context", "Llama-3.1-8B").table("lengths").columns]
    assert labels[2:4] == ["attention: time", "attention: FLOPs"]


def test_scores_are_counted_by_layers() -> None:
    every, window = 8000 * 8001 // 2, 1024 * 1025 // 2 + (8000 - 1024) * 1024
    assert scores_said(scene_of("Llama-3.1-8B"), 8000) == f"{every:,} per head and layer"
    windows = topic("flash-attention", "gemma-3-27b-it")
    assert f"per head {window:,} in each of 52 layers and {every:,} in each of 10 layers" in windows.reason[1]
    assert "4·h·A(n)·b" in windows.formulas[0]
    sparse = topic("flash-attention", "DeepSeek-V3.2")
    assert f"{2048 * 2049 // 2 + (8000 - 2048) * 2048:,} per head and layer" in sparse.reason[1]
    assert "The indexer, which chooses the keys, is left out" in sparse.reason[1]
    assert sparse.numbers["attention_flops"] == topic("gqa", "DeepSeek-V3.2").numbers["model_prefill_attention_flops"]
