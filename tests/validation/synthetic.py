"""Measurements that nobody made: steps of a known calibration, with noise, so that a fit can be held against the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters
from costmodel.deployment import Deployment, deploy_architecture
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_times
from costmodel.hardware.calibration import Calibration
from costmodel.validation.fitting.step_model import form_of, step_work
from costmodel.validation.measurements.types import Engine, Machine, Measurement, Model, Purpose, Step

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8000,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
TRUTH: Mapping[str, Mapping[str, float]] = {
    "gemm": {"compute_efficiency": 0.62, "bandwidth_efficiency": 0.35},
    "prefill_attention": {"compute_efficiency": 0.3},
    "decode_attention": {"bandwidth_efficiency": 0.55},
    "overhead.graph": {"per_step_s": 1.2e-3, "per_sequence_s": 8e-5},
    "overhead.eager": {"per_step_s": 2.8e-3, "per_sequence_s": 8e-5},
    "elementwise": {"passes": 0.0},
}
"""A calibration like that of a CPU, by operator and parameter."""

PROFILE = """
schema = "costmodel.gpu/1"
name = "test machine"
vendor = "other"
architecture = "cpu"
memory_bandwidth = {{ value = {bandwidth}, source = "probe" }}
memory_nominal = {{ value = 16e9, source = "probe" }}
memory_visible = {{ value = 16e9, source = "probe" }}
[peak_flops]
fp32 = {{ value = {peak}, source = "probe" }}
[link]
kind = "none"
bandwidth_per_direction = {{ value = 1e9, source = "probe" }}
gpus_per_node = {{ value = 1, source = "probe" }}
[sources]
probe = {{ title = "made up for a test", url = "https://example.org/" }}
"""


def write_profile(path: Path, peak: float = 250e9, bandwidth: float = 40e9) -> Path:
    """Write the profile of the machine."""
    path.write_text(PROFILE.format(peak=peak, bandwidth=bandwidth))
    return path


def calibration(truth: Mapping[str, Mapping[str, float]] = TRUTH) -> Calibration:
    """Return the calibration that steps are made with."""
    return Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": "the truth",
            "gpu": "test machine",
            "engine": "vllm",
            "provenance": {"data": "made up", "rows": 1, "date": "2026-01-01", "command": "made up"},
            "operators": {
                operator: {
                    "form": form_of(operator),
                    "parameters": {name: {"value": value} for name, value in values.items()},
                }
                for operator, values in truth.items()
            },
        }
    )


@dataclass(frozen=True)
class Kind:
    """A step to be measured."""

    chunks: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    purpose: Purpose
    held_out: bool = False


def plan(longest: int = 4096) -> Iterator[Kind]:
    """Yield whole prefills and pure decodes, and to be held out: other lengths, chunks on context, prompts beside decodes."""
    length = 16
    while length <= longest:
        yield Kind(((length, 0),), (), "prefill")
        yield Kind(((length * 3 // 2, 0),), (), "prefill", held_out=True)
        length *= 2
    for batch in (1, 2, 4, 8, 16, 32):
        for context in (32, 256, 1024, 2048):
            yield Kind((), (context,) * batch, "decode", held_out=batch == 4)
    yield Kind(((256, 1024),), (), "chunk", held_out=True)
    yield Kind(((1024, 2048),), (), "chunk", held_out=True)
    for batch, context, new in ((8, 256, 512), (8, 1024, 2048), (16, 512, 1024), (32, 256, 512), (16, 128, 128)):
        yield Kind(((new, 0),), (context,) * batch, "mixed", held_out=True)


def measure(
    profile: Path | str,
    truth: Mapping[str, Mapping[str, float]] = TRUTH,
    config: Mapping[str, Any] = LLAMA,
    noise: float = 0.0,
    kinds: Sequence[Kind] | None = None,
    dtype: str = "fp32",
    seed: int = 0,
) -> Measurement:
    """Return the measurement of a machine that takes exactly the times of a calibration, times a normal factor."""
    model = Model(name="tiny", config=dict(config), dtype=dtype, random_weights=True)
    deployment: Deployment = deploy_architecture(
        architecture_from_config(model.config, "tiny"), str(profile), dtype=dtype
    )
    parameters = build_parameters(deployment, CalibratedRates(calibration(truth)))
    chance = np.random.default_rng(seed)
    steps = []
    for kind in plan() if kinds is None else kinds:
        bare = Step(chunks=kind.chunks, decodes=kind.decodes, seconds=1.0, purpose=kind.purpose, held_out=kind.held_out)
        seconds = float(step_times(parameters, step_work(bare, parameters.windows)).total)
        seconds *= float(np.exp(noise * chance.standard_normal()))
        steps.append(bare.model_copy(update={"seconds": seconds, "repeats": 3, "spread": noise * seconds / 2}))
    return Measurement(
        source="in-process",
        engine=Engine(name="vllm", version="0.32.0"),
        machine=Machine(profile=None, device="a machine that there is not", threads=1),
        model=model,
        date="2026-11-29T12:00:00+00:00",
        command="made up",
        steps=tuple(steps),
    )


def write(measurement: Measurement, path: Path) -> Path:
    """Write a measurement as its document."""
    path.write_text(json.dumps(measurement.model_dump(by_alias=True, mode="json")))
    return path
