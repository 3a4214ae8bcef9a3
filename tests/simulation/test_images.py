"""Simulations with images: the closed form of ``predict`` in every configuration, loads, and what cannot be."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from costmodel import Limits, Pools, Speculation, details, predict, simulate_interference, simulate_load
from costmodel.hardware.errors import InputError
from tests.architecture.vision_configs import LLAMA32_VISION, LLAVA, QWEN25_VL, WHISPER

GEMMA = "gemma-3-4b-it"
PRESETS = (GEMMA, "gemma-4-26B-A4B", "Qwen3-VL-8B-Instruct", "Qwen3.5-27B", "Mistral-Small-3.1-24B-2503")
CONFIGS = {"Qwen2.5-VL": QWEN25_VL, "LLaVA": LLAVA, "Llama 3.2 Vision": LLAMA32_VISION}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folder of each configuration by the name of its model."""
    made = {}
    for name, config in {**CONFIGS, "Whisper": WHISPER}.items():
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        made[name] = str(folder)
    return made


@pytest.mark.parametrize("model", [*PRESETS, *CONFIGS])
@pytest.mark.parametrize("seed", range(6))
def test_simulation_and_prediction_agree(model: str, seed: int, folders: dict[str, str]) -> None:
    draw = random.Random(f"{model} {seed}")
    side = draw.choice([100, 224, 336, 640, 1024])
    asked: dict[str, Any] = {
        "model": folders.get(model, model),
        "gpu": draw.choice(["h100", "b200"]),
        "tp": draw.choice([1, 2]),
        "prompt": draw.randint(2, 700),
        "prompts": draw.choice([1, 1, 2, 3]),
        "images": draw.randint(1, 5),
        "image_size": (side, draw.choice([side, 400])),
        "streams": draw.randint(1, 40),
        "context": draw.randint(1, 1000),
    }
    if seed:
        asked["chunk"] = asked["streams"] + draw.choice([97, 300, 512, 513, 1024, 2048])
    if seed == 5:
        asked["cached_prefix"] = draw.randint(0, 400)
        asked["prompt"] += 400
    predicted = predict(**asked, every=60.0).spike
    found = simulate_interference(**asked, every=60.0, duration=100.0)
    assert found.injected is not None
    assert found.injected.itl is not None
    assert found.injected.itl.max_s == pytest.approx(predicted.height_s, rel=1e-9)
    assert len(found.spikes) == 2 * asked["prompts"]
    if asked["prompts"] == 1:
        assert [spike.steps for spike in found.spikes] == [predicted.chunks] * 2
        assert [spike.height_s for spike in found.spikes] == pytest.approx([predicted.height_s] * 2, rel=1e-9)
        assert [spike.duration_s for spike in found.spikes] == pytest.approx([predicted.duration_s] * 2, rel=1e-9)
    else:
        began, ended = found.spikes[0].time_s, max(spike.time_s + spike.duration_s for spike in found.spikes[: asked["prompts"]])
        assert ended - began == pytest.approx(predicted.duration_s, rel=1e-9)
