"""Random loads for `costmodel plan`: does each answer hold, and the next one not, in the simulator?

`python benchmarks/planning.py` draws 50 loads for each question whose limit binds, asks, and checks the answers with the simulator on its
own; `--count 5 --seed 3` for others. Exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import costmodel
from costmodel.planning.documents import FleetRun
from costmodel.planning.fleets import run_replicas
from costmodel.planning.traffic import make_traffic, slo_of
from costmodel.simulation.options import ServerOptions

PLACES: tuple[dict[str, Any], ...] = (
    {"model": "Llama-3.1-8B", "gpu": "h100"},
    {"model": "Llama-3.1-8B", "gpu": "rtx-4090", "dtype": "fp8"},
    {"model": "Qwen3-32B", "gpu": "h200"},
    {"model": "Qwen3-32B", "gpu": "h100", "tp": 2},
    {"model": "gpt-oss-20b", "gpu": "h100"},
    {"model": "Qwen3-30B-A3B", "gpu": "b200"},
    {"model": "gemma-2-9b-it", "gpu": "a100"},
    {"model": "Llama-3.1-8B", "gpu": "l40s", "rung": "roofline"},
)
"""Dense and mixtures, windows, TP, several generations, both rungs."""


ENDLESS = 10**10
"""Tokens of a KV cache that is not what binds."""


@dataclass(frozen=True)
class Trial:
    """One load: what was asked, what was advised, and whether the simulator agrees on both sides.

    Attributes:
        asked: arguments.
        advised: the answer.
        at, after: what is limited, at the answer and beyond it, as simulated.
        limit: on it.
        margin: share of the limit by which both may be off where other requests are simulated than the answer rests on.
    """

    asked: dict[str, Any]
    advised: int
    at: float
    after: float
    limit: float
    margin: float = 0.0

    @property
    def good(self) -> bool:
        """The limit holds at the answer, and not beyond it."""
        return self.at <= self.limit * (1 + self.margin) and self.after > self.limit * (1 - self.margin)

    @property
    def exact(self) -> bool:
        """The same, to the last digit."""
        return self.at <= self.limit < self.after


def chunk_trials(count: int, seed: int = 0) -> Iterator[Trial]:
    """Yield loads where the limit on the gaps binds, with the longest gap that is simulated at the answer and at the next multiple."""
    draw = random.Random(seed)
    while count:
        place = draw.choice(PLACES)
        asked = {
            "prompt": round(10 ** draw.uniform(3, 4.6)), "streams": round(2 ** draw.uniform(0, 7)),
            "context": round(10 ** draw.uniform(2, 3.7)), "every": round(draw.uniform(5, 60), 2), "prompts": draw.choice((1, 1, 1, 2)),
        }  # fmt: skip
        limit = round(10 ** draw.uniform(-2, -0.3), 4)
        plan = costmodel.plan_chunk(**asked, itl=limit, confirm=False, **place)
        if not plan.feasible or plan.binding != "itl" or plan.advice is None or plan.after is None:
            continue
        budget = plan.advice.max_num_batched_tokens
        assert budget is not None
        at, after = (_longest_gap(asked, place, each) for each in (budget, plan.after.value))
        yield Trial({**place, **asked, "itl": limit}, budget, at, after, limit)
        count -= 1


def _longest_gap(asked: dict[str, Any], place: dict[str, Any], chunk: int) -> float:
    every = asked["every"]
    found = costmodel.simulate_interference(**asked, **place, chunk=chunk, first=every / 3, duration=2.5 * every)
    assert found.injected is not None
    assert found.injected.itl is not None
    return found.injected.itl.max_s


def batch_trials(count: int, seed: int = 0) -> Iterator[Trial]:
    """Yield loads where the limit on the TPOT or on the gaps binds, with what is simulated at the answer and with one sequence more."""
    draw = random.Random(seed)
    while count:
        place, context = draw.choice(PLACES), round(10 ** draw.uniform(2, 4))
        asked: dict[str, Any] = {"context": context}
        limit, name = round(10 ** draw.uniform(-2.1, -1), 4), draw.choice(("tpot", "itl"))
        if name == "itl":
            asked |= {
                "prompt": round(10 ** draw.uniform(2.5, 4)),
                "chunk": draw.choice((512, 1024, 2048)),
                "every": 20.0,
            }
        plan = costmodel.plan_batch(**asked, **{name: limit}, confirm=False, **place)
        if not plan.feasible or plan.binding != name or plan.at is None:
            continue
        at, after = (_felt(asked, place, number, name) for number in (plan.at.value, plan.at.value + 1))
        yield Trial({**place, **asked, name: limit}, plan.at.value, at, after, limit)
        count -= 1


def _felt(asked: dict[str, Any], place: dict[str, Any], streams: int, name: str) -> float:
    load = {**asked, "prompt": asked.get("prompt", 1), "chunk": asked.get("chunk", 8192)}
    every = load.get("every", 4.0)
    found = costmodel.simulate_interference(
        **{**load, "every": every}, **place, streams=streams, first=every / 3, duration=1.2 * every, kv_tokens=ENDLESS
    )
    result = found.baseline if name == "tpot" else found.injected
    assert result is not None
    assert result.itl is not None
    assert result.tpot is not None
    return result.tpot.max_s if name == "tpot" else result.itl.max_s


def replica_trials(count: int, seed: int = 0) -> Iterator[Trial]:
    """Yield loads that take two servers or more, with the worst percentile in units of its limit: with N servers, and with N − 1.

    The answer says so of its own requests. Here both are simulated with others, and twice as many: an answer that rests on too short a run
    shows. A p99 of other requests is another one, hence the margin.
    """
    draw = random.Random(seed)
    while count:
        place = draw.choice(PLACES)
        asked = {
            "rate": round(10 ** draw.uniform(0.3, 1.8), 3), "prompt": round(10 ** draw.uniform(2.3, 3.6)),
            "output": round(10 ** draw.uniform(1.3, 2.6)), "spread": draw.choice((0.0, 0.5)),
        }  # fmt: skip
        limits = {"ttft": round(10 ** draw.uniform(-0.7, 0.5), 3), "tpot": round(10 ** draw.uniform(-2, -1.2), 4)}
        chosen = draw.randrange(1000)
        plan = costmodel.plan_replicas(**asked, **limits, seed=chosen, **place)
        if not plan.feasible or plan.at is None or not plan.before:
            continue
        simulated = plan.workload["requests"]
        assert isinstance(simulated, int)
        made = make_traffic(
            slo_of(99.0, **limits),
            ServerOptions(**place),
            **asked,
            requests=2 * simulated,
            seed=chosen + 1000,
            **OTHERS,
        )
        at, after = (
            _worst(run_replicas(made.traffic, servers), limits) for servers in (plan.at.servers, plan.at.servers - 1)
        )
        if _worst(plan.at, limits) > 1 or _worst(plan.before[0], limits) <= 1:
            at = float("inf")
        yield Trial({**place, **asked, **limits, "seed": chosen}, plan.at.servers, at, after, 1.0, MARGIN)
        count -= 1


MARGIN = 0.1
"""By which percentiles of other requests may differ."""
OTHERS: dict[str, Any] = {
    "trace": None, "burstiness": 1.0, "form": "auto", "limit": None, "speed": 1.0, "balancing": "round-robin",
}  # fmt: skip


def _worst(run: FleetRun, limits: dict[str, float]) -> float:
    if not run.keeps_up or run.ttft_s is None or run.tpot_s is None:
        return float("inf")
    return max(run.ttft_s / limits["ttft"], run.tpot_s / limits["tpot"])


QUESTIONS: dict[str, Callable[[int, int], Iterator[Trial]]] = {
    "chunk": chunk_trials,
    "batch": batch_trials,
    "replicas": replica_trials,
}


def main(arguments: list[str]) -> int:
    """Check the answers of every question, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("questions", nargs="*", default=list(QUESTIONS))
    asked = parser.parse_args(arguments)
    failed = 0
    for name in asked.questions:
        trials = list(QUESTIONS[name](asked.count, asked.seed))
        bad = [trial for trial in trials if not trial.good]
        failed += len(bad)
        print(f"plan {name}: {len(trials) - len(bad)} of {len(trials)} answers hold, and the next ones do not", end="")
        exact = sum(trial.exact for trial in trials)
        print(
            "" if exact == len(trials) - len(bad) else f"; {exact} exactly, the others within {MARGIN:.0%} of a limit"
        )
        for trial in bad:
            print(f"  {trial}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
