"""Plans with images: the closed form is what the simulator finds, and the answer is where a limit stops to hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel import plan_batch, plan_chunk, plan_prompt, predict
from costmodel.hardware.errors import InputError
from costmodel.planning.documents import Checked
from tests.architecture.vision_configs import LLAMA32_VISION
from tests.cli.runner import document, printed, refusal

GEMMA = "gemma-3-4b-it"


def agrees(check: Checked | None, rare: bool = False) -> None:
    """Assert that a simulation found what the closed form says; where prompts are rare, more come in the simulation."""
    assert check is not None
    assert check.simulated_itl_s == pytest.approx(check.itl_s, rel=1e-9)
    assert rare or check.simulated_tpot_s == pytest.approx(check.tpot_s, rel=0.02)
    assert check.simulated_ttft_s is not None
    assert check.ttft_s is not None
    assert 0.9 * check.ttft_s < check.simulated_ttft_s <= check.ttft_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("model", "images", "size", "limit", "prompts"),
    [
        (GEMMA, 3, None, 0.03, 1), (GEMMA, 6, None, 0.05, 2), ("Qwen3-VL-8B-Instruct", 4, "800x600", 0.06, 1),
        ("Mistral-Small-3.1-24B-2503", 2, "640x480", 0.1, 1),
    ],
)  # fmt: skip
def test_a_budget_is_what_the_simulator_finds(
    model: str, images: int, size: str | None, limit: float, prompts: int
) -> None:
    asked: dict[str, Any] = {"model": model, "images": images, "image_size": size}
    found = plan_chunk(1000, 16, itl=limit, prompts=prompts, **asked)
    assert found.feasible
    assert found.advice is not None
    agrees(found.at)
    assert found.at is not None
    assert found.at.itl_s is not None
    assert found.at.itl_s <= limit
    if found.after is not None and found.after.itl_s is not None:
        agrees(found.after)
        assert found.after.itl_s > limit
    predicted = predict(1000, streams=16, prompts=prompts, chunk=found.advice.max_num_batched_tokens, **asked).spike
    assert found.at.itl_s == pytest.approx(predicted.height_s, rel=1e-9)
    assert found.workload["image_tokens"] == found.workload["prompt_tokens"] - 1000  # type: ignore[operator]


def test_images_leave_less_of_the_budget() -> None:
    """Without images, but with as many tokens, a larger budget holds the limit."""
    plain, seen = plan_chunk(1780, itl=0.03, model=GEMMA), plan_chunk(1000, itl=0.03, model=GEMMA, images=3)
    assert plain.advice is not None
    assert seen.advice is not None
    assert plain.advice.max_num_batched_tokens > seen.advice.max_num_batched_tokens  # type: ignore[operator]


def test_a_batch_and_a_prompt_are_what_the_simulator_finds() -> None:
    asked: dict[str, Any] = {"model": GEMMA, "images": 3, "chunk": 1024, "max_num_seqs": 128}
    batch = plan_batch(itl=0.055, prompt=1000, **asked)
    agrees(batch.at)
    prompt = plan_prompt(ttft=0.4, **asked)
    agrees(prompt.at, rare=True)
    assert prompt.binding == "ttft"
    assert prompt.at is not None
    assert prompt.advice is not None
    most = prompt.advice.prompt_tokens
    assert most is not None
    drain = predict(most, model=GEMMA, images=3, chunk=1024)
    assert prompt.at.ttft_s == pytest.approx(
        drain.spike.duration_s + drain.best.decode_step_s + (prompt.at.before_engine_s or 0.0), rel=1e-9
    )
    plain = plan_prompt(ttft=0.4, model=GEMMA, chunk=1024, max_num_seqs=128)
    assert plain.advice is not None
    assert plain.advice.prompt_tokens is not None
    assert most + 780 < plain.advice.prompt_tokens


def test_a_cached_prefix_saves_the_encoding() -> None:
    asked: dict[str, Any] = {"itl": 0.03, "model": GEMMA, "images": 3, "confirm": False}
    cold, warm = plan_chunk(1000, **asked), plan_chunk(1000, **asked, cached_prefix=780)
    known = plan_chunk(1780, itl=0.03, model=GEMMA, cached_prefix=780, confirm=False)
    assert warm.at is not None
    assert known.at is not None
    assert cold.at is not None
    assert warm.at.ttft_s == pytest.approx(known.at.ttft_s, rel=1e-12)
    assert warm.advice == known.advice
    assert cold.at.value < warm.at.value


def test_intervals_hold_the_encoder_too() -> None:
    found = plan_chunk(100, itl=0.1, model=GEMMA, images=3, confirm=False).at
    predicted = predict(100, model=GEMMA, images=3).intervals
    assert found is not None
    assert predicted is not None
    assert found.itl_interval_s == pytest.approx(predicted.spike_s, rel=1e-9)


def test_a_small_budget_of_a_model_that_sees_images_whole_is_warned_of() -> None:
    found = plan_chunk(100, 8, itl=0.022, model=GEMMA, images=1, multiple=16, confirm=False)
    assert found.advice is not None
    assert found.advice.max_num_batched_tokens is not None
    assert found.advice.max_num_batched_tokens < 256
    assert any("vLLM does not start" in warning for warning in found.warnings)


def test_states_of_cross_attention_take_blocks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA32_VISION), encoding="utf-8")
    asked: dict[str, Any] = {"model": str(tmp_path), "prompt": 500, "confirm": False}
    plain, seen = plan_batch(**asked), plan_batch(**asked, images=1)
    assert plain.advice is not None
    assert seen.advice is not None
    assert plain.advice.max_num_seqs > 2 * seen.advice.max_num_seqs  # type: ignore[operator]


@pytest.mark.parametrize(
    "command", ["chunk --itl-ms 40 --prompt 500", "batch --itl-ms 60 --prompt 500", "prompt --itl-ms 60"]
)
def test_the_commands_take_images(command: str) -> None:
    command = f"plan {command} --model {GEMMA} --images 2"
    assert "2 images of 1,024 × 1,024 pixels (520 tokens more)" in " ".join(printed(command).split())
    work = document(f"{command} --json")["workload"]
    assert (work["images"], work["image_tokens"]) == (2, 520)


@pytest.mark.parametrize("command", ["chunk --itl-ms 40", "batch --prompt 500", "prompt --itl-ms 40"])
def test_a_model_without_a_tower_is_refused(command: str) -> None:
    assert "Llama-3.1-8B takes no images here: it has no vision tower" in refusal(f"plan {command} --images 2")


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(InputError, match="fixed step times say nothing of images"):
        plan_chunk(itl=0.05, images=1, decode_s=0.01, prefill_s=0.1)
    with pytest.raises(InputError, match="images are those of a prompt: give --prompt as well"):
        plan_batch(itl=0.05, model=GEMMA, images=1)
