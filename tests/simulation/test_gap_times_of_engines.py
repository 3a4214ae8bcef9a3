"""When every gap was: both engines tell the same, as often as there are gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.simulation.gap_times import gap_times
from costmodel.simulation.jumping import JumpingEngine
from costmodel.simulation.quantiles import Gaps
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Tally
from tests.simulation.pairs import Workload, crowded_workload, random_workload


def kept(engine: type[Engine], workload: Workload) -> Tally:
    tally = Tally(keep_times=True)
    delay = (workload.delay, workload.delay / 1e3)
    engine(workload.settings, workload.clock, workload.source(), tally, delay=delay, until=workload.until).run()
    return tally


@pytest.mark.parametrize("seed", range(30))
def test_both_engines_tell_when_every_gap_was(seed: int) -> None:
    for workload in (random_workload(seed), crowded_workload(seed)):
        plain, jumped = kept(Engine, workload), kept(JumpingEngine, workload)
        first, second = gap_times([plain], workload.clock), gap_times([jumped], workload.clock)
        assert first.weights.sum() == second.weights.sum() == Gaps([plain], workload.clock).count
        for times in (first, second):
            assert (np.diff(times.ends) >= 0).all()
        order = [np.lexsort((times.gaps, np.round(times.ends, 7))) for times in (first, second)]
        ends = [np.repeat(t.ends[o], t.weights[o].astype(int)) for t, o in zip((first, second), order, strict=True)]
        assert ends[0] == pytest.approx(ends[1], abs=1e-8)
        gaps = [np.sort(np.repeat(t.gaps, t.weights.astype(int))) for t in (first, second)]
        assert gaps[0] == pytest.approx(gaps[1], abs=1e-9)


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    workload = replace(random_workload(3), delay=0.0)
    tally = Tally()
    JumpingEngine(workload.settings, workload.clock, workload.source(), tally).run()
    assert not tally.timed
    assert not tally.starts
