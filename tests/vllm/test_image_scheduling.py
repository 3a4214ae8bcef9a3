"""Requests with images in vLLM's scheduler and in the simulator's: the same tokens and the same images in every step.

Workloads are drawn anew each time: limits of one to eight images, images that are divided over steps or not, preemption after which images
are encoded again or found, both policies, synchronous and asynchronous. The seed is in the message of a failure.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.processes import LIMIT

pytestmark = pytest.mark.vllm

WORKLOADS = 150


def test_the_scheduler_decides_the_same(environment: dict[str, str]) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.image_scheduling_check", str(WORKLOADS), str(seed)],
        env=environment, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["faults"], "\n".join(found["faults"][:5])
    for event in ("images", "again", "preemptions", "cut"):
        assert found["happened"][event] > 0, f"{event}: seed {seed}"
