"""What a flock reads of compressed keys, and that both engines agree on a model that has them."""

import random
from dataclasses import replace

import pytest

from costmodel.equations.compressed import Compressed
from costmodel.equations.work import seen_tokens
from costmodel.simulation.entries import Entries
from tests.simulation.pairs import clock_of, compare, crowded_workload, random_workload


@pytest.mark.parametrize("seed", range(60))
def test_sums_of_a_flock_that_comes_and_goes(seed):
    rng = random.Random(seed)
    reach = Compressed(rng.choice([2, 4, 7, 128]), rng.choice([0, 3, 16, 128]), rng.choice([0, 0, 3, 10]))
    entries, bases, count = Entries(reach), [], 0
    for _ in range(100):
        chance = rng.random()
        if chance < 0.3 or not bases:
            bases.append(rng.randrange(400) - count)
            entries.join(bases[-1] + count, count)
        elif chance < 0.45:
            entries.leave(bases.pop(rng.randrange(len(bases))) + count, count)
        else:
            steps = rng.randint(1, max(min(entries.steps_left(count), 50), 1))
            for step in range(steps):
                read = sum(seen_tokens(base + count + step, reach) for base in bases)
                assert read == entries.read + entries.growing * step
            count += steps
            entries.advance(steps, count)
        assert entries.read == sum(seen_tokens(base + count, reach) for base in bases)
        assert entries.steps_left(count) >= 1


@pytest.mark.parametrize("seed", range(12))
def test_jumping_and_stepping_are_alike(seed):
    made = (crowded_workload if seed % 2 else random_workload)(seed)
    compare(replace(made, clock=clock_of(("deepseek-v4", "b200", False))))
