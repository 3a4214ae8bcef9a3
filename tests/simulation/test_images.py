"""Simulations with images: the closed form of ``predict`` in every configuration, loads, and what cannot be."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from costmodel import Limits, Pools, Speculation, details, predict, simulate_interference, simulate_load
from costmodel.hardware.errors import InputError
from costmodel.simulation.results import Percentiles, Result
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


def load(**asked: Any) -> Result:
    """Return the result of a load."""
    found = simulate_load(**asked).result
    assert found is not None
    return found


def latency(result: Result, name: str) -> Percentiles:
    """Return the percentiles of a latency."""
    found: Percentiles | None = getattr(result, name)
    assert found is not None
    return found


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
        began, ended = (
            found.spikes[0].time_s,
            max(spike.time_s + spike.duration_s for spike in found.spikes[: asked["prompts"]]),
        )
        assert ended - began == pytest.approx(predicted.duration_s, rel=1e-9)


# --- loads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [GEMMA, "Qwen3.5-27B", "Llama 3.2 Vision"])
@pytest.mark.parametrize("chunk", [300, 2048])
def test_a_load_that_jumps_is_that_of_plain_stepping(model: str, chunk: int, folders: dict[str, str]) -> None:
    """Under the policy ``priority`` of equal priorities no step is left out."""
    asked: dict[str, Any] = {
        "model": folders.get(model, model), "rate": 8.0, "requests": 60, "prompt": 500, "output": 80, "spread": 0.5, "images": 3,
        "chunk": chunk, "max_num_seqs": 100,
    }  # fmt: skip
    found, plain = (load(**asked, policy=policy) for policy in ("fcfs", "priority"))
    assert (found.steps, found.gaps) == (plain.steps, plain.gaps)
    for name in ("ttft", "itl", "tpot", "e2e"):
        here, there = latency(found, name), latency(plain, name)
        assert here.mean_s == pytest.approx(there.mean_s, rel=1e-9)
        assert here.max_s == pytest.approx(there.max_s, rel=1e-9)


def test_every_request_has_the_images_before_its_text() -> None:
    """Three images of Gemma 3 are 780 tokens; the lengths of the texts are those without images."""
    asked: dict[str, Any] = {"model": GEMMA, "requests": 20, "prompt": 300, "output": 5, "spread": 0.5, "rate": 4.0}
    plain, seen = details(simulate_load, **asked), details(simulate_load, **asked, images=3, image_size=(500, 400))
    assert [row.prompt_tokens for row in seen.requests] == [row.prompt_tokens + 780 for row in plain.requests]
    work = {"images": 3, "image_width": 500, "image_height": 400, "image_tokens": 780, "prompt_tokens": 1080}
    assert seen.document.workload == {**plain.document.workload, **work}


def test_one_request_alone_waits_for_its_images() -> None:
    """The first token comes later by the encoding, whoever sends the request."""
    asked: dict[str, Any] = {"model": GEMMA, "requests": 1, "output": 2}
    more = predict(300, model=GEMMA, images=2).best.prefill_encoder_s
    for who in ({"clients": 1}, {"rate": 1.0}):
        plain, seen = (
            latency(load(**asked, **who, **prompt), "ttft")
            for prompt in ({"prompt": 820}, {"prompt": 300, "images": 2})
        )
        assert seen.max_s - plain.max_s == pytest.approx(more, rel=1e-9)


def test_pools_encode_where_they_prefill() -> None:
    asked: dict[str, Any] = {"model": GEMMA, "rate": 2.0, "requests": 10, "prompt": 300, "output": 50, "images": 2}
    together, apart = load(**asked), load(**asked, pools=Pools(1, 1))
    assert latency(apart, "ttft").mean_s == pytest.approx(latency(together, "ttft").mean_s, rel=0.1)
    assert latency(apart, "itl").max_s < latency(together, "itl").max_s


def test_speculation_has_images_too() -> None:
    asked: dict[str, Any] = {"model": GEMMA, "prompt": 300, "images": 2, "first": 0.2, "duration": 0.5, "context": 300}
    drafts = Speculation("ngram", tokens=3, acceptance=0.5)
    plain, seen = (
        simulate_interference(**{**asked, "images": images, "prompt": 820 - 260 * images}, speculation=drafts)
        for images in (0, 2)
    )
    more = predict(300, model=GEMMA, images=2).best.prefill_encoder_s
    assert seen.spikes[0].height_s - plain.spikes[0].height_s == pytest.approx(more, rel=1e-9)


def test_whole_prompts_have_all_their_images_encoded() -> None:
    """Schedulers that prefill whole prompts have no vLLM's limit: 12 images of 256 features beside a budget of 2,048 tokens."""
    asked: dict[str, Any] = {
        "model": GEMMA,
        "prompt": 100,
        "images": 12,
        "chunk": 2048,
        "first": 0.1,
        "duration": 0.5,
    }
    steps = {
        scheduler: simulate_interference(**asked, scheduler=scheduler).spikes[0].steps
        for scheduler in ("vllm", "sarathi", "prefill-first", "separate")
    }
    assert steps == {"vllm": 2, "sarathi": 2, "prefill-first": 1, "separate": 1}


def test_without_images_nothing_is_said_of_them() -> None:
    plain = simulate_interference(model=GEMMA, duration=6.0)
    assert plain == simulate_interference(model=GEMMA, duration=6.0, images=0)
    assert "images" not in plain.workload


def test_a_small_budget_is_noted() -> None:
    found = simulate_interference(model=GEMMA, prompt=100, images=4, chunk=512, duration=6.0)
    assert any("vLLM encodes at most 512 features per step" in note for note in found.notes)
    found = simulate_interference(model=GEMMA, prompt=100, images=4, chunk=200, duration=6.0)
    assert any("vLLM does not start with 200 tokens per step" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"images": 1}, "Llama-3.1-8B takes no images here: it has no vision tower"),
        ({"image_size": "10x10"}, "image-size needs images"),
        ({"model": GEMMA, "images": -1}, "images must be at least 0"),
        ({"model": GEMMA, "images": 1, "image_size": "big"}, "image-size must be WIDTHxHEIGHT"),
        ({"images": 1, "decode_s": 0.01, "prefill_s": 0.1}, "fixed step times say nothing of images"),
        ({"model": "Llama 3.2 Vision", "images": 1, "pools": Pools()}, "keys and values are not sent between pools"),
        ({"model": "Whisper", "images": 1}, "only `costmodel predict`"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], said: str, folders: dict[str, str]) -> None:
    if "model" in options:
        options = {**options, "model": folders.get(options["model"], options["model"])}
    for simulate in (lambda: simulate_load(rate=1.0, **options), lambda: simulate_interference(**options)):
        with pytest.raises(InputError, match=said):
            simulate()


def test_goodput_and_limits_count_images() -> None:
    asked: dict[str, Any] = {
        "model": GEMMA,
        "rate": 2.0,
        "requests": 20,
        "prompt": 300,
        "output": 5,
        "limits": Limits(ttft=0.04),
    }
    plain, seen = load(**asked).goodput, load(**asked, images=4).goodput
    assert plain is not None
    assert seen is not None
    assert plain.share > seen.share
