"""When every gap was: the same gaps as are counted, at times that follow one another; and how far a simulation tells that it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from costmodel.simulation.gap_times import gap_times
from costmodel.simulation.interfering import run_interference
from costmodel.simulation.pools import Pools
from costmodel.simulation.simulating import Simulated, run_load
from costmodel.simulation.stepping import Progress

CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({}, {"chunk": 512}),
    ({"grow": True}, {}),
    ({"grow": True}, {"asynchronous": True, "chunk": 1024}),
    ({}, {"model": "gpt-oss-20b"}),
    ({}, {"scheduler": "sarathi"}),
    ({}, {"scheduler": "separate"}),
    ({"pools": Pools(2, 3), "injected_output": 5}, {}),
)


def experiment(changed: dict[str, Any], options: dict[str, Any], **more: Any) -> Simulated:
    asked: dict[str, Any] = {
        "prompt": 4000, "streams": 8, "context": 300, "every": 2.0, "first": 1.0, "duration": 7.0, "prompts": 1, "grow": False,
        "injected_output": 1, "limits": None, "pools": None,
    }  # fmt: skip
    return run_interference(**{**asked, **changed}, options=options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("changed", "options"), CASES)
def test_times_are_those_of_the_gaps_that_are_counted(changed: dict[str, Any], options: dict[str, Any]) -> None:
    found = experiment(changed, options, keep_times=True)
    assert len(found.runs) == 2
    for run in found.runs:
        times = gap_times(run.tallies, run.server.clock)
        assert times.weights.sum() == run.result.gaps
        assert run.result.itl is not None
        assert times.gaps.max() == run.result.itl.max_s
        assert (times.gaps * times.weights).sum() / times.weights.sum() == pytest.approx(run.result.itl.mean_s)
        assert np.all(np.diff(times.ends) >= 0)
        assert times.ends[-1] <= 7.0
        if not changed.get("pools"):  # every gap begins where the one before it ended
            begins = times.ends - times.gaps
            assert begins[1:] == pytest.approx(times.ends[:-1])


def test_fewer_points_of_flat_runs_keep_what_is_beside_prefill() -> None:
    for changed in ({}, {"grow": True}):
        run = experiment(changed, {}, keep_times=True).runs[1]
        every, some = gap_times(run.tallies, run.server.clock), gap_times(run.tallies, run.server.clock, 20)
        assert len(some.ends) < 0.2 * len(every.ends)
        assert set(some.ends.round(6)) <= set(every.ends.round(6))
        high = every.gaps > 1.5 * np.median(every.gaps)
        assert some.gaps[some.gaps > 1.5 * np.median(some.gaps)] == pytest.approx(every.gaps[high])


def test_times_are_only_kept_on_request() -> None:
    for run in experiment({}, {}).runs:
        assert all(not tally.timed and not tally.starts for tally in run.tallies)


def load(**more: Any) -> Simulated:
    return run_load(None, 20.0, 1.0, 200, None, 500, 40, 0.5, 0.0, 0.0, 0, None, more.pop("pools", None), {}, **more)


def test_progress_is_told_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costmodel.simulation.stepping.REPORT_EVERY", 0.0)
    told: list[Progress] = []
    assert load(progress=told.append).document == load().document
    assert told[0] == Progress(0.0, 0, 0)
    assert all(a.time <= b.time and a.sent <= b.sent and a.ended <= b.ended <= b.sent for a, b in pairwise(told))
    assert told[-1].sent == 200


@pytest.mark.parametrize("pools", [None, Pools(2, 2)])
def test_what_progress_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch, pools: Pools | None) -> None:
    monkeypatch.setattr("costmodel.simulation.stepping.REPORT_EVERY", 0.0)

    def stop(progress: Progress) -> None:
        if progress.time > 3:
            raise KeyboardInterrupt

    found = load(progress=stop, pools=pools).document
    assert found.interrupted
    assert found.result is not None
    assert 0 < found.result.requests.sent < 200
    assert found.result.requests.done + found.result.requests.unfinished == found.result.requests.sent


def test_pools_keep_every_request_and_its_own_halves() -> None:
    found = load(pools=Pools(3, 2, bandwidth=1e9))
    served = found.runs[0].served
    assert [item.request.arrival for item in served] == sorted(item.request.arrival for item in served)
    assert len(served) == 200
    for item in served:
        assert item.tokens == item.request.output
        assert item.request.arrival <= item.scheduled < item.first < item.last
