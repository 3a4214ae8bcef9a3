"""Options that several commands share, and the kinds of values they take."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from costmodel.cli.lora_options import lora_options
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES
from costmodel.simulation.options import ONE_STEP

Command = TypeVar("Command", bound=Callable[..., Any])

PROMPT_PRESETS = {"chat": 1730, "summarisation": 7060, "summarization": 7060}
"""Median prompts of a chat and of a summarisation trace, as the lesson gives them [tokens]."""

MAX_CONFIGURATIONS = 2000
"""Largest grid that one call of predict takes."""

SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""What a count may end in, as for ``vllm serve``: lower case is decimal, upper case binary (https://docs.vllm.ai/en/v0.31.0/cli/)."""


if TYPE_CHECKING:
    ListType = click.ParamType[list[Any]]
else:
    ListType = click.ParamType  # generic only from click 8.3


class Values(ListType):
    """One value or several, separated by commas.

    Args:
        kind: ``tokens``, ``whole``, ``number``, ``text`` or ``chunk``.
        several: whether the command takes several, which the help then shows; :func:`single` refuses them elsewhere.
    """

    name = "value[,value…]"

    def __init__(self, kind: str, several: bool = True) -> None:
        self.kind, self.several = kind, several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Split and convert; the error names the option, the piece and the reason."""
        if isinstance(value, list):
            return value
        if self.kind == "text" and os.path.exists(value):
            return [value]  # a path may have a comma in it
        pieces = [piece.strip() for piece in str(value).split(",")]
        if not all(pieces):
            self.fail(f"{value!r} has an empty value between commas", param, ctx)
        if self.kind != "text" and _looks_like_thousands(pieces, self.kind):
            again = ", or give the option once for each" if self.kind == "number" else ""
            self.fail(
                f"{value!r} is read as several values; write thousands without a separator: {''.join(pieces)}{again}",
                param,
                ctx,
            )
        one = self._number if self.kind == "number" else self._one
        return [one(piece, param, ctx) for piece in pieces]

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what the help shows."""
        one = {"tokens": "TOKENS", "whole": "N", "number": "NUMBER", "text": "NAME", "chunk": "TOKENS|engine"}[
            self.kind
        ]
        return f"{one}[,…]" if self.several else one

    def _one(self, piece: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.kind == "text":
            return piece
        if self.kind == "chunk" and piece.casefold() in ("engine", *ONE_STEP):
            return None if piece.casefold() in ONE_STEP else "engine"
        if self.kind == "tokens" and piece.casefold() in PROMPT_PRESETS:
            return PROMPT_PRESETS[piece.casefold()]
        if piece[-1:] in SUFFIXES and piece[:-1].isdecimal():
            return int(piece[:-1]) * SUFFIXES[piece[-1]]
        try:
            return int(piece)
        except ValueError:
            pass
        try:
            number = float(piece)
            if number % 1 != 0:
                raise ValueError
            return int(number)
        except (ValueError, OverflowError):
            names = {"chunk": ", 'engine' or 'none'", "tokens": ", 'chat' or 'summarisation'"}.get(self.kind, "")
            self.fail(f"{piece!r} is not a whole number{names}", param, ctx)

    def _number(self, piece: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(piece)
        except ValueError:
            self.fail(f"{piece!r} is not a number", param, ctx)


def _looks_like_thousands(pieces: list[str], kind: str) -> bool:
    """Tell whether a list looks like one number with thousands separators: 8,000 or 131,072; for tokens and rates also 16,384."""
    if len(pieces) < 2 or not all(piece.isdecimal() for piece in pieces):
        return False
    grouped = len(pieces[0]) <= 3 and all(len(piece) == 3 for piece in pieces[1:])
    few = kind in ("tokens", "chunk", "number") and int(pieces[0]) < 32  # nobody asks for prompts or budgets that small
    return grouped and (few or any(piece.startswith("0") for piece in pieces[1:]))


def deployment_options(command: Command) -> Command:
    """Add the options that fix model, GPU, number formats and parallelism."""
    for option in reversed(
        (
            click.option(
                "--gpu",
                type=Values("text"),
                default="h100",
                show_default=True,
                help="GPU: a name (`costmodel gpus list`), what nvidia-smi prints, or a profile.toml.",
            ),
            click.option(
                "--model",
                type=Values("text"),
                default="Llama-3.1-8B",
                show_default=True,
                help="Model: a preset (`costmodel models list`), a config.json or its folder, or a Hugging Face name.",
            ),
            click.option("--tp", type=Values("whole"), default="1", show_default=True, help="Tensor-parallel size."),
            click.option("--pp", type=int, default=1, show_default=True, help="Pipeline-parallel size."),
            click.option(
                "--ep",
                type=int,
                default=1,
                show_default=True,
                help="Expert-parallel size: 1 or a multiple of --tp. With more than --tp, the workload is that of each attention replica.",
            ),
            click.option(
                "--dtype",
                type=Values("text"),
                default=None,
                help="Weight dtype: bf16, fp16, fp8, fp8-block, int8, int4, mxfp4, nvfp4.  [default: the checkpoint's]",
            ),
            click.option(
                "--kv-dtype",
                default=None,
                help="KV-cache dtype: bf16, fp16, fp8, int8.  [default: the activations', whatever the weights are]",
            ),
            click.option(
                "--compute-dtype",
                default=None,
                help="Dtype of the products of quantised weights.  [default: the best that weights and GPU allow]",
            ),
            lora_options,
        )
    ):
        command = option(command)
    return command


def one_value_each(command: Command) -> Command:
    """Let the help of a command whose options take one value each say so; goes above the options it is about."""
    for option in getattr(command, "__click_params__", ()):
        if isinstance(option.type, Values):
            option.type = Values(option.type.kind, several=False)
    return command


def calibration_options(command: Command) -> Command:
    """Add the options that choose the fitted factors of the calibrated rung."""
    for option in reversed(
        (
            click.option(
                "--engine",
                type=click.Choice(ENGINES),
                default="vllm",
                show_default=True,
                help="Engine whose shipped calibration of the GPU is used.",
            ),
            click.option(
                "--calibration",
                type=click.Path(),
                default=None,
                help="Fitted factors of this GPU (TOML), or `none`.  [default: those shipped for GPU and engine]",
            ),
        )
    ):
        command = option(command)
    return command


def prices_option(command: Command) -> Command:
    """Add the option for the user's table of prices."""
    return click.option(
        "--prices",
        type=click.Path(),
        default=None,
        help="Your prices of a GPU for an hour: CSV with the columns gpu and price_per_hour, or TOML.",
    )(command)


def load_options(command: Command) -> Command:
    """Add the options that fix the workload."""
    for option in reversed(
        (
            click.option(
                "--prompt",
                type=Values("tokens"),
                default="8000",
                show_default=True,
                help="Tokens of the long prompt: 8000, 8k (8,000), 8K (8,192, as for vLLM), `chat` (1,730) or `summarisation` (7,060).",
            ),
            click.option(
                "--streams",
                type=Values("whole"),
                default="32",
                show_default=True,
                help="Streams that are decoding when it arrives.",
            ),
            click.option(
                "--context",
                type=Values("whole"),
                default="500",
                show_default=True,
                help="Tokens each stream has in the KV cache.",
            ),
            click.option(
                "--chunk",
                type=Values("chunk"),
                default=None,
                help="Token budget per step (max_num_batched_tokens), or `engine` for vLLM's default, whatever --engine is.  "
                "[default: the prompt in one step]",
            ),
        )
    ):
        command = option(command)
    return command


def image_options(command: Command) -> Command:
    """Add the options that put images into every prompt."""
    for option in reversed(
        (
            click.option(
                "--images",
                type=int,
                default=0,
                show_default=True,
                help="Images in every prompt, for models that take them: they add tokens to it and are encoded first.",
            ),
            click.option(
                "--image-size",
                default=None,
                metavar="WIDTHxHEIGHT",
                help="Pixels of each image.  [default: 1024x1024]",
            ),
        )
    ):
        command = option(command)
    return command


def grid(**options: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the options' values, the last varying fastest.

    Raises:
        InputError: more than :data:`MAX_CONFIGURATIONS` combinations.
    """
    total = 1
    for values in options.values():
        total *= len(values)
    if total > MAX_CONFIGURATIONS:
        raise InputError(
            f"{total:,} configurations are more than {MAX_CONFIGURATIONS:,}; use costmodel.step_times for grids"
        )
    for combination in itertools.product(*options.values()):
        yield dict(zip(options, combination, strict=True))


def single(name: str, values: list[Any] | None) -> Any:
    """Return the one value of an option that takes a single value here."""
    if values is None:
        return None
    if len(values) != 1:
        raise InputError(f"--{name} takes one value here, not {len(values)}")
    return values[0]


def echo_json(document: Any) -> None:
    """Write one JSON document to stdout and nothing else."""
    click.echo(json_text(document))


def json_text(document: Any) -> str:
    """Return one JSON document as text.

    Raises:
        ValueError: a number is not finite.
    """
    if hasattr(document, "model_dump_json"):
        return str(document.model_dump_json(by_alias=True, indent=2))
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
