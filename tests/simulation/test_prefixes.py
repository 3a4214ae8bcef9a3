"""What a prefix cache finds: an endless one as a direct count says, a real one less, and what that is worth."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.simulation.prefixes import block_keys, prefix_hits
from costmodel.simulation.requests import Request
from costmodel.simulation.traces import read_trace

MOONCAKE = "data/traces/mooncake_conversation.jsonl"
FAST = {"decode_s": 1e-6, "prefill_s": 1e-6, "chunk": 10_000_000, "kv_tokens": 10**10, "max_num_seqs": 100_000}


def asked(prompt: int, *ids: int, arrival: float = 0.0) -> Request:
    return Request(arrival, prompt, 1, prefix=ids, prefix_block=512)


def counted_directly(requests: tuple[Request, ...], block: int) -> tuple[int, int]:
    """Compare every prompt's leading ids with those of all prompts before it, as they are written in the trace."""
    beginnings: set[tuple[int, ...]] = set()
    whole = found = 0
    for request in requests:
        whole += request.prompt
        known = 0
        while known < len(request.prefix) and request.prefix[: known + 1] in beginnings:
            known += 1
        tokens = min(known * request.prefix_block, request.prompt) // block * block
        found += min(tokens, (request.prompt - 1) // block * block)
        beginnings.update(request.prefix[: count + 1] for count in range(len(request.prefix)))
    return whole, found


def test_hits_by_hand() -> None:
    requests = [asked(1030, 1, 2, 3), asked(1030, 1, 2, 4), asked(1024, 1, 2), asked(600, 2, 1), asked(530, 1, 9)]
    # all of the first two ids; all of a prompt but its last block of 16; nothing of an id elsewhere; one id
    assert prefix_hits(requests).cached_tokens == 1024 + 1008 + 0 + 512
    kept = 1024 + 0 + 0 + 592 + 528 - 512  # full blocks, each once: the second and third bring none
    assert prefix_hits(requests).kept_tokens == kept
    assert prefix_hits([]).hit_rate == 0


def test_a_short_prompt_does_not_leave_what_it_never_had() -> None:
    """The second id of the first prompt stands for 88 tokens, of which five blocks are full."""
    assert prefix_hits([asked(600, 1, 2), asked(1000, 1, 2)]).cached_tokens == 592
    assert prefix_hits([asked(1000, 1, 2), asked(600, 1, 2)]).cached_tokens == 592


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.lists(st.integers(1, 3), max_size=6)),
        max_size=12,
    ),
    st.sampled_from([1, 4, 16, 24]),
)
def test_it_is_what_the_blocks_of_an_engine_say(rows: list[tuple[int, list[int]]], block: int) -> None:
    requests = [Request(0.0, prompt, 1, prefix=tuple(ids), prefix_block=32) for prompt, ids in rows]
    chains: dict[tuple[int, int], int] = {}
    kept: set[object] = set()
    cached = 0
    for request in requests:
        keys = list(block_keys(request, block, chains))
        found = 0
        while found < min(len(keys), (request.prompt - 1) // block) and keys[found] in kept:
            found += 1
        cached += found * block
        kept.update(keys)
    hits = prefix_hits(requests, block)
    assert (hits.cached_tokens, hits.kept_tokens) == (cached, len(kept) * block)


def test_an_endless_cache_is_what_a_direct_count_says(shared_folder: Path) -> None:
    requests = read_trace(shared_folder / MOONCAKE).requests
    found = prefix_hits(requests)
    assert (found.prompt_tokens, found.cached_tokens) == counted_directly(requests, 16)
    assert found.hit_rate == pytest.approx(0.3736, abs=5e-5)


def test_the_simulated_cache_of_no_end_finds_the_same(shared_folder: Path) -> None:
    """All prompts of the trace in blocks of its own size, the first thousand in vLLM's, each computed before the next one comes."""
    path = shared_folder / MOONCAKE
    for block, limit in ((512, None), (16, 1000)):
        run = costmodel.simulate_trace(path, limit=limit, block_tokens=block, **FAST)  # type: ignore[arg-type]
        whole, found = counted_directly(read_trace(path, limit=limit).requests, block)
        assert run.result is not None
        assert (run.result.prompt_tokens, run.result.cached_prompt_tokens) == (whole, found)
        assert run.prefix_cache is not None
        assert run.prefix_cache.hit_rate == run.prefix_cache.unlimited_hit_rate == found / whole


def test_with_the_cache_first_tokens_come_sooner(shared_folder: Path) -> None:
    runs = [
        costmodel.simulate_trace(shared_folder / MOONCAKE, limit=600, tp=8, prefix_caching=on) for on in (True, False)
    ]
    with_it, without = (run.result for run in runs)
    assert with_it is not None
    assert without is not None
    assert without.cached_prompt_tokens == 0
    unlimited = prefix_hits(read_trace(shared_folder / MOONCAKE, limit=600).requests)
    assert 0.5 * unlimited.cached_tokens < with_it.cached_prompt_tokens <= unlimited.cached_tokens
    assert with_it.ttft is not None
    assert without.ttft is not None
    assert with_it.ttft.mean_s < 0.9 * without.ttft.mean_s
    told = runs[0].prefix_cache
    assert told is not None
    assert told.hit_rate == with_it.cached_prompt_tokens / with_it.prompt_tokens
    assert told.unlimited_hit_rate == pytest.approx(unlimited.hit_rate)
    assert runs[1].prefix_cache is not None
    assert runs[1].prefix_cache.hit_rate == 0


def test_a_smaller_cache_finds_no_more(shared_folder: Path) -> None:
    asked_for = {**FAST, "kv_tokens": 500_000, "max_num_seqs": 1000}
    small = costmodel.simulate_trace(shared_folder / MOONCAKE, limit=1000, **asked_for).result  # type: ignore[arg-type]
    unlimited = prefix_hits(read_trace(shared_folder / MOONCAKE, limit=1000).requests)
    assert small is not None
    assert 0 < small.cached_prompt_tokens < unlimited.cached_tokens


@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
def test_an_injected_prompt_with_a_cached_prefix_is_predicted_and_simulated_alike(scheduler: str) -> None:
    predicted = costmodel.predict(cached_prefix=6000)
    asked_for = {"chunk": 10_000} if scheduler == "sarathi" else {}
    run = costmodel.simulate_interference(cached_prefix=6000, duration=6.0, scheduler=scheduler, **asked_for)  # type: ignore[arg-type]
    assert run.injected is not None
    assert run.injected.itl is not None
    assert run.injected.itl.max_s == pytest.approx(predicted.spike.height_s, rel=1e-9)
    assert run.injected.cached_prompt_tokens == 6000
    assert run.workload["cached_prefix_tokens"] == 6000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cached_prefix": 8000}, "use at most 7999"),
        ({"cached_prefix": -1}, "at least 0"),
        ({"cached_prefix": 100, "prefix_caching": False}, "which is off"),
    ],
)
def test_a_prefix_that_cannot_be_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(costmodel.InputError, match=said):
        costmodel.simulate_interference(**wrong)  # type: ignore[arg-type]
