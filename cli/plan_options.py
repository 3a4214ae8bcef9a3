"""Options of the inverse questions of ``costmodel plan``, and how their answers are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from costmodel.cli.options import Values, calibration_options, deployment_options, echo_json, one_value_each, single
from costmodel.cli.speculative_options import refuse_speculation
from costmodel.hardware.errors import InputError
from costmodel.planning.documents import Plan

Command = TypeVar("Command", bound=Callable[..., Any])


def tokens(*names: str, default: str | None = None, help: str) -> Callable[[Command], Command]:
    """Return an option that takes a number of tokens."""
    return click.option(
        *names, type=Values("tokens", several=False), default=default, show_default=default is not None, help=help
    )


def number(*names: str, default: str | None = None, help: str) -> Callable[[Command], Command]:
    """Return an option that takes a whole number."""
    return click.option(
        *names, type=Values("whole", several=False), default=default, show_default=default is not None, help=help
    )


def limit_option(name: str, help: str) -> Callable[[Command], Command]:
    """Return an option that takes a limit in milliseconds."""
    return click.option(f"--{name}-ms", f"--{name}-slo-ms", f"{name}_ms", type=float, default=None, help=help)


def every_option(default: float | None = 10.0) -> Callable[[Command], Command]:
    """Return the option for the period of the long prompts."""
    return click.option(
        "--every", type=float, default=default, show_default=default is not None, help="Seconds between long prompts."
    )


def model_options(parts: bool = True) -> Callable[[Command], Command]:
    """Return what adds model, GPU and the flags that have a part in an inverse question.

    Args:
        parts: whether the GPU and its number are given; otherwise they are asked for.
    """

    def add(command: Command) -> Command:
        options: list[Callable[[Command], Command]] = [deployment_options, calibration_options]
        options.append(
            click.option(
                "--assume-efficiency",
                is_flag=True,
                help="For a GPU without a calibration: the efficiencies of its nearest measured relative, if there is one.",
            )
        )
        options.append(
            click.option(
                "--rung",
                type=click.Choice(["roofline", "calibrated"]),
                default=None,
                help="Step times at datasheet rates, or calibrated.  [default: calibrated where there is a calibration]",
            )
        )
        options.append(
            number("--max-num-seqs", help="Sequences that run at once.  [default: vLLM's, where they matter]")
        )
        if parts:
            options.append(number("--kv-tokens", help="Tokens that the KV cache holds.  [default: what memory leaves]"))
        options.append(number("--block-size", "block_tokens", help="Tokens of a KV block.  [default: vLLM's]"))
        options.append(
            tokens(
                "--max-model-len",
                help="Longest sequence, prompt and answer; as for vLLM, 32k is 32,000 and 32K is 32,768.  [default: the model's]",
            )
        )
        for option in reversed(options):
            command = option(command)
        kept = []
        for parameter in getattr(command, "__click_params__", ()):
            if parameter.name == "pp":
                parameter.hidden = True  # refused with a reason
            if parts or parameter.name not in ("gpu", "tp"):
                kept.append(parameter)
        command.__click_params__ = kept  # type: ignore[attr-defined]
        return one_value_each(refuse_speculation(command))

    return add


def prefix_option(help: str) -> Callable[[Command], Command]:
    """Return the option for what the prefix cache has of the prompts."""
    return tokens("--cached-prefix", default="0", help=help)


def chunk_option(default: str) -> Callable[[Command], Command]:
    """Return the option for the token budget of the server.

    Args:
        default: in words.
    """
    return click.option(
        "--chunk",
        "--max-num-batched-tokens",
        "chunk",
        type=Values("chunk", several=False),
        default=None,
        help=f"Token budget per step; `engine` for vLLM's default on this GPU, `one-step` for the prompt in one.  [default: {default}]",
    )


def answer_options(plot: bool = True) -> Callable[[Command], Command]:
    """Return what adds the output."""

    def add(command: Command) -> Command:
        command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(
            command
        )
        if plot:
            command = click.option(
                "--plot", type=click.Path(), default=None, help="Draw a figure into this .png, .svg or .pdf."
            )(command)
            command = click.option("--force", is_flag=True, help="Overwrite the file that --plot names.")(command)
        return command

    return add


def take_model(options: dict[str, Any]) -> dict[str, Any]:
    """Take model, GPU and flags out of the options, those that were not given left out.

    Raises:
        InputError: pipeline stages, or several values.
    """
    if (stages := options.pop("pp")) != 1:
        raise InputError(f"pp {stages}: pipeline stages are not simulated; divide the model with --tp")
    names = (
        "gpu",
        "model",
        "tp",
        "ep",
        "dtype",
        "kv_dtype",
        "compute_dtype",
        "lora",
        "engine",
        "calibration",
        "assume_efficiency",
    )
    taken = {name: options.pop(name) for name in (*names, "rung", *FLAGS) if name in options}
    found = {
        name: single(name.replace("_", "-"), value) if isinstance(value, list) else value
        for name, value in taken.items()
    }
    return {name: value for name, value in found.items() if value is not None and value is not False}


FLAGS = ("max_num_seqs", "kv_tokens", "block_tokens", "max_model_len")


MOST_MS = 1e12
"""Longest limit: thirty years [ms]."""


def take_limits(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take limits out of the options, in seconds; :class:`InputError` for one that is not above zero."""
    found: dict[str, Any] = {}
    for name in names:
        value = options.pop(f"{name}_ms")
        if value is not None and not 0 < value <= MOST_MS:
            raise InputError(f"{name}-ms must be a number above zero and at most {MOST_MS:g}, not {value:g}")
        found[name] = None if value is None else value / 1e3
    return found


def take_single(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take options that have one value each."""
    taken = {name: options.pop(name) for name in names}
    return {
        name: single(name.replace("_", "-"), value) if isinstance(value, list) else value
        for name, value in taken.items()
    }


def refuse_typed(why: str, *names: str) -> None:
    """Refuse options of the running command that were typed though they have no say.

    Args:
        why: goes behind the option.
        names: of its parameters.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{parameter.opts[0]} {why}")


def take_chunk(options: dict[str, Any]) -> int | str | None:
    """Take the token budget out of the options: a number, ``engine``, ``one-step`` or None for the default."""
    given = options.pop("chunk")
    if given is None:
        return None
    value = single("chunk", given)
    return "one-step" if value is None else value


def check_plot(plot: str | None, force: bool) -> Path | None:
    """Return the file of a figure, refused now where it cannot be written."""
    if plot is None:
        return None
    from costmodel.cli.figures.saving import check_target

    check_target(Path(plot), force)
    return Path(plot)


def show(plan: Plan, as_json: bool) -> int:
    """Print an answer and return the exit code: 1 where it is no."""
    if as_json:
        echo_json(plan)
    else:
        from costmodel.cli.plan_report import report

        click.echo(report(plan))
    return 0 if plan.feasible else 1
