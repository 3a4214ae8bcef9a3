"""The grid of a sweep: which configurations, in which order."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_args

from costmodel.architecture.formats import PLAIN_FORMATS
from costmodel.architecture.source import load_model
from costmodel.checks import MAX_SECONDS, choice, positive, text, whole
from costmodel.dtypes import KV_DTYPES
from costmodel.hardware.catalog import is_path, load_gpu, resolve_gpu
from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.profile import ComputeDtype
from costmodel.simulation.options import ONE_STEP

MOST_POINTS = 100_000_000
"""Larger grids are taken for a slip of the keyboard."""
MOST_RATE = 1e9


@dataclass(frozen=True, slots=True)
class Grid:
    """Values of every axis, checked. Rows come in this order, the last axis varying fastest.

    Attributes:
        model, gpu: names or paths.
        tp: tensor-parallel sizes.
        dtype: weight dtypes; None for the checkpoint's.
        chunk: token budgets; ``"engine"`` for vLLM's default on the part, None for the prompt in one step.
        rate: prompts (or requests) per second; None for clients that wait for their answers.
        prompt, streams, context, output: tokens, sequences, tokens, tokens. None for an output that is not asked about.
    """

    model: tuple[str, ...]
    gpu: tuple[str, ...]
    tp: tuple[int, ...]
    dtype: tuple[str | None, ...]
    chunk: tuple[int | str | None, ...]
    rate: tuple[float | None, ...]
    prompt: tuple[int, ...]
    streams: tuple[int, ...]
    context: tuple[int, ...]
    output: tuple[int | None, ...]

    def __len__(self) -> int:
        return math.prod(len(getattr(self, field.name)) for field in fields(self))

    @property
    def inner(self) -> tuple[int, ...]:
        """Number of values of the axes inside a deployment: chunk, rate, prompt, streams, context, output."""
        return tuple(len(getattr(self, name)) for name in INNER)

    def deployments(self) -> Iterator[dict[str, Any]]:
        """Yield model, GPU, TP and dtype of each deployment."""
        for model in self.model:
            for gpu in self.gpu:
                for tp in self.tp:
                    for dtype in self.dtype:
                        yield {"model": model, "gpu": gpu, "tp": tp, "dtype": dtype}


INNER = ("chunk", "rate", "prompt", "streams", "context", "output")


def make_grid(
    model: Any,
    gpu: Any,
    tp: Any,
    dtype: Any,
    chunk: Any,
    rate: Any,
    prompt: Any,
    streams: Any,
    context: Any,
    output: Any,
) -> Grid:
    """Check the axes of a grid; each is one value or several.

    Raises:
        InputError: an unknown name, a value that cannot be, an axis without values, or too many points.
    """
    grid = Grid(
        model=_axis(model, "model", text),
        gpu=_axis(gpu, "gpu", text),
        tp=_axis(tp, "tp", lambda value, name: whole(value, name, 1)),
        dtype=_axis(
            dtype, "dtype", lambda value, name: None if value is None else choice(value, tuple(PLAIN_FORMATS), name)
        ),
        chunk=_axis(chunk, "chunk", _chunk),
        rate=_axis(rate, "rate", _rate),
        prompt=_axis(prompt, "prompt", lambda value, name: whole(value, name, 1)),
        streams=_axis(streams, "streams", lambda value, name: whole(value, name, 1, 1_000_000)),
        context=_axis(context, "context", whole),
        output=_axis(output, "output", lambda value, name: None if value is None else whole(value, name, 1)),
    )
    if len(grid) > MOST_POINTS:
        raise InputError(f"{len(grid):,} configurations are more than {MOST_POINTS:,}")
    for name in grid.gpu:
        load_gpu(name)
    for name in grid.model:
        load_model(name)
    return grid


def part_of(gpu: str) -> str:
    """Return the canonical name of a part, or the path of a profile as it was given."""
    return gpu if is_path(gpu) else resolve_gpu(gpu).name


def check_placement(ep: int, kv_dtype: str | None, compute_dtype: str | None) -> None:
    """Raise :class:`InputError` for what can be of no row: an EP of less than one, dtypes that there are not."""
    whole(ep, "ep", 1)
    if kv_dtype is not None:
        choice(kv_dtype, ("auto", *KV_DTYPES), "KV-cache dtype")
    if compute_dtype is not None:
        choice(compute_dtype, get_args(ComputeDtype), "compute dtype")


def _axis(given: Any, name: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """Return the checked values of an axis, or raise :class:`InputError`."""
    if given is None or isinstance(given, (str, bytes, int, float, os.PathLike)):
        values = [given]
    else:
        try:
            values = list(given.tolist() if hasattr(given, "tolist") else given)
        except TypeError:
            values = [given]
    if not values:
        raise InputError(f"{name} needs at least one value")
    return tuple(check(value, name) for value in values)


def _rate(value: Any, name: str) -> float | None:
    if value is None:
        return None
    rate = positive(value, name, MOST_RATE)
    if rate < 1 / MAX_SECONDS:  # as of `every`, its reciprocal
        raise InputError(f"{name} must be at least {1 / MAX_SECONDS:g}, not {shown(value)}")
    return rate


def _chunk(value: Any, name: str) -> int | str | None:
    if value is None or value in ONE_STEP:
        return None
    if isinstance(value, str):
        if value != "engine":
            raise InputError(f"{name} must be a whole number, 'engine' or 'one-step', not {shown(value)}")
        return value
    return whole(value, name, 1)
