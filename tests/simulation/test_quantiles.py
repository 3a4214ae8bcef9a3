"""Percentiles of gaps that were never written out, against lists of them."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation import quantiles
from costmodel.simulation.clock import Clock, FixedClock
from costmodel.simulation.quantiles import Gaps, nearest_rank
from costmodel.simulation.tally import Tally
from tests.simulation.pairs import CLOCKS, all_gaps, clock_of
from tests.strategies import examples

SHARES = [0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0]


def tally_of(gaps: dict[float, int], segments: Sequence[Sequence[float]] = ()) -> Tally:
    tally = Tally()
    for gap, weight in gaps.items():
        tally.gap(gap, weight, 0.0)
    for row in segments:
        tally.segments.extend(row)
    return tally


@st.composite
def tallies(draw: st.DrawFn, clock: Clock) -> Tally:
    single = draw(st.dictionaries(st.floats(1e-4, 10.0), st.integers(1, 300), max_size=6))
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        decodes = draw(st.integers(1, 40))
        weight, steps = draw(st.integers(1, decodes)), draw(st.sampled_from([1, 2, 30, 200]))
        reads = [float(decodes * draw(st.integers(1, 4000 if w is None else w))) for w in clock.windows]
        growth = [draw(st.sampled_from([0.0, float(decodes)])) for _ in clock.windows]
        rows.append([weight, decodes, steps, *reads, *growth])
    return tally_of(single, rows)


def check(found: Sequence[Tally], clock: Clock) -> None:
    """Hold all that :class:`Gaps` says against the list of every gap."""
    gaps, listed = Gaps(found, clock), np.sort(np.concatenate([all_gaps(tally, clock) for tally in found]))
    assert gaps.count == len(listed)
    if not len(listed):
        assert all(map(math.isnan, [*gaps.quantiles(SHARES), gaps.mean()]))
        assert gaps.over(0.0) == 0
        return
    expected = np.quantile(listed, SHARES, method="inverted_cdf")
    assert gaps.quantiles(SHARES) == pytest.approx(list(expected), rel=1e-12)
    assert gaps.mean() == pytest.approx(listed.mean(), rel=1e-12)
    between = (listed[0] + listed[-1]) / 2 * 1.000001
    for each in (gaps, Gaps(found, clock)):  # the second one has not put them in order
        assert each.over(between) == (listed > between).sum()
        assert each.over(listed[-1] * 1.01) == 0
        assert each.over(listed[0] * 0.99) == len(listed)
    edges = np.geomspace(listed[0] * 0.99, listed[-1] * 1.01, 7)
    assert list(gaps.histogram(edges)) == list(np.histogram(listed, edges)[0])


@pytest.mark.parametrize("which", [CLOCKS[0], CLOCKS[3], None], ids=str)
@given(data=st.data())
@examples(40, shrink=False)
def test_gaps_in_segments_are_those_in_a_list(which: tuple[str, str, bool] | None, data: st.DataObject) -> None:
    clock = clock_of(which)
    check([data.draw(tallies(clock)) for _ in range(data.draw(st.integers(1, 3)))], clock)


@pytest.mark.parametrize("which", [CLOCKS[0], CLOCKS[3], None], ids=str)
@given(data=st.data())
@examples(15, shrink=False)
def test_two_passes_and_small_blocks_give_the_same(which: tuple[str, str, bool] | None, data: st.DataObject) -> None:
    clock = clock_of(which)
    found = [data.draw(tallies(clock)) for _ in range(data.draw(st.integers(1, 2)))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quantiles, "MOST_AT_ONCE", 0)
        patched.setattr(quantiles, "BLOCK", data.draw(st.sampled_from([7, 64, 300])))
        patched.setattr(quantiles, "BINS", data.draw(st.sampled_from([1, 2, 50, 1000])))
        check(found, clock)


def test_two_passes_over_gaps_that_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "MOST_AT_ONCE", 0)
    for gaps in (
        {0.01: 5},
        {0.01: 5, math.nextafter(0.01, 1): 5},
        {0.01: 1, 0.01 * (1 + 1e-13): 2, 0.01 * (1 + 2e-13): 3},
    ):
        check([tally_of(gaps)], FixedClock(0.01, 1.0, 10))
    check([tally_of({}, [[3, 3, 1000]])], FixedClock(0.01, 1.0, 10))


def test_equal_gaps_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant(FixedClock):
        windows = (None,)

    monkeypatch.setattr(quantiles, "MOST_AT_ONCE", 0)
    gaps = Gaps([tally_of({}, [[3, 3, 3_000_000, 5.0, 3.0]])], Constant(0.01, 1.0, 10))
    tracemalloc.start()
    assert gaps.quantiles(SHARES) == [0.01] * len(SHARES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_gaps_beyond_what_floats_count() -> None:
    gaps = Gaps([tally_of({0.01: 1 << 62, 0.02: 1})], FixedClock(0.01, 1.0, 10))
    assert gaps.quantiles([0.5, 1.0])[0] == 0.01


def test_a_segment_longer_than_a_block_is_cut_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantiles, "BLOCK", 100)
    clock = clock_of(CLOCKS[0])
    rows = [[2, 2, 30, 50.0, 2.0], [3, 5, 1050, 900.0, 5.0], [1, 1, 99, 9.0, 1.0], [1, 1, 100, 9.0, 1.0]]
    check([tally_of({}, rows)], clock)
    sizes = [len(values) for values, _ in Gaps([tally_of({}, rows)], clock).blocks()]
    assert max(sizes) <= 100
    assert sum(sizes) == 1279


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 3.0, 1.0, 2.0], 0.5, 2.0),  # F(2) = 0.5 ≥ 0.5
        ([4.0, 3.0, 1.0, 2.0], 0.51, 3.0),
        ([1.0] * 999 + [9.0], 0.999, 1.0),  # one in a thousand does not move p99.9 …
        ([1.0] * 998 + [9.0, 9.0], 0.999, 9.0),  # … two do
        ([1.0] * 99 + [9.0], 0.99, 1.0),
        ([1.0] * 99 + [9.0], 1.0, 9.0),
        ([5.0], 0.001, 5.0),
    ],
)
def test_nearest_rank_by_hand(values: list[float], share: float, expected: float) -> None:
    assert nearest_rank(values, [share]) == [expected]
    weighted = {value: values.count(value) for value in values}
    assert Gaps([tally_of(weighted)], FixedClock(1, 1, 1)).quantiles([share]) == [expected]


def test_nothing_has_no_percentile() -> None:
    assert all(map(math.isnan, nearest_rank([], SHARES)))


@pytest.mark.parametrize("count", [7, 1000, 99_999, 10**6, 123_456_789, 10**10])
def test_shares_of_whole_counts_are_not_rounded_up(count: int) -> None:
    """0.999 · 1,000 is 999 and not a little more, whatever binary makes of it."""
    spikes = count - math.floor(count * 999 / 1000 + 1e-9)
    at = Gaps([tally_of({1.0: count - spikes, 2.0: spikes})], FixedClock(1, 1, 1))
    assert at.quantiles([0.999]) == [1.0 if count * 999 % 1000 == 0 else 2.0]
