"""What is computed on the spot: tiled attention, and speculative sampling."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.cli.explain_report import report
from costmodel.explaining import flash, speculation
from costmodel.explaining.scene import flops_of, make_scene, of, time_of


@given(
    queries=st.integers(1, 40), extra=st.integers(0, 40), tile=st.integers(1, 50), width=st.integers(1, 16), seed=st.integers(0, 999)
)  # fmt: skip
def test_tiling_is_exact_to_rounding(queries: int, extra: int, tile: int, width: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    q = generator.standard_normal((queries, width))
    k, v = (5 * generator.standard_normal((queries + extra, width)) for _ in range(2))
    plain = flash.plain_attention(q, k, v)
    assert np.abs(flash.tiled_attention(q, k, v, tile) - plain).max() < 1e-13 * max(np.abs(v).max(), 1)


def test_tiling_survives_scores_that_overflow_alone() -> None:
    q = np.full((4, 2), 1e3)
    k, v = np.array([[1e3, 0], [0, 1e3], [1e3, 1e3], [-1e3, 0]]), np.arange(8.0).reshape(4, 2)
    assert np.allclose(flash.tiled_attention(q, k, v, 1), flash.plain_attention(q, k, v))


def test_in_32_bits_tiles_are_as_good_as_the_plain_way() -> None:
    found = flash.demonstration()
    assert 0 < found["difference_64_bits"] < 1e-14  # type: ignore[operator]
    assert found["error_tiled_32_bits"] < 4 * found["error_plain_32_bits"] < 1e-5  # type: ignore[operator]


def test_flops_are_the_same_and_bytes_are_not() -> None:
    scene = make_scene()
    pairs = 8000 * 8001 / 2
    assert flops_of(of(scene.prefill(8000, floor=True), ["attention"])) == 4 * 32 * 128 * 32 * pairs
    once = 32 * 8000 * (32 + 8) * 2 * 128 * 2  # Q, O, K and V, 2 bytes each, 32 layers
    assert flash.tiled_bytes(scene, 8000) == once
    assert flash.naive_bytes(scene, 8000) == once + 32 * 4 * 32 * pairs * 2
    assert once < flash.tiled_bytes(scene, 8000, again=True) < flash.naive_bytes(scene, 8000)
    windowed = make_scene("gpt-oss-20b")
    assert flash.tiled_bytes(windowed, 64_000, again=True) < flash.naive_bytes(windowed, 64_000)


def test_what_is_drawn_is_of_the_models_distribution_and_the_drafts_tokens_are_not() -> None:
    found = speculation.demonstration()
    assert found["p_value"] > 1e-3  # type: ignore[operator]
    assert found["p_value_of_draft_log10"] < -9  # type: ignore[operator]
    assert math.isfinite(found["p_value_of_draft_log10"])  # type: ignore[arg-type]
    assert found["degrees_of_freedom"] == 8 * 7
    assert found["largest_deviation"] < 0.02  # type: ignore[operator]
    assert 1 < found["demonstration_tokens_per_pass"] < 5  # type: ignore[operator]


SPECULATION = costmodel.Speculation("eagle", tokens=4, acceptance=0.7)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct"])
@pytest.mark.parametrize("calibration", [None, "none"])
def test_speculation_is_that_of_a_prediction(model: str, calibration: str | None) -> None:
    scene = make_scene(model, "h200", context=4000, speculation=SPECULATION, calibration=calibration)
    drafted = speculation.drafted(scene)
    assert drafted.known == [4]
    for streams in (1, 32):
        asked = costmodel.predict(
            model=model, gpu="h200", streams=streams, context=4000, speculation=SPECULATION, calibration=calibration
        ).speculation
        assert asked is not None
        found = drafted.at(scene, streams, 4)
        assert found["tpot_s"] == pytest.approx(asked.tpot_s, rel=1e-12)
        assert found["speedup_ratio"] == pytest.approx(asked.speedup, rel=1e-12)
        assert found["decode_step_s"] == pytest.approx(time_of(scene.decode(streams, 4000)), rel=1e-12)
        assert found["verification_s"] > found["decode_step_s"]  # type: ignore[operator]


def test_speculation_pays_less_in_larger_batches_and_at_last_not_at_all() -> None:
    asked = SPECULATION
    scene = make_scene(context=500, speculation=asked)
    drafted = speculation.drafted(scene)
    gains = [drafted.at(scene, streams, 4)["speedup_ratio"] for streams in (64, 256, 1024)]
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]
    assert drafted.at(scene, 1, 4)["speedup_ratio"] > 1.2  # type: ignore[operator]
    assert gains[-1] < 1  # type: ignore[operator]
    [topic] = costmodel.explain("speculation", context=500, speculation=asked).topics
    ends, drafts = topic.numbers["pays_until_streams"], topic.numbers["draft_tokens"]
    for streams, pays in ((ends, True), (ends + 1, False)):  # type: ignore[operator]
        assert (drafted.at(scene, streams, drafts)["speedup_ratio"] > 1) is pays  # type: ignore[arg-type,operator]
    never = speculation.drafted(make_scene(speculation=costmodel.Speculation("eagle", tokens=4, acceptance=0.0)))
    assert never.at(scene, 1, 4)["speedup_ratio"] < 1  # type: ignore[operator]


def test_verdict_and_numbers_write_the_logarithm_alike() -> None:
    document = costmodel.explain("speculation")
    [topic] = document.topics
    power = f"{-float(str(topic.numbers['p_value_of_draft_log10'])):,.0f}"
    assert f"p = 10^−{power}" in topic.verdict
    assert f" -{power}\n" in report(document)


def test_the_acceptance_that_nobody_gave_is_said() -> None:
    [topic] = costmodel.explain("speculation").topics
    assert topic.labels["acceptance_assumed"] == "α is an assumption, neither measured nor given"
    assert topic.numbers["acceptance_assumed"] is True
    assert "which is assumed" in topic.verdict
    assert any("vllm#20780" in source for source in topic.sources)
    [given] = costmodel.explain("speculation", speculation=SPECULATION).topics
    assert "assumed" not in given.verdict
    lengths = costmodel.Speculation("eagle", lengths={2: 2.1, 3: 2.29})
    [measured] = costmodel.explain("speculation", speculation=lengths, streams=1, context=500).topics
    assert measured.numbers["acceptance_share"] is None
    assert "as were measured" in measured.verdict


@pytest.mark.parametrize("acceptance", [0.4, 0.75, 0.9])
def test_the_best_number_of_drafts_is_that_of_a_prediction(acceptance: float) -> None:
    asked = costmodel.Speculation("eagle3", acceptance=acceptance)
    predicted = costmodel.predict(context=8000, speculation=asked).speculation
    [topic] = costmodel.explain("speculation", speculation=asked).topics
    assert predicted is not None
    assert topic.numbers["draft_tokens"] == predicted.tokens == predicted.best_tokens
    assert topic.numbers["tpot_s"] == pytest.approx(predicted.best_tpot_s, rel=1e-12)


def test_batches_are_those_that_fit_beside_the_draft() -> None:
    [topic] = costmodel.explain("speculation").topics
    blocks = costmodel.plan_memory(draft_model="eagle3").memory.kv_blocks - 1
    ahead = 2 * topic.numbers["draft_tokens"]  # type: ignore[operator]
    most = blocks // -(-(8001 + ahead) // 16)
    assert topic.numbers["most_streams_in_kv_cache"] == most == 53
    assert topic.table("batches").column("streams")[-1] == most
    assert set(topic.table("batches").column("fits")) == {True}
    # beyond what fits nothing is said, though there are batches there that gain too
    assert topic.numbers["pays_until_streams"] == most
    [full] = costmodel.explain("speculation", streams=100).topics
    assert full.table("batches").column("fits")[-1] is False
    assert "With 53 streams (no more of the 100 asked for fit beside the draft)" in full.verdict
    assert full.numbers["streams"] == 53
    assert "53 of 100 streams: " in full.finding


@pytest.mark.parametrize(
    ("asked", "path", "why"),
    [
        ({"context": 8000}, (0, -1), "The rows of others do not use up the slack"),
        ({"context": 500}, (0, -1), "In a large batch the rows of others use up that slack"),
        ({"model": "gpt-oss-20b"}, (0, "highest", -1), "First drafts and host weigh less beside a longer step, then"),
        ({"model": "gpt-oss-120b"}, (0, "lowest", -1), "Then drafts and host weigh less beside a longer step"),
        ({"model": "DeepSeek-V3", "gpu": "h200", "tp": 8}, (0, "lowest", -1), "Then drafts and host weigh less"),
        (
            {"model": "Qwen3-Next-80B-A3B-Instruct", "gpu": "h200", "tp": 2},
            (0, "lowest", -1),
            "reads most experts anyway",
        ),
    ],
)
def test_the_reason_is_that_of_the_table(asked: dict[str, Any], path: tuple[Any, ...], why: str) -> None:
    """Speed-ups and their parts in the reason are those of rows of the table: at both ends, and where it turns in between."""
    [topic] = costmodel.explain("speculation", **asked).topics
    rows = [row for row in topic.table("batches").rows if row["fits"]]
    gains = [float(str(row["speedup_ratio"])) for row in rows]
    turn = {"highest": gains.index(max(gains)), "lowest": gains.index(min(gains))}
    told = [turn[place] if isinstance(place, str) else place for place in path]
    reason = topic.reason[1]
    _, _, said = reason.partition("the speed-up ")
    assert re.findall(r"[\d.]+(?= ×)", said)[: len(told)] == [f"{gains[place]:.2f}" for place in told]
    assert said.startswith("rises" if gains[told[1]] > gains[0] else "falls")
    assert why in reason
    for place in told:  # the speed-up is E/(v + o)
        row = {key: float(str(value)) for key, value in rows[place].items() if key != "fits"}
        verify, beside = row["verification_s"] / row["decode_step_s"], row["drafting_s"] + row["host_s"]
        assert row["tokens_per_pass"] / (verify + beside / row["decode_step_s"]) == pytest.approx(row["speedup_ratio"])
        assert f"{verify:.2f}" in said
        assert f"{row['tokens_per_pass']:.2f}" in said


def test_a_speed_up_that_dips_is_said_to_for_its_experts() -> None:
    """At few streams k + 1 rows choose experts that one row of each does not, and those are read as well."""
    asked: dict[str, Any] = {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8}
    [topic] = costmodel.explain("speculation", **asked).topics
    rows = [row for row in topic.table("batches").rows if row["fits"]]
    dip = min(rows, key=lambda row: row["speedup_ratio"])  # type: ignore[arg-type,return-value]
    assert dip["streams"] == 4
    for tokens in (4, 4 * (int(dip["draft_tokens"]) + 1)):  # type: ignore[arg-type]
        touched = 256 * (1 - (1 - 8 / 256) ** tokens)
        assert f"{touched:.3g}" in topic.reason[1]
    assert "of its 256 experts" in topic.reason[1]
    longer = (float(str(dip["verification_s"])) - float(str(dip["decode_step_s"]))) / float(str(dip["decode_step_s"]))
    [alone] = re.findall(r"this alone takes ([\d.]+) decode steps", topic.reason[1])
    assert 0.5 * longer < float(alone) < longer


def test_where_drafts_pay_is_asked_of_the_best_number_of_each_batch() -> None:
    """6 drafts do not pay for two streams of gpt-oss-120b, 2 drafts do: then all that fit gain."""
    [topic] = costmodel.explain("speculation", model="gpt-oss-120b", context=500).topics
    assert min(topic.table("batches").column("speedup_ratio")) > 1  # type: ignore[type-var,operator]
    assert topic.numbers["pays_until_streams"] == topic.numbers["most_streams_in_kv_cache"]
    assert "no longer pay" not in topic.verdict
    assert "that fit still gain, each batch with its best k" in topic.verdict


def test_what_does_not_fit_at_all_has_no_trend() -> None:
    [topic] = costmodel.explain("speculation", model="Llama-3.1-70B", gpu="h100", tp=2).topics
    assert topic.numbers["most_streams_in_kv_cache"] == 0
    assert "not one fits beside the draft" in topic.verdict
    assert "From one stream" not in topic.reason[1]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"model": "gemma-3-27b-it", "gpu": "a100"},
        {"model": "Qwen3-Next-80B-A3B-Instruct", "gpu": "h200", "tp": 2},
        {"model": "Llama-3.1-70B", "gpu": "h100", "tp": 2},
    ],
)
def test_why_fewer_fit_beside_a_draft_is_said_in_numbers_that_divide(asked: dict[str, Any]) -> None:
    [topic] = costmodel.explain("speculation", **asked).topics
    most, alone = topic.numbers["most_streams_in_kv_cache"], topic.numbers["most_streams_without_draft"]
    [elsewhere] = costmodel.explain("batch-size", **asked).topics
    assert alone == elsewhere.numbers["most_streams_in_kv_cache"]
    if most == alone:
        assert not any(text.startswith("Memory: ") for text in topic.reason)
        return
    text = topic.reason[-1]
    [drafts] = [row["draft_tokens"] for row in topic.table("batches").rows if row["streams"] == most]
    beside = f"Memory: {most:,} sequences of 8,000 tokens fit beside the draft (k = {drafts}), {alone:,} without it."
    assert text.startswith(beside)
    found = re.search(
        r"([\d,]+) KV blocks(?: of [\d.]+ .B)? instead of ([\d,]+)(?: of [\d.]+ .B)?, and a sequence", text
    )
    assert found is not None
    left, before = (int(value.replace(",", "")) for value in found.groups())
    takes = [int(value.replace(",", "")) for value in re.findall(r"([\d,]+)(?: of them| \()", text)]
    assert (left // takes[0], before // takes[-1]) == (most, alone)
    assert ("recurrent layers keep a state after each of" in text) is ("Qwen3-Next" in str(asked))


QWEN: dict[str, Any] = {"model": "Qwen3-Next-80B-A3B-Instruct", "gpu": "h200", "tp": 2, "context": 32_000}


def test_what_fits_is_asked_of_the_drafts_of_each_batch() -> None:
    """6 drafts, the best number of a large batch, take more room than 5, the best of 32: states of recurrent layers for each of them."""
    [usual] = costmodel.explain("speculation", **QWEN).topics
    assert usual.numbers["draft_tokens"] == 5
    assert usual.numbers["most_streams_in_kv_cache"] == 82
    last = usual.table("batches").rows[-1]
    assert (last["streams"], last["draft_tokens"], last["fits"]) == (82, 6, True)
    assert "all 82 that fit still gain" in usual.verdict
    for streams in (82, 87):
        [asked] = costmodel.explain("speculation", **QWEN, streams=streams).topics
        assert asked.numbers["most_streams_in_kv_cache"] == asked.numbers["streams"] == 82
        rows = {row["streams"]: row["fits"] for row in asked.table("batches").rows}
        assert rows[streams] is (streams == 82)
        assert asked.reason[-1] == usual.reason[-1]  # and so is why


def test_blocks_beside_a_draft_add_up_to_the_memory_without_what_it_takes() -> None:
    [topic] = costmodel.explain("speculation", **QWEN).topics
    text = topic.reason[-1]
    assert "weights of 171 MB" in text
    [sizes] = re.findall(r"([\d,]+) KV blocks of ([\d.]+) MB instead of ([\d,]+) of ([\d.]+) MB", text)
    left, each, before, without = (float(value.replace(",", "")) for value in sizes)
    assert left * each + 171 == pytest.approx(before * without, rel=2e-3)
    assert "A block is larger: it must hold a recurrent layer's state, which grows with the drafts" in text
    [plain] = costmodel.explain("speculation", model="Llama-3.1-8B").topics
    assert "A block is larger, as it holds the draft's K and V too" in plain.reason[-1]


def test_tokens_of_a_pass_have_a_formula_if_all_drafts_are_accepted() -> None:
    sure, usual = (
        costmodel.explain("speculation", speculation=costmodel.Speculation("eagle3", acceptance=rate)).topics[0]
        for rate in (1.0, 0.75)
    )
    assert sure.numbers["tokens_per_pass"] == sure.numbers["draft_tokens"] + 1  # type: ignore[operator]
    assert "tokens per pass = k + 1" in sure.formulas[1]
    assert "tokens per pass = (1 − α^(k+1))/(1 − α)" in usual.formulas[1]
