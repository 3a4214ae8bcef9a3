"""Where the answer is no, there is a nearest value for the limit that binds, and it says whether it is enough."""

from __future__ import annotations

from typing import Any

import pytest

import costmodel


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        ("batch", {"kv_tokens": 1}),
        ("batch", {"model": "gemma-3-27b-it", "gpu": "h200", "kv_tokens": 100, "context": 500, "tpot": 0.22, "prompt": 2}),
        ("prompt", {"streams": 1, "context": 4000, "kv_tokens": 100, "itl": 0.5}),
        ("chunk", {"model": "Qwen3-0.6B", "gpu": "h200", "prompt": 500, "prompts": 5, "kv_tokens": 17, "itl": 0.1}),
        ("replicas", {"rate": 1.0, "kv_tokens": 1, "ttft": 1.0, "requests": 20, "prompt": 500, "output": 10}),
    ],
)  # fmt: skip
def test_a_given_kv_cache_that_is_too_small_is_named(ask: str, asked: dict[str, Any]) -> None:
    plan = getattr(costmodel, f"plan_{ask}")
    found = plan(**asked)
    assert not found.feasible
    assert found.binding == "kv_memory"
    assert "weights" not in found.binds
    (near,) = found.nearest
    assert near.change == "--kv-tokens"
    assert near.enough
    assert plan(**{**asked, "kv_tokens": int(near.value)}).feasible
    assert not plan(**{**asked, "kv_tokens": int(near.value) - 16}).feasible


def test_a_decode_step_over_the_limit_names_limit_and_streams() -> None:
    found = costmodel.plan_chunk(200, 600, 500, itl=0.02, confirm=False)
    assert {each.change: each.enough for each in found.nearest} == {"--itl-ms": True, "--streams": True}
    near = next(each for each in found.nearest if each.change == "--streams")
    assert costmodel.plan_chunk(200, int(near.value), 500, itl=0.02, confirm=False).feasible
    rushed = costmodel.plan_chunk(2, 2500, 15, prompts=2, itl=0.02, every=0.02, confirm=False)
    assert rushed.nearest
    assert not any(each.enough for each in rushed.nearest)


def test_the_row_of_a_part_that_fails_is_the_closest_size() -> None:
    found = costmodel.plan_gpu(tpot=0.03, model="Qwen3-32B", gpus=["l40s"])
    assert not found.feasible
    (row,) = found.options
    assert row.tpot_s == min(option.tpot_s for option in found.tried if option.tpot_s is not None)
    assert f"{row.gpus} × {row.name}" in found.binds


def test_without_prices_all_parts_with_the_fewest_gpus_are_named() -> None:
    found = costmodel.plan_gpu(tpot=0.03, gpus=["h200", "h100", "l40s"])
    assert (
        found.binds
        == "fewest GPUs: 1 of any of h200, h100-sxm, l40s; of these NVIDIA H200 SXM 141GB has the least TPOT"
    )


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        ("chunk", {"gpu": "h200", "tp": 4, "ep": 4, "itl": 0.1, "streams": 8, "confirm": False}),
        ("batch", {"gpu": "h200", "tp": 4, "ep": 4, "tpot": 0.1, "confirm": False}),
        ("gpu", {"gpus": ["mi300x"], "ep": 2, "most": 4, "tpot": 0.05, "streams": 4}),
        ("replicas", {"gpu": "h200", "tp": 4, "ep": 4, "rate": 1, "tpot": 0.1, "output": 10, "requests": 10}),
    ],
)
def test_experts_that_do_not_fit_are_spread_further(ask: str, asked: dict[str, Any]) -> None:
    plan = getattr(costmodel, f"plan_{ask}")
    found = plan(model="DeepSeek-V3", **asked)
    assert not found.feasible
    assert [(near.change, near.value, near.enough) for near in found.nearest] == [("--ep", 2 * asked["ep"], True)]
    assert plan(model="DeepSeek-V3", **{**asked, "ep": 2 * asked["ep"]}).feasible


def test_experts_and_attention_may_both_have_to_be_spread() -> None:
    asked: dict[str, Any] = {
        "model": "Qwen3-235B-A22B",
        "gpu": "h200",
        "streams": 20,
        "context": 30000,
        "itl": 0.5,
        "confirm": False,
    }
    near = next(near for near in costmodel.plan_chunk(**asked, ep=4).nearest if near.change == "--ep")
    assert not near.enough
    assert near.text.startswith("expert-parallel size 8 and tensor-parallel size 2; not enough by itself, as then ")
    assert costmodel.plan_chunk(**asked, ep=8, tp=2).feasible
    other = costmodel.plan_gpu(model="Qwen3-235B-A22B", gpus=["h100"], ep=2, tpot=0.05, streams=4)
    assert [near.change for near in other.nearest] == ["--gpu", "--ep"]


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        ("chunk", {"model": "gemma-2-9b-it", "context": 12000, "streams": 300, "max_num_seqs": 256, "itl": 0.1}),
        ("chunk", {"max_num_seqs": 10, "streams": 300, "max_model_len": 300, "itl": 0.05}),
        ("gpu", {"model": "gpt-j-6b", "gpus": ["l4"], "prompt": 5157, "streams": 354, "max_num_seqs": 20, "tpot": 0.05}),
    ],
)  # fmt: skip
def test_too_few_places_are_an_error_whatever_else_is_too_long(ask: str, asked: dict[str, Any]) -> None:
    with pytest.raises(costmodel.InputError, match=r"leaves no place for .* use at least"):
        getattr(costmodel, f"plan_{ask}")(**asked)


@pytest.mark.parametrize("ask", ["replicas", "disaggregation"])
def test_the_longest_prompt_is_named_though_the_kv_cache_is_too_small(ask: str) -> None:
    found = getattr(costmodel, f"plan_{ask}")(
        1, ttft=4.0, prompt=5167, output=200, requests=10, model="gpt-j-6b", gpu="l40s", kv_tokens=16
    )
    assert found.binding == "max_model_len"
    (near,) = found.nearest
    assert (near.change, near.value, near.enough) == ("--prompt", 2048 - 200, False)
    assert "larger than the KV cache" in near.text
