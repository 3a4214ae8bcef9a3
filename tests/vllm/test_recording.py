"""The recorder against steps whose composition is known, and against vLLM's own counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.async_check import STEP_SECONDS
from tests.vllm.recording_check import POINTS

pytestmark = pytest.mark.vllm


def result(script: str, environment: dict[str, str], folder: Path, out: Path) -> dict[str, Any]:
    """Run a script in a process of its own and return what it writes."""
    checkout = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.vllm.{script}", str(folder), str(out)],
        env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=checkout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def check(found: list[list[dict[str, Any]]]) -> None:
    """Check that samples are of the points."""
    for point, samples in zip(POINTS, found, strict=True):
        assert len(samples) == 4
        contexts = []
        for sample in samples:
            assert sample["chunks"] == ([list(point.chunk)] if point.chunk else [])
            assert len(sample["decodes"]) == point.decodes
            assert len(set(sample["decodes"])) <= 1
            contexts += sample["decodes"][:1]
            assert 0 < sample["seconds"] < 10
        assert contexts == sorted(set(contexts))
        if point.decodes:
            assert point.context < contexts[0]
            assert contexts[-1] <= point.context + 12


def test_what_is_recorded_is_what_was_asked_for(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    content = result("recording_check", environment, tiny_model, tmp_path / "found.json")
    assert content["scheduler"] == "Scheduler"
    check(content["found"])
    for point, samples in zip(POINTS, content["found"], strict=True):
        if point.decodes:  # nothing runs between the repeats
            assert [sample["decodes"][0] for sample in samples] == [point.context + 1 + each for each in range(4)]
    assert content["counters"]["vllm:generation_tokens"] == content["tokens"]["answers"]
    computed = content["counters"]["vllm:prompt_tokens"] - content["counters"]["vllm:prefix_cache_hits"]
    assert computed == content["tokens"]["prompts"]


def test_the_same_with_asynchronous_scheduling(environment: dict[str, str], tmp_path: Path) -> None:
    content = result("async_check", environment, tmp_path, tmp_path / "found.json")
    assert (content["scheduler"], content["queue"]) == ("AsyncScheduler", True)
    check(content["found"])
    for samples in content["found"]:
        assert all(sample["seconds"] >= STEP_SECONDS for sample in samples)
