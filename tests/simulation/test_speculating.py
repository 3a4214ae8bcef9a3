"""The simulated engine with speculative decoding: the closed form, the scheduler's rules, the draws."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel import Speculation
from costmodel.simulation.clock import FixedClock
from costmodel.simulation.drafting import Drafting, Draws, FixedPasses
from costmodel.simulation.requests import Listed, Request
from costmodel.simulation.running import engine_for
from costmodel.simulation.settings import Settings
from costmodel.simulation.speculating import SpeculatingEngine
from costmodel.simulation.states import Batch
from costmodel.simulation.tally import Tally
from costmodel.speculation.acceptance import expected_tokens
from tests.strategies import examples

EAGLE = Speculation("eagle3", tokens=4, acceptance=0.75)
CLOCK = FixedClock(0.01, 0.1, 100)


def drafting(chances: tuple[float, ...], **changed: Any) -> Drafting:
    return Drafting(len(chances), chances, **{"lookahead": len(chances), "passes": FixedPasses(CLOCK), **changed})


def run(requests: list[Request], settings: Settings) -> tuple[Tally, list[list[tuple[int, int]]]]:
    """Return what was counted, and of every step (tokens, cached before) of each request."""
    steps: list[list[tuple[int, int]]] = []

    def watch(batch: Batch) -> None:
        if not batch.empty:
            steps.append([(tokens, cached) for _, tokens, cached in batch.entries])

    tally = Tally()
    engine_for(settings)(settings, CLOCK, Listed(requests), tally, watch=watch).run()
    return tally, steps


def settings(draft: Drafting, **changed: Any) -> Settings:
    return Settings(**{"token_budget": 200, "asynchronous": False, "drafting": draft, **changed})


def test_all_drafts_accepted_is_k_plus_one_tokens_a_step() -> None:
    """100 tokens of prompt, then 1 + 3 tokens a step: 1 + 4 + 4 + 2 of the last four."""
    tally, steps = run([Request(0.0, 100, 11)], settings(drafting((1.0, 1.0, 1.0))))
    assert steps == [[(100, 0)], [(4, 100)], [(4, 104)], [(4, 108)]]
    served = tally.served[0]
    assert (served.tokens, served.done) == (11, True)
    assert (served.first, served.last) == (pytest.approx(0.1), pytest.approx(0.13))
    assert sum(tally.gaps.values()) == 3  # between four bundles
    assert (tally.passes, tally.drafted, tally.accepted) == (3, 9, 9)
    assert tally.bundled == 11 - 1 - 3


def test_no_draft_accepted_is_plain_decoding_that_computes_more() -> None:
    tally, steps = run([Request(0.0, 100, 4)], settings(drafting((0.0, 0.0))))
    assert steps == [[(100, 0)], [(3, 100)], [(3, 101)], [(3, 102)]]
    assert tally.served[0].tokens == 4
    assert (tally.accepted, tally.bundled) == (0, 0)


def test_even_draws_carry_their_rests_over() -> None:
    """One of two drafts by half: 0.5 accepted per pass, so every other pass has one."""
    _, steps = run([Request(0.0, 10, 10)], settings(drafting((0.5, 0.0), draw="even")))
    assert [step[0][1] for step in steps] == [0, 10, 11, 13, 14, 16, 17]


def test_drafts_take_tokens_of_the_budget() -> None:
    """Two requests with three drafts each and a budget of six: the second has only one of them."""
    requests = [Request(0.0, 2, 20), Request(0.0, 2, 20)]
    _, steps = run(requests, settings(drafting((1.0, 1.0, 1.0)), token_budget=6, max_num_seqs=4))
    assert steps[0] == [(2, 0), (2, 0)]
    assert steps[1] == [(4, 2), (2, 2)]


def test_drafts_end_where_the_longest_sequence_does() -> None:
    tally, steps = run([Request(0.0, 10, 50)], settings(drafting((1.0,) * 3), max_model_len=16))
    assert max(tokens + cached for step in steps for tokens, cached in step) < 16
    assert tally.served[0].tokens == 6


def test_a_preempted_request_loses_its_drafts_and_is_served_all_the_same() -> None:
    """Blocks for nine tokens each are not enough for two that grow to 24."""
    changed = {"kv_blocks": 9, "block_tokens": 4, "prefix_caching": False, "reserve_full_prompt": False}
    requests = [Request(0.0, 8, 16), Request(0.0, 8, 16)]
    tally, _ = run(requests, settings(drafting((0.5, 0.5)), **changed))
    assert tally.preemptions > 0
    assert [served.tokens for served in tally.served] == [16, 16]
    assert all(served.done for served in tally.served)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.4, 0.9, 1.0]),
    st.sampled_from(["vllm", "sarathi", "prefill-first", "separate"]),
    st.sampled_from(["random", "even"]),
    st.integers(30, 200),
)
@examples(60)
def test_every_request_gets_just_its_tokens(rows, drafts, rate, scheduler, draw, blocks) -> None:
    """Whatever is drafted and accepted: no token too many, none too few, and no block is lost."""
    requests = [Request(*row) for row in rows]
    made = settings(
        drafting((rate,) * drafts, draw=draw), scheduler=scheduler, kv_blocks=blocks, max_num_seqs=16, token_budget=400
    )
    tally = Tally()
    engine = SpeculatingEngine(made, CLOCK, Listed(requests), tally)
    engine.run()
    accepted = [served for served in tally.served if not served.refused]
    assert all(served.done for served in accepted)
    assert engine.pool.used == 0
    whole = sum(served.tokens for served in accepted)
    assert whole == sum(tally.gaps.values()) + tally.bundled + len(accepted)
    for served in accepted:
        assert served.tokens == min(served.request.output, int(made.ends_at) - served.request.prompt)


def test_draws_are_of_the_chances_given() -> None:
    chances = (0.8, 0.5, 0.25)
    draws = Draws(drafting(chances, seed=3))
    found = [draws.accepted(3, 0.0)[0] for _ in range(20_000)]
    shares = [sum(each >= position for each in found) / len(found) for position in (1, 2, 3)]
    assert shares == pytest.approx([0.8, 0.4, 0.1], abs=0.01)
    assert drafting(chances).means() == pytest.approx([0, 0.8, 1.2, 1.3])


def test_seeds_repeat_and_differ() -> None:
    asked: dict[str, Any] = {"clients": 2, "requests": 4, "prompt": 64, "output": 64, "speculation": EAGLE}
    one, same, other = (costmodel.simulate_load(**asked, acceptance_seed=seed).result for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_bundles_come_as_predicted() -> None:
    """Contexts held: every gap is the pass of the closed form, the spike the mixed step of it, TPOT that ÷ the mean length."""
    predicted = costmodel.predict(speculation=EAGLE).speculation
    run_of = costmodel.simulate_interference(duration=8.0, speculation=EAGLE, acceptance_draw="even")
    assert predicted is not None
    assert run_of.baseline is not None
    assert run_of.baseline.itl is not None
    assert run_of.baseline.tpot is not None
    assert run_of.injected is not None
    assert run_of.injected.itl is not None
    assert run_of.baseline.itl.max_s == pytest.approx(predicted.pass_s, rel=1e-9)
    assert run_of.injected.itl.max_s == pytest.approx(predicted.spike_s, rel=1e-9)
    assert run_of.baseline.tpot.mean_s == pytest.approx(predicted.tpot_s, rel=2e-3)
    assert run_of.server.token_budget == 8000 + 32 * 5
    assert not run_of.server.asynchronous


@pytest.mark.parametrize("draft", ["ngram", "eagle", "mtp", "Llama-3.2-1B"])
def test_every_draft_is_simulated_as_it_is_predicted(draft: str) -> None:
    asked = Speculation(draft, tokens=3, acceptance=0.6)
    predicted = costmodel.predict(streams=4, speculation=asked, context=300).speculation
    found = costmodel.simulate_interference(
        streams=4, context=300, duration=2.0, first=1.0, speculation=asked, acceptance_draw="even"
    ).baseline
    assert predicted is not None
    assert found is not None
    assert found.itl is not None
    assert found.itl.p50_s == pytest.approx(predicted.pass_s, rel=1e-9)


@pytest.mark.parametrize("model", ["gemma-3-12b-it", "gpt-oss-20b", "DeepSeek-V2-Lite"])
def test_windows_and_latents_are_simulated_as_they_are_predicted(model: str) -> None:
    asked = Speculation("eagle", tokens=3, acceptance=0.6)
    server: dict[str, Any] = {"model": model, "gpu": "h200"}
    predicted = costmodel.predict(streams=4, speculation=asked, context=2000, **server).speculation
    found = costmodel.simulate_interference(
        streams=4, context=2000, duration=2.0, first=1.0, speculation=asked, acceptance_draw="even", **server
    ).baseline
    assert predicted is not None
    assert found is not None
    assert found.itl is not None
    assert found.itl.p50_s == pytest.approx(predicted.pass_s, rel=1e-9)


def test_a_load_is_faster_with_few_clients_and_slower_with_many() -> None:
    """Speculation pays below the break-even batch, and not above it."""
    asked = Speculation("eagle", tokens=2, acceptance=0.4)
    predicted = costmodel.predict(streams=1, context=300, speculation=asked).speculation
    assert predicted is not None
    assert predicted.break_even_streams is not None
    limit = predicted.break_even_streams
    for clients, faster in ((max(limit // 3, 1), True), (3 * limit, False)):
        load: dict[str, Any] = {"clients": clients, "requests": 2 * clients, "prompt": 200, "output": 200}
        plain, speculated = (costmodel.simulate_load(**load, **more).result for more in ({}, {"speculation": asked}))
        assert plain is not None
        assert speculated is not None
        assert plain.tpot is not None
        assert speculated.tpot is not None
        assert (speculated.tpot.mean_s < plain.tpot.mean_s) == faster


def test_what_speculation_did_is_told() -> None:
    result = costmodel.simulate_load(clients=4, requests=40, prompt=64, output=128, speculation=EAGLE).result
    assert result is not None
    told = result.speculation
    assert told is not None
    assert told.drafted_tokens == 4 * told.passes
    assert told.accepted_length == 1 + told.accepted_tokens / told.passes
    assert told.accepted_length == pytest.approx(expected_tokens(0.75, 4), rel=0.05)
    assert result.output_tokens == 40 * 128


def test_pools_speculate_where_they_decode() -> None:
    run_of = costmodel.simulate_load(
        rate=4.0, requests=40, prompt=500, output=64, speculation=EAGLE, pools=costmodel.Pools(1, 1)
    )
    assert run_of.result is not None
    assert run_of.result.requests.done == 40
    assert run_of.result.speculation is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"speculation": Speculation("eagle")}, "needs the number of drafted tokens"),
        ({"speculation": "eagle"}, "must be a costmodel.Speculation"),
        ({"speculation": EAGLE, "acceptance_draw": "evn"}, "did you mean even"),
        ({"speculation": EAGLE, "acceptance_seed": -1}, "at least 0"),
        ({"speculation": Speculation("eagle", tokens=3), "decode_s": 0.01, "prefill_s": 0.1}, "say nothing of a draft"),
        ({"num_speculative_tokens": 3}, "speculation=costmodel.Speculation"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(costmodel.InputError, match=said):
        costmodel.simulate_load(clients=1, **wrong)


def test_streams_that_fill_the_budget_with_drafts_are_refused() -> None:
    with pytest.raises(costmodel.InputError, match=r"every stream takes 5 tokens of it\); use at least 161"):
        costmodel.simulate_interference(speculation=EAGLE, chunk=160)
