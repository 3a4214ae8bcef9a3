"""What a sweep gives back: columns, rows, documents, data frames, frontiers, prices."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.sweeping.columns import column_of, joined
from costmodel.sweeping.pareto import comparable, frontier, frontiers, waiting
from tests.strategies import examples


@pytest.fixture(scope="module")
def found() -> costmodel.Sweep:
    return costmodel.sweep(
        gpu=["h100", "l40s"], tp=[1, 3], streams=[1, 64], rate=[None, 0.1], chunk=["engine", None], prices={"H100": 2.5}
    )


def test_rows_are_frozen_and_as_the_columns(found: costmodel.Sweep) -> None:
    assert len(found) == 32 == len(found.rows) == len(list(found.rows))
    assert found.rows[-1] == found.rows[31] == found.rows[30:][1]
    with pytest.raises(IndexError, match="row 32 of 32"):
        found.rows[32]
    with pytest.raises(AttributeError):
        found.rows[0].gpu = "a100"  # type: ignore[misc]
    for name, column in found.columns.items():
        assert column.python() == [getattr(row, name) for row in found.rows]
    with pytest.raises(costmodel.InputError, match="no column 'gpu' of numbers"):
        found.numbers("gpu")


def test_the_document_has_every_row(found: costmodel.Sweep) -> None:
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["schema"] == "costmodel.sweep/1"
    assert document["kind"] == "steps"
    assert [row["streams"] for row in document["rows"]] == [row.streams for row in found.rows]
    assert document["notes"][-1] == "no price of l40s in the table"
    assert "h100 is taken as NVIDIA H100 SXM5 80GB; also h100-pcie, h100-nvl" in document["notes"]
    assert document["currency"] is None


def test_prices_are_those_of_all_gpus_of_a_row() -> None:
    one, two, none = costmodel.sweep(gpu=["h100", "a100"], tp=[1, 2], prices={"h100-sxm": 2.5}).rows[:3]
    assert (one.cost_per_hour, two.cost_per_hour, none.cost_per_hour) == (2.5, 5.0, None)
    assert one.cost_per_million_tokens == pytest.approx(2.5 / (one.output_tokens_per_s or 0) / 3600 * 1e6, rel=1e-15)
    assert none.cost_per_million_tokens is None


def test_only_comparable_rows_compete() -> None:
    """Floors, other prompts and answers are no rivals; rates and contexts are none of the closed loop's; an overload does not compete."""
    found = costmodel.sweep(
        gpu=["h100", "h100-pcie", "a100"], prompt=[100, 1000], output=[50, 500], rate=[0.1, 50.0], context=[1, 500]
    )
    groups = comparable(found.kind, found.columns)
    keys = [(row.rung, row.prompt_tokens, row.output_tokens) for row in found.rows]
    assert len(set(groups.tolist())) == len(set(keys)) == len(set(zip(groups.tolist(), keys, strict=True))) == 8
    places = frontiers(groups, waiting(found.columns), found.numbers("output_tokens_per_s_per_gpu")).tolist()
    best = [found.rows[place] for place in places]
    assert {(row.rung, row.prompt_tokens, row.output_tokens) for row in best} == set(keys)
    assert {row.rate_per_s for row in best} == {0.1}
    assert any(row.overload for row in found.rows)  # type: ignore[attr-defined]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_data_frame_has_every_value(found: costmodel.Sweep) -> None:
    import pandas as pd

    frame = found.to_pandas()
    assert list(frame.columns) == list(found.columns)
    for name, column in found.columns.items():
        assert [None if pd.isna(value) else value for value in frame[name]] == column.python()
    assert str(frame["chunk_tokens"].dtype) == "Int64"
    assert str(frame["overload"].dtype) == "boolean"


def test_without_pandas_that_is_said(found: costmodel.Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(costmodel.InputError, match="to_pandas needs pandas"):
        found.to_pandas()


def test_columns_of_texts_are_joined() -> None:
    one, two = column_of("text", ["a", None, "b"]), column_of("text", ["c", "b"])
    assert joined("text", [one, two]).python() == ["a", None, "b", "c", "b"]
    assert joined("text", [column_of("text", [None]), one]).python() == [None, "a", None, "b"]


@examples(200)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9) | st.just(float("nan")), st.integers(0, 9)), max_size=30)
)
def test_frontiers_are_the_points_that_none_beats(points: list[tuple[int, float, float]]) -> None:
    group, cost, gain = (
        np.array(values, dtype=float) for values in (zip(*points, strict=True) if points else ([], [], []))
    )
    group = group.astype(np.int64)
    for number in (0, 1, 2):
        mine = [place for place in range(len(points)) if group[place] == number and cost[place] == cost[place]]
        kept = {(cost[place], gain[place]) for place in frontiers(group, cost, gain) if group[place] == number}
        unbeaten = {
            (cost[place], gain[place])
            for place in mine
            if not any(
                cost[other] <= cost[place]
                and gain[other] >= gain[place]
                and (cost[other], gain[other]) != (cost[place], gain[place])
                for other in mine
            )
        }
        assert kept == unbeaten
    places = frontier(cost, gain)
    assert list(cost[places]) == sorted(cost[places])
    assert len({(cost[place], gain[place]) for place in places}) == len(places)
