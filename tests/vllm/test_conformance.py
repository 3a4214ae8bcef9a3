"""vLLM's scheduler and the simulator's, on workloads that nobody has seen: every step of both holds the same.

Workloads are drawn anew each time, of all families (chunks, thresholds, shared prefixes, preemption, priorities, short budgets and memory,
each synchronous and asynchronous); the seed is in the message of a failure. The recordings of tests/simulation are of one seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from costmodel.validation.backends.recordings import Recording, read
from costmodel.validation.backends.scheduler_workloads import FAMILIES
from costmodel.validation.backends.summaries import count
from tests.simulation.replaying import differences
from tests.vllm.processes import run_script

pytestmark = pytest.mark.vllm

WORKLOADS = 20 * len(FAMILIES)
SCHEDULER = "costmodel.validation.backends.vllm_scheduler"


def faults(recordings: Sequence[Recording]) -> list[str]:
    """Return what differs first, of every recording that differs."""
    found = ((index, each, next(differences(each), None)) for index, each in enumerate(recordings))
    return [f"workload {index} ({each.covers}): {first}" for index, each, first in found if first]


def happened(recordings: Sequence[Recording]) -> Counter[str]:
    return sum((count(each) for each in recordings), Counter())


def test_the_scheduler_decides_the_same(environment: dict[str, str], tmp_path: Path) -> None:
    """vLLM's engine loop and scheduler, on an executor that computes nothing."""
    seed = random.SystemRandom().randrange(1 << 32)
    run_script(SCHEDULER, environment, "--count", WORKLOADS, "--seed", seed, "--output", tmp_path)
    [path] = tmp_path.iterdir()
    recordings = list(read(path))
    again = f"python -m {SCHEDULER} --count {WORKLOADS} --seed {seed} --output FOLDER"
    assert not (found := faults(recordings)), f"{len(found)} differ; {again}\n" + "\n".join(found[:5])
    kinds = {(each.covers, each.settings.async_scheduling) for each in recordings}
    assert kinds == {(family.__name__, later) for family in FAMILIES for later in (False, True)}
    for event in ("partial", "hits", "same step hits", "preemptions", "several at once", "resumed on hits"):
        assert happened(recordings)[event] > 0, f"{event}: {again}"


def test_an_engine_that_computes_runs_the_same_steps(
    tiny_model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """The whole engine with a model, a budget of 64 tokens and a KV cache of three requests: chunks and preemptions."""
    seed = random.SystemRandom().randrange(1 << 32)
    run_script("tests.vllm.conformance_check", environment, tiny_model, seed, tmp_path / "found.gz")
    recordings = list(read(tmp_path / "found.gz"))
    assert {each.settings.token_budget for each in recordings} == {64}
    assert not (found := faults(recordings)), "\n".join([f"seed {seed}", *found[:5]])
    for event in ("partial", "hits", "preemptions"):
        assert happened(recordings)[event] > 0, f"{event}: seed {seed}"
