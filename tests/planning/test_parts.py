"""`plan_gpu` and its table of prices."""

from __future__ import annotations

from pathlib import Path

import pytest

import costmodel
from costmodel.errors import InputError

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
