"""Speculation in a prediction: against vLLM's measured EAGLE passes, the best number of drafts, the batch beyond which it does not pay."""

from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel import Speculation
from costmodel.memory.planning import plan_memory
from costmodel.speculation.host import HostTimes

SERIES = {"eagle1": "eagle", "eagle3": "eagle3"}
"""Series of the case → draft."""


def predicted(**asked: Any) -> costmodel.Prediction:
    return costmodel.predict(**{"streams": 1, "context": 500, **asked})


def info(speculation: Speculation, **asked: Any) -> Any:
    found = predicted(speculation=speculation, **asked).speculation
    assert found is not None
    return found


def measured(folder: Path) -> dict[str, list[dict[str, float]]]:
    yaml = pytest.importorskip("yaml")
    cases = yaml.safe_load((folder / "cases" / "measured.yaml").read_text())
    case = next(each for each in cases if each["id"] == "dec-vllm-20780")
    return {name: case["measured"][name] for name in SERIES}


@pytest.mark.parametrize("series", SERIES)
def test_vllms_eagle_passes_within_15_percent(series: str, shared_folder: Path) -> None:
    """Llama-3.1-8B on an H100, one stream, MT-Bench: k = 2 … 7, each with its measured accepted length."""
    for row in measured(shared_folder)[series]:
        tokens = int(row["K"])
        found = info(Speculation(SERIES[series], tokens=tokens, lengths=row["AL"]))
        assert 1e3 * found.tpot_s == pytest.approx(row["tpot_ms"], rel=0.15), row


@pytest.mark.parametrize("series", SERIES)
def test_the_best_number_of_drafts_is_within_3_percent_of_the_best_measured(series: str, shared_folder: Path) -> None:
    rows = measured(shared_folder)[series]
    found = info(Speculation(SERIES[series], lengths={int(row["K"]): row["AL"] for row in rows}))
    recommended = next(row["tpot_ms"] for row in rows if row["K"] == found.best_tokens)
    assert recommended <= 1.03 * min(row["tpot_ms"] for row in rows)
    assert found.tokens == found.best_tokens


def test_more_accepted_tokens_can_be_slower(shared_folder: Path) -> None:
    """The trap: from k = 3 to 7 EAGLE's accepted length rises from 2.29 to 2.47, and its TPOT from 4.29 to 5.20 ms."""
    rows = {int(row["K"]): row for row in measured(shared_folder)["eagle1"]}
    few, many = (info(Speculation("eagle", tokens=k, lengths=rows[k]["AL"])) for k in (3, 7))
    assert many.accepted_length > few.accepted_length
    assert many.tpot_s > 1.1 * few.tpot_s


OTHERS = HostTimes(verify_s=1.1e-3, pass_s=0.9e-3)
"""Host times from the two series of :mod:`costmodel.speculation.host` that are not of this case."""


@pytest.mark.parametrize("series", SERIES)
def test_so_they_are_with_host_times_from_the_other_sources_alone(
    series: str, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("costmodel.speculation.asking.host_times", lambda engine: OTHERS)
    test_vllms_eagle_passes_within_15_percent(series, shared_folder)
    test_the_best_number_of_drafts_is_within_3_percent_of_the_best_measured(series, shared_folder)


def test_another_part() -> None:
    """EAGLE on an A100 40 GB: 1.454 times as fast with k = 1 at 1.70 tokens per pass (vllm-project/vllm#29334)."""
    found = info(Speculation("eagle", tokens=1, lengths=1.70), gpu="a100-40gb-sxm", assume_efficiency=True)
    assert found.speedup == pytest.approx(108.88 / 74.87, rel=0.05)


def test_32_drafts_are_slower_than_none() -> None:
    """The same part with k = 32 at 2.2 tokens per pass: 41.0 tokens/s instead of 74.9 (vllm-project/vllm#24343)."""
    found = info(Speculation("eagle", tokens=32, lengths=2.2), gpu="a100-40gb-sxm", assume_efficiency=True)
    assert found.speedup == pytest.approx(41.0 / 74.87, rel=0.1)


def test_tpot_is_the_pass_over_the_accepted_length() -> None:
    found = info(Speculation("eagle", tokens=3, acceptance=0.6))
    assert found.accepted_length == pytest.approx(2.176)
    assert found.pass_s == pytest.approx(found.verify_s + found.draft_s + found.host_s)
    assert found.tpot_s == pytest.approx(found.pass_s / 2.176)
    assert found.speedup == pytest.approx(found.plain_step_s / found.tpot_s)
    assert found.plain_step_s == predicted().best.decode_step_s


def test_the_rungs_stay_those_of_plain_decoding() -> None:
    with_it = predicted(speculation=Speculation("eagle"))
    assert with_it.rungs == predicted().rungs
    assert "speculation" not in predicted().model_dump(by_alias=True)


def test_no_prediction_is_below_the_floor() -> None:
    for draft in ("eagle", "eagle3", "mtp", "Llama-3.2-1B"):
        for streams in (1, 64):
            found = info(Speculation(draft, tokens=4, acceptance=0.7), streams=streams)
            assert found.tpot_s >= found.floor_tpot_s


def test_where_nothing_is_accepted_not_to_speculate_is_best() -> None:
    found = info(Speculation("eagle", acceptance=0.0))
    assert found.best_tokens == 0
    assert found.best_tpot_s == found.plain_step_s
    assert found.break_even_streams == 0
    assert found.speedup < 1


def test_the_best_number_rises_with_acceptance() -> None:
    best = [info(Speculation("eagle3", acceptance=rate)).best_tokens for rate in (0.3, 0.5, 0.7, 0.9, 0.99)]
    assert best == sorted(best)
    assert best[0] <= 2 < best[-1]


def test_break_even_is_where_it_ceases_to_pay() -> None:
    asked = Speculation("eagle", tokens=3, acceptance=0.5)
    limit = info(asked).break_even_streams
    assert limit is not None
    assert info(asked, streams=limit).speedup > 1 >= info(asked, streams=limit + 1).speedup


def test_break_even_falls_with_drafts_and_rises_with_acceptance() -> None:
    by_tokens = [info(Speculation("eagle", tokens=k, acceptance=0.5)).break_even_streams for k in (2, 3, 4)]
    assert by_tokens == sorted(by_tokens, reverse=True)
    by_rate = [info(Speculation("eagle", tokens=2, acceptance=rate)).break_even_streams for rate in (0.3, 0.4, 0.5)]
    assert by_rate == sorted(by_rate)


def test_long_contexts_keep_speculation_worthwhile() -> None:
    """Keys are read once for all rows of a stream, so steps that read keys verify for nothing."""
    asked = Speculation("eagle", tokens=3, acceptance=0.5)
    short, long = (info(asked, streams=256, context=context).speedup for context in (100, 8000))
    assert short < 1 < long


def test_tensor_parallel_targets_gain_less() -> None:
    """A draft pass has its launches and all-reduces; the shorter the target's step, the more they count (sgl-project/sglang#6949)."""
    asked = Speculation("eagle", tokens=4, acceptance=0.6)
    one, four = (info(asked, model="Qwen2.5-32B", tp=tp).speedup for tp in (1, 4))
    assert four < one


def test_without_a_calibration_the_host_is_left_out() -> None:
    found = info(Speculation("eagle", tokens=3), calibration="none")
    assert found.host_s == 0
    assert found.tpot_s == found.floor_tpot_s


def test_other_engines_are_said_to_borrow_vllms_host() -> None:
    item = predicted(speculation=Speculation("eagle", tokens=3), engine="sglang")
    assert any("vLLM's stands in" in note for note in item.notes)


def test_an_assumed_acceptance_is_said() -> None:
    item = predicted(speculation=Speculation("mtp", tokens=1), model="DeepSeek-V3", gpu="h200", tp=8)
    assert item.speculation is not None
    assert item.speculation.acceptance_assumed
    assert any("0.85 is assumed" in warning for warning in item.warnings)
    given = predicted(speculation=Speculation("eagle", tokens=1, acceptance=0.6))
    assert not any("assumed" in warning for warning in given.warnings)


def test_a_mixture_of_experts_gains_less_than_a_dense_model_of_its_active_size() -> None:
    """Rows to verify touch further experts, whose weights have to be read."""
    asked = Speculation("ngram", tokens=4, acceptance=0.7)
    sparse = info(asked, model="Qwen3-30B-A3B", calibration="none")
    dense = info(asked, model="Llama-3.2-3B", calibration="none")
    assert sparse.verify_s / sparse.plain_step_s > 1.5
    assert dense.verify_s / dense.plain_step_s < 1.05


def test_the_draft_takes_memory() -> None:
    plain, drafted = predicted().memory, predicted(speculation=Speculation("eagle3", tokens=3)).memory
    found = info(Speculation("eagle3", tokens=3))
    assert drafted.weights_bytes - plain.weights_bytes == pytest.approx(found.draft_weights_bytes)
    assert drafted.kv_bytes_per_token - plain.kv_bytes_per_token == found.draft_kv_bytes_per_token
    left = plain.kv_available_bytes - found.draft_weights_bytes
    assert drafted.kv_tokens == pytest.approx(left / (131_072 + 4096), rel=1e-3)


def test_streams_take_k_plus_one_tokens_of_the_budget() -> None:
    asked = Speculation("eagle", tokens=4, acceptance=0.6)
    found = info(asked, streams=32, chunk=672)
    assert found.spike_chunks == -(-8000 // (672 - 5 * 32))
    assert info(asked, streams=32, chunk=160).spike_s is None


def test_best_and_break_even_end_where_the_budget_does() -> None:
    """40 streams and 200 tokens: five of each, so at most four drafts; no more than 200 ÷ (k + 1) streams are looked at."""
    asked = Speculation("eagle3", acceptance=0.95)
    free, held = info(asked, streams=40), info(asked, streams=40, chunk=200)
    assert free.best_tokens > 4
    assert [row.tokens for row in held.by_tokens] == [1, 2, 3, 4]
    assert (held.best_tokens, held.tokens) == (4, 4)
    assert (held.tried_streams, held.break_even_streams) == (40, None)
    assert info(asked, streams=40, chunk=8192).tried_streams == 8192 // (free.tokens + 1)
    with pytest.raises(costmodel.InputError, match="use a chunk of at least 200, or --speculative-tokens 3"):
        info(Speculation("eagle3", tokens=4, acceptance=0.95), streams=40, chunk=199)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Speculation("ngram"), "only you know"),
        (Speculation("eagle", tokens=0), "at least 1"),
        (Speculation("eagle", tokens=3, acceptance=2.0), "from 0 to 1"),
        (Speculation("eagle", lengths=2.0), "of how many"),
        (Speculation("eagle", tokens=5, positions=[0.5]), "--speculative-tokens 1 or fewer"),
        (Speculation("eagl"), "did you mean eagle"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Speculation, said: str) -> None:
    with pytest.raises(costmodel.InputError, match=said):
        predicted(speculation=wrong)


# --- prefixes ---------------------------------------------------------------------------------------------------------------


def test_a_cached_prefix_is_attended_and_not_computed() -> None:
    """Linear layers by the new tokens; attention by all pairs of the new ones: q·c + q(q + 1)/2 of n(n + 1)/2."""
    whole, rest = predicted().rungs.roofline, predicted(cached_prefix=6000).rungs.roofline
    pairs = (2000 * 6000 + 2000 * 2001 / 2) / (8000 * 8001 / 2)
    assert rest.prefill_attention_s / whole.prefill_attention_s == pytest.approx(pairs, rel=1e-6)
    assert rest.prefill_linear_s / whole.prefill_linear_s == pytest.approx(0.25, rel=0.01)
    textbook = predicted(cached_prefix=6000).rungs.textbook
    assert textbook.prefill_attention_s / predicted().rungs.textbook.prefill_attention_s == pytest.approx(
        (8000**2 - 6000**2) / 8000**2
    )


def test_the_answer_is_not_cached() -> None:
    """K and V of the prefix are: every token of the answer is computed as without, at the same context."""
    whole, rest = predicted(), predicted(cached_prefix=7999)
    for rung in ("textbook", "roofline", "calibrated"):
        assert rest.rungs.get(rung).decode_step_s == whole.rungs.get(rung).decode_step_s
        assert rest.rungs.get(rung).prefill_s > 0
    runs = [
        costmodel.simulate_interference(streams=1, duration=8.0, injected_output=50, cached_prefix=cached).injected
        for cached in (0, 7000)
    ]
    first, second = (run.output_tokens for run in runs if run is not None)
    assert second >= first


def test_what_the_prefix_saves_is_told() -> None:
    item = predicted(cached_prefix=6000)
    saved = item.prefix_cache
    assert saved is not None
    assert (saved.cached_tokens, saved.computed_tokens) == (6000, 2000)
    assert saved.prefill_s == item.best.prefill_s
    assert saved.prefill_without_cache_s == predicted().best.prefill_s
    assert 0.5 < saved.saved_share < 0.75  # less than the share of the tokens: the rest attends to all
    assert item.workload.cached_prefix_tokens == 6000
    assert predicted().prefix_cache is None


def test_a_longer_prefix_never_takes_longer() -> None:
    times = [predicted(cached_prefix=cached).best.prefill_s for cached in (0, 1, 2000, 4000, 7000, 7999)]
    assert times == sorted(times, reverse=True)


def test_chunks_begin_behind_the_prefix() -> None:
    item = predicted(streams=32, cached_prefix=6000, chunk=1032)
    assert item.spike.chunks == 2
    assert item.engine.one_step_budget == 2032
    many = predicted(streams=8, prompt=100_000, cached_prefix=10_000, chunk=16)
    assert many.spike.chunks == 90_000 / 8


def test_the_prefix_takes_room_all_the_same() -> None:
    assert (
        predicted(cached_prefix=6000, chunk=8192).memory.kv_blocks_needed
        == predicted(chunk=8192).memory.kv_blocks_needed
    )


def test_a_prefix_as_long_as_the_prompt_is_refused() -> None:
    with pytest.raises(costmodel.InputError, match="use at most 7999"):
        predicted(cached_prefix=8000)


def test_plans_with_a_prefix_agree_with_the_simulation() -> None:
    plain, with_it = costmodel.plan_chunk(itl=0.05), costmodel.plan_chunk(itl=0.05, cached_prefix=6000)
    assert with_it.at is not None
    assert plain.at is not None
    assert with_it.at.itl_s == pytest.approx(with_it.at.simulated_itl_s, rel=1e-9)
    assert with_it.at.ttft_s < 0.5 * plain.at.ttft_s
    longer = costmodel.plan_prompt(itl=0.1, cached_prefix=4000)
    assert longer.at is not None
    assert longer.at.itl_s == pytest.approx(longer.at.simulated_itl_s, rel=1e-9)
    assert longer.advice.prompt_tokens > costmodel.plan_prompt(itl=0.1).advice.prompt_tokens
    with pytest.raises(costmodel.InputError, match="use at most"):
        costmodel.plan_chunk(itl=0.05, cached_prefix=8000)
    with pytest.raises(costmodel.InputError, match="give --prompt"):
        costmodel.plan_batch(tpot=0.05, cached_prefix=100)


def test_a_memory_plan_holds_the_draft() -> None:
    plain, drafted = plan_memory().memory, plan_memory(draft_model="eagle3").memory
    assert drafted.weights_bytes - plain.weights_bytes == pytest.approx(849_371_136)
    assert drafted.kv_bytes_per_token - plain.kv_bytes_per_token == 4096
    assert drafted.kv_tokens < plain.kv_tokens
