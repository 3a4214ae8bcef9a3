"""What is counted while a simulation runs."""

from __future__ import annotations

import itertools

from costmodel.simulation.requests import Request
from costmodel.simulation.tally import MOST_SAMPLES, Tally


def test_gaps_add_up() -> None:
    tally = Tally()
    for gap, weight in ((0.1, 1), (0.2, 3), (0.1, 4)):
        tally.gap(gap, weight, 0.0)
    assert tally.gaps == {0.1: 5, 0.2: 3}


def test_whose_gaps_count() -> None:
    assert Tally().counts(Request(0, 1, 1, "any"))
    assert Tally(measured="stream").counts(Request(0, 1, 1, "stream"))
    assert not Tally(measured="stream").counts(Request(0, 1, 1, "injected"))


def test_the_refused_are_counted_by_reason() -> None:
    tally = Tally()
    for reason in ("too long", "too long", "too late"):
        tally.refuse(Request(0, 1, 1), reason)
    assert tally.refused == {"too long": 2, "too late": 1}
    assert [item.refused for item in tally.served] == ["too long", "too long", "too late"]


def test_samples_are_thinned_evenly_and_the_most_is_kept() -> None:
    tally = Tally()
    for number in range(10 * MOST_SAMPLES):
        tally.sample(float(number), number == 77, number == 12_345, 5 * (number == 70_001))
    assert MOST_SAMPLES / 2 <= len(tally.samples) <= MOST_SAMPLES
    times = [time for time, *_ in tally.samples]
    gaps = {after - before for before, after in itertools.pairwise(times)}
    assert len(gaps) == 1
    assert tally.most == (1, 1, 5)
