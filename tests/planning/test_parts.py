"""`plan_gpu` and its table of prices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.errors import InputError
from costmodel.hardware.catalog import FOLDER

PRICES = {"h100": 2.5, "h200": 3.4, "l40s": 1.0, "a100": 1.4}
BIG = "Llama-3.3-70B-Instruct"


def test_the_cheapest_part_with_the_fewest_gpus() -> None:
    plan = costmodel.plan_gpu(tpot=0.020, ttft=1.0, model=BIG, prices=PRICES)
    assert plan.feasible
    assert plan.advice is not None
    assert (plan.advice.gpu, plan.advice.gpus) == ("h100-sxm", 4)
    assert plan.advice.tensor_parallel == 4
    by_part = {option.gpu: option for option in plan.options}
    assert by_part["h100-sxm"].cost_per_hour == pytest.approx(10.0)
    assert [option.meets for option in plan.options] == sorted((option.meets for option in plan.options), reverse=True)
    costs = [option.cost_per_hour for option in plan.options if option.meets]
    assert costs == sorted(costs, key=float)  # type: ignore[arg-type]
    assert "GPUs" not in by_part["a100-80gb-sxm"].why
    assert "TPOT" in by_part["a100-80gb-sxm"].why
    [half] = [option for option in plan.tried if option.gpu == "h100-sxm" and option.gpus == 2]
    assert not half.meets
    assert "KV cache" in half.why


def test_a_price_decides() -> None:
    plan = costmodel.plan_gpu(tpot=0.020, ttft=1.0, model=BIG, prices={**PRICES, "h200": 1.0})
    assert plan.advice is not None
    assert plan.advice.gpu == "h200"


def test_the_numbers_are_those_of_the_other_answers() -> None:
    plan = costmodel.plan_gpu(tpot=0.020, gpus=["h100"])
    chunk = costmodel.plan_chunk(itl=1.0).points
    [option] = plan.options
    [same] = [point for point in chunk if point.max_num_batched_tokens == 8192]
    assert option.itl_s == pytest.approx(same.itl_s)
    assert option.ttft_s == pytest.approx(same.ttft_s)
    tokens = 32 / (option.tpot_s or 1)
    priced = costmodel.plan_gpu(tpot=0.020, prices={"h100": 3.6}).options[0]
    assert priced.cost_per_million_tokens == pytest.approx(3.6 / 3600 / tokens * 1e6)


def test_a_part_that_nobody_measured_is_advised_only_where_no_other_will_do() -> None:
    both = costmodel.plan_gpu(tpot=0.020, prices={"mi300x": 0.1, "h100": 9.0})
    assert both.advice is not None
    assert both.advice.gpu == "h100-sxm"
    assert not both.warnings
    alone = costmodel.plan_gpu(tpot=0.020, gpus=["mi300x"])
    assert alone.feasible
    assert "floor" in alone.warnings[0]


def test_without_prices_all_parts_are_tried() -> None:
    plan = costmodel.plan_gpu(tpot=0.020, ttft=1.0)
    assert len(plan.options) > 30
    assert plan.currency is None
    assert plan.notes


def test_no_part_will_do() -> None:
    plan = costmodel.plan_gpu(tpot=0.0005, ttft=1.0, gpus=["h100", "h200"])
    assert not plan.feasible
    assert plan.binding == "tpot"
    [near] = plan.nearest
    assert costmodel.plan_gpu(tpot=near.value, ttft=1.0, gpus=["h100", "h200"]).feasible


def test_a_model_that_fits_nowhere_that_was_asked_about() -> None:
    plan = costmodel.plan_gpu(tpot=0.1, gpus=["t4", "l4"], model="Llama-3.1-405B")
    assert not plan.feasible
    assert plan.binding == "kv_memory"
    assert plan.nearest[0].change == "--gpu"


@pytest.mark.parametrize(
    ("asked", "binding", "nearest"),
    [
        ({"tpot": 0.05, "prompt": 200_000}, "max_model_len", {"--prompt": 131_071}),
        ({"tpot": 0.02, "max_model_len": 4096}, "max_model_len", {"--max-model-len": 8001, "--prompt": 4095}),
        ({"ttft": 1.0, "every": 0.01}, "load", {"--every": 0.0816}),
        (
            {"ttft": 0.5, "every": 0.205, "most": 1},
            "load",
            {"--every": 0.2088},
        ),  # Σ T_mixed fits into it, not T_dec as well
        ({"tpot": 0.02, "model": "Qwen3-30B-A3B", "ep": 8, "most": 2}, "max_gpus", {"--max-gpus": 8}),
        ({"tpot": 0.05, "streams": 9000, "context": 10}, "token_budget", None),
    ],
)
def test_what_binds_and_what_would_do(asked: dict[str, Any], binding: str, nearest: dict[str, float] | None) -> None:
    plan = costmodel.plan_gpu(**asked, gpus=["h100"])
    assert not plan.feasible
    assert plan.binding == binding
    if nearest is not None:
        assert {near.change: near.value for near in plan.nearest if near.enough} == pytest.approx(nearest, rel=0.01)


def test_load_and_a_time_may_both_bind() -> None:
    plan = costmodel.plan_gpu(ttft=0.1, every=0.15, gpus=["l40s"])
    assert plan.binding == "load"
    assert {near.change for near in plan.nearest} == {"--every", "--ttft-ms"}
    assert not any(near.enough for near in plan.nearest)


def test_another_part_is_judged_by_the_limits() -> None:
    plan = costmodel.plan_gpu(tpot=0.0005, gpus=["t4"], model="DeepSeek-V3")
    [near] = plan.nearest
    assert not near.enough
    assert "for 0.5 ms allowed" in near.text
    [near] = costmodel.plan_gpu(tpot=0.05, gpus=["t4"], model="DeepSeek-V3").nearest
    assert near.enough
    assert near.gpu is not None
    found = costmodel.plan_gpu(tpot=0.05, gpus=[near.gpu], model="DeepSeek-V3")
    assert found.advice is not None
    assert found.advice.gpus == near.value


def test_a_load_that_fits_nowhere() -> None:
    asked: dict[str, Any] = {"tpot": 1.0, "context": 100_000, "gpus": ["h100"]}
    plan = costmodel.plan_gpu(streams=800, **asked)
    assert plan.binding == "kv_memory"
    [near] = plan.nearest
    assert near.change == "--streams"
    assert near.enough
    assert costmodel.plan_gpu(streams=int(near.value), **asked).feasible
    assert not costmodel.plan_gpu(streams=int(near.value) + 1, **asked).feasible


def test_experts_over_more_gpus() -> None:
    plan = costmodel.plan_gpu(tpot=0.02, model="Qwen3-30B-A3B", ep=4, gpus=["h100"])
    assert plan.advice is not None
    assert (plan.advice.gpus, plan.advice.tensor_parallel) == (4, 1)
    assert [(option.gpus, option.tensor_parallel) for option in plan.tried] == [(4, 1), (4, 2), (4, 4)]
    assert any("4 attention replicas" in note for note in plan.notes)
    priced = costmodel.plan_gpu(tpot=0.02, model="Qwen3-30B-A3B", ep=4, prices={"h100": 3.6}).tried[0]
    tokens = 4 * 32 / (priced.tpot_s or 1)  # of four replicas
    assert priced.cost_per_million_tokens == pytest.approx(4 * 3.6 / 3600 / tokens * 1e6)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text((FOLDER / "h100-sxm.toml").read_text(encoding="utf-8"), encoding="utf-8")
    plan = costmodel.plan_gpu(tpot=0.02, gpus=[str(mine), "l40s"])
    assert {option.gpu for option in plan.options} == {"mine", "l40s"}
    prices = tmp_path / "prices.csv"
    prices.write_text(f"gpu,price_per_hour\n{mine},2\n", encoding="utf-8")
    priced = costmodel.plan_gpu(tpot=0.02, gpus=[str(mine)], prices=prices).advice
    assert priced is not None
    assert priced.gpu == "mine"
    assert costmodel.plan_gpu(tpot=0.02, prices={str(mine): 2.0}).advice == priced
    assert costmodel.plan_gpu(tpot=0.02, prices=prices).advice == priced
    other = tmp_path / "h100-sxm.toml"
    other.write_text(mine.read_text(encoding="utf-8").replace("H100", "H101"), encoding="utf-8")
    with pytest.raises(InputError, match="have one name"):
        costmodel.plan_gpu(tpot=0.02, gpus=[str(other), "h100"])


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table of prices .*none\.csv"):
        costmodel.plan_gpu(tpot=0.02, prices=tmp_path / "none.csv")
    with pytest.raises(InputError, match="no price for l40s"):
        costmodel.plan_gpu(tpot=0.02, prices={"h100": 1.0}, gpus=["h100", "l40s"])
    with pytest.raises(InputError, match="give a limit"):
        costmodel.plan_gpu()
    with pytest.raises(InputError, match="use gpus"):
        costmodel.plan_gpu(tpot=0.02, gpu="h100")
    with pytest.raises(InputError, match="at least 33"):
        costmodel.plan_gpu(tpot=0.02, chunk=16)
    with pytest.raises(InputError, match="at least 33"):
        costmodel.plan_gpu(tpot=0.02, max_num_seqs=4, gpus=["h100"])
    with pytest.raises(InputError, match="unknown dtype 'fp7'"):
        costmodel.plan_gpu(tpot=0.02, dtype="fp7")
    with pytest.raises(InputError, match="no such file"):
        costmodel.plan_gpu(tpot=0.02, calibration=tmp_path / "none.toml")
    with pytest.raises(InputError, match="mixture of experts"):
        costmodel.plan_gpu(tpot=0.02, ep=4)
