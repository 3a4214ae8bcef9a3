"""What an engine is asked to run: a model, real or with random weights, and the flags it is started with."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.architecture.families import architecture_from_config
from costmodel.architecture.source import ModelFiles, find_model, preset_repository, preset_spellings
from costmodel.dtypes import FROM_TORCH, TORCH_NAMES, main_format
from costmodel.hardware.errors import InputError, unknown_name


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks for; None leaves a flag at the engine's default.

    Attributes:
        model: folder or name of a real model, or the configuration for random weights.
        random_weights: whether the weights are made up.
        dtype: of activations: ``bf16``, ``fp16``, ``fp32``.
        kv_dtype: of the KV cache.
        gpu: profile of the part, by name or file.
        clock: ``wall`` or ``cpu``.
        command: as it was typed.
    """

    model: str
    random_weights: bool = False
    dtype: str | None = None
    kv_dtype: str | None = None
    tensor_parallel: int = 1
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    seed: int = 0
    gpu: str | None = None
    clock: str | None = None
    command: str = ""


def short_dtype(name: str | None) -> str | None:
    """Return costmodel's name of a dtype that may be torch's.

    Raises:
        InputError: it is neither.
    """
    if name is None or name == "auto":
        return None
    found = FROM_TORCH.get(name.removeprefix("torch."), name)
    if found not in TORCH_NAMES:
        raise unknown_name("dtype", name, (*TORCH_NAMES, *FROM_TORCH), f"known: {', '.join(TORCH_NAMES)}")
    return found


def find_files(asked: Asked) -> ModelFiles:
    """Find the configuration of the model that is asked for.

    Raises:
        InputError: there is none.
    """
    return find_model(asked.model)


def served_name(asked: Asked) -> str:
    """Return what an engine is to load: a folder as it is, a preset by its repository."""
    preset = preset_spellings().get(asked.model.strip().casefold())
    if preset is None or Path(asked.model).expanduser().exists():
        return str(Path(asked.model).expanduser()) if Path(asked.model).expanduser().exists() else asked.model
    return preset_repository(preset)


def write_folder(files: ModelFiles, folder: Path) -> Path:
    """Write a model folder without weights, for an engine that makes them up."""
    (folder / "config.json").write_text(json.dumps(files.config), encoding="utf-8")
    if files.quant is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(files.quant), encoding="utf-8")
    return folder


def weight_dtype(files: ModelFiles, activation: str) -> str:
    """Return the dtype of most weights, as in ``costmodel.deploy``: the checkpoint's where it is quantised, else that of the activations.

    Raises:
        InputError: costmodel has no equations for the model, or it decodes nothing; better to say so before minutes of measuring.
    """
    architecture = architecture_from_config(files.config, files.name, files.quant, files.pooling)
    if architecture.pooling:
        raise InputError(f"{files.name} pools and writes no text; only steps of models that write text are measured")
    return main_format(architecture).name if architecture.quantization else activation


def now() -> str:
    """Return the date and time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def check_positive(**values: Any) -> None:
    """Refuse numbers that must be at least one.

    Raises:
        InputError: one is not; named as the command's option.
    """
    for name, value in values.items():
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
