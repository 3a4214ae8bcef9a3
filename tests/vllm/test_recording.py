"""The recorder against steps whose composition is known, and against vLLM's own counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.recording_check import POINTS

pytestmark = pytest.mark.vllm


def test_what_is_recorded_is_what_was_asked_for(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("recording_check.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_model), str(tmp_path / "found.json")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["scheduler"] == "Scheduler"
    for point, samples in zip(POINTS, content["found"], strict=True):
        assert len(samples) == 4
        contexts = []
        for sample in samples:
            assert sample["chunks"] == ([list(point.chunk)] if point.chunk else [])
            assert len(sample["decodes"]) == point.decodes
            assert len(set(sample["decodes"])) <= 1
            contexts += sample["decodes"][:1]
            assert 0 < sample["seconds"] < 10
        assert contexts == ([point.context + 1 + repeat for repeat in range(4)] if point.decodes else [])
    assert content["counters"]["vllm:generation_tokens"] == content["tokens"]["answers"]
    computed = content["counters"]["vllm:prompt_tokens"] - content["counters"].get("vllm:prefix_cache_hits", 0)
    assert computed == content["tokens"]["prompts"]
