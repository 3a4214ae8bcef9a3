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
