"""torch alone: the decoder's arithmetic, its measurement, and the profile of a probe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.architecture.source import load_model
from costmodel.hardware.profile import read_profile
from costmodel.validation.measurements.files import read_measurement

pytestmark = pytest.mark.vllm

PROGRAM = "from costmodel.cli.entry import main; main()"


def command(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_chunk_and_a_decode_go_on_where_a_prompt_ended(tiny_model: Path) -> None:
    import torch

    from costmodel.validation.backends.torch_llama import Llama, shape_of

    shape = shape_of(load_model(str(tiny_model))[0])
    with torch.inference_mode():
        model = Llama(shape, "cpu", torch.float64, 0)
        tokens = torch.arange(40) % shape.vocabulary
        whole = model.step(tokens, model.cache(1, 40), None, (40, 0), 0)
        cache = model.cache(1, 40)
        model.step(tokens[:32], cache, None, (32, 0), 0)
        chunk = model.step(tokens[32:], cache, None, (8, 32), 0)
        decode = model.step(tokens[39:], None, cache, (0, 0), 39)
        both = model.step(torch.cat((tokens, tokens[39:])), model.cache(1, 40), cache, (40, 0), 39)
    assert whole.tolist() == chunk.tolist() == decode.tolist()
    assert both.tolist() == whole.tolist() * 2


def test_the_same_plan_runs_on_torch(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    words = "--backend torch --dtype fp32 --max-num-batched-tokens 512 --max-model-len 1024 --minutes 0.2 --out t.jsonl --json"
    done = command(["measure", "--random-weights", str(tiny_model), *words.split()], environment, tmp_path)
    assert done.returncode == 0, done.stderr
    found = read_measurement(tmp_path / "t.jsonl")
    assert json.loads(done.stdout)["steps"] == found.model_dump(mode="json")["steps"]
    assert (found.source, found.engine.name, found.clock, found.machine.threads) == ("probe", "torch", "cpu", 1)
    assert {"decode", "prefill", "chunk"} <= {step.purpose for step in found.steps}
    prefills = sorted((step for step in found.steps if step.purpose == "prefill"), key=lambda step: step.tokens)
    assert prefills[-1].seconds > 1.3 * prefills[0].seconds  # a busy machine gets no further than 64 tokens


def test_other_shapes_and_formats_are_refused(environment: dict[str, str], tmp_path: Path) -> None:
    mixture = command(["measure", "--backend", "torch", "--random-weights", "gpt-oss-20b"], environment, tmp_path)
    assert mixture.returncode == 2
    assert "shaped like a Llama" in mixture.stderr
    large = command(
        ["measure", "--backend", "torch", "--random-weights", "Llama-3.1-70B", "--dtype", "fp32"], environment, tmp_path
    )
    assert large.returncode == 2
    assert "GiB of weights" in large.stderr


def test_a_probe_makes_a_profile_that_predicts(tiny_model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    done = command(["gpus", "probe", "--device", "cpu", "--seconds", "4", "-o", "cpu.toml"], environment, tmp_path)
    assert done.returncode == 0, done.stderr
    profile = read_profile(tmp_path / "cpu.toml")
    assert 1e9 < profile.memory_bandwidth.value < 1e12
    assert 1e9 < profile.peak_flops["fp32"].value < 1e14
    words = [
        "predict",
        "--model",
        str(tiny_model),
        "--dtype",
        "fp32",
        "--gpu",
        "cpu.toml",
        "--prompt",
        "1000",
        "--json",
    ]
    predicted = command(words, environment, tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["rungs"]["roofline"]["prefill_s"] > 0
