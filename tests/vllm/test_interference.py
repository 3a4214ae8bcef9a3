"""The long-prompt experiment within one engine, beside what ``predict`` and ``simulate_interference`` say of it from a fit.

Streams decode in lockstep, so a step is a gap of every stream. One thread computes everything: a gap is the CPU time of the process, which
other processes on the machine hardly disturb, and of many injections the median counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import costmodel
from tests.vllm.conftest import Followed
from tests.vllm.interference_check import INJECTIONS, PROMPT, STREAMS
from tests.vllm.processes import run_script

pytestmark = pytest.mark.vllm

WHOLE, SMALL = 2048, 256
"""Token budgets: the whole prompt in one step, and in five."""
LIMIT = 0.20
"""Of the error of a prediction."""


@dataclass(frozen=True)
class Experiment:
    """What one engine did.

    Attributes:
        budget: tokens of a step.
        before: seconds of the steps before the first injection.
        after: of every injection, (chunks, seconds) of the steps from it to the next one.
        context: of the streams, in the mean.
    """

    budget: int
    before: tuple[float, ...]
    after: tuple[tuple[tuple[Any, float], ...], ...]
    context: int

    @property
    def decode(self) -> float:
        """Median of the steps without a prompt."""
        return statistics.median(seconds for run in self.after for chunks, seconds in run if not chunks)

    @property
    def height(self) -> float:
        """Median over injections of the longest gap."""
        return statistics.median(max(seconds for _, seconds in run) for run in self.after)

    @property
    def stalls(self) -> list[int]:
        """Gaps after each injection that are longer than three median ones, as ``simulate`` counts them."""
        middle = statistics.median([*self.before, *(seconds for run in self.after for _, seconds in run)])
        return [sum(seconds > 3 * middle for _, seconds in run) for run in self.after]


def experiment(budget: int, model: Path, environment: dict[str, str], out: Path) -> Experiment:
    run_script("tests.vllm.interference_check", environment, model, budget, out)
    content = json.loads(out.read_text())
    steps, injected = content["steps"], content["injected"]
    assert all(len(step["decodes"]) == STREAMS for step in steps)
    return Experiment(
        budget,
        tuple(step["cpu_seconds"] for step in steps[: injected[0]]),
        tuple(
            tuple((step["chunks"], step["cpu_seconds"]) for step in steps[begin:end])
            for begin, end in zip(injected, [*injected[1:], len(steps)], strict=True)
        ),
        round(statistics.mean(statistics.mean(step["decodes"]) for step in steps)),
    )


@pytest.fixture(scope="module")
def whole(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return experiment(WHOLE, tiny_model, environment, tmp_path_factory.mktemp("whole") / "found.json")


@pytest.fixture(scope="module")
def small(tiny_model: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return experiment(SMALL, tiny_model, environment, tmp_path_factory.mktemp("small") / "found.json")


def server(followed: Followed, of: Experiment) -> dict[str, Any]:
    """Return the same experiment, as a user describes it."""
    return {
        "prompt": PROMPT,
        "streams": STREAMS,
        "context": of.context,
        "chunk": of.budget,
        "model": str(followed.folder / "examples" / "tiny-llama"),
        "dtype": "fp32",
        "gpu": str(followed.folder / "cpu.toml"),
        "calibration": str(followed.folder / "mine.toml"),
    }


def near(predicted: float, measured: float) -> bool:
    print(f"predicted {predicted * 1e3:.2f} ms, measured {measured * 1e3:.2f} ms: {predicted / measured - 1:+.1%}")
    return abs(predicted / measured - 1) <= LIMIT


def chunks_of(run: Sequence[tuple[Any, float]]) -> list[Any]:
    return [chunks for chunks, _ in run if chunks]


def test_the_prompt_goes_through_in_one_step(whole: Experiment) -> None:
    assert len(whole.after) == INJECTIONS
    assert all(chunks_of(run) == [[[PROMPT, 0]]] for run in whole.after)


def test_every_injection_makes_one_spike(whole: Experiment) -> None:
    assert statistics.median(whole.stalls) == 1
    assert whole.stalls.count(1) >= 0.9 * INJECTIONS, whole.stalls
    for run in whole.after:
        longest = max(run, key=lambda step: step[1])
        assert longest[0], "the longest gap is that of the step with the prompt"


def test_spike_and_decode_step_are_predicted(followed: Followed, whole: Experiment) -> None:
    predicted = costmodel.predict(**server(followed, whole))
    assert predicted.headline == "calibrated"
    assert predicted.rungs.calibrated is not None
    assert predicted.spike.chunks == 1
    assert near(predicted.spike.height_s, whole.height)
    assert near(predicted.rungs.calibrated.decode_step_s, whole.decode)


def test_a_small_budget_makes_lower_and_more_stalls_as_simulated(
    followed: Followed, whole: Experiment, small: Experiment
) -> None:
    room = SMALL - STREAMS
    parts = [[[min(room, PROMPT - begin), begin]] for begin in range(0, PROMPT, room)]
    assert all(chunks_of(run) == parts for run in small.after)
    found = {}
    for of in (whole, small):
        simulated = costmodel.simulate_interference(**server(followed, of), every=0.5, first=0.25, duration=5.0)
        assert simulated.injected is not None
        found[of.budget] = simulated.injected.stalls / STREAMS / len(simulated.spikes)
        assert found[of.budget] == statistics.median(of.stalls), of.stalls
        assert near(statistics.median(spike.height_s for spike in simulated.spikes), of.height)
    assert found[SMALL] > found[WHOLE] == 1
    assert small.height < 0.6 * whole.height
