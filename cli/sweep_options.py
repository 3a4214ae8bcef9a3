"""The options of ``costmodel sweep``: axes that take several values, by commas or by giving an option again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from costmodel.cli.lora_options import lora_options
from costmodel.cli.options import Values, calibration_options, prices_option
from costmodel.hardware.errors import InputError

Command = Callable[..., Any]


AXES: dict[str, tuple[Values, str, str]] = {
    "model": (Values("text"), "Models: presets, a config.json or its folder, Hugging Face names.", "Llama-3.1-8B"),
    "gpu": (Values("text"), "GPUs: names (`costmodel gpus list`) or profiles.", "h100"),
    "tp": (Values("whole"), "Tensor-parallel sizes.", "1"),
    "dtype": (Values("text"), "Weight dtypes.", "the checkpoint's"),
    "chunk": (Values("chunk"), "Token budgets per step, `engine` or `one-step`.", "engine"),
    "rate": (
        Values("number"),
        "Prompts per second; of a simulated load, requests per second instead of clients.",
        "none; with --simulate interference 0.1, the first after half of 1/rate",
    ),
    "prompt": (Values("tokens"), "Tokens of a prompt, also of a simulated load.", "8000"),
    "streams": (Values("whole"), "Streams that decode; clients that wait for their answers.", "32"),
    "context": (Values("whole"), "Tokens each stream has in the KV cache.", "500"),
    "output": (Values("whole"), "Tokens of an answer, also of a simulated load.", "500"),
}
"""Name → type, help, default."""
ALSO = {"chunk": ("--max-num-batched-tokens",), "streams": ("--clients", "--concurrency")}
"""Other names of these options in `simulate` and in vLLM."""


def axis_options(command: Command) -> Command:
    """Add the axes of the grid."""
    for name, (kind, text, default) in reversed(AXES.items()):
        also = ALSO.get(name, ())
        command = click.option(
            f"--{name}", *also, name, type=kind, multiple=True, help=f"{text}  [default: {default}]"
        )(command)
    return command


def model_options(command: Command) -> Command:
    """Add what all rows have in common."""
    options = (
        click.option("--ep", type=int, default=1, show_default=True, help="Expert-parallel size."),
        click.option("--kv-dtype", default=None, help="KV-cache dtype.  [default: the activations']"),
        click.option("--compute-dtype", default=None, help="Dtype of products of quantised weights."),
        lora_options,
        calibration_options,
        click.option(
            "--assume-efficiency", is_flag=True, help="For GPUs without a calibration: that of the nearest relative."
        ),
        prices_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def simulation_options(command: Command) -> Command:
    """Add what simulations take."""
    options = (
        click.option(
            "--simulate", type=click.Choice(("load", "interference")), default=None,
            help="Simulate each configuration, instead of the closed form.",
        ),
        click.option("--requests", type=int, default=None, help="Requests of a load.  [default: as `simulate load`]"),
        click.option("--duration", type=float, default=None, help="Seconds of arrivals, or of the experiment."),
        click.option("--spread", type=float, default=None, help="Spread of lengths, 0 to 1.  [default: 0]"),
        click.option("--burstiness", type=float, default=None, help="Of arrivals.  [default: 1, Poisson]"),
        click.option("--seed", type=int, default=None, help="Of lengths and arrivals.  [default: 0]"),
        click.option("--ttft-slo-ms", type=float, default=None, help="Limit of a good request."),
        click.option("--tpot-slo-ms", type=float, default=None, help="Limit of a good request."),
        click.option("--max-num-seqs", type=int, default=None, help="Sequences at once.  [default: vLLM's]"),
        click.option("--workers", type=int, default=None, help="Processes on this machine.  [default: one per core]"),
        click.option("--dask", metavar="ADDRESS", default=None, help="Dask scheduler, e.g. tcp://10.0.0.1:8786."),
        click.option(
            "--journal", type=click.Path(path_type=Path), default=None,
            help="File that gets every row at once.  [default: beside --out]",
        ),
        click.option("--resume", is_flag=True, help="Go on with what is in the journal."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


SIMULATION_ONLY = (
    *("requests", "duration", "spread", "burstiness", "seed", "ttft_slo_ms", "tpot_slo_ms", "max_num_seqs"),
    *("workers", "dask", "journal", "resume"),
)


def take_axes(options: dict[str, Any]) -> dict[str, Any]:
    """Take the axes that were given out of the options."""
    given = {name: [value for values in options.pop(name) for value in values] for name in AXES}
    return {name: values for name, values in given.items() if values}


def refuse_simulation_options(options: dict[str, Any]) -> None:
    """Refuse options of simulations where nothing is simulated."""
    for name in SIMULATION_ONLY:
        if options[name] not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} is for --simulate load or --simulate interference")
